//! Triggers of a dump: what an operation must be like.
//!
//! *In*: `error`, `>TIME` or `OPERATION>TIME`, as typed; events. *Out*: the cause of a dump.
//!
//! `>TIME` is for storage operations: system calls that reached the block layer or ask for durability, and
//! asynchronous I/O. A `read` of a terminal takes as long as its user does. An operation that is named is compared
//! whatever it does.

use blkkin_wire::async_io;
use blkkin_wire::clock::DurationNs;
use blkkin_wire::event::{LayerEvent, SyscallEvent, SyscallOutcome};
use blkkin_wire::syscalls::{SyscallClass, SyscallId, errno_of};

use super::DumpCause;
use crate::cli::units;
use crate::error::CliError;

const OPTION: &str = "--dump-on";

/// Triggers of an agent; none fires without an entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Triggers {
    on_error: bool,
    /// Longest time of any storage operation, and of those with a name.
    longest: Option<DurationNs>,
    named: Vec<(Box<str>, DurationNs)>,
}

impl Triggers {
    /// Parses the values of the option.
    pub(in super::super) fn parse(values: &[String]) -> Result<Triggers, CliError> {
        let mut triggers = Triggers::default();
        for value in values {
            if value == "error" {
                triggers.on_error = true;
                continue;
            }
            let Some((name, time)) = value.split_once('>') else {
                let why = "a trigger is `error`, `>TIME` or `OPERATION>TIME`";
                let remedy = format!("{OPTION} 'fsync>100ms'");
                return Err(CliError::usage(format!("bad trigger `{value}`"), why, remedy));
            };
            let time = units::duration(OPTION, time.trim())?;
            match name.trim() {
                "" => triggers.longest = Some(triggers.longest.map_or(time, |known| known.min(time))),
                name if is_operation(name) => triggers.named.push((name.into(), time)),
                name => {
                    let why = "no system call and no asynchronous operation that is traced has this name";
                    let remedy = format!("{OPTION} '>{}'", value.rsplit('>').next().unwrap_or_default());
                    return Err(CliError::usage(
                        format!("bad trigger: unknown operation `{name}`"),
                        why,
                        remedy,
                    ));
                }
            }
        }
        Ok(triggers)
    }

    /// Returns the cause of a dump, if an event is one.
    pub(super) fn find(&self, events: &[LayerEvent]) -> Option<DumpCause> {
        if *self == Triggers::default() {
            return None;
        }
        events.iter().find_map(|event| self.cause(event))
    }

    fn cause(&self, event: &LayerEvent) -> Option<DumpCause> {
        if self.on_error && failed(event) {
            return Some(DumpCause::Error);
        }
        let (name, took, is_storage) = match event {
            LayerEvent::Syscall(call) => {
                (call.call.spec().name, call.exit.since(call.enter), is_storage(call))
            }
            LayerEvent::AsyncIo(io) => (io.operation().name, io.end.since(io.start), true),
            _ => return None,
        };
        let slow = is_storage && self.longest.is_some_and(|longest| took > longest)
            || self.named.iter().any(|(of, longest)| **of == *name && took > *longest);
        slow.then_some(DumpCause::Latency)
    }
}

fn is_operation(name: &str) -> bool {
    SyscallId::by_name(name).is_some() || async_io::is_operation(name)
}

fn is_storage(call: &SyscallEvent) -> bool {
    call.bios > 0 || call.call.spec().class == SyscallClass::Sync
}

fn failed(event: &LayerEvent) -> bool {
    match event {
        LayerEvent::Request(request) => !request.status.is_ok(),
        LayerEvent::Pair(pair) => !pair.request.status.is_ok(),
        LayerEvent::Bio(bio) => !bio.status.is_ok(),
        LayerEvent::AsyncIo(io) => io.errno() == Some(libc::EIO),
        LayerEvent::Syscall(call) => {
            matches!(call.outcome, SyscallOutcome::Returned(value) if errno_of(value) == Some(libc::EIO))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use blkkin_wire::clock::MonotonicNs;
    use blkkin_wire::event::TaskRef;
    use blkkin_wire::ids::{SpanId, TaskId};

    use super::*;

    fn triggers(values: &[&str]) -> Triggers {
        Triggers::parse(&values.iter().map(|value| (*value).to_owned()).collect::<Vec<_>>()).unwrap()
    }

    fn call(name: &str, ms: u64, bios: u32) -> LayerEvent {
        let task = TaskRef { id: TaskId(1), version: 1 };
        let times = [MonotonicNs(7), MonotonicNs(7 + ms * 1_000_000)];
        let call = SyscallId::by_name(name).unwrap();
        LayerEvent::Syscall(SyscallEvent {
            bios,
            ..SyscallEvent::bare(SpanId(1), task, call, times[0], times[1])
        })
    }

    #[test]
    fn a_time_without_a_name_is_for_storage_operations() {
        let any = triggers(&[">100ms", ">1s"]);
        assert_eq!(any.find(&[call("pread64", 101, 1)]), Some(DumpCause::Latency));
        assert_eq!(any.find(&[call("fsync", 101, 0)]), Some(DumpCause::Latency));
        assert_eq!(any.find(&[call("pread64", 100, 1), call("read", 5_000, 0)]), None);
    }

    #[test]
    fn a_named_operation_has_its_own_time() {
        let fsync = triggers(&["fsync>10ms", "io_uring read > 1ms"]);
        assert_eq!(fsync.find(&[call("fdatasync", 50, 3)]), None);
        assert_eq!(fsync.find(&[call("fsync", 11, 0)]), Some(DumpCause::Latency));
        assert_eq!(Triggers::default().find(&[call("fsync", 11, 0)]), None);
    }

    #[test]
    fn an_error_is_eio_or_a_status_of_the_block_layer() {
        let on_error = triggers(&["error"]);
        let failing = |value| {
            let LayerEvent::Syscall(call) = call("pread64", 1, 1) else { unreachable!() };
            LayerEvent::Syscall(SyscallEvent { outcome: SyscallOutcome::Returned(value), ..call })
        };
        assert_eq!(on_error.find(&[failing(-5)]), Some(DumpCause::Error));
        assert_eq!(on_error.find(&[failing(-2), failing(4096)]), None);
    }

    #[test]
    fn nonsense_is_refused_with_an_example() {
        for bad in ["fsync", "fsync>", "fsync>10", "fsink>10ms", ">0s", ">-1ms", "errors"] {
            assert!(Triggers::parse(&[bad.to_owned()]).is_err(), "{bad}");
        }
    }
}
