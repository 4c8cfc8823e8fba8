//! The functions of the kernel that say what a tracepoint says: where fentry and kprobe programs are put.
//!
//! A function stands for a tracepoint only where it is entered exactly when that fires, or where what it is entered for besides
//! can be told apart by its arguments; what fentry and kprobe programs see is then the same, in the same order, and a trace
//! does not depend on the kind. Where there is none the tracepoint is kept, with the reason here, whatever kind is asked for.
//!
//! *Only entries*: an end is seen where something is entered at it. A kretprobe has instances for 10 tasks, or for twice as many as
//! there are CPUs (register_kretprobe, kernel/kprobes.c; perf gives it no other number), and misses everybody else who sleeps in
//! the function. An fexit on the system calls would leave its trampoline behind for each task that ends inside one: it waits
//! for a return that never comes (cfe816d469dc says so of functions that do not return; exit_group does not).
//!
//! *Copies*: a function is no place for a probe where the compiler has put a copy of it into its caller. What is
//! here is called from other files, or by a pointer, or it would be noticed: without its exit a call is written as one
//! without. One is called from its own file too (submit_bio_noacct_nocheck) and is too large to be copied.
//!
//! Each line was compared with the machine code of Debian's 6.1.192 and 6.12.117: which functions call the tracepoint, and which
//! call the function.

/// What stands for a tracepoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Twin {
    /// A function.
    Function(Function),
    /// None, for this reason.
    None(&'static str),
}

/// A function, and what it needs of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name.
    pub name: &'static str,
    /// Fields of `probe_abi::layout::Layout`.
    pub fields: &'static [&'static str],
    /// Another function, without which this one is not what it was.
    pub beside: Option<&'static str>,
    /// Why it is no place for a kprobe, if so.
    pub not_by_kprobe: Option<&'static str>,
}

const fn function(name: &'static str, fields: &'static [&'static str]) -> Twin {
    Twin::Function(Function { name, fields, beside: None, not_by_kprobe: None })
}

const fn none(reason: &'static str) -> Twin {
    Twin::None(reason)
}

/// Where a call returns, with the value in its registers: in 6.1 and 6.12 (kernel/entry/common.c); later it is part of its
/// callers.
const LEAVE: &str = "syscall_exit_to_user_mode_prepare";

/// Tracepoints and their functions.
const TWINS: &[(&str, Twin)] = &[
    // 1e3ad78334a6 (6.9, and 6.1.86): calls go through a switch, in place of a table of pointers. 32-bit calls go elsewhere.
    // Where its caller lies in the same file, as it does where the end of a call is no function, it may be part of that.
    (
        "sys_enter",
        Twin::Function(Function {
            name: "x64_sys_call",
            fields: &[],
            beside: Some(LEAVE),
            not_by_kprobe: None,
        }),
    ),
    // Were the end of one call skipped and then the begin of the next, what this asks for would be taken for the first one's.
    (
        "sys_exit",
        Twin::Function(Function {
            name: LEAVE,
            fields: &[],
            beside: None,
            not_by_kprobe: Some("a kprobe may be skipped (missed.rs), and the end of a call must not be"),
        }),
    ),
    // Entered again for what is left of a bio that was split; it then bears BIO_TRACE_COMPLETION.
    ("block_bio_queue", function("submit_bio_noacct_nocheck", &["bio_flags", "bio_traced_bit"])),
    ("block_bio_complete", none("bio_endio ends all bios of a chain in one turn, and some not at all")),
    ("block_io_start", none("its function is static, and may be part of some of its callers")),
    ("block_getrq", none("it fires inside blk_mq_submit_bio, which goes on for long")),
    ("block_rq_insert", none("it fires inside several functions, of schedulers too")),
    ("block_rq_issue", function("blk_mq_start_request", &[])),
    ("block_rq_merge", none("it fires at the end of attempt_merge, if that merges")),
    ("block_rq_complete", none("blk_mq_end_request_batch ends many requests in one call")),
    ("jbd2_start_commit", none("its function may write the journal's superblock before it")),
    ("jbd2_end_commit", none("its function returns after those who waited were woken")),
    // Entered also where the file system was shut down, and then nothing asks for what is noted.
    ("ext4_sync_file_enter", function("ext4_sync_file", &[])),
    ("ext4_sync_file_exit", none("its function also returns where no sync was begun, and sleeps")),
    // Called by exec_binprm alone, behind the tracepoint.
    ("sched_process_exec", function("proc_exec_connector", &[])),
    // Called by do_exit for the task that ends, and by copy_process for a child that was not to be. Between the tracepoint
    // and it a task gives up memory and semaphores, and begins no I/O.
    ("sched_process_exit", function("exit_files", &[])),
    // Called by kernel_clone right behind the tracepoint, and for the workers of io_uring and vhost, whose flags tell.
    ("sched_process_fork", function("wake_up_new_task", &["task_flags"])),
];

/// What stands for this tracepoint.
pub fn twin(tracepoint: &str) -> Twin {
    let found = TWINS.iter().find(|(name, _)| *name == tracepoint);
    found.map_or(Twin::None("none is known"), |(_, twin)| *twin)
}

/// Every function that stands for one.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    TWINS.iter().filter_map(|(_, twin)| match twin {
        Twin::Function(function) => Some(function.name),
        Twin::None(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::OBJECT;
    use crate::probes::PROBES;
    use aya_obj::{Object, ProgramSection};

    /// The table and the programs say the same: a function has its programs; what has none has none.
    #[test]
    fn each_function_has_its_programs() {
        let object = Object::parse(OBJECT).expect("the object that is loaded");
        for hook in PROBES.iter().flat_map(|probe| probe.hooks()) {
            let known = TWINS.iter().filter(|(name, _)| *name == hook.tracepoint).count();
            assert_eq!(known, 1, "{}", hook.tracepoint);
            for suffix in ["fentry", "kprobe"] {
                let program = object.programs.get(&format!("{}_{suffix}", hook.stem));
                let function = match twin(hook.tracepoint) {
                    Twin::Function(function) => function.not_by_kprobe.is_none() || suffix == "fentry",
                    Twin::None(_) => false,
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
