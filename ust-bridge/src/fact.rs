//! What an instrumented program says of its work, whatever the names of its events are.
//!
//! *In*: events, by a mapping. *Out*: facts, which [`crate::operations`] makes operations of. *Invariant*: a fact says what one event
//! said and nothing that was concluded from others; ids are the program's own.
//!
//! (The types are the lead's, agreed with who joins them to system calls: extend them where a mapping needs more, and say so in
//! your report.)

/// A program's own id of a trace, as W3C trace context has it; 64 bits of it where it knows no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Trace(pub u128);

/// A program's own id of a span; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Span(pub u64);

/// Whose thread said it, by the ids of the initial pid namespace where these are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Thread {
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
}

/// One fact, at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Said<'a> {
    /// CLOCK_MONOTONIC, ns.
    pub at: u64,
    /// Who said it.
    pub thread: Thread,
    /// What.
    pub fact: Fact<'a>,
}

/// Which side of a conversation an operation shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Work inside one service.
    Internal,
    /// It was asked.
    Server,
    /// It asked.
    Client,
}

/// What was said. Words are borrowed from the event.
#[derive(Clone, Debug, PartialEq)]
pub enum Fact<'a> {
    /// An operation began.
    Begin {
        /// Its trace.
        trace: Trace,
        /// Its span.
        span: Span,
        /// What it is part of.
        parent: Option<Span>,
        /// Its side.
        kind: Kind,
        /// The thread works for it from now on.
        on: bool,
        /// Which part of those that begin a trace is kept at the source, in millionths.
        kept_per_million: u32,
        /// What it is.
        name: &'a str,
        /// Who does it.
        service: &'a str,
    },
    /// It ended; 0, or a positive errno.
    End {
        /// Which.
        span: Span,
        /// How.
        status: i32,
    },
    /// The thread works for it from now on.
    Enter(Span),
    /// The thread does so no longer.
    Leave(Span),
    /// A moment of it.
    Event {
        /// Of which.
        span: Span,
        /// What happened.
        name: &'a str,
    },
    /// Words about it.
    Text {
        /// About which.
        span: Span,
        /// What they are about.
        key: &'a str,
        /// The words.
        value: &'a str,
    },
    /// A number of it.
    Number {
        /// Of which.
        span: Span,
        /// What is counted.
        key: &'a str,
        /// The number.
        value: i64,
    },
    /// It was one end of a request of this protocol, by its connection and its number there.
    Meeting {
        /// Which.
        span: Span,
        /// It answered; else it asked.
        answered: bool,
        /// The protocol never gives one number twice on a connection.
        unique: bool,
        /// The protocol.
        rule: &'a str,
        /// As both ends call it, the asker's end first.
        connection: &'a str,
        /// The number.
        cookie: u64,
    },
    /// blkin's: a span of which only moments and words are said, never a begin or an end. The first makes it; what is `kind`'s last
    /// word (`ss`, `cr`) ends it, and otherwise silence does.
    Named {
        /// Its trace.
        trace: Trace,
        /// Its span.
        span: Span,
        /// What it is part of.
        parent: Option<Span>,
        /// What it is.
        name: &'a str,
        /// Who does it.
        service: &'a str,
        /// Where: the endpoint that was given, `ip:port`; empty where none was.
        endpoint: (&'a str, i64),
        /// What was said of it.
        what: Named<'a>,
    },
    /// So many events of this program's, or of somebody on its CPU, were lost between these times: what was open may have ended.
    Lost {
        /// After this.
        from: u64,
        /// Before this.
        until: u64,
        /// How many.
        events: u64,
    },
}

/// What was said of a [`Fact::Named`] span.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Named<'a> {
    /// A moment: `sr`, `ss`, `cs`, `cr`, or the program's own word.
    Moment(&'a str),
    /// Key and words.
    Text(&'a str, &'a str),
    /// Key and number.
    Number(&'a str, i64),
}
