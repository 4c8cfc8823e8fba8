//! Kernel functions equivalent to tracepoints: attach points of fentry and kprobe programs.
//!
//! A function is equivalent to a tracepoint if it is entered exactly when the tracepoint fires, or
//! if the program can recognize other entries by their arguments. fentry and kprobe programs then
//! see the same events in the same order, and a trace does not depend on the attach kind. A
//! tracepoint without an equivalent is used under every kind, for the reason given here.
//!
//! *Entries only*: the end of an operation is observed where some function is entered at that
//! moment. A kretprobe has instances for 10 tasks, or for twice as many as there are CPUs
//! (register_kretprobe, kernel/kprobes.c; perf does not change the number), and misses every
//! further task that sleeps in the function. An fexit on the system calls would leak its trampoline
//! for each task that exits inside a call, because it waits for a return that never comes
//! (cfe816d469dc describes this for functions that do not return; exit_group does not).
//!
//! *Inlining*: a function that the compiler inlined into a caller cannot be probed reliably. The
//! functions here are called from other files or through a pointer, or the inlining would be
//! noticed: without its exit a call is recorded as one without an exit. One function is also called
//! from its own file (submit_bio_noacct_nocheck) and is too large to be inlined.
//!
//! Each entry was compared with the machine code of Debian's 6.1.192 and 6.12.117: which functions
//! fire the tracepoint, and which call the function.

/// A tracepoint's equivalent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Equivalent {
    /// Function that is entered when the tracepoint fires.
    Function(EquivalentFunction),
    /// No equivalent, for this reason.
    None(&'static str),
}

/// A function and its requirements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EquivalentFunction {
    /// Symbol name.
    pub name: &'static str,
    /// Required fields of `probe_abi::layout::Layout`.
    pub fields: &'static [&'static str],
    /// Another function that must exist, or this one does not match the tracepoint.
    pub requires: Option<&'static str>,
    /// Reason why a kprobe must not be used, if there is one.
    pub kprobe_unsuitable: Option<&'static str>,
}

const fn function(name: &'static str, fields: &'static [&'static str]) -> Equivalent {
    Equivalent::Function(EquivalentFunction { name, fields, requires: None, kprobe_unsuitable: None })
}

const fn none(reason: &'static str) -> Equivalent {
    Equivalent::None(reason)
}

/// Function entered when a system call returns, with the return value in the registers, in 6.1 and
/// 6.12 (kernel/entry/common.c). Later kernels inline it into its callers.
const SYSCALL_EXIT_FUNCTION: &str = "syscall_exit_to_user_mode_prepare";

/// Tracepoints and their equivalents.
const EQUIVALENTS: &[(&str, Equivalent)] = &[
    // 1e3ad78334a6 (6.9, and 6.1.86) dispatches calls by a switch instead of a table of pointers.
    // 32-bit calls take another path. If its caller is in the same file, as on kernels without the
    // exit function, it may be inlined.
    (
        "sys_enter",
        Equivalent::Function(EquivalentFunction {
            name: "x64_sys_call",
            fields: &[],
            requires: Some(SYSCALL_EXIT_FUNCTION),
            kprobe_unsuitable: None,
        }),
    ),
    // If a kprobe skipped the end of one call and then the begin of the next, I/O of the next call
    // would be attributed to the first.
    (
        "sys_exit",
        Equivalent::Function(EquivalentFunction {
            name: SYSCALL_EXIT_FUNCTION,
            fields: &[],
            requires: None,
            kprobe_unsuitable: Some(
                "a kprobe may be skipped (recursion_misses.rs), and the end of a call would be lost",
            ),
        }),
    ),
    // Entered again for the remainder of a split bio, which then has BIO_TRACE_COMPLETION set.
    ("block_bio_queue", function("submit_bio_noacct_nocheck", &["bio_flags", "bio_traced_bit"])),
    ("block_bio_complete", none("bio_endio ends all bios of a chain in one turn, and some not at all")),
    ("block_io_start", none("its function is static, and may be part of some of its callers")),
    ("block_getrq", none("it fires inside blk_mq_submit_bio, which continues for long")),
    ("block_rq_insert", none("it fires inside several functions, of schedulers too")),
    ("block_rq_issue", function("blk_mq_start_request", &[])),
    ("block_rq_merge", none("it fires at the end of attempt_merge, if that merges")),
    ("block_rq_complete", none("blk_mq_end_request_batch ends many requests in one call")),
    ("jbd2_start_commit", none("its function may write the journal's superblock before it")),
    ("jbd2_end_commit", none("its function returns after the waiting tasks were woken")),
    ("contention_begin", none("each kind of lock has its own function")),
    ("contention_end", none("each kind of lock has its own function")),
    ("balance_dirty_pages", none("its function is entered once for several pauses")),
    ("xfs_log_force", none("two functions pass it")),
    ("xlog_iclog_wait_on", none("its function is also entered where nothing is awaited")),
    // Also entered after a file system shutdown; the recorded state is then never used.
    ("ext4_sync_file_enter", function("ext4_sync_file", &[])),
    ("io_uring_queue_async_work", none("its function is static and inlined")),
    ("ext4_sync_file_exit", none("its function also returns without a sync, and sleeps")),
    ("writeback_start", none("it fires in a loop of wb_writeback, which is static")),
    ("writeback_written", none("it fires in a loop of wb_writeback, which is static")),
    // Called only by exec_binprm, right after the tracepoint.
    ("sched_process_exec", function("proc_exec_connector", &[])),
    // Called by do_exit for the exiting task, and by copy_process for a child whose creation
    // failed. Between the tracepoint and this function a task frees memory and semaphores, and
    // starts no I/O.
    ("sched_process_exit", function("exit_files", &[])),
    // Called by kernel_clone right after the tracepoint, and for the workers of io_uring and vhost,
    // which their flags identify.
    ("sched_process_fork", function("wake_up_new_task", &["task_flags"])),
];

/// Returns the equivalent of a tracepoint.
pub fn equivalent(tracepoint: &str) -> Equivalent {
    let found = EQUIVALENTS.iter().find(|(name, _)| *name == tracepoint);
    found.map_or(Equivalent::None("none is known"), |(_, twin)| *twin)
}

/// Lists all equivalent functions.
pub(crate) fn function_names() -> impl Iterator<Item = &'static str> {
    EQUIVALENTS.iter().filter_map(|(_, twin)| match twin {
        Equivalent::Function(function) => Some(function.name),
        Equivalent::None(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::OBJECT;
    use crate::attach::probes::PROBES;
    use aya_obj::{Object, ProgramSection};

    /// Checks that every equivalent function has its programs, and that nothing else has.
    #[test]
    fn each_function_has_its_programs() {
        let object = Object::parse(OBJECT).expect("the object that is loaded");
        for hook in PROBES.iter().flat_map(|probe| probe.hooks()) {
            let known = EQUIVALENTS.iter().filter(|(name, _)| *name == hook.tracepoint).count();
            assert_eq!(known, 1, "{}", hook.tracepoint);
            for suffix in ["fentry", "kprobe"] {
                let program = object.programs.get(&format!("{}_{suffix}", hook.stem));
                let function = match equivalent(hook.tracepoint) {
                    Equivalent::Function(function) => {
                        function.kprobe_unsuitable.is_none() || suffix == "fentry"
                    }
                    Equivalent::None(_) => false,
                };
                if !function {
                    assert!(program.is_none(), "{}_{suffix}", hook.stem);
                    continue;
                }
                let section = &program.unwrap_or_else(|| panic!("no {}_{suffix}", hook.stem)).section;
                let expected = if suffix == "fentry" {
                    matches!(section, ProgramSection::FEntry { sleepable: false })
                } else {
                    matches!(section, ProgramSection::KProbe)
                };
                assert!(expected, "{}_{suffix}: {section:?}", hook.stem);
            }
        }
    }
}
