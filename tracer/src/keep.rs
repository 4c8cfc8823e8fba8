//! Rules by which a storage operation is kept when it ends, though head sampling does not draw it.
//!
//! *In*: rules by operation. *Out*: the words of the kernel side's map. *Invariant*: of the rules that name an
//! operation, the last one counts.

use aya::Ebpf;
use aya::maps::{Array, MapData, MapError};
use blkkin_probe_abi::deferred::{
    KEEP_FAILED, KEEP_LIBAIO, KEEP_RULES_MAP as MAP, KEEP_SYSCALLS, KEEP_URING, KEEP_WORDS,
};
use blkkin_wire::async_io::{self, AsyncDirection, AsyncInterface, AsyncOperation};
use blkkin_wire::clock::DurationNs;
use blkkin_wire::syscalls::{Arch, SyscallClass, SyscallId};

use crate::aya_error::{error_chain, missing_map};
use crate::error::TracerError;

/// Operations that a rule is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeptOperations {
    /// Each storage operation.
    All,
    /// Operations that read data, by calls, io_uring or libaio.
    Reads,
    /// Operations that write data.
    Writes,
    /// Operations that wait until data are on the device.
    Syncs,
    /// The one with this name: of a system call, or like `io_uring read`.
    Named(Box<str>),
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeepRule {
    /// Keeps operations that take at least this time.
    SlowerThan(KeptOperations, DurationNs),
    /// Keeps operations that fail.
    Failed,
}

impl KeptOperations {
    /// Returns the operations with this name: `read`, `write` and `sync` are groups. None if there is none.
    pub fn named(name: &str) -> Option<KeptOperations> {
        match name {
            "read" => Some(KeptOperations::Reads),
            "write" => Some(KeptOperations::Writes),
            "sync" => Some(KeptOperations::Syncs),
            _ => {
                let is_known = SyscallId::by_name(name).is_some() || async_io::is_operation(name);
                is_known.then(|| KeptOperations::Named(name.into()))
            }
        }
    }

    fn has_call(&self, call: SyscallId) -> bool {
        let class = call.spec().class;
        match self {
            KeptOperations::All => true,
            KeptOperations::Reads => class == SyscallClass::Read,
            KeptOperations::Writes => class == SyscallClass::Write,
            KeptOperations::Syncs => class == SyscallClass::Sync,
            KeptOperations::Named(name) => **name == *call.name(),
        }
    }

    fn has_async(&self, operation: &AsyncOperation) -> bool {
        match self {
            KeptOperations::All => true,
            KeptOperations::Reads => operation.direction == Some(AsyncDirection::Read),
            KeptOperations::Writes => operation.direction == Some(AsyncDirection::Write),
            KeptOperations::Syncs => operation.is_sync(),
            KeptOperations::Named(name) => **name == *operation.name,
        }
    }
}

/// Returns the words of the map for these rules on this architecture.
fn words(rules: &[KeepRule], arch: Arch) -> [u64; KEEP_WORDS] {
    let mut words = [u64::MAX; KEEP_WORDS];
    words[KEEP_FAILED as usize] = u64::from(rules.contains(&KeepRule::Failed));
    for rule in rules {
        let KeepRule::SlowerThan(operations, time) = rule else { continue };
        for call in SyscallId::all().filter(|call| operations.has_call(*call)) {
            if let Some(number) = call.spec().number(arch) {
                words[KEEP_SYSCALLS as usize + usize::from(number)] = time.0;
            }
        }
        for (interface, first) in
            [(AsyncInterface::IoUring, KEEP_URING), (AsyncInterface::Libaio, KEEP_LIBAIO)]
        {
            for (opcode, operation) in async_io::operations(interface) {
                if operations.has_async(operation) {
                    words[first as usize + usize::from(opcode)] = time.0;
                }
            }
        }
    }
    words
}

/// The kernel side's rules, which may change while the programs run.
pub(crate) struct KeepRules(Array<MapData, u64>);

impl KeepRules {
    /// Takes the map of a loaded object.
    pub(crate) fn take(ebpf: &mut Ebpf) -> Result<KeepRules, TracerError> {
        let map = ebpf.take_map(MAP).ok_or_else(|| missing_map(MAP))?;
        Array::try_from(map).map(KeepRules).map_err(failed)
    }

    /// Sets the rules, one operation after the other.
    pub(crate) fn set(&mut self, rules: &[KeepRule]) -> Result<(), TracerError> {
        let words = words(rules, Arch::HOST);
        (0..).zip(words).try_for_each(|(index, word)| self.0.set(index, word, 0).map_err(failed))
    }
}

fn failed(error: MapError) -> TracerError {
    TracerError::Map { map: MAP, reason: error_chain(&error) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn rule(name: &str, ns: u64) -> KeepRule {
        KeepRule::SlowerThan(KeptOperations::named(name).unwrap(), DurationNs(ns))
    }

    #[test]
    fn the_last_rule_about_an_operation_counts() {
        let all = KeepRule::SlowerThan(KeptOperations::All, DurationNs(1));
        let words =
            words(&[all, rule("read", 2), rule("pread64", 3), rule("io_uring fsync", 4)], Arch::X86_64);
        let call = |name: &str| {
            let number = SyscallId::by_name(name).unwrap().spec().number(Arch::X86_64).unwrap();
            words[KEEP_SYSCALLS as usize + usize::from(number)]
        };
        assert_eq!(["write", "read", "readv", "pread64", "fsync"].map(call), [1, 2, 2, 3, 1]);
        let uring = |opcode: usize| words[KEEP_URING as usize + opcode];
        assert_eq!([1, 3, 22, 23].map(uring), [2, 4, 2, 1]);
        assert_eq!(words[KEEP_LIBAIO as usize], 2);
        // What is not traced has no rule.
        assert_eq!(uring(27), u64::MAX);
        assert_eq!(words[KEEP_FAILED as usize], 0);
    }

    #[test]
    fn groups_are_operations_of_all_interfaces() {
        let words = words(&[rule("sync", 5), KeepRule::Failed], Arch::X86_64);
        let fsync = SyscallId::by_name("fsync").unwrap().spec().number(Arch::X86_64).unwrap();
        assert_eq!(words[KEEP_SYSCALLS as usize + usize::from(fsync)], 5);
        assert_eq!((words[KEEP_URING as usize + 3], words[KEEP_LIBAIO as usize + 2]), (5, 5));
        assert_eq!((words[KEEP_URING as usize + 22], words[KEEP_FAILED as usize]), (u64::MAX, 1));
        assert_eq!(KeptOperations::named("connect"), None);
    }
}
