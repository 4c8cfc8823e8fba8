//! What is known of a daemon's work, one thing at a time, whatever instrumentation said it.
//!
//! Plain types, for whoever joins them with the kernel's layers. Ids are 0 where there is none. Facts come in order of
//! time, but for those that the reader counts as late. A thread's innermost entered span is the one it works for.

use std::borrow::Cow;

/// Where and when something was said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Where<'a> {
    /// CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// The process, as it sees itself in its name space of processes; 0 if it was not told.
    pub vpid: u32,
    /// The thread, likewise.
    pub vtid: u32,
    /// Its name space of processes, by its inode; 0 if it is the initial one, or was not told.
    pub pid_ns: u64,
    /// The name of the process (of its thread, in fact: 15 bytes, as the kernel keeps it).
    pub procname: Cow<'a, str>,
}

/// Which side of a call a span is.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Work inside a program.
    #[default]
    Internal,
    /// It answers another.
    Server,
    /// It asks another.
    Client,
}

/// Which side of a meeting was here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// Its asking.
    Asked,
    /// Its answering.
    Answered,
}

/// One thing that is known.
#[derive(Clone, PartialEq, Debug)]
pub enum Fact<'a> {
    /// A span begins.
    Begin {
        /// The upper half of its trace's id.
        trace_hi: u64,
        /// The lower half; both are 0 where nothing said a trace.
        trace_lo: u64,
        /// Its id.
        span: u64,
        /// The span that it is part of.
        parent: u64,
        /// Which side it is.
        kind: Kind,
        /// This thread works for it from now on.
        on: bool,
        /// Which part of the roots was kept by sampling at the source; 1,000,000: all.
        kept_per_million: u32,
        /// What is done.
        name: Cow<'a, str>,
        /// Who does it.
        service: Cow<'a, str>,
    },
    /// A span has ended.
    End {
        /// Which.
        span: u64,
        /// 0, or a positive errno.
        status: i32,
    },
    /// This thread works for the span from now on.
    Enter {
        /// Which.
        span: u64,
    },
    /// This thread works for the span no longer.
    Leave {
        /// Which.
        span: u64,
    },
    /// A moment in a span.
    Event {
        /// Which.
        span: u64,
        /// What happened.
        name: Cow<'a, str>,
    },
    /// A text about a span.
    Text {
        /// Which.
        span: u64,
        /// What it is about.
        key: Cow<'a, str>,
        /// The text.
        value: Cow<'a, str>,
    },
    /// A number about a span.
    Number {
        /// Which.
        span: u64,
        /// What it is about.
        key: Cow<'a, str>,
        /// The number.
        value: i64,
    },
    /// A request that two programs know by the same name.
    Meeting {
        /// Which span has it here.
        span: u64,
        /// Which end is here.
        side: Side,
        /// The cookie never comes again on this connection.
        unique: bool,
        /// The protocol, as rules of joining name it.
        rule: Cow<'a, str>,
        /// Both ends, the asker's first.
        connection: Cow<'a, str>,
        /// The request on this connection.
        cookie: u64,
    },
}
