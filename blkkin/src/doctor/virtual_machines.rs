//! Virtual machines of this machine, with their disk images, as text and as JSON.

use blkkin_qemu::{CacheMode, Image, ImageOptions, Machine};
use blkkin_report::text::line::sanitize;
use serde_json::{Value, json};

/// Describes a virtual machine in a line, and each of its images in another.
pub(super) fn lines(machine: &Machine) -> (String, Vec<String>) {
    let name = machine.name.as_deref().unwrap_or("no name");
    let uuid = machine.uuid.as_ref().map(|uuid| format!(", UUID {uuid}")).unwrap_or_default();
    let head = sanitize(&format!("{name}, process {}{uuid}", machine.pid));
    let images = match &machine.images {
        None => vec!["its open images cannot be read without root".to_owned()],
        Some(images) if images.is_empty() => vec!["no image is open".to_owned()],
        Some(images) => images.iter().map(image_line).collect(),
    };
    (head, images)
}

fn image_line(image: &Image) -> String {
    let mut parts = Vec::new();
    match &image.options {
        Some(options) => parts.extend(options_text(options, image.file.direct)),
        None => {
            parts.push(
                if image.file.direct { "past the page cache" } else { "through the page cache" }.to_owned(),
            );
            parts.push("not on the command line".to_owned());
        }
    }
    if !image.file.writable {
        parts.push("only read".to_owned());
    }
    sanitize(&format!("{}: {}", image.file.path.display(), parts.join(", ")))
}

fn options_text(options: &ImageOptions, direct: bool) -> Vec<String> {
    let mut parts = vec![
        options.format.clone().unwrap_or_else(|| "format not given".to_owned()),
        format!("cache={}", options.cache),
        format!("aio={}", options.aio),
    ];
    if is_direct(options.cache) != direct {
        parts
            .push(if direct { "but opened with O_DIRECT" } else { "but opened without O_DIRECT" }.to_owned());
    }
    parts.push(options.device.clone().unwrap_or_else(|| "no device".to_owned()));
    parts.extend(options.iothread.as_ref().map(|iothread| format!("iothread {iothread}")));
    parts
}

fn is_direct(mode: CacheMode) -> bool {
    matches!(mode, CacheMode::None | CacheMode::Directsync)
}

/// A virtual machine as JSON; `images` is null if they cannot be read.
pub(super) fn value(machine: &Machine) -> Value {
    json!({
        "pid": machine.pid,
        "name": machine.name,
        "uuid": machine.uuid,
        "images": machine.images.as_ref().map(|images| images.iter().map(image_value).collect::<Vec<_>>()),
    })
}

fn image_value(image: &Image) -> Value {
    let options = image.options.as_ref();
    json!({
        "path": image.file.path.to_string_lossy(),
        "writable": image.file.writable,
        "direct": image.file.direct,
        "node": options.and_then(|options| options.node.as_ref()),
        "format": options.and_then(|options| options.format.as_ref()),
        "aio": options.map(|options| options.aio.to_string()),
        "cache": options.map(|options| options.cache.to_string()),
        "device": options.and_then(|options| options.device.as_ref()),
        "iothread": options.and_then(|options| options.iothread.as_ref()),
    })
}
