//! Saved states of the aggregator's three stages. A state that is restored is saved as bytes that
//! restore to the same.
#![no_main]

use blkkin_aggregator::stage::assemble::{AssembleStage, AssembleStageConfig};
use blkkin_aggregator::stage::join::{JoinStage, JoinStageConfig};
use blkkin_aggregator::stage::link::{LinkStage, LinkStageConfig};
use blkkin_aggregator::stage::sampling::SamplingRules;
use blkkin_fuzz::fuzz_target;
use blkkin_wire::fragment::Incarnation;
use blkkin_wire::stage::Stage;

fuzz_target!(|bytes: &[u8]| {
    restore::<JoinStage>(bytes, JoinStageConfig::new(2));
    restore::<LinkStage>(bytes, LinkStageConfig::new(2));
    restore::<AssembleStage>(bytes, AssembleStageConfig::new(2, SamplingRules::default()));
});

fn restore<S: Stage>(bytes: &[u8], config: S::Config) {
    let Ok(mut stage) = S::restore(bytes, config.clone(), Incarnation(1)) else { return };
    let Ok(saved) = stage.save() else { return };
    let again = S::restore(&saved, config, Incarnation(2));
    let saved_again = again.and_then(|mut stage| stage.save());
    assert_eq!(saved_again.ok(), Some(saved));
}
