//! Batches: begins, attributes and ends of spans that share a timestamp, in one LTTng event.
//!
//! An LTTng event costs about the same whatever its size: it reads a clock, reserves space in a
//! ring that several processes share, and records contexts. A daemon that reads several requests at
//! once, or sends several replies, emits a dozen items at the same moment. Here they are one event,
//! `blkkin:together`.
//!
//! *In*: the calls of [`SpanBatch`]. *Out*: that event, when the batch is flushed or dropped.
//! *Invariant*: an item that cannot be in the batch (a string that is too long, a session without
//! this event) is emitted as a separate event. A reader therefore receives the same items in every
//! case, and nothing allocates.
//!
//! The items have the time of the event and not of the call. Flush the batch before the thread
//! waits for anything.
//!
//! # Format
//!
//! The event has one field, a sequence of 64-bit words. The metadata of the trace has their byte
//! order. Each item is a head, whose lowest byte is its type, and the words that follow it.
//!
//! | type | head, from bit | following words |
//! |---|---|---|
//! | 1 name | 8: its number; 16: length in bytes (16 bits) | the bytes, eight per word, the first one lowest |
//! | 2 begin | 8: kind (4 bits); 12: flags (1 `trace_hi` follows, 2 parent follows, 4 `trace_lo` is the span id); 16: name; 24: service; 32: kept per million | span; `trace_lo` unless flag 4; `trace_hi` and parent by their flags |
//! | 3 span | | id of the span of the following items, up to the next begin or span |
//! | 4 number | 8: key | the number |
//! | 5 text | 8: key; 16: value | |
//! | 6 event | 8: name | |
//! | 7 RPC endpoint | 8: flags (1 server, 2 unique, 4 the cookie is in the head); 16: rule; 24: connection; 32: cookie, with flag 4 | cookie, unless flag 4 |
//! | 8 end | 32: status | span |
//! | 9 small number | 8: key; 16: the number (48 bits, signed) | |
//! | 10 ends | 8: count | the ids of that many spans, all without an error |
//!
//! Names, keys, values, rules and connections are numbers of earlier names in the same event. A
//! number may be defined again; the last definition counts. A repeated string is found by its
//! address, so it must stay there until the flush: `'a`.
//!
//! Frequent items have a short form (flag 4, types 9 and 10). A request with its endpoint, two
//! numbers and its end takes 6 words, and took 11 without them. Each word is a store to a ring
//! whose cache lines another CPU has just read, which costs more than the arithmetic that saves the
//! word.
//!
//! *Rejected*: a buffer per thread that is written when full or by a timer. It would cost less, but
//! a killed daemon would lose its last items, and readers would have to trust timestamps that the
//! daemon wrote.

use std::ffi::{CStr, c_char};
use std::fmt::{self, Debug, Formatter};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::null;

use crate::probe::{self, BLKKIN_TOGETHER};
use crate::span::{ALL, RpcSide, Service, Span, SpanKind};
use crate::span_context::SpanContext;
use crate::thread_context;

/// Maximum words of one event: 2 KiB. A request with its endpoint and two numbers takes five.
const WORDS_MAX: usize = 256;
/// Maximum strings of one event.
const NAMES_MAX: usize = 32;
/// Maximum words of one item without its strings.
const ITEM_WORDS_MAX: usize = 7;
/// Maximum bytes of a string. An item with a longer one is emitted as a separate event.
const NAME_BYTES_MAX: usize = 512;

const NAME: u64 = 1;
const BEGIN: u64 = 2;
const SPAN: u64 = 3;
const NUMBER: u64 = 4;
const TEXT: u64 = 5;
const EVENT: u64 = 6;
const RPC_ENDPOINT: u64 = 7;
const END: u64 = 8;
const SMALL_NUMBER: u64 = 9;
const ENDS: u64 = 10;

/// Bits of a number that fits into its head.
const SMALL_NUMBER_BITS: u32 = 48;

/// Items that are emitted as one event, when this is dropped or [flushed](Self::flush). It stays on
/// its thread.
///
/// ```
/// use blkkin_ust::{RpcSide, SpanBatch, SpanKind};
///
/// let mut batch = SpanBatch::new();
/// let span = batch.root(SpanKind::Server, c"READ", c"nbd-server");
/// batch.rpc_endpoint(&span, RpcSide::Server, c"nbd", c"unix:client-unix:server", 7, true);
/// batch.set_number(&span, c"nbd.offset", 4096);
/// drop(batch); // One event, before any work for the span.
/// # drop(span);
/// ```
#[must_use = "a batch is emitted when it is dropped"]
pub struct SpanBatch<'a> {
    words: [MaybeUninit<u64>; WORDS_MAX],
    length: usize,
    /// Id of the span of the following items, or 0.
    current_span: u64,
    /// Addresses of the strings that have a number.
    names: [MaybeUninit<*const c_char>; NAMES_MAX],
    names_count: usize,
    /// Predicted number of the next string: items of several spans usually repeat their keys in the
    /// same order.
    next_name: usize,
    /// Index of the head of the last `ends`, or [`WORDS_MAX`] if another item followed.
    last_ends: usize,
    /// Strings are identified by address. Makes the batch neither `Send` nor `Sync`.
    strings: PhantomData<(&'a CStr, *const c_char)>,
}

impl<'a> SpanBatch<'a> {
    /// Creates an empty batch.
    #[inline(always)]
    pub const fn new() -> Self {
        Self {
            words: [const { MaybeUninit::uninit() }; WORDS_MAX],
            length: 0,
            current_span: 0,
            names: [const { MaybeUninit::uninit() }; NAMES_MAX],
            names_count: 0,
            next_name: 0,
            last_ends: WORDS_MAX,
            strings: PhantomData,
        }
    }

    /// Begins a root span, as [`Span::root`].
    #[inline]
    pub fn root(&mut self, kind: SpanKind, name: &'static CStr, service: &'static CStr) -> Span {
        let service = Service::of(service);
        if probe::is_enabled() {
            return self.begun(Span::unrecorded(service), ALL, kind, name);
        }
        Span::unrecorded(service)
    }

    /// Begins a child of `parent`, as [`Span::child`].
    #[inline]
    pub fn child(&mut self, parent: &Span, kind: SpanKind, name: &'static CStr) -> Span {
        if probe::is_enabled() {
            return self.begun(parent.unrecorded_child(), parent.child_kept_per_million(), kind, name);
        }
        parent.unrecorded_child()
    }

    /// Begins a child of a remote span, as [`Span::continued`].
    #[inline]
    pub fn continued(
        &mut self,
        context: SpanContext,
        kind: SpanKind,
        name: &'static CStr,
        service: &'static CStr,
    ) -> Span {
        let service = Service::of(service);
        if probe::is_enabled() {
            return self.begun(Span::propagating(context, service), ALL, kind, name);
        }
        Span::propagating(context, service)
    }

    /// Sets an attribute to a number, as [`Span::set_number`].
    #[inline]
    pub fn set_number(&mut self, span: &Span, key: &'a CStr, val: i64) {
        if span.is_recording() && !self.push_number(span, key, val) {
            span.set_number(key, val);
        }
    }

    /// Sets an attribute to a string, as [`Span::set_text`].
    #[inline]
    pub fn set_text(&mut self, span: &Span, key: &'a CStr, val: &CStr) {
        if span.is_recording() && !self.push_text(span, key, val) {
            span.set_text(key, val);
        }
    }

    /// Adds an event, as [`Span::add_event`].
    #[inline]
    pub fn add_event(&mut self, span: &Span, name: &'a CStr) {
        if span.is_recording() && !self.push_event(span, name) {
            span.add_event(name);
        }
    }

    /// Marks an endpoint of a request, as [`Span::rpc_endpoint`].
    #[inline]
    pub fn rpc_endpoint(
        &mut self,
        span: &Span,
        side: RpcSide,
        rule: &'a CStr,
        connection: &'a CStr,
        cookie: u64,
        unique: bool,
    ) {
        if span.is_recording() && !self.push_rpc_endpoint(span, side, rule, connection, cookie, unique) {
            span.rpc_endpoint(side, rule, connection, cookie, unique);
        }
    }

    /// Ends the span, as dropping it does.
    #[inline]
    pub fn end(&mut self, span: Span) {
        if span.is_recording() {
            self.push_end(span);
        }
    }

    /// Emits the event now. Later items are another event.
    #[inline]
    pub fn flush(&mut self) {
        if self.length != 0 {
            self.emit();
        }
    }

    #[inline(never)]
    fn begun(&mut self, mut span: Span, kept: u32, kind: SpanKind, name: &'static CStr) -> Span {
        let Some(probe) = probe::table() else { return span };
        if !span.assign_ids(probe, kept) {
            return span;
        }
        let context = span.context();
        let Some([name_number, service]) = self.reserve([name.as_ptr(), span.service()]) else {
            span.emit_begin(probe, kind, name, false);
            return span;
        };
        let has_trace_hi = u64::from(context.trace_hi != 0);
        let has_parent = u64::from(context.parent != 0);
        let is_own_trace = u64::from(context.trace_lo == context.span);
        let flags = has_trace_hi | has_parent << 1 | is_own_trace << 2;
        let head = BEGIN | (kind as u64) << 8 | flags << 12 | name_number << 16 | service << 24;
        self.push(head | u64::from(span.child_kept_per_million()) << 32);
        self.push(context.span);
        if is_own_trace == 0 {
            self.push(context.trace_lo);
        }
        if has_trace_hi != 0 {
            self.push(context.trace_hi);
        }
        if has_parent != 0 {
            self.push(context.parent);
        }
        self.current_span = context.span;
        span
    }

    #[inline(never)]
    fn push_number(&mut self, span: &Span, key: &'a CStr, val: i64) -> bool {
        let Some([key, _]) = self.select_span(span, [key.as_ptr(), null()]) else { return false };
        if val << (64 - SMALL_NUMBER_BITS) >> (64 - SMALL_NUMBER_BITS) == val {
            self.push(SMALL_NUMBER | key << 8 | (val as u64) << 16);
        } else {
            self.push(NUMBER | key << 8);
            self.push(val as u64);
        }
        true
    }

    #[inline(never)]
    fn push_text(&mut self, span: &Span, key: &'a CStr, val: &CStr) -> bool {
        let Some([key, val]) = self.select_span(span, [key.as_ptr(), val.as_ptr()]) else { return false };
        self.push(TEXT | key << 8 | val << 16);
        // Another value may be at the same address by the next call.
        self.names[val as usize].write(null());
        true
    }

    #[inline(never)]
    fn push_event(&mut self, span: &Span, name: &'a CStr) -> bool {
        let Some([name, _]) = self.select_span(span, [name.as_ptr(), null()]) else { return false };
        self.push(EVENT | name << 8);
        true
    }

    #[inline(never)]
    fn push_rpc_endpoint(
        &mut self,
        span: &Span,
        side: RpcSide,
        rule: &'a CStr,
        connection: &'a CStr,
        cookie: u64,
        unique: bool,
    ) -> bool {
        let Some([rule, connection]) = self.select_span(span, [rule.as_ptr(), connection.as_ptr()]) else {
            return false;
        };
        let flags = u64::from(side == RpcSide::Server) | u64::from(unique) << 1;
        let head = RPC_ENDPOINT | flags << 8 | rule << 16 | connection << 24;
        if cookie >> 32 == 0 {
            self.push(head | 4 << 8 | cookie << 32);
        } else {
            self.push(head);
            self.push(cookie);
        }
        true
    }

    #[inline(never)]
    fn push_end(&mut self, mut span: Span) {
        let (id, status) = (span.context().span, span.status());
        if self.reserve([null(), null()]).is_none() {
            return;
        }
        if status != 0 {
            self.push(END | u64::from(status as u32) << 32);
        } else if let Some(ends) = self.words.get_mut(self.last_ends) {
            // SAFETY: `last_ends` is the index of a head that is written.
            ends.write(unsafe { ends.assume_init() } + (1 << 8));
        } else {
            self.push(ENDS | 1 << 8);
            self.last_ends = self.length - 1;
        }
        let ends = self.last_ends;
        self.push(id);
        self.last_ends = if status == 0 { ends } else { WORDS_MAX };
        // A guard of the span may have been forgotten.
        thread_context::leave(id);
        span.stop_recording();
    }

    /// Reserves space for an item of `span`, and returns the numbers of its strings.
    #[inline]
    fn select_span(&mut self, span: &Span, names: [*const c_char; 2]) -> Option<[u64; 2]> {
        let numbers = self.reserve(names)?;
        let id = span.context().span;
        if self.current_span != id {
            self.push(SPAN);
            self.push(id);
            self.current_span = id;
        }
        Some(numbers)
    }

    /// Reserves space for an item with up to two strings (null: none), and returns their numbers.
    /// Returns none if the item needs a separate event, because a string is too long or no session
    /// records batches. The batch is then flushed.
    #[inline]
    fn reserve(&mut self, names: [*const c_char; 2]) -> Option<[u64; 2]> {
        // The session is checked once per event: if it disables the event later, it loses these
        // items as any other.
        if self.length != 0
            && self.length + ITEM_WORDS_MAX <= WORDS_MAX
            && let (Some(first), Some(second)) = (self.find_name(names[0]), self.find_name(names[1]))
        {
            return Some([first, second]);
        }
        self.reserve_slow(names)
    }

    #[cold]
    fn reserve_slow(&mut self, names: [*const c_char; 2]) -> Option<[u64; 2]> {
        let bytes = names.map(|name| match name.is_null() {
            true => 0,
            // SAFETY: callers passed it as a `&CStr`, which ends in a NUL.
            false => unsafe { CStr::from_ptr(name) }.count_bytes(),
        });
        let has = probe::table().is_some_and(|probe| probe.has(BLKKIN_TOGETHER));
        if !has || bytes.iter().any(|bytes| *bytes > NAME_BYTES_MAX) {
            self.flush();
            return None;
        }
        let words = ITEM_WORDS_MAX + bytes.iter().map(|bytes| 1 + bytes.div_ceil(8)).sum::<usize>();
        if self.length + words > WORDS_MAX || self.names_count + names.len() > NAMES_MAX {
            self.flush();
        }
        let mut numbers = [0; 2];
        for ((name, bytes), number) in names.into_iter().zip(bytes).zip(&mut numbers) {
            *number = self.find_name(name).unwrap_or_else(|| self.define_name(name, bytes));
        }
        Some(numbers)
    }

    /// Finds the number of a string by its address. Null has number 0, which is not used.
    #[inline]
    fn find_name(&mut self, name: *const c_char) -> Option<u64> {
        if name.is_null() {
            return Some(0);
        }
        let names = &self.names[..self.names_count];
        // SAFETY: the first `names_count` are written.
        let is = |known: &MaybeUninit<_>| unsafe { known.assume_init() } == name;
        let index = match names.get(self.next_name) {
            Some(next) if is(next) => self.next_name,
            _ => names.iter().position(is)?,
        };
        self.next_name = index + 1;
        Some(index as u64)
    }

    /// Adds a name item, and returns the string's number.
    fn define_name(&mut self, name: *const c_char, bytes: usize) -> u64 {
        let number = self.names_count;
        self.names[number].write(name);
        self.names_count += 1;
        self.next_name = self.names_count;
        self.push(NAME | (number as u64) << 8 | (bytes as u64) << 16);
        // SAFETY: `bytes` is the length that was counted in it.
        let (eights, rest) = unsafe { std::slice::from_raw_parts(name.cast::<u8>(), bytes) }.as_chunks();
        eights.iter().for_each(|eight| self.push(u64::from_le_bytes(*eight)));
        if !rest.is_empty() {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            self.push(u64::from_le_bytes(word));
        }
        number as u64
    }

    /// Appends a word, for which space was reserved.
    #[inline]
    fn push(&mut self, word: u64) {
        self.words[self.length].write(word);
        self.length += 1;
        self.last_ends = WORDS_MAX;
    }

    #[cold]
    fn emit(&mut self) {
        let count = std::mem::take(&mut self.length);
        (self.names_count, self.next_name, self.current_span, self.last_ends) = (0, 0, 0, WORDS_MAX);
        if let Some(probe) = probe::table() {
            // SAFETY: the first `count` words are written; WORDS_MAX fits.
            unsafe { (probe.together)(self.words.as_ptr().cast(), count as u16) };
        }
    }
}

impl Default for SpanBatch<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl Debug for SpanBatch<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpanBatch").field("words", &self.length).finish_non_exhaustive()
    }
}

impl Drop for SpanBatch<'_> {
    #[inline]
    fn drop(&mut self) {
        self.flush();
    }
}
