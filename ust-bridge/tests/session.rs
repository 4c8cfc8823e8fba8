//! Sessions that the bridge makes itself, with daemons of its own where none run.

#![allow(clippy::print_stderr, reason = "a test says what it measured")]

mod support;

use std::time::{Duration, Instant};

use blkkin_ust_bridge::live::follow::{Follower, Step, Target};
use blkkin_ust_bridge::live::reader::Settings;
use blkkin_ust_bridge::session::daemons::Daemons;
use blkkin_ust_bridge::session::keeper::{Keeper, Plan};
use support::lab::Lab;

/// Follows until `enough` says so or the session is over; true if it said so.
fn follow(follower: &mut Follower, mut enough: impl FnMut(&Follower) -> bool) -> bool {
    let begun = Instant::now();
    loop {
        match follower.step(&mut |_| {}) {
            Step::Read(wait) | Step::Away(_, wait) => std::thread::sleep(wait),
            Step::Over => return enough(follower),
            Step::Gone => panic!("the session was destroyed meanwhile"),
            Step::Refused(error) => panic!("{error}"),
        }
        if enough(follower) {
            return true;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", follower.counts());
    }
}

fn follower(keeper: &Keeper) -> Follower {
    let (address, session) = (keeper.relay().live_address(), keeper.name().to_owned());
    Follower::new(Target { address, session, settings: Settings::default() })
}

fn plan() -> Plan {
    Plan { events: vec!["sample:*".to_owned()], ..Plan::default() }
}

#[test]
fn a_session_of_its_own_from_nothing_to_nothing() {
    let Some(lab) = Lab::empty() else { return };
    let tool = lab.tool();
    assert!(!tool.has_daemon());
    let (daemons, relay) = Daemons::ensure(&tool, None, &lab.traces()).expect("they start");
    assert_eq!(daemons.started(), 2);
    let (again, _) = Daemons::ensure(&tool, Some(relay.clone()), &lab.traces()).expect("they are there");
    assert_eq!(again.started(), 0);

    // What a keeper that was killed left behind, and what somebody else made.
    tool.lttng(&["create", "blkkin-4000000000-1-0", "--no-output"]).expect("it is made");
    tool.lttng(&["create", "somebody", "--no-output"]).expect("it is made");
    let (keeper, stale) = Keeper::create(tool.clone(), relay, plan()).expect("it is made");
    assert_eq!(stale, 1);
    let mut sessions = tool.sessions().expect("they are listed");
    sessions.sort();
    assert_eq!(sessions, [keeper.name(), "somebody"]);

    let mut follower = follower(&keeper);
    let mut sample = lab.sample(&["kinds", "500"]);
    sample.go();
    assert!(follow(&mut follower, |follower| follower.counts().events == 500));
    sample.end();
    keeper.end().expect("it ends");
    assert!(follow(&mut follower, |follower| follower.counts().events == 500), "nothing comes twice");
    assert_eq!(tool.sessions().expect("they are listed"), ["somebody"]);
    drop(daemons);
    assert!(!tool.has_daemon(), "what was started is ended");
}

#[test]
fn a_ring_left_stuck_by_a_killed_process_is_noticed_and_replaced() {
    let Some(lab) = Lab::empty() else { return };
    let tool = lab.tool();
    let (_daemons, relay) = Daemons::ensure(&tool, None, &lab.traces()).expect("they start");
    let (mut keeper, _) = Keeper::create(tool.clone(), relay, plan()).expect("it is made");
    let mut old = follower(&keeper);
    let mut before = lab.sample_on("0", &["tick", "100"]);
    before.go();
    assert!(follow(&mut old, |follower| follower.counts().events == 100));
    let long = keeper.plan().silent_max();
    let silent = move |follower: &Follower| follower.reader().silent(long).next().is_some();
    let begun = Instant::now();
    while begun.elapsed() < long + Duration::from_millis(200) {
        follow(&mut old, |_| true);
        assert!(!silent(&old), "idle rings are not stuck ones");
    }
    lab.sample_on("0", &["die", "1"]).dies();
    before.go();
    let begun = Instant::now();
    assert!(follow(&mut old, silent), "the ring is noticed");
    eprintln!("noticed after {:?}; {:?}", begun.elapsed(), old.counts());
    let gone = keeper.replace().expect("it is replaced");
    assert_eq!(tool.sessions().expect("they are listed"), [keeper.name()]);
    assert_ne!(gone, keeper.name());
    let mut new = follower(&keeper);
    before.go();
    assert!(follow(&mut new, |follower| follower.counts().events >= 100));
    eprintln!("events again after {:?}", begun.elapsed());
    before.end();
    keeper.end().expect("it ends");
}

#[test]
fn a_relay_that_was_started_anew_has_lost_the_session_and_gets_another() {
    let Some(mut lab) = Lab::start() else { return };
    let (mut keeper, _) = Keeper::create(lab.tool(), lab.relay_ports(), plan()).expect("it is made");
    let mut old = follower(&keeper);
    let mut sample = lab.sample(&["tick", "100"]);
    sample.go();
    assert!(follow(&mut old, |follower| follower.counts().events == 100));
    lab.stop_relay();
    // It may have said goodbye to its streams first.
    let step = (0..100).map(|_| old.step(&mut |_| {})).find(|step| !matches!(step, Step::Read(_)));
    assert!(matches!(step, Some(Step::Away(..) | Step::Over | Step::Gone)), "{step:?}");
    assert!(matches!(old.step(&mut |_| {}), Step::Away(..)), "there is no relay");
    lab.relay();
    let step = (0..100).map(|_| old.step(&mut |_| {})).find(|step| !matches!(step, Step::Away(..)));
    assert!(matches!(step, Some(Step::Gone)), "another relay does not know it: {step:?}");
    keeper.replace().expect("it is replaced");
    let mut new = follower(&keeper);
    sample.go();
    assert!(follow(&mut new, |follower| follower.counts().events == 100));
    sample.end();
    keeper.end().expect("it ends");
}
