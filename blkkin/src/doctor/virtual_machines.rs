//! Virtual machines of this machine, with their disk images, as text and as JSON.

use std::path::Path;

use blkkin_qemu::{Image, ImageOptions, Machine, NbdDrive, images_of, machines, nbd_drives_of};
use blkkin_report::text::line::sanitize;
use serde_json::{Value, json};

/// A virtual machine with its open images, none if they cannot be read, and its disks over NBD.
pub(super) struct MachineReport {
    machine: Machine,
    images: Option<Vec<Image>>,
    nbd_drives: Vec<NbdDrive>,
}

/// Lists the virtual machines below `root`, the folder that has `proc`.
pub(super) fn list(root: &Path) -> Vec<MachineReport> {
    let report = |machine: Machine| {
        let images = images_of(root, machine.pid);
        let open = images.as_deref().unwrap_or_default();
        let nbd_drives = nbd_drives_of(root, machine.pid, open).unwrap_or_default();
        MachineReport { images, nbd_drives, machine }
    };
    machines(root).unwrap_or_default().into_iter().map(report).collect()
}

/// Describes a virtual machine in a line, and each of its images and disks over NBD in another.
pub(super) fn lines(MachineReport { machine, images, nbd_drives }: &MachineReport) -> (String, Vec<String>) {
    let name = machine.name.as_deref().unwrap_or("no name");
    let uuid = machine.uuid.as_ref().map(|uuid| format!(", UUID {uuid}")).unwrap_or_default();
    let head = sanitize(&format!("{name}, process {}{uuid}", machine.pid));
    let mut disks = match images {
        None => vec!["its open images cannot be read without root".to_owned()],
        Some(images) if images.is_empty() && nbd_drives.is_empty() => vec!["no image is open".to_owned()],
        Some(images) => images.iter().map(image_line).collect(),
    };
    disks.extend(nbd_drives.iter().map(nbd_drive_line));
    (head, disks)
}

fn nbd_drive_line(NbdDrive { server, options }: &NbdDrive) -> String {
    let mut parts = vec![format_text(options), format!("cache={}", options.cache)];
    parts.extend(options.is_backing.then(|| "backing file".to_owned()));
    parts.extend(options.device.clone());
    parts.extend(options.iothreads.iter().map(|iothread| format!("iothread {iothread}")));
    parts.push(
        options.serial.as_ref().map_or("no serial number".to_owned(), |serial| format!("serial {serial}")),
    );
    sanitize(&format!("{server}: {}", parts.join(", ")))
}

fn image_line(image: &Image) -> String {
    let mut parts = Vec::new();
    match &image.options {
        Some(options) => {
            parts.extend(options_text(options, image.file.direct));
            parts.extend(is_backing(image).then(|| "backing file".to_owned()));
            parts.extend(options.device.clone());
            parts.extend(options.iothreads.iter().map(|iothread| format!("iothread {iothread}")));
        }
        None => {
            parts.push(
                if image.file.direct { "past the page cache" } else { "through the page cache" }.to_owned(),
            );
            parts.push(
                if image.above.is_empty() { "not found on the command line" } else { "backing file" }
                    .to_owned(),
            );
        }
    }
    if !image.file.writable {
        parts.push("only read".to_owned());
    }
    sanitize(&format!("{}: {}", image.file.path.display(), parts.join(", ")))
}

fn is_backing(image: &Image) -> bool {
    !image.above.is_empty() || image.options.as_ref().is_some_and(|options| options.is_backing)
}

fn options_text(options: &ImageOptions, direct: bool) -> Vec<String> {
    let mut parts =
        vec![format_text(options), format!("cache={}", options.cache), format!("aio={}", options.aio)];
    if options.cache.direct != direct {
        parts
            .push(if direct { "but opened with O_DIRECT" } else { "but opened without O_DIRECT" }.to_owned());
    }
    parts
}

fn format_text(options: &ImageOptions) -> String {
    options.format.clone().unwrap_or_else(|| "format not given".to_owned())
}

/// A virtual machine as JSON; `images` is null if they cannot be read.
pub(super) fn value(MachineReport { machine, images, nbd_drives }: &MachineReport) -> Value {
    json!({
        "pid": machine.pid,
        "name": machine.name,
        "uuid": machine.uuid,
        "images": images.as_ref().map(|images| images.iter().map(image_value).collect::<Vec<_>>()),
        "nbd_drives": nbd_drives.iter().map(nbd_drive_value).collect::<Vec<_>>(),
    })
}

fn nbd_drive_value(NbdDrive { server, options }: &NbdDrive) -> Value {
    json!({
        "server": server.to_string(),
        "node": options.node,
        "format": options.format,
        "cache": options.cache.to_string(),
        "device": options.device,
        "serial": options.serial,
        "iothreads": options.iothreads,
        "backing": options.is_backing,
    })
}

fn image_value(image: &Image) -> Value {
    let options = image.options.as_ref();
    json!({
        "path": image.file.path.to_string_lossy(),
        "writable": image.file.writable,
        "direct": image.file.direct,
        "node": options.and_then(|options| options.node.as_ref()),
        "format": image.format,
        "aio": options.map(|options| options.aio.to_string()),
        "cache": options.map(|options| options.cache.to_string()),
        "device": options.and_then(|options| options.device.as_ref()),
        "iothreads": options.map(|options| &options.iothreads),
        "backing": is_backing(image),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use blkkin_qemu::{Aio, CacheMode, FileIdentity, NbdServer, OpenFile};

    use super::*;

    fn image(path: &str, direct: bool, options: Option<ImageOptions>) -> Image {
        let identity = FileIdentity::Regular(1, 2);
        let file = OpenFile {
            path: path.into(),
            identity,
            bytes: 0,
            writable: false,
            direct,
            has_image_lock: true,
            has_write_lock: false,
            link: path.into(),
        };
        Image { options, ..Image::bare(file) }
    }

    #[test]
    fn each_image_is_a_line() {
        let options = ImageOptions {
            node: None,
            format: None,
            aio: Aio::Threads,
            cache: CacheMode::default(),
            is_backing: true,
            device: Some("ide-hd".into()),
            serial: None,
            iothreads: vec!["io1".into()],
        };
        let server = NbdServer::Tcp("store".into(), 10_809);
        let disk =
            NbdDrive { server, options: ImageOptions { serial: Some("far".into()), ..options.clone() } };
        let expected = "nbd://store:10809: format not given, cache=writeback, backing file, ide-hd, iothread io1, serial far";
        assert_eq!(nbd_drive_line(&disk), expected);
        let line = image_line(&image("/a", true, Some(options)));
        let expected = "/a: format not given, cache=writeback, aio=threads, but opened with O_DIRECT, backing file, \
            ide-hd, iothread io1, only read";
        assert_eq!(line, expected);
        let line = image_line(&image("/b", true, None));
        assert_eq!(line, "/b: past the page cache, not found on the command line, only read");
    }

    #[test]
    fn text_of_a_process_cannot_control_the_terminal() {
        let machine = Machine { pid: 7, name: Some("\x1b[2Jweb".into()), uuid: None };
        let mut report = MachineReport { machine, images: None, nbd_drives: Vec::new() };
        let (head, images) = lines(&report);
        assert_eq!(head, "\u{fffd}[2Jweb, process 7");
        assert_eq!(images, ["its open images cannot be read without root"]);
        report.images = Some(vec![image("/\x1b]0;x\x07", false, None)]);
        assert!(!lines(&report).1.concat().contains('\x1b'));
        report.images = Some(Vec::new());
        assert_eq!(lines(&report).1, ["no image is open"]);
    }
}
