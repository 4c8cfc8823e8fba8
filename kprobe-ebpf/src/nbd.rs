//! What programs ask NBD servers, and what they are told: read from the buffers of their own sends and receives.
//!
//! *In*: entry and return of the calls that send and receive. *Out*: a record for each request that a followed task sends, and one
//! for what ends it. *Invariant*: a reply is looked for only on a socket on which a request was sent; and what a header says
//! is data is never taken for a header. Facts of the protocol are those of NBD's doc/proto.md ("Request message", "Simple reply message",
//! "Structured reply chunk message"). Loaded only where it is asked for.
//!
//! # Why the position in the stream is kept
//!
//! A block of a disk may hold anything, a capture of this very protocol too. So of each connection it is known how many bytes of
//! data are still to come, each way: what is sent or received meanwhile is not looked at. Of a simple reply to a read that is not known,
//! as its header has no length: there a block that begins as a reply does, with the cookie of a request in flight, ends that one
//! too early. Clients that negotiate structured replies (libnbd, QEMU) have no such reads.
//!
//! # Why the call that sends is looked at twice
//!
//! A request's time is that of entry: before the server may have it. Whether it was sent is known at return. A socket that is full
//! takes nothing, and the client comes again with the same header: so a call that failed takes its request back.
//!
//! # What is not seen
//!
//! A header that does not begin its buffer: of a client that puts several into one, all but the first. It is counted. What goes by other
//! calls (io_uring, sendmmsg, splice) or is encrypted (TLS) bears no such bytes here. QEMU receives the magic by itself, and libnbd the
//! length: both are put together again.
//!
//! *Rejected*: probes in the socket layer (one sees `struct msghdr`s of the kernel's making there, of every socket; here a call of a task
//! that is not followed costs nothing more). A table of requests in the kernel, which would give one record for both: 100 ns more a
//! request, and what it had no room for would be lost in silence.

use crate::access::{Access, Direct, Pointer};
use crate::arch::{self, call};
use crate::layout::offset;
use crate::local::Local;
use crate::socket::{self, Socket};
use crate::{call as calls, ring, stream, task};
use aya_ebpf::btf_maps::{LruHashMap, PerCpuArray};
use aya_ebpf::helpers::generated::{bpf_ktime_get_ns, bpf_probe_read_user};
use aya_ebpf::macros::btf_map;
use blkkin_probe_abi::counters::*;
use blkkin_probe_abi::record::*;
use blkkin_probe_abi::settings::Program;
use core::mem::MaybeUninit;

/// Magics, as their bytes lie in memory.
const REQUEST: u32 = 0x2560_9513u32.to_be();
const REQUEST_EXTENDED: u32 = 0x21e4_1c71u32.to_be();
const SIMPLE: u32 = 0x6744_6698u32.to_be();
const STRUCTURED: u32 = 0x668e_33efu32.to_be();

/// Of a request's header.
const REQUEST_BYTES: u64 = 28;
/// Of either reply's header behind its magic, up to the cookie's end.
const REST_BYTES: u64 = 12;
/// A write's data follow its header.
const COMMAND_WRITE: u16 = 1;
/// A chunk that ends its request.
const CHUNK_DONE: u16 = 1;
/// A chunk that says what failed.
const CHUNK_ERROR: u16 = 1 << 15;
/// What is received stays there (include/linux/socket.h).
const MSG_PEEK: u64 = 2;

/// Not a magic: of a structured chunk's header only the length is still to come.
const LENGTH: u32 = 1;

/// Where a connection's streams are.
#[derive(Clone, Copy)]
#[repr(C)]
struct Connection {
    /// The request that is being sent.
    cookie: u64,
    /// Bytes of it that have not been sent, its data among them.
    to_send: u64,
    /// Bytes of data that have not been received.
    to_receive: u64,
    /// 1: the call that begins to send it has not returned.
    begun: u32,
    /// What was received of a header: its magic, or all but its length ([`LENGTH`]); 0 for nothing.
    received: u32,
}

/// By the inode of the client's socket. At the most so many at once; of one that is displaced replies are not seen until it sends
/// again. The loader makes it as small as can be where nobody asks for this.
#[btf_map]
static NBD: LruHashMap<u64, Connection, 1024> = LruHashMap::new();

/// What a request's record is put together from: on the stack it would be more than Linux 6.1 gives.
#[repr(C)]
struct Draft {
    record: NbdAsked,
    fresh: Connection,
    /// The request's header behind the magic.
    words: [u32; 6],
}

#[btf_map]
static ASKED: PerCpuArray<Draft, 1> = PerCpuArray::new();

/// How a call names its buffer.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    /// By address and length.
    Plain,
    /// By a list of such.
    Vector,
    /// By a `struct user_msghdr` with such a list.
    Message,
}

/// The current connection's state.
#[inline(always)]
fn connection(socket: &Socket) -> Option<&'static mut Connection> {
    // SAFETY: one thread sends on a connection at a time, and one receives, or their bytes would be mixed; the two use different
    // fields.
    NBD.get_ptr_mut(socket.inode).map(|state| unsafe { &mut *state })
}

/// A value in the program's memory; none where it cannot be read.
#[inline(always)]
fn user<T: Copy>(at: u64) -> Option<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: the helper writes size_of::<T>() bytes; T is integers, and any address is allowed.
    unsafe {
        let read = bpf_probe_read_user(value.as_mut_ptr().cast(), size_of::<T>() as u32, at as *const _);
        (read == 0).then(|| value.assume_init())
    }
}

/// Address and length of the buffer, or of the first of the list.
#[inline(always)]
fn buffer<A: Access>(regs: Pointer, form: Form) -> Option<(u64, u64)> {
    // SAFETY: `regs` is of the kind that A reads.
    let (first, second): (u64, u64) = unsafe { (A::read(regs, arch::ARGS[1]), A::read(regs, arch::ARGS[2])) };
    let list = match form {
        Form::Plain => return Some((first, second)),
        Form::Vector => first,
        // msg_iov of struct user_msghdr (include/linux/socket.h).
        Form::Message => user::<u64>(first.wrapping_add(16))?,
    };
    let [base, len]: [u64; 2] = user(list)?;
    Some((base, len))
}

/// sys_enter(regs, number).
#[inline(always)]
pub fn enter<A: Access>(regs: impl Fn() -> Pointer, number: u64) {
    let form = match number {
        call::WRITE | call::SENDTO => Form::Plain,
        call::WRITEV => Form::Vector,
        call::SENDMSG => Form::Message,
        _ => return,
    };
    let Some(local) = Local::of(Program::NbdEnter) else { return };
    let Some(state) = task::followed(local, Program::NbdEnter) else { return };
    let task = task::current();
    // SAFETY: `task` is typed.
    if unsafe { Direct::read::<u32>(task, offset!(task_compat)) } & arch::COMPAT != 0 {
        return;
    }
    let regs = regs();
    // SAFETY: `regs` is of the kind that A reads.
    let fd = unsafe { A::read::<u64>(regs, arch::ARGS[0]) } as u32;
    let Some(socket) = socket::of(task, fd) else { return };
    let Some((at, len)) = buffer::<A>(regs, form) else { return };
    if len < 4 {
        return;
    }
    match user::<u32>(at) {
        Some(REQUEST) if len >= REQUEST_BYTES => {}
        Some(REQUEST) => return local.count(NBD_CUT),
        Some(REQUEST_EXTENDED) => return local.count(NBD_EXTENDED),
        _ => return,
    }
    if connection(&socket).is_some_and(|known| known.begun == 0 && known.to_send != 0) {
        return local.count(NBD_IN_DATA);
    }
    // SAFETY: this program's alone, which does not run twice at once on a CPU.
    let Some(draft) = ASKED.get_ptr_mut(0).map(|draft| unsafe { &mut *draft }) else { return };
    let words = size_of::<[u32; 6]>() as u32;
    // SAFETY: as many bytes as there is room for; any address is allowed.
    let read = unsafe { bpf_probe_read_user((&raw mut draft.words).cast(), words, (at + 4) as *const _) };
    if read == 0 {
        asked(local, state, task, &socket, draft);
    }
}

/// A request is about to be sent; its words are in the draft.
#[inline(always)]
fn asked(local: &mut Local, state: &mut task::TaskState, task: Pointer, socket: &Socket, draft: &mut Draft) {
    let Draft { record, fresh, words } = draft;
    let [kind, cookie_high, cookie_low, offset_high, offset_low, length] = words.map(u32::from_be);
    *record = NbdAsked {
        header: Header {
            tag: TAG_NBD_ASKED,
            reserved: 0,
            flags: 0,
            len: size_of::<NbdAsked>() as u32,
            time_ns: 0,
        },
        span: 0,
        task: state.task,
        socket: socket.inode,
        cookie: (cookie_high as u64) << 32 | cookie_low as u64,
        offset: (offset_high as u64) << 32 | offset_low as u64,
        length,
        command: kind as u16,
        command_flags: (kind >> 16) as u16,
        local: [0; 2],
        remote: [0; 2],
        family: 0,
        local_port: 0,
        remote_port: 0,
        task_version: state.version,
        pid: 0,
        tid: 0,
        place: 0,
    };
    let sk = socket::ends(socket, record);
    if record.family != socket::AF_UNIX {
        record.place = stream::place_of_next(sk);
    }
    let data = if record.command == COMMAND_WRITE { length as u64 } else { 0 };
    if let Some(known) = connection(socket) {
        known.cookie = record.cookie;
        known.to_send = REQUEST_BYTES + data;
        known.begun = 1;
    } else {
        fresh.cookie = record.cookie;
        fresh.to_send = REQUEST_BYTES + data;
        (fresh.to_receive, fresh.begun, fresh.received) = (0, 1, 0);
        // Where it fails, the request is one without an answer.
        let _ = NBD.insert(socket.inode, &*fresh, 0);
    }
    record.span = local.mint(Program::NbdEnter);
    // SAFETY: `task` is typed; the clock has no preconditions.
    unsafe {
        record.pid = Direct::read(task, offset!(task_tgid));
        record.tid = Direct::read(task, offset!(task_pid));
        record.header.time_ns = bpf_ktime_get_ns();
    }
    ring::put_counted(local, NBD_FIRED, NBD_DROPPED, record);
}

/// sys_exit(regs, ret).
#[inline(always)]
pub fn exit<A: Access>(regs: Pointer, ret: i64) {
    // SAFETY: `regs` is of the kind that A reads.
    let (sends, form) = match unsafe { calls::number::<A>(regs) } {
        call::READ | call::RECVFROM => (false, Form::Plain),
        call::READV => (false, Form::Vector),
        call::RECVMSG => (false, Form::Message),
        call::WRITE | call::SENDTO | call::WRITEV | call::SENDMSG => (true, Form::Plain),
        _ => return,
    };
    if !sends && ret <= 0 {
        return;
    }
    // SAFETY: as above.
    let fd = unsafe { A::read::<u64>(regs, arch::FIRST) } as u32;
    let Some(socket) = socket::of(task::current(), fd) else { return };
    let Some(state) = connection(&socket) else { return };
    let Some(local) = Local::of(Program::NbdExit) else { return };
    if sends {
        sent(local, &socket, state, ret);
    } else {
        received::<A>(local, &socket, state, regs, form, ret as u64);
    }
}

#[inline(always)]
fn sent(local: &mut Local, socket: &Socket, state: &mut Connection, ret: i64) {
    let begun = state.begun != 0;
    state.begun = 0;
    if ret <= 0 {
        if begun {
            state.to_send = 0;
            answer(local, socket.inode, NBD_WITHDRAWN, state.cookie, 0, 0, 0);
        }
        return;
    }
    let sent = ret as u64;
    if sent > state.to_send {
        // What lies behind a request in its buffer may be one more.
        if begun {
            local.count(NBD_CUT);
        }
        state.to_send = 0;
    } else {
        state.to_send -= sent;
    }
}

#[inline(always)]
fn received<A: Access>(
    local: &mut Local,
    socket: &Socket,
    state: &mut Connection,
    regs: Pointer,
    form: Form,
    received: u64,
) {
    // SAFETY: `regs` is of the kind that A reads.
    let peeks = unsafe {
        match calls::number::<A>(regs) {
            call::RECVFROM => A::read::<u64>(regs, arch::ARGS[3]) & MSG_PEEK != 0,
            call::RECVMSG => A::read::<u64>(regs, arch::ARGS[2]) & MSG_PEEK != 0,
            _ => false,
        }
    };
    if peeks {
        return;
    }
    if state.to_receive != 0 {
        if received > state.to_receive {
            // A header lies somewhere behind.
            local.count(NBD_CUT);
            state.to_receive = 0;
        } else {
            state.to_receive -= received;
        }
        return;
    }
    let Some((at, len)) = buffer::<A>(regs, form) else { return };
    let here = if received < len { received } else { len };
    let before = state.received;
    state.received = 0;
    if before == LENGTH {
        return data_follow(local, state, at, here, received);
    }
    if before != 0 {
        return header(local, socket, state, before, at, here, received);
    }
    if here < 4 {
        return;
    }
    let magic = match user::<u32>(at) {
        Some(magic @ (SIMPLE | STRUCTURED)) => magic,
        _ => return,
    };
    if received == 4 {
        state.received = magic;
        return;
    }
    header(local, socket, state, magic, at.wrapping_add(4), here - 4, received - 4);
}

/// A reply's header behind its magic: `here` bytes of it in one place, of the `received`.
#[inline(always)]
fn header(
    local: &mut Local,
    socket: &Socket,
    state: &mut Connection,
    magic: u32,
    at: u64,
    here: u64,
    received: u64,
) {
    if here < REST_BYTES {
        return local.count(NBD_CUT);
    }
    let Some(words) = user::<[u32; 3]>(at) else { return };
    let [first, cookie_high, cookie_low] = words.map(u32::from_be);
    let cookie = (cookie_high as u64) << 32 | cookie_low as u64;
    if magic == SIMPLE {
        return answer(local, socket.inode, 0, cookie, first, 0, 0);
    }
    let (kind_flags, kind) = ((first >> 16) as u16, first as u16);
    if received == REST_BYTES {
        state.received = LENGTH;
    } else {
        data_follow(local, state, at.wrapping_add(REST_BYTES), here - REST_BYTES, received - REST_BYTES);
    }
    if kind_flags & CHUNK_DONE != 0 || kind & CHUNK_ERROR != 0 {
        answer(local, socket.inode, NBD_STRUCTURED, cookie, 0, kind, kind_flags);
    }
}

/// The length of a chunk's data is at `at`, and the first of them may lie behind it.
#[inline(always)]
fn data_follow(local: &mut Local, state: &mut Connection, at: u64, here: u64, received: u64) {
    if here < 4 {
        return local.count(NBD_CUT);
    }
    let Some(length) = user::<u32>(at) else { return };
    let (length, after) = (u32::from_be(length) as u64, received - 4);
    if after > length {
        local.count(NBD_CUT);
    }
    state.to_receive = length.saturating_sub(after);
}

/// A request was sent on the socket of this inode.
#[inline(always)]
pub fn knows(socket: u64) -> bool {
    NBD.get_ptr_mut(socket).is_some()
}

/// The connection has ended: nothing on it is answered any more.
#[inline(always)]
pub fn end(local: &mut Local, socket: u64, error: u32) {
    let _ = NBD.remove(socket);
    answer(local, socket, NBD_ENDED, 0, error, 0, 0);
}

#[inline(always)]
fn answer(local: &mut Local, socket: u64, flags: u16, cookie: u64, error: u32, kind: u16, kind_flags: u16) {
    let record = NbdAnswered {
        header: Header {
            tag: TAG_NBD_ANSWERED,
            reserved: 0,
            flags,
            len: size_of::<NbdAnswered>() as u32,
            // SAFETY: the clock has no preconditions.
            time_ns: unsafe { bpf_ktime_get_ns() },
        },
        socket,
        cookie,
        error,
        kind,
        kind_flags,
    };
    ring::put_counted(local, NBD_FIRED, NBD_DROPPED, &record);
}
