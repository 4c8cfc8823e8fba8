//! Several things that are said at one time, as one event: begins and ends of spans, and what is said about them.
//!
//! An event of LTTng's costs about the same whatever is in it: its clock, its place in a ring that several processes share, its
//! contexts. A daemon that reads several requests at once, or sends several replies, has a dozen things to say at one moment;
//! here they are one event, `blkkin:together`. *In*: what is said; out: that event, at the latest when this is dropped. *Invariant*: what
//! was not said in it (a string too long, a session that does not have this event enabled) is said by an event of its own, so a reader
//! hears the same; and nothing allocates.
//!
//! What is said here has the time of the event, and not that of the call. So it is to be said before the thread waits for anything.
//!
//! # The words
//!
//! The event has one field, a sequence of 64-bit numbers: the trace's own metadata tells their byte order. Each thing is a head, whose
//! lowest byte says what it is, and the words that belong to it.
//!
//! | what | head, from bit | then |
//! |---|---|---|
//! | 1 name | 8: its number; 16: how many bytes (16 bits) | the bytes, eight a word, the first one lowest |
//! | 2 begin | 8: kind (4 bits); 12: 1 upper half, 2 parent; 16: name; 24: service; 32: kept per million | span; lower half of the trace; the upper half and the parent, as told |
//! | 3 about | | span: of whom is what follows, up to the next begin or about |
//! | 4 number | 8: key | the number |
//! | 5 text | 8: key; 16: value | |
//! | 6 event | 8: name | |
//! | 7 meeting | 8: 1 answered, 2 unique; 16: rule; 24: connection | cookie |
//! | 8 end | 32: status | span |
//!
//! Names, keys, values, rules and connections are numbers of names before them in the same event; the last one of a number counts. A
//! string that comes again is told by where it lies, so it has to lie there until the event is said: `'a`.
//!
//! *Rejected*: a buffer of the thread's own, written out when it is full or by a timer. It would be cheaper still, but a daemon that is
//! killed would take its last words with it, and their times would have to be believed.

use std::ffi::{CStr, c_char};
use std::fmt::{self, Debug, Formatter};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::null;

use crate::context::Context;
use crate::probe::{self, BLKKIN_TOGETHER, Table};
use crate::publish;
use crate::span::{ALL, Kind, Service, Side, Span};

/// Words of one event: 2 KiB, of which a request with its meeting and two numbers takes nine.
const WORDS_MAX: usize = 256;
/// Strings of one event.
const NAMES_MAX: usize = 32;
/// Words of one thing at the most, without its strings.
const HEAD_MAX: usize = 7;
/// Bytes of a string; a longer one is said by an event of its own.
const NAME_MAX: usize = 512;

const NAME: u64 = 1;
const BEGIN: u64 = 2;
const ABOUT: u64 = 3;
const NUMBER: u64 = 4;
const TEXT: u64 = 5;
const EVENT: u64 = 6;
const MEETING: u64 = 7;
const END: u64 = 8;

/// What is said in one event. It is said when this is dropped, or by [`say`](Self::say); it stays on its thread.
///
/// ```
/// use blkkin_ust::{Kind, Side, Together};
///
/// let mut together = Together::new();
/// let span = together.root(Kind::Server, c"READ", c"nbd-server");
/// together.meeting(&span, Side::Answered, c"nbd", c"unix:client-unix:server", 7, true);
/// together.number(&span, c"nbd.offset", 4096);
/// drop(together); // one event, before anything is done for the span
/// # drop(span);
/// ```
#[must_use = "it is said when this is dropped"]
pub struct Together<'a> {
    words: [MaybeUninit<u64>; WORDS_MAX],
    length: usize,
    /// Of whom is what follows; 0: of nobody.
    about: u64,
    /// Where the strings lie that have a number.
    names: [MaybeUninit<*const c_char>; NAMES_MAX],
    named: usize,
    /// Strings are known by where they lie. Neither `Send` nor `Sync`.
    strings: PhantomData<(&'a CStr, *const c_char)>,
}

impl<'a> Together<'a> {
    /// Nothing is said yet.
    #[inline(always)]
    pub const fn new() -> Self {
        Self {
            words: [const { MaybeUninit::uninit() }; WORDS_MAX],
            length: 0,
            about: 0,
            names: [const { MaybeUninit::uninit() }; NAMES_MAX],
            named: 0,
            strings: PhantomData,
        }
    }

    /// As [`Span::root`].
    #[inline]
    pub fn root(&mut self, kind: Kind, name: &'static CStr, service: &'static CStr) -> Span {
        let service = Service::of(service);
        if probe::on() {
            return self.begun(Span::silent(service), ALL, kind, name);
        }
        Span::silent(service)
    }

    /// As [`Span::child`] of `parent`.
    #[inline]
    pub fn child(&mut self, parent: &Span, kind: Kind, name: &'static CStr) -> Span {
        if probe::on() {
            return self.begun(parent.silent_below(), parent.kept_below(), kind, name);
        }
        parent.silent_below()
    }

    /// As [`Span::continued`].
    #[inline]
    pub fn continued(
        &mut self,
        context: Context,
        kind: Kind,
        name: &'static CStr,
        service: &'static CStr,
    ) -> Span {
        let service = Service::of(service);
        if probe::on() {
            return self.begun(Span::carrying(context, service), ALL, kind, name);
        }
        Span::carrying(context, service)
    }

    /// As [`Span::number`].
    #[inline]
    pub fn number(&mut self, span: &Span, key: &'a CStr, val: i64) {
        if span.is_recorded() && !self.put_number(span, key, val) {
            span.number(key, val);
        }
    }

    /// As [`Span::text`].
    #[inline]
    pub fn text(&mut self, span: &Span, key: &'a CStr, val: &CStr) {
        if span.is_recorded() && !self.put_text(span, key, val) {
            span.text(key, val);
        }
    }

    /// As [`Span::event`].
    #[inline]
    pub fn event(&mut self, span: &Span, name: &'a CStr) {
        if span.is_recorded() && !self.put_event(span, name) {
            span.event(name);
        }
    }

    /// As [`Span::meeting`].
    #[inline]
    pub fn meeting(
        &mut self,
        span: &Span,
        side: Side,
        rule: &'a CStr,
        connection: &'a CStr,
        cookie: u64,
        unique: bool,
    ) {
        if span.is_recorded() && !self.put_meeting(span, side, rule, connection, cookie, unique) {
            span.meeting(side, rule, connection, cookie, unique);
        }
    }

    /// Ends the span, as dropping it does.
    #[inline]
    pub fn end(&mut self, span: Span) {
        if span.is_recorded() {
            self.put_end(span);
        }
    }

    /// Says it now. What comes then is another event.
    #[inline]
    pub fn say(&mut self) {
        if self.length != 0 {
            self.said();
        }
    }

    #[cold]
    #[inline(never)]
    fn begun(&mut self, mut span: Span, kept: u32, kind: Kind, name: &'static CStr) -> Span {
        let Some(probe) = probe::table() else { return span };
        if !span.made(probe, kept) {
            return span;
        }
        // SAFETY: the service's name lives for ever and ends in a NUL.
        let service = unsafe { CStr::from_ptr(span.service()) };
        let context = span.context();
        let said = self.room(probe, [Some(name), Some(service)], |words, [name, service]| {
            let wide = u64::from(context.trace_hi != 0);
            let below = u64::from(context.parent != 0);
            let flags = wide | below << 1;
            let head = BEGIN | (kind as u64) << 8 | flags << 12 | name << 16 | service << 24;
            words.put(head | u64::from(span.kept_below()) << 32);
            words.put(context.span);
            words.put(context.trace_lo);
            if wide != 0 {
                words.put(context.trace_hi);
            }
            if below != 0 {
                words.put(context.parent);
            }
            words.about = context.span;
        });
        if !said {
            span.say_begin(probe, kind, name, false);
        }
        span
    }

    #[cold]
    fn put_number(&mut self, span: &Span, key: &'a CStr, val: i64) -> bool {
        self.about(span, [Some(key), None], |words, [key, _]| {
            words.put(NUMBER | key << 8);
            words.put(val as u64);
        })
    }

    #[cold]
    fn put_text(&mut self, span: &Span, key: &'a CStr, val: &CStr) -> bool {
        self.about(span, [Some(key), Some(val)], |words, [key, val]| {
            words.put(TEXT | key << 8 | val << 16);
            // It may lie elsewhere, or be another one there, when the next one comes.
            words.forget(val);
        })
    }

    #[cold]
    fn put_event(&mut self, span: &Span, name: &'a CStr) -> bool {
        self.about(span, [Some(name), None], |words, [name, _]| words.put(EVENT | name << 8))
    }

    #[cold]
    fn put_meeting(
        &mut self,
        span: &Span,
        side: Side,
        rule: &'a CStr,
        connection: &'a CStr,
        cookie: u64,
        unique: bool,
    ) -> bool {
        self.about(span, [Some(rule), Some(connection)], |words, [rule, connection]| {
            let flags = u64::from(side == Side::Answered) | u64::from(unique) << 1;
            words.put(MEETING | flags << 8 | rule << 16 | connection << 24);
            words.put(cookie);
        })
    }

    #[cold]
    fn put_end(&mut self, mut span: Span) {
        let Some(probe) = probe::table() else { return };
        let (id, status) = (span.context().span, span.status());
        let said = self.room(probe, [None, None], |words, _| {
            words.put(END | u64::from(status as u32) << 32);
            words.put(id);
        });
        if said {
            // Whoever still works for it does so no longer.
            publish::leave(id);
            span.silence();
        }
    }

    /// Something about `span`. Whether it will be said.
    fn about(
        &mut self,
        span: &Span,
        names: [Option<&CStr>; 2],
        put: impl FnOnce(&mut Self, [u64; 2]),
    ) -> bool {
        let Some(probe) = probe::table() else { return false };
        let id = span.context().span;
        self.room(probe, names, |words, names| {
            if words.about != id {
                words.put(ABOUT);
                words.put(id);
                words.about = id;
            }
            put(words, names);
        })
    }

    /// Makes room for one thing with its strings, and has it put there. Whether it will be said: what a session does not have, or
    /// is too long, is for an event of its own, before which all that waits here is said.
    fn room(
        &mut self,
        probe: &Table,
        names: [Option<&CStr>; 2],
        put: impl FnOnce(&mut Self, [u64; 2]),
    ) -> bool {
        let bytes = names.map(|name| name.map_or(0, |name| name.count_bytes()));
        if !probe.has(BLKKIN_TOGETHER) || bytes.iter().any(|bytes| *bytes > NAME_MAX) {
            self.say();
            return false;
        }
        let most = HEAD_MAX + bytes.iter().map(|bytes| 1 + bytes.div_ceil(8)).sum::<usize>();
        if self.length + most > WORDS_MAX || self.named + names.len() > NAMES_MAX {
            self.say();
        }
        let mut numbers = [0; 2];
        for ((name, bytes), number) in names.into_iter().zip(bytes).zip(&mut numbers) {
            *number = name.map_or(0, |name| self.number_of(name, bytes));
        }
        put(self, numbers);
        true
    }

    /// The number of a string, which is said here if it has none yet.
    fn number_of(&mut self, name: &CStr, bytes: usize) -> u64 {
        // SAFETY: the first `named` are written.
        let known = |place: usize| unsafe { self.names[place].assume_init() } == name.as_ptr();
        if let Some(place) = (0..self.named).find(|place| known(*place)) {
            return place as u64;
        }
        let number = self.named as u64;
        self.names[self.named].write(name.as_ptr());
        self.named += 1;
        self.put(NAME | number << 8 | (bytes as u64) << 16);
        for eight in name.to_bytes().chunks(8) {
            let mut word = [0; 8];
            word[..eight.len()].copy_from_slice(eight);
            self.put(u64::from_le_bytes(word));
        }
        number
    }

    /// Where it lies says nothing from now on.
    fn forget(&mut self, number: u64) {
        self.names[number as usize].write(null());
    }

    /// There is room.
    #[inline]
    fn put(&mut self, word: u64) {
        self.words[self.length].write(word);
        self.length += 1;
    }

    #[cold]
    fn said(&mut self) {
        let count = std::mem::take(&mut self.length);
        (self.named, self.about) = (0, 0);
        if let Some(probe) = probe::table() {
            // SAFETY: the first `count` words are written; WORDS_MAX fits.
            unsafe { (probe.together)(self.words.as_ptr().cast(), count as u16) };
        }
    }
}

impl Default for Together<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl Debug for Together<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Together").field("words", &self.length).finish_non_exhaustive()
    }
}

impl Drop for Together<'_> {
    #[inline]
    fn drop(&mut self) {
        self.say();
    }
}
