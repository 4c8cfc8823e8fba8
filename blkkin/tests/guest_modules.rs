//! A kernel module that is loaded after tracing began. The tracer has read the kernel's types, and
//! knows no offset of the module's structures until it starts again.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common;
use crate::support::metrics::{address, get, value};
use crate::support::needs_guest;
use crate::support::service::Service;

const MODULE: &str = "overlay";
const MESSAGE: &str = "the kernel module overlay was loaded after tracing began";

#[test]
fn a_module_that_is_loaded_too_late_is_named() {
    needs_guest!();
    remove();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording");
    let agent = ["agent", "--record", path.to_str().unwrap(), "--metrics", "127.0.0.1:0"];
    let agent = Service::start(folder.path(), "agent", &agent);
    agent.wait_for_output("tracing; events go", Duration::from_secs(120));
    let address = address(&agent.output()).to_owned();
    let unread = || value(&get(&address, "/metrics"), "blkkin_kernel_modules_unread") as u64;
    assert!(unread() == 0 && !get(&address, "/health").contains(MODULE));

    let insert = format!("/bin/busybox insmod {}", file().display());
    let run = common::run(&["run", "--", "sh", "-c", &insert]);
    println!("{}", run.stderr);
    let text = run.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains(MESSAGE), "{text}");

    assert_eq!(unread(), 1);
    let health = get(&address, "/health");
    assert!(health.contains(MESSAGE), "{health}");
    agent.finish_without_error();

    let run = common::run(&["run", "--", "true"]);
    assert!(!run.stderr.contains("was loaded"), "{}", run.stderr);
}

/// Removes the module, which nothing uses.
fn remove() {
    assert!(Path::new("/sys/kernel/btf").join(MODULE).exists(), "the guest loads it at its start");
    // SAFETY: the name is a string that ends with a zero.
    let removed = unsafe { libc::syscall(libc::SYS_delete_module, c"overlay".as_ptr(), libc::O_NONBLOCK) };
    assert_eq!(removed, 0, "{}", std::io::Error::last_os_error());
}

/// Returns the module's file in the guest's first file system.
fn file() -> PathBuf {
    let mut files = fs::read_dir("/modules").unwrap().map(|entry| entry.unwrap().path());
    let file = files.find(|path| path.to_string_lossy().ends_with("-overlay.ko")).unwrap();
    assert!(File::open(&file).is_ok());
    file
}
