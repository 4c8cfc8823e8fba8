//! Probes that say nothing of themselves but where they are (USDT): which, in which program, and what their hits mean.
//!
//! *In*: a file, as configs/mappings/postgresql.toml explains it: a program, its probes, and rules as of any mapping; then each hit, by its
//! probe's number. *Out*: facts, by the same [`Mapper`]. An event is called as its probe is (`provider:name`), its fields are
//! `arg1`, `arg2`, … and, where a text is taken, `text`.
//!
//! So that there is one mapper and not two, the probes are described to it as a trace of LTTng's describes its events, in the
//! same language; a hit is then an event of that trace that was never written to a packet.
//!
//! *Invariant*: of a program's memory no text is taken that the file does not ask for.

use std::fmt::Write;
use std::path::PathBuf;

use serde::Deserialize;

use super::bind::BindError;
use super::config::{Mapping, MappingError, Rule};
use super::mapper::{Mapped, Mapper};
use crate::ctf::metadata::Trace;
use crate::ctf::packet::{Event, Items, PacketHead};
use crate::ctf::plan::{Item, Value};
use crate::facts::{Fact, Where};
use crate::view::View;

/// The field of a text.
const TEXT: &str = "text";
/// In place of a text that was not in memory: at a probe nothing can be brought in.
const NOT_READ: &str = "(was not in memory)";

/// A file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProbesFile {
    /// The program or library that has the probes.
    pub program: PathBuf,
    /// Those that are asked for.
    pub probe: Vec<Asked>,
    /// What they mean.
    #[serde(default)]
    pub rule: Vec<Rule>,
}

/// A probe.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Asked {
    /// `provider:name`
    pub name: String,
    /// The argument that points at a text that is to be taken: `arg1`.
    pub text: Option<String>,
}

impl ProbesFile {
    /// Reads a file's text.
    pub fn read(text: &str) -> Result<ProbesFile, MappingError> {
        let file: Self = toml::from_str(text).map_err(|error| MappingError::Toml(error.to_string()))?;
        let mapping = Mapping { rule: file.rule };
        mapping.check()?;
        for asked in &file.probe {
            let wrong = |what| {
                let is = "probe".to_owned();
                Err(MappingError::Rule { event: asked.name.clone(), is, what })
            };
            // What is not in such a name would end the description of the event that it becomes.
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_:.-".contains(&byte);
            if !asked.name.contains(':') || !asked.name.bytes().all(plain) {
                return wrong("probes are called provider:name");
            }
            if asked.text.is_some() && asked.text_of().is_none() {
                return wrong("`text` names an argument: arg1, arg2, …");
            }
        }
        if file.probe.is_empty() {
            return Err(MappingError::Toml("it names no probe".to_owned()));
        }
        Ok(ProbesFile { rule: mapping.rule, ..file })
    }

    /// Rules about probes that the file does not ask for: they would never be used.
    pub fn idle_rules(&self) -> impl Iterator<Item = &str> {
        let idle = |rule: &&Rule| !self.probe.iter().any(|asked| rule.fits(&asked.name));
        self.rule.iter().filter(idle).map(|rule| &*rule.event)
    }
}

impl Asked {
    /// Which argument, counted from 1, points at a text that is to be taken.
    pub fn text_of(&self) -> Option<usize> {
        let number: usize = self.text.as_ref()?.strip_prefix("arg")?.parse().ok()?;
        (number > 0).then_some(number)
    }
}

/// A probe as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// `provider:name`
    pub name: String,
    /// Its arguments: whether each may be negative; none of those that cannot be read.
    pub signed: Vec<Option<bool>>,
    /// A text is taken.
    pub text: bool,
}

/// A hit.
#[derive(Clone, Debug, PartialEq)]
pub struct Hit<'a> {
    /// Which probe, by its place among the shapes.
    pub probe: usize,
    /// When, in ns of CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// Its name.
    pub comm: &'a str,
    /// Its arguments; none of those that could not be read this time.
    pub arguments: &'a [Option<i128>],
    /// The text, if there is one.
    pub text: Option<&'a str>,
}

/// Makes facts of hits.
#[derive(Debug)]
pub struct Probed {
    trace: Trace,
    head: PacketHead,
    shapes: Vec<Shape>,
    mapper: Mapper,
    event: Event,
    words: Vec<u8>,
    /// A rule asks what the text is, and does not only show it.
    text_decides: bool,
    /// Hits of which an argument that a rule may need could not be read: they are left out.
    pub unread: u64,
}

impl Probed {
    /// By these rules; refused where one names a field that its probe has not.
    pub fn new(shapes: Vec<Shape>, rules: Vec<Rule>) -> Result<Probed, BindError> {
        let trace = Trace::read(describe(&shapes).as_bytes())
            .expect("invariant: names were checked, and the rest is our own");
        for class in trace.streams.iter().flat_map(|stream| &stream.events) {
            super::bind::bind(&rules, class)?;
        }
        let asks = |fields: &Option<Vec<String>>| fields.iter().flatten().any(|field| field == TEXT);
        let text_decides = rules
            .iter()
            .any(|rule| asks(&rule.key) || rule.when.contains_key(TEXT) || rule.unless.contains_key(TEXT));
        Ok(Probed {
            text_decides,
            trace,
            head: PacketHead::default(),
            shapes,
            mapper: Mapper::new(Mapping { rule: rules }),
            event: Event::default(),
            words: Vec::new(),
            unread: 0,
        })
    }

    /// What a hit means. False if that cannot be known: an argument could not be read.
    pub fn map(&mut self, hit: &Hit<'_>, out: &mut impl FnMut(&Where<'_>, Fact<'_>)) -> bool {
        let Some(shape) = self.shapes.get(hit.probe) else { return false };
        self.words.clear();
        self.event.class = hit.probe as u32;
        let (event, words) = (&mut self.event, &mut self.words);
        let text = |words: &mut Vec<u8>, said: &str| {
            let at = words.len() as u32;
            words.extend_from_slice(said.as_bytes());
            Value::Text { at, length: said.len() as u32 }
        };
        let comm = text(words, hit.comm);
        let context = [Value::Unsigned(hit.pid.into()), Value::Unsigned(hit.tid.into()), comm];
        set(&mut event.stream_context, context);
        let mut payload = Vec::with_capacity(shape.signed.len() + 1);
        for (signed, argument) in shape.signed.iter().zip(hit.arguments) {
            let Some(signed) = signed else { continue };
            let Some(argument) = argument else {
                // A guess at an argument would be a wrong rule applied.
                self.unread += 1;
                return false;
            };
            payload.push(match signed {
                true => Value::Signed(*argument as i64),
                false => Value::Unsigned(*argument as u64),
            });
        }
        if shape.text {
            // Of one that is not there, or was cut, nobody knows whether it is the one that is meant.
            if self.text_decides && hit.text.is_none_or(|text| text.ends_with('…')) {
                self.unread += 1;
                return false;
            }
            payload.push(text(words, hit.text.unwrap_or(NOT_READ)));
        }
        set(&mut event.payload, payload);
        let view = View {
            trace: &self.trace,
            trace_index: 0,
            stream_index: 0,
            head: &self.head,
            packet: &self.words,
            event: &self.event,
            time_ns: i64::try_from(hit.time_ns).unwrap_or(i64::MAX),
            gap: None,
        };
        self.mapper.map(&view, out);
        true
    }

    /// Some hits were lost: what is open by a key may have ended.
    pub fn forget(&mut self) {
        self.mapper.forget();
    }

    /// A thread is gone, and its process if it was the first of it.
    pub fn gone(&mut self, pid: u32, tid: u32) {
        self.mapper.gone(pid, tid, pid == tid);
    }

    /// What became of hits.
    pub fn counts(&self) -> &Mapped {
        &self.mapper.counts
    }
}

fn set(items: &mut Items, values: impl IntoIterator<Item = Value>) {
    items.list.clear();
    items.list.extend(values.into_iter().map(|value| Item { info: 0, value }));
    items.top.clear();
    items.top.extend(0..items.list.len() as u32);
}

/// The probes in CTF's language (Common Trace Format, 1.8.3, section 7).
fn describe(shapes: &[Shape]) -> String {
    let number = |signed: bool, bits: u32| {
        format!("integer {{ size = {bits}; align = 8; signed = {}; }}", u8::from(signed))
    };
    let id = number(false, 32);
    let mut text = format!(
        "/* CTF 1.8 */\ntrace {{ major = 1; minor = 8; byte_order = le; }};\n\
         stream {{ event.context := struct {{ {id} _vpid; {id} _vtid; string _procname; }}; }};\n"
    );
    for (number_of, shape) in shapes.iter().enumerate() {
        let mut fields = String::new();
        for (n, signed) in shape.signed.iter().enumerate() {
            if let Some(signed) = signed {
                let _ = write!(fields, "{} _arg{}; ", number(*signed, 64), n + 1);
            }
        }
        if shape.text {
            fields.push_str("string _text; ");
        }
        let _ = writeln!(
            text,
            "event {{ name = \"{}\"; id = {number_of}; fields := struct {{ {fields}}}; }};",
            shape.name
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = include_str!("../../../configs/mappings/postgresql.toml");

    fn probed(text: &str, shapes: Vec<Shape>) -> Result<Probed, BindError> {
        Probed::new(shapes, ProbesFile::read(text).unwrap().rule)
    }

    fn status(text: bool) -> Vec<Shape> {
        vec![Shape { name: "postgresql:statement__status".into(), signed: vec![Some(false)], text }]
    }

    fn facts(probed: &mut Probed, hits: &[(u64, u32, Option<i128>)]) -> Vec<String> {
        let mut all = Vec::new();
        for &(time_ns, tid, argument) in hits {
            let arguments = [argument];
            let hit =
                Hit { probe: 0, time_ns, pid: tid, tid, comm: "postgres", arguments: &arguments, text: None };
            probed.map(&hit, &mut |at, fact| {
                all.push(match fact {
                    Fact::Begin { span, on, name, service, .. } => {
                        assert!(on && span != 0 && at.vpid == at.vtid);
                        format!("{} {} begins {name} of {service}", at.time_ns, at.vtid)
                    }
                    Fact::End { .. } => format!("{} {} ends", at.time_ns, at.vtid),
                    other => format!("{other:?}"),
                });
            });
        }
        all
    }

    #[test]
    fn a_backend_works_for_a_query_until_it_is_idle() {
        let mut probed = probed(FILE, status(false)).unwrap();
        let (text, idle) = (Some(0x5000), Some(0));
        // The extended protocol says parse, bind and execute of one query.
        let said = facts(
            &mut probed,
            &[
                (1, 7, idle),
                (2, 7, text),
                (3, 8, text),
                (4, 7, text),
                (5, 7, idle),
                (6, 7, idle),
                (7, 7, text),
            ],
        );
        let begins = |at, tid| format!("{at} {tid} begins query of postgresql");
        assert_eq!(said, [begins(2, 7), begins(3, 8), "5 7 ends".into(), begins(7, 7)]);
        assert_eq!(probed.counts().mapped, 7);
    }

    #[test]
    fn what_may_have_ended_begins_anew() {
        let mut probed = probed(FILE, status(false)).unwrap();
        let query = |at, tid| [(at, tid, Some(1))];
        assert_eq!(facts(&mut probed, &[query(1, 7), query(2, 8)].concat()).len(), 2);
        assert_eq!(facts(&mut probed, &query(3, 7)).len(), 0);
        probed.gone(7, 7);
        assert_eq!(facts(&mut probed, &[query(4, 7), query(5, 8)].concat()).len(), 1);
        probed.forget();
        assert_eq!(facts(&mut probed, &[query(6, 7), query(7, 8)].concat()).len(), 2);
    }

    #[test]
    fn what_could_not_be_read_is_no_value() {
        let mut probed = probed(FILE, status(false)).unwrap();
        assert_eq!(facts(&mut probed, &[(1, 7, None)]).len(), 0);
        assert_eq!(probed.unread, 1);
    }

    const PAIR: &str = "program = \"/p\"\n[[probe]]\nname = \"a:b\"\n[[rule]]\nevent = \"a:b\"\nis = \"begin\"\n\
                        on = true\nscope = \"thread\"\nkey = []\nname = \"q\"\nservice = \"s\"\nwhen = { arg1 = [1] }\n";

    #[test]
    fn who_begins_again_works_for_what_it_had_begun_no_longer() {
        let shape = || vec![Shape { name: "a:b".into(), signed: vec![Some(true)], text: false }];
        // The end of the first never came.
        let mut once = probed(PAIR, shape()).unwrap();
        let said = facts(&mut once, &[(1, 7, Some(1)), (2, 7, Some(1)), (3, 8, Some(1))]);
        assert_eq!(said.len(), 4, "{said:?}");
        assert!(said[0] == "1 7 begins q of s" && said[1].starts_with("Leave {"), "{said:?}");
        assert_eq!(said[2..], ["2 7 begins q of s", "3 8 begins q of s"]);
        // Two rules that say the same of one hit make one operation.
        let rule = &PAIR[PAIR.find("[[rule]]").unwrap()..];
        let mut twice = probed(&format!("{PAIR}{rule}"), shape()).unwrap();
        assert_eq!(facts(&mut twice, &[(1, 7, Some(1))]), ["1 7 begins q of s"]);
    }

    #[test]
    fn a_text_that_decides_and_is_not_there_is_no_other_text() {
        let rule = "program = \"/p\"\n[[probe]]\nname = \"a:b\"\ntext = \"arg1\"\n[[rule]]\nevent = \"a:b\"\nis = \"begin\"\n\
                    key = []\nname = \"q\"\nunless = { text = [\"idle\"] }\n";
        let shape = Shape { name: "a:b".into(), signed: vec![Some(true)], text: true };
        let mut probed = probed(rule, vec![shape]).unwrap();
        let mut map = |text| {
            let hit = Hit { probe: 0, time_ns: 1, pid: 1, tid: 1, comm: "c", arguments: &[Some(1)], text };
            let mut begun = 0;
            (probed.map(&hit, &mut |_, _| begun += 1), begun)
        };
        assert_eq!([map(None), map(Some("a lo…")), map(Some("idle"))], [(false, 0), (false, 0), (true, 0)]);
        assert_eq!(map(Some("busy")), (true, 1));
        assert_eq!(probed.unread, 2);
    }

    #[test]
    fn a_text_is_there_if_it_was_asked_for() {
        let rule = "program = \"/p\"\n[[probe]]\nname = \"a:b\"\ntext = \"arg1\"\n[[rule]]\nevent = \"a:b\"\nis = \"begin\"\n\
                    key = []\nname_from = \"text\"\n";
        assert_eq!(ProbesFile::read(rule).unwrap().probe[0].text_of(), Some(1));
        let shape = Shape { name: "a:b".into(), signed: vec![Some(true)], text: true };
        let mut probed = probed(rule, vec![shape.clone()]).unwrap();
        let mut name = None;
        let hit = Hit {
            probe: 0,
            time_ns: 1,
            pid: 1,
            tid: 1,
            comm: "c",
            arguments: &[Some(-1)],
            text: Some("VACUUM"),
        };
        probed.map(&hit, &mut |_, fact| {
            if let Fact::Begin { name: said, .. } = fact {
                name = Some(said.into_owned());
            }
        });
        assert_eq!(name.as_deref(), Some("VACUUM"));
        let without = vec![Shape { text: false, ..shape }];
        assert!(matches!(self::probed(rule, without), Err(BindError::NoField { .. })));
    }

    #[test]
    fn what_is_no_file_of_probes_is_refused() {
        let probe = |name: &str, text: &str| {
            format!("program = \"/p\"\n[[probe]]\nname = '{name}'\ntext = '{text}'\n")
        };
        for (text, why) in [
            ("program = \"/p\"\nprobe = []".to_owned(), "names no probe"),
            ("[[probe]]\nname = \"a:b\"".to_owned(), "program"),
            (probe("query__start", "arg1"), "provider:name"),
            (probe("a:b\"; };", "arg1"), "provider:name"),
            (probe("a:b", "query"), "arg1, arg2"),
            (probe("a:b", "arg0"), "arg1, arg2"),
        ] {
            let refused = ProbesFile::read(&text).unwrap_err().to_string();
            assert!(refused.contains(why), "{refused}");
        }
    }

    #[test]
    fn rules_about_other_probes_are_known_as_such() {
        let mut file = ProbesFile::read(FILE).unwrap();
        assert_eq!(file.idle_rules().count(), 0);
        file.rule[0].event = "postgresql:query__start".to_owned();
        assert_eq!(file.idle_rules().collect::<Vec<_>>(), ["postgresql:query__start"]);
    }
}
