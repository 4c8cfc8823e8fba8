//! Columns of RPC endpoints.

use super::Malformed;
use super::columns::columns;
use super::decode_tables::DecodeTables;
use super::encode_tables::EncodeTables;
use super::ids::IdWriter;
use super::message::RpcEndpointEvents;
use crate::clock::MonotonicNs;
use crate::ids::SpanId;
use crate::remote_link::{RpcEndpointEvent, RpcKey, RpcSide};

pub(super) const SERVER: u32 = 1 << 0;
pub(super) const UNIQUE: u32 = 1 << 1;
/// The span is the root of its trace, which is not stored.
const ROOT: u32 = 1 << 2;
pub(super) const NO_REPLY: u32 = 1 << 3;

/// Writer of RPC endpoint columns.
#[derive(Default)]
pub(super) struct RpcEndpointWriter {
    columns: RpcEndpointEvents,
    span: IdWriter,
    root: IdWriter,
}

impl RpcEndpointWriter {
    pub(super) fn put<'a>(&mut self, event: &'a RpcEndpointEvent, tables: &mut EncodeTables<'a>) {
        let columns = &mut self.columns;
        let mut flags = 0;
        if event.side == RpcSide::Server {
            flags |= SERVER;
        }
        if event.unique {
            flags |= UNIQUE;
        }
        if event.no_reply {
            flags |= NO_REPLY;
        }
        tables.origins.put(&mut self.span, event.span.0);
        if event.root == event.span {
            flags |= ROOT;
        } else {
            tables.origins.put(&mut self.root, event.root.0);
        }
        columns.flags.push(flags);
        columns.duration.push(event.end.0.wrapping_sub(event.begin.0));
        columns.cookie.push(event.key.cookie);
        columns.protocol.push(tables.strings.intern(&event.key.protocol));
        columns.connection.push(tables.strings.intern(&event.key.connection));
    }

    /// Returns the message; none without endpoints, so that such a batch has no bytes for them.
    pub(super) fn end(self) -> Option<RpcEndpointEvents> {
        let RpcEndpointWriter { columns, span, root } = self;
        let any = !columns.flags.is_empty();
        any.then(|| RpcEndpointEvents { span: span.end(), root: root.end(), ..columns })
    }
}

columns! {
    /// Reader of RPC endpoint columns.
    RpcEndpointReader of RpcEndpointEvents {
        flags: u32, duration: u64, protocol: u32, connection: u32, cookie: u64,
    } ids { span, root }
}

impl RpcEndpointReader<'_> {
    /// Reads the next endpoint.
    pub(super) fn next(
        &mut self,
        end: MonotonicNs,
        tables: &DecodeTables<'_>,
    ) -> Result<RpcEndpointEvent, Malformed> {
        let flags = *self.flags.next()?;
        let span = SpanId(self.span.next(&tables.ids)?);
        let root = self.root.next_if(flags & ROOT == 0, &tables.ids)?.map_or(span, SpanId);
        Ok(RpcEndpointEvent {
            span,
            root,
            side: if flags & SERVER != 0 { RpcSide::Server } else { RpcSide::Client },
            key: RpcKey {
                protocol: tables.string(self.protocol.next()?, "RpcEndpointEvents.protocol")?,
                connection: tables.string(self.connection.next()?, "RpcEndpointEvents.connection")?,
                cookie: *self.cookie.next()?,
            },
            unique: flags & UNIQUE != 0,
            no_reply: flags & NO_REPLY != 0,
            begin: MonotonicNs(end.0.wrapping_sub(*self.duration.next()?)),
            end,
        })
    }
}
