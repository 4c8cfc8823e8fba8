//! Ratio of head sampling, which may change while the programs run.

use aya::Ebpf;
use aya::maps::{Array, MapData};
use blkkin_probe_abi::deferred::DRAWN_ONLY;
use blkkin_probe_abi::head_sampling::{HEAD_SAMPLING_MAP as MAP, SAMPLING_MAX};
use blkkin_wire::head_sampling::HeadSampling;

use crate::aya_error::{error_chain, missing_map};
use crate::error::TracerError;

// Both sides have the same smallest ratio.
const _: () = assert!(HeadSampling::MIN_RATIO.log2() == SAMPLING_MAX);

/// The kernel side's ratio. Each record has the one that decided about it.
pub struct HeadSamplingRatio {
    map: Array<MapData, u64>,
    ratio: HeadSampling,
    /// Operations that are not drawn are not deferred.
    keep_suspended: bool,
}

impl HeadSamplingRatio {
    /// Takes the map of a loaded object, and sets its ratio.
    pub(crate) fn take(ebpf: &mut Ebpf, ratio: HeadSampling) -> Result<HeadSamplingRatio, TracerError> {
        let map = ebpf.take_map(MAP).ok_or_else(|| missing_map(MAP))?;
        let map = Array::try_from(map)
            .map_err(|error| TracerError::Map { map: MAP, reason: error_chain(&error) })?;
        let mut taken = HeadSamplingRatio { map, ratio, keep_suspended: false };
        taken.set(ratio)?;
        Ok(taken)
    }

    /// Returns the ratio that was set last.
    pub fn get(&self) -> HeadSampling {
        self.ratio
    }

    /// Sets the ratio of the roots that begin from now on.
    pub fn set(&mut self, ratio: HeadSampling) -> Result<(), TracerError> {
        self.ratio = ratio;
        self.write()
    }

    /// Sets whether operations that begin from now on and are not drawn are left out at once, though rules could
    /// keep them at their end.
    pub(crate) fn suspend_keep(&mut self, drawn_only: bool) -> Result<(), TracerError> {
        self.keep_suspended = drawn_only;
        self.write()
    }

    fn write(&mut self) -> Result<(), TracerError> {
        let drawn_only = if self.keep_suspended { DRAWN_ONLY } else { 0 };
        self.map
            .set(0, u64::from(self.ratio.log2()) | drawn_only, 0)
            .map_err(|error| TracerError::Map { map: MAP, reason: error_chain(&error) })
    }
}
