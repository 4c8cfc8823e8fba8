//! A call as a line for people: `pread64(fd 4, 4096 bytes at 8192) = 4096`.
//!
//! It is not C and not strace: what a reader of storage traces looks for is spelt out (descriptors, bytes,
//! positions, names), addresses of buffers are left out, and an argument that is not in force (a mode without a
//! file to create, the high half of a position) is not shown. A text that was not captured is `?`, never a guess.
//! Bytes from a program reach a terminal here, so texts are escaped.

mod value;

use std::fmt;

use super::errno::{errno_name, errno_of, was_interrupted};
use super::{Arch, Args, CallId, FlagSet, Returns, fcntl};
use value::Piece;

/// One call as it happened, ready to be written out by [`fmt::Display`], or in parts.
#[derive(Clone, Copy, Debug)]
pub struct Invocation<'a> {
    /// Which call.
    pub call: CallId,
    /// The architecture that it ran on, whose flags it uses.
    pub arch: Arch,
    /// The argument registers at its entry.
    pub args: &'a Args,
    /// What it returned; `None` if its exit was not seen.
    pub ret: Option<i64>,
    /// The texts that were captured, in the order of [`super::CallSpec::text_args`] (paths first).
    pub texts: [Option<&'a str>; 2],
}

impl Invocation<'_> {
    /// Everything between the brackets: `fd 4, 4096 bytes at 8192`.
    pub fn arguments(&self) -> String {
        let mut line = String::new();
        for index in 0..self.call.spec().args.len() {
            match self.piece(index) {
                Piece::Hidden => {}
                Piece::Attached(text) => {
                    line.push(' ');
                    line.push_str(&text);
                }
                Piece::Own(text) => {
                    if !line.is_empty() {
                        line.push_str(", ");
                    }
                    line.push_str(&text);
                }
            }
        }
        line
    }

    /// What came back: `4096`, `-ENOENT`, `0x7f0012340000`, `interrupted`; `None` if the exit was not seen.
    pub fn result(&self) -> Option<String> {
        let returned = self.call.spec().returned(self.args);
        self.ret.map(|ret| result_text(self.arch, returned, ret))
    }
}

impl fmt::Display for Invocation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.call.name(), self.arguments())?;
        match self.result() {
            Some(result) => write!(f, " = {result}"),
            None => Ok(()),
        }
    }
}

/// A return value of the given meaning; an error of any call is its name with a minus.
pub fn result_text(arch: Arch, returns: Returns, ret: i64) -> String {
    if was_interrupted(ret) {
        return "interrupted".to_owned();
    }
    match (errno_of(ret), returns) {
        (Some(errno), _) => errno_name(errno).map_or_else(|| ret.to_string(), |name| format!("-{name}")),
        (None, Returns::Address) => format!("{ret:#x}"),
        (None, Returns::Flags) => FlagSet::Open.text(arch, ret as u32),
        (None, _) => ret.to_string(),
    }
}

/// An fcntl command by name, or as a number.
pub fn fcntl_text(command: u32) -> String {
    fcntl::name(command).map_or_else(|| command.to_string(), str::to_owned)
}

/// An ioctl request by name, or as `0x…`.
pub fn ioctl_text(request: u32) -> String {
    super::ioctl::name(request).map_or_else(|| format!("{request:#x}"), str::to_owned)
}

/// `1 byte`, `4096 bytes`.
pub fn counted(count: u64, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

/// A device number as `major:minor`, from user space's encoding (`include/linux/kdev_t.h`, `new_decode_dev`).
pub fn device_text(dev: u32) -> String {
    let (major, minor) = ((dev & 0xf_ff00) >> 8, (dev & 0xff) | ((dev >> 12) & 0xf_ff00));
    format!("{major}:{minor}")
}

/// Permission bits as octal, after the file's type where one is given: `S_IFBLK|0660`.
pub fn mode_text(mode: u32) -> String {
    let permissions = format!("{:04o}", mode & 0o7777);
    let kind = match mode & 0o170000 {
        0 => return permissions,
        0o010000 => "S_IFIFO",
        0o020000 => "S_IFCHR",
        0o060000 => "S_IFBLK",
        0o100000 => "S_IFREG",
        0o140000 => "S_IFSOCK",
        other => return format!("{other:#o}|{permissions}"),
    };
    format!("{kind}|{permissions}")
}
