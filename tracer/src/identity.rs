//! Identity of this source: machine, boot and run.

use std::fs;

use blkkin_wire::ids::{BootId, NodeId, Source, StartEpoch};
use uuid::Uuid;

/// Returns this machine (/etc/machine-id), this boot, and a random epoch. A machine without an id
/// is identified by its boot id, which is random too.
pub fn source() -> Source {
    let boot = read_id("/proc/sys/kernel/random/boot_id").unwrap_or_else(Uuid::new_v4);
    let node = read_id("/etc/machine-id").unwrap_or(boot);
    let [epoch, _] = [Uuid::new_v4().as_u64_pair().0, 0];
    Source { node: NodeId(node.as_u128()), boot: BootId(boot.as_u128()), epoch: StartEpoch(epoch) }
}

fn read_id(path: &str) -> Option<Uuid> {
    Uuid::try_parse(fs::read_to_string(path).ok()?.trim()).ok()
}
