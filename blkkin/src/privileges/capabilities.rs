//! Capabilities of the calling thread.

use std::io;

use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set,
    remove_capability_from_bounding_set, set_capabilities,
};

/// Drops all capabilities of the calling thread that are not in `kept`, from all sets, and returns
/// the remaining ones. The ambient set is a part of the permitted one (capabilities(7)). The
/// bounding set stays without CAP_SETPCAP: `no_new_privs` then has its effect.
pub(super) fn retain(kept: CapabilitySet) -> io::Result<CapabilitySet> {
    let bounded = CapabilitySet::all().iter().filter(|one| !kept.contains(*one));
    for one in bounded.filter(|one| capability_is_in_bounding_set(*one).unwrap_or(false)) {
        // Fails without CAP_SETPCAP.
        let _ = remove_capability_from_bounding_set(one);
    }
    let own = capabilities(None)?;
    let kept = own.permitted & kept;
    let wanted = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    // A unit without capabilities may also deny the call (SystemCallFilter=~@privileged).
    if own != wanted {
        set_capabilities(None, wanted)?;
    }
    Ok(kept)
}

/// Drops all capabilities of the calling thread. A thread that cannot is no worse than before.
pub(crate) fn drop_all() {
    let _ = retain(CapabilitySet::empty());
}

/// Returns the names as capabilities(7) has them.
pub(super) fn names(set: CapabilitySet) -> String {
    if set.is_empty() {
        return "none".to_owned();
    }
    let names = set.iter_names().map(|(name, _)| format!("CAP_{name}"));
    names.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's view of the calling thread.
    fn mask(set: &str) -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(set)).unwrap();
        u64::from_str_radix(line.trim_start_matches(':').trim(), 16).unwrap()
    }

    #[test]
    fn a_thread_retains_what_it_names_and_has() {
        let had = mask("CapPrm");
        let wanted = CapabilitySet::SYS_PTRACE | CapabilitySet::KILL;
        let own = std::thread::spawn(move || {
            let kept = retain(wanted).unwrap();
            assert_eq!(kept.bits(), had & wanted.bits());
            ["CapEff", "CapPrm", "CapInh", "CapAmb"].map(mask)
        });
        let expected = had & wanted.bits();
        assert_eq!(own.join().unwrap(), [expected, expected, 0, 0]);
        assert_eq!(mask("CapPrm"), had, "other threads have theirs");
    }

    #[test]
    fn names_are_those_of_the_manual() {
        let set = CapabilitySet::SYS_PTRACE | CapabilitySet::DAC_READ_SEARCH;
        assert_eq!(names(set), "CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE");
        assert_eq!(names(CapabilitySet::empty()), "none");
    }
}
