//! A guest's agent that sends by a virtio-serial port, and the host's agent that receives it.
//!
//! *Input*: a stock kernel in QEMU with busybox, the static binary and no network; direct writes to its disk,
//! while the host's agent is there, is killed, and is back. Guests that are none: bytes, and records of the
//! host's own node. *Independent count*: the guest's own statistics of its disk (/sys/block/vda/stat).

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use blkkin_bus::kafka::Settings;
use blkkin_guest_port::Sender;
use blkkin_wire::batch::EventBatch;
use blkkin_wire::event::LayerEvent;
use blkkin_wire::ids::NodeId;
use blkkin_wire::v1;
use blkkin_wire::virtual_machine::VirtualMachineEvent;

use crate::broker::Broker;
use crate::spooling::topic::consume;
use crate::support::service::Service;
use crate::support::synthetic_batches::{batches, batches_of_start};
use crate::support::tools::{static_binary, tool};
use crate::support::vm::{self, Guest, GuestOptions};
use crate::support::{needs, or_skip};

/// Writes of each of the guest's two phases.
const WRITES: u64 = 300;
const UUID: &str = "11111111-2222-3333-4444-555555555555";
const MACHINE_ID: u128 = 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef;
const SOON: Duration = Duration::from_secs(60);

/// Script of the guest. It writes twice, the second time when the host sends a line.
const SCRIPT: &str = r#"
count() { read -r _ _ _ _ writes _ sectors _ < /sys/block/vda/stat; echo "guest: $1 $writes $sectors"; }
write() { dd if=/dev/zero of=/dev/vda bs=4096 count=COUNT oflag=direct 2> /dev/null; }
start_agent --device vda
count before
write
echo "guest: written once"
read -r _ <&3
write
echo "guest: written twice"
read -r _ <&3
count after
echo "guest: resident $(grep -E 'VmHWM|VmRSS' /proc/$agent/status | tr '\n' ' ')"
end_agent
poweroff -f
"#;

/// Starts an agent of the host that traces nothing of its own.
fn host_agent(folder: &Path, settings: &Settings, guests: &Path) -> Service {
    let own = std::process::id().to_string();
    let guests = guests.to_str().unwrap();
    let args =
        ["agent", "--brokers", &settings.brokers, "--guests", guests, "--pid", &own, "--syscall", "fsync"];
    Service::start(folder, "agent", &args)
}

#[test]
fn each_request_of_a_guest_arrives_though_the_hosts_agent_is_killed() {
    needs!("qemu-system-x86_64", "busybox", "strip");
    let (kernel, binary) = (or_skip!(vm::kernel()), or_skip!(static_binary()));
    let broker = or_skip!(Broker::start());
    let folder = tempfile::tempdir().unwrap();
    let guests = folder.path().join("guests");
    fs::create_dir(&guests).unwrap();
    let settings = broker.settings();
    let mut agent = host_agent(folder.path(), &settings, &guests);
    let disk = folder.path().join("disk.img");
    fs::File::create(&disk).unwrap().set_len(16 << 20).unwrap();
    let drive = format!("file={},if=virtio,format=raw,cache=unsafe", disk.display());
    let options = GuestOptions {
        name: "web",
        uuid: UUID,
        machine_id: MACHINE_ID,
        script: SCRIPT.replace("COUNT", &WRITES.to_string()),
        disks: vec!["-drive".to_owned(), drive],
        gets_socket: false,
        command: &tool,
    };
    let mut guest = Guest::start(folder.path(), &kernel, &binary, &guests.join("web.sock"), &options);
    let before = guest.wait_for("before");
    agent.wait_for_output("is connected: virtual machine `web`", SOON);
    guest.wait_for("written once");
    assert!(agent.kill());
    guest.go();
    guest.wait_for("written twice");
    agent.restart();
    guest.go();
    let after = guest.wait_for("after");
    assert_eq!(guest.wait_for("the agent ended with"), "0", "{}\n{}", guest.console(), agent.output());
    println!("the guest's agent: {}", guest.wait_for("resident"));
    agent.finish_without_error();

    let batches: Vec<EventBatch> =
        consume(&settings).into_iter().filter(|batch| batch.source.node == NodeId(MACHINE_ID)).collect();
    let lost: u64 = batches.last().map_or(u64::MAX, |batch| batch.stats.lost());
    assert_eq!(lost, 0, "{}", guest.console());
    // The host names the machine in each record with events.
    for batch in batches.iter().filter(|batch| !batch.events.is_empty()) {
        let last = batch.events.last().unwrap();
        let LayerEvent::VirtualMachine(machine) = last else { panic!("{last:?}") };
        assert!(machine.is_of_node() && &*machine.name == "web" && &*machine.uuid == UUID, "{machine:?}");
    }
    let (mut writes, mut sectors) = (0, 0);
    for event in batches.iter().flat_map(|batch| &batch.events) {
        let request = match event {
            LayerEvent::Request(request) => request,
            LayerEvent::Pair(pair) => &pair.request,
            _ => continue,
        };
        writes += 1;
        sectors += u64::from(request.bytes) / 512;
    }
    let numbers = |text: &str| text.split(' ').map(|word| word.parse::<u64>().unwrap()).collect::<Vec<_>>();
    let (before, after) = (numbers(&before), numbers(&after));
    assert_eq!([writes, sectors], [after[0] - before[0], after[1] - before[1]], "{}", guest.console());
    assert_eq!(writes, 2 * WRITES);
}

/// Connects as QEMU does: the guest is the end that accepts.
fn accept(listener: &UnixListener, agent: &Service) -> UnixStream {
    listener.set_nonblocking(true).unwrap();
    let start = Instant::now();
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).unwrap();
                stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
                return stream;
            }
            Err(error) => assert!(start.elapsed() < SOON, "{error}: {}", agent.output()),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Sends records as a guest's agent does, until all are acknowledged or the host hangs up; returns whether
/// they were.
fn send(stream: &mut UnixStream, records: &[Vec<u8>]) -> bool {
    let mut sender = Sender::new(64 << 20);
    for record in records {
        assert!(sender.add(record, 1));
    }
    let start = Instant::now();
    let mut bytes = [0; 4096];
    while sender.stats().waiting > 0 {
        assert!(start.elapsed() < SOON, "{:?}", sender.stats());
        match stream.read(&mut bytes) {
            Ok(0) => return false,
            Ok(count) => sender.receive(&bytes[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return false,
        }
        loop {
            let output = sender.output();
            if output.is_empty() {
                break;
            }
            match stream.write(output) {
                Ok(count) => sender.wrote(count),
                Err(_) => return false,
            }
        }
    }
    true
}

#[test]
fn a_guest_cannot_write_into_other_traces() {
    needs!();
    let broker = or_skip!(Broker::start());
    let folder = tempfile::tempdir().unwrap();
    let guests = folder.path().join("guests");
    fs::create_dir(&guests).unwrap();
    let [good, other] =
        ["good.sock", "other.sock"].map(|name| UnixListener::bind(guests.join(name)).unwrap());
    let settings = broker.settings();
    let agent = host_agent(folder.path(), &settings, &guests);
    let encoded = |node, calls| batches(node, calls).iter().map(v1::encode).collect::<Vec<_>>();

    // A guest's records are taken, also behind bytes that are no frame.
    let mut stream = accept(&good, &agent);
    stream.write_all(&[b'B'; 5_000]).unwrap();
    assert!(send(&mut stream, &encoded(7, 40)), "{}", agent.output());

    // Another guest may send nothing of its node, of the host's, nothing that is no record, and not the name of a
    // virtual machine as its own.
    let mut named = batches(9, 1);
    let time = named[0].events[0].time();
    let own_name = VirtualMachineEvent::bare(time, VirtualMachineEvent::NODE, "web", "");
    named[0].events.push(LayerEvent::VirtualMachine(own_name.into()));
    let own = u128::from_str_radix(fs::read_to_string("/etc/machine-id").unwrap().trim(), 16).unwrap();
    for (records, why) in [
        (encoded(7, 1), "machine id of the guest of"),
        (encoded(own, 1), "machine id of this host"),
        (vec![vec![0xff; 100]], "a record is damaged"),
        (named.iter().map(v1::encode).collect(), "names its own virtual machine"),
    ] {
        let mut stream = accept(&other, &agent);
        assert!(!send(&mut stream, &records), "{why}");
        agent.wait_for_output(why, SOON);
    }
    // With a node of its own its records are taken.
    let mut stream = accept(&other, &agent);
    assert!(send(&mut stream, &encoded(8, 10)), "{}", agent.output());
    // Its agent is started again: it knows nothing of the stream, and the port shows the host nothing of it.
    let restarted = batches_of_start(8, 1, 20);
    assert!(send(&mut stream, &restarted.iter().map(v1::encode).collect::<Vec<_>>()), "{}", agent.output());
    agent.finish_without_error();
    let forged = batches(own, 1)[0].source.epoch;
    let mut events = [0; 2];
    for batch in consume(&settings) {
        match batch.source.node.0 {
            7 => events[0] += batch.events.len(),
            8 => events[1] += batch.events.len(),
            node => assert!(node == own && batch.source.epoch != forged, "{batch:?}"),
        }
    }
    let expected = |batches: &[EventBatch]| batches.iter().map(|batch| batch.events.len()).sum::<usize>();
    assert_eq!(events, [expected(&batches(7, 40)), expected(&batches(8, 10)) + expected(&restarted)]);
}
