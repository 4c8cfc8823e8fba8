//! Child processes that end with the test.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

/// Process that is killed when dropped.
pub(crate) struct KillOnDrop(pub(crate) Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Has the kernel kill the process when the thread that starts it ends, so also when the test is killed.
pub(crate) fn end_with_test(command: &mut Command) -> &mut Command {
    // SAFETY: prctl is async-signal-safe and accesses no memory of this process.
    unsafe {
        command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        })
    }
}
