//! A thread that works for one span after another, with no call of the kernel between them: an event a span instead of two.
//!
//! Who enters and leaves each says *left A*, *entered B* where nothing was done in between. Here that is one word, `blkkin:turn`. Before
//! the thread does something that is for none of them (sends the replies of all), it has to [`rest`](Turns::rest), or that would be taken
//! for the last one's.

use std::ffi::c_char;
use std::marker::PhantomData;

use crate::span::Span;
use crate::{probe, publish};

/// What this thread works for, one after another, until this is dropped. It stays on its thread.
///
/// Unlike [`Entered`](crate::Entered) it borrows nothing: a span may be handed on before the thread turns to the next one.
///
/// ```
/// # use blkkin_ust::{Kind, Span, Turns};
/// # let requests = [Span::root(Kind::Server, c"READ", c"nbd-server"), Span::root(Kind::Server, c"READ", c"nbd-server")];
/// let mut turns = Turns::new();
/// for span in &requests {
///     turns.take(span);
///     // pread() here is this span's
/// }
/// turns.rest();
/// // sendmsg() here is nobody's
/// ```
#[derive(Debug, Default)]
#[must_use = "the thread works for the spans only while this lives"]
pub struct Turns {
    /// Under which it was entered for who reads threads.
    key: Option<u64>,
    /// The span that is worked for, if it is recorded; 0: it is not.
    span: u64,
    /// Some session wants to be told; asked at the first of a row. One that comes in the middle hears of the next row.
    heard: bool,
    /// Neither `Send` nor `Sync`.
    on_this_thread: PhantomData<*const c_char>,
}

impl Turns {
    /// Of nobody yet.
    #[inline]
    pub const fn new() -> Self {
        Self { key: None, span: 0, heard: false, on_this_thread: PhantomData }
    }

    /// This thread works for `span` from now on, and no longer for the one before.
    #[inline]
    pub fn take(&mut self, span: &Span) {
        self.withdraw();
        self.key = span.publish();
        let next = if span.is_recorded() { span.context().span } else { 0 };
        let before = std::mem::replace(&mut self.span, next);
        if before != next {
            if before == 0 {
                self.heard = heard();
            }
            self.say(before, next);
        }
    }

    /// This thread works for none of them any more.
    #[inline]
    pub fn rest(&mut self) {
        self.withdraw();
        let before = std::mem::take(&mut self.span);
        if before != 0 {
            self.say(before, 0);
        }
    }

    #[inline]
    fn say(&self, before: u64, next: u64) {
        if self.heard {
            said(before, next);
        }
    }

    #[inline]
    fn withdraw(&mut self) {
        if let Some(key) = self.key.take() {
            publish::leave(key);
        }
    }
}

impl Drop for Turns {
    #[inline]
    fn drop(&mut self) {
        self.rest();
    }
}

#[cold]
fn heard() -> bool {
    probe::table().is_some_and(probe::Table::hears_turns)
}

/// 0: none.
#[cold]
fn said(before: u64, next: u64) {
    if let Some(probe) = probe::table() {
        probe.turned(before, next);
    }
}
