//! What the kernel side counts, per CPU, in one array of `u64`.
//!
//! Conservation, for each kind of record: `fired[tag]` counts the moments at which a record had to be
//! written, `dropped[tag]` those at which the ring had no room. The reader counts what it decoded, so
//! `fired = decoded + dropped` compares two counters that different programs keep.

/// Slots for each tag, indexed by the tag itself.
pub const TAGS: usize = 8;

/// First slot of `fired[tag]`.
pub const FIRED: usize = 0;
/// First slot of `dropped[tag]`.
pub const DROPPED: usize = TAGS;
/// Calls that were entered by a followed task and passed the filter; less `fired[TAG_CALL]` and `CALLS_FILTERED`:
/// still open.
pub const CALLS_ENTERED: usize = 2 * TAGS;
/// Calls that a rule which is only known at return (threshold, errors, device) left out.
pub const CALLS_FILTERED: usize = CALLS_ENTERED + 1;
/// Tasks that should have been followed but whose state could not be made.
pub const TASKS_MISSED: usize = CALLS_FILTERED + 1;
/// Calls by 32-bit programs, which number calls otherwise: not followed.
pub const CALLS_COMPAT: usize = TASKS_MISSED + 1;
/// Bios not followed because their set of the table was full.
pub const BIOS_UNTRACKED: usize = CALLS_COMPAT + 1;
/// Requests not followed because their set of the table was full.
pub const REQUESTS_UNTRACKED: usize = BIOS_UNTRACKED + 1;
/// Bios whose end was never seen: their address came back as a new bio.
pub const BIOS_STALE: usize = REQUESTS_UNTRACKED + 1;
/// Requests whose end was never seen: their address came back as a new request.
pub const REQUESTS_STALE: usize = BIOS_STALE + 1;
/// Requests with more bios than [`crate::record::WALK_MAX`].
pub const WALK_OVERFLOW: usize = REQUESTS_STALE + 1;
/// Bios that were followed from queue on: less `fired[TAG_BIO]` and stale ones: still in flight.
pub const BIOS_QUEUED: usize = WALK_OVERFLOW + 1;
/// Requests that were followed from allocation on.
pub const REQUESTS_STARTED: usize = BIOS_QUEUED + 1;
/// File names that could not be walked.
pub const PATHS_FAILED: usize = REQUESTS_STARTED + 1;
/// Calls whose record has a path argument that was cut.
pub const CALLS_TRUNCATED: usize = PATHS_FAILED + 1;
/// Followed tasks that ended.
pub const TASKS_EXITED: usize = CALLS_TRUNCATED + 1;
/// Requests of devices that are followed, which had no followed bio.
pub const REQUESTS_FOREIGN: usize = TASKS_EXITED + 1;

/// Requests that the scheduler merged into another: their bios end there.
pub const REQUESTS_MERGED: usize = REQUESTS_FOREIGN + 1;

/// Times that a flush of the flush machine served a request that is followed: once for one that asks for a flush before its
/// data, and once for one that must be durable, where the device cannot do that by itself.
pub const FLUSHES_SERVED: usize = REQUESTS_MERGED + 1;
/// Flushes that served more requests than are looked at.
pub const FLUSH_OVERFLOW: usize = FLUSHES_SERVED + 1;

/// Calls at whose entry what their thread says of its span could not be read: its page was not there, or its address is none.
pub const CONTEXTS_FAULTED: usize = FLUSH_OVERFLOW + 1;
/// Of these, those at whose return it could not either: they are below no span.
pub const CONTEXTS_UNREAD: usize = CONTEXTS_FAULTED + 1;
/// Calls whose thread says that it has a context, which is none: its trace or its span is all zero.
pub const CONTEXTS_INVALID: usize = CONTEXTS_UNREAD + 1;

/// Records of NBD requests that were due, and those of them for which the ring had no room: their tags have no slots above, so
/// that what an earlier release left behind is still read where it lies.
pub const NBD_FIRED: usize = CONTEXTS_INVALID + 1;
/// See above.
pub const NBD_DROPPED: usize = NBD_FIRED + 1;
/// Sends and receives of an NBD client that begin with a part of a header, or hold more than one: what lies behind is not seen.
pub const NBD_CUT: usize = NBD_DROPPED + 1;
/// Sends that begin as a request does inside what the last request said that it would send as data: taken for that.
pub const NBD_IN_DATA: usize = NBD_CUT + 1;
/// Requests with extended headers, which are not followed.
pub const NBD_EXTENDED: usize = NBD_IN_DATA + 1;

/// Records of probes that were due, and those of them for which the ring had no room. A thread may be moved off its CPU at a probe, and
/// another come by one there: these two are counted atomically.
pub const HITS_FIRED: usize = NBD_EXTENDED + 1;
/// See above.
pub const HITS_DROPPED: usize = HITS_FIRED + 1;

/// Calls whose thread says more bytes of attributes than are read ([`crate::context::ATTRIBUTES_MAX`]): none of them is.
pub const ATTRIBUTES_CUT: usize = HITS_DROPPED + 1;
/// Calls whose thread's attributes could be read neither at entry nor at return.
pub const ATTRIBUTES_UNREAD: usize = ATTRIBUTES_CUT + 1;

/// How many counters there are.
pub const COUNTERS: usize = ATTRIBUTES_UNREAD + 1;

/// Words of a program's slot of per-CPU memory: its counters first, then what only the kernel side uses.
pub const LOCAL_WORDS: usize = COUNTERS + 23;
