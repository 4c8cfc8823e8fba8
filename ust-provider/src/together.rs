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
//! | 2 begin | 8: kind (4 bits); 12: 1 upper half, 2 parent, 4 the trace's lower half is the span's id; 16: name; 24: service; 32: kept per million | span; lower half of the trace but for 4; the upper half and the parent, as told |
//! | 3 about | | span: of whom is what follows, up to the next begin or about |
//! | 4 number | 8: key | the number |
//! | 5 text | 8: key; 16: value | |
//! | 6 event | 8: name | |
//! | 7 meeting | 8: 1 answered, 2 unique, 4 the cookie is here; 16: rule; 24: connection; 32: cookie, if here | cookie, if not |
//! | 8 end | 32: status | span |
//! | 9 number | 8: key; 16: the number (48 bits, signed) | |
//! | 10 ends | 8: how many | so many spans, none of which failed |
//!
//! Names, keys, values, rules and connections are numbers of names before them in the same event; the last one of a number counts. A
//! string that comes again is told by where it lies, so it has to lie there until the event is said: `'a`.
//!
//! What is usual has a short form (the bits 4, the things 9 and 10): a request with its meeting, two numbers and its end is 6 words where it
//! was 11. Each word is a store into a ring whose lines another CPU has just read, which costs more than whatever makes it shorter.
//!
//! *Rejected*: a buffer of the thread's own, written out when it is full or by a timer. It would be cheaper still, but a daemon that is
//! killed would take its last words with it, and their times would have to be believed.

use std::ffi::{CStr, c_char};
use std::fmt::{self, Debug, Formatter};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::null;

use crate::context::Context;
use crate::probe::{self, BLKKIN_TOGETHER};
use crate::publish;
use crate::span::{ALL, Kind, Service, Side, Span};

/// Words of one event: 2 KiB, of which a request with its meeting and two numbers takes five.
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
const SMALL: u64 = 9;
const ENDS: u64 = 10;

/// Bits of a number that its head has room for.
const SMALL_BITS: u32 = 48;

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
    /// The number of the string that comes next, if it is as the last time: who says the same of many says it in one order.
    next: usize,
    /// Where the head of the ends lies that come last; [`WORDS_MAX`]: something else does.
    ends: usize,
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
            next: 0,
            ends: WORDS_MAX,
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

    #[inline(never)]
    fn begun(&mut self, mut span: Span, kept: u32, kind: Kind, name: &'static CStr) -> Span {
        let Some(probe) = probe::table() else { return span };
        if !span.made(probe, kept) {
            return span;
        }
        let context = span.context();
        let Some([name_number, service]) = self.room([name.as_ptr(), span.service()]) else {
            span.say_begin(probe, kind, name, false);
            return span;
        };
        let wide = u64::from(context.trace_hi != 0);
        let below = u64::from(context.parent != 0);
        let own = u64::from(context.trace_lo == context.span);
        let flags = wide | below << 1 | own << 2;
        let head = BEGIN | (kind as u64) << 8 | flags << 12 | name_number << 16 | service << 24;
        self.put(head | u64::from(span.kept_below()) << 32);
        self.put(context.span);
        if own == 0 {
            self.put(context.trace_lo);
        }
        if wide != 0 {
            self.put(context.trace_hi);
        }
        if below != 0 {
            self.put(context.parent);
        }
        self.about = context.span;
        span
    }

    #[inline(never)]
    fn put_number(&mut self, span: &Span, key: &'a CStr, val: i64) -> bool {
        let Some([key, _]) = self.about(span, [key.as_ptr(), null()]) else { return false };
        if val << (64 - SMALL_BITS) >> (64 - SMALL_BITS) == val {
            self.put(SMALL | key << 8 | (val as u64) << 16);
        } else {
            self.put(NUMBER | key << 8);
            self.put(val as u64);
        }
        true
    }

    #[inline(never)]
    fn put_text(&mut self, span: &Span, key: &'a CStr, val: &CStr) -> bool {
        let Some([key, val]) = self.about(span, [key.as_ptr(), val.as_ptr()]) else { return false };
        self.put(TEXT | key << 8 | val << 16);
        // It may lie elsewhere, or be another one there, when the next one comes.
        self.names[val as usize].write(null());
        true
    }

    #[inline(never)]
    fn put_event(&mut self, span: &Span, name: &'a CStr) -> bool {
        let Some([name, _]) = self.about(span, [name.as_ptr(), null()]) else { return false };
        self.put(EVENT | name << 8);
        true
    }

    #[inline(never)]
    fn put_meeting(
        &mut self,
        span: &Span,
        side: Side,
        rule: &'a CStr,
        connection: &'a CStr,
        cookie: u64,
        unique: bool,
    ) -> bool {
        let Some([rule, connection]) = self.about(span, [rule.as_ptr(), connection.as_ptr()]) else {
            return false;
        };
        let flags = u64::from(side == Side::Answered) | u64::from(unique) << 1;
        let head = MEETING | flags << 8 | rule << 16 | connection << 24;
        if cookie >> 32 == 0 {
            self.put(head | 4 << 8 | cookie << 32);
        } else {
            self.put(head);
            self.put(cookie);
        }
        true
    }

    #[inline(never)]
    fn put_end(&mut self, mut span: Span) {
        let (id, status) = (span.context().span, span.status());
        if self.room([null(), null()]).is_none() {
            return;
        }
        if status != 0 {
            self.put(END | u64::from(status as u32) << 32);
        } else if let Some(ends) = self.words.get_mut(self.ends) {
            // SAFETY: a head lies there.
            ends.write(unsafe { ends.assume_init() } + (1 << 8));
        } else {
            self.put(ENDS | 1 << 8);
            self.ends = self.length - 1;
        }
        let ends = self.ends;
        self.put(id);
        self.ends = if status == 0 { ends } else { WORDS_MAX };
        // Whoever still works for it does so no longer.
        publish::leave(id);
        span.silence();
    }

    /// Something about `span`: the numbers of its strings.
    #[inline]
    fn about(&mut self, span: &Span, names: [*const c_char; 2]) -> Option<[u64; 2]> {
        let numbers = self.room(names)?;
        let id = span.context().span;
        if self.about != id {
            self.put(ABOUT);
            self.put(id);
            self.about = id;
        }
        Some(numbers)
    }

    /// Makes room for one thing with its strings (null: none), and gives their numbers. None: what a session does not have, or is too long,
    /// is for an event of its own, before which all that waits here is said.
    #[inline]
    fn room(&mut self, names: [*const c_char; 2]) -> Option<[u64; 2]> {
        // Asked once for an event: what a session leaves off meanwhile it does not get, as with any other.
        if self.length != 0
            && self.length + HEAD_MAX <= WORDS_MAX
            && let (Some(first), Some(second)) = (self.known(names[0]), self.known(names[1]))
        {
            return Some([first, second]);
        }
        self.room_for_new(names)
    }

    #[cold]
    fn room_for_new(&mut self, names: [*const c_char; 2]) -> Option<[u64; 2]> {
        let bytes = names.map(|name| match name.is_null() {
            true => 0,
            // SAFETY: it is one of those that callers gave as a `&CStr`, which ends in a NUL.
            false => unsafe { CStr::from_ptr(name) }.count_bytes(),
        });
        let has = probe::table().is_some_and(|probe| probe.has(BLKKIN_TOGETHER));
        if !has || bytes.iter().any(|bytes| *bytes > NAME_MAX) {
            self.say();
            return None;
        }
        let most = HEAD_MAX + bytes.iter().map(|bytes| 1 + bytes.div_ceil(8)).sum::<usize>();
        if self.length + most > WORDS_MAX || self.named + names.len() > NAMES_MAX {
            self.say();
        }
        let mut numbers = [0; 2];
        for ((name, bytes), number) in names.into_iter().zip(bytes).zip(&mut numbers) {
            *number = self.known(name).unwrap_or_else(|| self.named(name, bytes));
        }
        Some(numbers)
    }

    /// The number of a string that has one; of none, any.
    #[inline]
    fn known(&mut self, name: *const c_char) -> Option<u64> {
        if name.is_null() {
            return Some(0);
        }
        let names = &self.names[..self.named];
        // SAFETY: the first `named` are written.
        let is = |place: &MaybeUninit<_>| unsafe { place.assume_init() } == name;
        let place = match names.get(self.next) {
            Some(next) if is(next) => self.next,
            _ => names.iter().position(is)?,
        };
        self.next = place + 1;
        Some(place as u64)
    }

    /// Says a string, which has a number from now on.
    fn named(&mut self, name: *const c_char, bytes: usize) -> u64 {
        let number = self.named;
        self.names[number].write(name);
        self.named += 1;
        self.next = self.named;
        self.put(NAME | (number as u64) << 8 | (bytes as u64) << 16);
        // SAFETY: so many bytes were counted in it.
        let (eights, rest) = unsafe { std::slice::from_raw_parts(name.cast::<u8>(), bytes) }.as_chunks();
        eights.iter().for_each(|eight| self.put(u64::from_le_bytes(*eight)));
        if !rest.is_empty() {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            self.put(u64::from_le_bytes(word));
        }
        number as u64
    }

    /// There is room.
    #[inline]
    fn put(&mut self, word: u64) {
        self.words[self.length].write(word);
        self.length += 1;
        self.ends = WORDS_MAX;
    }

    #[cold]
    fn said(&mut self) {
        let count = std::mem::take(&mut self.length);
        (self.named, self.next, self.about, self.ends) = (0, 0, 0, WORDS_MAX);
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
