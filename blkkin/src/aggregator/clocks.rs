//! How far the wall clocks of nodes are apart, as the requests between them show, for whoever watches.
//!
//! *In*: what the stage between nodes knows after each request that went from one node to another. *Out*: two gauges a pair: the
//! offset, and by how much it may be off. *Invariant*: at most [`PAIRS_MAX`] pairs; beyond it the one that met longest ago is
//! left out.

use std::collections::BTreeMap;

use blkkin_aggregator::stage::meet::clocks::Apart;
use blkkin_wire::ids::NodeId;

use crate::service::{Family, Kind, Labels, Sample};

/// Two series each.
const PAIRS_MAX: usize = 1_024;

/// What is known last of each pair, by who asked and who answered.
#[derive(Debug, Default)]
pub(super) struct Clocks {
    pairs: BTreeMap<(NodeId, NodeId), (u64, Apart)>,
    count: u64,
}

impl Clocks {
    pub(super) fn note(&mut self, apart: &Apart) {
        self.count += 1;
        self.pairs.insert((apart.asker, apart.answerer), (self.count, *apart));
        if self.pairs.len() > PAIRS_MAX
            && let Some(oldest) = self.pairs.iter().min_by_key(|(_, (noted, _))| *noted).map(|(key, _)| *key)
        {
            self.pairs.remove(&oldest);
        }
    }

    pub(super) fn families(&self) -> [Family; 2] {
        let family = |name, help, of: fn(&Apart) -> f64| {
            let samples = self.pairs.values().map(|(_, apart)| (labels(apart), Sample::Number(of(apart))));
            Family { name, help, kind: Kind::Gauge, samples: samples.collect() }
        };
        [
            family(
                "clock_offset_seconds",
                "The answering node's wall clock less the asking node's, by the requests between them",
                |apart| apart.offset as f64 / 1e9,
            ),
            family(
                "clock_offset_error_seconds",
                "By how much blkkin_clock_offset_seconds may be off",
                |apart| apart.error.0 as f64 / 1e9,
            ),
        ]
    }
}

fn labels(apart: &Apart) -> Labels {
    [("asker", apart.asker), ("answerer", apart.answerer)]
        .map(|(name, node)| (name, format!("{:032x}", node.0)))
        .to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkkin_wire::clock::{DurationNs, MonotonicNs};

    fn apart(asker: u128, offset: i64) -> Apart {
        let (asker, answerer) = (NodeId(asker), NodeId(u128::MAX));
        Apart { asker, answerer, at: MonotonicNs(1), offset, error: DurationNs(50_000) }
    }

    #[test]
    fn a_pair_has_its_last_offset_and_the_number_of_pairs_is_bounded() {
        let mut clocks = Clocks::default();
        for asker in 0..=PAIRS_MAX as u128 {
            clocks.note(&apart(asker, 1));
            clocks.note(&apart(1, -2_000_000));
        }
        let [offset, error] = clocks.families();
        assert_eq!((offset.samples.len(), error.samples.len()), (PAIRS_MAX, PAIRS_MAX));
        let of = |asker: u128| labels(&apart(asker, 0));
        let found = |labels: Labels| {
            offset.samples.iter().find(|(of, _)| *of == labels).map(|(_, sample)| sample.clone())
        };
        assert_eq!(found(of(1)), Some(Sample::Number(-0.002)));
        assert_eq!(found(of(0)), None, "it met longest ago");
        assert_eq!(error.samples[0].1, Sample::Number(0.00005));
    }
}
