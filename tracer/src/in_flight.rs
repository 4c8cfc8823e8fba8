//! What had begun and not ended: the kernel side's tables, read when nothing is attached any more.
//!
//! *In*: the tables of bios and requests. *Out*: [`Unended`]s, the oldest first. *Invariant*: read only where the books say
//! that something is missing: 24,576 sets are as many looks at a map (20 ms).
//!
//! *Weakness*: an entry whose end was missed, and whose address has not come back, looks like one that has not ended.

use aya::Ebpf;
use aya::maps::{Array, MapData};
use blkkin_probe_abi::flight::{Bio, Request, Set, Way};
use blkkin_wire::unended::Unended;

use crate::error::TracerError;
use crate::load::{chain, missing_map};
use crate::operations::Operations;
use crate::translate::unended::{alone, bio, request};

/// A set as a map's value.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Value<V>(Set<V>);

// SAFETY: both are Plain: without padding, and every bit pattern is a value.
unsafe impl aya::Pod for Value<Bio> {}
// SAFETY: as above.
unsafe impl aya::Pod for Value<Request> {}

/// The kernel side's tables.
pub(crate) struct Tables {
    bios: Array<MapData, Value<Bio>>,
    requests: Array<MapData, Value<Request>>,
}

impl Tables {
    /// Takes them out of what was loaded; the programs hold them too.
    pub(crate) fn take(ebpf: &mut Ebpf) -> Result<Tables, TracerError> {
        Ok(Tables { bios: table(ebpf, "BIOS")?, requests: table(ebpf, "REQUESTS")? })
    }

    /// What is in them.
    pub(crate) fn read(&self, operations: &Operations) -> Result<Vec<Unended>, TracerError> {
        let mut unended = Vec::new();
        each(&self.bios, "BIOS", |entry| {
            unended.push(bio(entry, operations));
            unended.extend(alone(entry, operations));
        })?;
        each(&self.requests, "REQUESTS", |entry| unended.push(request(entry, operations)))?;
        unended.sort_by_key(|one| (one.begun, one.layer, one.span));
        Ok(unended)
    }
}

fn table<V>(ebpf: &mut Ebpf, name: &'static str) -> Result<Array<MapData, Value<V>>, TracerError>
where
    Value<V>: aya::Pod,
{
    let map = ebpf.take_map(name).ok_or_else(|| missing_map(name))?;
    Array::try_from(map).map_err(|error| TracerError::Map { map: name, reason: chain(&error) })
}

fn each<V: Copy>(
    table: &Array<MapData, Value<V>>,
    name: &'static str,
    mut take: impl FnMut(&V),
) -> Result<(), TracerError>
where
    Value<V>: aya::Pod,
{
    for index in 0..table.len() {
        let set = table.get(&index, 0);
        let set = set.map_err(|error| TracerError::Map { map: name, reason: chain(&error) })?;
        set.0.ways.iter().filter(|Way { key, .. }| *key != 0).for_each(|way| take(&way.value));
    }
    Ok(())
}
