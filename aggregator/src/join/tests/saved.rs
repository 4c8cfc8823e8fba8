//! A joiner that was saved and read back is the one that it was: in what it says, and in all that it will say.

use blkkin_wire::clock::DurationNs;
use blkkin_wire::event::LayerEvent;
use proptest::prelude::*;

use super::make::{self, batch};
use super::property::{cut, run};
use super::world::{World, acts};
use crate::join::{JoinConfig, Joiner};
use crate::trace::Trace;

fn bytes(joiner: &mut Joiner) -> Vec<u8> {
    joiner.lighten();
    postcard::to_stdvec(joiner).unwrap()
}

fn read_back(joiner: &mut Joiner, config: &JoinConfig) -> Joiner {
    let mut joiner: Joiner = postcard::from_bytes(&bytes(joiner)).unwrap();
    joiner.set_bounds(config.clone());
    joiner
}

/// Names for the world's task, its files and its disk, said at several times.
fn names(times: &[u64]) -> Vec<LayerEvent> {
    let name = |(n, &time): (usize, &u64)| match n % 5 {
        0 => LayerEvent::Task(make::task(1, (n / 5 % 2) as u16, time, &format!("comm{n}"))),
        1 => LayerEvent::File(make::file(make::file_id(12), time, &format!("/srv/{n}"))),
        2 => LayerEvent::Device(make::device(time, &format!("loop{n}"))),
        3 => LayerEvent::ProcessContext(make::process(time, &format!("shop{n}")).into()),
        _ => LayerEvent::Task(make::task(9, 0, time, "jbd2/loop0")),
    };
    times.iter().enumerate().map(name).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn saved_and_read_back_anywhere_it_says_the_same(
        acts in acts(),
        named in prop::collection::vec(1_u64..2_000, 0..8),
        keys in prop::collection::vec(any::<u32>(), 1..64),
        cuts in prop::collection::vec(0_u64..2_200, 0..8),
        quiet in prop_oneof![Just(40_u64), Just(30_000_000_000)],
        open_max in prop_oneof![Just(2_usize), Just(1_000)],
        window_max in prop_oneof![Just(3_usize), Just(1_000)],
        restored in any::<u16>(),
    ) {
        let mut events = World::build(&acts).events;
        events.extend(names(&named));
        let config = JoinConfig {
            quiet_after: DurationNs(quiet), open_max, window_max, commits_max: 4, files_max: 4, tasks_max: 3,
            ..JoinConfig::default()
        };
        let (plain, _) = run(&config, cut(&events, &keys, &cuts));
        let (mut kept, mut said) = (Joiner::new(config.clone()), Vec::<Trace>::new());
        let (mut other, mut said_by_other) = (Joiner::new(config.clone()), Vec::<Trace>::new());
        for (n, (events, watermark)) in cut(&events, &keys, &cuts).into_iter().enumerate() {
            kept.apply(batch(n as u64, events.clone(), watermark), &mut said);
            other.apply(batch(n as u64, events, watermark), &mut said_by_other);
            if restored >> (n % 16) & 1 == 1 {
                other = read_back(&mut other, &config);
            }
            prop_assert!(bytes(&mut kept) == bytes(&mut other), "{:#?}\n{:#?}", kept, other);
        }
        kept.finish(&mut said);
        other.finish(&mut said_by_other);
        prop_assert_eq!(format!("{plain:#?}"), format!("{said:#?}"));
        prop_assert_eq!(format!("{plain:#?}"), format!("{said_by_other:#?}"));
        prop_assert_eq!(kept.accounts(), other.accounts());
    }
}

/// The comparison above can fail: a table that is left out is found in the bytes.
#[test]
fn a_joiner_that_has_seen_nothing_is_another() {
    let (mut joiner, mut out) = (Joiner::new(JoinConfig::default()), Vec::new());
    let empty = bytes(&mut joiner);
    joiner.apply(batch(0, vec![LayerEvent::File(make::file(make::file_id(12), 1, "/a"))], 5), &mut out);
    let named = bytes(&mut joiner);
    joiner.apply(batch(1, vec![LayerEvent::File(make::file(make::file_id(12), 6, "/b"))], 9), &mut out);
    assert!(empty != named && named != bytes(&mut joiner));
}
