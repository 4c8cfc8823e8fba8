//! Snapshot format of a stage's state: a header, then [postcard](https://postcard.jamesmunns.com).
//!
//! ```text
//! "bkst" | version u32 | stage u8 | fingerprint of the configuration u64 | state          (integers little-endian)
//! ```
//!
//! *In*: a stage between two records. *Out*: bytes, and the stage again.
//!
//! *Invariant*: bytes of a version that is not supported are refused. The format is private to the
//! aggregator. It changes with the types in the state, and [`VERSION`] with it.
//!
//! *Rejected*: a self-describing format with optional fields. A state that is read with defaults
//! would emit other fragments under the same numbers.

use blkkin_wire::fragment::StageId;
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

/// Version of the format. Raise it when a type in a state changes; `golden_states.rs` notices.
pub const VERSION: u32 = 17;
/// Oldest version that is restored. A release restores the states of the one before, so a raise of
/// [`VERSION`] raises this only if no release had the older version.
pub const OLDEST: u32 = 17;

const MAGIC: [u8; 4] = *b"bkst";

/// Reason why bytes cannot be restored.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SnapshotError {
    /// The bytes are not a snapshot.
    #[error("not a snapshot")]
    NotASnapshot,
    /// The snapshot has another version.
    #[error("the snapshot has format version {0}, and this release reads version {VERSION}")]
    Version(u32),
    /// The snapshot is of another stage.
    #[error("the snapshot is of another stage")]
    OtherStage,
    /// The snapshot is corrupt.
    #[error("the snapshot is corrupt: {0}")]
    Corrupt(String),
}

/// A snapshot that was read.
#[derive(Debug)]
pub(super) struct Snapshot<T> {
    pub(super) state: T,
    /// Fingerprint of the configuration under which it was saved.
    pub(super) fingerprint: u64,
}

pub(super) fn write(
    stage: StageId,
    fingerprint: u64,
    state: &impl Serialize,
) -> Result<Vec<u8>, SnapshotError> {
    let mut bytes = Vec::from(MAGIC);
    bytes.extend(VERSION.to_le_bytes());
    bytes.push(stage_byte(stage));
    bytes.extend(fingerprint.to_le_bytes());
    postcard::to_extend(state, bytes).map_err(|error| SnapshotError::Corrupt(error.to_string()))
}

pub(super) fn read<T: DeserializeOwned>(stage: StageId, bytes: &[u8]) -> Result<Snapshot<T>, SnapshotError> {
    let (magic, rest) = bytes.split_first_chunk::<4>().ok_or(SnapshotError::NotASnapshot)?;
    let (version, rest) = rest.split_first_chunk::<4>().ok_or(SnapshotError::NotASnapshot)?;
    if *magic != MAGIC {
        return Err(SnapshotError::NotASnapshot);
    }
    match u32::from_le_bytes(*version) {
        VERSION => {}
        other => return Err(SnapshotError::Version(other)),
    }
    let corrupt = |why: &str| SnapshotError::Corrupt(why.to_owned());
    let (of, rest) = rest.split_first().ok_or_else(|| corrupt("it ends within its header"))?;
    if *of != stage_byte(stage) {
        return Err(SnapshotError::OtherStage);
    }
    let (fingerprint, rest) =
        rest.split_first_chunk::<8>().ok_or_else(|| corrupt("it ends within its header"))?;
    let (state, over) = postcard::take_from_bytes(rest).map_err(|error| corrupt(&error.to_string()))?;
    if !over.is_empty() {
        return Err(corrupt("it has trailing bytes"));
    }
    Ok(Snapshot { state, fingerprint: u64::from_le_bytes(*fingerprint) })
}

/// Returns a fingerprint (FNV-1a) of the configuration and the release, on which a stage's output
/// depends.
pub(super) fn fingerprint(config: &impl Serialize) -> u64 {
    let config = postcard::to_stdvec(config).unwrap_or_default();
    let all = config.iter().chain(env!("CARGO_PKG_VERSION").as_bytes());
    all.fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

pub(super) fn stage_byte(stage: StageId) -> u8 {
    match stage {
        StageId::Join => 1,
        StageId::Assemble => 2,
        StageId::Link => 3,
    }
}
