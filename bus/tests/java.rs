//! The topic of events, read without blkkin's code: the Java consumer of `wire/examples`, with
//! Kafka's own client.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking, and prints results")]

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use blkkin_bus::kafka::{EVENTS, EventProducer, Record, Sent};
use blkkin_wire::ids::NodeId;
use support::child::KillOnDrop;
use support::secure::{Listener, Operation, ResourceType, allow};
use support::{Broker, or_skip};

const JARS: &str = "java-consumer-4-33-0";
const PATIENCE: Duration = Duration::from_secs(60);

fn wire(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../wire").join(name)
}

fn jars() -> Result<PathBuf, String> {
    let configured = std::env::var_os("BLKKIN_JAVA_JARS").map(PathBuf::from);
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/toolchain").join(JARS);
    let found = configured.into_iter().chain([default]).find(|folder| folder.is_dir());
    found.ok_or_else(|| "no protobuf for Java: cargo xtask setup --tests fetches it".to_owned())
}

/// Runs a command. Returns an error if the program is missing, and panics with its output if it
/// fails.
fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{:?}: {error}", command.get_program()))?;
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Compiles the consumer and the schema into `folder`. Returns the class path.
fn compiled(folder: &Path) -> Result<String, String> {
    let schema = folder.join("blkkin.desc");
    let mut protoc = Command::new("protoc");
    protoc.arg(format!("--proto_path={}", wire("").display()));
    run(protoc.arg(format!("--descriptor_set_out={}", schema.display())).arg("blkkin.proto"))?;
    let jars = jars()?;
    let path = format!("{}/*:{}/*:{}", jars.display(), support::jars()?.display(), folder.display());
    let mut compiler = Command::new("java");
    compiler.args(["-cp", &path, "org.eclipse.jdt.internal.compiler.batch.Main", "-17", "-cp"]);
    // The compiler does not accept wildcards in its class path.
    let all = [jars, support::jars()?].into_iter().flat_map(|folder| fs::read_dir(folder).unwrap().flatten());
    let all: Vec<_> = all.map(|jar| jar.path().display().to_string()).collect();
    run(compiler.arg(all.join(":")).arg("-d").arg(folder).arg(wire("examples/Consumer.java")))?;
    Ok(path)
}

/// Golden files: records with their expected content, written by hand.
/// `wire/src/v1/tests/golden.rs` compares the same files in Rust, and `wire/tests/consumers.rs` in
/// Python.
const GOLDEN: [&str; 8] = [
    "v1",
    "rpc-endpoint-v1",
    "daemon-span-v1",
    "context-v1",
    "context-daemon-span-v1",
    "process-v1",
    "attributes-v1",
    "pid-namespace-v1",
];

#[test]
fn a_java_consumer_reads_each_batch_once() {
    let folder = tempfile::tempdir().unwrap();
    let Some(path) = or_skip(compiled(folder.path())) else { return };
    let Some(broker) = or_skip(Broker::start_guarded("")) else { return };
    let settings = broker.settings();
    settings.create_topic(EVENTS, 1, Some(1)).unwrap();
    let golden = |name: &str| fs::read(wire("golden").join(name).with_extension("bin")).unwrap();
    let producer = EventProducer::new(&settings, NodeId(1)).unwrap();
    // A record of another version; the first batch twice; then each batch with its own sequence, as
    // one source has sent them all.
    let mut records = vec![vec![1 << 3, 2], golden("v1"), golden("v1")];
    for (name, more) in GOLDEN.iter().zip(1..) {
        let batch = blkkin_wire::v1::decode(&golden(name)).unwrap().batch;
        let sequence = batch.sequence + more;
        records.push(blkkin_wire::v1::encode(&blkkin_wire::batch::EventBatch { sequence, ..batch }));
    }
    let sent = records.len() as u64;
    for bytes in records {
        assert_eq!(producer.send(Record { bytes, events: 1 }, || false), Ok(Sent::Queued));
    }
    assert_eq!(producer.finish(PATIENCE).delivered, sent);

    // Connects as any client of the cluster: with a properties file, a user and its rights.
    allow(broker.port(), ResourceType::Topic, EVENTS, Operation::Read);
    allow(broker.port(), ResourceType::Group, "reader", Operation::Read);
    let properties = broker.guard().java_properties(Listener::ScramTls);
    let client = folder.path().join("client.properties");
    fs::write(&client, format!("{properties}group.id=reader\n")).unwrap();
    let stderr = fs::File::create(folder.path().join("stderr")).unwrap();
    let mut reader = Command::new("java");
    reader.args(["-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", &path, "Consumer"]);
    reader.arg(folder.path().join("blkkin.desc")).arg(&client).stdout(Stdio::piped()).stderr(stderr);
    let mut reader = KillOnDrop(reader.spawn().unwrap());
    let expected =
        |name: &&str| fs::read_to_string(wire("golden").join(name).with_extension("jsonl")).unwrap();
    let expected: String = ["v1"].iter().chain(&GOLDEN).map(expected).collect();
    let expected: Vec<_> = expected.lines().collect();
    let lines = BufReader::new(reader.0.stdout.take().unwrap()).lines().take(expected.len());
    let lines: Vec<_> = lines.map(Result::unwrap).collect();
    let stderr = fs::read_to_string(folder.path().join("stderr")).unwrap();
    assert_eq!(lines, expected, "{stderr}");
    assert!(stderr.contains("schema version 2, expected 1"), "{stderr}");
}
