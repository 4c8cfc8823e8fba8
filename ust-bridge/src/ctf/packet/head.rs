//! What a packet says of itself, found by the names that the specification gives (sections 5.1 and 5.2).

use super::super::metadata::Trace;
use super::super::plan::{Plan, Value, What};
use super::{Items, PacketError, PacketHead};

const MAGIC: u64 = 0xc1fc_1fc1;

/// The number at the top called `name`, with its bits.
fn number(plan: &Plan, items: &Items, name: &str) -> Option<(u64, u32)> {
    let (index, info) = plan.field(name)?;
    let (What::Int { bits, .. } | What::Enum { bits, .. }) = info.what else { return None };
    match items.at(index)? {
        Value::Unsigned(number) => Some((number, bits)),
        Value::Signed(number) => Some((number as u64, bits)),
        _ => None,
    }
}

/// Checks whose packet it is; says of which class of streams.
pub(super) fn header(
    plan: &Plan,
    items: &Items,
    trace: &Trace,
    head: &mut PacketHead,
) -> Result<Option<u64>, PacketError> {
    if let Some((magic, _)) = number(plan, items, "magic")
        && magic != MAGIC
    {
        return Err(PacketError::Magic(magic));
    }
    if let (Some(ours), Some((index, _))) = (trace.uuid, plan.field("uuid")) {
        let from = items.top[index] as usize + 1;
        let theirs = items.list[from..].iter().take(16).map(|item| item.value);
        if !theirs.eq(ours.iter().map(|byte| Value::Unsigned(u64::from(*byte)))) {
            return Err(PacketError::Uuid);
        }
    }
    head.instance = number(plan, items, "stream_instance_id").map(|(id, _)| id);
    Ok(number(plan, items, "stream_id").map(|(id, _)| id))
}

pub(super) fn context(plan: &Plan, items: &Items, head: &mut PacketHead) {
    let find = |name| number(plan, items, name);
    let value = |name| find(name).map(|(value, _)| value);
    head.packet_bits = value("packet_size");
    head.content_bits = value("content_size");
    head.begin = value("timestamp_begin");
    head.end = value("timestamp_end");
    head.discarded = find("events_discarded");
    head.sequence = find("packet_seq_num");
    head.cpu = value("cpu_id");
}
