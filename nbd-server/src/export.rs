//! The file that is served.
//!
//! *In*: requests that were checked ([`Request::check`](crate::protocol::Request::check)). *Out*: what came of them, as
//! the bytes of their reply. *Invariant*: nothing is read or written outside the `size` bytes that were there at the start.
//!
//! Every way of serving (a thread pool, a ring) answers by what is here; the ring does reads, writes and flushes itself.
//! The descriptor's own position is moved by the search for holes only, and used by nobody.

mod allocation;
mod zeroes;

use std::fs::{File, Metadata};
use std::io::{self, IoSlice, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;

use rustix::buffer::spare_capacity;
use rustix::io::{Errno, ReadWriteFlags};

use crate::protocol::intake::Incoming;
use crate::protocol::reply;
use crate::protocol::request::flags;
use crate::protocol::{Command, Offer, Refusal, Request, Session};

/// The file and what is said of it.
#[derive(Debug)]
pub struct Export {
    file: File,
    offer: Offer,
}

/// What came of a request: its whole reply, and the errno if it failed.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    /// To be sent as it is.
    pub bytes: Vec<u8>,
    /// 0, or why it failed.
    pub errno: u32,
}

type Done = Result<(), Errno>;

impl Export {
    /// A regular file or a block device, with the size that it has now.
    pub fn open(path: &Path, name: &str, read_only: bool) -> io::Result<Self> {
        let mut file = File::options().read(true).write(!read_only).open(path)?;
        let size = size(&mut file)?;
        Ok(Self { file, offer: Offer { name: name.to_owned(), size, read_only } })
    }

    /// What clients are told.
    pub fn offer(&self) -> &Offer {
        &self.offer
    }

    /// For those who do the I/O themselves.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Carries it out, or says why not.
    pub fn answer(&self, session: Session, incoming: &Incoming) -> Answer {
        let request = &incoming.request;
        match self.carry_out(session, request, &incoming.payload) {
            Ok(bytes) => Answer { bytes, errno: 0 },
            Err(refusal) => Answer::refusal(session, request, refusal),
        }
    }

    fn carry_out(&self, session: Session, request: &Request, payload: &[u8]) -> Result<Vec<u8>, Refusal> {
        request.check(&self.offer, session)?;
        let (at, length, fua) = (request.offset, request.length.into(), request.has(flags::FUA));
        let done = match request.command {
            Command::Read => return self.read(session, request).map_err(refusal),
            Command::BlockStatus => {
                let one = request.has(flags::REQ_ONE);
                let extents = allocation::extents(self.descriptor(), at, length, one).map_err(refusal)?;
                return Ok(reply::status(request.cookie, &extents));
            }
            Command::Write => self.write(at, payload, fua),
            Command::Flush => self.flush(),
            Command::Trim => zeroes::trim(self.descriptor(), at, length).and_then(|()| self.flush_if(fua)),
            Command::WriteZeroes => self.zero(request).and_then(|()| self.flush_if(fua)),
            Command::Cache => self.cache(request),
            Command::Disconnect | Command::Unknown(_) => Err(Errno::INVAL),
        };
        done.map_err(refusal)?;
        Ok(reply::done(session, request.cookie))
    }

    /// Into memory that is not zeroed before: `pread` says how much of it was filled.
    fn read(&self, session: Session, request: &Request) -> Result<Vec<u8>, Errno> {
        let mut bytes = reply::reading(session, request);
        let whole = bytes.len() + request.length as usize;
        let mut at = request.offset;
        while bytes.len() < whole {
            match rustix::io::pread(&self.file, spare_capacity(&mut bytes), at) {
                // A file that has become shorter is an error of the disk, not zeroes.
                Ok(0) => return Err(Errno::IO),
                Ok(read) => at += read as u64,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        // There may have been more room.
        bytes.truncate(whole);
        Ok(bytes)
    }

    /// With FUA by one call: the file system syncs this range alone, and where the disk has FUA sends no flush.
    fn write(&self, mut at: u64, mut data: &[u8], fua: bool) -> Done {
        if !fua {
            return self.file.write_all_at(data, at).map_err(|error| errno(&error));
        }
        while !data.is_empty() {
            let slices = [IoSlice::new(data)];
            let written = match rustix::io::pwritev2(&self.file, &slices, at, ReadWriteFlags::DSYNC) {
                Err(Errno::INTR) => continue,
                Err(Errno::OPNOTSUPP) => {
                    return self
                        .file
                        .write_all_at(data, at)
                        .map_err(|e| errno(&e))
                        .and_then(|()| self.flush());
                }
                Ok(0) => return Err(Errno::IO),
                written => written?,
            };
            (at, data) = (at + written as u64, &data[written..]);
        }
        Ok(())
    }

    /// What the size and place of the data need is flushed with it; times are not.
    fn flush(&self) -> Done {
        rustix::fs::fdatasync(&self.file)
    }

    fn flush_if(&self, fua: bool) -> Done {
        if fua { self.flush() } else { Ok(()) }
    }

    fn zero(&self, request: &Request) -> Done {
        let manner =
            zeroes::Manner { keep: request.has(flags::NO_HOLE), fast: request.has(flags::FAST_ZERO) };
        zeroes::write(&self.file, request.offset, request.length.into(), manner)
    }

    fn cache(&self, request: &Request) -> Done {
        let length = std::num::NonZeroU64::new(request.length.into());
        rustix::fs::fadvise(&self.file, request.offset, length, rustix::fs::Advice::WillNeed)
    }
}

impl Answer {
    /// It was not done, and why.
    pub fn refusal(session: Session, request: &Request, refusal: Refusal) -> Self {
        Self { bytes: reply::refused(session, request.cookie, refusal), errno: refusal.number() }
    }
}

fn size(file: &mut File) -> io::Result<u64> {
    let metadata: Metadata = file.metadata()?;
    let kind = metadata.file_type();
    if kind.is_file() {
        Ok(metadata.len())
    } else if kind.is_block_device() {
        file.seek(SeekFrom::End(0))
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "neither a regular file nor a block device"))
    }
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

fn refusal(errno: Errno) -> Refusal {
    Refusal::of_errno(errno.raw_os_error())
}
