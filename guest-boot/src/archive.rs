//! Initramfs archive: cpio in the format `newc`
//! (Documentation/driver-api/early-userspace/buffer-format.rst).
//!
//! *Rejected*: the program cpio, which would need a folder tree to build and delete. This writer is
//! short, needs no root and places each file at any path.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const LINK: u32 = 0o120_777;
/// Name of the last entry.
const TRAILER: &str = "TRAILER!!!";

/// Archive under construction.
#[derive(Debug)]
pub struct Archive {
    file: BufWriter<File>,
    inodes: u32,
    /// Paths of the entries written so far.
    paths: BTreeSet<String>,
}

impl Archive {
    /// Creates the file of an archive.
    pub fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self { file: BufWriter::new(file), inodes: 0, paths: BTreeSet::new() })
    }

    /// Adds a folder and its parents.
    pub fn folder(&mut self, path: &str) -> Result<()> {
        let names: Vec<&str> = path.split('/').filter(|name| !name.is_empty()).collect();
        for end in 1..=names.len() {
            let above = names[..end].join("/");
            if self.paths.insert(above.clone()) {
                self.entry(&above, DIRECTORY, b"").context("cannot write the archive")?;
            }
        }
        Ok(())
    }

    /// Adds an executable file, unless its path exists in the archive.
    pub fn file(&mut self, path: &str, bytes: &[u8]) -> Result<()> {
        let path = path.trim_start_matches('/');
        if let Some((folder, _)) = path.rsplit_once('/') {
            self.folder(folder)?;
        }
        if self.paths.insert(path.to_owned()) {
            self.entry(path, PROGRAM, bytes).context("cannot write the archive")?;
        }
        Ok(())
    }

    /// Adds a symbolic link, unless its path exists in the archive.
    pub fn link(&mut self, path: &str, target: &str) -> Result<()> {
        match self.paths.insert(path.to_owned()) {
            true => self.entry(path, LINK, target.as_bytes()).context("cannot write the archive"),
            false => Ok(()),
        }
    }

    /// Adds a file of this machine at its own path.
    pub fn copy(&mut self, path: &str) -> Result<()> {
        let bytes = fs::read(path).with_context(|| format!("cannot read {path}"))?;
        self.file(path, &bytes)
    }

    /// Writes the end of the archive.
    pub fn finish(mut self) -> Result<()> {
        self.entry(TRAILER, 0, b"").and_then(|()| self.file.flush()).context("cannot write the archive")
    }

    fn entry(&mut self, name: &str, mode: u32, bytes: &[u8]) -> io::Result<()> {
        self.inodes += 1;
        let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        // magic, then: inode, mode, uid, gid, links, mtime, size, device (2), special device (2), name's length, check
        let fields = [self.inodes, mode, 0, 0, 1, 0, length, 0, 0, 0, 0, name.len() as u32 + 1, 0];
        let fields: String = fields.iter().map(|field| format!("{field:08x}")).collect();
        write!(self.file, "070701{fields}{name}\0")?;
        // Header and name together are padded to words, then the bytes are.
        self.pad(6 + 13 * 8 + name.len() + 1)?;
        self.file.write_all(bytes)?;
        self.pad(bytes.len())
    }

    fn pad(&mut self, written: usize) -> io::Result<()> {
        self.file.write_all(&[0; 3][..written.next_multiple_of(4) - written])
    }
}
