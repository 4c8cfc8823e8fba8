//! Faulty clients: invalid requests, wrong lengths, stalls and early disconnects. The server
//! continues, sends nothing outside its file, changes nothing without a valid request, and frees
//! the resources of each client.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and prints what it measured"
)]

mod support;

use std::fs;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use support::client::{self, *};
use support::{MODES, RunningServer, eventually, fill, pattern};

const SIZE: u64 = 1 << 20;
const PERM: u32 = 1;
const INVAL: u32 = 22;
const NOSPC: u32 = 28;
const OVERFLOW: u32 = 75;

/// Asserts that the file is unchanged and that the server replies to a correct client.
fn assert_unharmed(server: &RunningServer) {
    assert_eq!(fs::read(&server.file).unwrap(), pattern(0, SIZE as usize));
    let mut client = Client::ready(&server.socket(), true);
    assert_eq!(client.round_trip(READ, 0, 4_096, 512).data, pattern(4_096, 512));
}

fn start_filled(mode: &[&str]) -> RunningServer {
    let server = RunningServer::start(mode, SIZE, &[]);
    fill(&server.file, 0, SIZE as usize);
    server
}

#[test]
fn invalid_requests_are_refused_and_the_next_one_is_served() {
    for mode in MODES {
        let server = start_filled(mode);
        for structured in [false, true] {
            let mut client = Client::ready(&server.socket(), structured);
            let ends = [(SIZE, 1), (SIZE - 1, 2), (u64::MAX, 1), (u64::MAX - 511, 512), (1 << 63, u32::MAX)];
            for (offset, length) in ends {
                for (command, error) in [
                    (READ, INVAL),
                    (TRIM, INVAL),
                    (CACHE, INVAL),
                    (WRITE_ZEROES, NOSPC),
                    (BLOCK_STATUS, INVAL),
                ] {
                    assert_eq!(
                        client.round_trip(command, 0, offset, length).error,
                        error,
                        "{command} {offset} {length}"
                    );
                }
            }
            // A write beyond the end is followed by its data too.
            client.request(WRITE, 0, 7, SIZE - 1, 5_000);
            client.send(&[0xee; 5_000]);
            assert_eq!(client.reply(0).error, NOSPC);
            for command in [READ, TRIM, CACHE, WRITE_ZEROES, BLOCK_STATUS, WRITE] {
                assert_eq!(client.round_trip(command, 0, 0, 0).error, INVAL, "{command}");
            }
            for (command, flags) in [(READ, 2), (READ, 1 << 15), (FLUSH, 4), (TRIM, 2), (9, 0), (u16::MAX, 0)]
            {
                assert_eq!(client.round_trip(command, flags, 0, 0).error, INVAL, "{command} {flags}");
            }
            assert_eq!(client.round_trip(FLUSH, 0, 1, 0).error, INVAL);
            assert_eq!(client.round_trip(BLOCK_STATUS, 0, 0, 512).error, if structured { 0 } else { INVAL });
            let whole = client.round_trip(READ, if structured { 1 << 2 } else { 0 }, 0, SIZE as u32);
            assert_eq!((whole.error, whole.data), (0, pattern(0, SIZE as usize)));
            if structured {
                assert_eq!(client.round_trip(READ, 1 << 2, 0, u32::MAX).error, INVAL);
            }
        }
        assert_unharmed(&server);
        server.stop();
    }
}

#[test]
fn data_above_the_maximum_payload_is_refused_inside_the_file_too() {
    const LARGE: u64 = 1 << 30;
    for mode in MODES {
        let server = RunningServer::start(mode, LARGE, &[]);
        let mut client = Client::ready(&server.socket(), true);
        assert_eq!(client.round_trip(READ, 0, 0, (32 << 20) + 1).error, INVAL);
        assert_eq!(client.round_trip(READ, 1 << 2, 0, (32 << 20) + 1).error, OVERFLOW);
        assert_eq!(client.round_trip(READ, 0, 0, 32 << 20).data.len(), 32 << 20);
        // A request without data may be as long as the file.
        assert_eq!(client.round_trip(WRITE_ZEROES, 0, 0, LARGE as u32).error, 0);
        assert_eq!(client.round_trip(TRIM, 0, 0, LARGE as u32).error, 0);
        server.stop();
    }
}

#[test]
fn a_read_only_export_refuses_writes() {
    for mode in MODES {
        let server = RunningServer::start(mode, SIZE, &["--read-only"]);
        fill(&server.file, 0, SIZE as usize);
        let mut client = Client::ready(&server.socket(), true);
        client.request(WRITE, 0, 1, 0, 512);
        client.send(&[1; 512]);
        assert_eq!(client.reply(0).error, PERM);
        for command in [TRIM, WRITE_ZEROES] {
            assert_eq!(client.round_trip(command, 0, 0, 4_096).error, PERM);
        }
        assert_eq!(client.round_trip(FLUSH, 0, 0, 0).error, 0);
        assert_unharmed(&server);
        server.stop();
    }
}

#[test]
fn a_protocol_violation_closes_the_connection_after_earlier_requests_are_answered() {
    for mode in MODES {
        let server = start_filled(mode);
        let mut violations: Vec<Vec<u8>> = vec![
            vec![0; 28],
            vec![0xff; 4_096],
            client::request(WRITE, 0, 1, 0, u32::MAX),
            client::request(WRITE, 0, 1, 0, (32 << 20) + 1),
            client::request(DISCONNECT, 0, 1, 0, 0),
        ];
        violations[0][0] = 0x25;
        for bytes in &violations {
            let mut client = Client::ready(&server.socket(), false);
            client.request(READ, 0, 42, 8, 64);
            client.send(bytes);
            assert_eq!(client.reply(64).data, pattern(8, 64));
            assert!(client.is_closed(), "{:x?}", &bytes[..28]);
        }
        // Violations during the handshake.
        let option = |magic: &[u8; 8], option: u32, length: u32| {
            [&magic[..], &option.to_be_bytes(), &length.to_be_bytes()].concat()
        };
        for bytes in [
            option(b"IHAVEOPT", 1, u32::MAX),
            option(b"IHAVEOPT", 7, u32::MAX),
            option(b"IHAVEOPS", 7, 0),
            option(b"IHAVEOPT", 3, 0).repeat(10_000),
        ] {
            let mut client = Client::connect(&server.socket());
            client.send(&bytes);
            eventually("the server closes the connection", || {
                matches!(client.stream.read(&mut [0; 1 << 16]), Ok(0) | Err(_))
            });
        }
        let mut stream = UnixStream::connect(server.socket()).unwrap();
        stream.write_all(&[0xff; 4]).unwrap();
        let mut greeting = Vec::new();
        let _ = stream.read_to_end(&mut greeting);
        assert_eq!(greeting.len(), 18);
        assert_unharmed(&server);
        server.stop();
    }
}

#[test]
fn a_disconnect_at_any_byte_leaks_nothing() {
    for mode in MODES {
        let server = start_filled(mode);
        // Kernel workers of a ring count as threads of the process. They end after 5 s without
        // work.
        let resources = || (server.descriptors(), server.status("Threads:"));
        let before = resources();
        let write = [client::request(WRITE, 0, 1, 0, 100_000), vec![0xee; 60_000]].concat();
        for cut in [1, 27, 28, 29, 5_000, write.len()] {
            let mut client = Client::ready(&server.socket(), true);
            client.send(&write[..cut]);
            drop(client);
        }
        for cut in 0..20 {
            let mut client = Client::connect(&server.socket());
            client.send(&b"IHAVEOPT\0\0\0\x07\0\0\0\x06"[..cut.min(16)]);
            drop(client);
            drop(UnixStream::connect(server.socket()).unwrap());
        }
        // Disconnects with replies in flight.
        for _ in 0..20 {
            let mut client = Client::ready(&server.socket(), false);
            (0..64).for_each(|cookie| client.request(READ, 0, cookie, 0, SIZE as u32));
            drop(client);
        }
        eventually("the server frees descriptors and threads", || resources() == before);
        assert_unharmed(&server);
        server.stop();
    }
}

#[test]
fn a_client_that_never_reads_uses_its_byte_budget_at_most() {
    const CLIENTS: u64 = 4;
    for mode in MODES {
        let server = start_filled(mode);
        let before = server.status("VmRSS:");
        let stalled: Vec<Client> = (0..CLIENTS)
            .map(|_| {
                let mut client = Client::ready(&server.socket(), false);
                client.stream.set_nonblocking(true).unwrap();
                // The replies to all of these requests have 1 GiB.
                let requests: Vec<u8> =
                    (0..1024).flat_map(|n| client::request(READ, 0, n, 0, SIZE as u32)).collect();
                assert!(client.stream.write(&requests).is_ok());
                client
            })
            .collect();
        // Meanwhile every thread serves other clients.
        for _ in 0..8 {
            assert_unharmed(&server);
        }
        let used = server.status("VmRSS:") - before;
        println!("{mode:?}: {used} KiB are used for {CLIENTS} clients");
        assert!(used < CLIENTS * (96 << 10), "{used} KiB");
        // A client that reads later gets every reply.
        let mut patient = stalled.into_iter().next().unwrap();
        patient.stream.set_nonblocking(false).unwrap();
        for _ in 0..200 {
            let reply = patient.reply(SIZE as u32);
            assert_eq!((reply.error, reply.data.len()), (0, SIZE as usize));
        }
        drop(patient);
        assert_unharmed(&server);
        server.stop();
    }
}

#[test]
fn requests_in_flight_complete_before_the_server_stops() {
    for mode in MODES {
        let mut server = start_filled(mode);
        let mut client = Client::ready(&server.socket(), false);
        (0..100).for_each(|cookie| client.request(READ, 0, cookie, cookie * 512, 512));
        // The requests were sent as one write, so the first reply shows that all have arrived.
        let mut cookies = vec![client.reply(512).cookie];
        server.terminate();
        while let Ok(reply) = client.try_reply(512) {
            assert_eq!((reply.error, &reply.data), (0, &pattern(reply.cookie * 512, 512)));
            cookies.push(reply.cookie);
        }
        assert!(server.wait());
        assert!(!server.socket().exists());
        cookies.sort_unstable();
        cookies.dedup();
        println!("{mode:?}: {} of 100 were answered", cookies.len());
    }
}

/// Requests of a faulty program: almost valid, in any order, of any length, cut anywhere.
fn sequences() -> impl Strategy<Value = Vec<u8>> {
    let offset = prop_oneof![0..SIZE, SIZE - 8_192..SIZE + 8_192, any::<u64>()];
    let length = prop_oneof![0..16_384_u32, any::<u32>()];
    let flags = prop_oneof![Just(0_u16), 0..32_u16, any::<u16>()];
    // This server is read-only, so it refuses the writes among them and its file stays unchanged.
    let one = (0..10_u16, flags, any::<u64>(), offset, length, prop::collection::vec(any::<u8>(), 0..64));
    prop::collection::vec(one, 1..12).prop_map(|all| {
        let bytes = all.into_iter().map(|(command, flags, cookie, offset, length, rest)| {
            let rest = if command == WRITE { vec![0xee; length.min(20_000) as usize] } else { rest };
            [
                client::request(command, flags, cookie, offset, length),
                if rest.len() > 60 { rest } else { vec![] },
            ]
            .concat()
        });
        bytes.collect::<Vec<_>>().concat()
    })
}

#[test]
fn the_server_survives_any_sequence_of_requests() {
    for mode in MODES {
        let server = RunningServer::start(mode, SIZE, &["--read-only"]);
        fill(&server.file, 0, SIZE as usize);
        let mut runner =
            TestRunner::new(Config { cases: 200, failure_persistence: None, ..Config::default() });
        let outcome = runner.run(&(sequences(), any::<bool>()), |(bytes, structured)| {
            let mut client = Client::ready(&server.socket(), structured);
            client.send(&bytes);
            let _ = client.stream.shutdown(Shutdown::Write);
            // Reads until the server closes the connection. The content is not checked.
            let mut buffer = [0; 1 << 16];
            while client.stream.read(&mut buffer).is_ok_and(|length| length > 0) {}
            Ok(())
        });
        outcome.unwrap();
        assert_unharmed(&server);
        server.stop();
    }
}
