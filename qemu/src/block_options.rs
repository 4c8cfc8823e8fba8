//! Ways in which QEMU uses the images that its command line names.
//!
//! *In*: the arguments of `-drive`, `-blockdev`, `-device` and the short forms (`-hda`). *Out*: for a
//! file: the name of its node, its format, aio and cache mode, and the device that the guest sees.
//!
//! A file belongs to a block node (`-blockdev driver=file`). Another may wrap it, by name or in the
//! same argument (`driver=qcow2,file=NODE`), and filters may wrap that. A device names the outermost
//! one (`-device virtio-blk-pci,drive=NODE`). `-drive` has all of it in one argument.
//! [`BlockOptions::of`] follows the nodes from a file outwards.
//!
//! Source: qemu(1), block.c (`bdrv_parse_cache_mode`, `bdrv_inherited_options`) and hw/block/block.c
//! (`blkconf_apply_backend_options`) for the cache mode.

use std::fmt::{self, Display};

use crate::nbd_server::NbdServer;
use crate::option_list::{OptionList, option_name};

/// Maximum number of nodes inside each other: a command line could name a circle.
const DEPTH_MAX: usize = 16;
/// Maximum number of nodes and of devices that are read: each image is compared with each.
const ENTRIES_MAX: usize = 1_024;

/// Drivers that open a file of this machine, or reach one of another: none is a format.
const PROTOCOLS: [&str; 4] = ["file", "host_device", "host_cdrom", "nbd"];
/// Drivers between a device and a format that change nothing in the data.
const FILTERS: [&str; 8] = [
    "blkdebug",
    "blklogwrites",
    "blkreplay",
    "compress",
    "copy-before-write",
    "copy-on-read",
    "preallocate",
    "throttle",
];

/// Way in which QEMU submits I/O on an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Aio {
    /// System calls of a pool of threads, QEMU's default.
    #[default]
    Threads,
    /// Linux' asynchronous I/O: `io_submit`.
    Native,
    /// `io_uring`.
    IoUring,
}

/// Cache mode of an image. QEMU's manual has names for five of the combinations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheMode {
    /// Reads and writes bypass the host's page cache.
    pub direct: bool,
    /// A guest's flush does nothing.
    pub no_flush: bool,
    /// Each write is flushed.
    pub write_through: bool,
}

/// Options of an image on a command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageOptions {
    /// Name of the outermost block node, or id of the drive.
    pub node: Option<String>,
    /// Format: `raw`, `qcow2`. None if QEMU had to find it out.
    pub format: Option<String>,
    /// Way in which I/O is submitted.
    pub aio: Aio,
    /// Cache mode.
    pub cache: CacheMode,
    /// True if another image is based on it.
    pub is_backing: bool,
    /// Device that the guest sees, by its driver: `virtio-blk-pci`. None if the command line leaves
    /// it to QEMU.
    pub device: Option<String>,
    /// Serial number of that device, which the guest can read.
    pub serial: Option<String>,
    /// I/O threads of that device or of its controller.
    pub iothreads: Vec<String>,
}

/// Block nodes and devices of a command line.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockOptions {
    nodes: Vec<Node>,
    devices: Vec<OptionList>,
    /// True if each drive has a temporary image above it.
    are_snapshots: bool,
}

/// Node of QEMU's block graph.
#[derive(Clone, Debug, Default)]
struct Node {
    /// Names by which others refer to it: its node name, the drive's id.
    names: Vec<String>,
    driver: Option<String>,
    /// File that it opens.
    file: Option<String>,
    /// NBD server that has its data.
    server: Option<NbdServer>,
    /// Node that it wraps, and the node that it is based on.
    wraps: Option<Inner>,
    backing: Option<Inner>,
    /// True if it is based on none, whatever the image's header has.
    has_no_backing: bool,
    aio: Option<Aio>,
    cache: CacheOptions,
    /// True if QEMU finds out the format of a file without one.
    is_probed: bool,
    /// True if the data begin after the file's first byte, or end before its last.
    is_slice: bool,
    /// True if QEMU writes to a temporary image above it.
    is_snapshot: bool,
    /// Device that QEMU adds for it.
    device: Option<&'static str>,
}

/// Reference to another node.
#[derive(Clone, Debug)]
enum Inner {
    /// Inside the same argument: its number.
    Number(usize),
    Name(String),
}

/// Parts of a cache mode that an argument has.
#[derive(Clone, Copy, Debug, Default)]
struct CacheOptions {
    direct: Option<bool>,
    no_flush: Option<bool>,
    write_through: Option<bool>,
}

impl BlockOptions {
    /// Reads the options of a command line, without the program's own name.
    pub(crate) fn parse(arguments: &[String]) -> BlockOptions {
        let mut options = BlockOptions::default();
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            match option_name(argument) {
                Some("drive") => arguments.next().into_iter().for_each(|text| options.add_drive(text)),
                Some("blockdev") => {
                    let list = arguments.next().map(|text| OptionList::parse(text, "driver"));
                    list.into_iter()
                        .for_each(|list| _ = options.add_node(&list, "", CacheOptions::default()));
                }
                Some("snapshot") => options.are_snapshots = true,
                Some("device") if options.devices.len() < ENTRIES_MAX => {
                    options.devices.extend(arguments.next().map(|text| OptionList::parse(text, "driver")));
                }
                Some(
                    "hda" | "hdb" | "hdc" | "hdd" | "cdrom" | "fda" | "fdb" | "sd" | "pflash" | "mtdblock",
                ) => {
                    let file = arguments.next().map(|text| format!("file={}", text.replace(',', ",,")));
                    file.into_iter().for_each(|drive| options.add_drive(&drive));
                }
                _ => {}
            }
        }
        options
    }

    /// Returns the files that the command line names, each with the number of its node.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&str, usize)> {
        let nodes = self.nodes.iter().enumerate();
        nodes.filter_map(|(number, node)| Some((node.file.as_deref()?, number)))
    }

    /// Returns the NBD servers that the command line names, each with the number of its node.
    pub(crate) fn servers(&self) -> impl Iterator<Item = (&NbdServer, usize)> {
        let nodes = self.nodes.iter().enumerate();
        nodes.filter_map(|(number, node)| Some((node.server.as_ref()?, number)))
    }

    /// Returns how QEMU uses the file, or the server, of a node.
    pub(crate) fn of(&self, number: usize) -> Option<ImageOptions> {
        let innermost = self.nodes.get(number)?;
        let chain = self.chain(number);
        let outermost = chain.last().copied().unwrap_or(number);
        let nodes = || chain.iter().filter_map(|number| self.nodes.get(*number));
        let mut names = nodes().rev().flat_map(|node| &node.names);
        let device = names.find_map(|name| self.devices.iter().find(|device| device.is("drive", name)));
        let of_device = device.and_then(|device| device.flag("write-cache")).map(|on| !on);
        Some(ImageOptions {
            node: nodes().rev().find_map(|node| node.names.first().cloned()),
            format: format_of(&nodes().collect::<Vec<_>>()).map(str::to_owned),
            aio: nodes().find_map(|node| node.aio).unwrap_or_default(),
            cache: CacheMode {
                direct: innermost.cache.direct.unwrap_or(false),
                no_flush: innermost.cache.no_flush.unwrap_or(false),
                write_through: of_device
                    .or_else(|| nodes().find_map(|node| node.cache.write_through))
                    .unwrap_or(false),
            },
            is_backing: self.are_snapshots
                || nodes().any(|node| node.is_snapshot)
                || self.nodes.iter().any(|node| self.leads_to(node.backing.as_ref(), outermost)),
            device: device
                .and_then(|device| device.get("driver"))
                .or_else(|| nodes().find_map(|node| node.device))
                .map(str::to_owned),
            serial: device.and_then(|device| device.get("serial")).map(str::to_owned),
            iothreads: device.map(|device| self.iothreads(device)).unwrap_or_default(),
        })
    }

    /// Returns the backing file of a node's image: the number of its node. None if the image's header names it.
    pub(crate) fn backing(&self, number: usize) -> Option<Option<usize>> {
        let chain = self.chain(number);
        let nodes = || chain.iter().filter_map(|number| self.nodes.get(*number));
        if nodes().any(|node| node.has_no_backing) {
            return Some(None);
        }
        let backing = nodes().find_map(|node| node.backing.as_ref())?;
        Some(self.innermost(backing))
    }

    /// Returns the number of the node with the file to which a reference leads.
    fn innermost(&self, reference: &Inner) -> Option<usize> {
        let mut reference = reference;
        for _ in 0..DEPTH_MAX {
            let number = (0..self.nodes.len()).find(|number| self.leads_to(Some(reference), *number))?;
            let node = self.nodes.get(number)?;
            match &node.wraps {
                Some(wraps) if node.file.is_none() => reference = wraps,
                _ => return Some(number),
            }
        }
        None
    }

    /// Returns the numbers of a node and of those that wrap it, innermost first.
    fn chain(&self, innermost: usize) -> Vec<usize> {
        let mut chain = vec![innermost];
        while let Some(last) = chain.last().filter(|_| chain.len() < DEPTH_MAX) {
            let wraps = |node: &Node| self.leads_to(node.wraps.as_ref(), *last);
            let Some(outer) = self.nodes.iter().position(wraps) else { break };
            chain.push(outer);
        }
        chain
    }

    fn leads_to(&self, reference: Option<&Inner>, number: usize) -> bool {
        match reference {
            Some(Inner::Number(inner)) => *inner == number,
            Some(Inner::Name(name)) => self.nodes.get(number).is_some_and(|node| node.names.contains(name)),
            None => false,
        }
    }

    /// Returns the I/O threads of a device; of its controller if it has none (`bus=scsi0.0`).
    fn iothreads(&self, device: &OptionList) -> Vec<String> {
        let own = device.iothreads();
        if !own.is_empty() {
            return own;
        }
        let bus = device.get("bus").and_then(|bus| bus.split('.').next());
        let controller = bus.and_then(|bus| self.devices.iter().find(|device| device.is("id", bus)));
        controller.map(OptionList::iothreads).unwrap_or_default()
    }

    /// Adds the node of a `-blockdev` that has this prefix in its keys, and the nodes inside it. Returns
    /// its number.
    fn add_node(&mut self, options: &OptionList, prefix: &str, outer: CacheOptions) -> Option<usize> {
        let key = |name: &str| format!("{prefix}{name}");
        let get = |name: &str| options.get(&key(name)).map(str::to_owned);
        let names = ["driver", "filename", "node-name", "file.driver", "file.filename"];
        let is_node = names.iter().any(|name| options.get(&key(name)).is_some());
        if !is_node || self.nodes.len() >= ENTRIES_MAX || prefix.split('.').count() > DEPTH_MAX {
            return None;
        }
        let cache = CacheOptions::read(options, prefix).or(outer);
        let number = self.nodes.len();
        self.nodes.push(Node {
            names: get("node-name").into_iter().collect(),
            driver: get("driver"),
            is_slice: get("offset").or_else(|| get("size")).is_some(),
            server: NbdServer::of_options(options, prefix),
            file: get("filename"),
            aio: get("aio").as_deref().and_then(Aio::parse),
            cache,
            ..Node::default()
        });
        let wraps = get("file").map(Inner::Name);
        let wraps = wraps.or_else(|| self.add_node(options, &key("file."), cache).map(Inner::Number));
        let backing = get("backing");
        let has_no_backing = backing.as_deref() == Some("");
        let backing = backing.filter(|_| !has_no_backing).map(Inner::Name);
        let backing = backing.or_else(|| self.add_node(options, &key("backing."), cache).map(Inner::Number));
        if let Some(node) = self.nodes.get_mut(number) {
            (node.wraps, node.backing, node.has_no_backing) = (wraps, backing, has_no_backing);
        }
        Some(number)
    }

    fn add_drive(&mut self, text: &str) {
        if self.nodes.len() >= ENTRIES_MAX {
            return;
        }
        let options = OptionList::parse(text, "file");
        let get = |name: &str| options.get(name).map(str::to_owned);
        let mode = options.get("cache").and_then(CacheMode::parse);
        let cache = CacheOptions::read(&options, "").or(mode.map(CacheOptions::from).unwrap_or_default());
        let file = get("file");
        let server =
            file.as_deref().and_then(NbdServer::of_file_name).or_else(|| NbdServer::of_options(&options, ""));
        let json = file.as_deref().and_then(|file| file.strip_prefix("json:")).map(OptionList::json);
        let wraps = match &json {
            Some(json) => self.add_node(json, "", cache),
            None => self.add_node(&options, "file.", cache),
        };
        let backing = get("backing").filter(|name| !name.is_empty()).map(Inner::Name);
        let backing = backing.or_else(|| self.add_node(&options, "backing.", cache).map(Inner::Number));
        self.nodes.push(Node {
            names: ["id", "node-name"].into_iter().filter_map(get).collect(),
            driver: get("format").or_else(|| get("driver")),
            file: file.filter(|_| wraps.is_none() && server.is_none()),
            server,
            wraps: wraps.map(Inner::Number),
            backing,
            has_no_backing: options.is("backing", ""),
            aio: get("aio").as_deref().and_then(Aio::parse),
            cache,
            // A JSON object describes the drive's own node.
            is_probed: json.is_none(),
            is_slice: get("offset").or_else(|| get("size")).is_some(),
            is_snapshot: options.flag("snapshot") == Some(true),
            device: options.is("if", "virtio").then_some("virtio-blk"),
        });
    }
}

/// Returns the format of the data that a device gets, of the nodes from the file outwards: that of the outermost node
/// with one. Raw only if no node in between changes the data or their offsets.
fn format_of<'a>(nodes: &[&'a Node]) -> Option<&'a str> {
    let is_format = |driver: &&str| !PROTOCOLS.contains(driver) && !FILTERS.contains(driver);
    let format = |node: &&'a Node| node.driver.as_deref().filter(is_format);
    let outermost = nodes.last()?;
    // QEMU finds out the format of a drive's data by their first bytes.
    if outermost.is_probed && format(outermost).is_none() {
        return None;
    }
    let other = nodes.iter().rev().filter_map(format).find(|driver| *driver != "raw");
    let raw = if nodes.iter().any(|node| node.is_slice) { "raw slice" } else { "raw" };
    Some(other.unwrap_or(raw))
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
    /// Parses the value of `-drive cache=`.
    fn parse(text: &str) -> Option<CacheMode> {
        let (direct, no_flush, write_through) = match text {
            // `off` is the old name of `none`.
            "none" | "off" => (true, false, false),
            "writeback" => (false, false, false),
            "writethrough" => (false, false, true),
            "directsync" => (true, false, true),
            "unsafe" => (false, true, false),
            _ => return None,
        };
        Some(CacheMode { direct, no_flush, write_through })
    }
}

impl Display for CacheMode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match (self.direct, self.no_flush, self.write_through) {
            (true, false, false) => "none",
            (false, false, false) => "writeback",
            (false, false, true) => "writethrough",
            (true, false, true) => "directsync",
            (false, true, false) => "unsafe",
            (true, true, false) => "unsafe, direct",
            (direct, true, true) => {
                return formatter.write_str(if direct {
                    "unsafe, directsync"
                } else {
                    "unsafe, writethrough"
                });
            }
        })
    }
}

impl CacheOptions {
    fn read(options: &OptionList, prefix: &str) -> CacheOptions {
        let flag = |name: &str| options.flag(&format!("{prefix}cache.{name}"));
        CacheOptions {
            direct: flag("direct"),
            no_flush: flag("no-flush"),
            write_through: flag("writeback").map(|on| !on),
        }
    }

    /// Fills what is missing from other options.
    fn or(self, other: CacheOptions) -> CacheOptions {
        CacheOptions {
            direct: self.direct.or(other.direct),
            no_flush: self.no_flush.or(other.no_flush),
            write_through: self.write_through.or(other.write_through),
        }
    }
}

impl From<CacheMode> for CacheOptions {
    fn from(mode: CacheMode) -> CacheOptions {
        CacheOptions {
            direct: Some(mode.direct),
            no_flush: Some(mode.no_flush),
            write_through: Some(mode.write_through),
        }
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
    fn the_command_line_may_have_the_backing_file() {
        let file = |name: &str| {
            format!(r#"{{"driver": "file", "filename": "/{name}", "node-name": "{name}-file"}}"#)
        };
        let format = |name: &str, backing: &str| {
            format!(
                r#"{{"driver": "qcow2", "file": "{name}-file", "node-name": "{name}", "backing": {backing}}}"#
            )
        };
        let nodes = [file("a"), format("a", "\"b\""), file("b"), format("b", "null"), file("c")];
        let drive = ["-drive", "file=/d,backing.file.filename=/e", "-drive", "file=/f,backing="];
        let nodes = nodes.iter().flat_map(|node| ["-blockdev", node]).chain(drive);
        let options = BlockOptions::parse(&nodes.map(str::to_owned).collect::<Vec<_>>());
        let number = |of: &str| options.files().find(|(name, _)| *name == of).unwrap().1;
        let backing = |of: &str| options.backing(number(of));
        assert_eq!(backing("/a"), Some(Some(number("/b"))));
        assert_eq!(["/b", "/c", "/f"].map(backing), [Some(None), None, Some(None)]);
        assert_eq!(backing("/d"), Some(Some(number("/e"))));
    }

    /// Node, format, aio mode, cache mode, device and I/O threads in one text.
    fn text(arguments: &[&str], file: &str) -> String {
        let options = of(arguments, file).unwrap_or_else(|| panic!("{file} is not named"));
        let or = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        let ImageOptions { node, format, aio, cache, device, iothreads, .. } = options;
        format!("{} {} {aio} {cache} {} {iothreads:?}", or(&node), or(&format), or(&device))
    }

    #[test]
    fn a_drive_has_all_in_one_argument() {
        let drive = "file=/a.img,format=raw,if=none,id=d0,cache=directsync,aio=native";
        let device = "virtio-blk-pci,drive=d0,iothread=io1,serial=root";
        let arguments = ["-drive", drive, "-device", device];
        assert_eq!(of(&arguments, "/a.img").unwrap().serial.as_deref(), Some("root"));
        assert_eq!(text(&arguments, "/a.img"), r#"d0 raw native directsync virtio-blk-pci ["io1"]"#);
        assert_eq!(of(&arguments, "/other.img"), None);
        // The device's own option decides whether writes are flushed.
        let arguments = ["-drive", drive, "-device", "virtio-blk-pci,drive=d0,write-cache=on"];
        assert_eq!(text(&arguments, "/a.img"), "d0 raw native none virtio-blk-pci []");
        let drive = "file=/a,if=virtio,cache.writeback=off,cache.direct=yes";
        assert_eq!(text(&["-drive", drive], "/a"), "- - threads directsync virtio-blk []");
    }

    #[test]
    fn libvirts_nodes_are_followed_from_the_file_to_the_device() {
        let storage = r#"{"driver":"file","filename":"/a.qcow2","node-name":"libvirt-1-storage","aio":"io_uring","cache":{"direct":true,"no-flush":false}}"#;
        let format = r#"{"node-name":"libvirt-1-format","driver":"qcow2","file":"libvirt-1-storage","backing":"libvirt-2-storage"}"#;
        let filter = r#"{"driver":"copy-on-read","node-name":"libvirt-CoR-vda","file":"libvirt-1-format"}"#;
        let device = r#"{"driver":"virtio-blk-pci","iothread-vq-mapping":[{"iothread":"io1","vqs":[0]},{"iothread":"io2"}],"drive":"libvirt-CoR-vda"}"#;
        let backing =
            r#"{"driver":"file","filename":"/base.img","node-name":"libvirt-2-storage","read-only":true}"#;
        let arguments = [
            "-blockdev",
            backing,
            "-blockdev",
            storage,
            "-blockdev",
            format,
            "-blockdev",
            filter,
            "-device",
            device,
        ];
        let expected = r#"libvirt-CoR-vda qcow2 io_uring none virtio-blk-pci ["io1", "io2"]"#;
        assert_eq!(text(&arguments, "/a.qcow2"), expected);
        // A file without a format node is raw for the guest.
        assert_eq!(text(&arguments, "/base.img"), "libvirt-2-storage raw threads writeback - []");
        let is_backing = |file: &str| of(&arguments, file).map(|options| options.is_backing);
        assert_eq!((is_backing("/base.img"), is_backing("/a.qcow2")), (Some(true), Some(false)));
    }

    #[test]
    fn nodes_inside_one_argument_are_followed() {
        let proxmox = r#"{"driver":"throttle","node-name":"drive-scsi0","throttle-group":"t","file":{"driver":"raw","node-name":"f1","cache":{"direct":true},"file":{"driver":"host_device","filename":"/dev/pve/vm-103-disk-1","node-name":"e1","aio":"io_uring","cache":{"direct":true,"no-flush":false}}}}"#;
        let arguments = [
            "-blockdev",
            proxmox,
            "-device",
            "virtio-scsi-pci,id=virtioscsi0,bus=pci.3,addr=0x1,iothread=iothread-virtioscsi0",
            "-device",
            "scsi-hd,bus=virtioscsi0.0,channel=0,drive=drive-scsi0,id=scsi0,write-cache=on",
        ];
        let expected = r#"drive-scsi0 raw io_uring none scsi-hd ["iothread-virtioscsi0"]"#;
        assert_eq!(text(&arguments, "/dev/pve/vm-103-disk-1"), expected);
        let node =
            "driver=qcow2,node-name=q,cache.direct=on,file.driver=file,file.filename=/a,file.aio=native";
        let arguments = ["-blockdev", node, "-device", "scsi-hd,drive=q,write-cache=off"];
        assert_eq!(text(&arguments, "/a"), "q qcow2 native directsync scsi-hd []");
        // A node that is named and not contained has its own cache mode.
        let arguments = [
            "-blockdev",
            "driver=file,filename=/a,node-name=f",
            "-blockdev",
            "driver=raw,file=f,node-name=r,cache.direct=on",
        ];
        assert_eq!(text(&arguments, "/a"), "r raw threads writeback - []");
        let json = r#"file=json:{"driver":"raw",,"file":{"driver":"file",,"filename":"/b"}},id=d,cache=none"#;
        assert_eq!(text(&["-drive", json], "/b"), "d raw threads none - []");
    }

    #[test]
    fn disks_over_nbd_have_a_server_and_no_file() {
        let server = r#"{"driver":"nbd","node-name":"s","server":{"type":"inet","host":"store","port":"10810"},"export":"a"}"#;
        let arguments = [
            "-drive",
            "file=nbd://192.0.2.2/a,if=none,id=d,format=raw,cache=none",
            "-device",
            "virtio-blk-pci,drive=d,serial=far",
            "-blockdev",
            server,
            "-blockdev",
            "driver=qcow2,file=s,node-name=q",
            "-device",
            "scsi-hd,drive=q",
            "-drive",
            "file.driver=nbd,file.path=/run/s.sock,if=virtio",
            "-blockdev",
            "driver=nbd,server.type=unix,server.path=/run/t.sock,node-name=t",
            "-drive",
            "driver=nbd,host=old",
        ];
        let options = BlockOptions::parse(&arguments.map(str::to_owned));
        assert_eq!(options.files().count(), 0);
        let disk = |(server, number): (&NbdServer, usize)| {
            let ImageOptions { format, device, serial, cache, .. } = options.of(number).unwrap();
            let or = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
            format!("{server:?} {} {} {} {cache}", or(format), or(device), or(serial))
        };
        let expected = [
            r#"Tcp("192.0.2.2", 10809) raw virtio-blk-pci far none"#,
            r#"Tcp("store", 10810) qcow2 scsi-hd - writeback"#,
            r#"Unix("/run/s.sock") - virtio-blk - writeback"#,
            r#"Unix("/run/t.sock") raw - - writeback"#,
            r#"Tcp("old", 10809) - - - writeback"#,
        ];
        assert_eq!(options.servers().map(disk).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn data_are_raw_only_if_no_node_changes_them() {
        let file = "driver=file,filename=/a,node-name=f";
        let format = |nodes: &[&str]| {
            let nodes = [&[file], nodes].concat();
            let arguments: Vec<&str> = nodes.iter().flat_map(|node| ["-blockdev", node]).collect();
            of(&arguments, "/a").unwrap().format
        };
        let some = |format: &str| Some(format.to_owned());
        assert_eq!(format(&["driver=raw,node-name=r,file=f"]), some("raw"));
        assert_eq!(format(&["driver=raw,node-name=r,file=f,offset=512"]), some("raw slice"));
        assert_eq!(format(&["driver=raw,node-name=r,file=f", "driver=luks,file=r"]), some("luks"));
        let slice = "driver=raw,node-name=r,file=f,offset=512,size=1M";
        assert_eq!(
            format(&[slice, "driver=qcow2,file=r,node-name=q", "driver=throttle,file=q"]),
            some("qcow2")
        );
        let of_drive = |drive: &str| of(&["-drive", drive], "/a").unwrap();
        assert_eq!(of_drive("file.driver=raw,file.file.driver=file,file.file.filename=/a").format, None);
        assert_eq!(of_drive("file.filename=/a").format, None);
        let is_backing = |arguments: &[&str]| of(arguments, "/a").unwrap().is_backing;
        assert!(is_backing(&["-drive", "file=/a,snapshot=on"]));
        assert!(is_backing(&["-hda", "/a", "-snapshot"]));
        assert!(!is_backing(&["-drive", "file=/a,snapshot=off"]));
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
            "driver=raw,node-name=b,file=a,backing=a",
        ];
        assert!(of(&circle, "/a").is_some());
        let many = vec!["-hda"; 10_000];
        assert_eq!(
            BlockOptions::parse(&many.iter().map(|&word| word.to_owned()).collect::<Vec<_>>()).nodes.len(),
            1_024
        );
        let deep = (0..100).map(|n| format!("{}filename=/{n}", "file.".repeat(n))).collect::<Vec<_>>();
        assert!(of(&["-blockdev", &deep.join(",")], "/99").is_none());
    }
}
