//! Who reads the topics without any code of ours: `blkkin.proto`, protoc, and the consumer of `examples/`.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// That of the distribution, whose modules protoc's answers need: a user may have another before it.
const PYTHON: &str = "/usr/bin/python3";

fn here(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// The schema in Python; or why not.
fn compiled() -> Result<tempfile::TempDir, String> {
    let runs = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output();
        let output = output.map_err(|error| format!("{program}: {error}"))?;
        let said = || format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim());
        if output.status.success() { Ok(()) } else { Err(said()) }
    };
    runs("protoc", &["--version"])?;
    runs(PYTHON, &["-c", "import google.protobuf"])?;
    let folder = tempfile::tempdir().unwrap();
    let from = format!("--proto_path={}", here("").display());
    let to = format!("--python_out={}", folder.path().display());
    // From here on a failure is ours.
    runs("protoc", &[&from, &to, "blkkin.proto"]).unwrap();
    Ok(folder)
}

fn consume(schema: &Path, arguments: &[&str], record: &[u8]) -> Output {
    let mut command = Command::new(PYTHON);
    command
        .arg(here("examples/consumer.py"))
        .args(arguments)
        .env("PYTHONPATH", schema)
        .env("PYTHONDONTWRITEBYTECODE", "1");
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut consumer = pipes.spawn().unwrap();
    consumer.stdin.take().unwrap().write_all(record).unwrap();
    consumer.wait_with_output().unwrap()
}

/// Records and what is in them were written by hand, value by value: `src/v1/tests/ever.rs` and `src/v1/pieces/tests.rs` have the
/// same in Rust.
const GOLDEN: [(&str, &[&str]); 10] = [
    ("v1", &[]),
    ("process-v1", &[]),
    ("attributes-v1", &[]),
    ("inner-v1", &[]),
    ("meeting-v1", &[]),
    ("operation-v1", &[]),
    ("context-v1", &[]),
    ("context-operation-v1", &[]),
    ("pieces-v1", &["--pieces"]),
    ("links-v1", &["--pieces"]),
];

#[test]
fn a_consumer_in_python_reads_what_was_written() {
    let schema = match compiled() {
        Ok(schema) => schema,
        Err(why) => return println!("skipped: {why}"),
    };
    for (name, arguments) in GOLDEN {
        let golden = here("golden").join(name);
        let record = std::fs::read(golden.with_extension("bin")).unwrap();
        let output = consume(schema.path(), arguments, &record);
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        let expected = std::fs::read_to_string(golden.with_extension("jsonl")).unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected, "{name}");
    }
}

#[test]
fn a_consumer_in_python_refuses_a_version_that_it_does_not_know() {
    let schema = match compiled() {
        Ok(schema) => schema,
        Err(why) => return println!("skipped: {why}"),
    };
    let output = consume(schema.path(), &[], &[1 << 3, 2]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("version 2 of the schema"), "{said}");
}
