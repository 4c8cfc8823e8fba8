//! Requests: the header, and the check whether the server may execute it.
//!
//! *In*: 28 bytes. *Out*: a [`Request`]. [`Request::check`] returns the error that the protocol
//! requires for an invalid one. *Invariant*: the range of a request that passed the check is inside
//! the export, and its data is at most [`PAYLOAD_MAX`] bytes.

use super::{ExportInfo, PAYLOAD_MAX, Session, u32_at, u64_at};

/// Size of a request's header in bytes ("Request message").
pub const HEADER: usize = 28;
const MAGIC: u32 = 0x2560_9513;

/// "Command flags".
pub mod flags {
    /// The reply is sent after the written data is on stable storage.
    pub const FUA: u16 = 1;
    /// Write zeroes: the range stays allocated.
    pub const NO_HOLE: u16 = 1 << 1;
    /// Read: the reply has one data chunk.
    pub const DF: u16 = 1 << 2;
    /// Block status: the reply has one extent.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Write zeroes: fails if it is not faster than a write of zeroes.
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
    /// Any other number.
    Unknown(u16),
}

/// Header of a request, as the client sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Request type.
    pub command: Command,
    /// Command flags: see [`flags`].
    pub flags: u16,
    /// Identifier that the client chose. The client may reuse it after the reply.
    pub cookie: u64,
    /// Offset in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub length: u32,
}

/// Error number of a reply. The protocol allows only the numbers of "Error values".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NbdError(u32);

impl NbdError {
    /// `EPERM`
    pub const PERM: NbdError = NbdError(1);
    /// `EIO`
    pub const IO: NbdError = NbdError(5);
    /// `EINVAL`
    pub const INVAL: NbdError = NbdError(22);
    /// `ENOSPC`
    pub const NOSPC: NbdError = NbdError(28);
    /// `EOVERFLOW`
    pub const OVERFLOW: NbdError = NbdError(75);
    /// `ENOTSUP`. The protocol's number is that of Linux' `EOPNOTSUPP`.
    pub const NOTSUP: NbdError = NbdError(95);

    /// Returns the protocol's error number for an errno: `EIO` if the protocol has no such error.
    pub fn from_errno(errno: i32) -> Self {
        match errno {
            libc::EPERM | libc::EROFS => Self::PERM,
            libc::ENOMEM => NbdError(12),
            libc::EINVAL => Self::INVAL,
            libc::ENOSPC | libc::EDQUOT | libc::EFBIG => Self::NOSPC,
            libc::EOVERFLOW => Self::OVERFLOW,
            libc::EOPNOTSUPP => Self::NOTSUP,
            libc::ESHUTDOWN => NbdError(108),
            _ => Self::IO,
        }
    }

    /// Returns the number on the wire, which on Linux is also the errno.
    pub fn number(self) -> u32 {
        self.0
    }
}

impl Command {
    fn from_number(number: u16) -> Self {
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

    /// Returns the valid flags. FUA is valid with every command; a command that does not write may
    /// ignore it ("Command flags").
    fn valid_flags(self, session: Session) -> u16 {
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
    /// Decodes a header. Returns none for a wrong magic, after which the start of the next request
    /// is unknown.
    pub fn decode(header: &[u8; HEADER]) -> Option<Self> {
        if u32_at(header, 0) != MAGIC {
            return None;
        }
        Some(Self {
            flags: u16::from_be_bytes([header[4], header[5]]),
            command: Command::from_number(u16::from_be_bytes([header[6], header[7]])),
            cookie: u64_at(header, 8),
            offset: u64_at(header, 16),
            length: u32_at(header, 24),
        })
    }

    /// Returns whether all bits of `flag` are set.
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag == flag
    }

    /// Returns the number of data bytes that follow the header.
    pub(super) fn payload_bytes(&self) -> u32 {
        if self.command == Command::Write { self.length } else { 0 }
    }

    /// Returns the number of data bytes in the request and its reply, if the server executes it.
    pub(crate) fn data_bytes(&self) -> usize {
        let has_data = matches!(self.command, Command::Read | Command::Write) && self.length <= PAYLOAD_MAX;
        if has_data { self.length as usize } else { 0 }
    }

    /// Checks whether the server may execute the request on `export`.
    pub fn check(&self, export: &ExportInfo, session: Session) -> Result<(), NbdError> {
        use Command::*;
        if matches!(self.command, Unknown(_)) || self.flags & !self.command.valid_flags(session) != 0 {
            return Err(NbdError::INVAL);
        }
        if matches!(self.command, Flush | Disconnect) {
            return if self.offset == 0 && self.length == 0 { Ok(()) } else { Err(NbdError::INVAL) };
        }
        let writes = matches!(self.command, Write | Trim | WriteZeroes);
        if writes && export.read_only {
            return Err(NbdError::PERM);
        }
        if self.command == BlockStatus && !(session.structured && session.allocation) {
            return Err(NbdError::INVAL);
        }
        // The behaviour for a length of 0 is "unspecified", and neither a data chunk of a
        // structured reply nor an extent may be empty.
        if self.length == 0 {
            return Err(NbdError::INVAL);
        }
        let end = self.offset.checked_add(self.length.into());
        if end.is_none_or(|end| end > export.size) {
            return Err(if matches!(self.command, Write | WriteZeroes) {
                NbdError::NOSPC
            } else {
                NbdError::INVAL
            });
        }
        if self.command == Read && self.length > PAYLOAD_MAX {
            return Err(if self.has(flags::DF) { NbdError::OVERFLOW } else { NbdError::INVAL });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 20;

    fn export(read_only: bool) -> ExportInfo {
        ExportInfo { name: "disk".into(), size: SIZE, read_only }
    }

    fn request(command: Command, offset: u64, length: u32) -> Request {
        Request { command, flags: 0, cookie: 7, offset, length }
    }

    const ALL: Session = Session { structured: true, allocation: true };

    #[test]
    fn an_accepted_request_is_inside_the_export() {
        use Command::*;
        for command in [Read, Write, Trim, Cache, WriteZeroes, BlockStatus] {
            let beyond =
                if matches!(command, Write | WriteZeroes) { NbdError::NOSPC } else { NbdError::INVAL };
            for (offset, length, expected) in [
                (0, 512, Ok(())),
                (SIZE - 1, 1, Ok(())),
                (SIZE - 1, 2, Err(beyond)),
                (SIZE, 1, Err(beyond)),
                (u64::MAX, 1, Err(beyond)),
                (u64::MAX - 1, u32::MAX, Err(beyond)),
                (0, 0, Err(NbdError::INVAL)),
            ] {
                let request = request(command, offset, length);
                assert_eq!(request.check(&export(false), ALL), expected, "{request:?}");
            }
        }
    }

    #[test]
    fn a_read_only_export_refuses_writes() {
        use Command::*;
        for command in [Write, Trim, WriteZeroes] {
            assert_eq!(request(command, 0, 512).check(&export(true), ALL), Err(NbdError::PERM));
        }
        for command in [Read, Cache, BlockStatus] {
            assert_eq!(request(command, 0, 512).check(&export(true), ALL), Ok(()));
        }
        assert_eq!(request(Flush, 0, 0).check(&export(true), ALL), Ok(()));
    }

    #[test]
    fn flags_of_other_commands_are_refused() {
        use Command::*;
        let with = |command, flags| Request { flags, ..request(command, 0, 512) }.check(&export(false), ALL);
        for command in [Read, Write, Trim, Cache, WriteZeroes, BlockStatus] {
            assert_eq!(with(command, flags::FUA), Ok(()));
            assert_eq!(with(command, flags::DF).is_ok(), command == Read);
            assert_eq!(with(command, flags::NO_HOLE | flags::FAST_ZERO).is_ok(), command == WriteZeroes);
            assert_eq!(with(command, flags::REQ_ONE).is_ok(), command == BlockStatus);
            assert_eq!(with(command, 1 << 9), Err(NbdError::INVAL));
        }
        let simple = Session::default();
        assert_eq!(
            Request { flags: flags::DF, ..request(Read, 0, 1) }.check(&export(false), simple),
            Err(NbdError::INVAL)
        );
        assert_eq!(request(BlockStatus, 0, 1).check(&export(false), simple), Err(NbdError::INVAL));
    }
}
