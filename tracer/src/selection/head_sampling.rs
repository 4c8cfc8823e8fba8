//! Ratio of head sampling, which may change while the programs run.

use aya::Ebpf;
use aya::maps::{Array, MapData};
use blkkin_probe_abi::deferred::SAMPLED_ONLY;
use blkkin_probe_abi::head_sampling::{HEAD_SAMPLING_MAP as MAP, PAUSED, SAMPLING_MAX};
use blkkin_wire::head_sampling::HeadSampling;

use crate::aya_error::{error_chain, missing_map};
use crate::error::TracerError;

// Both sides have the same smallest ratio.
const _: () = assert!(HeadSampling::MIN_RATIO.log2() == SAMPLING_MAX);

/// The kernel side's ratio. Each record has the one that decided about it.
pub(crate) struct HeadSamplingRatio {
    map: Array<MapData, u64>,
    ratio: HeadSampling,
    /// Operations that are not sampled are not deferred: there is no rule for them, or no room in the budget.
    sampled_only: bool,
    is_paused: bool,
}

impl HeadSamplingRatio {
    /// Takes the map of a loaded object.
    pub(crate) fn take(ebpf: &mut Ebpf, ratio: HeadSampling) -> Result<HeadSamplingRatio, TracerError> {
        let map = ebpf.take_map(MAP).ok_or_else(|| missing_map(MAP))?;
        let map = Array::try_from(map)
            .map_err(|error| TracerError::Map { map: MAP, reason: error_chain(&error) })?;
        Ok(HeadSamplingRatio { map, ratio, sampled_only: true, is_paused: false })
    }

    /// Returns the ratio that was set last.
    pub(crate) fn get(&self) -> HeadSampling {
        self.ratio
    }

    /// Returns whether no root that begins now is sampled.
    pub(crate) fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Sets the ratio of the roots that begin from now on.
    pub(crate) fn set(&mut self, ratio: HeadSampling) -> Result<(), TracerError> {
        self.ratio = ratio;
        self.write()
    }

    /// Sets the ratio, whether operations that are not sampled are dropped at once, and whether no root that begins
    /// from now on is sampled.
    pub(crate) fn set_conditions(
        &mut self,
        ratio: HeadSampling,
        sampled_only: bool,
        is_paused: bool,
    ) -> Result<(), TracerError> {
        (self.sampled_only, self.is_paused) = (sampled_only, is_paused);
        self.set(ratio)
    }

    /// Sets whether operations that begin from now on and are not sampled are dropped at once, though rules could
    /// keep them at their end.
    pub(crate) fn suspend_keep(&mut self, sampled_only: bool) -> Result<(), TracerError> {
        self.sampled_only = sampled_only;
        self.write()
    }

    fn write(&mut self) -> Result<(), TracerError> {
        let sampled_only = if self.sampled_only { SAMPLED_ONLY } else { 0 };
        let paused = if self.is_paused { PAUSED } else { 0 };
        self.map
            .set(0, u64::from(self.ratio.log2()) | sampled_only | paused, 0)
            .map_err(|error| TracerError::Map { map: MAP, reason: error_chain(&error) })
    }
}
