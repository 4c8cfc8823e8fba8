//! Files with secrets: keys and tokens.
//!
//! *Invariant*: a file that every user can read is refused, as ssh(1) refuses such a key. Its group
//! may read it: a service often runs as a member of one. The mode is that of the opened file, so
//! another user cannot replace the file after the check.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Read permission of other users.
const OTHERS_READ: u32 = 0o004;

/// Reads the file, or returns the reason why it is not used and a remedy.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, (String, &'static str)> {
    let unreadable = |error: std::io::Error| (error.to_string(), "name a file that this user can read");
    let mut file = File::open(path).map_err(unreadable)?;
    if file.metadata().map_err(unreadable)?.mode() & OTHERS_READ != 0 {
        return Err(("every user can read it".to_owned(), "chmod o-r, and replace the secret in it"));
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(unreadable)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_file_that_every_user_can_read_is_refused() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs::write(file.path(), "SECRET").expect("a writable file");
        for (mode, refused) in [(0o600, false), (0o640, false), (0o604, true), (0o644, true)] {
            fs::set_permissions(file.path(), Permissions::from_mode(mode)).expect("own file");
            let read = read(file.path());
            assert_eq!(read.is_err(), refused, "{mode:o}: {read:?}");
        }
    }
}
