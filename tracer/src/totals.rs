//! Totals of block requests, counted in the kernel.
//!
//! *In*: the eBPF programs' keys and totals ([`blkkin_probe_abi::totals`]). *Out*: a [`Totals`] each time that it is
//! read: what every key counted since the programs were attached. Nothing is recorded and no ring is read.
//!
//! *Invariant*: each request that completed since then is in exactly one row, or in [`Totals::untracked`], but for those
//! of which the kernel skipped a program ([`Totals::missed`]). A count of
//! a histogram has 32 bits in the kernel; here it is the sum of differences. So it is right if two reads are less
//! than 2^32 requests of one key on one CPU apart.

use std::collections::HashMap;
use std::fs;
use std::sync::Arc;

use aya::maps::{Array, MapData, PerCpuArray};
use aya::{Ebpf, EbpfLoader};
use blkkin_probe_abi::Plain;
use blkkin_probe_abi::counters::{PER_CPU_WORDS, REQUESTS_UNTRACKED};
use blkkin_probe_abi::settings::ProbeSettings;
use blkkin_probe_abi::totals::{
    BUCKETS, KEY_READY, KEY_SETS, KEY_WAYS, KeySet, OTHERS, Total, TotalKey, bounds_of, bucket_at,
    position_of,
};
use blkkin_wire::ids::DeviceId;

use crate::attach::OBJECT;
use crate::attach::attach_point::{AttachPoint, Attached};
use crate::attach::kernel;
use crate::attach::layout::{self, KernelTypes};
use crate::attach::probes::{AttachKind, Need, TOTALS_PROBES};
use crate::attach::req_op::ReqOpTable;
use crate::aya_error::{error_chain, missing_map};
use crate::config::TracerConfig;
use crate::error::TracerError;
use crate::identity;
use crate::privilege;
use crate::read::decode::bytes_of;
use crate::stats::counters::KernelCounters;

/// Kinds that are tried: the hooks are tracepoints.
const KINDS: [AttachKind; 2] = [AttachKind::TpBtf, AttachKind::RawTp];

/// Maps of the programs that record, which are not loaded here: as small as a map can be.
const UNUSED_MAPS: [&str; 13] = [
    "BIOS",
    "REQUESTS",
    "SINGLE_BIO_REQUESTS",
    "SUBMISSIONS",
    "NBD_CONNECTIONS",
    "EXCLUDED_PATHS",
    "PENDING_CHILDREN",
    "NAMES",
    "TLS_SLOTS",
    "DEFERRED_OPERATIONS",
    "KEEP_LATENCIES",
    "KEEP_DISK_LIMITS",
    "PATH_DRAFTS",
];

/// Maps of the programs that count, which the loader of the others makes as small as a map can be.
pub(crate) const MAPS: [&str; 3] = ["TOTAL_KEYS", "TOTAL_SUMS", "TOTAL_REQUESTS"];

/// Kind of the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// Submitter, disk and operation.
    Submitter,
    /// Disk and operation alone: never more keys than there are places, however many programs start.
    Disk,
}

/// Key of requests that are counted together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestKey {
    /// Name of the process that submitted the requests; empty with [`KeyKind::Disk`]. `kworker` stands for all
    /// workqueues, and `unknown` for the submitter of a request that is never issued, before Linux 6.5.
    pub program: Box<str>,
    /// Id of its cgroup; 0 if unknown, and with [`KeyKind::Disk`].
    pub cgroup: u64,
    /// Disk of the requests.
    pub disk: DeviceId,
    /// Operation of the requests.
    pub operation: &'static str,
}

/// Sums of the requests of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestTotal {
    /// Completed requests.
    pub requests: u64,
    /// Bytes of these requests.
    pub bytes: u64,
    /// Failed requests.
    pub errors: u64,
    /// ns between allocation and issue.
    pub queue_ns: u64,
    /// ns between issue and completion.
    pub device_ns: u64,
    /// Requests by time in the queue: see [`bounds_of`].
    pub queue: Box<[u64; BUCKETS]>,
    /// Requests by time in the device.
    pub device: Box<[u64; BUCKETS]>,
}

impl Default for RequestTotal {
    fn default() -> Self {
        let (queue, device) = (Box::new([0; BUCKETS]), Box::new([0; BUCKETS]));
        RequestTotal { requests: 0, bytes: 0, errors: 0, queue_ns: 0, device_ns: 0, queue, device }
    }
}

impl RequestTotal {
    /// Adds another total.
    pub fn add(&mut self, other: &RequestTotal) {
        self.combine(other, u64::wrapping_add);
    }

    /// Returns the difference to an earlier total of the same key.
    pub fn since(&self, earlier: &RequestTotal) -> RequestTotal {
        let mut difference = self.clone();
        difference.combine(earlier, u64::saturating_sub);
        difference
    }

    fn combine(&mut self, other: &RequestTotal, with: impl Fn(u64, u64) -> u64) {
        for (own, other) in [
            (&mut self.requests, other.requests),
            (&mut self.bytes, other.bytes),
            (&mut self.errors, other.errors),
            (&mut self.queue_ns, other.queue_ns),
            (&mut self.device_ns, other.device_ns),
        ] {
            *own = with(*own, other);
        }
        for (own, other) in [(&mut self.queue, &other.queue), (&mut self.device, &other.device)] {
            own.iter_mut().zip(other.iter()).for_each(|(own, other)| *own = with(*own, *other));
        }
    }
}

/// Returns the number of sets with room for twice eight operations of each of these disks, half of them of disks that are
/// attached later.
fn sets_of_disks(disks: usize) -> u32 {
    (2 * disks).next_power_of_two().clamp(8, KEY_SETS) as u32
}

/// Returns the time that this part of a histogram's requests did not exceed: the middle of a bucket, which differs by
/// at most 6.25 % from the time itself. None without requests.
pub fn quantile(histogram: &[u64; BUCKETS], part: f64) -> Option<u64> {
    let requests: u64 = histogram.iter().sum();
    let rank = ((requests as f64 * part).ceil() as u64).max(1);
    let bucket = bucket_at(histogram, rank)?;
    let (low, high) = bounds_of(bucket);
    Some(high.map_or(low, |high| low + (high - low) / 2))
}

/// Returns a time that no request of a histogram exceeded, at most 12.5 % above the longest. None without requests.
pub fn longest(histogram: &[u64; BUCKETS]) -> Option<u64> {
    let bucket = histogram.iter().rposition(|count| *count > 0)?;
    let (low, high) = bounds_of(bucket);
    Some(high.unwrap_or(low))
}

/// Requests that were counted since the programs were attached.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Totals by key.
    pub rows: HashMap<RequestKey, RequestTotal>,
    /// Requests whose key found no place.
    pub others: RequestTotal,
    /// Requests that are in no total, because the table of those in flight was full.
    pub untracked: u64,
    /// Runs of the programs that the kernel skipped, as far as it counts them.
    pub missed: u64,
}

/// The attached programs that count.
pub struct RequestCounter {
    _ebpf: Ebpf,
    keys: Array<MapData, MapValue<KeySet>>,
    sums: PerCpuArray<MapData, MapValue<Total>>,
    counters: Arc<KernelCounters>,
    attached: Vec<Attached>,
    operations: ReqOpTable,
    /// Sets of keys.
    sets: u32,
    /// Sums by position, as they were read last: of each CPU in the kernel's 32 bits, and together.
    last: HashMap<u32, Position>,
}

#[derive(Default)]
struct Position {
    of_cpus: Vec<Total>,
    sum: RequestTotal,
}

/// A plain type of the kernel's side as a map value.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct MapValue<T>(T);

// SAFETY: every bit pattern of a `Plain` type is valid.
unsafe impl<T: Plain> aya::Pod for MapValue<T> {}

impl RequestCounter {
    /// Loads and attaches the programs; `config` has the filter by device.
    pub fn load(config: &TracerConfig, keys: KeyKind) -> Result<RequestCounter, TracerError> {
        privilege::check()?;
        let types = layout::resolve()?;
        let mut first = None;
        // Functions replace none of these hooks.
        let wanted = config.attach.filter(|kind| KINDS.contains(kind));
        for kind in KINDS.into_iter().filter(|kind| wanted.is_none_or(|wanted| wanted == *kind)) {
            match RequestCounter::load_as(config, keys, kind, &types) {
                Err(error @ TracerError::Probe { .. }) => drop(first.get_or_insert(error)),
                other => return other,
            }
        }
        Err(first.expect("invariant: there are kinds, and each failed"))
    }

    fn load_as(
        config: &TracerConfig,
        key_kind: KeyKind,
        kind: AttachKind,
        types: &KernelTypes,
    ) -> Result<RequestCounter, TracerError> {
        kernel::check(types, kind)?;
        let btf = kernel::btf()?;
        let sets = match key_kind {
            KeyKind::Submitter => KEY_SETS as u32,
            KeyKind::Disk => sets_of_disks(fs::read_dir("/sys/block").map_or(0, Iterator::count)),
        };
        let settings = ProbeSettings {
            legacy_request_start: types.uses_legacy_request_start().into(),
            disk_total_sets: if key_kind == KeyKind::Disk { sets } else { 0 },
            ..config.settings(identity::source().epoch)?
        };
        let mut loader = EbpfLoader::new();
        loader
            .override_global("LAYOUT", bytes_of(&types.layout), true)
            .override_global("SETTINGS", bytes_of(&settings), true)
            .allow_unsupported_maps();
        for map in UNUSED_MAPS {
            loader.map_max_entries(map, 1);
        }
        loader.map_max_entries(MAPS[0], sets).map_max_entries(MAPS[1], sets * KEY_WAYS as u32 + 1);
        let mut ebpf =
            loader.load(OBJECT).map_err(|error| TracerError::Load { reason: error_chain(&error) })?;
        let take = |ebpf: &mut Ebpf, name: &'static str| ebpf.take_map(name).ok_or_else(|| missing_map(name));
        let fail = |map: &'static str| {
            move |error: aya::maps::MapError| TracerError::Map { map, reason: error_chain(&error) }
        };
        let mut attached = Vec::new();
        for probe in TOTALS_PROBES.iter().filter(|probe| types.missing(probe, kind).is_empty()) {
            let point = AttachPoint::resolve(probe.hook, kind, types);
            match point.and_then(|point| point.attach(&mut ebpf, &btf)) {
                Ok(done) => attached.push(done),
                Err(reason) if probe.need == Need::Required => {
                    return Err(TracerError::Probe { probe: probe.name, reason });
                }
                Err(_) => {}
            }
        }
        let keys = Array::try_from(take(&mut ebpf, MAPS[0])?).map_err(fail(MAPS[0]))?;
        let sums = PerCpuArray::try_from(take(&mut ebpf, MAPS[1])?).map_err(fail(MAPS[1]))?;
        let counters = PerCpuArray::<_, [u64; PER_CPU_WORDS]>::try_from(take(&mut ebpf, "PER_CPU_STATE")?)
            .map_err(fail("PER_CPU_STATE"))?;
        Ok(RequestCounter {
            _ebpf: ebpf,
            keys,
            sums,
            counters: Arc::new(KernelCounters::new(counters)),
            attached,
            operations: types.operations.clone(),
            sets,
            last: HashMap::new(),
        })
    }

    /// Returns the counters of the programs.
    pub(crate) fn counters(&self) -> Arc<KernelCounters> {
        Arc::clone(&self.counters)
    }

    /// Reads all totals.
    pub fn read(&mut self) -> Result<Totals, TracerError> {
        let mut totals = Totals::default();
        self.update(OTHERS)?;
        totals.others = self.last[&OTHERS].sum.clone();
        for set in 0..self.sets {
            let MapValue(places) = self
                .keys
                .get(&set, 0)
                .map_err(|error| TracerError::Map { map: MAPS[0], reason: error_chain(&error) })?;
            for (way, place) in places.places.iter().enumerate().filter(|(_, place)| place.state == KEY_READY)
            {
                let position = position_of(set, way as u32);
                self.update(position)?;
                let row = totals.rows.entry(self.key(&place.key)).or_default();
                row.add(&self.last[&position].sum);
            }
        }
        totals.untracked = self.counters.read()?[REQUESTS_UNTRACKED];
        totals.missed = self.attached.iter().filter_map(|program| program.recursion_misses().ok()).sum();
        Ok(totals)
    }

    fn key(&self, key: &TotalKey) -> RequestKey {
        let bytes = [key.program[0].to_ne_bytes(), key.program[1].to_ne_bytes()].concat();
        let name = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        RequestKey {
            program: String::from_utf8_lossy(name).into(),
            cgroup: key.cgroup,
            disk: DeviceId { major: key.disk >> 20, minor: key.disk & 0xf_ffff },
            operation: self.operations.translate(key.operation).name(),
        }
    }

    /// Adds what a position counted since it was read last.
    fn update(&mut self, position: u32) -> Result<(), TracerError> {
        let values = self
            .sums
            .get(&position, 0)
            .map_err(|error| TracerError::Map { map: MAPS[1], reason: error_chain(&error) })?;
        let known = self.last.entry(position).or_default();
        known.of_cpus.resize(values.len(), Total::default());
        for (MapValue(now), before) in values.iter().zip(&mut known.of_cpus) {
            known.sum.requests += now.requests - before.requests;
            known.sum.bytes += now.bytes - before.bytes;
            known.sum.errors += now.errors - before.errors;
            known.sum.queue_ns += now.queue_ns - before.queue_ns;
            known.sum.device_ns += now.device_ns - before.device_ns;
            for (sum, now, before) in [
                (&mut known.sum.queue, &now.queue, &before.queue),
                (&mut known.sum.device, &now.device, &before.device),
            ] {
                for ((sum, now), before) in sum.iter_mut().zip(now).zip(before) {
                    *sum += u64::from(now.wrapping_sub(*before));
                }
            }
            *before = *now;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use blkkin_probe_abi::totals::bucket_of;

    use super::*;

    #[test]
    fn quantiles_are_near_the_times_themselves() {
        let mut histogram = [0; BUCKETS];
        let times: Vec<u64> = (1..=1_000).map(|n| n * n * 137).collect();
        times.iter().for_each(|ns| histogram[bucket_of(*ns)] += 1);
        for part in [0.01, 0.1, 0.5, 0.9, 0.99, 1.0] {
            let exact = times[((1_000.0 * part) as usize).max(1) - 1] as f64;
            let found = quantile(&histogram, part).unwrap() as f64;
            assert!((found - exact).abs() / exact <= 0.125, "{part}: {found}, not {exact}");
        }
        let (last, found) = (*times.last().unwrap(), longest(&histogram).unwrap());
        assert!((last..=last * 9 / 8).contains(&found), "{found}, not {last}");
        assert_eq!((quantile(&[0; BUCKETS], 0.5), longest(&[0; BUCKETS])), (None, None));
    }
}
