//! Time of a submission at the device and in the block layer.
//!
//! *In*: a trace with submissions. *Out*: for each, its time by class, as in [`super`]: device, then
//! block. *Invariant*: only bios that name the submission, and the requests that carried them, count.

use blkkin_wire::async_io::AsyncIoEvent;
use blkkin_wire::clock::DurationNs;
use blkkin_wire::event::{BioEvent, RequestEvent, Submitter};
use blkkin_wire::ids::SpanId;

use super::interval_set::IntervalSet;
use super::phases::at_device;
use crate::trace::Trace;
use crate::trace::id_map::SpanMap;

/// Bios by submitter, and requests by span and by first bio, of one trace.
pub struct SubmissionTimes<'a> {
    bios: SpanMap<Vec<&'a BioEvent>>,
    requests: SpanMap<&'a RequestEvent>,
    by_first_bio: SpanMap<Vec<&'a RequestEvent>>,
}

impl<'a> SubmissionTimes<'a> {
    /// Creates the index of a trace.
    pub fn of(trace: &'a Trace) -> Self {
        let mut index = SubmissionTimes {
            bios: SpanMap::default(),
            requests: SpanMap::default(),
            by_first_bio: SpanMap::default(),
        };
        for bio in &trace.bios {
            if let Submitter::Span(submitter) = bio.submitter {
                index.bios.entry(submitter).or_default().push(bio);
            }
        }
        let merged = trace.merged_into.iter().map(|link| &link.request);
        for request in trace.requests.iter().chain(merged) {
            index.requests.insert(request.span, request);
            if let Some(bio) = request.parent {
                index.by_first_bio.entry(bio).or_default().push(request);
            }
        }
        index
    }

    /// Returns the time at the device, and in the block layer before and after it.
    pub fn device_and_block(&self, io: &AsyncIoEvent) -> (DurationNs, DurationNs) {
        let bios = self.bios.get(&io.span).map(Vec::as_slice).unwrap_or_default();
        let mut intervals = IntervalSet::new(io.start, io.end);
        let requests: Vec<&RequestEvent> = bios.iter().flat_map(|bio| self.requests_of(bio)).collect();
        requests.iter().for_each(|request| intervals.add(at_device(request), request.complete));
        let device = intervals.take_growth();
        requests.iter().for_each(|request| intervals.add(request.start, request.complete));
        bios.iter().for_each(|bio| intervals.add(bio.queue, bio.end));
        (device, intervals.take_growth())
    }

    fn requests_of(&self, bio: &BioEvent) -> impl Iterator<Item = &'a RequestEvent> {
        let own: &[SpanId] = bio.request.as_slice();
        let carried = own.iter().filter_map(|request| self.requests.get(request).copied());
        let parts = self.by_first_bio.get(&bio.span).into_iter().flatten().copied();
        carried
            .chain(parts.filter(move |part| Some(part.span) != bio.request))
            .collect::<Vec<_>>()
            .into_iter()
    }
}
