//! A private pseudo-terminal: what a program writes to it, and the keys that are sent to it.

use std::ffi::CStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use crate::broker::child::KillOnDrop;

/// A program whose controlling terminal this is; killed when dropped.
pub(crate) struct OnTerminal {
    process: KillOnDrop,
    keys: File,
    screen_text: Vec<u8>,
}

impl OnTerminal {
    /// Starts the program on the terminal; `stdout` redirects its standard output to a file.
    pub(crate) fn start(mut command: Command, stdout: Option<File>) -> OnTerminal {
        let (keys, screen) = pair();
        let side = || Stdio::from(screen.try_clone().unwrap());
        command.stdin(side()).stdout(stdout.map_or_else(side, Stdio::from)).stderr(side());
        // SAFETY: passes numbers only between fork and exec: a new session with this terminal.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                if libc::ioctl(0, libc::TIOCSCTTY, 0) != 0 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let process = KillOnDrop(command.spawn().unwrap());
        OnTerminal { keys, screen_text: Vec::new(), process }
    }

    /// Waits until this text was written; returns false if the program ended without it.
    pub(crate) fn wait_for(&mut self, text: &str) -> bool {
        let mut next = [0; 4096];
        while !self.screen_text().contains(text) {
            // EIO: no program has the terminal open any more.
            match self.keys.read(&mut next) {
                Ok(0) | Err(_) => return false,
                Ok(bytes) => self.screen_text.extend_from_slice(&next[..bytes]),
            }
        }
        true
    }

    /// Returns everything that was written until the program ended.
    pub(crate) fn wait_for_exit(mut self) -> String {
        assert!(!self.wait_for("text that no program prints"));
        self.process.0.wait().unwrap();
        self.screen_text().into_owned()
    }

    /// Closes the terminal. Returns whether the program ends, in ten seconds.
    pub(crate) fn hang_up(self) -> bool {
        let OnTerminal { mut process, keys, .. } = self;
        drop(keys);
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while std::time::Instant::now() < until {
            if process.0.try_wait().unwrap().is_some() {
                return true;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        false
    }

    /// Sends Ctrl-C.
    pub(crate) fn interrupt(&mut self) {
        self.keys.write_all(b"\x03").unwrap();
    }

    fn screen_text(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.screen_text)
    }
}

/// Opens a pseudo-terminal: the side with the keys, and the program's side.
fn pair() -> (File, File) {
    let mut name = [0; 64];
    // SAFETY: passes numbers and a buffer with its length; no other owner has the descriptor.
    let (keys, name) = unsafe {
        let keys = libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC);
        assert!(keys >= 0, "no terminal: {}", std::io::Error::last_os_error());
        let keys = File::from_raw_fd(keys);
        assert_eq!(libc::grantpt(keys.as_raw_fd()) | libc::unlockpt(keys.as_raw_fd()), 0);
        assert_eq!(libc::ptsname_r(keys.as_raw_fd(), name.as_mut_ptr(), name.len()), 0);
        (keys, CStr::from_ptr(name.as_ptr()).to_str().unwrap().to_owned())
    };
    // Not a controlling terminal: the test's session has its own, or none and must not get this
    // one.
    let screen = std::os::unix::fs::OpenOptionsExt::custom_flags(
        File::options().read(true).write(true),
        libc::O_NOCTTY,
    )
    .open(name)
    .unwrap();
    (keys, screen)
}
