//! What the tests share.
#![allow(dead_code, reason = "each test program uses a part of it")]
#![allow(clippy::print_stderr, reason = "what is skipped is said")]

pub(crate) mod babeltrace;
pub(crate) mod lab;
pub(crate) mod synthetic;
pub(crate) mod text;

/// True if all of `programs` are here; says which is not.
pub(crate) fn have(programs: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there = |program: &&&str| std::env::split_paths(&path).any(|folder| folder.join(**program).is_file());
    match programs.iter().find(|program| !there(program)) {
        None => true,
        Some(missing) => {
            eprintln!("skipped: no program {missing} here");
            false
        }
    }
}
