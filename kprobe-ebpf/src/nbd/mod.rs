//! NBD client requests and their replies, parsed from the buffers of the client's own sends and
//! receives.
//!
//! *In*: entry and return of the system calls that send and receive. *Out*: a record for each
//! request that a traced task sends, and one for the event that ends it. *Invariant*: replies are
//! parsed only on sockets on which a request was sent, and bytes that a header announces as data
//! are never parsed as a header. Protocol facts are those of NBD's doc/proto.md ("Request message",
//! "Simple reply message", "Structured reply chunk message"). Loaded only on request.
//!
//! # Why the position in the stream is tracked
//!
//! A disk block may hold any bytes, including a capture of this protocol. So the state of each
//! connection has the number of data bytes still to come in each direction, and those bytes are not
//! parsed. The header of a simple reply to a read has no length. There, a block that begins like a
//! reply with the cookie of a request in flight ends that request too early. Clients that negotiate
//! structured replies (libnbd, QEMU) have no such reads.
//!
//! # Why both entry and return of a send are used
//!
//! A request's start time is that of entry, before the server can receive it. The return value
//! shows whether it was sent. A full socket accepts no bytes, and the client retries with the same
//! header: so a failed system call withdraws its request.
//!
//! # Limits
//!
//! A header that does not begin its buffer is missed: if a client puts several into one buffer, all
//! but the first. It is counted. Bytes sent by other system calls (io_uring, sendmmsg, splice) or
//! encrypted (TLS) are not visible here. QEMU receives the magic separately, and libnbd the length:
//! both are reassembled.
//!
//! *Rejected*: probes in the socket layer, which sees kernel-made `struct msghdr`s of every socket;
//! here a system call of an untraced task has no extra cost. A table of requests in the kernel,
//! which would give one record for both: 100 ns more per request.

mod connection;
mod socket;
pub mod tcp;

use crate::runtime::arch::{self, syscall as nr};
use crate::runtime::layout::offset;
use crate::runtime::percpu::PerCpuState;
use crate::runtime::read::{DirectLoad, KernelRead, Pointer};
use crate::runtime::ring;
use crate::{syscall, task};
use aya_ebpf::btf_maps::PerCpuArray;
use aya_ebpf::helpers::generated::{bpf_ktime_get_ns, bpf_probe_read_user};
use aya_ebpf::macros::btf_map;
use blkkin_probe_abi::counters::*;
use blkkin_probe_abi::record::*;
use blkkin_probe_abi::settings::Program;
use connection::{Connection, emit_reply};
use core::mem::MaybeUninit;
use socket::Socket;

/// Magic numbers, in memory byte order.
const REQUEST: u32 = 0x2560_9513u32.to_be();
const REQUEST_EXTENDED: u32 = 0x21e4_1c71u32.to_be();
const SIMPLE: u32 = 0x6744_6698u32.to_be();
const STRUCTURED: u32 = 0x668e_33efu32.to_be();

/// Bytes of a request's header.
const REQUEST_BYTES: u64 = 28;
/// Bytes of either reply's header after its magic, up to the end of the cookie.
const REPLY_REST_BYTES: u64 = 12;
/// Write command: its data follow its header.
const COMMAND_WRITE: u16 = 1;
/// Chunk flag: the last chunk of its request.
const CHUNK_DONE: u16 = 1;
/// Chunk type bit: an error.
const CHUNK_ERROR: u16 = 1 << 15;
/// Receive flag: the bytes stay in the socket (include/linux/socket.h).
const MSG_PEEK: u64 = 2;

/// Parser state: of a structured chunk's header only the length is still to come. Not a magic.
const AWAITING_LENGTH: u32 = 1;

/// Request record under construction: on the stack it would exceed the limit of Linux 6.1.
#[repr(C)]
struct RequestDraft {
    record: NbdRequestRecord,
    /// Request header after the magic.
    words: [u32; 6],
}

#[btf_map]
static NBD_REQUEST_DRAFT: PerCpuArray<RequestDraft, 1> = PerCpuArray::new();

/// Form in which a system call passes its buffer.
#[derive(Clone, Copy, PartialEq)]
enum BufferForm {
    /// Address and length.
    Plain,
    /// List of addresses and lengths.
    Vector,
    /// `struct user_msghdr` with such a list.
    Message,
}

/// Reads a value from the program's memory; none if unreadable.
#[inline(always)]
fn read_user<T: Copy>(at: u64) -> Option<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: bpf_probe_read_user writes size_of::<T>() bytes; T is integers, and any address is
    // allowed.
    unsafe {
        let read = bpf_probe_read_user(value.as_mut_ptr().cast(), size_of::<T>() as u32, at as *const _);
        (read == 0).then(|| value.assume_init())
    }
}

/// Returns address and length of the buffer, or of the list's first buffer.
#[inline(always)]
fn first_buffer<R: KernelRead>(regs: Pointer, form: BufferForm) -> Option<(u64, u64)> {
    // SAFETY: `regs` is of the kind that R reads.
    let (first, second): (u64, u64) = unsafe { (R::read(regs, arch::ARGS[1]), R::read(regs, arch::ARGS[2])) };
    let list = match form {
        BufferForm::Plain => return Some((first, second)),
        BufferForm::Vector => first,
        // msg_iov of struct user_msghdr (include/linux/socket.h).
        BufferForm::Message => read_user::<u64>(first.wrapping_add(16))?,
    };
    let [base, len]: [u64; 2] = read_user(list)?;
    Some((base, len))
}

/// Handles sys_enter(regs, number).
#[inline(always)]
pub fn enter<R: KernelRead>(regs: impl Fn() -> Pointer, number: u64) {
    let form = match number {
        nr::WRITE | nr::SENDTO => BufferForm::Plain,
        nr::WRITEV => BufferForm::Vector,
        nr::SENDMSG => BufferForm::Message,
        _ => return,
    };
    let Some(percpu) = PerCpuState::of(Program::NbdEnter) else { return };
    let Some(state) = task::traced(percpu, Program::NbdEnter) else { return };
    let task = task::current();
    // SAFETY: `task` is typed.
    if unsafe { DirectLoad::read::<u32>(task, offset!(task_compat)) } & arch::COMPAT != 0 {
        return;
    }
    let regs = regs();
    // SAFETY: `regs` is of the kind that R reads.
    let fd = unsafe { R::read::<u64>(regs, arch::ARGS[0]) } as u32;
    let Some(socket) = socket::lookup_fd(task, fd) else { return };
    let Some((at, len)) = first_buffer::<R>(regs, form) else { return };
    if len < 4 {
        return;
    }
    match read_user::<u32>(at) {
        Some(REQUEST) if len >= REQUEST_BYTES => {}
        Some(REQUEST) => return percpu.count(NBD_UNALIGNED),
        Some(REQUEST_EXTENDED) => return percpu.count(NBD_EXTENDED),
        _ => return,
    }
    if connection::of(&socket).is_some_and(|known| known.sending == 0 && known.to_send != 0) {
        return percpu.count(NBD_IN_DATA);
    }
    // SAFETY: only this program uses it, and it does not run twice at once on a CPU.
    let Some(draft) = NBD_REQUEST_DRAFT.get_ptr_mut(0).map(|draft| unsafe { &mut *draft }) else { return };
    let words = size_of::<[u32; 6]>() as u32;
    // SAFETY: as many bytes as there is room for; any address is allowed.
    let read = unsafe { bpf_probe_read_user((&raw mut draft.words).cast(), words, (at + 4) as *const _) };
    if read == 0 {
        emit_request(percpu, state, task, &socket, draft);
    }
}

/// Emits the record of a request that is about to be sent; its header words are in the draft.
#[inline(always)]
fn emit_request(
    percpu: &mut PerCpuState,
    state: &mut task::TaskState,
    task: Pointer,
    socket: &Socket,
    draft: &mut RequestDraft,
) {
    let RequestDraft { record, words } = draft;
    let [kind, cookie_high, cookie_low, offset_high, offset_low, length] = words.map(u32::from_be);
    *record = NbdRequestRecord {
        header: Header {
            tag: TAG_NBD_REQUEST,
            sampling: 0,
            flags: 0,
            len: size_of::<NbdRequestRecord>() as u32,
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
        stream_offset: 0,
    };
    let sk = socket::fill_addresses(socket, record);
    if record.family != socket::AF_UNIX {
        record.stream_offset = tcp::next_stream_offset(sk);
    }
    let data = if record.command == COMMAND_WRITE { length as u64 } else { 0 };
    let Some(connection) = connection::of_sender(percpu, socket, sk) else { return };
    connection.cookie = record.cookie;
    connection.to_send = REQUEST_BYTES + data;
    connection.sending = 1;
    record.span = percpu.next_span_id(Program::NbdEnter);
    // SAFETY: `task` is typed; the clock has no preconditions.
    unsafe {
        record.pid = DirectLoad::read(task, offset!(task_tgid));
        record.tid = DirectLoad::read(task, offset!(task_pid));
        record.header.time_ns = bpf_ktime_get_ns();
    }
    ring::put_counted(percpu, NBD_FIRED, NBD_DROPPED, record);
}

/// Handles sys_exit(regs, ret).
#[inline(always)]
pub fn exit<R: KernelRead>(regs: Pointer, ret: i64) {
    // SAFETY: `regs` is of the kind that R reads.
    let (sends, form) = match unsafe { syscall::number::<R>(regs) } {
        nr::READ | nr::RECVFROM => (false, BufferForm::Plain),
        nr::READV => (false, BufferForm::Vector),
        nr::RECVMSG => (false, BufferForm::Message),
        nr::WRITE | nr::SENDTO | nr::WRITEV | nr::SENDMSG => (true, BufferForm::Plain),
        _ => return,
    };
    if !sends && ret <= 0 {
        return;
    }
    // SAFETY: as above.
    let fd = unsafe { R::read::<u64>(regs, arch::FIRST_ARG_AT_RETURN) } as u32;
    let Some(socket) = socket::lookup_fd(task::current(), fd) else { return };
    let Some(state) = connection::of(&socket) else { return };
    let Some(percpu) = PerCpuState::of(Program::NbdExit) else { return };
    if sends {
        after_send(percpu, &socket, state, ret);
    } else {
        after_receive::<R>(percpu, &socket, state, regs, form, ret as u64);
    }
}

#[inline(always)]
fn after_send(percpu: &mut PerCpuState, socket: &Socket, state: &mut Connection, ret: i64) {
    let sending = state.sending != 0;
    state.sending = 0;
    if ret <= 0 {
        if sending {
            state.to_send = 0;
            emit_reply(percpu, socket.inode, NBD_WITHDRAWN, state.cookie, 0, 0, 0);
        }
        return;
    }
    let sent = ret as u64;
    if sent > state.to_send {
        // The rest of the buffer may be another request.
        if sending {
            percpu.count(NBD_UNALIGNED);
        }
        state.to_send = 0;
    } else {
        state.to_send -= sent;
    }
}

#[inline(always)]
fn after_receive<R: KernelRead>(
    percpu: &mut PerCpuState,
    socket: &Socket,
    state: &mut Connection,
    regs: Pointer,
    form: BufferForm,
    received: u64,
) {
    // SAFETY: `regs` is of the kind that R reads.
    let peeks = unsafe {
        match syscall::number::<R>(regs) {
            nr::RECVFROM => R::read::<u64>(regs, arch::ARGS[3]) & MSG_PEEK != 0,
            nr::RECVMSG => R::read::<u64>(regs, arch::ARGS[2]) & MSG_PEEK != 0,
            _ => false,
        }
    };
    if peeks {
        return;
    }
    if state.to_receive != 0 {
        if received > state.to_receive {
            // A header is somewhere in the rest of the buffer.
            percpu.count(NBD_UNALIGNED);
            state.to_receive = 0;
        } else {
            state.to_receive -= received;
        }
        return;
    }
    let Some((at, len)) = first_buffer::<R>(regs, form) else { return };
    let contiguous = if received < len { received } else { len };
    let before = state.received;
    state.received = 0;
    if before == AWAITING_LENGTH {
        return chunk_length(percpu, state, at, contiguous, received);
    }
    if before != 0 {
        return reply_header(percpu, socket, state, before, at, contiguous, received);
    }
    if contiguous < 4 {
        return;
    }
    let magic = match read_user::<u32>(at) {
        Some(magic @ (SIMPLE | STRUCTURED)) => magic,
        _ => return,
    };
    if received == 4 {
        state.received = magic;
        return;
    }
    reply_header(percpu, socket, state, magic, at.wrapping_add(4), contiguous - 4, received - 4);
}

/// Parses a reply's header after its magic: `contiguous` bytes of the `received` ones are at `at`.
#[inline(always)]
fn reply_header(
    percpu: &mut PerCpuState,
    socket: &Socket,
    state: &mut Connection,
    magic: u32,
    at: u64,
    contiguous: u64,
    received: u64,
) {
    if contiguous < REPLY_REST_BYTES {
        return percpu.count(NBD_UNALIGNED);
    }
    let Some(words) = read_user::<[u32; 3]>(at) else { return };
    let [first, cookie_high, cookie_low] = words.map(u32::from_be);
    let cookie = (cookie_high as u64) << 32 | cookie_low as u64;
    if magic == SIMPLE {
        return emit_reply(percpu, socket.inode, 0, cookie, first, 0, 0);
    }
    let (kind_flags, kind) = ((first >> 16) as u16, first as u16);
    if received == REPLY_REST_BYTES {
        state.received = AWAITING_LENGTH;
    } else {
        chunk_length(
            percpu,
            state,
            at.wrapping_add(REPLY_REST_BYTES),
            contiguous - REPLY_REST_BYTES,
            received - REPLY_REST_BYTES,
        );
    }
    if kind_flags & CHUNK_DONE != 0 || kind & CHUNK_ERROR != 0 {
        emit_reply(percpu, socket.inode, NBD_STRUCTURED, cookie, 0, kind, kind_flags);
    }
}

/// Parses the length of a chunk's data at `at`; the first data bytes may follow it.
#[inline(always)]
fn chunk_length(percpu: &mut PerCpuState, state: &mut Connection, at: u64, contiguous: u64, received: u64) {
    if contiguous < 4 {
        return percpu.count(NBD_UNALIGNED);
    }
    let Some(length) = read_user::<u32>(at) else { return };
    let (length, after) = (u32::from_be(length) as u64, received - 4);
    if after > length {
        percpu.count(NBD_UNALIGNED);
    }
    state.to_receive = length.saturating_sub(after);
}
