//! Requests of `blkkin ctl` and the agent's answers: one JSON object each, with a line feed behind it.
//!
//! *In*: bytes of a Unix socket. *Out*: a request or an answer. *Invariant*: a message has at most [`REQUEST_MAX`]
//! or [`ANSWER_MAX`] bytes, and an unknown field is an error: an agent that does not know a setting must not seem to apply it.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Socket of the agent of a machine.
pub(crate) const SOCKET: &str = "/run/blkkin-agent/ctl.sock";

/// Most bytes of a request.
pub(crate) const REQUEST_MAX: usize = 16 << 10;
/// Most bytes of an answer, which repeats the last requests.
pub(crate) const ANSWER_MAX: usize = 1 << 20;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Request {
    Show,
    Change(Change),
    Reset,
}

/// Settings to change, as on the command line; none stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Change {
    pub(crate) recording: Option<bool>,
    pub(crate) sample: Option<String>,
    /// Rules; an empty list for none.
    pub(crate) keep: Option<Vec<String>>,
    pub(crate) budget: Option<String>,
    /// Milliseconds after which the settings of before apply again.
    pub(crate) for_ms: Option<u64>,
}

/// Settings of the agent, as on the command line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RecordingSettings {
    pub(crate) recording: bool,
    pub(crate) sample: String,
    pub(crate) keep: Vec<String>,
    pub(crate) budget: Option<String>,
}

/// State of the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) now: RecordingSettings,
    /// Settings that apply afterwards, and the milliseconds until then, if the present ones are for a time.
    pub(crate) afterwards: Option<(RecordingSettings, u64)>,
    /// Settings of the agent's start.
    pub(crate) start: RecordingSettings,
    /// Records of the agent's --ctl-topic that apply to it, as text.
    pub(crate) fleet: Vec<String>,
    /// N, where one operation in N is sampled now; a budget can make it greater than that of the settings.
    pub(crate) one_in: u64,
    /// Rules have no effect now, because the budget has no room for them.
    pub(crate) keep_suspended: bool,
    /// Rules about disks that the agent's machine does not have.
    pub(crate) without_effect: Vec<String>,
    /// Rules with a percentile, each with the ns from which an operation counts as slow now; none if none does.
    pub(crate) percentiles: Vec<(String, Option<u64>)>,
    /// Last changes, the newest first.
    pub(crate) changes: Vec<ChangeRecord>,
}

/// A change, and the process that asked for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ChangeRecord {
    /// Time of the change, in RFC 3339.
    pub(crate) at: String,
    /// User; none for the end of a change that was for a time.
    pub(crate) uid: Option<u32>,
    pub(crate) pid: Option<i32>,
    /// Text of the request, like the arguments of `blkkin ctl`.
    pub(crate) what: String,
}

/// Answer to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    State(Box<State>),
    /// The request changed nothing.
    Refused {
        what: String,
        why: String,
        remedy: String,
    },
}

impl Change {
    /// Formats the change like the arguments of `blkkin ctl`.
    pub(crate) fn arguments(&self) -> String {
        let mut words = Vec::new();
        words.extend(self.recording.map(|recording| if recording { "on" } else { "off" }.to_owned()));
        words.extend(self.sample.as_ref().map(|sample| format!("--sample {sample}")));
        words.extend(self.keep.as_ref().map(|rules| format!("--keep {}", keep_value(rules))));
        words.extend(self.budget.as_ref().map(|budget| format!("--budget {budget}")));
        words.extend(self.for_ms.map(|ms| format!("--for {}", time(Duration::from_millis(ms)))));
        words.join(" ")
    }
}

impl RecordingSettings {
    /// Returns these settings with a change.
    pub(crate) fn with(&self, change: &Change) -> RecordingSettings {
        RecordingSettings {
            recording: change.recording.unwrap_or(self.recording),
            sample: change.sample.as_ref().unwrap_or(&self.sample).clone(),
            keep: change.keep.as_ref().unwrap_or(&self.keep).clone(),
            budget: change.budget.as_ref().or(self.budget.as_ref()).cloned(),
        }
    }
}

/// Formats rules as a value of --keep.
pub(crate) fn keep_value(rules: &[String]) -> String {
    if rules.is_empty() { "none".into() } else { rules.join(",") }
}

/// Formats a time in its largest whole unit: `10m`, `90s`, `1500ms`.
pub(crate) fn time(time: Duration) -> String {
    let ms = time.as_millis();
    match (ms % 1000, ms / 1000) {
        (0, s) if s % 3600 == 0 && s > 0 => format!("{}h", s / 3600),
        (0, s) if s % 60 == 0 && s > 0 => format!("{}m", s / 60),
        (0, s) => format!("{s}s"),
        _ => format!("{ms}ms"),
    }
}

/// Sends a message.
pub(crate) fn send(stream: &mut UnixStream, message: &impl Serialize, limit: Duration) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.set_write_timeout(Some(limit))?;
    stream.write_all(&line)
}

/// Receives a message of at most `bytes_max` within this time.
pub(crate) fn receive<T: DeserializeOwned>(
    stream: &mut UnixStream,
    bytes_max: usize,
    limit: Duration,
) -> io::Result<T> {
    let deadline = Instant::now() + limit;
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let mut part = [0; 4096];
        match stream.read(&mut part)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            length => line.extend_from_slice(&part[..length]),
        }
        if line.len() > bytes_max {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("a message of more than {bytes_max} bytes"),
            ));
        }
    }
    Ok(serde_json::from_slice(&line)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_reads_like_arguments() {
        let change = Change {
            recording: Some(false),
            sample: Some("1/8".into()),
            keep: Some(vec!["10ms".into(), "failed".into()]),
            budget: Some("2%".into()),
            for_ms: Some(600_000),
        };
        assert_eq!(change.arguments(), "off --sample 1/8 --keep 10ms,failed --budget 2% --for 10m");
        let none = Change { keep: Some(Vec::new()), for_ms: Some(1_500), ..Change::default() };
        assert_eq!(none.arguments(), "--keep none --for 1500ms");
        assert_eq!([0, 90, 7200].map(|s| time(Duration::from_secs(s))), ["0s", "90s", "2h"]);
    }

    #[test]
    fn unknown_settings_are_refused() {
        let parse = |text: &str| serde_json::from_str::<Request>(text);
        assert_eq!(
            parse(r#"{"change":{"sample":"1/2"}}"#).unwrap(),
            Request::Change(Change { sample: Some("1/2".into()), ..Change::default() })
        );
        assert_eq!(parse(r#""show""#).unwrap(), Request::Show);
        for bad in [r#"{"change":{"filter":"x"}}"#, r#""stop""#, "{}", "", r#"{"show":1}"#] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn messages_have_a_time_and_a_size() {
        let (mut near, mut far) = UnixStream::pair().unwrap();
        send(&mut near, &Request::Reset, Duration::from_secs(5)).unwrap();
        assert_eq!(
            receive::<Request>(&mut far, REQUEST_MAX, Duration::from_secs(5)).unwrap(),
            Request::Reset
        );
        let error = receive::<Request>(&mut far, REQUEST_MAX, Duration::from_millis(20)).unwrap_err();
        assert!(matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut), "{error}");
        let writer = std::thread::spawn(move || near.write_all(&vec![b' '; 2 * REQUEST_MAX]));
        let error = receive::<Request>(&mut far, REQUEST_MAX, Duration::from_secs(5)).unwrap_err();
        assert!(error.to_string().contains("more than"), "{error}");
        drop(far);
        let _ = writer.join().unwrap();
    }
}
