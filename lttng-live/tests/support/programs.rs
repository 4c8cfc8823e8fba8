//! Programs that a test runs.

/// Returns true if all programs are installed; prints the first missing one.
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
