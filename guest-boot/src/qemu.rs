//! QEMU's arguments for a kernel with an initramfs and no network.

use std::ffi::OsString;
use std::path::Path;

use crate::kernel::UnpackedKernel;

/// Machine, kernel and console of a guest.
#[derive(Clone, Copy, Debug)]
pub struct Boot<'a> {
    /// Kernel to boot.
    pub kernel: &'a UnpackedKernel,
    /// Root file system of the guest.
    pub initramfs: &'a Path,
    /// File that gets the output of the first serial port.
    pub console: &'a Path,
    /// Number of virtual CPUs.
    pub cpus: u32,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// Kernel parameters in addition to those of the console.
    pub parameters: &'a str,
}

impl Boot<'_> {
    /// Returns the arguments of `qemu-system-x86_64`.
    pub fn arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = Vec::new();
        let mut add = |words: &[&str]| arguments.extend(words.iter().map(OsString::from));
        add(&["-nodefaults", "-no-reboot", "-display", "none", "-monitor", "none"]);
        // One thread for all CPUs. With several, one CPU may execute an instruction that another has already
        // replaced; a kernel that patches itself (to enable a tracepoint) then fails at its own breakpoint.
        // Without rdrand the first program that needs random bytes waits 2 s for them.
        add(&["-accel", "tcg,thread=single", "-cpu", "qemu64,+rdrand"]);
        add(&["-smp", &self.cpus.to_string(), "-m", &self.memory_mib.to_string()]);
        // A panic restarts the machine at once, and -no-reboot turns the restart into an exit.
        add(&["-append", &format!("console=ttyS0 panic=-1 {}", self.parameters)]);
        arguments.extend(["-serial".into(), prefixed("file:", self.console)]);
        arguments.extend(["-kernel".into(), self.kernel.image.clone().into()]);
        arguments.extend(["-initrd".into(), self.initramfs.into()]);
        arguments
    }
}

/// Returns a path after a text, as one argument.
pub(crate) fn prefixed(text: &str, path: &Path) -> OsString {
    let mut argument = OsString::from(text);
    argument.push(path);
    argument
}
