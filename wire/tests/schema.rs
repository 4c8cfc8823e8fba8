//! `src/v1/generated.rs` is what prost generates from `blkkin.proto`.
//!
//! *In*: the schema. *Out*: the file, with `BLESS=1 cargo test -p blkkin-wire --test schema`; else an error if it
//! differs. protox compiles the schema, so no `protoc` is needed.
//!
//! *Invariant*: the schema is the only list of fields. A nested message is a plain field that is
//! always written, except the messages in `OPTIONAL`, whose absence has a meaning.
//!
//! *Rejected*: a build script, for which each profile of each build compiled the generator and the crates below it (protox, miette,
//! logos, regex and others). Messages that a person declares in Rust too: 775 lines that are easily wrong.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use prost_types::FileDescriptorSet;
use prost_types::field_descriptor_proto::{Label, Type};

const FILE: &str = "src/v1/generated.rs";

/// Nested messages whose absence has a meaning; the comments of the schema define it.
const OPTIONAL: &[(&str, &[&str])] = &[
    (
        "EventBatch",
        &[
            "contexts",
            "rpc_endpoint_events",
            "daemon_span_events",
            "thread_attributes",
            "page_origin_events",
            "async_io_events",
            "fault_events",
        ],
    ),
    ("SourceStats", &["page_origins", "faults", "waits", "sleeps"]),
    ("CallWaits", &["holder", "log_write"]),
    ("VirtualMachineEvent", &["host"]),
    ("HostProcess", &["clock"]),
    ("LinkEndpoint", &["peer"]),
    ("CrashedRun", &["fired", "dropped", "read", "persisted", "unacknowledged"]),
];

#[test]
fn the_generated_messages_are_those_of_the_schema() {
    let folder = tempfile::tempdir().unwrap();
    let mut schema = protox::compile(["blkkin.proto"], ["."]).unwrap();
    require_messages(&mut schema);
    prost_build::Config::new()
        // Comments of the schema are for all languages; as rustdoc they would be code blocks.
        .disable_comments(["."])
        .out_dir(folder.path())
        .compile_fds(schema)
        .unwrap();
    let generated = std::fs::read_to_string(folder.path().join("blkkin.v1.rs")).unwrap();
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(FILE, &generated).unwrap();
    }
    assert!(std::fs::read_to_string(FILE).unwrap() == generated, "BLESS=1 writes {FILE}");
}

/// Marks each nested message as required, except those in [`OPTIONAL`]: prost then generates the
/// message itself, not an `Option`.
fn require_messages(schema: &mut FileDescriptorSet) {
    for message in schema.file.iter_mut().flat_map(|file| &mut file.message_type) {
        let name = message.name().to_owned();
        let optional = |field: &str| {
            OPTIONAL.iter().any(|(message, fields)| *message == name && fields.contains(&field))
        };
        for field in &mut message.field {
            if field.r#type() == Type::Message && field.label() == Label::Optional && !optional(field.name())
            {
                field.set_label(Label::Required);
            }
        }
    }
}
