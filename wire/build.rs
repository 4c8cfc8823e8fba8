//! Generates the messages of `blkkin.proto` with prost.
//!
//! *In*: the schema. *Out*: `blkkin.v1.rs`, included by `src/v1/message.rs`. protox compiles the
//! schema, so no `protoc` is needed.
//!
//! *Invariant*: the schema is the only list of fields. A nested message is a plain field that is
//! always written, except the messages in `OPTIONAL`, whose absence has a meaning.
//!
//! *Rejected*: messages declared in Rust too; a test had to keep them equal to the schema.

use prost_types::FileDescriptorSet;
use prost_types::field_descriptor_proto::{Label, Type};

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
    ("SourceStats", &["page_origins", "faults", "waits"]),
    ("CallWaits", &["holder", "log_write"]),
    ("VirtualMachineEvent", &["host"]),
    ("HostProcess", &["clock"]),
    ("LinkEndpoint", &["peer"]),
    ("CrashedRun", &["fired", "dropped", "read", "persisted", "unacknowledged"]),
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=blkkin.proto");
    let mut schema = protox::compile(["blkkin.proto"], ["."])?;
    require_messages(&mut schema);
    prost_build::Config::new()
        // Comments of the schema are for all languages; as rustdoc they would be code blocks.
        .disable_comments(["."])
        .compile_fds(schema)?;
    Ok(())
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
