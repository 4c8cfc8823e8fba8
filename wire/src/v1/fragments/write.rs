//! Encoder of trace fragments.

use std::collections::HashMap;

use super::dictionary::{Dictionary, encoded_bytes};
use super::remote_link;
use super::trace_id::high_low;
use super::{
    CHILD, COMPLETE, ENDPOINT, ERROR, FORWARDED, LATE, OTHER_TRACE, PARENT_ID, PARENT_INDEX, PENDING_PARENT,
    REMOTE, REPARENTED, ROOT, SAMPLED, SAMPLED_BY_APPLICATION, UNLINKED,
};
use crate::fragment::{FragmentBatch, FragmentKind, FragmentOrigin, StageId, TraceFragment};
use crate::ids::SpanId;
use crate::remote_link::RemoteLink;
use crate::span::{Span, SpanKind, TagValue};
use crate::v1::VERSION;
use crate::v1::column::Delta;
use crate::v1::message;
use crate::v1::packed::{Packed, packed_message};

/// Encodes the fragments. The result is not compressed; the transport compresses.
pub fn encode_fragments(batch: &FragmentBatch) -> Vec<u8> {
    let mut writer = FragmentWriter::begin(batch.origin, batch.first);
    batch.fragments.iter().for_each(|fragment| writer.push(fragment));
    writer.end()
}

packed_message! {
    /// `Fragments` of `blkkin.proto`.
    Fragments { flags, trace_high, trace_low, spans, rule, one_in, hops }
}

packed_message! {
    /// `Spans`.
    Spans {
        flags, id, parent_index, parent_id, trace_high, trace_low, name, service, remote_service, start, duration,
        error, annotations, tags, links,
    }
}

packed_message! {
    /// `Annotations`.
    Annotations { time, value }
}

packed_message! {
    /// `Tags`.
    Tags { key, value, number }
}

packed_message! {
    /// `Links`.
    Links { trace_high, trace_low, span, relation }
}

/// Record under construction. It copies what it needs, so a fragment can be dropped once it is
/// pushed.
#[derive(Debug)]
pub struct FragmentWriter {
    from: FragmentOrigin,
    first: u64,
    strings: Dictionary,
    fragments: Fragments,
    spans: Spans,
    annotations: Annotations,
    tags: Tags,
    links: Links,
    high_low: Vec<message::LinkEndpoint>,
    hops: Vec<message::Reparented>,
    start: Delta,
    count: FragmentCount,
    /// For a long fragment: index of the first span with each id.
    indices: HashMap<SpanId, u32>,
}

/// Content of a record under construction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FragmentCount {
    /// Number of fragments.
    pub fragments: usize,
    /// Number of spans.
    pub spans: usize,
}

/// Maximum bytes before the columns (22), plus keys and lengths of the five messages that contain
/// them.
const HEADER_BYTES: usize = 64;
/// Maximum bytes of a row without its strings: protobuf's bounds for its fields.
const ENDPOINT_BYTES: usize = 256;
const REPARENTED_BYTES: usize = 96;
/// Maximum column bytes of a fragment, span, annotation, tag and link: 5 bytes for each `uint32`,
/// 10 for each `uint64` and `sint64`, 8 for each `fixed64`.
const FRAGMENT_BYTES: usize = 5 * 5 + 2 * 8;
const SPAN_BYTES: usize = 9 * 5 + 2 * 10 + 4 * 8;
const ANNOTATION_BYTES: usize = 5 + 10;
const TAG_BYTES: usize = 2 * 5 + 10;
const LINK_BYTES: usize = 3 * 8 + 5;

/// Fragments of up to this number of spans are searched linearly for an id; longer ones use a map.
const SEARCHED_MAX: usize = 8;

impl FragmentWriter {
    /// Starts a record of this origin whose first fragment has the number `first`.
    pub fn begin(from: FragmentOrigin, first: u64) -> Self {
        FragmentWriter {
            from,
            first,
            strings: Dictionary::default(),
            fragments: Fragments::default(),
            spans: Spans::default(),
            annotations: Annotations::default(),
            tags: Tags::default(),
            links: Links::default(),
            high_low: Vec::new(),
            hops: Vec::new(),
            start: Delta::default(),
            count: FragmentCount::default(),
            indices: HashMap::new(),
        }
    }

    /// Returns the number of fragments and spans in the record.
    pub fn count(&self) -> FragmentCount {
        self.count
    }

    /// Returns an upper bound of the current record length.
    pub fn bytes_max(&self) -> usize {
        let columns = [
            self.fragments.bytes(),
            self.spans.bytes(),
            self.annotations.bytes(),
            self.tags.bytes(),
            self.links.bytes(),
        ];
        let rows = self.high_low.len() * ENDPOINT_BYTES + self.hops.len() * REPARENTED_BYTES;
        HEADER_BYTES + self.strings.bytes() + columns.iter().sum::<usize>() + rows
    }

    /// Returns an upper bound of the record length with this fragment added, as if all of its
    /// strings were new.
    pub fn bytes_with(&self, fragment: &TraceFragment) -> usize {
        let remote_link = match &fragment.remote_link {
            RemoteLink::Endpoint(endpoint) => {
                ENDPOINT_BYTES
                    + encoded_bytes(&endpoint.event.key.protocol)
                    + encoded_bytes(&endpoint.event.key.connection)
            }
            RemoteLink::Reparented(reparented) => REPARENTED_BYTES + encoded_bytes(&reparented.rule),
            RemoteLink::Forwarded(_)
            | RemoteLink::None
            | RemoteLink::Root
            | RemoteLink::Child
            | RemoteLink::PendingParent
            | RemoteLink::Unlinked => 0,
        };
        let rule = fragment.sampled.as_ref().map_or(0, |sampled| encoded_bytes(&sampled.rule));
        let spans: usize = fragment.spans.iter().map(span_bytes).sum();
        self.bytes_max() + FRAGMENT_BYTES + remote_link + rule + spans
    }

    /// Returns the encoded record.
    pub fn end(self) -> Vec<u8> {
        let mut out = Packed::with_capacity(self.bytes_max());
        let header = message::FragmentBatchHeader {
            version: VERSION,
            stage: match self.from.stage {
                StageId::Join => message::Stage::Join,
                StageId::Assemble => message::Stage::Assemble,
                StageId::Link => message::Stage::Link,
            }
            .into(),
            partition: self.from.partition,
            incarnation: self.from.incarnation.0,
            first: self.first,
            strings: self.strings.end(),
        };
        out.append(&header);
        self.fragments.write(7, &mut out);
        self.spans.write(8, &mut out);
        self.annotations.write(9, &mut out);
        self.tags.write(10, &mut out);
        self.links.write(11, &mut out);
        out.append(&message::FragmentBatchRows { endpoints: self.high_low, reparented: self.hops });
        out.into_bytes()
    }

    /// Appends a fragment.
    pub fn push(&mut self, fragment: &TraceFragment) {
        self.count.fragments += 1;
        self.count.spans += fragment.spans.len();
        let mut flags = 0;
        if fragment.kind == FragmentKind::Late {
            flags |= LATE;
        }
        if fragment.complete {
            flags |= COMPLETE;
        }
        if fragment.sampled_by_application {
            flags |= SAMPLED_BY_APPLICATION;
        }
        if let Some(sampled) = &fragment.sampled {
            flags |= SAMPLED;
            self.fragments.rule.push(self.strings.name(&sampled.rule));
            self.fragments.one_in.push(sampled.one_in);
        }
        match &fragment.remote_link {
            RemoteLink::None => {}
            RemoteLink::Root => flags |= ROOT,
            RemoteLink::Child => flags |= CHILD,
            RemoteLink::PendingParent => flags |= PENDING_PARENT,
            RemoteLink::Unlinked => flags |= UNLINKED,
            RemoteLink::Endpoint(endpoint) => {
                flags |= ENDPOINT;
                let index = &mut |string: &str| self.strings.owned(string);
                self.high_low.push(remote_link::encode_endpoint(endpoint, index));
            }
            RemoteLink::Reparented(reparented) => {
                flags |= REPARENTED;
                self.hops
                    .push(remote_link::encode_reparented(reparented, self.strings.owned(&reparented.rule)));
            }
            RemoteLink::Forwarded(hops) => {
                flags |= FORWARDED;
                self.fragments.hops.push(*hops);
            }
        }
        let (high, low) = high_low(fragment.trace);
        self.fragments.flags.push(flags);
        self.fragments.trace_high.push_fixed(high);
        self.fragments.trace_low.push_fixed(low);
        self.fragments.spans.push(fragment.spans.len() as u32);
        self.indices.clear();
        if fragment.spans.len() > SEARCHED_MAX {
            for (index, span) in (0..).zip(&fragment.spans) {
                self.indices.entry(span.id).or_insert(index);
            }
        }
        fragment.spans.iter().for_each(|span| self.span(span, fragment));
    }

    fn span(&mut self, span: &Span, fragment: &TraceFragment) {
        let (columns, strings) = (&mut self.spans, &mut self.strings);
        let mut flags = match span.kind {
            SpanKind::Local => 0,
            SpanKind::Client => 1,
            SpanKind::Server => 2,
        };
        if let Some(parent) = span.parent {
            match index_of(parent, fragment, &self.indices) {
                Some(index) => {
                    flags |= PARENT_INDEX;
                    columns.parent_index.push(index);
                }
                None => {
                    flags |= PARENT_ID;
                    columns.parent_id.push_fixed(parent.0);
                }
            }
        }
        if let Some(remote) = &span.remote_service {
            flags |= REMOTE;
            columns.remote_service.push(strings.shared(remote));
        }
        if let Some(error) = &span.error {
            flags |= ERROR;
            columns.error.push(strings.name(error));
        }
        if span.trace != fragment.trace {
            flags |= OTHER_TRACE;
            let (high, low) = high_low(span.trace);
            columns.trace_high.push_fixed(high);
            columns.trace_low.push_fixed(low);
        }
        columns.flags.push(flags);
        columns.id.push_fixed(span.id.0);
        columns.name.push(strings.name(&span.name));
        columns.service.push(strings.shared(&span.service));
        columns.start.push_signed(self.start.encode(span.start.0));
        columns.duration.push(span.duration.0);
        columns.annotations.push(span.annotations.len() as u32);
        columns.tags.push(span.tags.len() as u32);
        columns.links.push(span.links.len() as u32);
        self.details(span);
    }

    fn details(&mut self, span: &Span) {
        for (time, value) in &span.annotations {
            self.annotations.time.push_signed(time.0.wrapping_sub(span.start.0) as i64);
            self.annotations.value.push(self.strings.name(value));
        }
        for (key, value) in &span.tags {
            self.tags.key.push(self.strings.name(key));
            match value {
                TagValue::Number(number) => {
                    self.tags.value.push(0_u32);
                    self.tags.number.push_signed(*number);
                }
                TagValue::Text(strings) => self.tags.value.push(self.strings.name(strings) + 1),
                TagValue::Shared(strings) => self.tags.value.push(self.strings.shared(strings) + 1),
            }
        }
        for link in &span.links {
            let (high, low) = high_low(link.trace);
            self.links.trace_high.push_fixed(high);
            self.links.trace_low.push_fixed(low);
            self.links.span.push_fixed(link.span.0);
            self.links.relation.push(self.strings.name(&link.relation));
        }
    }
}

/// Returns an upper bound of a span's bytes, as if all of its strings were new.
fn span_bytes(span: &Span) -> usize {
    let may = |string: Option<&str>| string.map_or(0, encoded_bytes);
    let strings =
        encoded_bytes(&span.name) + encoded_bytes(&span.service) + may(span.remote_service.as_deref());
    let annotations: usize =
        span.annotations.iter().map(|(_, value)| ANNOTATION_BYTES + encoded_bytes(value)).sum();
    let tags: usize =
        span.tags.iter().map(|(key, value)| TAG_BYTES + encoded_bytes(key) + may(value.as_str())).sum();
    let links: usize = span.links.iter().map(|link| LINK_BYTES + encoded_bytes(&link.relation)).sum();
    SPAN_BYTES + strings + may(span.error.as_deref()) + annotations + tags + links
}

/// Returns the index of the first span with this id in its fragment.
fn index_of(id: SpanId, fragment: &TraceFragment, indices: &HashMap<SpanId, u32>) -> Option<u32> {
    if fragment.spans.len() > SEARCHED_MAX {
        return indices.get(&id).copied();
    }
    fragment.spans.iter().position(|span| span.id == id).map(|index| index as u32)
}
