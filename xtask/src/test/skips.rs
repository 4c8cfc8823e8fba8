//! Skips that are allowed: tests that a machine cannot run, each with the reason.
//!
//! *In*: a skipped test, with the reason that it printed. *Out*: whether the list has it.
//!
//! *Invariant*: a skip that is not listed fails the run. So a missing tool, a test program that no
//! longer compiles or a run without root cannot pass as a success. `cargo xtask test --allow-skips`
//! accepts every skip, for machines that differ from those of the list.
//!
//! *Rejected*: a number of allowed skips (one could replace another); entries by test name (a new
//! test of the same program with the same need would fail).

/// Reason why tests of one program may be skipped.
struct AllowedSkip {
    /// Guest in which the skip is allowed; `None` on the host.
    guest: Option<&'static str>,
    /// Name of the test program.
    program: &'static str,
    /// Beginning of the reason that the test prints.
    reason: &'static str,
    /// Explanation why no set-up can change that.
    #[allow(dead_code, reason = "for the reader of the list")]
    why: &'static str,
}

/// Skips on the machines of CI (Debian 12, root, kernel with BTF) and in the guests.
const ALLOWED: &[AllowedSkip] = &[
    AllowedSkip {
        guest: None,
        program: "blkkin/tests/attach",
        reason: "this kernel does not support ",
        why: "a kernel's policy can refuse fentry, and a kernel can be built without kprobes; the guests have both",
    },
    AllowedSkip {
        guest: None,
        program: "blkkin/tests/kernels",
        reason: "this kernel does not support ",
        why: "as above",
    },
    AllowedSkip {
        guest: None,
        program: "blkkin/tests/blktrace",
        reason: "runs inside a guest",
        why: "it changes the scheduler of a null_blk device, which the host's kernel lacks",
    },
    AllowedSkip {
        guest: None,
        program: "blkkin/tests/context",
        reason: "no programs are requested",
        why: "it is no test: it builds the programs that the guests run",
    },
    AllowedSkip {
        guest: None,
        program: "blkkin/tests/process_contexts",
        reason: "this kernel gives memory no names",
        why: "the kernel is built without CONFIG_ANON_VMA_NAME, and Debian's kernels are too",
    },
    AllowedSkip {
        guest: None,
        program: "blkkin/tests/manifests",
        reason: "podman cannot run a container: podman: exit status: 126: ",
        why: "a container in a container takes cgroups and limits that some machines refuse: with this status podman reports an error of the OCI runtime, with others its own or the container's",
    },
    AllowedSkip {
        guest: None,
        program: "blkkin/tests/manifests",
        reason: "podman cannot run a container: podman: exit status: 125: ",
        why: "the same, where podman itself fails before the runtime starts",
    },
    AllowedSkip {
        guest: None,
        program: "bus (blkkin_bus)",
        reason: "ignored, takes minutes",
        why: "a longer search of the model; the short ones run",
    },
    AllowedSkip {
        guest: None,
        program: "bus (blkkin_bus)",
        reason: "ignored, the bounds above are those of every run",
        why: "as above",
    },
    AllowedSkip {
        guest: None,
        program: "blkkin/tests/async_io",
        reason: "this device cannot be polled",
        why: "loop devices have no polled queues; the guests' null_blk has",
    },
    AllowedSkip {
        guest: Some("6.12"),
        program: "blkkin/tests/async_io on loop",
        reason: "this device cannot be polled",
        why: "as above",
    },
    AllowedSkip {
        guest: Some("6.1"),
        program: "blkkin/tests/attach",
        reason: "this kernel refuses no kind",
        why: "the test is about a refusal; the host's kernel has one",
    },
    AllowedSkip {
        guest: Some("6.12"),
        program: "blkkin/tests/attach",
        reason: "this kernel refuses no kind",
        why: "as above",
    },
];

/// Skipped test.
pub(super) struct Skip {
    /// Program as [`super::TestStats`] reports it: in a guest `GUEST: PROGRAM on DISK`.
    pub(super) program: String,
    /// Name of the test; empty for a check that is not a test program.
    pub(super) test: String,
    /// Reason that the test printed.
    pub(super) reason: String,
}

impl Skip {
    /// Returns whether the list has this skip.
    pub(super) fn is_allowed(&self) -> bool {
        ALLOWED.iter().any(|allowed| allowed.covers(self))
    }
}

impl std::fmt::Display for Skip {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { program, test, reason } = self;
        if test.is_empty() {
            write!(f, "{program}: {reason}")
        } else {
            write!(f, "{program}: {test}: {reason}")
        }
    }
}

impl AllowedSkip {
    fn covers(&self, skip: &Skip) -> bool {
        let program = match self.guest {
            None => Some(skip.program.as_str()),
            Some(guest) => skip.program.strip_prefix(guest).and_then(|rest| rest.strip_prefix(": ")),
        };
        let is_program =
            |name: &str| name == self.program || name.starts_with(&format!("{} on ", self.program));
        program.is_some_and(is_program) && skip.reason.starts_with(self.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skip(program: &str, reason: &str) -> Skip {
        Skip { program: program.to_owned(), test: "t".to_owned(), reason: reason.to_owned() }
    }

    #[test]
    fn an_entry_covers_one_program_one_place_and_one_reason() {
        let allowed =
            AllowedSkip { guest: Some("6.1"), program: "blkkin/tests/attach", reason: "no kind", why: "" };
        assert!(allowed.covers(&skip("6.1: blkkin/tests/attach on loop", "no kind is refused")));
        assert!(!allowed.covers(&skip("6.12: blkkin/tests/attach on loop", "no kind is refused")));
        assert!(!allowed.covers(&skip("blkkin/tests/attach", "no kind is refused")));
        assert!(!allowed.covers(&skip("6.1: blkkin/tests/attached on loop", "no kind is refused")));
        assert!(!allowed.covers(&skip("6.1: blkkin/tests/attach on loop", "to load programs takes root")));
        let host = AllowedSkip { guest: None, ..allowed };
        assert!(host.covers(&skip("blkkin/tests/attach", "no kind is refused")));
        assert!(!host.covers(&skip("6.1: blkkin/tests/attach on loop", "no kind is refused")));
    }

    #[test]
    fn another_ignored_test_and_another_failure_of_podman_are_refused() {
        for (program, allowed, refused) in [
            ("bus (blkkin_bus)", "ignored, takes minutes", "ignored, slow"),
            ("bus (blkkin_bus)", "ignored, the bounds above are those of every run", "ignored"),
            (
                "blkkin/tests/manifests",
                "podman cannot run a container: podman: exit status: 126: Error: OCI runtime error: runc: …",
                "podman cannot run a container: podman: exit status: 127: Error: no such program",
            ),
        ] {
            assert!(skip(program, allowed).is_allowed(), "{allowed}");
            assert!(!skip(program, refused).is_allowed(), "{refused}");
        }
    }
}
