//! External consumers of the topics: `blkkin.proto`, protoc, and the Python consumer in
//! `examples/`.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking, and prints results")]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Python of the distribution, whose modules match protoc. PATH may have another one first.
const PYTHON: &str = "/usr/bin/python3";

fn crate_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Compiles the schema to Python; an error explains why the test is skipped.
fn compiled_schema() -> Result<tempfile::TempDir, String> {
    let runs = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output();
        let output = output.map_err(|error| format!("{program}: {error}"))?;
        let error = || format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim());
        if output.status.success() { Ok(()) } else { Err(error()) }
    };
    runs("protoc", &["--version"])?;
    runs(PYTHON, &["-c", "import google.protobuf"])?;
    let folder = tempfile::tempdir().unwrap();
    let from = format!("--proto_path={}", crate_path("").display());
    let to = format!("--python_out={}", folder.path().display());
    // A failure from here on is an error of the schema.
    runs("protoc", &[&from, &to, "blkkin.proto"]).unwrap();
    Ok(folder)
}

fn consume(schema: &Path, arguments: &[&str], record: &[u8]) -> Output {
    let mut command = Command::new(PYTHON);
    command
        .arg(crate_path("examples/consumer.py"))
        .args(arguments)
        .env("PYTHONPATH", schema)
        .env("PYTHONDONTWRITEBYTECODE", "1");
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut consumer = pipes.spawn().unwrap();
    consumer.stdin.take().unwrap().write_all(record).unwrap();
    consumer.wait_with_output().unwrap()
}

/// Golden records and their content as JSON lines, written by hand. `src/v1/tests/golden.rs` and
/// `src/v1/fragments/tests.rs` have the same in Rust.
const GOLDEN: [(&str, &[&str]); 11] = [
    ("v1", &[]),
    ("process-v1", &[]),
    ("attributes-v1", &[]),
    ("pid-namespace-v1", &[]),
    ("rpc-endpoint-v1", &[]),
    ("daemon-span-v1", &[]),
    ("context-v1", &[]),
    ("page-origin-v1", &[]),
    ("context-daemon-span-v1", &[]),
    ("fragments-v1", &["--fragments"]),
    ("links-v1", &["--fragments"]),
];

#[test]
fn python_consumer_reads_golden_records() {
    let schema = match compiled_schema() {
        Ok(schema) => schema,
        Err(why) => return println!("skipped: {why}"),
    };
    for (name, arguments) in GOLDEN {
        let golden = crate_path("golden").join(name);
        let record = std::fs::read(golden.with_extension("bin")).unwrap();
        let output = consume(schema.path(), arguments, &record);
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        let expected = std::fs::read_to_string(golden.with_extension("jsonl")).unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected, "{name}");
    }
}

#[test]
fn python_consumer_rejects_unknown_version() {
    let schema = match compiled_schema() {
        Ok(schema) => schema,
        Err(why) => return println!("skipped: {why}"),
    };
    let output = consume(schema.path(), &[], &[1 << 3, 2]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("schema version 2"), "{error}");
}
