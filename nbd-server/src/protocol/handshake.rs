//! Handshake: fixed newstyle negotiation of the export and its features ("Fixed newstyle
//! negotiation", "Option haggling").
//!
//! *In*: a stream and the description of the export. *Out*: a [`Session`], or none if the client
//! ended the negotiation with `NBD_OPT_ABORT`. *Invariant*: this module reads no byte after the
//! handshake. It closes a negotiation after [`OPTIONS_MAX`] options, and stores at most
//! [`OPTION_MAX`] bytes of one option.
//!
//! The stream blocks; its deadline is the caller's task. The server supports neither TLS nor
//! extended headers. It refuses both with `NBD_REP_ERR_UNSUP`, and a client continues without them.

use std::io::{self, Read, Write};

use super::options::{InfoRequest, MetaContexts};
use super::reply::ALLOCATION;
use super::{ExportInfo, PAYLOAD_MAX, Session, u32_at, u64_at};

/// Largest number of options from one client. Current clients send 3 to 6.
pub const OPTIONS_MAX: usize = 64;
/// Largest size of an option's data in bytes: two strings of 4,096 bytes, the protocol's limit for
/// a string, and the fields around them.
pub const OPTION_MAX: u32 = 16 << 10;

const GREETING: &[u8; 16] = b"NBDMAGICIHAVEOPT";
const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// `NBD_FLAG_FIXED_NEWSTYLE` and `NBD_FLAG_C_FIXED_NEWSTYLE`.
const FIXED_NEWSTYLE: u32 = 1;
/// `NBD_FLAG_NO_ZEROES` and `NBD_FLAG_C_NO_ZEROES`.
const NO_ZEROES: u32 = 1 << 1;

/// "Option types".
mod option {
    pub(super) const EXPORT_NAME: u32 = 1;
    pub(super) const ABORT: u32 = 2;
    pub(super) const LIST: u32 = 3;
    pub(super) const INFO: u32 = 6;
    pub(super) const GO: u32 = 7;
    pub(super) const STRUCTURED_REPLY: u32 = 8;
    pub(super) const LIST_META_CONTEXT: u32 = 9;
    pub(super) const SET_META_CONTEXT: u32 = 10;
}

/// "Option reply types".
mod reply_type {
    pub(super) const ACK: u32 = 1;
    pub(super) const SERVER: u32 = 2;
    pub(super) const INFO: u32 = 3;
    pub(super) const META_CONTEXT: u32 = 4;
    pub(super) const ERR_UNSUP: u32 = 1 << 31 | 1;
    pub(super) const ERR_INVALID: u32 = 1 << 31 | 3;
    pub(super) const ERR_UNKNOWN: u32 = 1 << 31 | 6;
    pub(super) const ERR_TOO_BIG: u32 = 1 << 31 | 9;
}

/// Information types of `NBD_REP_INFO`.
mod info {
    pub(super) const EXPORT: u16 = 0;
    pub(super) const NAME: u16 = 1;
    pub(super) const BLOCK_SIZE: u16 = 3;
}

/// Error that ends a negotiation.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The stream failed, ended or reached its deadline.
    #[error(transparent)]
    Stream(#[from] io::Error),
    /// The client violated the protocol or a limit.
    #[error("{0}")]
    Violation(&'static str),
}

/// State of the negotiation after an option.
enum Step {
    NextOption,
    Transmission,
    Aborted,
}

/// Runs the handshake on `stream`. Returns none if the client aborted it.
pub fn negotiate(
    stream: &mut (impl Read + Write),
    export: &ExportInfo,
) -> Result<Option<Session>, HandshakeError> {
    let flags = (FIXED_NEWSTYLE | NO_ZEROES) as u16;
    stream.write_all(&[&GREETING[..], &flags.to_be_bytes()].concat())?;
    let flags = u32::from_be_bytes(read(stream)?);
    if flags & !(FIXED_NEWSTYLE | NO_ZEROES) != 0 {
        return Err(HandshakeError::Violation("unknown client flags"));
    }
    let mut negotiation = Negotiation { export, session: Session::default(), zeroes: flags & NO_ZEROES == 0 };
    for _ in 0..OPTIONS_MAX {
        let header: [u8; 16] = read(stream)?;
        if u64_at(&header, 0) != OPTION_MAGIC {
            return Err(HandshakeError::Violation("wrong option magic"));
        }
        let (option, length) = (u32_at(&header, 8), u32_at(&header, 12));
        let mut replies = OptionReplies { option, bytes: Vec::new() };
        let step = match read_data(stream, length)? {
            Some(data) => negotiation.process(&data, &mut replies)?,
            // `NBD_OPT_EXPORT_NAME` has no error reply: the server can only disconnect.
            None if option == option::EXPORT_NAME => {
                return Err(HandshakeError::Violation("export name too long"));
            }
            None => replies.finish(reply_type::ERR_TOO_BIG),
        };
        stream.write_all(&replies.bytes)?;
        match step {
            Step::NextOption => {}
            Step::Transmission => return Ok(Some(negotiation.session)),
            Step::Aborted => return Ok(None),
        }
    }
    Err(HandshakeError::Violation("too many options"))
}

struct Negotiation<'a> {
    export: &'a ExportInfo,
    session: Session,
    /// True if the reply to `NBD_OPT_EXPORT_NAME` ends in 124 zero bytes.
    zeroes: bool,
}

impl Negotiation<'_> {
    fn process(&mut self, data: &[u8], replies: &mut OptionReplies) -> Result<Step, HandshakeError> {
        Ok(match replies.option {
            option::EXPORT_NAME if self.export.matches_name(data) => {
                replies.bytes.extend(self.export.size.to_be_bytes());
                replies.bytes.extend(self.export.flags(self.session).to_be_bytes());
                replies.bytes.extend(vec![0; if self.zeroes { 124 } else { 0 }]);
                Step::Transmission
            }
            option::EXPORT_NAME => return Err(HandshakeError::Violation("unknown export")),
            option::ABORT => {
                replies.finish(reply_type::ACK);
                Step::Aborted
            }
            option::LIST if data.is_empty() => {
                let name = self.export.name.as_bytes();
                replies.push(reply_type::SERVER, &[&(name.len() as u32).to_be_bytes(), name]);
                replies.finish(reply_type::ACK)
            }
            option::STRUCTURED_REPLY if data.is_empty() => {
                self.session.structured = true;
                replies.finish(reply_type::ACK)
            }
            option::LIST | option::STRUCTURED_REPLY => replies.finish(reply_type::ERR_INVALID),
            option::INFO | option::GO => self.send_info(data, replies),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.meta_contexts(data, replies),
            _ => replies.finish(reply_type::ERR_UNSUP),
        })
    }

    /// Handles `NBD_OPT_INFO` and `NBD_OPT_GO`.
    fn send_info(&self, data: &[u8], replies: &mut OptionReplies) -> Step {
        let Some(request) = InfoRequest::decode(data) else {
            return replies.finish(reply_type::ERR_INVALID);
        };
        if !self.export.matches_name(request.name) {
            return replies.finish(reply_type::ERR_UNKNOWN);
        }
        let export = (self.export.size.to_be_bytes(), self.export.flags(self.session).to_be_bytes());
        replies.push(reply_type::INFO, &[&info::EXPORT.to_be_bytes(), &export.0, &export.1]);
        if request.types.contains(&info::NAME) {
            replies.push(reply_type::INFO, &[&info::NAME.to_be_bytes(), self.export.name.as_bytes()]);
        }
        // Minimum: any byte is addressable. Preferred: one page of the page cache.
        let sizes = [1_u32, 4_096, PAYLOAD_MAX].map(u32::to_be_bytes);
        replies.push(reply_type::INFO, &[&info::BLOCK_SIZE.to_be_bytes(), &sizes.concat()]);
        let go = replies.option == option::GO;
        replies.finish(reply_type::ACK);
        if go { Step::Transmission } else { Step::NextOption }
    }

    /// Handles `NBD_OPT_LIST_META_CONTEXT` and `NBD_OPT_SET_META_CONTEXT`.
    fn meta_contexts(&mut self, data: &[u8], replies: &mut OptionReplies) -> Step {
        let sets = replies.option == option::SET_META_CONTEXT;
        if sets {
            // A set request replaces the previous selection even if it fails.
            self.session.allocation = false;
        }
        let Some(request) = MetaContexts::decode(data).filter(|_| self.session.structured) else {
            return replies.finish(reply_type::ERR_INVALID);
        };
        if !self.export.matches_name(request.name) {
            return replies.finish(reply_type::ERR_UNKNOWN);
        }
        let lists = |query: &&[u8]| !sets && *query == b"base:";
        let matches = request.queries.iter().any(|query| *query == b"base:allocation" || lists(query))
            || (!sets && request.queries.is_empty());
        if matches {
            // In a list the context id is reserved and 0.
            let id = if sets { ALLOCATION } else { 0 };
            replies.push(reply_type::META_CONTEXT, &[&id.to_be_bytes(), b"base:allocation"]);
            self.session.allocation |= sets;
        }
        replies.finish(reply_type::ACK)
    }
}

/// Replies to one option, which are sent with one write.
struct OptionReplies {
    option: u32,
    bytes: Vec<u8>,
}

impl OptionReplies {
    fn push(&mut self, kind: u32, data: &[&[u8]]) {
        self.bytes.extend(REPLY_MAGIC.to_be_bytes());
        self.bytes.extend(self.option.to_be_bytes());
        self.bytes.extend(kind.to_be_bytes());
        let length: usize = data.iter().map(|part| part.len()).sum();
        self.bytes.extend((length as u32).to_be_bytes());
        data.iter().for_each(|part| self.bytes.extend(*part));
    }

    /// Appends the final reply.
    fn finish(&mut self, kind: u32) -> Step {
        self.push(kind, &[]);
        Step::NextOption
    }
}

fn read<const N: usize>(stream: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Reads an option's data. Returns none, and has skipped the data, if it is longer than
/// [`OPTION_MAX`].
fn read_data(stream: &mut impl Read, length: u32) -> Result<Option<Vec<u8>>, HandshakeError> {
    /// Largest data that the server skips in order to reply with an error.
    const SKIPPED_MAX: u32 = 1 << 20;
    if length > SKIPPED_MAX {
        return Err(HandshakeError::Violation("option too long"));
    }
    if length > OPTION_MAX {
        let skipped = io::copy(&mut stream.take(length.into()), &mut io::sink())?;
        let all = skipped == u64::from(length);
        return if all { Ok(None) } else { Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()) };
    }
    let mut data = vec![0; length as usize];
    stream.read_exact(&mut data)?;
    Ok(Some(data))
}

#[cfg(test)]
#[path = "handshake_tests.rs"]
mod tests;
