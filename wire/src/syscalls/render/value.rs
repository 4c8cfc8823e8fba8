//! An argument as text, by its kind and its neighbours.

use super::{Invocation, counted, device_text, fcntl_text, ioctl_text, mode_text};
use crate::syscalls::fcntl::{F_DUPFD, F_DUPFD_CLOEXEC, F_SETFL};
use crate::syscalls::flags::{advice_name, whence_name};
use crate::syscalls::{Arg, ArgKind, FlagSet, SyscallClass};

/// Text of an argument and its placement in the line.
pub(super) enum ArgText {
    /// Not shown: irrelevant or without effect.
    Hidden,
    /// Separate entry, after a comma.
    Separate(String),
    /// Attached to the preceding entry: a position to its size.
    Attached(String),
}

impl ArgText {
    fn unless_empty(text: String) -> ArgText {
        if text.is_empty() { ArgText::Hidden } else { ArgText::Separate(text) }
    }
}

const AT_FDCWD: i32 = -100;

impl Invocation<'_> {
    /// Formats the argument at `index`, which must be one of the call's.
    pub(super) fn arg_text(&self, index: usize) -> ArgText {
        let Arg { name, kind } = self.call.spec().args[index];
        let value = self.args[index];
        // Most parameters are `int`: the upper half of their register is noise.
        let low = value as u32;
        match kind {
            ArgKind::Fd if self.maps_no_file() => ArgText::Hidden,
            ArgKind::Fd | ArgKind::NewFd => ArgText::Separate(format!("fd {}", low as i32)),
            ArgKind::DirFd if low as i32 == AT_FDCWD => ArgText::Separate("AT_FDCWD".to_owned()),
            ArgKind::DirFd => ArgText::Separate(format!("fd {}", low as i32)),
            ArgKind::Path | ArgKind::LinkTarget => {
                ArgText::Separate(self.text_at(index).unwrap_or_else(|| "?".to_owned()))
            }
            ArgKind::String => self.text_at(index).map_or(ArgText::Hidden, ArgText::Separate),
            ArgKind::Buffer | ArgKind::Iovec | ArgKind::Pointer | ArgKind::Word => ArgText::Hidden,
            ArgKind::Size if self.follows_offset(index) => ArgText::Separate(value.to_string()),
            ArgKind::Size => ArgText::Separate(counted(value, "byte")),
            ArgKind::Extent | ArgKind::FileSize | ArgKind::Distance => {
                ArgText::Separate((value as i64).to_string())
            }
            ArgKind::BufferSize | ArgKind::OffsetHigh => ArgText::Hidden,
            ArgKind::Count => ArgText::Separate(counted(value, self.entry_noun())),
            ArgKind::Offset => self.offset_text(index, value as i64),
            ArgKind::OffsetOrPosition if value as i64 == -1 => ArgText::Hidden,
            ArgKind::OffsetOrPosition => ArgText::Attached(format!("at {}", value as i64)),
            ArgKind::OffsetPtr if value == 0 => ArgText::Hidden,
            ArgKind::OffsetPtr => ArgText::Attached(format!("at *{name}")),
            ArgKind::Whence => name_or_number(whence_name(low), low),
            ArgKind::Flags(set) => ArgText::unless_empty(self.flags_text(set, low)),
            ArgKind::Advice => name_or_number(advice_name(low), low),
            ArgKind::Mode if self.call.spec().class == SyscallClass::Open => ArgText::Hidden,
            ArgKind::Mode => ArgText::Separate(mode_text(low)),
            ArgKind::Device => self.device_arg(low),
            ArgKind::FcntlCommand => ArgText::Separate(fcntl_text(low)),
            ArgKind::FcntlArg => self.fcntl_argument(low),
            ArgKind::IoctlRequest => ArgText::Separate(ioctl_text(low)),
            ArgKind::Int => ArgText::Separate(format!("{name}={low}")),
            ArgKind::Long => ArgText::Separate(format!("{name}={}", value as i64)),
        }
    }

    fn maps_no_file(&self) -> bool {
        let spec = self.call.spec();
        spec.class == SyscallClass::Map && spec.descriptor(self.args).is_none()
    }

    fn text_at(&self, index: usize) -> Option<String> {
        let at = self.call.spec().text_args().iter().position(|arg| *arg == Some(index))?;
        self.texts[at].map(|text| format!("{text:?}"))
    }

    fn kind_at(&self, index: usize) -> Option<ArgKind> {
        self.call.spec().args.get(index).map(|arg| arg.kind)
    }

    fn follows_offset(&self, index: usize) -> bool {
        index.checked_sub(1).and_then(|before| self.kind_at(before)) == Some(ArgKind::Offset)
    }

    /// Formats an offset: before its length as a range, after it as a position.
    fn offset_text(&self, index: usize, offset: i64) -> ArgText {
        match self.kind_at(index + 1) {
            _ if self.maps_no_file() => ArgText::Hidden,
            Some(ArgKind::Size | ArgKind::Extent) => ArgText::Separate(offset.to_string()),
            _ => ArgText::Attached(format!("at {offset}")),
        }
    }

    fn entry_noun(&self) -> &'static str {
        if self.call.spec().class == SyscallClass::Async { "request" } else { "vector" }
    }

    /// Formats flags. fallocate's 0 is a mode, and the following numbers need their positions.
    fn flags_text(&self, set: FlagSet, value: u32) -> String {
        match set {
            FlagSet::Fallocate if value == 0 => "0".to_owned(),
            _ => set.text(self.arch, value),
        }
    }

    /// Formats a device number, which has a meaning only for device nodes.
    fn device_arg(&self, dev: u32) -> ArgText {
        let mode =
            self.call.spec().first(|kind| kind == ArgKind::Mode).map(|index| self.args[index] & 0o170000);
        match mode {
            Some(0o020000 | 0o060000) => ArgText::Separate(device_text(dev)),
            _ => ArgText::Hidden,
        }
    }

    fn fcntl_argument(&self, value: u32) -> ArgText {
        let command = self.call.spec().first(|kind| kind == ArgKind::FcntlCommand);
        match command.map(|index| self.args[index] as u32) {
            Some(F_DUPFD | F_DUPFD_CLOEXEC) => ArgText::Separate(format!("from {value}")),
            Some(F_SETFL) => ArgText::unless_empty(FlagSet::Status.text(self.arch, value)),
            _ => ArgText::Hidden,
        }
    }
}

fn name_or_number(name: Option<&'static str>, number: u32) -> ArgText {
    ArgText::Separate(name.map_or_else(|| number.to_string(), str::to_owned))
}
