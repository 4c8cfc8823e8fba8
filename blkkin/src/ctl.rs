//! `blkkin ctl`: shows and changes what the agent of this machine records, or the agents of a fleet, while they run.
//!
//! *In*: arguments, and the agent's Unix socket or a topic ([`publish`]). *Out*: the agent's state after the change.
//! *Invariant*: exit status 0 only if the agent has applied the whole change, or all replicas of the topic have it.

pub(crate) mod fleet;
pub(crate) mod protocol;
mod publish;
pub(crate) mod resolve;

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::Duration;

use blkkin_report::text::units::duration;
use blkkin_wire::clock::DurationNs;

use crate::cli::{CtlAction, CtlArgs, units};
use crate::error::{CliError, Status};
use protocol::{ANSWER_MAX, Answer, Change, RecordingSettings, Request, State, keep_value};

/// Time limit of the agent's answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Changes the agent's settings and prints its state.
pub(crate) fn ctl(args: &CtlArgs) -> Result<ExitCode, CliError> {
    let request = request(args)?;
    if let Some(brokers) = &args.brokers {
        return publish::publish(args, brokers, request);
    }
    let answer = exchange(args, &request)?;
    let state = match answer {
        Answer::State(state) => state,
        Answer::Refused { what, why, remedy } => {
            return Err(CliError { status: Status::Failed, ..CliError::usage(what, why, remedy) });
        }
    };
    let text = if args.json { json(&state) } else { text(&state) };
    // A closed stdout has no reader.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(ExitCode::SUCCESS)
}

/// Builds the request.
fn request(args: &CtlArgs) -> Result<Request, CliError> {
    let CtlArgs { action, sample, keep, budget, .. } = args;
    let for_ms = args.time.as_deref().map(|time| units::std_duration("--for", time)).transpose()?;
    let change = Change {
        recording: match action {
            Some(CtlAction::On) => Some(true),
            Some(CtlAction::Off) => Some(false),
            _ => None,
        },
        sample: sample.clone(),
        keep: (!keep.is_empty()).then(|| match &keep[..] {
            [none] if none == "none" => Vec::new(),
            rules => rules.iter().map(|rule| rule.trim().to_owned()).collect(),
        }),
        budget: budget.clone(),
        for_ms: for_ms.map(|time| time.as_millis().max(1) as u64),
    };
    let nothing = Change { for_ms: change.for_ms, ..Change::default() } == change;
    match (action, nothing) {
        (Some(CtlAction::Reset), true) if change.for_ms.is_none() => Ok(Request::Reset),
        (Some(CtlAction::Reset), _) => Err(CliError::usage(
            "reset has no options",
            "it returns to the options that the agent was started with",
            "blkkin ctl reset",
        )),
        (_, true) if change.for_ms.is_some() => Err(CliError::usage(
            "--for without a change",
            "there is nothing that could end after that time",
            "blkkin ctl --sample 1/64 --for 10m",
        )),
        (_, true) => Ok(Request::Show),
        _ => Ok(Request::Change(change)),
    }
}

fn exchange(args: &CtlArgs, request: &Request) -> Result<Answer, CliError> {
    let socket = &args.socket;
    let failed = |error: io::Error| {
        let what = format!("no answer of an agent at {}", socket.display());
        let remedy = match error.kind() {
            io::ErrorKind::PermissionDenied => "root, or a user of the agent's --ctl-group",
            _ => "blkkin agent --ctl PATH, and --socket with the same path here",
        };
        CliError { status: Status::Failed, ..CliError::usage(what, error, remedy) }
    };
    let mut stream = UnixStream::connect(socket).map_err(failed)?;
    protocol::send(&mut stream, request, TIMEOUT).map_err(failed)?;
    protocol::receive(&mut stream, ANSWER_MAX, TIMEOUT).map_err(failed)
}

fn json(state: &State) -> String {
    serde_json::to_string_pretty(state).unwrap_or_default() + "\n"
}

/// Formats the state in lines of a label and a text.
fn text(state: &State) -> String {
    let State { now, afterwards, start, fleet, one_in, keep_suspended, .. } = state;
    let State { without_effect, percentiles, changes, .. } = state;
    let mut lines = vec![("now", describe(now))];
    if now.recording && now.budget.is_some() {
        lines.push(("", format!("the budget allows one operation in {one_in}")));
    }
    if *keep_suspended && now.recording {
        lines.push(("", "--keep is suspended: the budget has no room for it".to_owned()));
    }
    lines.extend(
        without_effect.iter().map(|rule| ("", format!("{rule} has no effect: there is no such disk"))),
    );
    lines.extend(percentiles.iter().filter(|_| now.recording).map(|(rule, slow)| {
        let text = match slow {
            Some(ns) => format!("{rule} keeps what takes {} or more", duration(DurationNs(*ns))),
            None => format!("{rule} keeps nothing now"),
        };
        ("", text)
    }));
    if let Some((settings, ms)) = afterwards {
        let left = Duration::from_secs(Duration::from_millis(*ms).as_secs_f64().ceil() as u64);
        lines.push(("then", format!("in {}: {}", protocol::time(left), describe(settings))));
    }
    if start != now {
        lines.push(("at start", describe(start)));
    }
    lines.extend(fleet.iter().map(|record| ("fleet", record.clone())));
    for (n, change) in changes.iter().enumerate() {
        let from = match (change.uid, change.pid) {
            (Some(uid), Some(pid)) => format!("user {uid}, pid {pid}: "),
            _ => String::new(),
        };
        lines.push((if n == 0 { "changes" } else { "" }, format!("{}  {from}{}", change.at, change.what)));
    }
    lines.iter().map(|(label, text)| format!("{label:<9} {text}\n")).collect()
}

fn describe(settings: &RecordingSettings) -> String {
    let RecordingSettings { recording, sample, keep, budget } = settings;
    if !recording {
        return "no operation is recorded".to_owned();
    }
    let mut text = match sample.as_str() {
        "1/1" => "each operation".to_owned(),
        ratio => format!("one operation in {}", ratio.trim_start_matches("1/")),
    };
    if !keep.is_empty() {
        text += &format!(", and what is kept by {}", keep_value(keep));
    }
    if let Some(budget) = budget {
        text += &format!(", within {budget} of the CPUs");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::ChangeRecord;

    fn settings(sample: &str, keep: &[&str], budget: Option<&str>) -> RecordingSettings {
        let keep = keep.iter().map(|rule| (*rule).to_owned()).collect();
        RecordingSettings { recording: true, sample: sample.into(), keep, budget: budget.map(str::to_owned) }
    }

    #[test]
    fn a_state_is_readable_in_eighty_columns() {
        let changes = vec![
            ChangeRecord {
                at: "2026-11-29T10:00:00Z".into(),
                uid: Some(0),
                pid: Some(4242),
                what: "--sample 1/64 --for 10m".into(),
            },
            ChangeRecord {
                at: "2026-11-29T09:00:00Z".into(),
                uid: None,
                pid: None,
                what: "the time of a change has ended".into(),
            },
        ];
        let start = settings("1/1024", &["10ms", "failed"], Some("1%"));
        let state = State {
            now: settings("1/64", &["10ms", "failed"], Some("1%")),
            afterwards: Some((start.clone(), 598_200)),
            start,
            fleet: vec!["db-*: --sample 1/64 (2026-11-29T10:00:00Z, user 0 on admin)".to_owned()],
            one_in: 128,
            keep_suspended: false,
            without_effect: vec!["read@sdx>2ms".to_owned()],
            percentiles: vec![("fsync>p99.9".into(), Some(12_582_912)), ("p99".into(), None)],
            changes,
        };
        let expected = "\
now       one operation in 64, and what is kept by 10ms,failed, within 1% of the CPUs
          the budget allows one operation in 128
          read@sdx>2ms has no effect: there is no such disk
          fsync>p99.9 keeps what takes 12.6 ms or more
          p99 keeps nothing now
then      in 599s: one operation in 1024, and what is kept by 10ms,failed, within 1% of the CPUs
at start  one operation in 1024, and what is kept by 10ms,failed, within 1% of the CPUs
fleet     db-*: --sample 1/64 (2026-11-29T10:00:00Z, user 0 on admin)
changes   2026-11-29T10:00:00Z  user 0, pid 4242: --sample 1/64 --for 10m
          2026-11-29T09:00:00Z  the time of a change has ended
";
        assert_eq!(text(&state), expected);
        let off = RecordingSettings { recording: false, ..settings("1/1", &[], None) };
        assert_eq!(describe(&off), "no operation is recorded");
        assert_eq!(describe(&settings("1/1", &[], None)), "each operation");
    }
}
