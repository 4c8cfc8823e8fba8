//! A file under its name, and the words that its calls' spans say of it again and again.
//!
//! *In*: a [`FileEvent`]. *Out*: the same, and its words, shared. *Invariant*: the words are a function of the event; they are made
//! when they are asked for first, as most files that are opened are named in few spans, and some in millions.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use blkkin_wire::event::FileEvent;
use blkkin_wire::ids::FileId;
use serde::{Deserialize, Serialize};

/// A file whose name was said.
#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NamedFile {
    event: FileEvent,
    #[serde(skip)]
    words: OnceLock<Words>,
}

#[derive(Clone)]
struct Words {
    base: Arc<str>,
    inode: Arc<str>,
}

impl NamedFile {
    /// The last component of its path.
    pub(crate) fn base(&self) -> &Arc<str> {
        &self.words().base
    }

    /// Its device and its number there.
    pub(crate) fn inode(&self) -> &Arc<str> {
        &self.words().inode
    }

    fn words(&self) -> &Words {
        self.words.get_or_init(|| {
            let FileEvent { file, path, .. } = &self.event;
            let base = path.rsplit('/').next().unwrap_or_default();
            Words { base: base.into(), inode: inode(file).into() }
        })
    }
}

impl From<FileEvent> for NamedFile {
    fn from(event: FileEvent) -> Self {
        NamedFile { event, words: OnceLock::new() }
    }
}

/// Whether its words were asked for yet is no difference.
impl fmt::Debug for NamedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.event.fmt(f)
    }
}

impl Deref for NamedFile {
    type Target = FileEvent;

    fn deref(&self) -> &FileEvent {
        &self.event
    }
}

/// A file's device and its number there, whether or not it has a name.
pub(crate) fn inode(file: &FileId) -> String {
    format!("{} {}", file.device, file.ino)
}
