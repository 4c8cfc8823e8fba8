//! Finds which image of a process is the backing file of which other one.
//!
//! *In*: the images that the process has open, some of them with the header of a qcow2 image or with options of the
//! command line. *Out*: in each image, the images above it; and the format and header of those that only another image
//! names.
//!
//! *Invariant*: an image is below another one only if the command line has it so, or if it has nothing about that and the
//! other's header names it; and if the process has both open.
//!
//! QEMU takes a relative name from the folder of the image above, as the command line names it.
//!
//! *Hostile input*: the header of an image that the command line does not name may be written by the guest, if it is a
//! raw disk that was attached later. So its name of a backing file is compared with the paths of open images, and is
//! not looked up. At most the guest makes its own disks look like one.

use std::path::Path;

use crate::image::{Image, identity_of};
use crate::option_list::OptionList;

/// Maximum number of images of a process that are compared with each other.
const IMAGES_MAX: usize = 1_024;

/// Notes the images above each image. `process` is its folder in /proc.
pub(crate) fn note_backing_files(process: &Path, images: &mut [Image]) {
    if images.len() > IMAGES_MAX {
        return;
    }
    let mut waiting: Vec<usize> = (0..images.len()).collect();
    // An image that is named makes known what is below it, so these are first.
    while let Some(position) = next(&waiting, images) {
        let number = waiting.swap_remove(position);
        let Some(below) = images.get(number).and_then(|image| below(process, images, image)) else {
            continue;
        };
        let above = images.get(number).map(|image| (image.file.identity, image.naming.is_named));
        let (Some((above, is_named)), Some(image)) = (above, images.get_mut(below.number)) else { continue };
        image.above.push(above);
        image.naming.is_named |= is_named;
        if image.format.is_none() && waiting.contains(&below.number) {
            image.set_format(below.format);
        }
    }
}

/// Returns the position of a named image, or of the last one if there is none.
fn next(waiting: &[usize], images: &[Image]) -> Option<usize> {
    let is_named = |number: &usize| images.get(*number).is_some_and(|image| image.naming.is_named);
    waiting.iter().position(is_named).or(waiting.len().checked_sub(1))
}

/// Backing file: its number, and its format if the header has it.
struct Below {
    number: usize,
    format: Option<String>,
}

/// Returns the backing file of an image: by the command line, or by the header. After a commit the header names another
/// file than the command line, of which the file is closed.
fn below(process: &Path, images: &[Image], image: &Image) -> Option<Below> {
    let of_node = |node: usize| images.iter().position(|other| other.naming.nodes.contains(&node));
    let below = match image.naming.backing {
        Some(None) => return None,
        Some(Some(node)) => of_node(node).map(|number| Below { number, format: None }),
        None => None,
    };
    let below = below.or_else(|| by_header(process, images, image))?;
    images.get(below.number).filter(|other| other.file.identity != image.file.identity)?;
    Some(below)
}

fn by_header(process: &Path, images: &[Image], image: &Image) -> Option<Below> {
    let backing = image.qcow2.as_ref()?.backing.as_ref()?;
    let name = file_name(&backing.path)?;
    let folders = [image.naming.path.as_deref().map(Path::new), Some(image.file.path.as_path())];
    let mut paths = folders.into_iter().flatten().filter_map(|path| Some(path.parent()?.join(&name)));
    let number = paths.find_map(|path| match image.naming.is_named {
        true => {
            let identity = identity_of(process, &path)?;
            images.iter().position(|other| other.file.identity == identity)
        }
        false => images.iter().position(|other| other.file.path == path),
    })?;
    Some(Below { number, format: backing.format.clone() })
}

/// Returns the name of a file as an image has it: alone, or as a JSON object after a snapshot of a node that the command line
/// describes.
fn file_name(name: &str) -> Option<String> {
    let Some(json) = name.strip_prefix("json:") else {
        return Some(name.strip_prefix("file:").unwrap_or(name).to_owned());
    };
    let options = OptionList::json(json);
    ["file.filename", "filename"].iter().find_map(|key| options.get(key)).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backing_file_may_be_named_by_json() {
        let nested = r#"json:{"backing": {"driver": "file", "filename": "/base"}, "driver": "qcow2", "file": {"driver": "file", "filename": "/a"}}"#;
        let names = [
            nested,
            r#"json:{"driver": "raw", "file.filename": "/b"}"#,
            r#"json:{"driver": "file", "filename": "/c"}"#,
            "file:/d",
            "e",
        ];
        assert_eq!(names.map(|name| file_name(name).unwrap_or_default()), ["/a", "/b", "/c", "/d", "e"]);
        assert_eq!(["json:{", r#"json:{"driver": "nbd", "host": "x"}"#].map(file_name), [const { None }; 2]);
    }
}
