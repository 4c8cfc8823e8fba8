//! The handshake: fixed newstyle, and what is agreed on in it ("Fixed newstyle negotiation", "Option haggling").
//!
//! *In*: a stream and what is offered. *Out*: a [`Session`], or none where the client only wanted to look. *Invariant*: not
//! one byte beyond the handshake is read; a client that haggles for ever, or sends options of any length, is let go
//! after [`OPTIONS_MAX`] of them and [`OPTION_MAX`] bytes in one.
//!
//! It blocks: a stream with a deadline is its caller's matter. No TLS, no extended headers: both are refused by
//! `NBD_REP_ERR_UNSUP`, after which a client goes on without.

use std::io::{self, Read, Write};

use super::options::{Contexts, Info};
use super::reply::ALLOCATION;
use super::{Offer, PAYLOAD_MAX, Session, u32_at, u64_at};

/// Options that one client may send. A client of today sends 3 to 6.
pub const OPTIONS_MAX: usize = 64;
/// Bytes of one: two strings of 4,096, which is what one may have, and what is around them.
pub const OPTION_MAX: u32 = 16 << 10;

const GREETING: &[u8; 16] = b"NBDMAGICIHAVEOPT";
const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// `NBD_FLAG_FIXED_NEWSTYLE`, and the client's.
const FIXED_NEWSTYLE: u32 = 1;
/// `NBD_FLAG_NO_ZEROES`, and the client's.
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
mod answer {
    pub(super) const ACK: u32 = 1;
    pub(super) const SERVER: u32 = 2;
    pub(super) const INFO: u32 = 3;
    pub(super) const META_CONTEXT: u32 = 4;
    pub(super) const ERR_UNSUP: u32 = 1 << 31 | 1;
    pub(super) const ERR_INVALID: u32 = 1 << 31 | 3;
    pub(super) const ERR_UNKNOWN: u32 = 1 << 31 | 6;
    pub(super) const ERR_TOO_BIG: u32 = 1 << 31 | 9;
}

/// What `NBD_REP_INFO` tells.
mod info {
    pub(super) const EXPORT: u16 = 0;
    pub(super) const NAME: u16 = 1;
    pub(super) const BLOCK_SIZE: u16 = 3;
}

/// No session came of it.
#[derive(Debug, thiserror::Error)]
pub enum NoSession {
    /// The stream failed, ended, or took too long.
    #[error(transparent)]
    Stream(#[from] io::Error),
    /// The client broke a rule that every client keeps.
    #[error("{0}")]
    Violation(&'static str),
}

/// What one option led to.
enum Step {
    /// The next one.
    On,
    Begin,
    /// The client has said that it leaves.
    Leave,
}

/// Leads it to its end.
pub fn greet(stream: &mut (impl Read + Write), offer: &Offer) -> Result<Option<Session>, NoSession> {
    let flags = (FIXED_NEWSTYLE | NO_ZEROES) as u16;
    stream.write_all(&[&GREETING[..], &flags.to_be_bytes()].concat())?;
    let flags = u32::from_be_bytes(read(stream)?);
    if flags & !(FIXED_NEWSTYLE | NO_ZEROES) != 0 {
        return Err(NoSession::Violation("flags that were not offered"));
    }
    let mut haggling = Haggling { offer, session: Session::default(), zeroes: flags & NO_ZEROES == 0 };
    for _ in 0..OPTIONS_MAX {
        let header: [u8; 16] = read(stream)?;
        if u64_at(&header, 0) != OPTION_MAGIC {
            return Err(NoSession::Violation("an option without its magic"));
        }
        let (option, length) = (u32_at(&header, 8), u32_at(&header, 12));
        let mut out = Answers { option, bytes: Vec::new() };
        let step = match data(stream, length)? {
            Some(data) => haggling.take(&data, &mut out)?,
            // It cannot be answered otherwise.
            None if option == option::EXPORT_NAME => return Err(NoSession::Violation("an endless name")),
            None => out.end(answer::ERR_TOO_BIG),
        };
        stream.write_all(&out.bytes)?;
        match step {
            Step::On => {}
            Step::Begin => return Ok(Some(haggling.session)),
            Step::Leave => return Ok(None),
        }
    }
    Err(NoSession::Violation("endless haggling"))
}

struct Haggling<'a> {
    offer: &'a Offer,
    session: Session,
    /// 124 of them end the answer to `NBD_OPT_EXPORT_NAME`.
    zeroes: bool,
}

impl Haggling<'_> {
    fn take(&mut self, data: &[u8], out: &mut Answers) -> Result<Step, NoSession> {
        Ok(match out.option {
            option::EXPORT_NAME if self.offer.is_meant_by(data) => {
                out.bytes.extend(self.offer.size.to_be_bytes());
                out.bytes.extend(self.offer.flags(self.session).to_be_bytes());
                out.bytes.extend(vec![0; if self.zeroes { 124 } else { 0 }]);
                Step::Begin
            }
            option::EXPORT_NAME => return Err(NoSession::Violation("an export that is not here")),
            option::ABORT => {
                out.end(answer::ACK);
                Step::Leave
            }
            option::LIST if data.is_empty() => {
                let name = self.offer.name.as_bytes();
                out.say(answer::SERVER, &[&(name.len() as u32).to_be_bytes(), name]);
                out.end(answer::ACK)
            }
            option::STRUCTURED_REPLY if data.is_empty() => {
                self.session.structured = true;
                out.end(answer::ACK)
            }
            option::LIST | option::STRUCTURED_REPLY => out.end(answer::ERR_INVALID),
            option::INFO | option::GO => self.inform(data, out),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.select(data, out),
            _ => out.end(answer::ERR_UNSUP),
        })
    }

    fn inform(&self, data: &[u8], out: &mut Answers) -> Step {
        let Some(asked) = Info::decode(data) else { return out.end(answer::ERR_INVALID) };
        if !self.offer.is_meant_by(asked.name) {
            return out.end(answer::ERR_UNKNOWN);
        }
        let export = (self.offer.size.to_be_bytes(), self.offer.flags(self.session).to_be_bytes());
        out.say(answer::INFO, &[&info::EXPORT.to_be_bytes(), &export.0, &export.1]);
        if asked.asked.contains(&info::NAME) {
            out.say(answer::INFO, &[&info::NAME.to_be_bytes(), self.offer.name.as_bytes()]);
        }
        // Any byte can be addressed; a page of the cache is what is best.
        let sizes = [1_u32, 4_096, PAYLOAD_MAX].map(u32::to_be_bytes);
        out.say(answer::INFO, &[&info::BLOCK_SIZE.to_be_bytes(), &sizes.concat()]);
        let go = out.option == option::GO;
        out.end(answer::ACK);
        if go { Step::Begin } else { Step::On }
    }

    fn select(&mut self, data: &[u8], out: &mut Answers) -> Step {
        let sets = out.option == option::SET_META_CONTEXT;
        if sets {
            // It replaces what was selected before, whatever comes of it.
            self.session.allocation = false;
        }
        let Some(asked) = Contexts::decode(data).filter(|_| self.session.structured) else {
            return out.end(answer::ERR_INVALID);
        };
        if !self.offer.is_meant_by(asked.name) {
            return out.end(answer::ERR_UNKNOWN);
        }
        let listed = |query: &&[u8]| !sets && *query == b"base:";
        let meant = asked.queries.iter().any(|query| *query == b"base:allocation" || listed(query))
            || (!sets && asked.queries.is_empty());
        if meant {
            // Its number is reserved in a list.
            let number = if sets { ALLOCATION } else { 0 };
            out.say(answer::META_CONTEXT, &[&number.to_be_bytes(), b"base:allocation"]);
            self.session.allocation |= sets;
        }
        out.end(answer::ACK)
    }
}

/// The replies to one option, sent together.
struct Answers {
    option: u32,
    bytes: Vec<u8>,
}

impl Answers {
    fn say(&mut self, kind: u32, data: &[&[u8]]) {
        self.bytes.extend(REPLY_MAGIC.to_be_bytes());
        self.bytes.extend(self.option.to_be_bytes());
        self.bytes.extend(kind.to_be_bytes());
        let length: usize = data.iter().map(|part| part.len()).sum();
        self.bytes.extend((length as u32).to_be_bytes());
        data.iter().for_each(|part| self.bytes.extend(*part));
    }

    /// The last one.
    fn end(&mut self, kind: u32) -> Step {
        self.say(kind, &[]);
        Step::On
    }
}

fn read<const N: usize>(stream: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// An option's data; none of what is too long is kept.
fn data(stream: &mut impl Read, length: u32) -> Result<Option<Vec<u8>>, NoSession> {
    /// What is read in vain to answer properly. More is no mistake.
    const SKIPPED_MAX: u32 = 1 << 20;
    if length > SKIPPED_MAX {
        return Err(NoSession::Violation("an endless option"));
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
