//! How QEMU uses the images that its command line names.
//!
//! *In*: the arguments of `-drive`, `-blockdev`, `-device` and the short forms (`-hda`). *Out*: for a
//! file: the name of its node, its format, aio and cache mode, and the device that the guest sees.
//!
//! A file belongs to a block node (`-blockdev driver=file`), which another may wrap (`driver=qcow2,
//! file=NODE`), and a device names the outermost one (`-device virtio-blk-pci,drive=NODE`). `-drive`
//! has all of it in one argument. [`BlockOptions::of`] follows the nodes from a file outwards.
//!
//! Source: qemu(1), and block.c (`bdrv_parse_cache_mode`) for the cache modes.

use std::fmt::{self, Display};

use crate::option_list::OptionList;

/// Maximum number of nodes that may wrap each other: a command line could name a circle.
const CHAIN_MAX: usize = 16;
/// Maximum number of nodes and of devices that are read: each image is compared with each.
const ENTRIES_MAX: usize = 1_024;

/// Way in which QEMU submits I/O on an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aio {
    /// System calls of a pool of threads, QEMU's default.
    Threads,
    /// Linux' asynchronous I/O: `io_submit`.
    Native,
    /// `io_uring`.
    IoUring,
}

/// Cache mode of an image, as QEMU's manual names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheMode {
    /// Page cache of the host; a guest's flush is passed on. QEMU's default.
    Writeback,
    /// Past the page cache; a guest's flush is passed on.
    None,
    /// Page cache of the host; each write is flushed.
    Writethrough,
    /// Past the page cache; each write is flushed.
    Directsync,
    /// Page cache of the host; a guest's flush does nothing.
    Unsafe,
}

/// Options of an image on a command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageOptions {
    /// Name of the outermost block node, or id of the drive.
    pub node: Option<String>,
    /// Format: `raw`, `qcow2`. None if QEMU had to find it out.
    pub format: Option<String>,
    /// Way in which I/O is submitted.
    pub aio: Aio,
    /// Cache mode.
    pub cache: CacheMode,
    /// Device that the guest sees: `virtio-blk-pci`.
    pub device: Option<String>,
    /// I/O thread of that device; none if the main loop serves it.
    pub iothread: Option<String>,
}

/// Block nodes and devices of a command line.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockOptions {
    nodes: Vec<Node>,
    devices: Vec<OptionList>,
}

/// Node of QEMU's block graph, with the nodes inside the same argument.
#[derive(Clone, Debug)]
struct Node {
    /// Names by which others refer to it: its node name, the drive's id.
    names: Vec<String>,
    /// File that it opens.
    file: Option<String>,
    /// Name of the node that it wraps.
    wraps: Option<String>,
    format: Option<String>,
    aio: Option<Aio>,
    /// Cache mode that `-drive` chose.
    cache: Option<CacheMode>,
    direct: bool,
    no_flush: bool,
}

impl BlockOptions {
    /// Reads the options of a command line, without the program's own name.
    pub(crate) fn parse(arguments: &[String]) -> BlockOptions {
        let mut options = BlockOptions::default();
        let mut arguments = arguments.iter();
        while let Some(option) = arguments.next() {
            let Some(name) = option.strip_prefix('-') else { continue };
            match name.strip_prefix('-').unwrap_or(name) {
                "drive" => options.nodes.extend(arguments.next().map(|text| drive(text))),
                "blockdev" => options.nodes.extend(arguments.next().map(|text| blockdev(text))),
                "device" => {
                    options.devices.extend(arguments.next().map(|text| OptionList::parse(text, "driver")));
                }
                "hda" | "hdb" | "hdc" | "hdd" | "cdrom" | "sd" | "pflash" | "mtdblock" => {
                    let file = arguments.next().map(|text| text.replace(',', ",,"));
                    options.nodes.extend(file.map(|file| drive(&format!("file={file}"))));
                }
                _ => {}
            }
        }
        options.nodes.truncate(ENTRIES_MAX);
        options.devices.truncate(ENTRIES_MAX);
        options
    }

    /// Returns the files that the command line names, each with the number of its node.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&str, usize)> {
        let nodes = self.nodes.iter().enumerate();
        nodes.filter_map(|(number, node)| Some((node.file.as_deref()?, number)))
    }

    /// Returns how QEMU uses the file of a node.
    pub(crate) fn of(&self, number: usize) -> Option<ImageOptions> {
        let innermost = self.nodes.get(number)?;
        let chain = self.chain(innermost);
        let first = |found: &dyn Fn(&Node) -> Option<String>| chain.iter().rev().find_map(|node| found(node));
        let device = chain.iter().rev().flat_map(|node| &node.names);
        let device =
            device.filter_map(|name| self.devices.iter().find(|device| device.is("drive", name))).next();
        let write_through = device.is_some_and(|device| device.is("write-cache", "off"));
        let cache = chain.iter().find_map(|node| node.cache).unwrap_or_else(|| {
            let direct = chain.iter().any(|node| node.direct);
            match (chain.iter().any(|node| node.no_flush), direct, write_through) {
                (true, ..) => CacheMode::Unsafe,
                (false, true, false) => CacheMode::None,
                (false, true, true) => CacheMode::Directsync,
                (false, false, false) => CacheMode::Writeback,
                (false, false, true) => CacheMode::Writethrough,
            }
        });
        Some(ImageOptions {
            node: first(&|node| node.names.first().cloned()),
            // A file without a format node is raw for the guest.
            format: first(&|node| node.format.clone()),
            aio: chain.iter().find_map(|node| node.aio).unwrap_or(Aio::Threads),
            cache,
            device: device.and_then(|device| device.get("driver")).map(str::to_owned),
            iothread: device.and_then(|device| device.get("iothread")).map(str::to_owned),
        })
    }

    /// Returns a node and those that wrap it, innermost first.
    fn chain<'a>(&'a self, innermost: &'a Node) -> Vec<&'a Node> {
        let mut chain = vec![innermost];
        while let Some(last) = chain.last().filter(|_| chain.len() < CHAIN_MAX) {
            let wraps = |node: &&Node| node.wraps.as_ref().is_some_and(|inner| last.names.contains(inner));
            let Some(outer) = self.nodes.iter().find(wraps) else { break };
            chain.push(outer);
        }
        chain
    }
}

/// Reads a `-blockdev`.
fn blockdev(text: &str) -> Node {
    let options = OptionList::parse(text, "driver");
    let driver = options.get("driver").map(str::to_owned);
    // A node inside the argument: `driver=qcow2,file.driver=file,file.filename=PATH`.
    let inner = options.get("file.filename").map(str::to_owned);
    let file = options.get("filename").map(str::to_owned).or(inner);
    // QEMU opens a file by one of these; other drivers are formats and filters.
    let opens =
        driver.as_deref().is_some_and(|driver| matches!(driver, "file" | "host_device" | "host_cdrom"));
    let mut node = Node::new(&options);
    node.wraps = options.get("file").map(str::to_owned);
    node.format = driver.filter(|_| !opens);
    node.file = file;
    node
}

/// Reads a `-drive`.
fn drive(text: &str) -> Node {
    let options = OptionList::parse(text, "file");
    let format = options.get("format").or(options.get("driver")).map(str::to_owned);
    let file = options.get("file").or(options.get("file.filename")).map(str::to_owned);
    if let Some(json) = file.as_deref().and_then(|file| file.strip_prefix("json:")) {
        // The drive's own names and modes, on the node of the JSON text.
        let (own, described) = (Node::new(&options), blockdev(json));
        let aio = own.aio.or(described.aio);
        return Node { file: described.file, format: format.or(described.format), aio, ..own };
    }
    let mut node = Node::new(&options);
    let cache = options.get("cache").and_then(CacheMode::parse);
    (node.file, node.format, node.cache) = (file, format, cache);
    node
}

impl Node {
    /// Reads what all block options have in common.
    fn new(options: &OptionList) -> Node {
        let on = |key: &str| ["", "file."].iter().any(|inner| options.is(&format!("{inner}{key}"), "on"));
        let names = ["node-name", "id"].iter().filter_map(|key| options.get(key).map(str::to_owned));
        Node {
            names: names.collect(),
            file: None,
            wraps: None,
            format: None,
            aio: options.get("aio").or(options.get("file.aio")).and_then(Aio::parse),
            cache: None,
            direct: on("cache.direct"),
            no_flush: on("cache.no-flush"),
        }
    }
}

impl Aio {
    fn parse(text: &str) -> Option<Aio> {
        [Aio::Threads, Aio::Native, Aio::IoUring].into_iter().find(|aio| aio.to_string() == text)
    }
}

impl Display for Aio {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Aio::Threads => "threads",
            Aio::Native => "native",
            Aio::IoUring => "io_uring",
        })
    }
}

impl CacheMode {
    const ALL: [CacheMode; 5] = [
        CacheMode::Writeback,
        CacheMode::None,
        CacheMode::Writethrough,
        CacheMode::Directsync,
        CacheMode::Unsafe,
    ];

    fn parse(text: &str) -> Option<CacheMode> {
        // `off` is an old name of `none`.
        let text = if text == "off" { "none" } else { text };
        CacheMode::ALL.into_iter().find(|mode| mode.to_string() == text)
    }
}

impl Display for CacheMode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            CacheMode::Writeback => "writeback",
            CacheMode::None => "none",
            CacheMode::Writethrough => "writethrough",
            CacheMode::Directsync => "directsync",
            CacheMode::Unsafe => "unsafe",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(arguments: &[&str], file: &str) -> Option<ImageOptions> {
        let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect::<Vec<_>>();
        let options = BlockOptions::parse(&arguments);
        let number = options.files().find(|(name, _)| *name == file).map(|(_, number)| number)?;
        options.of(number)
    }

    #[test]
    fn a_drive_has_all_in_one_argument() {
        let drive = "file=/a.img,format=raw,if=none,id=d0,cache=directsync,aio=native";
        let options =
            of(&["-drive", drive, "-device", "virtio-blk-pci,drive=d0,iothread=io1"], "/a.img").unwrap();
        assert_eq!((options.node.as_deref(), options.format.as_deref()), (Some("d0"), Some("raw")));
        assert_eq!((options.aio, options.cache), (Aio::Native, CacheMode::Directsync));
        assert_eq!(options.device.as_deref(), Some("virtio-blk-pci"));
        assert_eq!(options.iothread.as_deref(), Some("io1"));
        assert_eq!(of(&["-drive", drive], "/other.img"), None);
    }

    #[test]
    fn nodes_are_followed_from_the_file_to_the_device() {
        let storage = r#"{"driver":"file","filename":"/a.qcow2","node-name":"libvirt-1-storage","aio":"io_uring","cache":{"direct":true,"no-flush":false}}"#;
        let format = r#"{"node-name":"libvirt-1-format","driver":"qcow2","file":"libvirt-1-storage"}"#;
        let device = r#"{"driver":"virtio-blk-pci","drive":"libvirt-1-format","id":"virtio-disk0","write-cache":"on"}"#;
        let options =
            of(&["-blockdev", storage, "-blockdev", format, "-device", device], "/a.qcow2").unwrap();
        assert_eq!(options.node.as_deref(), Some("libvirt-1-format"));
        assert_eq!(options.format.as_deref(), Some("qcow2"));
        assert_eq!((options.aio, options.cache), (Aio::IoUring, CacheMode::None));
        assert_eq!(options.device.as_deref(), Some("virtio-blk-pci"));
    }

    #[test]
    fn a_node_inside_an_argument_is_read() {
        let node =
            "driver=qcow2,node-name=q,file.driver=file,file.filename=/a,file.aio=native,file.cache.direct=on";
        let options = of(&["-blockdev", node, "-device", "scsi-hd,drive=q,write-cache=off"], "/a").unwrap();
        assert_eq!((options.aio, options.cache), (Aio::Native, CacheMode::Directsync));
        assert_eq!(options.format.as_deref(), Some("qcow2"));
        let json = r#"file=json:{"driver":"raw",,"file":{"driver":"file",,"filename":"/b"}},id=d,cache=none"#;
        let options = of(&["-drive", json], "/b").unwrap();
        assert_eq!((options.node.as_deref(), options.format.as_deref()), (Some("d"), Some("raw")));
    }

    #[test]
    fn short_forms_and_broken_command_lines_are_read() {
        assert!(of(&["-hda", "/a,b.img"], "/a,b.img").is_some());
        assert!(of(&["--cdrom", "/c.iso"], "/c.iso").is_some());
        for arguments in [&["-drive"][..], &["-blockdev", "{"], &["-device", ","], &["-", "--", "file=/a"]] {
            assert_eq!(of(arguments, "/a"), None, "{arguments:?}");
        }
        let circle = [
            "-blockdev",
            "driver=raw,node-name=a,file=b,filename=/a",
            "-blockdev",
            "driver=raw,node-name=b,file=a",
        ];
        assert!(of(&circle, "/a").is_some());
    }
}
