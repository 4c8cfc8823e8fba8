//! Spool and pinned counters of `blkkin agent`, with a real broker that stops and agents that are
//! killed: every call is in the topic once and in order, or is reported as lost.
//!
//! *Input*: a child process that makes a counted number of system calls. The calls in the topic,
//! the dropped records and the reported losses must add up to that number.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use blkkin_bus::kafka::EVENTS;
use blkkin_wire::crash_report::RecordCounts;

use crate::broker::Broker;
use crate::broker::secure::{Listener, Operation, ResourceType, allow};
use crate::common;
use crate::spooling::agent::Agent;
use crate::spooling::bpffs::Bpffs;
use crate::spooling::caller::Caller;
use crate::spooling::manager::Manager;
use crate::spooling::topic::{consume, record_counts, reported_losses};
use crate::support::live::eventually;
use crate::support::metrics::value;
use crate::support::{needs, or_skip};

/// Limit of the producer's queue, so small that the rest waits in the spool.
const SMALL_QUEUE: &str = "queue.buffering.max.kbytes=1100";

fn files(home: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(home.join("spool")).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|end| end == "batches")).collect();
    files.sort();
    files
}

#[test]
fn while_the_broker_is_unreachable_events_wait_in_the_spool_in_order() {
    needs!();
    let (home, mut broker, caller) = (tempfile::tempdir().unwrap(), or_skip!(Broker::start()), Caller::new());
    let settings = broker.settings();
    let agent = Agent::start(home.path(), &settings.brokers, &caller, &["--set", SMALL_QUEUE]);
    caller.make(5_000);
    assert!(eventually(|| agent.metric("agent_events_delivered_total") > 0.0));
    broker.kill();
    caller.make(150_000);
    assert!(eventually(|| agent.metric("spool_bytes") > 1_200_000.0), "{}", agent.metrics());
    assert!(agent.metric("spool_oldest_seconds") > 0.0);
    broker.up();
    caller.make(5_000);
    assert!(eventually(|| agent.metric("spool_batches") < 5.0), "{}", agent.metrics());
    let read = agent.metric("spool_batches_read_total");
    let log = agent.finish_without_error();
    assert!(!log.contains("stay in the spool"), "{log}");
    let batches = consume(&settings);
    let last = batches.last().unwrap();
    let calls = record_counts(&batches, last.source.epoch).calls;
    println!("{read} batches read back; {calls} calls, {} dropped at the rings", last.stats.calls.dropped);
    assert!(read > 0.0, "the spool was needed");
    assert_eq!(calls + last.stats.calls.dropped, caller.made());
    assert!(batches.windows(2).all(|two| two[0].watermark <= two[1].watermark));
}

#[test]
fn the_next_agent_recovers_the_spool_and_counts_a_truncated_batch() {
    needs!();
    let (home, mut broker, caller) = (tempfile::tempdir().unwrap(), or_skip!(Broker::start()), Caller::new());
    let settings = broker.settings();
    broker.kill();
    let start = || Agent::start(home.path(), &settings.brokers, &caller, &["--set", SMALL_QUEUE]);
    let first = start();
    caller.make(20_000);
    assert!(eventually(|| first.metric("spool_batches") > 3.0));
    first.kill();
    let second = start();
    assert!(second.output().contains("batches of earlier starts in the spool"), "{}", second.output());
    caller.make(20_000);
    assert!(eventually(|| second.metric("spool_batches_written_total") > 3.0));
    let refused =
        common::run(&["agent", "--brokers", "h:1", "--spool", home.path().join("spool").to_str().unwrap()]);
    refused.assert_refused(125, "cannot use the spool", "--spool with a folder of its own");
    second.kill();
    // A crash of the machine may leave a truncated batch.
    let truncated = files(home.path()).pop().unwrap();
    let length = fs::metadata(&truncated).unwrap().len();
    fs::OpenOptions::new().write(true).open(truncated).unwrap().set_len(length - 3).unwrap();
    let third = start();
    assert!(third.output().contains("1 are truncated and lost"), "{}", third.output());
    assert_eq!(third.metric("spool_batches_corrupt_total"), 1.0);
    let found = third.metric("spool_batches_recovered_total");
    caller.make(1_000);
    // Without a cluster it exits soon, and leaves its batches in the spool.
    let log = third.finish_without_error();
    assert!(log.contains("stay in the spool"), "{log}");
    broker.up();
    let fourth = start();
    assert!(eventually(|| fourth.metric("spool_batches") < 5.0), "{}", fourth.metrics());
    fourth.finish_without_error();
    let batches = consume(&settings);
    let mut epochs: Vec<_> = batches.iter().map(|batch| batch.source.epoch).collect();
    epochs.dedup();
    assert_eq!(epochs.len(), 4, "start by start, oldest first: {epochs:?}");
    let count_of = |nth: usize| batches.iter().filter(|batch| batch.source.epoch == epochs[nth]).count();
    assert_eq!((count_of(0) + count_of(1)) as f64, found, "all that was whole");
    let calls = epochs.iter().map(|epoch| record_counts(&batches, *epoch).calls).collect::<Vec<_>>();
    println!("{found} batches found, calls by start: {calls:?}");
    assert!(calls[0] > 0 && calls[1] > 0 && calls[2] == 1_000, "{calls:?}");
}

/// Without the right to write no event is lost: refused events wait, and are sent once the right is
/// granted.
#[test]
fn refused_events_wait_in_the_spool() {
    needs!("openssl");
    let (home, broker, caller) =
        (tempfile::tempdir().unwrap(), or_skip!(Broker::start_guarded("")), Caller::new());
    let settings = broker.settings();
    settings.create_topic(EVENTS, 3, Some(1)).unwrap();
    let as_user = broker.guard().settings(Listener::Scram);
    // The user may describe the topic but not write to it.
    allow(broker.port(), ResourceType::Topic, EVENTS, Operation::Describe);
    let set: Vec<_> = as_user.extra.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let more: Vec<_> = set.iter().flat_map(|word| ["--set", word]).collect();
    let agent = Agent::start(home.path(), &as_user.brokers, &caller, &more);
    caller.make(20_000);
    assert!(eventually(|| agent.output().contains("refused events stay in the spool")), "{}", agent.output());
    assert_eq!(agent.metric("agent_events_delivered_total"), 0.0);
    caller.make(20_000);
    assert!(eventually(|| agent.metric("spool_batches") > 3.0), "{}", agent.metrics());
    allow(broker.port(), ResourceType::Topic, EVENTS, Operation::Write);
    caller.make(1_000);
    assert!(eventually(|| agent.metric("spool_batches") < 5.0), "{}", agent.metrics());
    assert_eq!(agent.metric("agent_events_failed_total"), 0.0);
    agent.finish_without_error();
    let batches = consume(&settings);
    let last = batches.last().unwrap();
    let calls = record_counts(&batches, last.source.epoch).calls;
    assert_eq!(calls + last.stats.calls.dropped, caller.made());
    assert_eq!(caller.made(), 41_000);
}

#[test]
fn a_full_spool_blocks_the_tracer_and_every_call_is_accounted_for() {
    needs!();
    let (home, mut broker, caller) = (tempfile::tempdir().unwrap(), or_skip!(Broker::start()), Caller::new());
    let settings = broker.settings();
    broker.kill();
    let more = ["--set", SMALL_QUEUE, "--spool-max", "4M", "--ring-size", "64K"];
    let agent = Agent::start(home.path(), &settings.brokers, &caller, &more);
    caller.set_endless(true);
    caller.order(0);
    let dropped = || agent.metric("records_dropped_total{kind=\"call\"}");
    assert!(
        eventually(|| agent.metric("agent_waited_seconds_total") > 0.3 && dropped() > 0.0),
        "{}",
        agent.metrics()
    );
    assert!(agent.metric("spool_bytes") <= f64::from(4 << 20));
    assert!(files(home.path()).iter().map(|file| fs::metadata(file).unwrap().len()).sum::<u64>() <= 4 << 20);
    caller.set_endless(false);
    broker.up();
    assert!(eventually(|| agent.metric("spool_batches") < 5.0), "{}", agent.metrics());
    agent.finish_without_error();
    let batches = consume(&settings);
    let last = batches.last().unwrap();
    let (calls, dropped) = (record_counts(&batches, last.source.epoch).calls, last.stats.calls.dropped);
    println!("{} calls: {calls} arrived, {dropped} had no room in a ring", caller.made());
    assert!(dropped > 0);
    assert_eq!(calls + dropped, caller.made());
}

/// Calls per round.
const CALLS: u64 = 6_000;
const ROUNDS: u64 = 8;

#[test]
fn losses_of_a_killed_agent_are_reported_exactly() {
    needs!("mount");
    let (home, broker, caller) = (tempfile::tempdir().unwrap(), or_skip!(Broker::start()), Caller::new());
    let (settings, bpffs) = (broker.settings(), or_skip!(Bpffs::mount()));
    let more = ["--bpffs", bpffs.path().to_str().unwrap()];
    let start = || Agent::start(home.path(), &settings.brokers, &caller, &more);
    let (mut rounds, mut seed) = (Vec::new(), 0x9e37_79b9_7f4a_7c15_u64);
    for round in 0..ROUNDS {
        seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        let known: Vec<_> = rounds.iter().map(|(epoch, _)| *epoch).collect();
        let (agent, before) = (start(), caller.made());
        let epoch = bpffs.epochs().into_iter().find(|epoch| !known.contains(epoch)).unwrap();
        let delay = Duration::from_micros((seed >> 33) % 120_000);
        // Alternately after all calls and during them.
        let all_were_made = round % 2 == 0;
        if all_were_made {
            caller.make(CALLS)
        } else {
            caller.order(CALLS)
        }
        std::thread::sleep(delay);
        agent.kill();
        assert!(eventually(|| caller.made() == before + CALLS));
        rounds.push((epoch, all_were_made));
    }
    // A second agent that keeps running is not taken for a crashed one.
    let second_home = tempfile::tempdir().unwrap();
    let running = Agent::start(second_home.path(), &settings.brokers, &caller, &more);
    let last = start();
    assert!(bpffs.epochs().len() >= 2, "{:?}", bpffs.epochs());
    assert!(eventually(|| bpffs.epochs().len() == 2), "reported runs are removed: {:?}", bpffs.epochs());
    for agent in [last, running] {
        agent.finish_without_error();
    }
    assert_eq!(bpffs.epochs(), [], "a normal exit leaves nothing");
    let batches = consume(&settings);
    let (mut lost, mut arrived_total) = (0, 0);
    for (epoch, all_were_made) in &rounds {
        let report =
            reported_losses(&batches, *epoch).unwrap_or_else(|| panic!("{epoch:?} was not reported"));
        let arrived = record_counts(&batches, *epoch);
        let sum = arrived.saturating_add(&report.lost());
        assert_eq!(
            (sum, report.unacknowledged),
            (report.fired, RecordCounts::default()),
            "{epoch:?}: {report:?}"
        );
        if *all_were_made {
            assert_eq!(report.fired.calls, CALLS, "the number of calls made: {report:?}");
        }
        (lost, arrived_total) = (lost + report.lost().calls, arrived_total + arrived.calls);
    }
    println!("{ROUNDS} agents killed: {arrived_total} calls arrived, {lost} are reported as lost");
    assert!(lost > 0 && arrived_total > 0);
    let reports = batches.iter().flat_map(|batch| &batch.crashed_runs);
    let known =
        reports.map(|killed| killed.epoch).all(|epoch| rounds.iter().any(|round| Some(round.0) == epoch));
    assert!(known, "no other run was killed");
}

#[test]
fn a_managers_descriptor_store_is_enough_to_report_losses() {
    needs!("sh");
    let (home, broker, caller) = (tempfile::tempdir().unwrap(), or_skip!(Broker::start()), Caller::new());
    let (settings, mut manager) = (broker.settings(), Manager::new());
    let none = home.path().to_str().unwrap();
    let start = |manager: &Manager| {
        let by = |command| manager.start(command);
        Agent::start_with(home.path(), &settings.brokers, &caller, &["--bpffs", none], by)
    };
    let first = start(&manager);
    caller.make(CALLS);
    assert!(!first.kill().contains("unknown"));
    manager.receive_notifications();
    assert_eq!(manager.stored.len(), 2, "{:?}", manager.stored);
    let killed = manager.names();
    let second = start(&manager);
    assert!(second.output().contains("was killed"), "{}", second.output());
    assert!(eventually(|| {
        manager.receive_notifications();
        manager.stored.len() == 2 && manager.names() != killed
    }));
    second.finish_without_error();
    manager.receive_notifications();
    assert!(manager.stored.is_empty(), "a normal exit leaves nothing: {:?}", manager.stored);
    let batches = consume(&settings);
    let epoch = batches.iter().flat_map(|batch| &batch.crashed_runs).next().unwrap().epoch.unwrap();
    let report = reported_losses(&batches, epoch).unwrap();
    let sum = record_counts(&batches, epoch).saturating_add(&report.lost());
    assert_eq!((sum, report.fired.calls), (report.fired, CALLS), "{report:?}");
}

#[test]
fn without_pinning_losses_are_unknown_and_not_zero() {
    needs!();
    let (home, caller) = (tempfile::tempdir().unwrap(), Caller::new());
    let none = home.path().to_str().unwrap();
    let start = || Agent::start(home.path(), "127.0.0.1:1", &caller, &["--bpffs", none]);
    let first = start();
    assert!(
        first.output().contains("losses of this agent after a crash will be unknown"),
        "{}",
        first.output()
    );
    assert!(first.output().contains("is not a BPF file system"), "{}", first.output());
    first.kill();
    let second = start();
    assert!(second.output().contains("are unknown"), "{}", second.output());
    let metrics = second.metrics();
    assert_eq!(value(&metrics, "blkkin_crashed_runs_total{losses=\"unknown\"}"), 1.0);
    assert!(!metrics.contains("crashed_run_records_lost"), "{metrics}");
    second.kill();
}
