//! Block I/O in flight at exit: reads the kernel side's tables after everything is detached.
//!
//! *In*: the tables of bios and requests. *Out*: [`InFlightIo`]s, oldest first. *Invariant*: the
//! tables are read only if the counters show that something is missing, since 24,576 sets take as
//! many map lookups (20 ms).
//!
//! *Weakness*: an entry whose end was missed, and whose address was not reused, looks like I/O in
//! flight.

use aya::Ebpf;
use aya::maps::{Array, MapData};
use blkkin_probe_abi::in_flight::{Bio, Request, Set, Way};
use blkkin_probe_abi::record::{BIO_DEFERRED, REQUEST_DEFERRED};
use blkkin_wire::in_flight::InFlightIo;

use crate::attach::req_op::ReqOpTable;
use crate::aya_error::{error_chain, missing_map};
use crate::error::TracerError;
use crate::read::translate::in_flight::{bio, request, single_bio_request};

/// Map value of one set.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Value<V>(Set<V>);

// SAFETY: both are Plain: no padding, and every bit pattern is valid.
unsafe impl aya::Pod for Value<Bio> {}
// SAFETY: as above.
unsafe impl aya::Pod for Value<Request> {}

/// Tables of bios and requests in flight.
pub(crate) struct InFlightTables {
    bios: Array<MapData, Value<Bio>>,
    requests: Array<MapData, Value<Request>>,
}

impl InFlightTables {
    /// Takes the maps out of the loaded object; the programs hold them as well.
    pub(crate) fn take(ebpf: &mut Ebpf) -> Result<InFlightTables, TracerError> {
        Ok(InFlightTables { bios: table(ebpf, "BIOS")?, requests: table(ebpf, "REQUESTS")? })
    }

    /// Reads all entries.
    pub(crate) fn read(&self, operations: &ReqOpTable) -> Result<Vec<InFlightIo>, TracerError> {
        let mut in_flight = Vec::new();
        // Of a deferred operation, which did not end, nothing is recorded.
        for_each_entry(&self.bios, "BIOS", |entry| {
            if entry.flags & BIO_DEFERRED != 0 {
                return;
            }
            in_flight.push(bio(entry, operations));
            in_flight.extend(single_bio_request(entry, operations));
        })?;
        for_each_entry(&self.requests, "REQUESTS", |entry| {
            if entry.flags & REQUEST_DEFERRED == 0 {
                in_flight.push(request(entry, operations));
            }
        })?;
        in_flight.sort_by_key(|one| (one.start, one.layer, one.span));
        Ok(in_flight)
    }
}

fn table<V>(ebpf: &mut Ebpf, name: &'static str) -> Result<Array<MapData, Value<V>>, TracerError>
where
    Value<V>: aya::Pod,
{
    let map = ebpf.take_map(name).ok_or_else(|| missing_map(name))?;
    Array::try_from(map).map_err(|error| TracerError::Map { map: name, reason: error_chain(&error) })
}

fn for_each_entry<V: Copy>(
    table: &Array<MapData, Value<V>>,
    name: &'static str,
    mut visit: impl FnMut(&V),
) -> Result<(), TracerError>
where
    Value<V>: aya::Pod,
{
    for index in 0..table.len() {
        let set = table.get(&index, 0);
        let set = set.map_err(|error| TracerError::Map { map: name, reason: error_chain(&error) })?;
        set.0.ways.iter().filter(|Way { key, .. }| *key != 0).for_each(|way| visit(&way.value));
    }
    Ok(())
}
