//! Time that the link took for each request: for the request's segment, and for the last segment of
//! its reply.
//!
//! *In*: each packet when it was received, and when it was delivered. *Out*: a sum for each request
//! of a connection that has one request at a time.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::segment;

/// Requests in flight by the client's port, and the delays of those that ended.
#[derive(Default)]
pub(super) struct RequestDelays {
    in_flight: Mutex<HashMap<u16, Request>>,
    delays: Mutex<Vec<Duration>>,
}

/// Times of the request segment and of the last reply segment: received, and delivered.
#[derive(Clone, Copy, Default)]
struct Request {
    directions: [[Option<Instant>; 2]; 2],
}

impl Request {
    fn delay(&self) -> Option<Duration> {
        let duration =
            |[received, delivered]: [Option<Instant>; 2]| Some(delivered?.duration_since(received?));
        Some(duration(self.directions[0])? + duration(self.directions[1])?)
    }
}

impl RequestDelays {
    pub(super) fn received(&self, direction: usize, packet: &[u8], at: Instant) {
        self.update(direction, packet, |request| {
            let ended = request.delay().filter(|_| direction == 0);
            if ended.is_some() {
                *request = Request::default();
            }
            request.directions[direction] = [Some(at), None];
            ended
        });
    }

    pub(super) fn delivered(&self, direction: usize, packet: &[u8], at: Instant) {
        self.update(direction, packet, |request| {
            request.directions[direction][1] = Some(at);
            None
        });
    }

    /// Returns the median delay of requests that were followed by another one, since the previous
    /// call.
    pub(super) fn median(&self) -> Duration {
        let mut all = std::mem::take(&mut *self.delays.lock().unwrap());
        all.sort_unstable();
        self.in_flight.lock().unwrap().clear();
        all[all.len() / 2]
    }

    fn update(&self, direction: usize, packet: &[u8], update: impl FnOnce(&mut Request) -> Option<Duration>) {
        let Some(segment) = segment(packet).filter(|segment| !segment.data.is_empty()) else { return };
        let ended = update(self.in_flight.lock().unwrap().entry(segment.ports[direction]).or_default());
        self.delays.lock().unwrap().extend(ended);
    }
}
