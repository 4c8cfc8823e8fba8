//! The kernel: release, type information, lockdown.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::path::Path;

use blkkin_tracer::attach::kernel::{RELEASE_MIN, is_too_old};

use super::check::{Check, CheckStatus};

/// Checks the release.
pub(super) fn release() -> Check {
    let (release, machine) = uname();
    judge_release(&release, &machine)
}

fn judge_release(release: &str, machine: &str) -> Check {
    let (major, minor) = RELEASE_MIN;
    let found = format!("Linux {release} on {machine}; {major}.{minor} or later is needed");
    match is_too_old(release) {
        Some(false) => Check::new("kernel", CheckStatus::Ok, found),
        Some(true) => Check::new("kernel", CheckStatus::Fails, found)
            .remedy("a newer kernel (Debian 12 and Ubuntu 24.04 have one, Ubuntu 22.04 as its HWE kernel)"),
        None => Check::new("kernel", CheckStatus::Unknown, found),
    }
}

/// Checks the type information (BTF), which locates structure fields.
pub(super) fn btf(root: &Path) -> Check {
    let path = root.join("sys/kernel/btf/vmlinux");
    match fs::File::open(&path).and_then(|file| file.metadata()) {
        Ok(metadata) => {
            let found = format!("{}, {} KiB", path.display(), metadata.len() >> 10);
            Check::new("type information", CheckStatus::Ok, found)
        }
        Err(error) if !root.join("sys/kernel").is_dir() => {
            let found = format!("{}: {error}; /sys is not mounted", path.display());
            Check::new("type information", CheckStatus::Fails, found).remedy("mount -t sysfs sysfs /sys")
        }
        Err(error) => {
            Check::new("type information", CheckStatus::Fails, format!("{}: {error}", path.display()))
                .remedy("a kernel with CONFIG_DEBUG_INFO_BTF=y (Debian's, Ubuntu's and Fedora's have it)")
        }
    }
}

/// Checks lockdown: in `confidentiality` mode, programs may not read kernel memory
/// (security/lockdown, bpf_read).
pub(super) fn lockdown(root: &Path) -> Check {
    let path = root.join("sys/kernel/security/lockdown");
    let check = |status, found: String| Check::new("lockdown", status, found);
    match fs::read_to_string(&path) {
        Ok(text) if text.contains("[confidentiality]") => {
            check(CheckStatus::Fails, "confidentiality: programs may not read kernel memory".into())
                .remedy("boot without lockdown=confidentiality (integrity is fine)")
        }
        Ok(text) => check(CheckStatus::Ok, active(&text).to_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            check(CheckStatus::Ok, "none (not built in, or securityfs is not mounted)".into())
        }
        Err(error) => check(CheckStatus::Unknown, format!("{}: {error}", path.display())),
    }
}

/// Returns the active mode, in brackets: `[none] integrity confidentiality`.
fn active(text: &str) -> &str {
    text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or("none", |(word, _)| word)
}

fn uname() -> (String, String) {
    // SAFETY: utsname is a plain structure for which zeros are valid.
    let mut names: libc::utsname = unsafe { std::mem::zeroed() };
    // SAFETY: the call writes to `names`, which outlives it; it fails only for an invalid address.
    unsafe { libc::uname(&mut names) };
    let text = |field: &[libc::c_char]| {
        let bytes: Vec<u8> = field.iter().map(|c| *c as u8).collect();
        CStr::from_bytes_until_nul(&bytes).unwrap_or_default().to_string_lossy().into_owned()
    };
    (text(&names.release), text(&names.machine))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn releases_compare_as_numbers() {
        let status = |release| judge_release(release, "x86_64").status;
        assert_eq!(status("6.1.0-1-amd64"), CheckStatus::Ok);
        assert_eq!(status("6.18.44-fc"), CheckStatus::Ok);
        assert_eq!(status("10.0-rc1"), CheckStatus::Ok);
        assert_eq!(status("6.1.0-56-cloud-amd64"), CheckStatus::Ok);
        assert_eq!(status("6.0.19"), CheckStatus::Fails);
        assert_eq!(status("5.15.0"), CheckStatus::Fails);
        assert_eq!(status("unknown"), CheckStatus::Unknown);
    }

    #[test]
    fn only_confidentiality_prevents_tracing() {
        let temp = tempfile::tempdir().unwrap();
        assert_eq!(lockdown(temp.path()).status, CheckStatus::Ok);
        let folder = temp.path().join("sys/kernel/security");
        fs::create_dir_all(&folder).unwrap();
        for (text, status, found) in [
            ("[none] integrity confidentiality\n", CheckStatus::Ok, "none"),
            ("none [integrity] confidentiality\n", CheckStatus::Ok, "integrity"),
            ("none integrity [confidentiality]\n", CheckStatus::Fails, "confidentiality"),
        ] {
            fs::write(folder.join("lockdown"), text).unwrap();
            let check = lockdown(temp.path());
            assert_eq!(check.status, status);
            assert!(check.found.starts_with(found), "{}", check.found);
        }
    }

    #[test]
    fn kernel_without_btf_fails_with_a_remedy() {
        let temp = tempfile::tempdir().unwrap();
        let check = btf(temp.path());
        assert_eq!((check.status, &*check.remedy), (CheckStatus::Fails, "mount -t sysfs sysfs /sys"));
        fs::create_dir_all(temp.path().join("sys/kernel")).unwrap();
        let check = btf(temp.path());
        assert_eq!(check.status, CheckStatus::Fails);
        assert!(check.remedy.contains("CONFIG_DEBUG_INFO_BTF"));
    }
}
