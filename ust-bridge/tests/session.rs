//! Sessions that blkkin creates, with LTTng daemons of its own if none run.

#![allow(clippy::print_stderr, reason = "a test prints what it measured")]

mod support;

use std::time::{Duration, Instant};

use blkkin_lttng_live::live::follow::{Follower, Step};
use blkkin_lttng_live::live::reader::ReaderSettings;
use blkkin_ust_bridge::session::lttng_daemons::LttngDaemons;
use blkkin_ust_bridge::session::supervisor::{SessionConfig, SessionSupervisor};
use support::lab::Lab;

/// Follows until `enough` returns true, or the session has ended; returns its last result.
fn follow(follower: &mut Follower, mut enough: impl FnMut(&Follower) -> bool) -> bool {
    let begun = Instant::now();
    loop {
        match follower.step(&mut |_| {}) {
            Step::Read(wait) | Step::Unreachable(_, wait) => std::thread::sleep(wait),
            Step::Ended => return enough(follower),
            Step::Destroyed => panic!("the session was destroyed meanwhile"),
            Step::Refused(error) => panic!("{error}"),
        }
        if enough(follower) {
            return true;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", follower.stats());
    }
}

fn follower(supervisor: &SessionSupervisor) -> Follower {
    supervisor.follower(ReaderSettings::default())
}

fn config() -> SessionConfig {
    SessionConfig { events: vec!["sample:*".to_owned()], ..SessionConfig::default() }
}

#[test]
fn own_session_starts_and_stops_its_daemons() {
    let Some(lab) = Lab::empty() else { return };
    let command = lab.tool();
    assert!(!command.has_daemon());
    let (daemons, relay) = LttngDaemons::ensure(&command, None, &lab.traces()).expect("the daemons start");
    assert_eq!(daemons.started(), 2);
    let (second, _) =
        LttngDaemons::ensure(&command, Some(relay.clone()), &lab.traces()).expect("the daemons run");
    assert_eq!(second.started(), 0);

    // A stale session of a killed supervisor, and another user's session.
    command.lttng(&["create", "blkkin-4000000000-1-0", "--no-output"]).expect("the session is created");
    command.lttng(&["create", "somebody", "--no-output"]).expect("the session is created");
    let (supervisor, stale) =
        SessionSupervisor::create(command.clone(), relay, config()).expect("the session is created");
    assert_eq!(stale, 1);
    let mut sessions = command.sessions().expect("the sessions are listed");
    sessions.sort();
    assert_eq!(sessions, [supervisor.name(), "somebody"]);

    let mut follower = follower(&supervisor);
    let mut sample = lab.sample(&["kinds", "500"]);
    sample.go();
    assert!(follow(&mut follower, |follower| follower.stats().events == 500));
    sample.end();
    supervisor.end().expect("the session is destroyed");
    assert!(follow(&mut follower, |follower| follower.stats().events == 500), "no event is read twice");
    assert_eq!(command.sessions().expect("the sessions are listed"), ["somebody"]);
    drop(daemons);
    assert!(!command.has_daemon(), "started daemons are stopped");
}

#[test]
fn session_with_a_stuck_ring_is_replaced() {
    let Some(lab) = Lab::empty() else { return };
    let command = lab.tool();
    let (_daemons, relay) = LttngDaemons::ensure(&command, None, &lab.traces()).expect("the daemons start");
    let (mut supervisor, _) =
        SessionSupervisor::create(command.clone(), relay, config()).expect("the session is created");
    let mut old_follower = follower(&supervisor);
    let mut sample = lab.sample_on("0", &["tick", "100"]);
    sample.go();
    assert!(follow(&mut old_follower, |follower| follower.stats().events == 100));
    let long = supervisor.config().inactivity_max();
    let inactive = move |follower: &Follower| follower.reader().inactive_streams(long).next().is_some();
    let begun = Instant::now();
    while begun.elapsed() < long + Duration::from_millis(200) {
        follow(&mut old_follower, |_| true);
        assert!(!inactive(&old_follower), "idle rings are not stuck");
    }
    lab.sample_on("0", &["die", "1"]).expect_killed();
    sample.go();
    let begun = Instant::now();
    assert!(follow(&mut old_follower, inactive), "the stuck ring is detected");
    eprintln!("detected after {:?}; {:?}", begun.elapsed(), old_follower.stats());
    let replaced = supervisor.replace().expect("the session is replaced");
    assert_eq!(command.sessions().expect("the sessions are listed"), [supervisor.name()]);
    assert_ne!(replaced, supervisor.name());
    let mut new_follower = follower(&supervisor);
    sample.go();
    assert!(follow(&mut new_follower, |follower| follower.stats().events >= 100));
    eprintln!("events again after {:?}", begun.elapsed());
    sample.end();
    supervisor.end().expect("the session is destroyed");
}

#[test]
fn restarted_relay_gets_a_new_session() {
    let Some(mut lab) = Lab::start() else { return };
    let (mut supervisor, _) =
        SessionSupervisor::create(lab.tool(), lab.relay_ports(), config()).expect("the session is created");
    let mut old_follower = follower(&supervisor);
    let mut sample = lab.sample(&["tick", "100"]);
    sample.go();
    assert!(follow(&mut old_follower, |follower| follower.stats().events == 100));
    lab.stop_relay();
    // The relay may have closed its streams first.
    let step = (0..100).map(|_| old_follower.step(&mut |_| {})).find(|step| !matches!(step, Step::Read(_)));
    assert!(matches!(step, Some(Step::Unreachable(..) | Step::Ended | Step::Destroyed)), "{step:?}");
    assert!(matches!(old_follower.step(&mut |_| {}), Step::Unreachable(..)), "there is no relay");
    lab.relay();
    let step =
        (0..100).map(|_| old_follower.step(&mut |_| {})).find(|step| !matches!(step, Step::Unreachable(..)));
    assert!(matches!(step, Some(Step::Destroyed)), "the new relay does not know the session: {step:?}");
    supervisor.replace().expect("the session is replaced");
    let mut new_follower = follower(&supervisor);
    sample.go();
    assert!(follow(&mut new_follower, |follower| follower.stats().events == 100));
    sample.end();
    supervisor.end().expect("the session is destroyed");
}
