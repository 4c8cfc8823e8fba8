//! Fields of a packet's header and context, by the names in the specification (sections 5.1 and
//! 5.2).

use super::super::metadata::CtfTrace;
use super::super::plan::{FieldType, Plan, Value};
use super::{Items, PacketError, PacketHeader};

const MAGIC: u64 = 0xc1fc_1fc1;

/// Returns a top-level integer and its width in bits.
fn number(plan: &Plan, items: &Items, name: &str) -> Option<(u64, u32)> {
    let (index, info) = plan.field(name)?;
    let (FieldType::Int { bits, .. } | FieldType::Enum { bits, .. }) = info.field_type else { return None };
    match items.at(index)? {
        Value::Unsigned(number) => Some((number, bits)),
        Value::Signed(number) => Some((number as u64, bits)),
        _ => None,
    }
}

/// Checks that the packet belongs to the trace, and returns the id of its class of streams.
pub(super) fn read_header(
    plan: &Plan,
    items: &Items,
    trace: &CtfTrace,
    header: &mut PacketHeader,
) -> Result<Option<u64>, PacketError> {
    if let Some((magic, _)) = number(plan, items, "magic")
        && magic != MAGIC
    {
        return Err(PacketError::Magic(magic));
    }
    if let (Some(expected), Some((index, _))) = (trace.uuid, plan.field("uuid")) {
        let from = items.top[index] as usize + 1;
        let found = items.list[from..].iter().take(16).map(|item| item.value);
        if !found.eq(expected.iter().map(|byte| Value::Unsigned(u64::from(*byte)))) {
            return Err(PacketError::Uuid);
        }
    }
    header.instance = number(plan, items, "stream_instance_id").map(|(id, _)| id);
    Ok(number(plan, items, "stream_id").map(|(id, _)| id))
}

pub(super) fn read_context(plan: &Plan, items: &Items, header: &mut PacketHeader) {
    let find = |name| number(plan, items, name);
    let value = |name| find(name).map(|(value, _)| value);
    header.packet_bits = value("packet_size");
    header.content_bits = value("content_size");
    header.begin = value("timestamp_begin");
    header.end = value("timestamp_end");
    header.discarded = find("events_discarded");
    header.sequence = find("packet_seq_num");
    header.cpu = value("cpu_id");
}
