//! Records of the topic `blkkin.control`: what the agents of some nodes shall record.
//!
//! *In*: keys and contents of the topic, in its order. *Out*: what applies to a node. *Invariant*: what applies follows from the
//! last record of each key alone, so an agent that starts later, after a compaction, does the same.
//!
//! A record states the difference to the options with which an agent was started, and not to an earlier record: the
//! earlier one may be gone. Of the records for a node the last one applies, and none of the others. A lasting record and
//! one with an end have different keys: at the end of the latter the last lasting one applies again. One that is sent
//! later ends it at once.
//!
//! A record that cannot be read or applied counts as none, and so does the earlier one of its key.
//!
//! *Rejected*: a record for each setting. An agent would then combine records of several users, in
//! an order of chance.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use blkkin_tracer::name_matches;
use serde::{Deserialize, Serialize};

use super::protocol::{Change, REQUEST_MAX};
use super::resolve::RULES_MAX;
use crate::service::format_utc;

/// Most keys of a topic that are taken: 64 MiB of records. Beyond them the invariant does not hold.
const KEYS_MAX: usize = 4_096;
/// Latest end: the year 9999, which is the last one in RFC 3339.
const UNTIL_MAX_MS: u64 = 253_402_300_799_000;
/// Most bytes of a pattern: a host name has at most 64, and a domain name 253.
const NODES_MAX: usize = 253;

/// A record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FleetRecord {
    /// Pattern of host names or node ids.
    pub(crate) nodes: String,
    /// Difference to the options of the start. It has no time of its own.
    pub(crate) change: Change,
    /// End, in ms since the Unix epoch; none if the record lasts.
    pub(crate) until_ms: Option<u64>,
    /// Time at which it was sent, in RFC 3339.
    pub(crate) at: String,
    /// Sender, as it names itself.
    pub(crate) from: String,
}

/// Host name and node id of an agent.
#[derive(Clone, Debug)]
pub(crate) struct NodeNames(pub(crate) Vec<String>);

/// The records of a topic.
#[derive(Clone, Debug, Default)]
pub(crate) struct FleetRecords(BTreeMap<String, (i64, FleetRecord)>);

/// Records that apply to a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeRecords {
    pub(crate) lasting: Option<(i64, FleetRecord)>,
    pub(crate) timed: Option<(i64, FleetRecord)>,
}

impl FleetRecord {
    /// Returns the key of the lasting or the timed record for these nodes.
    pub(crate) fn key_for(nodes: &str, is_timed: bool) -> String {
        format!("{} {nodes}", if is_timed { "timed" } else { "lasting" })
    }

    pub(crate) fn key(&self) -> String {
        FleetRecord::key_for(&self.nodes, self.until_ms.is_some())
    }

    /// Returns the time until the end, which is zero once it has passed; none if the record lasts.
    pub(crate) fn left(&self, now: SystemTime) -> Option<Duration> {
        let end = UNIX_EPOCH.checked_add(Duration::from_millis(self.until_ms?))?;
        Some(end.duration_since(now).unwrap_or_default())
    }

    fn parse(key: &str, payload: &[u8]) -> Result<FleetRecord, String> {
        if payload.len() > REQUEST_MAX {
            return Err(format!("it has {} bytes, more than {REQUEST_MAX}", payload.len()));
        }
        let record: FleetRecord = serde_json::from_slice(payload).map_err(|error| error.to_string())?;
        let rules = record.change.keep.as_ref().map_or(0, Vec::len);
        if rules > RULES_MAX || record.until_ms.is_some_and(|until| until > UNTIL_MAX_MS) {
            return Err(format!("it has more than {RULES_MAX} rules, or an end behind the year 9999"));
        }
        // Its texts are shown in logs and terminals.
        if record.to_string().contains(char::is_control) {
            return Err("its texts have control characters".to_owned());
        }
        check_nodes(&record.nodes)?;
        if record.key() != key {
            return Err(format!("its key is not `{}`", record.key()));
        }
        if record.change.for_ms.is_some() {
            return Err("its change has a time of its own".to_owned());
        }
        Ok(record)
    }
}

impl std::fmt::Display for FleetRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let FleetRecord { nodes, change, until_ms, at, from } = self;
        write!(f, "{nodes}: {}", change.arguments())?;
        if let Some(ms) = until_ms {
            let end = UNIX_EPOCH.checked_add(Duration::from_millis(*ms)).unwrap_or(UNIX_EPOCH);
            write!(f, " until {}", format_utc(end))?;
        }
        write!(f, " ({at}, {from})")
    }
}

/// Returns the begin of a text of another writer without control characters, for a log.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).take(200).collect()
}

/// Returns the host name of this process; empty if it is unknown.
pub(crate) fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

/// Checks a pattern of nodes.
pub(crate) fn check_nodes(nodes: &str) -> Result<(), String> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "._-*?".contains(c);
    if nodes.is_empty() || nodes.len() > NODES_MAX || !nodes.chars().all(is_allowed) {
        return Err(format!(
            "nodes are named by 1 to {NODES_MAX} letters, digits and `.`, `_`, `-`, `*`, `?`"
        ));
    }
    Ok(())
}

impl NodeNames {
    /// Returns whether a pattern selects this node.
    pub(crate) fn are_selected_by(&self, pattern: &str) -> bool {
        self.0.iter().any(|name| name_matches(pattern, name))
    }
}

impl NodeRecords {
    /// Returns the records without those that have ended, the lasting one first.
    pub(crate) fn applying(&self, now: SystemTime) -> impl Iterator<Item = &FleetRecord> {
        let records = self.lasting.iter().chain(&self.timed).map(|(_, record)| record);
        records.filter(move |record| record.left(now) != Some(Duration::ZERO))
    }
}

impl FleetRecords {
    /// Takes the next record of the topic. Fails if it cannot be read, or if `check` refuses it.
    pub(crate) fn take(
        &mut self,
        offset: i64,
        key: &[u8],
        payload: Option<&[u8]>,
        check: impl Fn(&FleetRecord) -> Result<(), String>,
    ) -> Result<(), String> {
        let key = std::str::from_utf8(key).map_err(|_| "its key is no text".to_owned())?;
        self.0.remove(key);
        let Some(payload) = payload else { return Ok(()) };
        let record = FleetRecord::parse(key, payload)?;
        check(&record)?;
        if self.0.len() >= KEYS_MAX {
            return Err(format!("the topic has more than {KEYS_MAX} keys"));
        }
        self.0.insert(key.to_owned(), (offset, record));
        Ok(())
    }

    /// Returns what applies to a node: the last lasting record, and the last one with an end if it is later.
    pub(crate) fn for_node(&self, names: &NodeNames) -> NodeRecords {
        let last = |is_timed: bool| {
            let matching = self.0.values().filter(|(_, record)| {
                record.until_ms.is_some() == is_timed && names.are_selected_by(&record.nodes)
            });
            matching.max_by_key(|(offset, _)| *offset)
        };
        let (lasting, timed) = (last(false), last(true));
        let timed = timed.filter(|timed| lasting.is_none_or(|lasting| timed.0 > lasting.0));
        NodeRecords { lasting: lasting.cloned(), timed: timed.cloned() }
    }

    /// Returns all records, the last one first.
    pub(crate) fn newest_first(&self) -> Vec<&FleetRecord> {
        let mut records: Vec<_> = self.0.values().collect();
        records.sort_by_key(|(offset, _)| std::cmp::Reverse(*offset));
        records.into_iter().map(|(_, record)| record).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(nodes: &str, sample: &str, until_ms: Option<u64>) -> FleetRecord {
        let change = Change { sample: Some(sample.into()), ..Change::default() };
        let at = "2026-11-29T10:00:00Z".to_owned();
        FleetRecord { nodes: nodes.into(), change, until_ms, at, from: "user 0 on host".into() }
    }

    fn take(records: &mut FleetRecords, offset: i64, record: &FleetRecord) {
        let payload = serde_json::to_vec(record).unwrap();
        records.take(offset, record.key().as_bytes(), Some(&payload), |_| Ok(())).unwrap();
    }

    fn node(name: &str) -> NodeNames {
        NodeNames(vec![name.to_owned()])
    }

    fn samples(records: &NodeRecords) -> [Option<&str>; 2] {
        [&records.lasting, &records.timed]
            .map(|record| record.as_ref().and_then(|(_, record)| record.change.sample.as_deref()))
    }

    #[test]
    fn the_last_record_for_a_node_applies() {
        let mut records = FleetRecords::default();
        take(&mut records, 3, &record("*", "1/64", None));
        take(&mut records, 4, &record("db-*", "1/8", None));
        take(&mut records, 9, &record("db-1", "1/1", Some(1_000)));
        assert_eq!(samples(&records.for_node(&node("db-1"))), [Some("1/8"), Some("1/1")]);
        assert_eq!(samples(&records.for_node(&node("db-2"))), [Some("1/8"), None]);
        assert_eq!(samples(&records.for_node(&node("web"))), [Some("1/64"), None]);
        // A later one for all is also the last one for those, and ends one that was for a time.
        take(&mut records, 12, &record("*", "1/2", None));
        assert_eq!(samples(&records.for_node(&node("db-2"))), [Some("1/2"), None]);
        assert_eq!(samples(&records.for_node(&node("db-1"))), [Some("1/2"), None]);
        records.take(13, b"lasting *", None, |_| Ok(())).unwrap();
        assert_eq!(samples(&records.for_node(&node("db-2"))), [Some("1/8"), None]);
        assert_eq!(samples(&records.for_node(&node("web"))), [None, None]);
        let by_id = NodeNames(vec!["web".into(), "db-x".into()]);
        assert_eq!(samples(&records.for_node(&by_id)), [Some("1/8"), None]);
        assert_eq!(records.newest_first()[0].nodes, "db-1");
    }

    #[test]
    fn a_record_that_cannot_be_read_counts_as_none() {
        let mut records = FleetRecords::default();
        let good = record("*", "1/64", None);
        let text = |record: &FleetRecord| serde_json::to_string(record).unwrap();
        for (key, payload, reason) in [
            ("lasting *", "{}".to_owned(), "missing field"),
            ("lasting *", text(&good).replace("sample", "filter"), "unknown field"),
            ("timed *", text(&good), "its key is not `lasting *`"),
            ("lasting x y", text(&record("x y", "1/2", None)), "nodes are named by"),
            ("lasting *", text(&good) + &" ".repeat(REQUEST_MAX), "more than 16384"),
            ("lasting *", text(&good).replace("\"for_ms\":null", "\"for_ms\":1"), "a time of its own"),
            ("timed *", text(&record("*", "1/2", Some(u64::MAX))), "behind the year 9999"),
            ("lasting *", text(&record("*", "\u{1b}[2J", None)), "control characters"),
            (
                "lasting *",
                text(&good).replace("\"keep\":null", &format!("\"keep\":{:?}", [""; 65])),
                "64 rules",
            ),
        ] {
            take(&mut records, 1, &good);
            let error = records.take(2, key.as_bytes(), Some(payload.as_bytes()), |_| Ok(())).unwrap_err();
            assert!(error.contains(reason), "{error}: {payload}");
            assert_eq!(records.for_node(&node("a")).lasting.is_some(), key != "lasting *");
        }
        assert!(records.take(3, b"\xff", None, |_| Ok(())).is_err());
        let payload = text(&good);
        let refuse = |_: &FleetRecord| Err("no budget".to_owned());
        assert!(records.take(4, b"lasting *", Some(payload.as_bytes()), refuse).is_err());
        assert_eq!(records.for_node(&node("a")), NodeRecords::default());
    }

    #[test]
    fn an_end_is_a_time_of_day() {
        let now = UNIX_EPOCH + Duration::from_secs(1_000);
        assert_eq!(record("*", "1/1", None).left(now), None);
        assert_eq!(record("*", "1/1", Some(1_060_000)).left(now), Some(Duration::from_secs(60)));
        assert_eq!(record("*", "1/1", Some(1)).left(now), Some(Duration::ZERO));
        assert_eq!(
            record("db-*", "1/1", Some(0)).to_string(),
            "db-*: --sample 1/1 until 1970-01-01T00:00:00Z (2026-11-29T10:00:00Z, user 0 on host)"
        );
    }

    proptest! {
        /// Compaction removes all but the last record of each key.
        #[test]
        fn what_applies_survives_compaction(
            sent in prop::collection::vec((0..3usize, any::<bool>(), 0..3u32), 0..40),
            kept in any::<u64>(),
        ) {
            let of = |&(nodes, timed, value): &(usize, bool, u32)| {
                let nodes = ["*", "a*", "a?"][nodes];
                (nodes, timed, (value > 0).then(|| record(nodes, &format!("1/{value}"), timed.then_some(7))))
            };
            let apply = |records: &mut FleetRecords, offset: usize| {
                let (nodes, timed, record) = of(&sent[offset]);
                let payload = record.map(|record| serde_json::to_vec(&record).unwrap());
                let key = FleetRecord::key_for(nodes, timed);
                records.take(offset as i64, key.as_bytes(), payload.as_deref(), |_| Ok(())).unwrap();
            };
            let (mut whole, mut compacted) = (FleetRecords::default(), FleetRecords::default());
            for offset in 0..sent.len() {
                apply(&mut whole, offset);
                let is_last = !sent[offset + 1..].iter().any(|later| (later.0, later.1) == (sent[offset].0, sent[offset].1));
                if is_last || kept >> offset & 1 == 1 {
                    apply(&mut compacted, offset);
                }
            }
            for name in ["a", "ab", "b"] {
                prop_assert_eq!(whole.for_node(&node(name)), compacted.for_node(&node(name)));
            }
        }
    }
}
