//! Export: the file that is served.
//!
//! *In*: requests. *Out*: the bytes of their replies. *Invariant*: nothing outside the `size` bytes
//! that the file had at the start is read or written. [`Export::execute`] checks each request
//! ([`Request::check`](crate::protocol::Request::check)); the ring backend does so before its I/O.
//!
//! Both backends reply with the functions of this module; the ring backend executes reads, writes
//! and flushes itself. Only the search for holes moves the descriptor's file offset, and nothing
//! uses it.

mod allocation;
mod zeroes;

use std::fs::{File, Metadata};
use std::io::{self, IoSlice, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;

use rustix::buffer::spare_capacity;
use rustix::io::{Errno, ReadWriteFlags};

use crate::protocol::reply;
use crate::protocol::request::flags;
use crate::protocol::request_decoder::ReceivedRequest;
use crate::protocol::{Command, ExportInfo, NbdError, Request, Session};

/// File and its description.
#[derive(Debug)]
pub struct Export {
    file: File,
    info: ExportInfo,
}

/// Encoded reply to a request.
#[derive(Debug, PartialEq, Eq)]
pub struct EncodedReply {
    /// Bytes of the complete reply.
    pub bytes: Vec<u8>,
    /// Error number in the reply; 0 for success.
    pub errno: u32,
}

impl Export {
    /// Opens a regular file or a block device. The export keeps the size that it has now.
    pub fn open(path: &Path, name: &str, read_only: bool) -> io::Result<Self> {
        let mut file = File::options().read(true).write(!read_only).open(path)?;
        let size = size(&mut file)?;
        Ok(Self { file, info: ExportInfo { name: name.to_owned(), size, read_only } })
    }

    /// Returns the description that clients receive.
    pub fn info(&self) -> &ExportInfo {
        &self.info
    }

    /// Returns the file's descriptor, for a backend that does the I/O itself.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Checks and executes a request, and returns the reply.
    pub fn execute(&self, session: Session, received: &ReceivedRequest) -> EncodedReply {
        let request = &received.request;
        match self.try_execute(session, request, &received.payload) {
            Ok(bytes) => EncodedReply { bytes, errno: 0 },
            Err(error) => EncodedReply::error(session, request, error),
        }
    }

    fn try_execute(&self, session: Session, request: &Request, payload: &[u8]) -> Result<Vec<u8>, NbdError> {
        request.check(&self.info, session)?;
        let (at, length, fua) = (request.offset, request.length.into(), request.has(flags::FUA));
        let done = match request.command {
            Command::Read => return self.read(session, request).map_err(nbd_error),
            Command::BlockStatus => {
                let only_first = request.has(flags::REQ_ONE);
                let extents = allocation::extents(self.fd(), at, length, only_first).map_err(nbd_error)?;
                return Ok(reply::block_status(request.cookie, &extents));
            }
            Command::Write => self.write(at, payload, fua),
            Command::Flush => self.flush(),
            Command::Trim => zeroes::trim(self.fd(), at, length).and_then(|()| self.flush_if(fua)),
            Command::WriteZeroes => self.write_zeroes(request).and_then(|()| self.flush_if(fua)),
            Command::Cache => self.cache(request),
            Command::Disconnect | Command::Unknown(_) => Err(Errno::INVAL),
        };
        done.map_err(nbd_error)?;
        Ok(reply::success(session, request.cookie))
    }

    /// Reads into uninitialized memory: `pread` returns the number of bytes that it filled.
    fn read(&self, session: Session, request: &Request) -> Result<Vec<u8>, Errno> {
        let mut bytes = reply::read_header(session, request);
        let whole = bytes.len() + request.length as usize;
        let mut at = request.offset;
        while bytes.len() < whole {
            match rustix::io::pread(&self.file, spare_capacity(&mut bytes), at) {
                // A file that was truncated meanwhile gives an I/O error and not zeroes.
                Ok(0) => return Err(Errno::IO),
                Ok(read) => at += read as u64,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        // The allocator can return more capacity than requested, and `pread` may have filled it.
        bytes.truncate(whole);
        Ok(bytes)
    }

    /// Writes `data`. With FUA it uses one `pwritev2` with `RWF_DSYNC`: the file system syncs only
    /// this range, and sends no flush to a disk that supports FUA.
    fn write(&self, mut at: u64, mut data: &[u8], fua: bool) -> Result<(), Errno> {
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

    /// Flushes the data and the metadata that is needed to read it, without the time stamps.
    fn flush(&self) -> Result<(), Errno> {
        rustix::fs::fdatasync(&self.file)
    }

    fn flush_if(&self, fua: bool) -> Result<(), Errno> {
        if fua { self.flush() } else { Ok(()) }
    }

    fn write_zeroes(&self, request: &Request) -> Result<(), Errno> {
        let options = zeroes::Options {
            keep_allocated: request.has(flags::NO_HOLE),
            fast_only: request.has(flags::FAST_ZERO),
        };
        zeroes::write(&self.file, request.offset, request.length.into(), options)
    }

    fn cache(&self, request: &Request) -> Result<(), Errno> {
        let length = std::num::NonZeroU64::new(request.length.into());
        rustix::fs::fadvise(&self.file, request.offset, length, rustix::fs::Advice::WillNeed)
    }
}

impl EncodedReply {
    /// Encodes the reply to a request that failed.
    pub fn error(session: Session, request: &Request, error: NbdError) -> Self {
        Self { bytes: reply::error(session, request.cookie, error), errno: error.number() }
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

fn nbd_error(errno: Errno) -> NbdError {
    NbdError::from_errno(errno.raw_os_error())
}
