//! One thing that was looked at.

/// How it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// As it should be.
    Fine,
    /// Works, but not for everything.
    Partly,
    /// Tracing cannot work so.
    Fails,
    /// Could not be looked at.
    Unknown,
}

impl Standing {
    pub(super) fn word(self) -> &'static str {
        match self {
            Standing::Fine => "ok",
            Standing::Partly => "partly",
            Standing::Fails => "fails",
            Standing::Unknown => "unknown",
        }
    }
}

/// A fact about this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Check {
    /// What was looked at.
    pub(super) name: &'static str,
    /// How it is.
    pub(super) standing: Standing,
    /// What was found.
    pub(super) found: String,
    /// What to do; empty when there is nothing to do.
    pub(super) remedy: String,
}

impl Check {
    pub(super) fn new(name: &'static str, standing: Standing, found: impl Into<String>) -> Self {
        Check { name, standing, found: found.into(), remedy: String::new() }
    }

    pub(super) fn remedy(self, remedy: impl Into<String>) -> Self {
        Check { remedy: remedy.into(), ..self }
    }
}
