//! Who reads the topic of events without any code of ours: the consumer of `wire/examples`, in Java, by Kafka's own client.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use blkkin_bus::kafka::{EVENTS, EventProducer, Record, Sent};
use blkkin_wire::ids::NodeId;
use support::Broker;
use support::secure::{About, Listener, Right, allow};

const JARS: &str = "java-consumer-4-33-0";
const PATIENCE: Duration = Duration::from_secs(60);

/// Killed with the test, however that ends.
struct Reader(Child);

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wire(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../wire").join(name)
}

fn jars() -> Result<PathBuf, String> {
    let said = std::env::var_os("BLKKIN_JAVA_JARS").map(PathBuf::from);
    let made = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/toolchain").join(JARS);
    let found = said.into_iter().chain([made]).find(|folder| folder.is_dir());
    found.ok_or_else(|| "no protobuf for Java: cargo xtask setup --tests fetches it".to_owned())
}

/// Runs it to its end; what it says if it fails is ours.
fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{:?}: {error}", command.get_program()))?;
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// The consumer as classes, and the schema as it reads it, in this folder; with all that they need.
fn compiled(folder: &Path) -> Result<String, String> {
    let schema = folder.join("blkkin.desc");
    let mut protoc = Command::new("protoc");
    protoc.arg(format!("--proto_path={}", wire("").display()));
    run(protoc.arg(format!("--descriptor_set_out={}", schema.display())).arg("blkkin.proto"))?;
    let jars = jars()?;
    let path = format!("{}/*:{}/*:{}", jars.display(), support::jars()?.display(), folder.display());
    let mut compiler = Command::new("java");
    compiler.args(["-cp", &path, "org.eclipse.jdt.internal.compiler.batch.Main", "-17", "-cp"]);
    // The compiler reads jars by name.
    let all = [jars, support::jars()?].into_iter().flat_map(|folder| fs::read_dir(folder).unwrap().flatten());
    let all: Vec<_> = all.map(|jar| jar.path().display().to_string()).collect();
    run(compiler.arg(all.join(":")).arg("-d").arg(folder).arg(wire("examples/Consumer.java")))?;
    Ok(path)
}

/// The records and what is in them were written by hand, value by value: `wire/src/v1/tests/ever.rs` has the same in Rust, and
/// `wire/tests/consumers.rs` in Python.
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
fn a_consumer_in_java_reads_what_was_written_each_batch_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = match compiled(folder.path()) {
        Ok(path) => path,
        Err(why) => return println!("skipped: {why}"),
    };
    let broker = match Broker::start_guarded("") {
        Ok(broker) => broker,
        Err(why) => return println!("skipped: {why}"),
    };
    let settings = broker.settings();
    settings.create_topic(EVENTS, 1, Some(1)).unwrap();
    let golden = |name: &str| fs::read(wire("golden").join(name).with_extension("bin")).unwrap();
    let producer = EventProducer::new(&settings, NodeId(1)).unwrap();
    // Of another version; the first twice; then each under a number of its own, as one source has sent them all.
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

    // As any client of the cluster: a file of properties, a user, a right.
    allow(broker.port(), About::Topic, EVENTS, Right::Read);
    allow(broker.port(), About::Group, "reader", Right::Read);
    let properties = broker.guard().java_properties(Listener::ScramTls);
    let client = folder.path().join("client.properties");
    fs::write(&client, format!("{properties}group.id=reader\n")).unwrap();
    let said = fs::File::create(folder.path().join("said")).unwrap();
    let mut reader = Command::new("java");
    reader.args(["-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", &path, "Consumer"]);
    reader.arg(folder.path().join("blkkin.desc")).arg(&client).stdout(Stdio::piped()).stderr(said);
    let mut reader = Reader(reader.spawn().unwrap());
    let expected =
        |name: &&str| fs::read_to_string(wire("golden").join(name).with_extension("jsonl")).unwrap();
    let expected: String = ["v1"].iter().chain(&GOLDEN).map(expected).collect();
    let expected: Vec<_> = expected.lines().collect();
    let lines = BufReader::new(reader.0.stdout.take().unwrap()).lines().take(expected.len());
    let lines: Vec<_> = lines.map(Result::unwrap).collect();
    let said = fs::read_to_string(folder.path().join("said")).unwrap();
    assert_eq!(lines, expected, "{said}");
    assert!(said.contains("schema version 2, expected 1"), "{said}");
}
