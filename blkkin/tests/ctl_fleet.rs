//! `blkkin ctl --brokers`: what agents record follows a topic.
//!
//! *Input*: direct reads of a loop device, in phases, as in `ctl.rs`; records of a real broker. *Independent count*: the
//! test's own number of reads.

use std::time::{Duration, Instant};

use blkkin_bus::kafka::{CONTROL, EVENTS, SingleProducer};

use crate::broker::Broker;
use crate::common::{self, Run};
use crate::ctl::{Controlled, READS, reads_of};
use crate::spooling::topic::consume;
use crate::support::disk::Disk;
use crate::support::metrics;
use crate::support::{needs, or_skip};

#[test]
fn an_agent_follows_the_last_record_for_its_node() {
    needs!("losetup");
    let disk = or_skip!(Disk::raw(1 << 20));
    let broker = or_skip!(Broker::start());
    let settings = broker.settings();
    let brokers = settings.brokers.as_str();
    let fleet = |args: &[&str]| -> Run { common::run(&[&["ctl", "--brokers", brokers], args].concat()) };
    let missing = fleet(&[]);
    missing.assert_refused(1, "the topic blkkin.control cannot be used", "create it");

    // What the topic has before the agent starts: a record for all, one for others, and two that are none.
    let sent = fleet(&["--sample", "1/16"]).expect_code(0).stdout;
    assert!(sent.starts_with("*: --sample 1/16 (20"), "{sent}");
    fleet(&["--nodes", "no-such-host-*", "off"]).expect_code(0);
    let producer = SingleProducer::new(&settings, CONTROL).unwrap();
    for (key, payload) in [(&b"\xff"[..], &b"{"[..]), (b"lasting *x", b"{\"nodes\":\"*x\",\"filter\":1}")] {
        producer.send(key, &[], Some(payload)).unwrap();
    }
    let start = |disk| {
        let options = ["--brokers", brokers, "--ctl-topic"];
        Controlled::start_in(tempfile::tempdir().unwrap(), disk, &options)
    };
    let agent = start(disk);
    let state = agent.wait_for_state("now       one operation in 16\nat start  each operation\n");
    assert!(state.contains("\nfleet     *: --sample 1/16 (20") && !state.contains("no-such"), "{state}");
    agent.read(0);

    // For this node and a time.
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let host = host.trim();
    let begun = Instant::now();
    fleet(&["--nodes", host, "--sample", "1/1", "--for", "12s"]).expect_code(0);
    agent.wait_for_state("now       each operation\nthen      in ");
    agent.read(1);
    assert!(begun.elapsed() < Duration::from_secs(12), "the machine is too slow for this test");
    let state = agent.wait_for_state("now       one operation in 16\n");
    assert_eq!(state.matches("\nfleet ").count(), 1, "{state}");

    // The last change applies, of this node or of the fleet; reset returns to that of the fleet.
    agent.change(&["off"]);
    agent.read(2);
    fleet(&["--sample", "1/1"]).expect_code(0);
    agent.wait_for_state("now       each operation\nfleet     *: --sample 1/1 (");
    agent.read(3);
    // The agent has no budget to change: the record counts as none.
    fleet(&["--nodes", host, "--budget", "1%"]).expect_code(0);
    // A later lasting record ends one that is for a time.
    fleet(&["--sample", "1/8", "--for", "1h"]).expect_code(0);
    agent.wait_for_state("now       one operation in 8\nthen      in ");
    fleet(&["off"]).expect_code(0);
    agent.wait_for_state("now       no operation is recorded\n");
    agent.change(&["--sample", "1/2", "on"]);
    assert!(agent.change(&["reset"]).starts_with("now       no operation is recorded\n"));
    agent.read(4);
    let address = metrics::address(&agent.agent.output()).to_owned();
    let value = |name: &str| metrics::value(&metrics::get(&address, "/metrics"), name);
    assert_eq!((value("blkkin_ctl_refused_total"), value("blkkin_ctl_topic_offset")), (3.0, 9.0));
    let (output, disk) = agent.stop();
    assert!(output.contains("of the fleet: *: --sample 1/16 (20"), "{output}");
    assert!(output.contains("refused record 2 of blkkin.control: its key is no text"), "{output}");

    // A restart does the same, also within the time of a record; without records the options of the start apply.
    let agent = start(disk);
    agent.wait_for_state("now       no operation is recorded\n");
    fleet(&["--nodes", host, "--sample", "1/4", "--for", "1h"]).expect_code(0);
    let (_, disk) = agent.stop();
    let agent = start(disk);
    agent.wait_for_state("now       one operation in 4\nthen      in ");
    fleet(&["--nodes", host, "reset"]).expect_code(0);
    agent.wait_for_state("now       no operation is recorded\n");
    assert_eq!(fleet(&["reset"]).expect_code(0).stdout.matches("no-such-host-*: off").count(), 1);
    let state = agent.wait_for_state("now       each operation\n");
    assert!(!state.contains("\nfleet"), "{state}");
    agent.read(5);
    agent.stop();

    let batches = consume(&settings);
    let recorded: Vec<usize> = (0..6).map(|phase| reads_of(&batches, phase).len()).collect();
    println!("{recorded:?} of {READS} reads in each phase\n{output}");
    let all = READS as usize;
    assert_eq!([recorded[1], recorded[3], recorded[5]], [all; 3], "{recorded:?}");
    assert_eq!([recorded[2], recorded[4]], [0; 2], "{recorded:?}");
    // One in 16 of 1,000: 62.5, and six standard deviations are 46.
    assert!((17..=108).contains(&recorded[0]), "{recorded:?}");

    let partitions = fleet(&["--topic", EVENTS, "off"]);
    partitions.assert_refused(1, "the topic blkkin.events has 12 partitions", "another topic");
    fleet(&["--sample", "1/3"]).assert_refused(2, "invalid value `1/3` for --sample", "--sample 1/2 or");
    fleet(&["--nodes", "a b", "off"]).assert_refused(2, "bad pattern `a b` for --nodes", "--nodes 'db-*'");
}
