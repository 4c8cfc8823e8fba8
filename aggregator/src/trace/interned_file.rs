//! A named file with the texts that spans repeat.
//!
//! *In*: a [`FileEvent`]. *Out*: the event, and its path as shown, base name and inode as shared
//! texts.
//!
//! *Invariant*: the texts are a function of the event. They are created on first use: most files
//! appear in few spans, and some in millions.
//!
//! *Rejected*: texts created with the event. Most would never be used.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use blkkin_wire::event::FileEvent;
use blkkin_wire::ids::FileId;
use serde::{Deserialize, Serialize};

/// A file with a known name.
#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct InternedFile {
    event: FileEvent,
    #[serde(skip)]
    text: OnceLock<InternedText>,
}

#[derive(Clone)]
struct InternedText {
    /// The path with its mark; none if it has no mark.
    marked: Option<Arc<str>>,
    base: Arc<str>,
    inode: Arc<str>,
}

impl InternedFile {
    /// Returns the path as people know it from /proc/PID/fd: marked if the name was removed.
    pub fn shown_path(&self) -> &Arc<str> {
        self.text().marked.as_ref().unwrap_or(&self.event.path)
    }

    /// Returns the last component of the path.
    pub(crate) fn base(&self) -> &Arc<str> {
        &self.text().base
    }

    /// Returns the device and inode number as text.
    pub(crate) fn inode(&self) -> &Arc<str> {
        &self.text().inode
    }

    fn text(&self) -> &InternedText {
        self.text.get_or_init(|| {
            let FileEvent { file, path, removed, .. } = &self.event;
            let base = path.rsplit('/').next().unwrap_or_default();
            let marked = removed.then(|| format!("{path} (deleted)").into());
            InternedText { marked, base: base.into(), inode: inode(file).into() }
        })
    }
}

impl From<FileEvent> for InternedFile {
    fn from(event: FileEvent) -> Self {
        InternedFile { event, text: OnceLock::new() }
    }
}

/// Prints the event alone. Whether its texts exist makes no difference.
impl fmt::Debug for InternedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.event.fmt(f)
    }
}

impl Deref for InternedFile {
    type Target = FileEvent;

    fn deref(&self) -> &FileEvent {
        &self.event
    }
}

/// Returns the device and inode number of a file, with or without a name.
pub(crate) fn inode(file: &FileId) -> String {
    format!("{} {}", file.device, file.ino)
}
