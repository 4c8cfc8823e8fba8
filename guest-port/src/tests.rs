use proptest::collection::vec;
use proptest::prelude::*;

use crate::frame::{Decoder, Frame, HEADER, Kind, PAYLOAD_MAX, encode};
use crate::{GuestTime, Pong, Receiver, Sender};

fn record(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(1 + number as usize % 50)
}

/// Step on the link.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// The guest adds a record.
    Add,
    /// Up to N bytes pass from the guest to the host.
    Up(usize),
    /// Up to N bytes pass from the host to the guest.
    Down(usize),
    /// The host acknowledges the oldest record that it has.
    Acknowledge,
    /// The guest's driver reports that the host's end is away, late or without reason.
    Blip,
    /// The host asks again.
    Resume,
    /// The host's end is replaced. The port loses what it holds, and may notice it.
    Replace { is_noticed: bool },
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => Just(Act::Add),
        6 => (1..2_000_usize).prop_map(Act::Up),
        4 => (1..100_usize).prop_map(Act::Down),
        4 => Just(Act::Acknowledge),
        1 => Just(Act::Blip),
        1 => Just(Act::Resume),
        1 => any::<bool>().prop_map(|is_noticed| Act::Replace { is_noticed }),
    ]
}

/// A guest, a host and the port between them.
struct Link {
    sender: Sender,
    receiver: Receiver,
    connections: u64,
    up: Vec<u8>,
    down: Vec<u8>,
    added: u64,
    /// Records that the host has, in the order of their arrival.
    received: Vec<u64>,
    /// Numbers of this connection that are not acknowledged.
    unacknowledged: Vec<u64>,
    /// Records that were acknowledged once.
    safe: u64,
}

impl Link {
    fn new(bytes_max: usize) -> Link {
        Link {
            sender: Sender::new(bytes_max),
            receiver: Receiver::new(0),
            connections: 0,
            up: Vec::new(),
            down: Vec::new(),
            added: 0,
            received: Vec::new(),
            unacknowledged: Vec::new(),
            safe: 0,
        }
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Add => self.added += u64::from(self.sender.add(&record(self.added), 1)),
            Act::Up(bytes) => {
                let output = self.sender.output();
                let written = output.len().min(bytes);
                self.up.extend(&output[..written]);
                self.sender.wrote(written);
                let passing = self.up.drain(..self.up.len().min(bytes)).collect::<Vec<_>>();
                let (received, unacknowledged) = (&mut self.received, &mut self.unacknowledged);
                self.receiver.receive(&passing, |one| {
                    assert_eq!(one.bytes, record(one.number));
                    received.push(one.number);
                    unacknowledged.push(one.number);
                });
            }
            Act::Down(bytes) => {
                self.down.extend(self.receiver.take_output());
                let passing = self.down.drain(..self.down.len().min(bytes)).collect::<Vec<_>>();
                self.sender.receive(&passing);
            }
            Act::Acknowledge if !self.unacknowledged.is_empty() => {
                let number = self.unacknowledged.remove(0);
                self.receiver.acknowledge(number);
                self.safe = self.safe.max(number + 1);
            }
            Act::Acknowledge => {}
            Act::Blip => self.sender.host_left(),
            Act::Resume => {
                self.unacknowledged.clear();
                self.receiver.resume();
            }
            Act::Replace { is_noticed } => {
                (self.up, self.down) = (Vec::new(), Vec::new());
                self.unacknowledged.clear();
                self.connections += 1_000;
                self.receiver = Receiver::new(self.connections);
                if is_noticed {
                    self.sender.host_left();
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever happens on the way, at the end the host has each record, and each first arrival is in order.
    #[test]
    fn each_record_arrives(acts in vec(act(), 0..300), bytes_max in 1..4_000_usize) {
        let mut link = Link::new(bytes_max);
        acts.into_iter().for_each(|act| link.act(act));
        // What was acknowledged had arrived, all of it.
        for number in 0..link.safe {
            prop_assert!(link.received.contains(&number));
        }
        // A silent guest is asked again, once all that it sent has been acknowledged.
        for _ in 0..2_000 {
            let is_silent = link.up.is_empty() && link.sender.output().is_empty();
            if is_silent && link.unacknowledged.is_empty() {
                if link.sender.stats().waiting == 0 {
                    break;
                }
                link.act(Act::Resume);
            }
            [Act::Down(1_000), Act::Up(100_000), Act::Acknowledge].into_iter().for_each(|act| link.act(act));
        }
        let mut first_arrivals = Vec::new();
        for number in &link.received {
            if !first_arrivals.contains(number) {
                first_arrivals.push(*number);
            }
        }
        prop_assert_eq!(first_arrivals, (0..link.added).collect::<Vec<_>>());
        let stats = link.sender.stats();
        prop_assert_eq!((stats.acknowledged, stats.waiting), (link.added, 0));
        prop_assert_eq!(link.receiver.stats().missing, 0);
    }

    #[test]
    fn damage_costs_only_the_frames_that_it_touches(
        lengths in vec(0..300_usize, 2..6), damaged: prop::sample::Index, value: u8
    ) {
        let mut stream = Vec::new();
        let mut frames = Vec::new();
        for (number, length) in lengths.iter().enumerate() {
            let (start, payload) = (stream.len(), vec![number as u8; *length]);
            encode(Frame { kind: Kind::Record, number: number as u64, payload: &payload }, &mut stream);
            frames.push(start..stream.len());
        }
        let at = damaged.index(stream.len());
        let changed = stream[at] != value;
        stream[at] = value;
        let mut decoder = Decoder::default();
        // A length that was damaged makes no frame, so nothing waits for more.
        decoder.add(&stream);
        let mut found = Vec::new();
        while let Some(frame) = decoder.next_frame() {
            found.push(frame.number as usize);
        }
        let intact = (0..frames.len()).filter(|number| !changed || !frames[*number].contains(&at));
        prop_assert_eq!(found, intact.collect::<Vec<_>>());
    }

    #[test]
    fn arbitrary_bytes_are_skipped_and_counted(pieces in vec(vec(any::<u8>(), 0..200), 0..8)) {
        let mut receiver = Receiver::new(0);
        pieces.iter().for_each(|piece| receiver.receive(piece, |_| panic!("a frame by chance")));
        let bytes: usize = pieces.iter().map(Vec::len).sum();
        prop_assert!(receiver.stats().skipped_bytes <= bytes as u64);
        let mut sender = Sender::new(100);
        pieces.iter().for_each(|piece| sender.receive(piece));
        prop_assert!(!sender.has_host());
    }
}

#[test]
fn another_process_of_the_host_is_noticed_once_if_a_former_one_acknowledged_records() {
    let mut sender = Sender::new(1_000);
    let ask = |sender: &mut Sender, receiver: &mut Receiver| {
        sender.receive(&receiver.take_output());
        sender.take_new_host()
    };
    let mut first = Receiver::new(7);
    assert!(!ask(&mut sender, &mut first), "nothing was acknowledged before");
    assert!(sender.add(b"record", 1));
    for _ in 0..4 {
        let output = sender.output().to_vec();
        sender.wrote(output.len());
        first.receive(&output, drop);
    }
    first.acknowledge(0);
    assert!(!ask(&mut sender, &mut first));
    first.resume();
    assert!(!ask(&mut sender, &mut first), "it asks again");
    let mut second = Receiver::new(7 << 40);
    assert!(ask(&mut sender, &mut second));
    second.resume();
    assert!(!ask(&mut sender, &mut second));
}

#[test]
fn a_sender_without_room_refuses_records() {
    let mut sender = Sender::new(100);
    assert!(!sender.add(&vec![0; PAYLOAD_MAX + 1], 1), "longer than a frame");
    assert!(sender.add(&[0; 300], 3), "the first always fits");
    assert!(!sender.add(&[0; 1], 1));
    assert_eq!(sender.output(), [0; 0], "the host's end is away");
    let mut receiver = Receiver::new(0);
    sender.receive(&receiver.take_output());
    // The host cannot acknowledge what was not sent.
    receiver.acknowledge(7);
    sender.receive(&receiver.take_output());
    assert_eq!((sender.stats().acknowledged, sender.stats().waiting), (0, 3));
    for length in [HEADER, HEADER + 300] {
        assert_eq!(sender.output().len(), length, "the answer, then the record");
        sender.wrote(length);
    }
    receiver.acknowledge(0);
    sender.receive(&receiver.take_output());
    assert_eq!((sender.stats().acknowledged, sender.stats().waiting), (3, 0));
    assert!(sender.add(&[0; 100], 1));
}

#[test]
fn numbers_that_a_guest_skips_are_counted() {
    let mut receiver = Receiver::new(0);
    let (mut stream, mut numbers) = (Vec::new(), Vec::new());
    // Before the answer to the request.
    encode(Frame { kind: Kind::Record, number: 1, payload: b"x" }, &mut stream);
    encode(Frame { kind: Kind::Resumed, number: 1, payload: &[] }, &mut stream);
    for number in [5, 6, 6, 9, u64::MAX, u64::MAX, 3] {
        encode(Frame { kind: Kind::Record, number, payload: b"x" }, &mut stream);
    }
    receiver.receive(&stream, |one| numbers.push(one.number));
    assert_eq!(numbers, [5, 6, 9, u64::MAX]);
    let stats = receiver.stats();
    assert_eq!((stats.records, stats.repeated, stats.missing), (4, 1, 2 + (u64::MAX - 10)));
    receiver.acknowledge(u64::MAX);
}

#[test]
fn an_answer_to_a_ping_has_its_number_and_passes_before_records() {
    let (mut sender, mut receiver) = (Sender::new(1 << 20), Receiver::new(7));
    sender.receive(&receiver.take_output());
    (0..3).for_each(|number| assert!(sender.add(&record(number), 1)));
    receiver.ping(41);
    receiver.ping(42);
    assert!(!sender.has_ping());
    sender.receive(&receiver.take_output());
    assert!(sender.has_ping());
    let guest = GuestTime { boot: 1 << 100, time: 5_000_000_001 };
    sender.answer_ping(guest);
    assert!(!sender.has_ping());
    let mut records = 0;
    // The answer to the resume request, the pong, three records.
    for frame in 0..5 {
        let output = sender.output().to_vec();
        sender.wrote(output.len());
        receiver.receive(&output, |_| records += 1);
        let expected = (frame == 1).then_some(Pong { number: 42, guest });
        assert_eq!(receiver.take_pong(), expected, "frame {frame}");
    }
    assert_eq!(records, 3);
}
