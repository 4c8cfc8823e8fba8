//! QEMU's processes, each with its name and its open images.
//!
//! *In*: `/proc/PID/exe`, `cmdline` and the open files. *Out*: [`Machine`]s by pid, and the [`Image`]s of one.
//!
//! A process is QEMU if its program's file is named as distributions name it: `qemu-system-ARCH`
//! (`.qemu-system-ARCH-wrapped` of NixOS), `qemu-kvm` or `kvm`. The file may have been replaced by an
//! update meanwhile.
//!
//! A file that the process has open is an image if the command line names it, if QEMU's locks are on
//! it, or if it is a block device. So images are found that were attached later, or were passed as
//! descriptors (`/dev/fdset/N`). QEMU takes no locks with `locking=off`, nor on a node that nothing uses.
//!
//! *Weakness*: a name that leads into a file system that does not respond (FUSE, NFS) blocks the caller of
//! [`images_of`]. A command line with a page of one blocks the caller of the others.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::backing::note_backing_files;
use crate::block_options::{BlockOptions, ImageOptions};
use crate::image::{Image, Naming, identity_of};
use crate::nbd_server::NbdServer;
use crate::open_files::{FileIdentity, OpenFile, open_files};
use crate::option_list::{OptionList, option_name};

/// Maximum length of a command line that is read; libvirt's have some 10 KiB.
const COMMAND_LINE_MAX: u64 = 1 << 20;

/// Virtual machine of a QEMU process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Process.
    pub pid: u32,
    /// Name that it was started with; libvirt's name of the domain.
    pub name: Option<String>,
    /// UUID that it was started with.
    pub uuid: Option<String>,
}

/// Lists the virtual machines, by pid; `root` is the folder that has `proc`.
pub fn machines(root: &Path) -> io::Result<Vec<Machine>> {
    let mut machines: Vec<_> = processes(root)?.filter_map(|pid| machine_of(root, pid)).collect();
    machines.sort_by_key(|machine| machine.pid);
    Ok(machines)
}

/// Lists all processes.
pub fn processes(root: &Path) -> io::Result<impl Iterator<Item = u32>> {
    let entries = fs::read_dir(root.join("proc"))?.flatten();
    Ok(entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()))
}

/// Returns the virtual machine of a process, if it is QEMU's.
pub fn machine_of(root: &Path, pid: u32) -> Option<Machine> {
    let process = process_folder(root, pid);
    let program = fs::read_link(process.join("exe"));
    // A kernel thread has no program, and of most processes the rest is not read.
    match &program {
        Ok(program) if !is_qemu_program(program) => return None,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Ok(_) | Err(_) => {}
    }
    let arguments = command_line(&process)?;
    // Without the right to read the link, the first argument decides.
    if program.is_err() && !is_qemu_program(Path::new(arguments.first()?)) {
        return None;
    }
    Some(named_machine(pid, &arguments))
}

/// Returns the virtual machine that the command line of a process names. The process is known to run QEMU.
pub fn machine_of_qemu(root: &Path, pid: u32) -> Option<Machine> {
    Some(named_machine(pid, &command_line(&process_folder(root, pid))?))
}

fn named_machine(pid: u32, arguments: &[String]) -> Machine {
    // Of an option that is there twice, QEMU takes the last.
    let value_of = |option: &str| {
        let is_option = |argument: &String| option_name(argument) == Some(option);
        arguments.get(arguments.iter().rposition(is_option)? + 1)
    };
    let name =
        value_of("name").and_then(|name| OptionList::parse(name, "guest").get("guest").map(str::to_owned));
    Machine { pid, name, uuid: value_of("uuid").cloned() }
}

/// Lists the images that a process of QEMU has open, by path. None if the caller may not read which files
/// it has open, or if it has ended.
pub fn images_of(root: &Path, pid: u32) -> Option<Vec<Image>> {
    let process = process_folder(root, pid);
    let options = BlockOptions::parse(command_line(&process)?.get(1..)?);
    let named = named_files(&process, &options);
    let image = |file: OpenFile| {
        let nodes = named.get(&file.identity).map(Vec::as_slice).unwrap_or_default();
        let naming = Naming {
            path: nodes.first().map(|(path, _)| (*path).to_owned()),
            nodes: nodes.iter().map(|(_, number)| *number).collect(),
            backing: nodes.iter().find_map(|(_, number)| options.backing(*number)),
            is_named: !nodes.is_empty(),
        };
        // A file that is a disk and a backing file is the former.
        let mut of_nodes: Vec<_> = nodes.iter().filter_map(|(_, number)| options.of(*number)).collect();
        of_nodes.sort_by_key(|options| options.is_backing);
        let options = of_nodes.into_iter().next();
        let is_block_device = matches!(file.identity, FileIdentity::BlockDevice(_));
        let is_image = options.is_some() || file.has_image_lock || is_block_device;
        is_image.then(|| Image::of(file, naming, options))
    };
    let mut images: Vec<Image> = open_files(&process).ok()?.into_iter().filter_map(image).collect();
    note_backing_files(&process, &mut images);
    Some(images)
}

/// Drive of a command line that an NBD server has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdDrive {
    /// Server.
    pub server: NbdServer,
    /// Options on the command line. It is a backing file also if the header of an open image names a server that may be
    /// this one, as after a snapshot.
    pub options: ImageOptions,
}

/// Lists the drives over NBD that the command line of a QEMU process names. `images`: those that it has open.
pub fn nbd_drives_of(root: &Path, pid: u32, images: &[Image]) -> Option<Vec<NbdDrive>> {
    let options = BlockOptions::parse(command_line(&process_folder(root, pid))?.get(1..)?);
    let backing = images.iter().filter_map(|image| image.qcow2.as_ref()?.backing.as_ref());
    let backing: Vec<_> = backing.filter_map(|name| NbdServer::of_backing_name(&name.path)).collect();
    let drive = |(server, number): (&NbdServer, usize)| {
        let mut options = options.of(number)?;
        options.is_backing |= backing.iter().any(|below| below.may_be(server));
        Some(NbdDrive { server: server.clone(), options })
    };
    Some(options.servers().filter_map(drive).collect())
}

fn process_folder(root: &Path, pid: u32) -> PathBuf {
    root.join("proc").join(pid.to_string())
}

/// Returns names and nodes of the files that a command line names.
fn named_files<'a>(
    process: &Path,
    options: &'a BlockOptions,
) -> HashMap<FileIdentity, Vec<(&'a str, usize)>> {
    let mut named: HashMap<FileIdentity, Vec<(&str, usize)>> = HashMap::new();
    for (name, number) in options.files() {
        let name = name.strip_prefix("file:").unwrap_or(name);
        if let Some(identity) = identity_of(process, Path::new(name)) {
            named.entry(identity).or_default().push((name, number));
        }
    }
    named
}

/// Returns a process's arguments; none for a kernel thread or one that has ended.
fn command_line(process: &Path) -> Option<Vec<String>> {
    let mut bytes = Vec::new();
    fs::File::open(process.join("cmdline")).ok()?.take(COMMAND_LINE_MAX).read_to_end(&mut bytes).ok()?;
    let bytes = bytes.strip_suffix(&[0]).unwrap_or(&bytes);
    let arguments = bytes.split(|&byte| byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
    (!bytes.is_empty()).then(|| arguments.collect())
}

/// Returns whether a path is that of a program of QEMU that runs virtual machines, by its file name.
pub fn is_qemu_program(program: &Path) -> bool {
    let Some(name) = program.file_name().map(|name| String::from_utf8_lossy(name.as_bytes())) else {
        return false;
    };
    // The kernel's mark of a file that was replaced.
    let name = name.strip_suffix(" (deleted)").unwrap_or(&name);
    name.trim_start_matches('.').starts_with("qemu-system-") || matches!(name, "qemu-kvm" | "kvm")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::qcow2::tests::with_backing;

    /// Makes a folder like that of a process.
    fn process(root: &Path, pid: u32, exe: &str, arguments: &[&str]) -> PathBuf {
        let process = root.join("proc").join(pid.to_string());
        fs::create_dir_all(process.join("fdinfo")).unwrap();
        fs::create_dir(process.join("fd")).unwrap();
        symlink(exe, process.join("exe")).unwrap();
        symlink("/", process.join("root")).unwrap();
        symlink(root, process.join("cwd")).unwrap();
        fs::write(
            process.join("cmdline"),
            arguments.iter().map(|word| format!("{word}\0")).collect::<String>(),
        )
        .unwrap();
        process
    }

    fn open(process: &Path, number: u32, path: &Path, info: &str) {
        symlink(path, process.join("fd").join(number.to_string())).unwrap();
        fs::write(process.join("fdinfo").join(number.to_string()), info).unwrap();
    }

    #[test]
    fn qemus_processes_are_found_with_their_images() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        for name in ["a.img", "hot.img", "log"] {
            fs::write(path(name), "").unwrap();
        }
        let arguments =
            ["qemu", "-name", "guest=web,debug-threads=on", "-uuid", "1-2", "-drive", "file=a.img,id=d"];
        let qemu = process(root.path(), 7, "/usr/bin/qemu-system-x86_64 (deleted)", &arguments);
        open(&qemu, 3, &path("a.img"), "flags:\t02100002\n");
        open(&qemu, 4, &path("log"), "flags:\t0100001\n");
        let lock = "flags:\t02100000\nlock:\t1: OFDLCK ADVISORY  READ -1 fe:00:1 100 101\n";
        open(&qemu, 5, &path("hot.img"), lock);
        process(root.path(), 8, "/usr/bin/qemu-img", &["qemu-img", "info"]);
        process(root.path(), 9, "/usr/bin/cat", &["-name", "web"]);
        let found = machines(root.path()).unwrap();
        let [machine] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(
            (machine.pid, machine.name.as_deref(), machine.uuid.as_deref()),
            (7, Some("web"), Some("1-2"))
        );
        let images = images_of(root.path(), 7).unwrap();
        let images = images.iter().map(|image| {
            let name = image.file.path.file_name().unwrap().to_str().unwrap();
            (name, image.file.writable, image.options.as_ref().and_then(|options| options.node.as_deref()))
        });
        assert_eq!(images.collect::<Vec<_>>(), [("a.img", true, Some("d")), ("hot.img", false, None)]);
    }

    #[test]
    fn backing_files_are_found_by_the_headers_of_the_images_above() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        let qcow2 = |name: &str, backing: &str, format: &str| {
            fs::write(path(name), with_backing(3, backing, Some(format))).unwrap();
        };
        for name in ["base.img", "other.img", "shared.img"] {
            fs::write(path(name), [0; 4096]).unwrap();
        }
        qcow2("snapshot.qcow2", "top.qcow2", "qcow2");
        qcow2("top.qcow2", "middle.qcow2", "qcow2");
        qcow2("middle.qcow2", path("base.img").to_str().unwrap(), "raw");
        qcow2("one.qcow2", "shared.img", "raw");
        qcow2("two.qcow2", "shared.img", "raw");
        qcow2("raw.img", "other.img", "raw");
        let drives =
            ["file=top.qcow2,format=qcow2", "file=one.qcow2,format=qcow2", "file=two.qcow2,format=qcow2"];
        // A guest can write a header into its raw disk.
        let drives = drives.iter().chain(&["file=raw.img,format=raw", "file=other.img,format=raw"]);
        let arguments: Vec<&str> = drives.flat_map(|drive| ["-drive", drive]).collect();
        let arguments = [&["qemu"], arguments.as_slice()].concat();
        let qemu = process(root.path(), 7, "/usr/bin/qemu-system-x86_64", &arguments);
        let lock = "flags:\t02100000\nlock:\t1: OFDLCK ADVISORY  READ -1 fe:00:1 100 101\n";
        let names = [
            "snapshot.qcow2",
            "top.qcow2",
            "middle.qcow2",
            "base.img",
            "one.qcow2",
            "two.qcow2",
            "shared.img",
            "raw.img",
            "other.img",
        ];
        for (number, name) in names.iter().enumerate() {
            open(&qemu, number as u32, &path(name), lock);
        }
        let images = images_of(root.path(), 7).unwrap();
        let name = |image: &Image| image.file.path.file_name().unwrap().to_str().unwrap().to_owned();
        let name_of = |identity: &FileIdentity| {
            images.iter().find(|image| image.file.identity == *identity).map(name).unwrap()
        };
        let mut above: Vec<(String, Vec<String>)> =
            images.iter().map(|image| (name(image), image.above.iter().map(name_of).collect())).collect();
        above.retain(|(_, above)| !above.is_empty());
        above.iter_mut().for_each(|(_, above)| above.sort());
        let expected = [
            ("base.img", &["middle.qcow2"][..]),
            ("middle.qcow2", &["top.qcow2"]),
            ("shared.img", &["one.qcow2", "two.qcow2"]),
            ("top.qcow2", &["snapshot.qcow2"]),
        ];
        let expected = expected
            .map(|(name, above)| (name.to_owned(), above.iter().map(|&name| name.to_owned()).collect()));
        assert_eq!(above, expected);
        let format =
            |name: &str| images.iter().find(|image| image.file.path == path(name)).unwrap().format.clone();
        assert_eq!(
            ["base.img", "middle.qcow2", "snapshot.qcow2"].map(format),
            [Some("raw".to_owned()), Some("qcow2".to_owned()), None]
        );
    }

    #[test]
    fn two_disks_on_one_file_are_both_above_it() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        fs::write(path("base.img"), [0; 4096]).unwrap();
        let mut arguments = vec!["qemu".to_owned()];
        for name in ["one", "two"] {
            // The header names another file, which is not open: as after a commit.
            fs::write(path(name), with_backing(3, "base.img", Some("raw"))).unwrap();
            for (node, file) in [(format!("{name}-base"), "base.img"), (format!("{name}-file"), name)] {
                let file = path(file);
                arguments.extend([
                    "-blockdev".to_owned(),
                    format!("driver=file,filename={},node-name={node}", file.display()),
                ]);
            }
            arguments.extend([
                "-blockdev".to_owned(),
                format!("driver=qcow2,file={name}-file,backing={name}-base"),
            ]);
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let qemu = process(root.path(), 7, "/usr/bin/qemu-system-x86_64", &arguments);
        for (number, name) in ["base.img", "one", "two"].iter().enumerate() {
            open(&qemu, number as u32, &path(name), "flags:\t02100000\n");
        }
        let images = images_of(root.path(), 7).unwrap();
        let above = images.iter().map(|image| image.above.len());
        assert_eq!(above.collect::<Vec<_>>(), [2, 0, 0]);
    }

    #[test]
    fn a_process_that_may_not_be_read_has_no_list_of_images() {
        let root = tempfile::tempdir().unwrap();
        let qemu = process(root.path(), 7, "/usr/libexec/qemu-kvm", &["qemu-kvm", "-name", "web", "-uuid"]);
        fs::remove_dir(qemu.join("fd")).unwrap();
        let found = machines(root.path()).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].name.as_deref(), &found[0].uuid), (Some("web"), &None));
        assert_eq!(images_of(root.path(), 7), None);
        assert!(machines(&root.path().join("none")).is_err());
    }
}
