//! A check of this machine.

/// The result of a check, as `blkkin doctor` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CheckStatus {
    /// Meets the requirement.
    Ok,
    /// Works with restrictions.
    Partial,
    /// Prevents tracing.
    Fails,
    /// Could not be checked.
    Unknown,
}

impl CheckStatus {
    pub(super) fn label(self) -> &'static str {
        match self {
            CheckStatus::Ok => "ok",
            CheckStatus::Partial => "partly",
            CheckStatus::Fails => "fails",
            CheckStatus::Unknown => "unknown",
        }
    }
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Check {
    /// The object of the check.
    pub(super) name: &'static str,
    /// The status of a check.
    pub(super) status: CheckStatus,
    /// The finding.
    pub(super) found: String,
    /// The remedy; empty if none is needed.
    pub(super) remedy: String,
}

impl Check {
    pub(super) fn new(name: &'static str, status: CheckStatus, found: impl Into<String>) -> Self {
        Check { name, status, found: found.into(), remedy: String::new() }
    }

    pub(super) fn remedy(self, remedy: impl Into<String>) -> Self {
        Check { remedy: remedy.into(), ..self }
    }
}
