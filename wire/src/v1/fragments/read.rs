//! Decoder of trace fragments. It trusts no byte and checks each value.

use std::borrow::Cow;
use std::sync::Arc;

use prost::Message;

use super::remote_link;
use super::trace_id::trace_id;
use super::{
    CHILD, COMPLETE, ENDPOINT, ERROR, FORWARDED, KIND, LATE, OTHER_TRACE, PARENT_ID, PARENT_INDEX,
    PENDING_PARENT, REMOTE, REPARENTED, ROOT, SAMPLED, SAMPLED_BY_APPLICATION, UNLINKED,
};
use crate::clock::{DurationNs, WallclockNs};
use crate::fragment::{
    FragmentBatch, FragmentKind, FragmentOrigin, Incarnation, Sampled, StageId, TraceFragment,
};
use crate::ids::{SpanId, TraceId};
use crate::remote_link::RemoteLink;
use crate::span::{Span, SpanKind, SpanLink, TagValue};
use crate::v1::column::{Column, Delta};
use crate::v1::columns::columns;
use crate::v1::message::{self, Annotations, Fragments, Links, Spans, Tags};
use crate::v1::{Malformed, VERSION};

/// Maximum total size of copied span names and tag keys of a record. A Kafka record is 1 MiB by
/// default, and our records grow to 5 times their length; this is 64 times.
pub const COPIED_BYTES_MAX: usize = 64 << 20;

/// Decodes a record of `blkkin.spans`, `blkkin.traces` or `blkkin.links`.
pub fn decode_fragments(bytes: &[u8]) -> Result<FragmentBatch, Malformed> {
    let message =
        message::FragmentBatch::decode(bytes).map_err(|error| Malformed::Protobuf(error.to_string()))?;
    if message.version != VERSION {
        return Err(Malformed::Version(message.version));
    }
    let stage = match message::Stage::try_from(message.stage) {
        Ok(message::Stage::Join) => StageId::Join,
        Ok(message::Stage::Assemble) => StageId::Assemble,
        Ok(message::Stage::Link) => StageId::Link,
        Ok(message::Stage::Unspecified) | Err(_) => {
            return Err(Malformed::Value { column: "FragmentBatch.stage", value: message.stage as u64 });
        }
    };
    let mut reader = Reader {
        strings: StringTable {
            strings: message.strings.iter().map(|string| Arc::from(string.as_str())).collect(),
            copy_budget: COPIED_BYTES_MAX,
        },
        fragments: FragmentColumns::new(&message.fragments),
        spans: SpanColumns::new(&message.spans),
        annotations: AnnotationColumns::new(&message.annotations),
        tags: TagColumns::new(&message.tags),
        links: LinkColumns::new(&message.links),
        high_low: Column::new(&message.endpoints, "FragmentBatch.endpoints"),
        hops: Column::new(&message.reparented, "FragmentBatch.reparented"),
        start: Delta::default(),
    };
    let fragments = message.fragments.flags.iter().map(|_| reader.fragment()).collect::<Result<_, _>>()?;
    reader.end()?;
    let from =
        FragmentOrigin { stage, partition: message.partition, incarnation: Incarnation(message.incarnation) };
    Ok(FragmentBatch { origin: from, first: message.first, fragments })
}

struct StringTable {
    strings: Vec<Arc<str>>,
    /// Remaining budget in bytes for copies.
    copy_budget: usize,
}

impl StringTable {
    fn shared(&self, index: u32, column: &'static str) -> Result<Arc<str>, Malformed> {
        self.strings.get(index as usize).cloned().ok_or(Malformed::Value { column, value: index.into() })
    }

    fn owned(&mut self, index: u32, column: &'static str) -> Result<Cow<'static, str>, Malformed> {
        let refuse = || Malformed::Value { column, value: index.into() };
        let string = self.strings.get(index as usize).ok_or_else(refuse)?;
        self.copy_budget = self.copy_budget.checked_sub(string.len()).ok_or_else(refuse)?;
        Ok(Cow::Owned(string.as_ref().to_owned()))
    }
}

columns! {
    FragmentColumns of Fragments {
        flags: u32, trace_high: u64, trace_low: u64, spans: u32, rule: u32, one_in: u32, hops: u32,
    } ids {}
}

columns! {
    SpanColumns of Spans {
        flags: u32, id: u64, parent_index: u32, parent_id: u64, trace_high: u64, trace_low: u64, name: u32,
        service: u32, remote_service: u32, start: i64, duration: u64, error: u32, annotations: u32, tags: u32, links: u32,
    } ids {}
}

columns! {
    AnnotationColumns of Annotations { time: i64, value: u32 } ids {}
}

columns! {
    TagColumns of Tags { key: u32, value: u32, number: i64 } ids {}
}

columns! {
    LinkColumns of Links { trace_high: u64, trace_low: u64, span: u64, relation: u32 } ids {}
}

/// Reader of all columns.
struct Reader<'a> {
    strings: StringTable,
    fragments: FragmentColumns<'a>,
    spans: SpanColumns<'a>,
    annotations: AnnotationColumns<'a>,
    tags: TagColumns<'a>,
    links: LinkColumns<'a>,
    high_low: Column<'a, message::LinkEndpoint>,
    hops: Column<'a, message::Reparented>,
    start: Delta,
}

impl Reader<'_> {
    fn end(&self) -> Result<(), Malformed> {
        self.fragments.end()?;
        self.spans.end()?;
        self.annotations.end()?;
        self.tags.end()?;
        self.links.end()?;
        self.high_low.end()?;
        self.hops.end()
    }

    fn fragment(&mut self) -> Result<TraceFragment, Malformed> {
        let flags = *self.fragments.flags.next()?;
        let trace = trace_id(self.fragments.trace_high.next()?, self.fragments.trace_low.next()?);
        let count = *self.fragments.spans.next()?;
        let sampled = if flags & SAMPLED != 0 {
            let rule = self.strings.owned(*self.fragments.rule.next()?, "Fragments.rule")?;
            Some(Sampled { rule, one_in: *self.fragments.one_in.next()? })
        } else {
            None
        };
        let remote_link = self.remote_link(flags, trace)?;
        Ok(TraceFragment {
            trace,
            spans: self.spans(count, trace)?,
            kind: if flags & LATE != 0 { FragmentKind::Late } else { FragmentKind::First },
            complete: flags & COMPLETE != 0,
            sampled,
            sampled_by_application: flags & SAMPLED_BY_APPLICATION != 0,
            remote_link,
        })
    }

    fn remote_link(&mut self, flags: u32, trace: TraceId) -> Result<RemoteLink, Malformed> {
        let strings = &mut self.strings;
        let string = |index, column| strings.shared(index, column).map(|string| Box::from(&*string));
        Ok(match flags & (ROOT | CHILD | PENDING_PARENT | ENDPOINT | REPARENTED | UNLINKED | FORWARDED) {
            0 => RemoteLink::None,
            ROOT => RemoteLink::Root,
            CHILD => RemoteLink::Child,
            PENDING_PARENT => RemoteLink::PendingParent,
            ENDPOINT => RemoteLink::Endpoint(
                remote_link::decode_endpoint(self.high_low.next()?, trace, string)?.into(),
            ),
            REPARENTED => {
                RemoteLink::Reparented(remote_link::decode_reparented(self.hops.next()?, string)?.into())
            }
            UNLINKED => RemoteLink::Unlinked,
            FORWARDED => {
                let hops = *self.fragments.hops.next()?;
                let refuse = |_| Malformed::Value { column: "Fragments.hops", value: hops.into() };
                RemoteLink::Forwarded(u8::try_from(hops).map_err(refuse)?)
            }
            _ => return Err(self.fragments.flags.refuse(flags.into())),
        })
    }

    /// Decodes spans. A parent can follow its child, so parent indices are resolved at the end.
    fn spans(&mut self, count: u32, trace: TraceId) -> Result<Vec<Span>, Malformed> {
        let (mut spans, mut parents) = (Vec::new(), Vec::new());
        for index in 0..count {
            let flags = *self.spans.flags.next()?;
            if flags & PARENT_INDEX != 0 {
                parents.push((index, *self.spans.parent_index.next()?));
            }
            spans.push(self.span(flags, trace)?);
        }
        for (child, parent) in parents {
            let refuse = Malformed::Value { column: "Spans.parent_index", value: parent.into() };
            let id = spans.get(parent as usize).map(|span| span.id).ok_or(refuse)?;
            if let Some(child) = spans.get_mut(child as usize) {
                child.parent = Some(id);
            }
        }
        Ok(spans)
    }

    fn span(&mut self, flags: u32, trace: TraceId) -> Result<Span, Malformed> {
        let columns = &mut self.spans;
        let parent_id = columns.parent_id.next_if(flags & PARENT_ID != 0)?;
        let remote = columns.remote_service.next_if(flags & REMOTE != 0)?;
        let error = columns.error.next_if(flags & ERROR != 0)?;
        let trace = match flags & OTHER_TRACE {
            0 => trace,
            _ => trace_id(columns.trace_high.next()?, columns.trace_low.next()?),
        };
        let start = WallclockNs(self.start.decode(*columns.start.next()?));
        let counts = [columns.annotations.next()?, columns.tags.next()?, columns.links.next()?];
        let strings = &mut self.strings;
        Ok(Span {
            trace,
            id: SpanId(*columns.id.next()?),
            parent: parent_id.copied().map(SpanId),
            name: strings.owned(*columns.name.next()?, "Spans.name")?,
            service: strings.shared(*columns.service.next()?, "Spans.service")?,
            remote_service: remote
                .map(|string| strings.shared(*string, "Spans.remote_service"))
                .transpose()?,
            kind: match flags & KIND {
                0 => SpanKind::Local,
                1 => SpanKind::Client,
                2 => SpanKind::Server,
                _ => return Err(columns.flags.refuse(flags.into())),
            },
            start,
            duration: DurationNs(*columns.duration.next()?),
            error: error.map(|string| strings.owned(*string, "Spans.error")).transpose()?,
            annotations: self.annotations(*counts[0], start)?,
            tags: self.tags(*counts[1])?,
            links: self.links(*counts[2])?,
        })
    }

    fn annotations(
        &mut self,
        count: u32,
        start: WallclockNs,
    ) -> Result<Vec<(WallclockNs, Cow<'static, str>)>, Malformed> {
        let (columns, strings) = (&mut self.annotations, &mut self.strings);
        let one = |_| {
            let time = WallclockNs(start.0.wrapping_add(*columns.time.next()? as u64));
            Ok((time, strings.owned(*columns.value.next()?, "Annotations.value")?))
        };
        (0..count).map(one).collect()
    }

    fn tags(&mut self, count: u32) -> Result<Vec<(Cow<'static, str>, TagValue)>, Malformed> {
        let (columns, strings) = (&mut self.tags, &mut self.strings);
        let one = |_| {
            let key = strings.owned(*columns.key.next()?, "Tags.key")?;
            let value = match columns.value.next()?.checked_sub(1) {
                None => TagValue::Number(*columns.number.next()?),
                Some(index) => TagValue::Shared(strings.shared(index, "Tags.value")?),
            };
            Ok((key, value))
        };
        (0..count).map(one).collect()
    }

    fn links(&mut self, count: u32) -> Result<Vec<SpanLink>, Malformed> {
        let (columns, strings) = (&mut self.links, &mut self.strings);
        let one = |_| {
            Ok(SpanLink {
                trace: trace_id(columns.trace_high.next()?, columns.trace_low.next()?),
                span: SpanId(*columns.span.next()?),
                relation: strings.owned(*columns.relation.next()?, "Links.relation")?,
            })
        };
        (0..count).map(one).collect()
    }
}
