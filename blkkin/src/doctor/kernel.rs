//! The kernel: its release, its types, its lockdown.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::path::Path;

use blkkin_tracer::kernel::{RELEASE_MIN, is_too_old};

use super::check::{Check, Standing};

/// Release and machine.
pub(super) fn release() -> Check {
    let (release, machine) = uname();
    judge_release(&release, &machine)
}

fn judge_release(release: &str, machine: &str) -> Check {
    let (major, minor) = RELEASE_MIN;
    let found = format!("Linux {release} on {machine}; {major}.{minor} or later is needed");
    match is_too_old(release) {
        Some(false) => Check::new("kernel", Standing::Fine, found),
        Some(true) => Check::new("kernel", Standing::Fails, found)
            .remedy("a newer kernel (Debian 12 and Ubuntu 24.04 have one, Ubuntu 22.04 as its HWE kernel)"),
        None => Check::new("kernel", Standing::Unknown, found),
    }
}

/// Type information, which says where fields are.
pub(super) fn btf(root: &Path) -> Check {
    let path = root.join("sys/kernel/btf/vmlinux");
    match fs::File::open(&path).and_then(|file| file.metadata()) {
        Ok(metadata) => {
            let found = format!("{}, {} KiB", path.display(), metadata.len() >> 10);
            Check::new("type information", Standing::Fine, found)
        }
        Err(error) if !root.join("sys/kernel").is_dir() => {
            let found = format!("{}: {error}; /sys is not mounted", path.display());
            Check::new("type information", Standing::Fails, found).remedy("mount -t sysfs sysfs /sys")
        }
        Err(error) => Check::new("type information", Standing::Fails, format!("{}: {error}", path.display()))
            .remedy("a kernel with CONFIG_DEBUG_INFO_BTF=y (Debian's, Ubuntu's and Fedora's have it)"),
    }
}

/// Lockdown: in `confidentiality` programs may not read the kernel's memory (security/lockdown, bpf_read).
pub(super) fn lockdown(root: &Path) -> Check {
    let path = root.join("sys/kernel/security/lockdown");
    let check = |standing, found: String| Check::new("lockdown", standing, found);
    match fs::read_to_string(&path) {
        Ok(text) if text.contains("[confidentiality]") => {
            check(Standing::Fails, "confidentiality: programs may not read the kernel's memory".into())
                .remedy("boot without lockdown=confidentiality (integrity is fine)")
        }
        Ok(text) => check(Standing::Fine, active(&text).to_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            check(Standing::Fine, "none (not built in, or securityfs is not mounted)".into())
        }
        Err(error) => check(Standing::Unknown, format!("{}: {error}", path.display())),
    }
}

/// `[none] integrity confidentiality`: the one in brackets.
fn active(text: &str) -> &str {
    text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or("none", |(word, _)| word)
}

fn uname() -> (String, String) {
    // SAFETY: utsname is a plain structure for which zeros are valid.
    let mut names: libc::utsname = unsafe { std::mem::zeroed() };
    // SAFETY: `names` is written by the call and outlives it; it fails for a bad address only.
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
        let standing = |release| judge_release(release, "x86_64").standing;
        assert_eq!(standing("6.1.0-1-amd64"), Standing::Fine);
        assert_eq!(standing("6.18.44-fc"), Standing::Fine);
        assert_eq!(standing("10.0-rc1"), Standing::Fine);
        assert_eq!(standing("6.1.0-56-cloud-amd64"), Standing::Fine);
        assert_eq!(standing("6.0.19"), Standing::Fails);
        assert_eq!(standing("5.15.0"), Standing::Fails);
        assert_eq!(standing("unknown"), Standing::Unknown);
    }

    #[test]
    fn only_confidentiality_stands_in_the_way() {
        let temp = tempfile::tempdir().unwrap();
        assert_eq!(lockdown(temp.path()).standing, Standing::Fine);
        let folder = temp.path().join("sys/kernel/security");
        fs::create_dir_all(&folder).unwrap();
        for (text, standing, found) in [
            ("[none] integrity confidentiality\n", Standing::Fine, "none"),
            ("none [integrity] confidentiality\n", Standing::Fine, "integrity"),
            ("none integrity [confidentiality]\n", Standing::Fails, "confidentiality"),
        ] {
            fs::write(folder.join("lockdown"), text).unwrap();
            let check = lockdown(temp.path());
            assert_eq!(check.standing, standing);
            assert!(check.found.starts_with(found), "{}", check.found);
        }
    }

    #[test]
    fn a_kernel_without_types_fails_with_a_remedy() {
        let temp = tempfile::tempdir().unwrap();
        let check = btf(temp.path());
        assert_eq!((check.standing, &*check.remedy), (Standing::Fails, "mount -t sysfs sysfs /sys"));
        fs::create_dir_all(temp.path().join("sys/kernel")).unwrap();
        let check = btf(temp.path());
        assert_eq!(check.standing, Standing::Fails);
        assert!(check.remedy.contains("CONFIG_DEBUG_INFO_BTF"));
    }
}
