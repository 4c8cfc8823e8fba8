//! A trace's description of itself: text in (all at once, or as it arrives), classes of streams and events out.
//!
//! LTTng appends to the metadata while programs come and go: what is new is read when it has arrived whole, and what was
//! read stays. A trace with a declaration that cannot be understood is refused from there on: a guess at the size of one
//! field would make up every field behind it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::lexer::{LexError, Lexer, Token};
use super::parser::{Block, Declaration, Parser, Scopes};
use super::plan::Plan;
use super::resolve::Resolver;
use super::types::Order;

mod blocks;

/// The largest description that is read. One of LTTng's has about 1 KiB an event.
pub const TEXT_MAX: usize = 32 << 20;
/// The most tokens of one declaration (40 bytes each while it is read). LTTng's longest have some hundreds.
const TOKENS_MAX: usize = 1 << 18;

/// Why a trace cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MetadataError {
    /// It says something that has no meaning, or none that is known here.
    #[error("metadata, line {line}: {what}")]
    Said {
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        what: String,
    },
    /// The trace is of version 2 of the format, which is another language.
    #[error(
        "the trace is CTF 2; CTF 1.8 can be read: make the session with `lttng create --trace-format=ctf-1.8`"
    )]
    Ctf2,
    /// It is no metadata at all.
    #[error("metadata: {0}")]
    Packet(&'static str),
    /// It is larger than [`TEXT_MAX`].
    #[error("metadata of more than {TEXT_MAX} bytes")]
    TooLarge,
    /// It ends within a declaration.
    #[error("the metadata ends within a declaration, at line {0}")]
    Unfinished(usize),
    /// Nothing says how numbers are written.
    #[error("the metadata has no `trace` block")]
    NoTrace,
}

/// A clock of the trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Clock {
    /// Its name; LTTng's is `monotonic`.
    pub name: String,
    /// LTTng writes the boot's id here, for its `monotonic`.
    pub uuid: Option<[u8; 16]>,
    /// For people.
    pub description: String,
    /// Ticks a second.
    pub frequency: u64,
    /// In ticks.
    pub precision: u64,
    /// What to add for the time since 1970, in seconds and ticks.
    pub offset_s: i64,
    /// See `offset_s`.
    pub offset: i64,
}

impl Clock {
    /// `ticks` since 1970 in ns, as babeltrace2 says it.
    pub fn since_1970_ns(&self, ticks: u64) -> i128 {
        let frequency = i128::from(self.frequency.max(1));
        let ns = |ticks: i128| ticks * 1_000_000_000 / frequency;
        i128::from(self.offset_s) * 1_000_000_000 + ns(i128::from(self.offset) + i128::from(ticks))
    }
}

/// A class of streams: what its packets and events have in common.
#[derive(Debug)]
pub struct StreamClass {
    /// As packets name it.
    pub id: u64,
    pub(crate) packet_context: Option<Plan>,
    pub(crate) event_header: Option<Plan>,
    /// The context that each event has.
    pub event_context: Option<Plan>,
    /// The clock that its times are of.
    pub clock: Option<Arc<str>>,
    /// Its events, in the order in which they were declared.
    pub events: Vec<EventClass>,
    by_id: BTreeMap<u64, u32>,
    resolver: Resolver,
}

impl StreamClass {
    /// What each packet says before its events.
    pub fn packet_context(&self) -> Option<&Plan> {
        self.packet_context.as_ref()
    }

    #[inline]
    pub(crate) fn event(&self, id: u64) -> Option<&EventClass> {
        // LTTng numbers them 0, 1, 2 in the order in which it declares them.
        if let Some(event) = self.events.get(id as usize)
            && event.id == id
        {
            return Some(event);
        }
        self.by_id.get(&id).map(|index| &self.events[*index as usize])
    }
}

/// A class of events.
#[derive(Debug)]
pub struct EventClass {
    /// As events name it, within its stream's class.
    pub id: u64,
    /// Its place among the stream class's events.
    pub index: u32,
    /// `provider:event`
    pub name: Arc<str>,
    /// The context that only this event has.
    pub context: Option<Plan>,
    /// Its own fields.
    pub payload: Option<Plan>,
}

/// A trace, as far as its metadata has come.
#[derive(Debug)]
pub struct Trace {
    unpacker: super::unpack::Unpacker,
    text: String,
    read: usize,
    lines: usize,
    scopes: Scopes,
    /// The byte order that packets have.
    pub order: Option<Order>,
    /// Packets carry it too.
    pub uuid: Option<[u8; 16]>,
    pub(crate) packet_header: Option<Plan>,
    resolver: Resolver,
    /// Events whose stream is not declared yet.
    early: Vec<(u64, Block)>,
    /// What the tracer says of itself and the machine.
    pub env: Vec<(String, String)>,
    /// The clocks, by declaration.
    pub clocks: Vec<Clock>,
    /// The classes of streams, by declaration.
    pub streams: Vec<StreamClass>,
}

impl Default for Trace {
    fn default() -> Self {
        Self {
            unpacker: Default::default(),
            text: String::new(),
            read: 0,
            lines: 1,
            scopes: Scopes::default(),
            order: None,
            uuid: None,
            packet_header: None,
            resolver: Resolver::new(Order::Little),
            early: Vec::new(),
            env: Vec::new(),
            clocks: Vec::new(),
            streams: Vec::new(),
        }
    }
}

impl Trace {
    /// All of the metadata at once, as a file has it: packets or plain text.
    pub fn read(bytes: &[u8]) -> Result<Self, MetadataError> {
        let mut trace = Self::default();
        trace.append(bytes)?;
        trace.finished()?;
        Ok(trace)
    }

    /// More of it: packets or plain text, cut anywhere.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), MetadataError> {
        if self.text.len() + bytes.len() > TEXT_MAX {
            return Err(MetadataError::TooLarge);
        }
        self.unpacker.append(bytes, &mut self.text)?;
        if self.text.starts_with('\u{1e}') {
            return Err(MetadataError::Ctf2);
        }
        let text = std::mem::take(&mut self.text);
        let done = self.declarations(&text);
        self.text = text;
        done
    }

    /// That nothing is missing at the end.
    pub fn finished(&self) -> Result<(), MetadataError> {
        let mut lexer = Lexer::new(&self.text, self.read);
        if self.unpacker.holds_bytes() || lexer.skip_space() != Ok(false) {
            return Err(MetadataError::Unfinished(self.lines));
        }
        if self.order.is_none() { Err(MetadataError::NoTrace) } else { Ok(()) }
    }

    /// The text as it came, without packets' heads.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The clock called `name`.
    pub fn clock(&self, name: &str) -> Option<&Clock> {
        self.clocks.iter().find(|clock| clock.name == name)
    }

    /// A value of the `env` block.
    pub fn env(&self, key: &str) -> Option<&str> {
        self.env.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
    }

    /// The class that packets name by `id`; without one, the only one.
    pub(crate) fn stream_index(&self, id: Option<u64>) -> Option<usize> {
        match id {
            Some(id) => self.streams.iter().position(|stream| stream.id == id),
            None => (self.streams.len() == 1).then_some(0),
        }
    }

    fn declarations(&mut self, text: &str) -> Result<(), MetadataError> {
        while let Some((tokens, end)) = self.next_declaration(text)? {
            let parsed = Parser::new(&tokens, &mut self.scopes).declaration();
            self.scopes.unwind();
            let at = |token: usize| tokens.get(token).or(tokens.last()).map_or(end, |(_, at)| *at);
            let declared = parsed.map_err(|(token, what)| self.said(text, at(token), what))?;
            if let Declaration::Block(keyword, block) = declared {
                self.block(&keyword, &block).map_err(|what| self.said(text, at(0), what))?;
            }
            self.lines += text[self.read..end].matches('\n').count();
            self.read = end;
        }
        Ok(())
    }

    fn said(&self, text: &str, at: usize, what: String) -> MetadataError {
        let line = self.lines + text.get(self.read..at).map_or(0, |before| before.matches('\n').count());
        MetadataError::Said { line, what }
    }

    /// The tokens up to the next `;` that is in no braces, and where they end; none if that has not come yet.
    #[expect(clippy::type_complexity, reason = "a pair that only the caller takes apart")]
    fn next_declaration<'t>(
        &self,
        text: &'t str,
    ) -> Result<Option<(Vec<(Token<'t>, usize)>, usize)>, MetadataError> {
        let (mut lexer, mut tokens, mut depth) = (Lexer::new(text, self.read), Vec::new(), 0_usize);
        loop {
            let (token, at) = match lexer.token() {
                Ok(token) => token,
                Err(LexError::End) => return Ok(None),
                Err(LexError::Bad(what)) => return Err(self.said(text, lexer.at(), what)),
            };
            match token {
                Token::Mark('{') => depth += 1,
                Token::Mark('}') => depth = depth.saturating_sub(1),
                _ => {}
            }
            let last = depth == 0 && token == Token::Mark(';');
            if tokens.len() == TOKENS_MAX {
                return Err(self.said(text, at, format!("a declaration of more than {TOKENS_MAX} words")));
            }
            tokens.push((token, at));
            if last {
                return Ok(Some((tokens, lexer.at())));
            }
        }
    }
}
