//! One argument as text, by its kind and by what stands around it.

use super::{Invocation, counted, device_text, fcntl_text, ioctl_text, mode_text};
use crate::calls::fcntl::{F_DUPFD, F_DUPFD_CLOEXEC, F_SETFL};
use crate::calls::flags::{advice_name, whence_name};
use crate::calls::{Arg, ArgKind, CallClass, FlagSet};

/// How an argument takes part in the line.
pub(super) enum Piece {
    /// Says nothing to a reader, or is not in force.
    Hidden,
    /// Stands on its own, after a comma.
    Own(String),
    /// Belongs to what was written before it: a position to its size.
    Attached(String),
}

impl Piece {
    fn unless_empty(text: String) -> Piece {
        if text.is_empty() { Piece::Hidden } else { Piece::Own(text) }
    }
}

const AT_FDCWD: i32 = -100;

impl Invocation<'_> {
    /// The argument at `index`, which must be one of the call's.
    pub(super) fn piece(&self, index: usize) -> Piece {
        let Arg { name, kind } = self.call.spec().args[index];
        let value = self.args[index];
        // Most parameters are `int`: the upper half of their register is noise.
        let low = value as u32;
        match kind {
            ArgKind::Fd if self.maps_no_file() => Piece::Hidden,
            ArgKind::Fd | ArgKind::NewFd => Piece::Own(format!("fd {}", low as i32)),
            ArgKind::DirFd if low as i32 == AT_FDCWD => Piece::Own("AT_FDCWD".to_owned()),
            ArgKind::DirFd => Piece::Own(format!("fd {}", low as i32)),
            ArgKind::Path | ArgKind::LinkTarget => {
                Piece::Own(self.text_at(index).unwrap_or_else(|| "?".to_owned()))
            }
            ArgKind::String => self.text_at(index).map_or(Piece::Hidden, Piece::Own),
            ArgKind::Buffer | ArgKind::Iovec | ArgKind::Pointer | ArgKind::Word => Piece::Hidden,
            ArgKind::Size if self.follows_offset(index) => Piece::Own(value.to_string()),
            ArgKind::Size => Piece::Own(counted(value, "byte")),
            ArgKind::Extent | ArgKind::FileSize | ArgKind::Distance => Piece::Own((value as i64).to_string()),
            ArgKind::BufferSize | ArgKind::OffsetHigh => Piece::Hidden,
            ArgKind::Count => Piece::Own(counted(value, self.entry_noun())),
            ArgKind::Offset => self.offset_piece(index, value as i64),
            ArgKind::OffsetOrPosition if value as i64 == -1 => Piece::Hidden,
            ArgKind::OffsetOrPosition => Piece::Attached(format!("at {}", value as i64)),
            ArgKind::OffsetPtr if value == 0 => Piece::Hidden,
            ArgKind::OffsetPtr => Piece::Attached(format!("at *{name}")),
            ArgKind::Whence => named(whence_name(low), low),
            ArgKind::Flags(set) => Piece::unless_empty(self.flags_text(set, low)),
            ArgKind::Advice => named(advice_name(low), low),
            ArgKind::Mode if self.call.spec().class == CallClass::Open => Piece::Hidden,
            ArgKind::Mode => Piece::Own(mode_text(low)),
            ArgKind::Device => self.device_piece(low),
            ArgKind::FcntlCommand => Piece::Own(fcntl_text(low)),
            ArgKind::FcntlArg => self.fcntl_argument(low),
            ArgKind::IoctlRequest => Piece::Own(ioctl_text(low)),
            ArgKind::Int => Piece::Own(format!("{name}={low}")),
            ArgKind::Long => Piece::Own(format!("{name}={}", value as i64)),
        }
    }

    fn maps_no_file(&self) -> bool {
        let spec = self.call.spec();
        spec.class == CallClass::Map && spec.descriptor(self.args).is_none()
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

    /// A position before its length reads as a range, one after it as a place.
    fn offset_piece(&self, index: usize, offset: i64) -> Piece {
        match self.kind_at(index + 1) {
            _ if self.maps_no_file() => Piece::Hidden,
            Some(ArgKind::Size | ArgKind::Extent) => Piece::Own(offset.to_string()),
            _ => Piece::Attached(format!("at {offset}")),
        }
    }

    fn entry_noun(&self) -> &'static str {
        if self.call.spec().class == CallClass::Async { "request" } else { "vector" }
    }

    /// fallocate's 0 is a mode of its own, and the numbers after it need their place.
    fn flags_text(&self, set: FlagSet, value: u32) -> String {
        match set {
            FlagSet::Fallocate if value == 0 => "0".to_owned(),
            _ => set.text(self.arch, value),
        }
    }

    /// A device number means something only for device nodes.
    fn device_piece(&self, dev: u32) -> Piece {
        let mode =
            self.call.spec().first(|kind| kind == ArgKind::Mode).map(|index| self.args[index] & 0o170000);
        match mode {
            Some(0o020000 | 0o060000) => Piece::Own(device_text(dev)),
            _ => Piece::Hidden,
        }
    }

    fn fcntl_argument(&self, value: u32) -> Piece {
        let command = self.call.spec().first(|kind| kind == ArgKind::FcntlCommand);
        match command.map(|index| self.args[index] as u32) {
            Some(F_DUPFD | F_DUPFD_CLOEXEC) => Piece::Own(format!("from {value}")),
            Some(F_SETFL) => Piece::unless_empty(FlagSet::Status.text(self.arch, value)),
            _ => Piece::Hidden,
        }
    }
}

fn named(name: Option<&'static str>, number: u32) -> Piece {
    Piece::Own(name.map_or_else(|| number.to_string(), str::to_owned))
}
