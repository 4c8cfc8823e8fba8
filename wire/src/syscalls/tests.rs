//! The system call table against independent sources, and derived properties against plain
//! statements.

mod effects;
mod headers;
mod lines;
mod numbers;

use super::{ArgKind, Args, SyscallId, SyscallSpec};

fn spec(name: &str) -> &'static SyscallSpec {
    id(name).spec()
}

fn id(name: &str) -> SyscallId {
    SyscallId::by_name(name).unwrap_or_else(|| panic!("no call named {name}"))
}

/// Returns registers that begin with `first`; the rest hold leftovers, as in practice.
fn registers<const N: usize>(first: [i64; N]) -> Args {
    let mut args = [0xdead_beef_dead_beef; 6];
    for (register, value) in args.iter_mut().zip(first) {
        *register = value as u64;
    }
    args
}

/// Reads a header of this machine; prints the reason and returns `None` if the test has to be
/// skipped.
#[expect(clippy::print_stderr, reason = "a test that skips something says so")]
fn header(path: &str) -> Option<String> {
    match std::fs::read_to_string(path) {
        Ok(text) => Some(text),
        Err(error) => {
            eprintln!("skipped: {path}: {error} (Debian: linux-libc-dev)");
            None
        }
    }
}

#[test]
fn table_has_every_call_once() {
    assert_eq!(SyscallId::COUNT, 93);
    let mut names: Vec<_> = SyscallId::all().map(SyscallId::name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 93, "names repeat");
}

#[test]
fn ids_survive_encoding_in_an_event() {
    for call in SyscallId::all() {
        assert_eq!(SyscallId::from_index(call.index()), Some(call));
        assert_eq!(SyscallId::by_name(call.name()), Some(call));
    }
    assert_eq!(SyscallId::from_index(93), None);
    assert_eq!(SyscallId::from_index(u8::MAX), None);
    assert_eq!(SyscallId::by_name("pread"), None);
    const OPENAT: Option<SyscallId> = SyscallId::by_name("openat");
    assert_eq!(OPENAT.map(SyscallId::name), Some("openat"));
}

#[test]
fn table_order_equals_recorded_traces() {
    // A change here changes the meaning of recorded traces: only additions at the end are allowed.
    let places =
        [("open", 0), ("read", 5), ("lseek", 15), ("fsync", 36), ("io_submit", 68), ("fadvise64", 76)];
    for (name, index) in places {
        assert_eq!(id(name).index(), index, "{name}");
    }
}

#[test]
fn argument_order_satisfies_the_rules() {
    for call in SyscallId::all() {
        let args = call.spec().args;
        let kind = |index: usize| args.get(index).map(|arg| arg.kind);
        assert!(args.len() <= 6, "{call}");
        for (index, arg) in args.iter().enumerate() {
            match arg.kind {
                ArgKind::DirFd => assert_eq!(kind(index + 1), Some(ArgKind::Path), "{call}"),
                ArgKind::OffsetPtr => assert_eq!(kind(index - 1), Some(ArgKind::Fd), "{call}"),
                ArgKind::Iovec => assert_eq!(kind(index + 1), Some(ArgKind::Count), "{call}"),
                ArgKind::OffsetHigh => assert!(
                    matches!(kind(index - 1), Some(ArgKind::Offset | ArgKind::OffsetOrPosition)),
                    "{call}"
                ),
                _ => {}
            }
        }
        let texts = args.iter().filter(|arg| arg.kind.is_text()).count();
        assert_eq!(texts, call.spec().text_args().iter().flatten().count(), "{call} has a third text");
    }
}

#[test]
fn indices_of_files_and_paths_point_at_files_and_paths() {
    for call in SyscallId::all() {
        let spec = call.spec();
        for index in [spec.fd_arg(), spec.second_fd_arg()].into_iter().flatten() {
            assert_eq!(spec.args[index].kind, ArgKind::Fd, "{call}");
        }
        assert!(spec.second_fd_arg().is_none() || spec.fd_arg().is_some(), "{call}");
        for path in spec.path_args().into_iter().flatten() {
            assert!(matches!(spec.args[path].kind, ArgKind::Path | ArgKind::LinkTarget), "{call}");
            let named_at = spec.dir_fd_arg(path).is_some();
            assert_eq!(named_at, path > 0 && spec.args[path - 1].kind == ArgKind::DirFd, "{call}");
        }
        let dirs = spec.args.iter().filter(|arg| arg.kind == ArgKind::DirFd).count();
        assert_eq!(dirs, (0..6).filter_map(|path| spec.dir_fd_arg(path)).count(), "{call}");
    }
}

#[test]
fn files_and_paths_of_well_known_calls() {
    assert_eq!(spec("read").fd_arg(), Some(0));
    assert_eq!(spec("mmap").fd_arg(), Some(4));
    assert_eq!(spec("sync").fd_arg(), None);
    assert_eq!((spec("sendfile").fd_arg(), spec("sendfile").second_fd_arg()), (Some(1), Some(0)));
    assert_eq!((spec("splice").fd_arg(), spec("splice").second_fd_arg()), (Some(0), Some(2)));
    assert_eq!(spec("copy_file_range").second_fd_arg(), Some(2));
    assert_eq!((spec("dup3").fd_arg(), spec("dup3").replaced_fd_arg()), (Some(0), Some(1)));
    assert_eq!(spec("renameat2").path_args(), [Some(1), Some(3)]);
    assert_eq!(spec("renameat2").dir_fd_arg(3), Some(2));
    assert_eq!(spec("symlinkat").path_args(), [Some(0), Some(2)]);
    assert_eq!(spec("symlinkat").dir_fd_arg(0), None);
    assert_eq!(spec("fgetxattr").path_args(), [None, None]);
    assert_eq!(spec("fgetxattr").text_args(), [Some(1), None]);
}
