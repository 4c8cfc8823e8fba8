//! How long a link took of each request: of what asks, and of the last segment of what answers.
//!
//! *In*: each packet as it came, and as it was given on. *Out*: a sum for each request of a connection that has one at a time.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::segment;

/// By the asker's port.
#[derive(Default)]
pub(super) struct Account {
    under_way: Mutex<HashMap<u16, Request>>,
    took: Mutex<Vec<Duration>>,
}

/// Of what asks, and of the last that answers: when it came, and when it was given on.
#[derive(Clone, Copy, Default)]
struct Request {
    ways: [[Option<Instant>; 2]; 2],
}

impl Request {
    fn took(&self) -> Option<Duration> {
        let way = |[came, given]: [Option<Instant>; 2]| Some(given?.duration_since(came?));
        Some(way(self.ways[0])? + way(self.ways[1])?)
    }
}

impl Account {
    pub(super) fn came(&self, direction: usize, packet: &[u8], at: Instant) {
        self.note(direction, packet, |request| {
            let over = request.took().filter(|_| direction == 0);
            if over.is_some() {
                *request = Request::default();
            }
            request.ways[direction] = [Some(at), None];
            over
        });
    }

    pub(super) fn given(&self, direction: usize, packet: &[u8], at: Instant) {
        self.note(direction, packet, |request| {
            request.ways[direction][1] = Some(at);
            None
        });
    }

    /// Of those that were followed by another one, since it was asked last: the median.
    pub(super) fn median(&self) -> Duration {
        let mut all = std::mem::take(&mut *self.took.lock().unwrap());
        all.sort_unstable();
        self.under_way.lock().unwrap().clear();
        all[all.len() / 2]
    }

    fn note(&self, direction: usize, packet: &[u8], note: impl FnOnce(&mut Request) -> Option<Duration>) {
        let Some(segment) = segment(packet).filter(|segment| !segment.data.is_empty()) else { return };
        let over = note(self.under_way.lock().unwrap().entry(segment.ports[direction]).or_default());
        self.took.lock().unwrap().extend(over);
    }
}
