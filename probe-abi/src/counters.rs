//! Counters of the eBPF side: one array of `u64` per CPU.
//!
//! Conservation, for each kind of record: `fired[tag]` counts the events for which a record was
//! due, `dropped[tag]` those for which the ring had no room.
//! The reader counts the records that it decoded, so `fired = decoded + dropped` compares counters
//! that two different programs maintain.

/// Slots for each tag, indexed by the tag itself.
pub const TAGS: usize = 8;

/// First slot of `fired[tag]`.
pub const FIRED: usize = 0;
/// First slot of `dropped[tag]`.
pub const DROPPED: usize = TAGS;
/// System calls that a traced task entered and that passed the filter. Less
/// `fired[TAG_SYSCALL]`, `SYSCALLS_FILTERED` and `CALLS_UNSAMPLED`: the system calls still open.
pub const SYSCALLS_ENTERED: usize = 2 * TAGS;
/// System calls dropped at return by a filter that is only known then (threshold, errors, device).
pub const SYSCALLS_FILTERED: usize = SYSCALLS_ENTERED + 1;
/// Tasks due to be traced whose state could not be allocated.
pub const TASKS_MISSED: usize = SYSCALLS_FILTERED + 1;
/// System calls by 32-bit programs, which use another system call table: not traced.
pub const SYSCALLS_COMPAT: usize = TASKS_MISSED + 1;
/// Bios not traced because their set of the table was full.
pub const BIOS_UNTRACKED: usize = SYSCALLS_COMPAT + 1;
/// Requests not traced because their set of the table was full.
pub const REQUESTS_UNTRACKED: usize = BIOS_UNTRACKED + 1;
/// Bios whose completion was missed: their address was reused for a new bio.
pub const BIOS_STALE: usize = REQUESTS_UNTRACKED + 1;
/// Requests whose completion was missed: their address was reused for a new request.
pub const REQUESTS_STALE: usize = BIOS_STALE + 1;
/// Requests with more bios than [`crate::record::WALK_MAX`].
pub const WALK_OVERFLOW: usize = REQUESTS_STALE + 1;
/// Bios traced from queue time on. Less `fired[TAG_BIO]` and stale bios: the bios still in flight.
pub const BIOS_QUEUED: usize = WALK_OVERFLOW + 1;
/// Requests traced from allocation on.
pub const REQUESTS_STARTED: usize = BIOS_QUEUED + 1;
/// File paths whose dentry walk failed.
pub const PATHS_FAILED: usize = REQUESTS_STARTED + 1;
/// System calls whose record has a truncated path argument.
pub const SYSCALLS_TRUNCATED: usize = PATHS_FAILED + 1;
/// Traced tasks that exited.
pub const TASKS_EXITED: usize = SYSCALLS_TRUNCATED + 1;
/// Requests of traced devices without a traced bio.
pub const REQUESTS_FOREIGN: usize = TASKS_EXITED + 1;

/// Requests that the scheduler merged into another request, where their bios continue.
pub const REQUESTS_MERGED: usize = REQUESTS_FOREIGN + 1;

/// Traced requests served by a flush of the flush machine. A request counts once for a flush before
/// its data, and once for a flush that replaces FUA on a device without it.
pub const FLUSHES_SERVED: usize = REQUESTS_MERGED + 1;
/// Flushes that served more requests than the walk visits.
pub const FLUSH_OVERFLOW: usize = FLUSHES_SERVED + 1;

/// System calls at whose entry the thread context could not be read: its page was not resident, or
/// its address is invalid.
pub const CONTEXTS_FAULTED: usize = FLUSH_OVERFLOW + 1;
/// Part of `CONTEXTS_FAULTED` whose read failed at return too: they get no parent span.
pub const CONTEXTS_UNREAD: usize = CONTEXTS_FAULTED + 1;
/// System calls whose thread published an invalid context: trace id or span id is all zero.
pub const CONTEXTS_INVALID: usize = CONTEXTS_UNREAD + 1;

/// NBD records due. NBD tags have no slots in `fired` and `dropped`, so that the counters that an
/// earlier release left behind keep their positions.
pub const NBD_FIRED: usize = CONTEXTS_INVALID + 1;
/// NBD records for which the ring had no room.
pub const NBD_DROPPED: usize = NBD_FIRED + 1;
/// Sends and receives of an NBD client that begin with a part of a header, or hold more than one
/// header: the rest of the buffer is not parsed.
pub const NBD_UNALIGNED: usize = NBD_DROPPED + 1;
/// Sends that begin like a request inside the data that the last request announced: treated as
/// data.
pub const NBD_IN_DATA: usize = NBD_UNALIGNED + 1;
/// NBD requests with extended headers, which are not traced.
pub const NBD_EXTENDED: usize = NBD_IN_DATA + 1;

/// USDT records due. The counters of USDT records are atomic: a thread may be preempted at a probe,
/// and another thread may reach a probe on the same CPU meanwhile.
pub const USDT_FIRED: usize = NBD_EXTENDED + 1;
/// USDT records for which the ring had no room. Atomic, like `USDT_FIRED`.
pub const USDT_DROPPED: usize = USDT_FIRED + 1;

/// System calls whose thread published more attribute bytes than are read
/// ([`crate::context::ATTRIBUTES_MAX`]): none of them is read.
pub const ATTRIBUTES_TOO_LONG: usize = USDT_DROPPED + 1;
/// System calls whose thread attributes could be read neither at entry nor at return.
pub const ATTRIBUTES_UNREAD: usize = ATTRIBUTES_TOO_LONG + 1;

/// NBD requests that are not traced because the table of connections has no room for theirs.
pub const NBD_UNTRACKED: usize = ATTRIBUTES_UNREAD + 1;
/// Processes that did not inherit the thread context of the process that forked them: the table had
/// no room.
pub const CONTEXTS_NO_ROOM: usize = NBD_UNTRACKED + 1;

/// Page origin records due. Their tag has no slots in `fired` and `dropped`, as those of NBD.
pub const PAGES_FIRED: usize = CONTEXTS_NO_ROOM + 1;
/// Page origin records for which the ring had no room.
pub const PAGES_DROPPED: usize = PAGES_FIRED + 1;
/// Page fault records due. Tags above 7 have no slots in `fired` and `dropped`.
pub const FAULTS_FIRED: usize = PAGES_DROPPED + 1;
/// Page fault records for which the ring had no room.
pub const FAULTS_DROPPED: usize = FAULTS_FIRED + 1;
/// Major faults without a bio that a filter dropped (threshold, errors, device).
pub const FAULTS_FILTERED: usize = FAULTS_DROPPED + 1;
/// Records of dirty pages due.
pub const DIRTY_FIRED: usize = FAULTS_FILTERED + 1;
/// Records of dirty pages for which the ring had no room.
pub const DIRTY_DROPPED: usize = DIRTY_FIRED + 1;
/// Submissions of asynchronous I/O that are traced. Less `ASYNC_FIRED`,
/// `ASYNC_FILTERED` and its part of `CALLS_UNSAMPLED`: those not complete yet.
pub const ASYNC_SUBMITTED: usize = DIRTY_DROPPED + 1;
/// Records of asynchronous I/O due.
pub const ASYNC_FIRED: usize = ASYNC_SUBMITTED + 1;
/// Records of asynchronous I/O for which the ring had no room.
pub const ASYNC_DROPPED: usize = ASYNC_FIRED + 1;
/// Submissions dropped at completion by a filter (no bio on a selected device, or detail 0).
pub const ASYNC_FILTERED: usize = ASYNC_DROPPED + 1;
/// Submissions not traced because their set of the table was full. Their bios belong to the system
/// call.
pub const ASYNC_UNTRACKED: usize = ASYNC_FILTERED + 1;
/// Records of a system call's waits due.
pub const WAITS_FIRED: usize = ASYNC_UNTRACKED + 1;
/// Records of a system call's waits for which the ring had no room.
pub const WAITS_DROPPED: usize = WAITS_FIRED + 1;
/// Records of a system call's sleeps due.
pub const SLEEPS_FIRED: usize = WAITS_DROPPED + 1;
/// Records of a system call's sleeps for which the ring had no room.
pub const SLEEPS_DROPPED: usize = SLEEPS_FIRED + 1;

/// Files whose name another file displaced. Each is emitted again at its next use.
pub const NAMES_DISPLACED: usize = SLEEPS_DROPPED + 1;

/// System calls and submissions of asynchronous I/O that head sampling dropped, at their begin or, if they
/// were deferred, at their end.
pub const CALLS_UNSAMPLED: usize = NAMES_DISPLACED + 1;

/// Runs of the programs that measure themselves: see [`TIMED_EVERY`].
pub const RUNS: usize = CALLS_UNSAMPLED + 1;
/// Sum of the ns of the runs that were measured.
pub const TIMED_NS: usize = RUNS + 1;
/// Runs of a program on a CPU of which the last is measured. A prime: a loop of a few calls must not be measured at
/// one of them.
pub const TIMED_EVERY: u64 = 61;
/// Maximum time of a measured run, in ns: more is an interrupt's, or the host's.
pub const TIMED_MAX_NS: u64 = 20_000;

/// Bios of operations that were deferred and then dropped.
pub const BIOS_UNSAMPLED: usize = TIMED_NS + 1;
/// Requests of operations that were deferred and then dropped.
pub const REQUESTS_UNSAMPLED: usize = BIOS_UNSAMPLED + 1;
/// Operations that were deferred and kept because they were slow.
pub const KEPT_SLOW: usize = REQUESTS_UNSAMPLED + 1;
/// Operations that were deferred and kept because they failed.
pub const KEPT_FAILED: usize = KEPT_SLOW + 1;
/// Operations that were deferred and kept because they outgrew their place.
pub const KEPT_LARGE: usize = KEPT_FAILED + 1;
/// Operations that could not be deferred, because their set of the table was full. They were dropped.
pub const DEFERRED_UNTRACKED: usize = KEPT_LARGE + 1;
/// Operations that were deferred for longer than [`DEFERRED_NS_MAX`](crate::deferred::DEFERRED_NS_MAX) and lost their place to another.
pub const DEFERRED_EXPIRED: usize = DEFERRED_UNTRACKED + 1;

/// Number of counters.
pub const COUNTERS: usize = DEFERRED_EXPIRED + 1;

/// Words of a program's slot of per-CPU memory: its counters first, then the state that only the
/// eBPF side uses.
pub const PER_CPU_WORDS: usize = COUNTERS + 58;
