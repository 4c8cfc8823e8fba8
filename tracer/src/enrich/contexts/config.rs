//! Configuration of the search for contexts.

use super::policy::ContextPolicy;

/// Configuration of the context scanner.
#[derive(Clone, Debug)]
pub(crate) struct ContextConfig {
    /// True to scan the processes that exist at start.
    pub(crate) scan_existing: bool,
    /// Processes whose contexts are accepted.
    pub(crate) policy: ContextPolicy,
    /// True to rescan known processes periodically, because a filter hides their mappings.
    pub(crate) periodic_rescan: bool,
}
