//! A stage's state as bytes: a header that says what they are, then [postcard](https://postcard.jamesmunns.com).
//!
//! ```text
//! "bkst" | version u32 | stage u8 | fingerprint of the configuration u64 | state          (integers little-endian)
//! ```
//!
//! *Invariant*: bytes of another version are refused, not guessed at. The format is nobody else's business: it changes with
//! the join, and [`VERSION`] with it.

use blkkin_wire::fragment::Stage;
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

/// Of what is in a state. Raise it when a type in one changes.
pub const VERSION: u32 = 6;

const MAGIC: [u8; 4] = *b"bkst";

/// Why bytes are no state that one can go on from.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unreadable {
    /// They are something else.
    #[error("this is no saved state")]
    Foreign,
    /// Saved by another version.
    #[error("the state was saved in version {0} of its format, and this blkkin knows version {VERSION}")]
    Version(u32),
    /// Of another stage.
    #[error("this is the state of another stage")]
    Stage,
    /// They do not read as they should.
    #[error("the state is damaged: {0}")]
    Damaged(String),
}

/// What was read.
#[derive(Debug)]
pub(super) struct Read<T> {
    pub(super) state: T,
    /// Of the configuration under which it was saved.
    pub(super) fingerprint: u64,
}

pub(super) fn write(
    stage: Stage,
    fingerprint: u64,
    state: &impl Serialize,
) -> Result<Vec<u8>, postcard::Error> {
    let mut bytes = Vec::from(MAGIC);
    bytes.extend(VERSION.to_le_bytes());
    bytes.push(stage_byte(stage));
    bytes.extend(fingerprint.to_le_bytes());
    postcard::to_extend(state, bytes)
}

pub(super) fn read<T: DeserializeOwned>(stage: Stage, bytes: &[u8]) -> Result<Read<T>, Unreadable> {
    let (magic, rest) = bytes.split_first_chunk::<4>().ok_or(Unreadable::Foreign)?;
    let (version, rest) = rest.split_first_chunk::<4>().ok_or(Unreadable::Foreign)?;
    if *magic != MAGIC {
        return Err(Unreadable::Foreign);
    }
    match u32::from_le_bytes(*version) {
        VERSION => {}
        other => return Err(Unreadable::Version(other)),
    }
    let damaged = |why: &str| Unreadable::Damaged(why.to_owned());
    let (of, rest) = rest.split_first().ok_or_else(|| damaged("it ends in its header"))?;
    if *of != stage_byte(stage) {
        return Err(Unreadable::Stage);
    }
    let (fingerprint, rest) =
        rest.split_first_chunk::<8>().ok_or_else(|| damaged("it ends in its header"))?;
    let (state, over) = postcard::take_from_bytes(rest).map_err(|error| damaged(&error.to_string()))?;
    if !over.is_empty() {
        return Err(damaged("it goes on behind its end"));
    }
    Ok(Read { state, fingerprint: u64::from_le_bytes(*fingerprint) })
}

/// What a stage gives out depends on: its configuration, and who reads it. FNV-1a.
pub(super) fn fingerprint(config: &impl Serialize) -> u64 {
    let config = postcard::to_stdvec(config).unwrap_or_default();
    let all = config.iter().chain(env!("CARGO_PKG_VERSION").as_bytes());
    all.fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

pub(super) fn stage_byte(stage: Stage) -> u8 {
    match stage {
        Stage::Join => 1,
        Stage::Assemble => 2,
        Stage::Link => 3,
    }
}
