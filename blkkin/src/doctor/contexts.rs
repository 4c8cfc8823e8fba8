//! Whether it can be found for which span of its own each program calls (docs/contexts.md).

use blkkin_tracer::{Reach, reach};

use super::check::{Check, Standing};
use crate::what::believed::only_own;

const NAME: &str = "programs' contexts";

/// One line.
pub(super) fn check() -> Check {
    judge(&reach())
}

fn judge(reach: &Reach) -> Check {
    match reach {
        Reach::Everybody => {
            Check::new(NAME, Standing::Fine, "are found in every process that publishes them")
        }
        Reach::OwnUser { why } => Check::new(NAME, Standing::Partly, only_own(why))
            .remedy("sudo blkkin …, or CAP_SYS_PTRACE besides; --contexts off if they are not wanted"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_is_not_found_and_why() {
        assert_eq!(judge(&Reach::Everybody).standing, Standing::Fine);
        let check = judge(&Reach::OwnUser { why: "CAP_SYS_PTRACE is missing".to_owned() });
        assert_eq!(check.standing, Standing::Partly);
        assert!(check.found.contains("CAP_SYS_PTRACE is missing") && check.found.contains("below no span"));
    }
}
