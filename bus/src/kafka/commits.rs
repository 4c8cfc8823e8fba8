//! Commits of a group's offsets, with a limit on the wait for each reply.
//!
//! *In*: offsets. *Out*: whether the cluster accepted them. *Invariant*: each commit that was sent gets one reply, in
//! the order of the commits.
//!
//! *Why its own queue.* librdkafka's synchronous commit waits without limit. While the group rebalances, the reply
//! waits for the member's next poll, which the caller never makes: a service was seen to wait for ever after a broker
//! had been killed. An asynchronous commit has no reply at all here, because the driver sets no callback for it.

use std::ptr;
use std::time::{Duration, Instant};

use rdkafka::TopicPartitionList;
use rdkafka::bindings::{
    rd_kafka_commit_queue, rd_kafka_event_destroy, rd_kafka_event_error, rd_kafka_queue_destroy,
    rd_kafka_queue_new, rd_kafka_queue_poll, rd_kafka_queue_t,
};
use rdkafka::client::{Client, ClientContext};
use rdkafka::error::{IsError, RDKafkaErrorCode};

/// Time after which a commit will have no reply. A request takes at most 60 s (socket.timeout.ms), but a commit was
/// seen to stay with a coordinator that had been killed.
pub(super) const OVERDUE: Duration = Duration::from_secs(120);

/// Commits of one client. Must be dropped before the client.
pub(super) struct Commits {
    replies: *mut rd_kafka_queue_t,
    /// Number of commits without a reply.
    open: u64,
    /// Time of the last commit or reply.
    changed: Instant,
    /// Last reply.
    reply: Result<(), RDKafkaErrorCode>,
}

// SAFETY: librdkafka's queues may be used by any thread, and all uses here take `&mut self`.
unsafe impl Send for Commits {}

impl Commits {
    pub(super) fn new<C: ClientContext>(client: &Client<C>) -> Commits {
        // SAFETY: the client lives.
        let replies = unsafe { rd_kafka_queue_new(client.native_ptr()) };
        Commits { replies, open: 0, changed: Instant::now(), reply: Ok(()) }
    }

    /// Sends a commit. Returns false if this client cannot commit.
    pub(super) fn send<C: ClientContext>(
        &mut self,
        client: &Client<C>,
        offsets: &TopicPartitionList,
    ) -> bool {
        while self.open > 0 && self.wait(Duration::ZERO) {}
        // SAFETY: client, list and queue live; librdkafka copies the list and holds the queue until its reply.
        let error = unsafe {
            rd_kafka_commit_queue(client.native_ptr(), offsets.ptr(), self.replies, None, ptr::null_mut())
        };
        self.open += u64::from(!error.is_error());
        self.changed = Instant::now();
        !error.is_error()
    }

    /// Returns the reply to the last commit; none while it is due.
    pub(super) fn result(&self) -> Option<Result<(), RDKafkaErrorCode>> {
        (self.open == 0).then_some(self.reply)
    }

    /// Returns whether a reply has been due for longer than [`OVERDUE`].
    pub(super) fn is_overdue(&self) -> bool {
        self.open > 0 && self.changed.elapsed() > OVERDUE
    }

    /// Waits up to `timeout` for one reply. Returns whether there was one.
    pub(super) fn wait(&mut self, timeout: Duration) -> bool {
        let ms = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: the queue lives. The event belongs to this call, which destroys it.
        unsafe {
            let event = rd_kafka_queue_poll(self.replies, ms);
            if event.is_null() {
                return false;
            }
            let error = rd_kafka_event_error(event);
            self.reply = if error.is_error() { Err(error.into()) } else { Ok(()) };
            rd_kafka_event_destroy(event);
        }
        self.open = self.open.saturating_sub(1);
        self.changed = Instant::now();
        true
    }
}

impl Drop for Commits {
    fn drop(&mut self) {
        // SAFETY: the queue is not used after this.
        unsafe { rd_kafka_queue_destroy(self.replies) };
    }
}
