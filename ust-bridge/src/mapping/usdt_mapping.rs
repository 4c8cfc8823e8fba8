//! Mapping of USDT probes, which describe only their location and arguments.
//!
//! *In*: a file with a program, its probes, and mapping rules (configs/mappings/postgresql.toml
//! explains it), then USDT events. *Out*: span events, from the same [`Mapper`] as LTTng events. An
//! event has the name of its probe (`provider:name`). Its fields are `arg1`, `arg2`, … and, if a
//! text is read, `text`.
//!
//! The probes are described to the mapper in CTF metadata, like the events of an LTTng trace. A
//! USDT event is then an event of that trace that was never in a packet.
//!
//! *Invariant*: only texts that the file asks for are read from a program's memory.
//!
//! *Rejected*: a second mapper for USDT, with its own implementation of all rules.

use std::fmt::Write;
use std::path::PathBuf;

use serde::Deserialize;

use super::bind::BindError;
use super::config::{Mapping, MappingError, Rule};
use super::mapper::{Mapper, MapperStats};
use crate::span_event::{EventOrigin, SpanEvent, TRUSTED_USER};
use blkkin_lttng_live::ctf::metadata::CtfTrace;
use blkkin_lttng_live::ctf::packet::{Event, Items, PacketHeader};
use blkkin_lttng_live::ctf::plan::{Item, Value};
use blkkin_lttng_live::event_view::EventView;
use blkkin_wire::usdt_event::UsdtEvent;

/// Name of the text field.
const TEXT_FIELD: &str = "text";
/// Value of a text that was not in memory: a probe cannot fault a page in.
const UNREADABLE_TEXT: &str = "(was not in memory)";

/// Mapping file of USDT probes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UsdtMappingFile {
    /// Program or library with the probes.
    pub program: PathBuf,
    /// Probes to attach.
    pub probe: Vec<ProbeConfig>,
    /// Mapping rules.
    #[serde(default)]
    pub rule: Vec<Rule>,
}

/// Probe in the file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProbeConfig {
    /// Name, in the form `provider:name`.
    pub name: String,
    /// Argument with the address of a text: `arg1`, `arg2`, …
    pub text: Option<String>,
}

impl UsdtMappingFile {
    /// Parses a mapping file.
    pub fn read(text: &str) -> Result<UsdtMappingFile, MappingError> {
        let file: Self = toml::from_str(text).map_err(|error| MappingError::Toml(error.to_string()))?;
        let mapping = Mapping { rule: file.rule };
        mapping.check()?;
        for probe in &file.probe {
            let invalid = |problem| {
                let kind = "probe";
                Err(MappingError::Rule { event: probe.name.clone(), kind, problem })
            };
            // Other characters would end the generated declaration of the event.
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_:.-".contains(&byte);
            if !probe.name.contains(':') || !probe.name.bytes().all(plain) {
                return invalid("probe names have the form provider:name");
            }
            if probe.text.is_some() && probe.text_argument().is_none() {
                return invalid("`text` must name an argument: arg1, arg2, …");
            }
        }
        if file.probe.is_empty() {
            return Err(MappingError::Toml("the file has no `probe`".to_owned()));
        }
        Ok(UsdtMappingFile { rule: mapping.rule, ..file })
    }

    /// Returns the events of rules without a probe, which would never apply.
    pub fn unused_rules(&self) -> impl Iterator<Item = &str> {
        let unused = |rule: &&Rule| !self.probe.iter().any(|probe| rule.matches(&probe.name));
        self.rule.iter().filter(unused).map(|rule| &*rule.event)
    }
}

impl ProbeConfig {
    /// Returns the argument with the address of a text, counted from 1.
    pub fn text_argument(&self) -> Option<usize> {
        let number: usize = self.text.as_ref()?.strip_prefix("arg")?.parse().ok()?;
        (number > 0).then_some(number)
    }
}

/// Resolved probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeSignature {
    /// Name, in the form `provider:name`.
    pub name: String,
    /// Signedness of each argument; `None` if it cannot be read.
    pub signed: Vec<Option<bool>>,
    /// A text is read.
    pub text: bool,
}

/// Mapper of USDT events.
#[derive(Debug)]
pub struct UsdtMapping {
    trace: CtfTrace,
    header: PacketHeader,
    signatures: Vec<ProbeSignature>,
    mapper: Mapper,
    decoded: Event,
    text_bytes: Vec<u8>,
    /// A rule selects by the text, and does not only record it.
    text_selects: bool,
    /// Events without an argument that a rule may need. They are dropped.
    pub unreadable: u64,
}

impl UsdtMapping {
    /// Creates a mapping; fails if a rule names a field that its probe does not have.
    pub fn new(signatures: Vec<ProbeSignature>, rules: Vec<Rule>) -> Result<UsdtMapping, BindError> {
        let trace = CtfTrace::read(metadata_text(&signatures).as_bytes())
            .expect("invariant: names are validated, and the rest is generated");
        for class in trace.streams.iter().flat_map(|stream| &stream.events) {
            super::bind::bind(&rules, class)?;
        }
        let selects = |fields: &Option<Vec<String>>| fields.iter().flatten().any(|field| field == TEXT_FIELD);
        let text_selects = rules.iter().any(|rule| {
            selects(&rule.key) || rule.when.contains_key(TEXT_FIELD) || rule.unless.contains_key(TEXT_FIELD)
        });
        Ok(UsdtMapping {
            text_selects,
            trace,
            header: PacketHeader::default(),
            signatures,
            mapper: Mapper::new(Mapping { rule: rules }),
            decoded: Event::default(),
            text_bytes: Vec::new(),
            unreadable: 0,
        })
    }

    /// Maps an event. Returns false if an argument could not be read, so that the event has no
    /// known meaning.
    pub fn map(&mut self, event: &UsdtEvent, out: &mut impl FnMut(&EventOrigin<'_>, SpanEvent<'_>)) -> bool {
        let Some(signature) = self.signatures.get(event.probe) else { return false };
        self.text_bytes.clear();
        self.decoded.class = event.probe as u32;
        let (decoded, text_bytes) = (&mut self.decoded, &mut self.text_bytes);
        let text = |text_bytes: &mut Vec<u8>, text: &str| {
            let at = text_bytes.len() as u32;
            text_bytes.extend_from_slice(text.as_bytes());
            Value::Text { at, length: text.len() as u32 }
        };
        let comm = text(text_bytes, &event.comm);
        let context = [Value::Unsigned(event.pid.0.into()), Value::Unsigned(event.tid.0.into()), comm];
        set(&mut decoded.stream_context, context);
        let mut payload = Vec::with_capacity(signature.signed.len() + 1);
        for (signed, argument) in signature.signed.iter().zip(&event.arguments) {
            let Some(signed) = signed else { continue };
            let Some(argument) = argument else {
                // With a guessed argument a wrong rule could apply.
                self.unreadable += 1;
                return false;
            };
            payload.push(match signed {
                true => Value::Signed(*argument as i64),
                false => Value::Unsigned(*argument as u64),
            });
        }
        if signature.text {
            // A missing or truncated text may or may not be the text in a rule.
            if self.text_selects && event.text.as_ref().is_none_or(|text| text.ends_with('…')) {
                self.unreadable += 1;
                return false;
            }
            payload.push(text(text_bytes, event.text.as_deref().unwrap_or(UNREADABLE_TEXT)));
        }
        set(&mut decoded.payload, payload);
        let view = EventView {
            trace: &self.trace,
            // The kernel names the thread.
            user: TRUSTED_USER,
            trace_index: 0,
            stream_index: 0,
            header: &self.header,
            packet: &self.text_bytes,
            event: &self.decoded,
            time_ns: i64::try_from(event.time.0).unwrap_or(i64::MAX),
            gap: None,
        };
        self.mapper.map(&view, out);
        true
    }

    /// Forgets open spans after lost events, because their ends may be lost.
    pub fn forget_open_spans(&mut self) {
        self.mapper.forget_open_spans();
    }

    /// Forgets open spans of an exited thread; with the first thread, those of the process.
    pub fn thread_exited(&mut self, pid: u32, tid: u32) {
        self.mapper.thread_exited(pid, tid, pid == tid);
    }

    /// Returns the counters of events.
    pub fn stats(&self) -> &MapperStats {
        &self.mapper.stats
    }
}

fn set(items: &mut Items, values: impl IntoIterator<Item = Value>) {
    items.list.clear();
    items.list.extend(values.into_iter().map(|value| Item { info: 0, value }));
    items.top.clear();
    items.top.extend(0..items.list.len() as u32);
}

/// Returns the probes in CTF's metadata language (Common Trace Format 1.8.3, section 7).
fn metadata_text(signatures: &[ProbeSignature]) -> String {
    let number = |signed: bool, bits: u32| {
        format!("integer {{ size = {bits}; align = 8; signed = {}; }}", u8::from(signed))
    };
    let id = number(false, 32);
    let mut text = format!(
        "/* CTF 1.8 */\ntrace {{ major = 1; minor = 8; byte_order = le; }};\n\
         stream {{ event.context := struct {{ {id} _vpid; {id} _vtid; string _procname; }}; }};\n"
    );
    for (id, signature) in signatures.iter().enumerate() {
        let mut fields = String::new();
        for (n, signed) in signature.signed.iter().enumerate() {
            if let Some(signed) = signed {
                let _ = write!(fields, "{} _arg{}; ", number(*signed, 64), n + 1);
            }
        }
        if signature.text {
            fields.push_str("string _text; ");
        }
        let _ = writeln!(
            text,
            "event {{ name = \"{}\"; id = {id}; fields := struct {{ {fields}}}; }};",
            signature.name
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use blkkin_wire::clock::MonotonicNs;
    use blkkin_wire::ids::{Pid, Tid};

    use super::*;

    const FILE: &str = include_str!("../../../configs/mappings/postgresql.toml");

    fn usdt_mapping(text: &str, signatures: Vec<ProbeSignature>) -> Result<UsdtMapping, BindError> {
        UsdtMapping::new(signatures, UsdtMappingFile::read(text).unwrap().rule)
    }

    fn status(text: bool) -> Vec<ProbeSignature> {
        vec![ProbeSignature { name: "postgresql:statement__status".into(), signed: vec![Some(false)], text }]
    }

    /// Returns an event of the first probe by the first thread of a process.
    fn event(time: u64, pid: u32, argument: Option<i128>, text: Option<&str>) -> UsdtEvent {
        UsdtEvent {
            time: MonotonicNs(time),
            probe: 0,
            pid: Pid(pid),
            tid: Tid(pid),
            comm: "postgres".into(),
            arguments: vec![argument],
            text: text.map(Into::into),
        }
    }

    fn map_all(usdt_mapping: &mut UsdtMapping, events: &[(u64, u32, Option<i128>)]) -> Vec<String> {
        let mut all = Vec::new();
        for &(time, pid, argument) in events {
            usdt_mapping.map(&event(time, pid, argument, None), &mut |at, span_event| {
                all.push(match span_event {
                    SpanEvent::Begin { span, enter, name, service, .. } => {
                        assert!(enter && span != 0 && at.vpid == at.vtid);
                        format!("{} {} begins {name} of {service}", at.time_ns, at.vtid)
                    }
                    SpanEvent::End { .. } => format!("{} {} ends", at.time_ns, at.vtid),
                    other => format!("{other:?}"),
                });
            });
        }
        all
    }

    #[test]
    fn backend_has_a_query_span_until_it_is_idle() {
        let mut usdt_mapping = usdt_mapping(FILE, status(false)).unwrap();
        let (busy, idle) = (Some(0x5000), Some(0));
        // The extended protocol fires the probe for parse, bind and execute of one query.
        let mapped = map_all(
            &mut usdt_mapping,
            &[
                (1, 7, idle),
                (2, 7, busy),
                (3, 8, busy),
                (4, 7, busy),
                (5, 7, idle),
                (6, 7, idle),
                (7, 7, busy),
            ],
        );
        let begins = |at, tid| format!("{at} {tid} begins query of postgresql");
        assert_eq!(mapped, [begins(2, 7), begins(3, 8), "5 7 ends".into(), begins(7, 7)]);
        assert_eq!(usdt_mapping.stats().mapped, 7);
    }

    #[test]
    fn forgotten_span_begins_again() {
        let mut usdt_mapping = usdt_mapping(FILE, status(false)).unwrap();
        let query = |at, tid| [(at, tid, Some(1))];
        assert_eq!(map_all(&mut usdt_mapping, &[query(1, 7), query(2, 8)].concat()).len(), 2);
        assert_eq!(map_all(&mut usdt_mapping, &query(3, 7)).len(), 0);
        usdt_mapping.thread_exited(7, 7);
        assert_eq!(map_all(&mut usdt_mapping, &[query(4, 7), query(5, 8)].concat()).len(), 1);
        usdt_mapping.forget_open_spans();
        assert_eq!(map_all(&mut usdt_mapping, &[query(6, 7), query(7, 8)].concat()).len(), 2);
    }

    #[test]
    fn unreadable_argument_gives_no_event() {
        let mut usdt_mapping = usdt_mapping(FILE, status(false)).unwrap();
        assert_eq!(map_all(&mut usdt_mapping, &[(1, 7, None)]).len(), 0);
        assert_eq!(usdt_mapping.unreadable, 1);
    }

    const PAIR: &str = "program = \"/p\"\n[[probe]]\nname = \"a:b\"\n[[rule]]\nevent = \"a:b\"\nis = \"begin\"\n\
                        on = true\nscope = \"thread\"\nkey = []\nname = \"q\"\nservice = \"s\"\nwhen = { arg1 = [1] }\n";

    #[test]
    fn second_begin_of_a_key_leaves_the_first_span() {
        let signature = || vec![ProbeSignature { name: "a:b".into(), signed: vec![Some(true)], text: false }];
        // The end of the first span was lost.
        let mut once = usdt_mapping(PAIR, signature()).unwrap();
        let mapped = map_all(&mut once, &[(1, 7, Some(1)), (2, 7, Some(1)), (3, 8, Some(1))]);
        assert_eq!(mapped.len(), 4, "{mapped:?}");
        assert!(mapped[0] == "1 7 begins q of s" && mapped[1].starts_with("Leave {"), "{mapped:?}");
        assert_eq!(mapped[2..], ["2 7 begins q of s", "3 8 begins q of s"]);
        // Two rules with the same begin for one event create one span.
        let rule = &PAIR[PAIR.find("[[rule]]").unwrap()..];
        let mut twice = usdt_mapping(&format!("{PAIR}{rule}"), signature()).unwrap();
        assert_eq!(map_all(&mut twice, &[(1, 7, Some(1))]), ["1 7 begins q of s"]);
    }

    #[test]
    fn missing_or_truncated_text_matches_no_condition() {
        let rule = "program = \"/p\"\n[[probe]]\nname = \"a:b\"\ntext = \"arg1\"\n[[rule]]\nevent = \"a:b\"\nis = \"begin\"\n\
                    key = []\nname = \"q\"\nunless = { text = [\"idle\"] }\n";
        let signature = ProbeSignature { name: "a:b".into(), signed: vec![Some(true)], text: true };
        let mut usdt_mapping = usdt_mapping(rule, vec![signature]).unwrap();
        let mut map = |text| {
            let mut begun = 0;
            (usdt_mapping.map(&event(1, 1, Some(1), text), &mut |_, _| begun += 1), begun)
        };
        assert_eq!([map(None), map(Some("a lo…")), map(Some("idle"))], [(false, 0), (false, 0), (true, 0)]);
        assert_eq!(map(Some("busy")), (true, 1));
        assert_eq!(usdt_mapping.unreadable, 2);
    }

    #[test]
    fn text_field_exists_only_if_configured() {
        let rule = "program = \"/p\"\n[[probe]]\nname = \"a:b\"\ntext = \"arg1\"\n[[rule]]\nevent = \"a:b\"\nis = \"begin\"\n\
                    key = []\nname_from = \"text\"\n";
        assert_eq!(UsdtMappingFile::read(rule).unwrap().probe[0].text_argument(), Some(1));
        let signature = ProbeSignature { name: "a:b".into(), signed: vec![Some(true)], text: true };
        let mut usdt_mapping = usdt_mapping(rule, vec![signature.clone()]).unwrap();
        let mut name = None;
        usdt_mapping.map(&event(1, 1, Some(-1), Some("VACUUM")), &mut |_, span_event| {
            if let SpanEvent::Begin { name: text, .. } = span_event {
                name = Some(text.into_owned());
            }
        });
        assert_eq!(name.as_deref(), Some("VACUUM"));
        let without = vec![ProbeSignature { text: false, ..signature }];
        assert!(matches!(self::usdt_mapping(rule, without), Err(BindError::NoField { .. })));
    }

    #[test]
    fn invalid_probe_files_are_refused() {
        let probe = |name: &str, text: &str| {
            format!("program = \"/p\"\n[[probe]]\nname = '{name}'\ntext = '{text}'\n")
        };
        for (text, reason) in [
            ("program = \"/p\"\nprobe = []".to_owned(), "has no `probe`"),
            ("[[probe]]\nname = \"a:b\"".to_owned(), "program"),
            (probe("query__start", "arg1"), "provider:name"),
            (probe("a:b\"; };", "arg1"), "provider:name"),
            (probe("a:b", "query"), "arg1, arg2"),
            (probe("a:b", "arg0"), "arg1, arg2"),
        ] {
            let refusal = UsdtMappingFile::read(&text).unwrap_err().to_string();
            assert!(refusal.contains(reason), "{refusal}");
        }
    }

    #[test]
    fn rules_without_a_probe_are_reported() {
        let mut file = UsdtMappingFile::read(FILE).unwrap();
        assert_eq!(file.unused_rules().count(), 0);
        file.rule[0].event = "postgresql:query__start".to_owned();
        assert_eq!(file.unused_rules().collect::<Vec<_>>(), ["postgresql:query__start"]);
    }
}
