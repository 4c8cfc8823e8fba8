//! A terminal of the test's own: what a program shows there, and the keys that it gets.

use std::ffi::CStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// A program that has this terminal for its own; killed when dropped.
pub(crate) struct OnTerminal {
    keys: File,
    shown: Vec<u8>,
    process: Child,
}

impl OnTerminal {
    /// Starts it there, but for what `command` redirects itself afterwards: its stdout, if `stdout` says where.
    pub(crate) fn start(mut command: Command, stdout: Option<File>) -> OnTerminal {
        let (keys, screen) = pair();
        let side = || Stdio::from(screen.try_clone().unwrap());
        command.stdin(side()).stdout(stdout.map_or_else(side, Stdio::from)).stderr(side());
        // SAFETY: numbers only, between fork and exec: a session of its own, with this terminal.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                if libc::ioctl(0, libc::TIOCSCTTY, 0) != 0 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let process = command.spawn().unwrap();
        OnTerminal { keys, shown: Vec::new(), process }
    }

    /// Waits until these words were shown; false if the program ended without.
    pub(crate) fn shows(&mut self, words: &str) -> bool {
        let mut next = [0; 4096];
        while !self.shown().contains(words) {
            // The last program that has it open is gone: EIO.
            match self.keys.read(&mut next) {
                Ok(0) | Err(_) => return false,
                Ok(bytes) => self.shown.extend_from_slice(&next[..bytes]),
            }
        }
        true
    }

    /// Everything that was shown until the program ended.
    pub(crate) fn until_its_end(mut self) -> String {
        assert!(!self.shows("what no program ever says"));
        self.process.wait().unwrap();
        self.shown().into_owned()
    }

    /// Ctrl-C.
    pub(crate) fn interrupt(&mut self) {
        self.keys.write_all(b"\x03").unwrap();
    }

    fn shown(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.shown)
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The person's side and the program's.
fn pair() -> (File, File) {
    let mut name = [0; 64];
    // SAFETY: numbers, and room for a name of which the length is said; the descriptor is nobody else's.
    let (keys, name) = unsafe {
        let keys = libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC);
        assert!(keys >= 0, "no terminal: {}", std::io::Error::last_os_error());
        let keys = File::from_raw_fd(keys);
        assert_eq!(libc::grantpt(keys.as_raw_fd()) | libc::unlockpt(keys.as_raw_fd()), 0);
        assert_eq!(libc::ptsname_r(keys.as_raw_fd(), name.as_mut_ptr(), name.len()), 0);
        (keys, CStr::from_ptr(name.as_ptr()).to_str().unwrap().to_owned())
    };
    // Not yet anybody's controlling terminal: the test's session has its own, or none and shall get none.
    let screen = std::os::unix::fs::OpenOptionsExt::custom_flags(
        File::options().read(true).write(true),
        libc::O_NOCTTY,
    )
    .open(name)
    .unwrap();
    (keys, screen)
}
