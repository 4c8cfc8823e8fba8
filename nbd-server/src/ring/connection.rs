//! Connection of a ring.
//!
//! *In* and *out*: entries that receive and send, and their completions. *Invariant*: the decoder
//! is not touched while a receive is in flight, and no reply is removed from the send queue while a
//! send is in flight, because the kernel writes to the one and reads from the other. Neither moves
//! in memory.

use std::io::IoSlice;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use io_uring::opcode;
use io_uring::squeue::Entry;
use io_uring::types::Fd;

use crate::accepted::AcceptedConnection;
use crate::client::{Client, Reservation};
use crate::connection_name::ConnectionName;
use crate::protocol::request_decoder::{ReceivedRequest, RequestDecoder};
use crate::protocol::{Command, Session};
use crate::request_span::RequestSpan;
use crate::send_queue::{QueuedReply, Released, SendQueue};

/// Largest number of replies in one send.
const SLICES_MAX: usize = 64;

pub(super) struct Connection {
    client: Arc<Client>,
    pub(super) session: Session,
    name: Option<ConnectionName>,
    decoder: RequestDecoder,
    send_queue: SendQueue,
    receiving: bool,
    sending: Option<Box<SendArguments>>,
    ending: bool,
}

/// Arguments of a send in flight. They contain addresses of replies in the send queue.
struct SendArguments {
    message: libc::msghdr,
    slices: Vec<libc::iovec>,
}

impl Connection {
    pub(super) fn new(accepted: AcceptedConnection) -> Self {
        Self {
            client: accepted.client,
            session: accepted.session,
            name: accepted.name,
            decoder: RequestDecoder::at_offset(accepted.stream_offset),
            send_queue: SendQueue::default(),
            receiving: false,
            sending: None,
            ending: false,
        }
    }

    /// Takes the next request that arrived and may begin, with its cost and its span.
    pub(super) fn take_request(&mut self) -> Option<(ReceivedRequest, usize, RequestSpan)> {
        if self.receiving || self.ending {
            return None;
        }
        match self.decoder.next_header().map(|next| self.client.reserve(&next)) {
            Some(Reservation::NoRoom) => return None,
            Some(Reservation::ClientGone) => {
                self.ending = true;
                return None;
            }
            Some(Reservation::Made) | None => {}
        }
        match self.decoder.next() {
            Ok(Some(received)) if received.request.command != Command::Disconnect => {
                let span = RequestSpan::begin(&received, self.name.as_ref());
                let cost = self.client.begin(&received.request);
                Some((received, cost, span))
            }
            Ok(None) => None,
            // The client disconnects, or violated the protocol.
            Ok(Some(_)) | Err(_) => {
                self.ending = true;
                None
            }
        }
    }

    /// Returns an entry that receives more bytes, if more may be received. The caller has called
    /// [`take_request`](Self::take_request) until it returned none.
    pub(super) fn receive(&mut self) -> Option<Entry> {
        let has_no_room = self.decoder.next_header().is_some();
        if self.receiving || self.ending || has_no_room {
            return None;
        }
        self.receiving = true;
        let space = self.decoder.space();
        let socket = Fd(self.client.socket.as_fd().as_raw_fd());
        Some(opcode::Recv::new(socket, space.as_mut_ptr(), space.len() as u32).build())
    }

    pub(super) fn on_received(&mut self, result: i32) {
        self.receiving = false;
        match result {
            1.. => {
                self.client.count_received();
                self.decoder.filled(result as usize);
            }
            _ if -result == libc::EINTR || -result == libc::EAGAIN => {}
            _ => self.ending = true,
        }
    }

    pub(super) fn push(&mut self, reply: QueuedReply) {
        self.send_queue.push(reply);
    }

    /// Returns an entry that sends queued replies, unless a send is in flight.
    pub(super) fn send(&mut self) -> Option<Entry> {
        if self.sending.is_some() || self.send_queue.is_empty() {
            return None;
        }
        self.client.count_sent(false, true);
        let mut slices = Vec::with_capacity(SLICES_MAX);
        self.send_queue.slices(&mut slices, SLICES_MAX);
        let slices: Vec<libc::iovec> = slices.iter().map(iovec).collect();
        // SAFETY: all fields are integers and pointers, for which zero bytes are valid.
        let message: libc::msghdr = unsafe { std::mem::zeroed() };
        let sending = self.sending.insert(Box::new(SendArguments { message, slices }));
        sending.message.msg_iov = sending.slices.as_mut_ptr();
        sending.message.msg_iovlen = sending.slices.len();
        let socket = Fd(self.client.socket.as_fd().as_raw_fd());
        let flags = libc::MSG_NOSIGNAL as u32;
        Some(opcode::SendMsg::new(socket, &raw const sending.message).flags(flags).build())
    }

    pub(super) fn on_sent(&mut self, result: i32) {
        self.sending = None;
        self.client.count_sent(result > 0, false);
        let released = match result {
            1.. => self.send_queue.advance(result as usize),
            _ if -result == libc::EINTR || -result == libc::EAGAIN => return,
            _ => self.on_lost(),
        };
        self.client.release(released);
    }

    /// Ends the connection after a failed send, and drops its replies.
    fn on_lost(&mut self) -> Released {
        self.ending = true;
        // Completes a receive in flight.
        self.shutdown(Shutdown::Both);
        self.send_queue.discard()
    }

    pub(super) fn shutdown(&self, how: Shutdown) {
        self.client.socket.shutdown(how);
    }

    /// Returns whether the connection is ending and has nothing in flight.
    pub(super) fn is_finished(&self) -> bool {
        self.ending && !self.receiving && self.sending.is_none() && self.client.is_unserved()
    }
}

fn iovec(slice: &IoSlice<'_>) -> libc::iovec {
    libc::iovec { iov_base: slice.as_ptr().cast_mut().cast(), iov_len: slice.len() }
}
