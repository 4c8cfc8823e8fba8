//! Image that a process of QEMU has open.
//!
//! *In*: an open file, and what the command line has about it. *Out*: its format and, for qcow2, its header.

use std::fs;
use std::path::Path;

use crate::block_options::ImageOptions;
use crate::open_files::{FileIdentity, OpenFile};
use crate::qcow2::Qcow2Header;

/// An image that a virtual machine has open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// File or block device.
    pub file: OpenFile,
    /// Options on the command line; none if it does not name the image.
    pub options: Option<ImageOptions>,
    /// Format by the command line or by the image above. None if neither has it.
    pub format: Option<String>,
    /// Header, if the format is qcow2 or not known, and if it is readable.
    pub qcow2: Option<Qcow2Header>,
    /// Images of which it is the backing file.
    pub above: Vec<FileIdentity>,
    /// Path and node on the command line.
    pub naming: Naming,
}

/// Path and node of an image on a command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Naming {
    /// Path.
    pub(crate) path: Option<String>,
    /// Numbers of its nodes: each image above it may have one of its own.
    pub(crate) nodes: Vec<usize>,
    /// Number of its backing file's node, or none, if the image's header does not decide.
    pub(crate) backing: Option<Option<usize>>,
    /// True if it names the image, or one above it.
    pub(crate) is_named: bool,
}

impl Image {
    pub(crate) fn of(file: OpenFile, naming: Naming, options: Option<ImageOptions>) -> Image {
        let format = options.as_ref().and_then(|options| options.format.clone());
        let mut image = Image { options, naming, ..Image::bare(file) };
        image.set_format(format);
        image
    }

    /// Returns an image of which nothing is known but that it is open.
    pub fn bare(file: OpenFile) -> Image {
        let (above, naming) = (Vec::new(), Naming::default());
        Image { file, options: None, format: None, qcow2: None, above, naming }
    }

    /// Sets the format, and reads the header unless it has none. A guest can write one into a raw image.
    pub(crate) fn set_format(&mut self, format: Option<String>) {
        let may_have_header = format.as_deref().is_none_or(|format| format == "qcow2");
        self.qcow2 = if may_have_header { Qcow2Header::read(&self.file.link) } else { None };
        self.format = format;
    }
}

/// Returns the identity of a file by a path that a process uses: in its own mount namespace and working folder. An absolute
/// symbolic link leads into the caller's.
pub(crate) fn identity_of(process: &Path, path: &Path) -> Option<FileIdentity> {
    let path = match path.strip_prefix("/") {
        Ok(absolute) => process.join("root").join(absolute),
        Err(_) => process.join("cwd").join(path),
    };
    FileIdentity::of(&fs::metadata(path).ok()?)
}
