//! Names of virtual machines' disks, the same inside the guest and on its host.
//!
//! *In*: on the host, the options of a QEMU process and the images that it has open; in the guest, sysfs. *Out*: a
//! name for each disk: `serial=…` if QEMU gave it a serial number, else `bytes=…`.
//!
//! *Invariant*: no two disks of one side have one name: both are dropped. So guest and host can mean different
//! disks by one name only if each has a disk that the other does not have or cannot name, of one size.
//!
//! On the host a disk is named only if its image is raw, with its bytes at the guest's offsets, or qcow2, with clusters
//! of 64 KiB or more by its header. The backing files below the image have the disk's name too, each with its layer; one
//! that several images share has none. In the guest it is named only if it is QEMU's: on a virtio device, or by a vendor or model of
//! this name.
//!
//! *In the guest* the disks are read once, before the first program is attached, and only by an agent that sends to a
//! host: the driver of a virtio disk asks the device for its serial number, which is a request to the disk. A disk that
//! is attached later has no name.
//!
//! Virtio transmits 20 bytes of a serial number (VIRTIO_BLK_ID_BYTES, include/uapi/linux/virtio_blk.h), so all are cut
//! to that.
//!
//! *Weakness*: btrfs numbers the devices of its files by subvolume in stat(2), and the kernel side by file system: an
//! image there is not recognised.
//!
//! *Rejected*: the address on the guest's PCI bus (QEMU chooses it where the command line has none); the order of the
//! disks (it differs where one was attached later).

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use blkkin_qemu::{FileIdentity, Image};
use blkkin_wire::disk_request::LAYER_MAX;
use blkkin_wire::ids::DeviceId;
use blkkin_wire::virtual_machine::MachineDisk;

/// Bytes of a serial number that virtio transmits.
const SERIAL_MAX: usize = 20;
/// Bytes before the serial number in a SCSI disk's page (vital product data, page 80).
const PAGE_HEADER: usize = 4;
const SECTOR: u64 = 512;
/// Minimum bytes of a cluster of a disk that is named (`aggregator/src/stage/link/clusters.rs`).
const CLUSTER_MIN: u64 = 64 << 10;

/// Returns the disks of a virtual machine that have a name, each with the backing files of its image. `root` has `sys`.
pub(crate) fn of_images(root: &Path, images: &[Image]) -> Vec<MachineDisk> {
    let mut disks: HashMap<FileIdentity, Vec<(u32, &Image)>> = HashMap::new();
    for image in images {
        if let Some((top, layer)) = top_of(image, images) {
            disks.entry(top).or_default().push((layer, image));
        }
    }
    let named = disks.into_values().filter_map(|mut layers| {
        layers.sort_by_key(|(layer, _)| *layer);
        Some((name_of(root, &layers)?, layers))
    });
    let named = unique(named.collect(), |(name, _)| name);
    let of_disk = named.iter().flat_map(|(name, layers)| {
        layers.iter().filter_map(move |(layer, image)| disk_of(name, *layer, image))
    });
    let mut disks: Vec<MachineDisk> = of_disk.collect();
    disks.sort_by(|a, b| (a.layer, &a.disk).cmp(&(b.layer, &b.disk)));
    disks
}

/// Returns the image that the guest writes above this one, and how many are between them. None if several images have it
/// as their backing file: an operation on it may be for a disk of any of them.
fn top_of(image: &Image, images: &[Image]) -> Option<(FileIdentity, u32)> {
    let (mut top, mut layer) = (image, 0);
    loop {
        match top.above.as_slice() {
            [] => return Some((top.file.identity, layer)),
            [above] if layer < LAYER_MAX => {
                top = images.iter().find(|image| image.file.identity == *above)?;
                layer += 1;
            }
            _ => return None,
        }
    }
}

/// Returns the name of the disk that these images are, the one that the guest writes first. None if the command line uses
/// none or several of them as a disk: after a snapshot it names an image below the first. None also while another
/// one is written: during a backup the image above is a copy of the old data, and during a commit both are written.
fn name_of(root: &Path, layers: &[(u32, &Image)]) -> Option<String> {
    let ((_, top), below) = layers.split_first()?;
    if below.iter().any(|(_, image)| image.file.is_written()) {
        return None;
    }
    let mut used =
        layers.iter().filter_map(|(_, image)| image.options.as_ref()).filter(|options| !options.is_backing);
    let options = used.next().filter(|_| used.next().is_none())?;
    let bytes = match (in_clusters(top)?, top.file.identity) {
        (true, _) => top.qcow2.as_ref()?.bytes,
        (false, FileIdentity::Regular(..)) => top.file.bytes,
        (false, FileIdentity::BlockDevice(device)) => {
            bytes_of(&root.join(format!("sys/dev/block/{}", device_id(device))))?
        }
    };
    name(options.serial.as_deref(), bytes)
}

/// Returns whether an image has clusters, or none if its bytes have other places than those that the aggregator knows.
fn in_clusters(image: &Image) -> Option<bool> {
    let header = image.qcow2.as_ref().filter(|header| header.cluster_bytes >= CLUSTER_MIN);
    match (image.format.as_deref(), header) {
        (Some("raw"), _) => Some(false),
        // QEMU finds out the format of a snapshot's image by its header too.
        (Some("qcow2") | None, Some(_)) => Some(true),
        _ => None,
    }
}

fn disk_of(disk: &str, layer: u32, image: &Image) -> Option<MachineDisk> {
    let (device, ino) = match image.file.identity {
        FileIdentity::Regular(device, ino) => (device, Some(ino)),
        FileIdentity::BlockDevice(device) => (device, None),
    };
    let in_clusters = in_clusters(image)?;
    Some(MachineDisk { disk: disk.into(), device: device_id(device), ino, in_clusters, layer })
}

/// Returns the names of this machine's disks that are QEMU's, by their names below /dev. `root` has `sys`.
pub(crate) fn of_guest(root: &Path) -> HashMap<Box<str>, Box<str>> {
    let entries = fs::read_dir(root.join("sys/block")).into_iter().flatten().flatten();
    let disks = entries.filter(|entry| is_qemus(&entry.path())).filter_map(|entry| {
        let path = entry.path();
        let name = name(serial(&path).as_deref(), bytes_of(&path)?)?;
        Some((entry.file_name().to_str()?.into(), name))
    });
    let disks = unique(disks.collect(), |(_, name)| name);
    disks.into_iter().map(|(disk, name)| (disk, name.into())).collect()
}

/// Returns the name of a disk. None for one without a medium.
fn name(serial: Option<&str>, bytes: u64) -> Option<String> {
    match serial.and_then(name_by_serial) {
        Some(name) => Some(name),
        None if bytes > 0 && bytes.is_multiple_of(SECTOR) => Some(format!("bytes={bytes}")),
        None => None,
    }
}

/// Returns the name of a disk by its serial number. None for an empty one, which QEMU does not pass on.
pub(crate) fn name_by_serial(serial: &str) -> Option<String> {
    let serial = serial.trim();
    (!serial.is_empty()).then(|| format!("serial={}", &serial[..serial.floor_char_boundary(SERIAL_MAX)]))
}

/// Drops all that share a name.
fn unique<T>(mut disks: Vec<T>, name: impl Fn(&T) -> &String) -> Vec<T> {
    let shared = shared_names(disks.iter().map(&name));
    disks.retain(|disk| !shared.contains(name(disk)));
    disks
}

/// Returns the names that several disks have.
pub(crate) fn shared_names<'a>(names: impl Iterator<Item = &'a String>) -> HashSet<String> {
    let mut seen = HashSet::new();
    names.filter(|name| !seen.insert(*name)).cloned().collect()
}

fn is_qemus(disk: &Path) -> bool {
    is_virtio(disk) || ["vendor", "model"].iter().any(|file| names_qemu(disk, file))
}

fn is_virtio(disk: &Path) -> bool {
    let bus = fs::read_link(disk.join("device/subsystem"));
    bus.is_ok_and(|bus| bus.file_name() == Some(OsStr::new("virtio")))
}

fn names_qemu(disk: &Path, file: &str) -> bool {
    fs::read_to_string(disk.join("device").join(file)).is_ok_and(|text| text.starts_with("QEMU"))
}

/// Returns the serial number that QEMU was given for a disk.
fn serial(disk: &Path) -> Option<String> {
    // Virtio, then NVMe.
    let text = ["serial", "device/serial"].iter().find_map(|file| fs::read_to_string(disk.join(file)).ok());
    let page = || {
        let page = fs::read(disk.join("device/vpd_pg80")).ok()?;
        Some(String::from_utf8_lossy(page.get(PAGE_HEADER..)?).into_owned())
    };
    // QEMU numbers IDE disks that were given none.
    text.or_else(page).filter(|serial| !serial.trim_start().starts_with("QM0"))
}

fn bytes_of(device: &Path) -> Option<u64> {
    let sectors = fs::read_to_string(device.join("size")).ok()?;
    sectors.trim().parse::<u64>().ok()?.checked_mul(SECTOR)
}

fn device_id(number: u64) -> DeviceId {
    DeviceId { major: libc::major(number), minor: libc::minor(number) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use blkkin_qemu::{ImageOptions, OpenFile, Qcow2Header};

    use super::*;

    fn image(ino: u64, bytes: u64, serial: Option<&str>, format: &str) -> Image {
        let options = ImageOptions {
            format: Some(format.to_owned()),
            serial: serial.map(str::to_owned),
            ..ImageOptions::default()
        };
        let identity = identity(ino);
        let qcow2 =
            (format == "qcow2").then_some(Qcow2Header { bytes, cluster_bytes: 65_536, backing: None });
        let (path, link): (PathBuf, PathBuf) = ("/image".into(), "/proc/1/fd/3".into());
        let file = OpenFile {
            path,
            identity,
            bytes,
            writable: true,
            direct: true,
            has_image_lock: true,
            has_write_lock: false,
            link,
        };
        Image { format: options.format.clone(), options: Some(options), qcow2, ..Image::bare(file) }
    }

    fn identity(ino: u64) -> FileIdentity {
        FileIdentity::Regular(libc::makedev(8, 1), ino)
    }

    fn disk(root: &Path, name: &str, files: &[(&str, &[u8])], bus: &str) {
        let path = root.join("sys/block").join(name);
        fs::create_dir_all(path.join("device")).unwrap();
        symlink(format!("../../bus/{bus}"), path.join("device/subsystem")).unwrap();
        files.iter().for_each(|(file, text)| fs::write(path.join(file), text).unwrap());
    }

    #[test]
    fn images_have_the_names_that_the_guest_reads() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        disk(root, "vda", &[("size", b"2048\n"), ("serial", b"a serial number of m")], "virtio");
        disk(root, "vdb", &[("size", b"4096\n"), ("serial", b"")], "virtio");
        let page = b"\x00\x80\x00\x04root";
        disk(
            root,
            "sda",
            &[("size", b"8\n"), ("device/vendor", b"QEMU    "), ("device/vpd_pg80", page)],
            "scsi",
        );
        disk(root, "sdb", &[("size", b"8\n"), ("device/vendor", b"ATA     ")], "scsi");
        let model: (&str, &[u8]) = ("device/model", b"QEMU HARDDISK   ");
        let page: (&str, &[u8]) = ("device/vpd_pg80", b"\x00\x80\x00\x14             QM00001");
        disk(root, "sdc", &[("size", b"16\n"), model, page], "scsi");
        let guest = of_guest(root);
        let guest = ["vda", "vdb", "sda", "sdb", "sdc"].map(|name| guest.get(name).map_or("", |disk| disk));
        let expected = ["serial=a serial number of m", "bytes=2097152", "serial=root", "", "bytes=8192"];
        assert_eq!(guest, expected);
        let images = [
            image(1, 1 << 20, Some("a serial number of more than 20 bytes"), "raw"),
            image(2, 2 << 20, None, "raw"),
            image(3, 4096, Some("root"), "raw"),
            image(4, 8192, None, "raw"),
            image(5, 3 << 20, None, "qcow2"),
            image(6, 4 << 20, None, "vmdk"),
        ];
        let disks = of_images(root, &images);
        let mut names: Vec<_> = disks.iter().map(|disk| (disk.ino.unwrap(), &*disk.disk)).collect();
        names.sort();
        let last = (5, "bytes=3145728");
        assert_eq!(names, [(1, expected[0]), (2, expected[1]), (3, expected[2]), (4, expected[4]), last]);
        let in_clusters = disks.iter().filter(|disk| disk.in_clusters);
        assert_eq!(in_clusters.map(|disk| disk.ino.unwrap()).collect::<Vec<_>>(), [5]);
        assert_eq!(disks[0].device, DeviceId { major: 8, minor: 1 });
    }

    #[test]
    fn an_image_with_small_clusters_or_an_unread_header_is_not_named() {
        let header = |bytes| Some(Qcow2Header { bytes: 1 << 20, cluster_bytes: bytes, backing: None });
        let names = |serial: Option<&str>, qcow2| {
            let mut image = image(1, 9 << 20, serial, "qcow2");
            image.qcow2 = qcow2;
            let disks = of_images(Path::new("/"), &[image]);
            disks.into_iter().map(|disk| disk.disk.into_string()).collect::<String>()
        };
        let header_of = [header(65_536), header(2 << 20), header(32_768), None];
        let without_serial = ["bytes=1048576", "bytes=1048576", "", ""];
        assert_eq!(header_of.clone().map(|qcow2| names(None, qcow2)), without_serial);
        let by_serial = ["serial=a", "serial=a", "", ""];
        assert_eq!(header_of.map(|qcow2| names(Some("a"), qcow2)), by_serial);
    }

    /// Returns an image that the command line does not name, below others.
    fn below(ino: u64, above: &[u64], format: &str) -> Image {
        Image {
            options: None,
            above: above.iter().map(|ino| identity(*ino)).collect(),
            ..image(ino, 1 << 20, None, format)
        }
    }

    #[test]
    fn backing_files_have_the_name_of_the_disk_above() {
        let disks = |images: &[Image]| {
            let disks = of_images(Path::new("/"), images).into_iter();
            disks
                .map(|disk| (disk.ino.unwrap(), disk.disk.into_string(), disk.layer, disk.in_clusters))
                .collect::<Vec<_>>()
        };
        let root = || "serial=root".to_owned();
        let top = || image(1, 1 << 20, Some("root"), "qcow2");
        let chain = [top(), below(2, &[1], "qcow2"), below(3, &[2], "raw")];
        let expected = [(1, root(), 0, true), (2, root(), 1, true), (3, root(), 2, false)];
        assert_eq!(disks(&chain), expected);
        // Several images have one backing file, or the guest has it as a disk too.
        let other = || image(4, 2 << 20, Some("other"), "qcow2");
        let both = [(1, root(), 0, true), (4, "serial=other".to_owned(), 0, true)];
        assert_eq!(disks(&[top(), other(), below(3, &[1, 4], "raw")]), [both[1].clone(), both[0].clone()]);
        let used = Image { above: vec![identity(1)], ..other() };
        assert_eq!(disks(&[top(), used]), []);
        // After a snapshot the command line names the backing file.
        let snapshot = Image { format: None, ..below(5, &[], "qcow2") };
        let named = Image { above: vec![identity(5)], ..top() };
        assert_eq!(disks(&[named, snapshot]), [(5, root(), 0, true), (1, root(), 1, true)]);
        // A backup has a copy of the old data above the image that the guest writes.
        let mut written = below(2, &[1], "qcow2");
        written.file.has_write_lock = true;
        assert_eq!(disks(&[top(), written]), []);
        // Images in a circle, which no QEMU opens.
        assert_eq!(disks(&[below(1, &[2], "qcow2"), below(2, &[1], "qcow2")]), []);
    }

    #[test]
    fn two_disks_of_one_name_have_none() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for name in ["vda", "vdb"] {
            disk(root, name, &[("size", b"8\n")], "virtio");
        }
        disk(root, "vdc", &[("size", b"16\n")], "virtio");
        assert_eq!(of_guest(root), HashMap::from([("vdc".into(), "bytes=8192".into())]));
        let images = [image(1, 4096, None, "raw"), image(2, 4096, None, "raw"), image(3, 8192, None, "raw")];
        assert_eq!(of_images(root, &images).len(), 1);
    }
}
