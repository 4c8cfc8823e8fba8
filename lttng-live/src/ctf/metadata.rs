//! Metadata of a trace.
//!
//! *In*: metadata, all at once or as it arrives. *Out*: a [`CtfTrace`] with its classes of streams and
//! events.
//!
//! LTTng appends to the metadata when programs start. The parser reads a declaration when it is
//! complete, and never reads it again.
//!
//! *Invariant*: a trace is rejected from the first declaration that is not understood. A wrong
//! guess of one field's size would invalidate every field after it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::lexer::{LexError, Lexer, Token};
use super::parser::{Block, Declaration, Parser, Scopes};
use super::plan::Plan;
use super::resolve::Resolver;
use super::types::ByteOrder;

mod blocks;

/// Maximum size of the metadata in bytes. LTTng's has about 1 KiB per event.
pub const TEXT_MAX: usize = 32 << 20;
/// Maximum number of tokens per declaration, of 40 bytes each. LTTng's longest has some hundreds.
const TOKENS_MAX: usize = 1 << 18;

/// Reason why a trace cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MetadataError {
    /// A declaration is invalid or not supported.
    #[error("metadata, line {line}: {problem}")]
    Invalid {
        /// Line number, from 1.
        line: usize,
        /// Description of the problem.
        problem: String,
    },
    /// The trace is CTF 2, which has another metadata language.
    #[error(
        "CTF 2 is not supported, only CTF 1.8: create the session with `lttng create --trace-format=ctf-1.8`"
    )]
    Ctf2,
    /// The data is not metadata.
    #[error("metadata: {0}")]
    Packet(&'static str),
    /// The metadata is larger than [`TEXT_MAX`].
    #[error("the metadata is larger than {TEXT_MAX} bytes")]
    TooLarge,
    /// The metadata ends within a declaration.
    #[error("the metadata ends within a declaration, at line {0}")]
    Incomplete(usize),
    /// The byte order is not declared.
    #[error("the metadata has no `trace` block")]
    NoTrace,
}

/// Clock of a trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CtfClock {
    /// Name; LTTng's is `monotonic`.
    pub name: String,
    /// Boot id, for LTTng's `monotonic`.
    pub uuid: Option<[u8; 16]>,
    /// Description for users.
    pub description: String,
    /// Ticks per second.
    pub frequency: u64,
    /// Precision in ticks.
    pub precision: u64,
    /// Seconds from 1970 to the clock's 0.
    pub offset_s: i64,
    /// Ticks from 1970 to the clock's 0, in addition to `offset_s`.
    pub offset: i64,
}

impl CtfClock {
    /// Converts `ticks` to ns since 1970, as babeltrace2 does.
    pub fn since_1970_ns(&self, ticks: u64) -> i128 {
        let frequency = i128::from(self.frequency.max(1));
        let ns = |ticks: i128| ticks * 1_000_000_000 / frequency;
        i128::from(self.offset_s) * 1_000_000_000 + ns(i128::from(self.offset) + i128::from(ticks))
    }
}

/// Class of streams: the common structure of their packets and events.
#[derive(Debug)]
pub struct StreamClass {
    /// Id in packets.
    pub id: u64,
    pub(crate) packet_context: Option<Plan>,
    pub(crate) event_header: Option<Plan>,
    /// Context of each event.
    pub event_context: Option<Plan>,
    /// Clock of the timestamps.
    pub clock: Option<Arc<str>>,
    /// Classes of events, in order of declaration.
    pub events: Vec<EventClass>,
    by_id: BTreeMap<u64, u32>,
    resolver: Resolver,
}

impl StreamClass {
    /// Returns the plan of the packet context.
    pub fn packet_context(&self) -> Option<&Plan> {
        self.packet_context.as_ref()
    }

    #[inline]
    pub(crate) fn event(&self, id: u64) -> Option<&EventClass> {
        // LTTng numbers events 0, 1, 2 in order of declaration.
        if let Some(event) = self.events.get(id as usize)
            && event.id == id
        {
            return Some(event);
        }
        self.by_id.get(&id).map(|index| &self.events[*index as usize])
    }
}

/// Class of events: the name and the field layout that its events share.
#[derive(Debug)]
pub struct EventClass {
    /// Id in events, unique in its class of streams.
    pub id: u64,
    /// Index among the events of its class of streams.
    pub index: u32,
    /// Name, in the form `provider:event`.
    pub name: Arc<str>,
    /// Context of this class only.
    pub context: Option<Plan>,
    /// Fields of the event.
    pub payload: Option<Plan>,
}

/// Trace, as far as its metadata has arrived.
#[derive(Debug)]
pub struct CtfTrace {
    unpacker: super::unpack::Unpacker,
    text: String,
    parsed: usize,
    lines: usize,
    scopes: Scopes,
    /// Byte order of packets.
    pub order: Option<ByteOrder>,
    /// UUID, which packets repeat.
    pub uuid: Option<[u8; 16]>,
    pub(crate) packet_header: Option<Plan>,
    resolver: Resolver,
    /// Events with a class of streams that is not declared yet.
    events_before_stream: Vec<(u64, Block)>,
    /// Entries of `env`: properties of the tracer and the machine.
    pub env: Vec<(String, String)>,
    /// Clocks, in order of declaration.
    pub clocks: Vec<CtfClock>,
    /// Classes of streams, in order of declaration.
    pub streams: Vec<StreamClass>,
}

impl Default for CtfTrace {
    fn default() -> Self {
        Self {
            unpacker: Default::default(),
            text: String::new(),
            parsed: 0,
            lines: 1,
            scopes: Scopes::default(),
            order: None,
            uuid: None,
            packet_header: None,
            resolver: Resolver::new(ByteOrder::Little),
            events_before_stream: Vec::new(),
            env: Vec::new(),
            clocks: Vec::new(),
            streams: Vec::new(),
        }
    }
}

impl CtfTrace {
    /// Reads complete metadata, as packets or plain text.
    pub fn read(bytes: &[u8]) -> Result<Self, MetadataError> {
        let mut trace = Self::default();
        trace.append(bytes)?;
        trace.check_complete()?;
        Ok(trace)
    }

    /// Adds a fragment of metadata, as packets or plain text.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), MetadataError> {
        if self.text.len() + bytes.len() > TEXT_MAX {
            return Err(MetadataError::TooLarge);
        }
        self.unpacker.append(bytes, &mut self.text)?;
        if self.text.starts_with('\u{1e}') {
            return Err(MetadataError::Ctf2);
        }
        let text = std::mem::take(&mut self.text);
        let result = self.declarations(&text);
        self.text = text;
        result
    }

    /// Returns an error if the metadata is incomplete.
    pub fn check_complete(&self) -> Result<(), MetadataError> {
        let mut lexer = Lexer::new(&self.text, self.parsed);
        if self.unpacker.has_partial_input() || lexer.skip_space() != Ok(false) {
            return Err(MetadataError::Incomplete(self.lines));
        }
        if self.order.is_none() { Err(MetadataError::NoTrace) } else { Ok(()) }
    }

    /// Returns the text without packet headers.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the clock with this name.
    pub fn clock(&self, name: &str) -> Option<&CtfClock> {
        self.clocks.iter().find(|clock| clock.name == name)
    }

    /// Returns a value of the `env` block.
    pub fn env(&self, key: &str) -> Option<&str> {
        self.env.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
    }

    /// Returns the class of streams with this id; without an id, the only class.
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
            let declaration = parsed.map_err(|(token, problem)| self.error_at(text, at(token), problem))?;
            if let Declaration::Block(keyword, block) = declaration {
                self.block(&keyword, &block).map_err(|problem| self.error_at(text, at(0), problem))?;
            }
            self.lines += text[self.parsed..end].matches('\n').count();
            self.parsed = end;
        }
        Ok(())
    }

    fn error_at(&self, text: &str, at: usize, problem: String) -> MetadataError {
        let line = self.lines + text.get(self.parsed..at).map_or(0, |before| before.matches('\n').count());
        MetadataError::Invalid { line, problem }
    }

    /// Returns the tokens up to the next `;` outside of braces, and their end; `None` if it has not
    /// arrived.
    #[expect(clippy::type_complexity, reason = "a pair that only the caller takes apart")]
    fn next_declaration<'t>(
        &self,
        text: &'t str,
    ) -> Result<Option<(Vec<(Token<'t>, usize)>, usize)>, MetadataError> {
        let (mut lexer, mut tokens, mut depth) = (Lexer::new(text, self.parsed), Vec::new(), 0_usize);
        loop {
            let (token, at) = match lexer.token() {
                Ok(token) => token,
                Err(LexError::Incomplete) => return Ok(None),
                Err(LexError::Invalid(problem)) => return Err(self.error_at(text, lexer.at(), problem)),
            };
            match token {
                Token::Punctuation('{') => depth += 1,
                Token::Punctuation('}') => depth = depth.saturating_sub(1),
                _ => {}
            }
            let is_last = depth == 0 && token == Token::Punctuation(';');
            if tokens.len() == TOKENS_MAX {
                return Err(self.error_at(
                    text,
                    at,
                    format!("a declaration has more than {TOKENS_MAX} tokens"),
                ));
            }
            tokens.push((token, at));
            if is_last {
                return Ok(Some((tokens, lexer.at())));
            }
        }
    }
}
