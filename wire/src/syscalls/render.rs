//! System call as a readable line: `pread64(fd 4, 4096 bytes at 8192) = 4096`.
//!
//! It is neither C nor strace output. Details that matter in storage traces are spelt out
//! (descriptors, bytes, positions, names). Buffer addresses are omitted, and so are arguments
//! without effect (a mode without a file to create, the high half of a position). A text that was
//! not captured is `?`, never a guess. Texts come from programs and are escaped, because the line
//! reaches a terminal.

mod value;

use std::fmt;

use super::errno::{errno_name, errno_of, was_interrupted};
use super::{Arch, Args, FlagSet, Returns, SyscallId, fcntl};
use value::ArgText;

/// An executed system call, to be formatted by [`fmt::Display`] or in parts.
#[derive(Clone, Copy, Debug)]
pub struct Invocation<'a> {
    /// System call.
    pub call: SyscallId,
    /// Architecture that it ran on, for its flags.
    pub arch: Arch,
    /// Argument registers at entry.
    pub args: &'a Args,
    /// Return value; `None` if the exit was missed.
    pub ret: Option<i64>,
    /// Captured strings, in the order of [`super::SyscallSpec::text_args`] (paths first).
    pub texts: [Option<&'a str>; 2],
}

impl Invocation<'_> {
    /// Formats the arguments: `fd 4, 4096 bytes at 8192`.
    pub fn arguments(&self) -> String {
        let mut line = String::new();
        for index in 0..self.call.spec().args.len() {
            match self.arg_text(index) {
                ArgText::Hidden => {}
                ArgText::Attached(text) => {
                    line.push(' ');
                    line.push_str(&text);
                }
                ArgText::Separate(text) => {
                    if !line.is_empty() {
                        line.push_str(", ");
                    }
                    line.push_str(&text);
                }
            }
        }
        line
    }

    /// Formats the return value: `4096`, `-ENOENT`, `0x7f0012340000`, `interrupted`; `None` if the
    /// exit was missed.
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

/// Formats a return value of the given meaning; an error of any call is its name with a minus.
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

/// Formats an fcntl command: its name or number.
pub fn fcntl_text(command: u32) -> String {
    fcntl::name(command).map_or_else(|| command.to_string(), str::to_owned)
}

/// Formats an ioctl request: its name or `0x…`.
pub fn ioctl_text(request: u32) -> String {
    super::ioctl::name(request).map_or_else(|| format!("{request:#x}"), str::to_owned)
}

/// Formats a count with its noun: `1 byte`, `4096 bytes`.
pub fn counted(count: u64, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

/// Formats a device number in user space's encoding as `major:minor` (`include/linux/kdev_t.h`,
/// `new_decode_dev`).
pub fn device_text(dev: u32) -> String {
    let (major, minor) = ((dev & 0xf_ff00) >> 8, (dev & 0xff) | ((dev >> 12) & 0xf_ff00));
    format!("{major}:{minor}")
}

/// Formats permission bits as octal, after the file's type where one is given: `S_IFBLK|0660`.
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
