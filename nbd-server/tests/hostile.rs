//! Clients that err, lie, stall and leave: the server goes on, tells nobody more than is in its file, changes nothing that it
//! was not properly asked to, and keeps nothing of them.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

mod support;

use std::fs;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use support::client::{self, *};
use support::{MODES, Running, eventually, fill, pattern};

const SIZE: u64 = 1 << 20;
const PERM: u32 = 1;
const INVAL: u32 = 22;
const NOSPC: u32 = 28;
const OVERFLOW: u32 = 75;

/// The file is what it was, and a client that behaves is served.
fn is_unharmed(server: &Running) {
    assert_eq!(fs::read(&server.file).unwrap(), pattern(0, SIZE as usize));
    let mut client = Client::ready(&server.socket(), true);
    assert_eq!(client.ask(READ, 0, 4_096, 512).data, pattern(4_096, 512));
}

fn filled(mode: &[&str]) -> Running {
    let server = Running::start(mode, SIZE, &[]);
    fill(&server.file, 0, SIZE as usize);
    server
}

#[test]
fn what_may_not_be_done_is_refused_and_the_next_request_is_served() {
    for mode in MODES {
        let server = filled(mode);
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
                        client.ask(command, 0, offset, length).error,
                        error,
                        "{command} {offset} {length}"
                    );
                }
            }
            // A write beyond the end carries its data all the same.
            client.request(WRITE, 0, 7, SIZE - 1, 5_000);
            client.say(&[0xee; 5_000]);
            assert_eq!(client.reply(0).error, NOSPC);
            for command in [READ, TRIM, CACHE, WRITE_ZEROES, BLOCK_STATUS, WRITE] {
                assert_eq!(client.ask(command, 0, 0, 0).error, INVAL, "{command}");
            }
            for (command, flags) in [(READ, 2), (READ, 1 << 15), (FLUSH, 4), (TRIM, 2), (9, 0), (u16::MAX, 0)]
            {
                assert_eq!(client.ask(command, flags, 0, 0).error, INVAL, "{command} {flags}");
            }
            assert_eq!(client.ask(FLUSH, 0, 1, 0).error, INVAL);
            assert_eq!(client.ask(BLOCK_STATUS, 0, 0, 512).error, if structured { 0 } else { INVAL });
            let whole = client.ask(READ, if structured { 1 << 2 } else { 0 }, 0, SIZE as u32);
            assert_eq!((whole.error, whole.data), (0, pattern(0, SIZE as usize)));
            if structured {
                assert_eq!(client.ask(READ, 1 << 2, 0, u32::MAX).error, INVAL);
            }
        }
        is_unharmed(&server);
        server.stop();
    }
}

#[test]
fn more_than_a_payload_is_refused_even_where_the_file_has_it() {
    const LARGE: u64 = 1 << 30;
    for mode in MODES {
        let server = Running::start(mode, LARGE, &[]);
        let mut client = Client::ready(&server.socket(), true);
        assert_eq!(client.ask(READ, 0, 0, (32 << 20) + 1).error, INVAL);
        assert_eq!(client.ask(READ, 1 << 2, 0, (32 << 20) + 1).error, OVERFLOW);
        assert_eq!(client.ask(READ, 0, 0, 32 << 20).data.len(), 32 << 20);
        // Without data, a request may be as long as the file.
        assert_eq!(client.ask(WRITE_ZEROES, 0, 0, LARGE as u32).error, 0);
        assert_eq!(client.ask(TRIM, 0, 0, LARGE as u32).error, 0);
        server.stop();
    }
}

#[test]
fn nothing_is_written_where_only_reading_is_offered() {
    for mode in MODES {
        let server = Running::start(mode, SIZE, &["--read-only"]);
        fill(&server.file, 0, SIZE as usize);
        let mut client = Client::ready(&server.socket(), true);
        client.request(WRITE, 0, 1, 0, 512);
        client.say(&[1; 512]);
        assert_eq!(client.reply(0).error, PERM);
        for command in [TRIM, WRITE_ZEROES] {
            assert_eq!(client.ask(command, 0, 0, 4_096).error, PERM);
        }
        assert_eq!(client.ask(FLUSH, 0, 0, 0).error, 0);
        is_unharmed(&server);
        server.stop();
    }
}

#[test]
fn who_makes_no_sense_is_hung_up_on_and_what_it_asked_before_is_answered() {
    for mode in MODES {
        let server = filled(mode);
        let mut nonsense: Vec<Vec<u8>> = vec![
            vec![0; 28],
            vec![0xff; 4_096],
            client::request(WRITE, 0, 1, 0, u32::MAX),
            client::request(WRITE, 0, 1, 0, (32 << 20) + 1),
            client::request(DISCONNECT, 0, 1, 0, 0),
        ];
        nonsense[0][0] = 0x25;
        for words in &nonsense {
            let mut client = Client::ready(&server.socket(), false);
            client.request(READ, 0, 42, 8, 64);
            client.say(words);
            assert_eq!(client.reply(64).data, pattern(8, 64));
            assert!(client.is_hung_up(), "{:x?}", &words[..28]);
        }
        // In the handshake.
        let option = |magic: &[u8; 8], option: u32, length: u32| {
            [&magic[..], &option.to_be_bytes(), &length.to_be_bytes()].concat()
        };
        for words in [
            option(b"IHAVEOPT", 1, u32::MAX),
            option(b"IHAVEOPT", 7, u32::MAX),
            option(b"IHAVEOPS", 7, 0),
            option(b"IHAVEOPT", 3, 0).repeat(10_000),
        ] {
            let mut client = Client::greeted(&server.socket());
            client.say(&words);
            eventually("it is hung up on", || {
                matches!(client.stream.read(&mut [0; 1 << 16]), Ok(0) | Err(_))
            });
        }
        let mut stream = UnixStream::connect(server.socket()).unwrap();
        stream.write_all(&[0xff; 4]).unwrap();
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said);
        assert_eq!(said.len(), 18);
        is_unharmed(&server);
        server.stop();
    }
}

#[test]
fn who_leaves_in_the_middle_leaves_nothing_behind() {
    for mode in MODES {
        let server = filled(mode);
        // A ring's workers in the kernel are threads of it too, and end after 5 s without work.
        let ours = || (server.descriptors(), server.status("Threads:"));
        let before = ours();
        let write = [client::request(WRITE, 0, 1, 0, 100_000), vec![0xee; 60_000]].concat();
        for cut in [1, 27, 28, 29, 5_000, write.len()] {
            let mut client = Client::ready(&server.socket(), true);
            client.say(&write[..cut]);
            drop(client);
        }
        for cut in 0..20 {
            let mut client = Client::greeted(&server.socket());
            client.say(&b"IHAVEOPT\0\0\0\x07\0\0\0\x06"[..cut.min(16)]);
            drop(client);
            drop(UnixStream::connect(server.socket()).unwrap());
        }
        // With replies on their way.
        for _ in 0..20 {
            let mut client = Client::ready(&server.socket(), false);
            (0..64).for_each(|cookie| client.request(READ, 0, cookie, 0, SIZE as u32));
            drop(client);
        }
        eventually("all of theirs is given back", || ours() == before);
        is_unharmed(&server);
        server.stop();
    }
}

#[test]
fn who_never_reads_holds_its_allowance_and_no_more() {
    const CLIENTS: u64 = 4;
    for mode in MODES {
        let server = filled(mode);
        let before = server.status("VmRSS:");
        let stalled: Vec<Client> = (0..CLIENTS)
            .map(|_| {
                let mut client = Client::ready(&server.socket(), false);
                client.stream.set_nonblocking(true).unwrap();
                // 1 GiB of replies, if the server took all of it.
                let asked: Vec<u8> =
                    (0..1024).flat_map(|n| client::request(READ, 0, n, 0, SIZE as u32)).collect();
                assert!(client.stream.write(&asked).is_ok());
                client
            })
            .collect();
        // Others are served meanwhile, by every thread.
        for _ in 0..8 {
            is_unharmed(&server);
        }
        let held = server.status("VmRSS:") - before;
        println!("{mode:?}: {held} KiB are held for {CLIENTS} clients");
        assert!(held < CLIENTS * (96 << 10), "{held} KiB");
        // One that reads after all gets every answer.
        let mut patient = stalled.into_iter().next().unwrap();
        patient.stream.set_nonblocking(false).unwrap();
        for _ in 0..200 {
            let reply = patient.reply(SIZE as u32);
            assert_eq!((reply.error, reply.data.len()), (0, SIZE as usize));
        }
        drop(patient);
        is_unharmed(&server);
        server.stop();
    }
}

#[test]
fn what_is_under_way_ends_before_the_server_does() {
    for mode in MODES {
        let mut server = filled(mode);
        let mut client = Client::ready(&server.socket(), false);
        (0..100).for_each(|cookie| client.request(READ, 0, cookie, cookie * 512, 512));
        // The first answer says that they have come: they were sent as one.
        let mut seen = vec![client.reply(512).cookie];
        server.terminate();
        while let Ok(reply) = client.next(512) {
            assert_eq!((reply.error, &reply.data), (0, &pattern(reply.cookie * 512, 512)));
            seen.push(reply.cookie);
        }
        assert!(server.wait());
        assert!(!server.socket().exists());
        seen.sort_unstable();
        seen.dedup();
        println!("{mode:?}: {} of 100 were answered", seen.len());
    }
}

/// Requests that a program with a fault would send: near the truth, in any order, of any length, cut anywhere.
fn sequences() -> impl Strategy<Value = Vec<u8>> {
    let offset = prop_oneof![0..SIZE, SIZE - 8_192..SIZE + 8_192, any::<u64>()];
    let length = prop_oneof![0..16_384_u32, any::<u32>()];
    let flags = prop_oneof![Just(0_u16), 0..32_u16, any::<u16>()];
    // What writes is refused by this server; that it is asked for changes nothing.
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
fn any_sequence_is_survived() {
    for mode in MODES {
        let server = Running::start(mode, SIZE, &["--read-only"]);
        fill(&server.file, 0, SIZE as usize);
        let mut runner =
            TestRunner::new(Config { cases: 200, failure_persistence: None, ..Config::default() });
        let outcome = runner.run(&(sequences(), any::<bool>()), |(bytes, structured)| {
            let mut client = Client::ready(&server.socket(), structured);
            client.say(&bytes);
            let _ = client.stream.shutdown(Shutdown::Write);
            // Until it has hung up; what it says is not looked at, but that it ends is.
            let mut said = [0; 1 << 16];
            while client.stream.read(&mut said).is_ok_and(|length| length > 0) {}
            Ok(())
        });
        outcome.unwrap();
        is_unharmed(&server);
        server.stop();
    }
}
