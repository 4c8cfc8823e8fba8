//! A request: its header, and whether it may be carried out.
//!
//! *In*: 28 bytes. *Out*: a [`Request`]; [`Request::check`] says what is wrong with it, as the error that the protocol
//! wants for it. *Invariant*: what passed the check lies inside the export and is no longer than [`PAYLOAD_MAX`] where
//! it carries data.

use super::{Offer, PAYLOAD_MAX, Session, u32_at, u64_at};

/// Bytes of a request's header ("Request message").
pub const HEADER: usize = 28;
const MAGIC: u32 = 0x2560_9513;

/// "Command flags".
pub mod flags {
    /// The answer comes when what was written is on stable storage.
    pub const FUA: u16 = 1;
    /// Write zeroes: allocated ones.
    pub const NO_HOLE: u16 = 1 << 1;
    /// Read: in one piece.
    pub const DF: u16 = 1 << 2;
    /// Block status: one extent only.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Write zeroes: only if that takes less than writing them.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// "Request types".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Command {
    /// `NBD_CMD_READ`
    Read,
    /// `NBD_CMD_WRITE`
    Write,
    /// `NBD_CMD_DISC`
    Disconnect,
    /// `NBD_CMD_FLUSH`
    Flush,
    /// `NBD_CMD_TRIM`
    Trim,
    /// `NBD_CMD_CACHE`
    Cache,
    /// `NBD_CMD_WRITE_ZEROES`
    WriteZeroes,
    /// `NBD_CMD_BLOCK_STATUS`
    BlockStatus,
    /// None that is known here.
    Unknown(u16),
}

/// One request as the client wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What is asked.
    pub command: Command,
    /// See [`flags`].
    pub flags: u16,
    /// The client's number of it: may come again once it is answered.
    pub cookie: u64,
    /// Where, in bytes.
    pub offset: u64,
    /// How much, in bytes.
    pub length: u32,
}

/// "Error values": what the client is answered, and nothing else ever is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal(u32);

impl Refusal {
    /// `EPERM`
    pub const PERM: Refusal = Refusal(1);
    /// `EIO`
    pub const IO: Refusal = Refusal(5);
    /// `EINVAL`
    pub const INVAL: Refusal = Refusal(22);
    /// `ENOSPC`
    pub const NOSPC: Refusal = Refusal(28);
    /// `EOVERFLOW`
    pub const OVERFLOW: Refusal = Refusal(75);
    /// `ENOTSUP`: by Linux' number of `EOPNOTSUPP`, which is the protocol's.
    pub const NOTSUP: Refusal = Refusal(95);

    /// The protocol's word for an error of the system: those that it has none for are I/O errors.
    pub fn of_errno(errno: i32) -> Self {
        match errno {
            libc::EPERM | libc::EROFS => Self::PERM,
            libc::ENOMEM => Refusal(12),
            libc::EINVAL => Self::INVAL,
            libc::ENOSPC | libc::EDQUOT | libc::EFBIG => Self::NOSPC,
            libc::EOVERFLOW => Self::OVERFLOW,
            libc::EOPNOTSUPP => Self::NOTSUP,
            libc::ESHUTDOWN => Refusal(108),
            _ => Self::IO,
        }
    }

    /// On the wire; on Linux also the errno.
    pub fn number(self) -> u32 {
        self.0
    }
}

impl Command {
    fn of_number(number: u16) -> Self {
        match number {
            0 => Self::Read,
            1 => Self::Write,
            2 => Self::Disconnect,
            3 => Self::Flush,
            4 => Self::Trim,
            5 => Self::Cache,
            6 => Self::WriteZeroes,
            7 => Self::BlockStatus,
            other => Self::Unknown(other),
        }
    }

    /// FUA is valid with every command; who does not write may ignore it ("Command flags").
    fn flags(self, session: Session) -> u16 {
        use flags::*;
        FUA | match self {
            Self::Read if session.structured => DF,
            Self::WriteZeroes => NO_HOLE | FAST_ZERO,
            Self::BlockStatus => REQ_ONE,
            _ => 0,
        }
    }
}

impl Request {
    /// None: these bytes begin no request, and where the next one begins cannot be known.
    pub fn decode(header: &[u8; HEADER]) -> Option<Self> {
        if u32_at(header, 0) != MAGIC {
            return None;
        }
        Some(Self {
            flags: u16::from_be_bytes([header[4], header[5]]),
            command: Command::of_number(u16::from_be_bytes([header[6], header[7]])),
            cookie: u64_at(header, 8),
            offset: u64_at(header, 16),
            length: u32_at(header, 24),
        })
    }

    /// Whether the flag (or all of them) is set.
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag == flag
    }

    /// Bytes that follow the header.
    pub(super) fn payload(&self) -> u32 {
        if self.command == Command::Write { self.length } else { 0 }
    }

    /// Bytes of data that it and its reply carry, if it is carried out.
    pub(crate) fn data(&self) -> usize {
        let carries = matches!(self.command, Command::Read | Command::Write) && self.length <= PAYLOAD_MAX;
        if carries { self.length as usize } else { 0 }
    }

    /// Whether it may be carried out on what was offered.
    pub fn check(&self, offer: &Offer, session: Session) -> Result<(), Refusal> {
        use Command::*;
        if matches!(self.command, Unknown(_)) || self.flags & !self.command.flags(session) != 0 {
            return Err(Refusal::INVAL);
        }
        if matches!(self.command, Flush | Disconnect) {
            return if self.offset == 0 && self.length == 0 { Ok(()) } else { Err(Refusal::INVAL) };
        }
        let writes = matches!(self.command, Write | Trim | WriteZeroes);
        if writes && offer.read_only {
            return Err(Refusal::PERM);
        }
        if self.command == BlockStatus && !(session.structured && session.allocation) {
            return Err(Refusal::INVAL);
        }
        // A length of zero is "unspecified"; no chunk of a structured reply may be empty, nor may an extent.
        if self.length == 0 {
            return Err(Refusal::INVAL);
        }
        let end = self.offset.checked_add(self.length.into());
        if end.is_none_or(|end| end > offer.size) {
            return Err(if matches!(self.command, Write | WriteZeroes) {
                Refusal::NOSPC
            } else {
                Refusal::INVAL
            });
        }
        if self.command == Read && self.length > PAYLOAD_MAX {
            return Err(if self.has(flags::DF) { Refusal::OVERFLOW } else { Refusal::INVAL });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 20;

    fn offer(read_only: bool) -> Offer {
        Offer { name: "disk".into(), size: SIZE, read_only }
    }

    fn request(command: Command, offset: u64, length: u32) -> Request {
        Request { command, flags: 0, cookie: 7, offset, length }
    }

    const ALL: Session = Session { structured: true, allocation: true };

    #[test]
    fn what_passes_lies_inside() {
        use Command::*;
        for command in [Read, Write, Trim, Cache, WriteZeroes, BlockStatus] {
            let beyond = if matches!(command, Write | WriteZeroes) { Refusal::NOSPC } else { Refusal::INVAL };
            for (offset, length, expected) in [
                (0, 512, Ok(())),
                (SIZE - 1, 1, Ok(())),
                (SIZE - 1, 2, Err(beyond)),
                (SIZE, 1, Err(beyond)),
                (u64::MAX, 1, Err(beyond)),
                (u64::MAX - 1, u32::MAX, Err(beyond)),
                (0, 0, Err(Refusal::INVAL)),
            ] {
                let asked = request(command, offset, length);
                assert_eq!(asked.check(&offer(false), ALL), expected, "{asked:?}");
            }
        }
    }

    #[test]
    fn nothing_that_writes_passes_where_only_reading_is_offered() {
        use Command::*;
        for command in [Write, Trim, WriteZeroes] {
            assert_eq!(request(command, 0, 512).check(&offer(true), ALL), Err(Refusal::PERM));
        }
        for command in [Read, Cache, BlockStatus] {
            assert_eq!(request(command, 0, 512).check(&offer(true), ALL), Ok(()));
        }
        assert_eq!(request(Flush, 0, 0).check(&offer(true), ALL), Ok(()));
    }

    #[test]
    fn flags_of_another_command_are_refused() {
        use Command::*;
        let with = |command, flags| Request { flags, ..request(command, 0, 512) }.check(&offer(false), ALL);
        for command in [Read, Write, Trim, Cache, WriteZeroes, BlockStatus] {
            assert_eq!(with(command, flags::FUA), Ok(()));
            assert_eq!(with(command, flags::DF).is_ok(), command == Read);
            assert_eq!(with(command, flags::NO_HOLE | flags::FAST_ZERO).is_ok(), command == WriteZeroes);
            assert_eq!(with(command, flags::REQ_ONE).is_ok(), command == BlockStatus);
            assert_eq!(with(command, 1 << 9), Err(Refusal::INVAL));
        }
        let simple = Session::default();
        assert_eq!(
            Request { flags: flags::DF, ..request(Read, 0, 1) }.check(&offer(false), simple),
            Err(Refusal::INVAL)
        );
        assert_eq!(request(BlockStatus, 0, 1).check(&offer(false), simple), Err(Refusal::INVAL));
    }
}
