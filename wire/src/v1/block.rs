//! Columns of bios and requests; a pair is one of each.

use super::Malformed;
use super::column::Delta;
use super::columns::columns;
use super::decode_tables::DecodeTables;
use super::encode_tables::EncodeTables;
use super::ids::IdWriter;
use super::message::{BioEvents, RequestEvents};
use crate::clock::MonotonicNs;
use crate::event::{BioEvent, BlockOp, BlockStatus, PairEvent, RequestEvent, Submitter};
use crate::ids::{Sector, SpanId};

const SUBMITTER: u32 = 1 << 0;
const ROOT_IS_SUBMITTER: u32 = 1 << 1;
const REQUEST: u32 = 1 << 2;
const REQUEST_OF_PAIR: u32 = 1 << 3;
const FIRST: u32 = 1 << 4;
const SPLIT: u32 = 1 << 5;
const PAGE_ORIGIN: u32 = 1 << 6;
const OF_OTHER_PROGRAM: u32 = 1 << 7;

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

fn flag_if(condition: bool, flag: u32) -> u32 {
    if condition { flag } else { 0 }
}

/// Writer of bio columns.
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
    /// Appends a bio; `pair` is the request of its pair, if any.
    pub(super) fn put(&mut self, bio: &BioEvent, pair: Option<&RequestEvent>, tables: &mut EncodeTables<'_>) {
        let columns = &mut self.columns;
        let mut flags = flag_if(bio.first, FIRST)
            | flag_if(bio.split, SPLIT)
            | flag_if(bio.has_page_origin, PAGE_ORIGIN)
            | flag_if(bio.of_other_program, OF_OTHER_PROGRAM);
        tables.origins.put(&mut self.span, bio.span.0);
        let parent = match bio.submitter {
            Submitter::Span(parent) => {
                flags |= SUBMITTER;
                tables.origins.put(&mut self.submitter, parent.0);
                parent
            }
            Submitter::Kernel => bio.span,
        };
        match parent == bio.root {
            true => flags |= ROOT_IS_SUBMITTER,
            false => tables.origins.put(&mut self.root, bio.root.0),
        }
        columns.task.push(tables.tasks.intern(bio.task));
        match bio.request {
            Some(request) if pair.is_some_and(|pair| pair.span == request) => flags |= REQUEST_OF_PAIR,
            Some(request) => {
                flags |= REQUEST;
                tables.origins.put(&mut self.request, request.0);
            }
            None => {}
        }
        columns.flags.push(flags);
        columns.duration.push(bio.end.0.wrapping_sub(bio.queue.0));
        columns.device.push(tables.devices.intern(bio.device.to_kernel()));
        columns.sector.push(self.sector.encode(bio.sector.0));
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

/// Writer of request columns.
#[derive(Default)]
pub(super) struct RequestWriter {
    columns: RequestEvents,
    span: IdWriter,
    parent: IdWriter,
    root: IdWriter,
    sector: Delta,
}

impl RequestWriter {
    /// Appends a request; `pair` is the bio of its pair, if any.
    pub(super) fn put(
        &mut self,
        request: &RequestEvent,
        pair: Option<&BioEvent>,
        tables: &mut EncodeTables<'_>,
    ) {
        let columns = &mut self.columns;
        let mut flags = flag_if(request.plugged, PLUGGED)
            | flag_if(request.requeued, REQUEUED)
            | flag_if(request.flush_sequence, FLUSH_SEQUENCE);
        tables.origins.put(&mut self.span, request.span.0);
        match request.parent {
            Some(parent) if pair.is_some_and(|pair| pair.span == parent) => flags |= PARENT_OF_PAIR,
            Some(parent) => {
                flags |= PARENT;
                tables.origins.put(&mut self.parent, parent.0);
            }
            None => {}
        }
        match pair.is_some_and(|pair| pair.root == request.root) {
            true => flags |= ROOT_OF_PAIR,
            false => tables.origins.put(&mut self.root, request.root.0),
        }
        match pair.is_some_and(|pair| pair.task == request.task) {
            true => flags |= TASK_OF_PAIR,
            false => columns.task.push(tables.tasks.intern(request.task)),
        }
        columns.duration.push(request.complete.0.wrapping_sub(request.start.0));
        let after = |time: MonotonicNs| time.0.wrapping_sub(request.start.0) as i64;
        columns.insert.extend(request.insert.map(after));
        columns.issue.extend(request.issue.map(after));
        flags |= flag_if(request.insert.is_some(), INSERTED) | flag_if(request.issue.is_some(), ISSUED);
        columns.device.push(tables.devices.intern(request.device.to_kernel()));
        columns.sector.push(self.sector.encode(request.sector.0));
        columns.bytes.push(request.bytes);
        columns.op.push(request.op.0);
        columns.status.push(request.status.0.into());
        columns.bios.push(request.bios.into());
        columns.tag.extend(request.tag);
        columns.flags.push(flags | flag_if(request.tag.is_some(), TAGGED));
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
        flags: u32, task: u32, duration: u64, device: u32, sector: i64, bytes: u32, op: u32, status: u32,
    } ids { span, submitter, root, request }
}

columns! {
    RequestColumns of RequestEvents {
        flags: u32, task: u32, duration: u64, insert: i64, issue: i64, device: u32, sector: i64, bytes: u32, op: u32,
        status: u32, bios: u32, tag: u32,
    } ids { span, parent, root }
}

/// Reader of bio and request columns.
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

    /// Reads the next pair. The bio precedes its request in the columns too, but its request id is
    /// that of the request.
    pub(super) fn pair(
        &mut self,
        time: MonotonicNs,
        tables: &DecodeTables<'_>,
    ) -> Result<PairEvent, Malformed> {
        let (mut bio, of_pair) = self.next_bio(time, tables)?;
        let request = self.request(time, Some(&bio), tables)?;
        if of_pair {
            bio.request = Some(request.span);
        }
        Ok(PairEvent { bio, request })
    }

    /// Reads the next bio.
    pub(super) fn bio(
        &mut self,
        time: MonotonicNs,
        tables: &DecodeTables<'_>,
    ) -> Result<BioEvent, Malformed> {
        let (bio, of_pair) = self.next_bio(time, tables)?;
        if of_pair {
            return Err(self.bios.flags.refuse(REQUEST_OF_PAIR.into()));
        }
        Ok(bio)
    }

    /// Reads the next bio and whether its request is that of its pair.
    fn next_bio(
        &mut self,
        time: MonotonicNs,
        tables: &DecodeTables<'_>,
    ) -> Result<(BioEvent, bool), Malformed> {
        let columns = &mut self.bios;
        let flags = *columns.flags.next()?;
        let has = |flag: u32| flags & flag != 0;
        let span = columns.span.next(&tables.ids)?;
        let submitter = columns.submitter.next_if(has(SUBMITTER), &tables.ids)?;
        let root = match columns.root.next_if(!has(ROOT_IS_SUBMITTER), &tables.ids)? {
            Some(root) => root,
            None => submitter.unwrap_or(span),
        };
        let task = tables.task(columns.task.next()?, "BioEvents.task")?;
        let request = columns.request.next_if(has(REQUEST), &tables.ids)?;
        let took = *columns.duration.next()?;
        let device = tables.device(columns.device.next()?, "BioEvents.device")?;
        let sector = Sector(self.bio_sector.decode(*columns.sector.next()?));
        let bio = BioEvent {
            span: SpanId(span),
            submitter: submitter.map_or(Submitter::Kernel, |parent| Submitter::Span(SpanId(parent))),
            root: SpanId(root),
            task,
            request: request.map(SpanId),
            first: has(FIRST),
            split: has(SPLIT),
            has_page_origin: has(PAGE_ORIGIN),
            of_other_program: has(OF_OTHER_PROGRAM),
            queue: MonotonicNs(time.0.wrapping_sub(took)),
            end: time,
            device,
            sector,
            bytes: *columns.bytes.next()?,
            op: BlockOp(*columns.op.next()?),
            status: status(*columns.status.next()?, "BioEvents.status")?,
        };
        Ok((bio, has(REQUEST_OF_PAIR)))
    }

    /// Reads the next request; `pair` is the bio of its pair, if any.
    pub(super) fn request(
        &mut self,
        time: MonotonicNs,
        pair: Option<&BioEvent>,
        tables: &DecodeTables<'_>,
    ) -> Result<RequestEvent, Malformed> {
        let columns = &mut self.requests;
        let flags = *columns.flags.next()?;
        let has = |flag: u32| flags & flag != 0;
        // A reference to the pair is invalid outside of a pair.
        let of_pair = |flag: u32| match pair {
            Some(bio) => Ok(has(flag).then_some(bio)),
            None if has(flag) => Err(Malformed::Value { column: "RequestEvents.flags", value: flags.into() }),
            None => Ok(None),
        };
        let span = SpanId(columns.span.next(&tables.ids)?);
        let parent = match of_pair(PARENT_OF_PAIR)? {
            Some(bio) => Some(bio.span),
            None => columns.parent.next_if(has(PARENT), &tables.ids)?.map(SpanId),
        };
        let root = match of_pair(ROOT_OF_PAIR)? {
            Some(bio) => bio.root,
            None => SpanId(columns.root.next(&tables.ids)?),
        };
        let task = match of_pair(TASK_OF_PAIR)? {
            Some(bio) => bio.task,
            None => tables.task(columns.task.next()?, "RequestEvents.task")?,
        };
        let start = MonotonicNs(time.0.wrapping_sub(*columns.duration.next()?));
        let after = |by: &i64| MonotonicNs(start.0.wrapping_add(*by as u64));
        let device = tables.device(columns.device.next()?, "RequestEvents.device")?;
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
            sector: Sector(self.request_sector.decode(*columns.sector.next()?)),
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
