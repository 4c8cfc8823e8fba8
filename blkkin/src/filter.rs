//! Trace filters: options become a filter for the tracer, and rules for whole traces.
//!
//! *In*: [`FilterArgs`], and this machine's processes, devices and cgroups. *Out*: a
//! [`TraceFilter`], or an error on the first invalid option with the nearest valid value. blkkin
//! guesses nothing: it refuses a filter that could never match, but for a disk in the configuration of a service
//! ([`keep::Disks`]).

mod cgroups;
pub(crate) mod context_trust;
mod devices;
pub(crate) mod keep;
mod machine_follower;
mod paths;
pub(crate) mod post_filter;
pub(crate) mod sampling;
mod syscalls;
mod tasks;
pub(crate) mod virtual_machines;

use std::path::PathBuf;

use blkkin_probe_abi::settings::FILTERS_MAX;
use blkkin_tracer::enrich::devices::disk_of_partition;
use blkkin_tracer::selection::keep::KeepRule;
use blkkin_tracer::{AttachKind, Detail, Filter, TraceScope, Tracer, TracerConfig};
use blkkin_wire::head_sampling::HeadSampling;
use blkkin_wire::ids::{DeviceId, Pid};
use tracing::info;

use crate::cli::{Attach, FilterArgs, ReportArgs, TracerArgs, units};
use crate::error::CliError;
use crate::filter::post_filter::{PostFilter, TaskFilter};

/// A resolved filter.
#[derive(Debug)]
pub(crate) struct TraceFilter {
    /// The kernel side's part.
    pub(crate) kernel: Filter,
    /// Processes to trace with their descendants.
    tree: Vec<Pid>,
    /// Virtual machines to trace, by name or UUID.
    machines: Vec<String>,
    /// The detail of system calls.
    pub(crate) detail: Detail,
    /// Ratio by which the kernel side records operations; none: all.
    pub(crate) head_sampling: Option<HeadSampling>,
    /// Rules by which operations are kept that head sampling does not draw.
    pub(crate) keep: Vec<KeepRule>,
    /// `--keep` was given; its rules may have no effect here.
    keeps: bool,
    /// The rules for whole traces.
    pub(crate) post: PostFilter,
}

/// Resolves the filter of a recording: only the rules for whole traces apply to it.
pub(crate) fn of_recording(args: &ReportArgs) -> Result<PostFilter, CliError> {
    let comms = resolve_all(&args.comm, tasks::comm)?;
    let slower_than = args.slower_than.as_deref().map(|time| units::duration("--slower-than", time));
    Ok(PostFilter {
        tasks: TaskFilter { comms, ..TaskFilter::default() }.non_empty(),
        paths: resolve_all(&args.path, paths::path)?,
        slower_than: slower_than.transpose()?,
        errors_only: args.errors_only,
        or_sampled: false,
    })
}

impl TraceFilter {
    /// Resolves every option.
    pub(crate) fn resolve(args: &FilterArgs, disks: keep::Disks) -> Result<TraceFilter, CliError> {
        check_limits(args)?;
        let detail = detail(&args.detail)?;
        let slower_than =
            args.slower_than.as_deref().map(|t| units::duration("--slower-than", t)).transpose()?;
        let paths = resolve_all(&args.path, paths::path)?;
        if !paths.is_empty() && detail == Detail::Requests {
            return Err(CliError::usage(
                "--path does not work with --detail 0",
                "at detail 0 the paths of files are not recorded",
                "--detail 1",
            ));
        }
        let tree = resolve_all(&args.tree, |p| tasks::pid("--tree", p))?;
        Ok(TraceFilter {
            kernel: Filter {
                pids: resolve_all(&args.pid, |p| tasks::pid("--pid", p))?,
                tids: resolve_all(&args.tid, tasks::tid)?,
                comms: resolve_all(&args.comm, tasks::comm)?,
                cgroups: resolve_all(&args.cgroup, cgroups::cgroup)?,
                devices: devices::with_partitions(resolve_all(&args.device, device)?, FILTERS_MAX),
                syscalls: resolve_all(&args.syscall, syscalls::syscall)?,
                paths: paths.clone(),
                slower_than,
                errors_only: args.errors_only,
                keep_sampled: args.sampled_by_program.is_on(),
            },
            tree,
            machines: args.vm.clone(),
            detail,
            head_sampling: args
                .sample
                .as_deref()
                .map(sampling::ratio)
                .transpose()?
                .filter(|ratio| *ratio != HeadSampling::ALL),
            keep: keep::rules(args, disks)?,
            keeps: !args.keep.is_empty(),
            post: PostFilter {
                tasks: None,
                paths,
                slower_than,
                errors_only: args.errors_only,
                or_sampled: args.sampled_by_program.is_on(),
            },
        })
    }

    /// Lets the ratio of head sampling change while the trace runs: from that of the option, or from 1.
    pub(crate) fn sample_by_a_changing_ratio(&mut self) {
        self.head_sampling.get_or_insert(HeadSampling::ALL);
    }

    /// Returns an error if a virtual machine does not run now. A service may start before it.
    pub(crate) fn require_machines(&self) -> Result<(), CliError> {
        self.machines.iter().try_for_each(|machine| virtual_machines::require(machine))
    }

    /// Returns the scope of tracing: the named processes and their descendants, or everything.
    pub(crate) fn scope(&self) -> TraceScope {
        if self.tree.is_empty() && self.machines.is_empty() { TraceScope::All } else { TraceScope::Marked }
    }

    /// Traces the named processes with their descendants, and from now on those of the virtual machines.
    pub(crate) fn trace_processes(&self, tracer: &Tracer) -> Result<(), CliError> {
        for pid in &self.tree {
            tracer.trace_process_tree(*pid)?;
            info!(pid = pid.0, "tracing process {} and its descendants", pid.0);
        }
        if self.machines.is_empty() {
            return Ok(());
        }
        machine_follower::start(&self.machines, tracer.task_marks()?)
    }

    /// Builds the tracer's configuration. The kernel side applies the task filters. With
    /// [`TraceScope::Marked`] they are rules for whole traces too, as daemons outside the tracer and
    /// the kernel's workers cause traces as well.
    pub(crate) fn tracer_config(
        &mut self,
        scope: TraceScope,
        args: &TracerArgs,
    ) -> Result<TracerConfig, CliError> {
        keep::check(self.keeps, self.head_sampling)?;
        if scope == TraceScope::Marked {
            let Filter { pids, tids, comms, cgroups, .. } = self.kernel.clone();
            self.post.tasks = TaskFilter { pids, tids, comms, cgroups }.non_empty();
        }
        Ok(TracerConfig {
            scope,
            filter: self.kernel.clone(),
            detail: self.detail,
            attach: args.attach.map(|kind| match kind {
                Attach::TpBtf => AttachKind::TpBtf,
                Attach::RawTp => AttachKind::RawTp,
                Attach::Fentry => AttachKind::Fentry,
                Attach::Kprobe => AttachKind::Kprobe,
            }),
            ring_bytes: args.ring_size.as_deref().map(units::ring_bytes).transpose()?,
            kernel_origin: scope == TraceScope::All
                && self.head_sampling.is_none()
                && self.wants_kernel_origin(),
            contexts: context_trust::context_policy(&args.contexts)?,
            nbd: false,
            dirty_pages: false,
            sleeps: args.sleeps,
            machine_disks: false,
            image_disks: false,
            head_sampling: self.head_sampling,
            keep: self.keep.clone(),
            keep_changeable: false,
            budget: None,
            usdt_probes: Vec::new(),
        })
    }

    /// Returns whether the kernel's own work (write-back, metadata) is traced. It belongs to no
    /// task and no system call, so a filter on either excludes it.
    fn wants_kernel_origin(&self) -> bool {
        let filter = &self.kernel;
        filter.pids.is_empty()
            && filter.tids.is_empty()
            && filter.comms.is_empty()
            && filter.cgroups.is_empty()
            && filter.syscalls.is_empty()
            && self.post.paths.is_empty()
    }
}

/// Checks the number of filters: the kernel side keeps them in arrays of fixed length.
fn check_limits(args: &FilterArgs) -> Result<(), CliError> {
    let counts = [
        ("--comm", args.comm.len()),
        ("--pid", args.pid.len()),
        ("--tid", args.tid.len()),
        ("--cgroup", args.cgroup.len()),
        ("--device", args.device.len()),
    ];
    for (option, count) in counts {
        if count > FILTERS_MAX {
            return Err(CliError::usage(
                format!("{count} times {option}"),
                format!("the kernel side compares at most {FILTERS_MAX}, as each costs time at every event"),
                "fewer of them, or --cgroup or --tree, which cover many tasks at once",
            ));
        }
    }
    Ok(())
}

fn device(name: &str) -> Result<DeviceId, CliError> {
    devices::device(name, |name| format!("--device {name}"))
}

/// Resolves disks; requests have no partition.
pub(crate) fn disks(names: &[String]) -> Result<Vec<DeviceId>, CliError> {
    resolve_all(names, |name| disk(name, |name| format!("--device {name}")))
}

/// Resolves a disk. `example` is an option with a disk, for an error.
fn disk(name: &str, example: impl Fn(&str) -> String) -> Result<DeviceId, CliError> {
    let device = devices::device(name, &example)?;
    match disk_of_partition(device) {
        None => Ok(device),
        Some(disk) => Err(CliError::usage(
            format!("{name} is a partition"),
            "a block request is one of the whole disk",
            format!("{}, its disk", example(&disk.to_string())),
        )),
    }
}

/// Returns the mount point of the default hierarchy of cgroups, if it is mounted.
pub(crate) fn cgroup_hierarchy() -> Option<PathBuf> {
    cgroups::hierarchy("").ok()
}

fn resolve_all<T>(
    values: &[String],
    look_up: impl Fn(&str) -> Result<T, CliError>,
) -> Result<Vec<T>, CliError> {
    values.iter().map(|word| look_up(word)).collect()
}

fn detail(level: &str) -> Result<Detail, CliError> {
    match level {
        "0" => Ok(Detail::Requests),
        "1" => Ok(Detail::Syscalls),
        "2" => Ok(Detail::Full),
        _ => Err(CliError::usage(
            format!("unknown detail `{level}`"),
            "there are three levels: 0, 1 and 2",
            "--detail 0 for system calls that reached the block layer, 1 for every system call, 2 for raw arguments too",
        )),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn args() -> FilterArgs {
        FilterArgs { detail: "1".into(), ..FilterArgs::default() }
    }

    #[test]
    fn no_filter_traces_everything() {
        let config = TraceFilter::resolve(&args(), keep::Disks::Present)
            .unwrap()
            .tracer_config(TraceScope::All, &TracerArgs::default())
            .unwrap();
        assert!(config.kernel_origin);
        assert_eq!(config.filter, Filter::default());
    }

    #[test]
    fn task_filters_of_marked_tasks_are_in_the_post_filter_too() {
        let values = FilterArgs { comm: vec!["x".into()], ..args() };
        let mut filter = TraceFilter::resolve(&values, keep::Disks::Present).unwrap();
        let config = filter.tracer_config(TraceScope::All, &TracerArgs::default()).unwrap();
        assert_eq!((config.filter.comms.len(), filter.post.tasks.is_some()), (1, false));
        let config = filter.tracer_config(TraceScope::Marked, &TracerArgs::default()).unwrap();
        assert_eq!((config.filter.comms.len(), filter.post.tasks.is_some()), (1, true));
        assert!(!config.kernel_origin);
    }

    #[test]
    fn too_many_filters_are_refused() {
        let comm = vec!["x".to_owned(); FILTERS_MAX + 1];
        let error = TraceFilter::resolve(&FilterArgs { comm, ..args() }, keep::Disks::Present).unwrap_err();
        assert_eq!(error.what, "9 times --comm");
        let comm = vec!["x".to_owned(); FILTERS_MAX];
        assert!(TraceFilter::resolve(&FilterArgs { comm, ..args() }, keep::Disks::Present).is_ok());
    }

    #[test]
    fn path_filter_needs_a_detail_with_paths() {
        let args = FilterArgs { detail: "0".into(), path: vec!["/x".into()], ..FilterArgs::default() };
        assert!(TraceFilter::resolve(&args, keep::Disks::Present).unwrap_err().what.contains("--detail 0"));
    }

    #[test]
    fn unknown_detail_is_refused() {
        let args = FilterArgs { detail: "3".into(), ..FilterArgs::default() };
        assert_eq!(TraceFilter::resolve(&args, keep::Disks::Present).unwrap_err().what, "unknown detail `3`");
    }
}
