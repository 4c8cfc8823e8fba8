//! Bios and requests as columns; a pair is one of each.

use super::Malformed;
use super::column::{Delta, columns};
use super::ids::IdWriter;
use super::message::{BioEvents, RequestEvents};
use super::read::Known;
use super::write::Shared;
use crate::clock::MonotonicNs;
use crate::event::{BioEvent, BlockOp, BlockStatus, PairEvent, RequestEvent, Submitter};
use crate::ids::{Sector, SpanId};

const SUBMITTED: u32 = 1 << 0;
const ROOT_ABOVE: u32 = 1 << 1;
const CARRIED: u32 = 1 << 2;
const CARRIED_BY_PAIR: u32 = 1 << 3;
const FIRST: u32 = 1 << 4;
const SPLIT: u32 = 1 << 5;

const PARENT: u32 = 1 << 0;
const PARENT_OF_PAIR: u32 = 1 << 1;
const ROOT_OF_PAIR: u32 = 1 << 2;
const TASK_OF_PAIR: u32 = 1 << 3;
const INSERTED: u32 = 1 << 4;
const ISSUED: u32 = 1 << 5;
const TAGGED: u32 = 1 << 6;
const PLUGGED: u32 = 1 << 7;
const REQUEUED: u32 = 1 << 8;
const FLUSH_SEQUENCE: u32 = 1 << 9;

fn set(there: bool, flag: u32) -> u32 {
    if there { flag } else { 0 }
}

/// Bios while they are written.
#[derive(Default)]
pub(super) struct BioWriter {
    columns: BioEvents,
    span: IdWriter,
    submitter: IdWriter,
    root: IdWriter,
    request: IdWriter,
    sector: Delta,
}

impl BioWriter {
    /// With the other half, if it is of a pair.
    pub(super) fn put(&mut self, bio: &BioEvent, pair: Option<&RequestEvent>, shared: &mut Shared<'_>) {
        let columns = &mut self.columns;
        let mut flags = set(bio.first, FIRST) | set(bio.split, SPLIT);
        shared.origins.put(&mut self.span, bio.span.0);
        let above = match bio.submitter {
            Submitter::Span(above) => {
                flags |= SUBMITTED;
                shared.origins.put(&mut self.submitter, above.0);
                above
            }
            Submitter::Kernel => bio.span,
        };
        match above == bio.root {
            true => flags |= ROOT_ABOVE,
            false => shared.origins.put(&mut self.root, bio.root.0),
        }
        columns.task.push(shared.tasks.place(bio.task));
        match bio.request {
            Some(request) if pair.is_some_and(|pair| pair.span == request) => flags |= CARRIED_BY_PAIR,
            Some(request) => {
                flags |= CARRIED;
                shared.origins.put(&mut self.request, request.0);
            }
            None => {}
        }
        columns.flags.push(flags);
        columns.took.push(bio.end.0.wrapping_sub(bio.queue.0));
        columns.device.push(shared.devices.place(bio.device.to_kernel()));
        columns.sector.push(self.sector.of(bio.sector.0));
        columns.bytes.push(bio.bytes);
        columns.op.push(bio.op.0);
        columns.status.push(bio.status.0.into());
    }

    pub(super) fn end(self) -> BioEvents {
        BioEvents {
            span: self.span.end(),
            submitter: self.submitter.end(),
            root: self.root.end(),
            request: self.request.end(),
            ..self.columns
        }
    }
}

/// Requests while they are written.
#[derive(Default)]
pub(super) struct RequestWriter {
    columns: RequestEvents,
    span: IdWriter,
    parent: IdWriter,
    root: IdWriter,
    sector: Delta,
}

impl RequestWriter {
    /// With the other half, if it is of a pair.
    pub(super) fn put(&mut self, request: &RequestEvent, pair: Option<&BioEvent>, shared: &mut Shared<'_>) {
        let columns = &mut self.columns;
        let mut flags = set(request.plugged, PLUGGED)
            | set(request.requeued, REQUEUED)
            | set(request.flush_sequence, FLUSH_SEQUENCE);
        shared.origins.put(&mut self.span, request.span.0);
        match request.parent {
            Some(parent) if pair.is_some_and(|pair| pair.span == parent) => flags |= PARENT_OF_PAIR,
            Some(parent) => {
                flags |= PARENT;
                shared.origins.put(&mut self.parent, parent.0);
            }
            None => {}
        }
        match pair.is_some_and(|pair| pair.root == request.root) {
            true => flags |= ROOT_OF_PAIR,
            false => shared.origins.put(&mut self.root, request.root.0),
        }
        match pair.is_some_and(|pair| pair.task == request.task) {
            true => flags |= TASK_OF_PAIR,
            false => columns.task.push(shared.tasks.place(request.task)),
        }
        columns.took.push(request.complete.0.wrapping_sub(request.start.0));
        let after = |time: MonotonicNs| time.0.wrapping_sub(request.start.0) as i64;
        columns.insert.extend(request.insert.map(after));
        columns.issue.extend(request.issue.map(after));
        flags |= set(request.insert.is_some(), INSERTED) | set(request.issue.is_some(), ISSUED);
        columns.device.push(shared.devices.place(request.device.to_kernel()));
        columns.sector.push(self.sector.of(request.sector.0));
        columns.bytes.push(request.bytes);
        columns.op.push(request.op.0);
        columns.status.push(request.status.0.into());
        columns.bios.push(request.bios.into());
        columns.tag.extend(request.tag);
        columns.flags.push(flags | set(request.tag.is_some(), TAGGED));
    }

    pub(super) fn end(self) -> RequestEvents {
        RequestEvents {
            span: self.span.end(),
            parent: self.parent.end(),
            root: self.root.end(),
            ..self.columns
        }
    }
}

columns! {
    BioColumns of BioEvents {
        flags: u32, task: u32, took: u64, device: u32, sector: i64, bytes: u32, op: u32, status: u32,
    } ids { span, submitter, root, request }
}

columns! {
    RequestColumns of RequestEvents {
        flags: u32, task: u32, took: u64, insert: i64, issue: i64, device: u32, sector: i64, bytes: u32, op: u32,
        status: u32, bios: u32, tag: u32,
    } ids { span, parent, root }
}

/// Both while they are read.
pub(super) struct BlockReader<'a> {
    bios: BioColumns<'a>,
    requests: RequestColumns<'a>,
    bio_sector: Delta,
    request_sector: Delta,
}

impl<'a> BlockReader<'a> {
    pub(super) fn new(bios: &'a BioEvents, requests: &'a RequestEvents) -> Self {
        BlockReader {
            bios: BioColumns::new(bios),
            requests: RequestColumns::new(requests),
            bio_sector: Delta::default(),
            request_sector: Delta::default(),
        }
    }

    pub(super) fn end(&self) -> Result<(), Malformed> {
        self.bios.end()?;
        self.requests.end()
    }

    /// The next pair. The bio is read first and its request comes after it in the bytes too, but its id is the request's.
    pub(super) fn pair(&mut self, time: MonotonicNs, known: &Known<'_>) -> Result<PairEvent, Malformed> {
        let (mut bio, of_pair) = self.half(time, known)?;
        let request = self.request(time, Some(&bio), known)?;
        if of_pair {
            bio.request = Some(request.span);
        }
        Ok(PairEvent { bio, request })
    }

    /// The next bio.
    pub(super) fn bio(&mut self, time: MonotonicNs, known: &Known<'_>) -> Result<BioEvent, Malformed> {
        let (bio, of_pair) = self.half(time, known)?;
        if of_pair {
            return Err(self.bios.flags.refuse(CARRIED_BY_PAIR.into()));
        }
        Ok(bio)
    }

    /// The next bio, and whether its request is that of its pair.
    fn half(&mut self, time: MonotonicNs, known: &Known<'_>) -> Result<(BioEvent, bool), Malformed> {
        let columns = &mut self.bios;
        let flags = *columns.flags.next()?;
        let has = |flag: u32| flags & flag != 0;
        let span = columns.span.next(&known.ids)?;
        let submitter = columns.submitter.next_if(has(SUBMITTED), &known.ids)?;
        let root = match columns.root.next_if(!has(ROOT_ABOVE), &known.ids)? {
            Some(root) => root,
            None => submitter.unwrap_or(span),
        };
        let task = known.task(columns.task.next()?, "BioEvents.task")?;
        let request = columns.request.next_if(has(CARRIED), &known.ids)?;
        let took = *columns.took.next()?;
        let device = known.device(columns.device.next()?, "BioEvents.device")?;
        let sector = Sector(self.bio_sector.undo(*columns.sector.next()?));
        let bio = BioEvent {
            span: SpanId(span),
            submitter: submitter.map_or(Submitter::Kernel, |above| Submitter::Span(SpanId(above))),
            root: SpanId(root),
            task,
            request: request.map(SpanId),
            first: has(FIRST),
            split: has(SPLIT),
            queue: MonotonicNs(time.0.wrapping_sub(took)),
            end: time,
            device,
            sector,
            bytes: *columns.bytes.next()?,
            op: BlockOp(*columns.op.next()?),
            status: status(*columns.status.next()?, "BioEvents.status")?,
        };
        Ok((bio, has(CARRIED_BY_PAIR)))
    }

    /// The next request; with the other half, if it is of a pair.
    pub(super) fn request(
        &mut self,
        time: MonotonicNs,
        pair: Option<&BioEvent>,
        known: &Known<'_>,
    ) -> Result<RequestEvent, Malformed> {
        let columns = &mut self.requests;
        let flags = *columns.flags.next()?;
        let has = |flag: u32| flags & flag != 0;
        // What is said to be the pair's is an error where there is none.
        let of_pair = |flag: u32| match pair {
            Some(bio) => Ok(has(flag).then_some(bio)),
            None if has(flag) => Err(Malformed::Value { column: "RequestEvents.flags", value: flags.into() }),
            None => Ok(None),
        };
        let span = SpanId(columns.span.next(&known.ids)?);
        let parent = match of_pair(PARENT_OF_PAIR)? {
            Some(bio) => Some(bio.span),
            None => columns.parent.next_if(has(PARENT), &known.ids)?.map(SpanId),
        };
        let root = match of_pair(ROOT_OF_PAIR)? {
            Some(bio) => bio.root,
            None => SpanId(columns.root.next(&known.ids)?),
        };
        let task = match of_pair(TASK_OF_PAIR)? {
            Some(bio) => bio.task,
            None => known.task(columns.task.next()?, "RequestEvents.task")?,
        };
        let start = MonotonicNs(time.0.wrapping_sub(*columns.took.next()?));
        let after = |by: &i64| MonotonicNs(start.0.wrapping_add(*by as u64));
        let device = known.device(columns.device.next()?, "RequestEvents.device")?;
        let bios = *columns.bios.next()?;
        Ok(RequestEvent {
            span,
            parent,
            root,
            task,
            start,
            insert: columns.insert.next_if(has(INSERTED))?.map(after),
            issue: columns.issue.next_if(has(ISSUED))?.map(after),
            complete: time,
            device,
            sector: Sector(self.request_sector.undo(*columns.sector.next()?)),
            bytes: *columns.bytes.next()?,
            op: BlockOp(*columns.op.next()?),
            status: status(*columns.status.next()?, "RequestEvents.status")?,
            bios: u16::try_from(bios).map_err(|_| columns.bios.refuse(bios.into()))?,
            tag: columns.tag.next_if(has(TAGGED))?.copied(),
            plugged: has(PLUGGED),
            requeued: has(REQUEUED),
            flush_sequence: has(FLUSH_SEQUENCE),
        })
    }
}

fn status(value: u32, column: &'static str) -> Result<BlockStatus, Malformed> {
    u8::try_from(value).map(BlockStatus).map_err(|_| Malformed::Value { column, value: value.into() })
}
