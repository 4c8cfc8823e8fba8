//! What to trace: words become a filter that the tracer understands, and rules that only a whole trace can be
//! measured by.
//!
//! *In*: [`WhatArgs`], and what this machine has (processes, devices, cgroups). *Out*: [`What`], or the first
//! word that means nothing, with the nearest that does. Nothing is guessed: a filter that would silently match
//! nothing is refused.

pub(crate) mod believed;
mod calls;
mod cgroups;
mod devices;
pub(crate) mod paths;
mod tasks;
pub(crate) mod units;

use std::mem;

use blkkin_probe_abi::settings::FILTERS_MAX;
use blkkin_tracer::{AttachKind, Detail, Filter, Follow, TracerConfig};
use blkkin_wire::ids::Pid;

use crate::args::{Attach, HowArgs, WhatArgs};
use crate::failure::Failure;
use crate::tail::{Tail, TaskRule};
use paths::PathPattern;

/// Who is followed, where these processes were named: they and what they fork, or everybody.
pub(crate) fn whom(tree: &[Pid]) -> Follow {
    if tree.is_empty() { Follow::All } else { Follow::Marked }
}

/// What to trace.
#[derive(Debug)]
pub(crate) struct What {
    /// For the kernel side.
    pub(crate) filter: Filter,
    /// Processes to follow with their descendants.
    pub(crate) tree: Vec<Pid>,
    /// How much of each call.
    pub(crate) detail: Detail,
    /// For whole traces.
    pub(crate) tail: Tail,
}

impl What {
    /// Looks every word up.
    pub(crate) fn look_up(args: &WhatArgs) -> Result<What, Failure> {
        check_counts(args)?;
        let detail = detail(&args.detail)?;
        let slower_than =
            args.slower_than.as_deref().map(|t| units::duration("--slower-than", t)).transpose()?;
        let paths = args.path.iter().map(|p| PathPattern::parse(p)).collect::<Result<Vec<_>, _>>()?;
        if !paths.is_empty() && detail == Detail::Requests {
            return Err(Failure::usage(
                "--path does not work with --detail 0",
                "at detail 0 the paths of files are not recorded",
                "--detail 1",
            ));
        }
        Ok(What {
            filter: Filter {
                pids: all(&args.pid, |p| tasks::pid("--pid", p))?,
                tids: all(&args.tid, tasks::tid)?,
                comms: all(&args.comm, tasks::comm)?,
                cgroups: all(&args.cgroup, cgroups::cgroup)?,
                devices: all(&args.device, devices::device)?,
                calls: all(&args.syscall, calls::call)?,
                slower_than,
                errors_only: args.errors_only,
                or_sampled: args.sampled_by_program.is_on(),
            },
            tree: all(&args.tree, |p| tasks::pid("--tree", p))?,
            detail,
            tail: Tail {
                tasks: None,
                paths,
                slower_than,
                errors_only: args.errors_only,
                or_sampled: args.sampled_by_program.is_on(),
            },
        })
    }

    /// What the tracer is to do. With [`Follow::Marked`] the kernel side asks only who was marked, so what was
    /// said about tasks becomes a rule for whole traces.
    pub(crate) fn tracer_config(&mut self, follow: Follow, how: &HowArgs) -> Result<TracerConfig, Failure> {
        if follow == Follow::Marked {
            let filter = &mut self.filter;
            self.tail.tasks = TaskRule {
                pids: mem::take(&mut filter.pids),
                tids: mem::take(&mut filter.tids),
                comms: mem::take(&mut filter.comms),
                cgroups: mem::take(&mut filter.cgroups),
            }
            .some();
        }
        Ok(TracerConfig {
            follow,
            filter: self.filter.clone(),
            detail: self.detail,
            attach: how.attach.map(|kind| match kind {
                Attach::TpBtf => AttachKind::TpBtf,
                Attach::RawTp => AttachKind::RawTp,
                Attach::Fentry => AttachKind::Fentry,
                Attach::Kprobe => AttachKind::Kprobe,
            }),
            ring_bytes: how.ring_size.as_deref().map(units::ring_bytes).transpose()?,
            kernel_origin: follow == Follow::All && self.wants_kernel_origin(),
            contexts: believed::believed(&how.contexts)?,
            nbd: false,
            probes: Vec::new(),
        })
    }

    /// Whether the kernel's own work (write-back, metadata) is wanted: it belongs to no task and no call, so
    /// whoever asks for particular ones does not ask for it.
    fn wants_kernel_origin(&self) -> bool {
        let filter = &self.filter;
        filter.pids.is_empty()
            && filter.tids.is_empty()
            && filter.comms.is_empty()
            && filter.cgroups.is_empty()
            && filter.calls.is_empty()
            && self.tail.paths.is_empty()
    }
}

/// Filters that the kernel side keeps in arrays of a fixed length.
fn check_counts(args: &WhatArgs) -> Result<(), Failure> {
    let counts = [
        ("--comm", args.comm.len()),
        ("--pid", args.pid.len()),
        ("--tid", args.tid.len()),
        ("--cgroup", args.cgroup.len()),
        ("--device", args.device.len()),
    ];
    for (option, count) in counts {
        if count > FILTERS_MAX {
            return Err(Failure::usage(
                format!("{count} times {option}"),
                format!(
                    "at most {FILTERS_MAX} are compared in the kernel, as each costs time at every event"
                ),
                "fewer of them, or --cgroup or --tree, which cover many tasks at once",
            ));
        }
    }
    Ok(())
}

fn all<T>(words: &[String], look_up: impl Fn(&str) -> Result<T, Failure>) -> Result<Vec<T>, Failure> {
    words.iter().map(|word| look_up(word)).collect()
}

fn detail(level: &str) -> Result<Detail, Failure> {
    match level {
        "0" => Ok(Detail::Requests),
        "1" => Ok(Detail::Calls),
        "2" => Ok(Detail::Everything),
        _ => Err(Failure::usage(
            format!("unknown detail `{level}`"),
            "there are three levels: 0, 1 and 2",
            "--detail 0 for calls that reached the block layer, 1 for every call, 2 for raw arguments too",
        )),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn words() -> WhatArgs {
        WhatArgs { detail: "1".into(), ..WhatArgs::default() }
    }

    #[test]
    fn nothing_asked_for_is_everything() {
        let config =
            What::look_up(&words()).unwrap().tracer_config(Follow::All, &HowArgs::default()).unwrap();
        assert!(config.kernel_origin);
        assert_eq!(config.filter, Filter::default());
    }

    #[test]
    fn rules_about_tasks_are_kept_where_the_kernel_side_does_not_look() {
        let words = WhatArgs { comm: vec!["x".into()], ..words() };
        let mut what = What::look_up(&words).unwrap();
        let config = what.tracer_config(Follow::All, &HowArgs::default()).unwrap();
        assert_eq!((config.filter.comms.len(), what.tail.tasks.is_some()), (1, false));
        let config = what.tracer_config(Follow::Marked, &HowArgs::default()).unwrap();
        assert_eq!((config.filter.comms.len(), what.tail.tasks.is_some()), (0, true));
        assert!(!config.kernel_origin);
    }

    #[test]
    fn more_filters_than_the_kernel_side_holds_are_refused() {
        let comm = vec!["x".to_owned(); FILTERS_MAX + 1];
        let failure = What::look_up(&WhatArgs { comm, ..words() }).unwrap_err();
        assert_eq!(failure.what, "9 times --comm");
        let comm = vec!["x".to_owned(); FILTERS_MAX];
        assert!(What::look_up(&WhatArgs { comm, ..words() }).is_ok());
    }

    #[test]
    fn paths_need_a_detail_that_records_them() {
        let args = WhatArgs { detail: "0".into(), path: vec!["/x".into()], ..WhatArgs::default() };
        assert!(What::look_up(&args).unwrap_err().what.contains("--detail 0"));
    }

    #[test]
    fn an_unknown_detail_is_refused() {
        let args = WhatArgs { detail: "3".into(), ..WhatArgs::default() };
        assert_eq!(What::look_up(&args).unwrap_err().what, "unknown detail `3`");
    }
}
