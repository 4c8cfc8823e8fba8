//! Mapping of events to span events by mapping files.

mod support;

use std::fmt::Write as _;
use std::path::Path;

use blkkin_lttng_live::trace_folder::TraceFolder;
use blkkin_ust_bridge::mapping::config::Mapping;
use blkkin_ust_bridge::mapping::mapper::Mapper;

/// Value of a field, which determines its type.
enum Field {
    U64(u64),
    I64(i64),
    U8(u8),
    U32(u32),
    I32(i32),
    Text(&'static str),
}
use Field::{I32, I64, Text, U8, U32, U64};

type Fields = Vec<(&'static str, Field)>;

/// Writes a trace with these events of thread 71 of process 70, 1 µs apart.
fn trace(folder: &Path, events: &[(&str, Fields)]) {
    let mut metadata = "/* CTF 1.8 */ trace { major = 1; minor = 8; byte_order = le; };\n\
        clock { name = \"monotonic\"; freq = 1000000000; };\n\
        stream { event.header := struct {\n\
        integer { size = 16; align = 8; } id;\n\
        integer { size = 64; align = 8; map = clock.monotonic.value; } timestamp; };\n\
        event.context := struct { integer { size = 32; align = 8; } _vpid;\n\
        integer { size = 32; align = 8; } _vtid;\n\
        integer { size = 8; align = 8; encoding = UTF8; } _procname[17]; }; };\n"
        .to_owned();
    let mut bytes = Vec::new();
    for (id, (name, fields)) in events.iter().enumerate() {
        let _ = writeln!(metadata, "event {{ name = \"{name}\"; id = {id}; fields := struct {{");
        bytes.extend((id as u16).to_le_bytes());
        bytes.extend((1000 * (id as u64 + 1)).to_le_bytes());
        bytes.extend(70_u32.to_le_bytes());
        bytes.extend(71_u32.to_le_bytes());
        bytes.extend(b"daemon\0\0\0\0\0\0\0\0\0\0\0");
        for (field, value) in fields {
            let (bits, signed) = match value {
                U64(value) => (bytes.extend(value.to_le_bytes()), (64, false)).1,
                I64(value) => (bytes.extend(value.to_le_bytes()), (64, true)).1,
                U32(value) => (bytes.extend(value.to_le_bytes()), (32, false)).1,
                I32(value) => (bytes.extend(value.to_le_bytes()), (32, true)).1,
                U8(value) => (bytes.push(*value), (8, false)).1,
                Text(text) => {
                    bytes.extend(text.bytes().chain([0]));
                    let _ = writeln!(metadata, "string _{field};");
                    continue;
                }
            };
            let _ =
                writeln!(metadata, "integer {{ size = {bits}; align = 8; signed = {signed}; }} _{field};");
        }
        metadata.push_str("}; };\n");
    }
    std::fs::write(folder.join("metadata"), metadata).expect("the folder is writable");
    std::fs::write(folder.join("stream"), bytes).expect("the folder is writable");
}

/// Returns the span events in debug format.
fn span_events(mapper: &mut Mapper, events: &[(&str, Fields)]) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a folder");
    trace(folder.path(), events);
    let mut trace_folder = TraceFolder::open(folder.path()).expect("the folder is readable");
    let mut span_events = Vec::new();
    while let Some(view) = trace_folder.next_event() {
        mapper.map(&view, &mut |at, event| {
            assert_eq!((at.vpid, at.vtid, &*at.procname), (70, 71, "daemon"));
            span_events.push(format!("{} {event:?}", at.time_ns));
        });
    }
    assert!(trace_folder.problems.is_empty(), "{:?}", trace_folder.problems);
    span_events
}

#[test]
fn events_of_blkkin_are_mapped() {
    events_are_mapped(["sampled_per_million", "blkkin:rpc_endpoint", "protocol"], Mapping::built_in());
}

const EARLIER: [&str; 3] = ["kept_per_million", "blkkin:meeting", "rule"];

#[test]
fn events_and_mappings_of_earlier_builds_are_read() {
    events_are_mapped(EARLIER, Mapping::built_in());
    let built_in = include_str!("../../configs/mappings/blkkin.toml");
    let older = built_in
        .replace("is = \"rpc_endpoint\"", "is = \"meeting\"")
        .replace("is = \"batch\"", "is = \"together\"")
        .replace("protocol_from = ", "rule_from = ")
        .replace(
            "sampled_per_million_from = [\"sampled_per_million\", \"kept_per_million\"]",
            "kept_per_million_from = \"kept_per_million\"",
        );
    let words = [
        "is = \"meeting\"",
        "is = \"together\"",
        "kept_per_million_from = \"kept_per_million\"",
        "rule_from = \"rule\"",
    ];
    assert!(words.iter().all(|word| older.contains(word)), "{older}");
    let older = Mapping::read(&older).expect("an older mapping is valid");
    events_are_mapped(EARLIER, older);
}

#[test]
fn switches_of_earlier_builds_are_read() {
    let of = |[switch, enter, leave]: [&'static str; 3]| {
        let switched = vec![("left", U64(3)), ("span", U64(4))];
        let events = [(switch, switched), (enter, vec![("span", U64(5))]), (leave, vec![("span", U64(5))])];
        span_events(&mut Mapper::new(Mapping::built_in()), &events)
    };
    let now = of(["blkkin:switch_span", "blkkin:unpublished_enter", "blkkin:unpublished_leave"]);
    assert_eq!(now.len(), 4, "{now:?}");
    assert_eq!(of(["blkkin:turn", "blkkin:unseen_enter", "blkkin:unseen_leave"]), now);
}

/// Maps one event of each kind, where the fraction, the endpoint and its protocol have these names.
fn events_are_mapped([fraction, endpoint_name, protocol]: [&'static str; 3], mapping: Mapping) {
    let mut mapper = Mapper::new(mapping);
    let begin = vec![
        ("trace_hi", U64(1)),
        ("trace_lo", U64(2)),
        ("span", U64(3)),
        ("parent", U64(0)),
        ("kind", U8(1)),
        ("on", U8(1)),
        (fraction, U32(500_000)),
        ("name", Text("READ")),
        ("service", Text("nbd")),
    ];
    let endpoint = vec![
        ("span", U64(3)),
        ("side", U8(1)),
        ("unique", U8(0)),
        (protocol, Text("nbd")),
        ("connection", Text("a>b")),
        ("cookie", U64(u64::MAX)),
    ];
    let events = [
        ("blkkin:begin", begin),
        ("blkkin:enter", vec![("span", U64(3))]),
        ("blkkin:event", vec![("span", U64(3)), ("name", Text("decoded"))]),
        ("blkkin:text", vec![("span", U64(3)), ("key", Text("export")), ("val", Text("disk"))]),
        ("blkkin:number", vec![("span", U64(3)), ("key", Text("offset")), ("val", I64(-1))]),
        (endpoint_name, endpoint),
        ("blkkin:leave", vec![("span", U64(3))]),
        ("blkkin:end", vec![("span", U64(3)), ("status", I32(-5))]),
        ("other:event", vec![("span", U64(3))]),
    ];
    let expected = [
        "1000 Begin { trace_hi: 1, trace_lo: 2, span: 3, parent: 0, kind: Server, enter: true, \
         sample_rate: 500000, name: \"READ\", service: \"nbd\" }",
        "2000 Enter { span: 3 }",
        "3000 Event { span: 3, name: \"decoded\" }",
        "4000 Text { span: 3, key: \"export\", value: \"disk\" }",
        "5000 Number { span: 3, key: \"offset\", value: -1 }",
        "6000 RpcEndpoint { span: 3, side: Server, unique: false, protocol: \"nbd\", connection: \"a>b\", \
         cookie: 18446744073709551615 }",
        "7000 Leave { span: 3 }",
        "8000 End { span: 3, status: 5 }",
    ];
    assert_eq!(span_events(&mut mapper, &events), expected);
    assert_eq!((mapper.stats.mapped, mapper.stats.ignored, mapper.stats.not_understood), (8, 1, 0));
    assert_eq!(mapper.stats.unknown["other:event"], 1);
}

fn blkin(mut rest: Fields) -> Fields {
    let mut fields = vec![
        ("trace_name", Text("osd op")),
        ("service_name", Text("osd.0")),
        ("port_no", I32(6800)),
        ("ip", Text("10.0.0.1")),
        ("trace_id", I64(11)),
        ("span_id", I64(12)),
        ("parent_span_id", I64(10)),
    ];
    fields.append(&mut rest);
    fields
}

#[test]
fn events_of_blkin_are_mapped() {
    let mut mapper = Mapper::new(Mapping::built_in());
    let events = [
        ("zipkin:timestamp", blkin(vec![("event", Text("sr"))])),
        ("zipkin:keyval_string", blkin(vec![("key", Text("pool")), ("val", Text("rbd"))])),
        ("zipkin:keyval_integer", blkin(vec![("key", Text("length")), ("val", I64(4096))])),
        ("zipkin:keyval", blkin(vec![("key", Text("old")), ("val", Text("form"))])),
        ("zipkin:timestamp", blkin(vec![("event", Text("ss"))])),
    ];
    let expected = [
        "1000 Begin { trace_hi: 0, trace_lo: 11, span: 12, parent: 10, kind: Local, enter: false, \
         sample_rate: 1000000, name: \"osd op\", service: \"osd.0\" }",
        "1000 Event { span: 12, name: \"sr\" }",
        "2000 Text { span: 12, key: \"pool\", value: \"rbd\" }",
        "3000 Number { span: 12, key: \"length\", value: 4096 }",
        "4000 Text { span: 12, key: \"old\", value: \"form\" }",
        "5000 Event { span: 12, name: \"ss\" }",
        "5000 End { span: 12, status: 0 }",
    ];
    assert_eq!(span_events(&mut mapper, &events), expected);
}

/// A provider without spans: a query is identified by its thread, a job by its number.
const FOREIGN: &str = r#"
[[rule]]
event = "pg:query_start"
is = "begin"
key = []
scope = "thread"
group = "query"
name = "query"
service = "postgres"
kind = "server"
on = true
annotate = { "db.statement" = "text", "db.length" = "length" }

[[rule]]
event = "pg:query_done"
is = "end"
key = []
scope = "thread"
group = "query"

[[rule]]
event = "pg:job_start"
is = "begin"
key = ["number"]
name_from = "what"

[[rule]]
event = "pg:job_*"
is = "event"
when = { number = [7] }
key = ["number"]
name = "seen"
"#;

#[test]
fn provider_without_spans_gets_spans_by_key() {
    let events = || {
        [
            ("pg:query_start", vec![("text", Text("select 1")), ("length", U32(8))]),
            ("pg:job_start", vec![("number", U32(7)), ("what", Text("sort"))]),
            ("pg:job_step", vec![("number", U32(7))]),
            ("pg:job_step", vec![("number", U32(8))]),
            ("pg:query_done", vec![]),
            ("pg:query_done", vec![]),
        ]
    };
    let mut mapper = Mapper::new(Mapping::read(FOREIGN).expect("the mapping is valid"));
    let first = span_events(&mut mapper, &events());
    assert_eq!(mapper.stats.unmatched, 1, "the second end has no begin");
    let span =
        first[0].split("span: ").nth(1).and_then(|rest| rest.split(',').next()).expect("a span").to_owned();
    assert_eq!(
        first[0],
        format!(
            "1000 Begin {{ trace_hi: 0, trace_lo: 0, span: {span}, parent: 0, kind: Server, enter: true, \
             sample_rate: 1000000, name: \"query\", service: \"postgres\" }}"
        )
    );
    let mut about = first[1..3].to_vec();
    about.sort();
    assert_eq!(
        about,
        [
            format!("1000 Number {{ span: {span}, key: \"db.length\", value: 8 }}"),
            format!("1000 Text {{ span: {span}, key: \"db.statement\", value: \"select 1\" }}"),
        ]
    );
    assert!(first[3].contains("name: \"sort\", service: \"daemon\""), "{}", first[3]);
    assert_eq!(first.iter().filter(|event| event.contains("\"seen\"")).count(), 2);
    assert_eq!(first.last(), Some(&format!("5000 End {{ span: {span}, status: 0 }}")));
    let mut again = Mapper::new(Mapping::read(FOREIGN).expect("the mapping is valid"));
    assert_eq!(span_events(&mut again, &events()), first, "the same events give the same ids");
}

#[test]
fn changed_fields_are_reported_and_counted() {
    let mut mapper = Mapper::new(Mapping::built_in());
    let events = [
        ("blkkin:enter", vec![("span", Text("three"))]),
        ("blkkin:leave", vec![("spam", U64(3))]),
        ("blkkin:enter", vec![("span", U64(3))]),
    ];
    assert_eq!(span_events(&mut mapper, &events), ["3000 Enter { span: 3 }"]);
    assert_eq!((mapper.stats.mapped, mapper.stats.not_understood), (1, 2));
    let bind_errors: Vec<String> = mapper.take_bind_errors().map(|misfit| misfit.to_string()).collect();
    assert_eq!(
        bind_errors,
        ["field `span` of blkkin:enter is not an integer", "blkkin:leave has no field `span` (it has spam)"]
    );
}

#[test]
fn invalid_mappings_are_refused() {
    let refusal = |text: &str| Mapping::read(text).expect_err("an invalid mapping").to_string();
    assert!(refusal("[[rule]]\nevent = \"a:b\"\nis = \"begins\"\n").contains("unknown variant"));
    assert!(refusal("[[rule]]\nevent = \"a:b\"\nis = \"end\"\nspam = 1\n").contains("unknown field"));
    let rule = |rest: &str| refusal(&format!("[[rule]]\nevent = \"a:b\"\n{rest}"));
    assert_eq!(rule("is = \"end\""), "rule for `a:b` with is = `end`: `span` or `key` is missing");
    assert!(rule("is = \"begin\"\nspan = \"s\"").contains("`name` or `name_from` is missing"));
    assert!(refusal("[[rule]]\nevent = \"ab\"\nis = \"ignore\"").contains("provider:name"));
}
