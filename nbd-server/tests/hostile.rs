//! Faulty clients: invalid requests, wrong lengths, stalls and early disconnects. The server
//! continues, sends nothing outside its file, changes nothing without a valid request, and frees
//! the resources of each client.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking, and prints results")]

mod support;

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use blkkin_nbd::export::Export;
use blkkin_nbd::server::{self, Address, Listener, MEMORY_MIN, Mode, Server};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tempfile::TempDir;

use support::client::{self, *};
use support::{MODES, RunningServer, eventually, fill, pattern};

const SIZE: u64 = 1 << 20;
const PERM: u32 = 1;
const INVAL: u32 = 22;
const NOSPC: u32 = 28;
const OVERFLOW: u32 = 75;
/// Data of the largest request.
const LARGEST: u32 = 32 << 20;

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

/// Requests the largest read four times and reads no reply.
fn request_and_stall(socket: &Path) -> Client {
    let mut client = Client::ready(socket, false);
    let requests: Vec<u8> = (0..4).flat_map(|n| client::request(READ, 0, n, 0, LARGEST)).collect();
    client.send(&requests);
    client
}

/// Returns the resident memory in KiB once it has not grown for a while.
fn settled_memory(server: &RunningServer) -> u64 {
    let (mut used, mut since) = (0, Instant::now());
    while since.elapsed() < Duration::from_millis(400) {
        let now = server.status("VmRSS:");
        if now > used {
            (used, since) = (now, Instant::now());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    used
}

#[test]
fn clients_that_never_read_share_the_memory_and_stop_no_small_request() {
    // The limit, and for each client what may exceed it and the buffer of its decoder.
    let allowed = |clients: u64| (256 << 10) + clients * (68 + 64) + (16 << 10);
    for mode in MODES {
        for clients in [64, 512] {
            let server = RunningServer::start(mode, LARGEST.into(), &["--connections", "513"]);
            fill(&server.file, 0, SIZE as usize);
            let mut stalled: Vec<Client> =
                (0..clients).map(|_| request_and_stall(&server.socket())).collect();
            settled_memory(&server);
            let mut other = Client::ready(&server.socket(), true);
            for n in 0..100 {
                assert_eq!(other.round_trip(READ, 0, n * 512, 65_536).data, pattern(n * 512, 65_536));
                assert_eq!(other.round_trip(FLUSH, 0, 0, 0).error, 0);
            }
            let max = server.status("VmHWM:");
            println!("{mode:?}: {clients} clients that do not read: at most {} MiB are used", max >> 10);
            assert!(max < allowed(clients), "{max} KiB");
            // The last client waits for memory. It gets its replies once the others are gone.
            let mut last = stalled.pop().unwrap();
            drop(stalled);
            for _ in 0..4 {
                let reply = last.reply(LARGEST);
                assert_eq!((reply.error, reply.data.len()), (0, LARGEST as usize));
                assert_eq!(reply.data[..4_096], pattern(0, 4_096));
            }
            drop((last, other));
            eventually("the memory returns", || server.status("VmRSS:") < 100 << 10);
            server.stop();
        }
    }
}

#[test]
fn the_data_of_incomplete_writes_shares_the_memory() {
    const CLIENTS: usize = 12;
    for mode in MODES {
        let server = RunningServer::start(mode, LARGEST.into(), &["--memory", "100M"]);
        let part = vec![0xee; 31 << 20];
        // A client whose write has no memory is not read from.
        let stalled: Vec<Client> = (0..CLIENTS)
            .map(|_| {
                let mut client = Client::ready(&server.socket(), false);
                client.request(WRITE, 0, 1, 0, LARGEST);
                client.stream.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
                client.send(&part);
                client
            })
            .collect();
        let used = settled_memory(&server);
        println!("{mode:?}: {} MiB are used for {CLIENTS} incomplete writes", used >> 10);
        assert!(used < 120 << 10, "{used} KiB");
        assert_eq!(Client::ready(&server.socket(), false).round_trip(READ, 0, 0, 512).error, 0);
        drop(stalled);
        let mut next = Client::ready(&server.socket(), false);
        next.request(WRITE, 0, 2, 0, LARGEST);
        next.send(&vec![7; LARGEST as usize]);
        assert_eq!(next.reply(0).error, 0);
        assert!(fs::read(&server.file).unwrap() == vec![7; LARGEST as usize]);
        server.stop();
    }
}

#[test]
fn requests_that_wait_for_memory_are_all_answered() {
    const CLIENTS: u64 = 6;
    for mode in MODES {
        let server = RunningServer::start(mode, LARGEST.into(), &["--memory", "64M"]);
        fill(&server.file, 0, SIZE as usize);
        let content =
            Arc::new([pattern(0, SIZE as usize), vec![0; LARGEST as usize - SIZE as usize]].concat());
        // Each client has requests of all sizes in flight, and some of them at a time have memory.
        let lengths = [LARGEST, 512, 20 << 20, 65_536, 0, 100_000, 1 << 20, 512];
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let (socket, content) = (server.socket(), Arc::clone(&content));
                std::thread::spawn(move || {
                    let mut client = Client::ready(&socket, false);
                    for round in 0..2 {
                        let cookie = |at: usize| round * 10 + at as u64;
                        for (at, length) in lengths.iter().enumerate() {
                            let command = if *length == 0 { FLUSH } else { READ };
                            client.request(command, 0, cookie(at), 0, *length);
                        }
                        // The client identifies the reply by its cookie, so it reads the header first.
                        for _ in lengths {
                            let head: [u8; 16] = client.read().unwrap();
                            assert_eq!(head[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0]);
                            let at = u64::from_be_bytes(head[8..].try_into().unwrap()) - round * 10;
                            let mut data = vec![0; lengths[at as usize] as usize];
                            client.stream.read_exact(&mut data).unwrap();
                            assert!(data == content[..data.len()]);
                        }
                    }
                })
            })
            .collect();
        clients.into_iter().for_each(|client| client.join().unwrap());
        server.stop();
    }
}

#[test]
fn an_idle_client_uses_little_memory() {
    const CLIENTS: u64 = 500;
    for mode in MODES {
        let server = start_filled(mode);
        let before = server.status("VmRSS:");
        let per_client = || (server.status("VmRSS:") - before) / CLIENTS;
        let mut clients: Vec<Client> = (0..CLIENTS).map(|_| Client::ready(&server.socket(), false)).collect();
        let at_first = per_client();
        // A write that fills the decoder's buffer, and what the file has there already.
        let write = [client::request(WRITE, 0, 1, 0, 60_000), pattern(0, 60_000)].concat();
        for client in &mut clients {
            client.send(&write);
            assert_eq!(client.reply(0).error, 0);
        }
        let at_most = per_client();
        println!("{mode:?}: an idle client uses {at_first} KiB, and {at_most} KiB after a write");
        assert!(at_most < 128, "{at_most} KiB");
        server.stop();
    }
}

/// Starts a server in this process, whose limits are shorter than those of the program.
fn start_impatient(mode: Mode, connections: usize, limit: Duration) -> (Server, TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let (file, socket) = (folder.path().join("disk"), folder.path().join("socket"));
    File::create(&file).unwrap().set_len(LARGEST.into()).unwrap();
    let listener = Listener::bind(&Address::Unix(socket.clone())).unwrap();
    let export = Export::open(&file, "", false).unwrap();
    let config = server::Config { mode, connections, memory: MEMORY_MIN, stall_max: limit, idle_min: limit };
    (Server::start(export, vec![listener], config).unwrap(), folder, socket)
}

/// Returns whether the server has closed the connection, of which the client reads nothing. The
/// bytes that it sends are part of a request.
fn is_hung_up(client: &mut Client) -> bool {
    let sent = client.stream.write(&[0]);
    sent.is_err_and(|error| matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset))
}

#[test]
fn a_client_that_stalls_is_disconnected_and_one_that_is_slow_is_not() {
    const LIMIT: Duration = Duration::from_millis(400);
    for mode in [Mode::Threads(4), Mode::Rings(2)] {
        let (server, _folder, socket) = start_impatient(mode, 10, LIMIT);
        let mut idle = Client::ready(&socket, false);
        let mut writes = Client::ready(&socket, false);
        writes.request(WRITE, 0, 1, 0, LARGEST);
        writes.send(&[0xee; 1_000]);
        let mut reads = request_and_stall(&socket);
        // This client waits for the memory of the stalled ones, and then reads slowly.
        let mut slow = request_and_stall(&socket);
        let reader = std::thread::spawn(move || {
            let (mut rest, mut part) = (16 + LARGEST as usize, vec![0; 2 << 20]);
            slow.stream.read_exact(&mut part[..1]).unwrap();
            let begun = Instant::now();
            while rest > 1 {
                let length = part.len().min(rest - 1);
                slow.stream.read_exact(&mut part[..length]).unwrap();
                rest -= length;
                std::thread::sleep(LIMIT / 4);
            }
            assert!(begun.elapsed() > 2 * LIMIT);
        });
        let begun = Instant::now();
        for stalled in [&mut writes, &mut reads] {
            stalled.stream.set_nonblocking(true).unwrap();
            // The byte that tests the connection is progress of the client that writes.
            eventually("a stalled client is disconnected", || {
                std::thread::sleep(2 * LIMIT);
                is_hung_up(stalled)
            });
        }
        assert!(begun.elapsed() >= LIMIT);
        reader.join().unwrap();
        assert_eq!(idle.round_trip(READ, 0, 0, 512).error, 0);
        server.stop();
    }
}

#[test]
fn a_new_client_replaces_the_one_that_has_been_idle_the_longest() {
    const LIMIT: Duration = Duration::from_millis(800);
    for mode in [Mode::Threads(4), Mode::Rings(2)] {
        let (server, _folder, socket) = start_impatient(mode, 3, LIMIT);
        let mut clients = [(); 3].map(|()| {
            std::thread::sleep(LIMIT / 4);
            Client::ready(&socket, false)
        });
        let is_refused = || UnixStream::connect(&socket).unwrap().read(&mut [0; 18]).unwrap_or(0) == 0;
        assert!(is_refused(), "no client has been idle for long");
        std::thread::sleep(LIMIT);
        assert_eq!(clients[0].round_trip(READ, 0, 0, 512).error, 0);
        std::thread::sleep(LIMIT / 4);
        // The second one is idle the longest now, and then the third.
        let mut fourth = Client::ready(&socket, false);
        assert!(clients[1].is_closed());
        let mut fifth = Client::ready(&socket, false);
        assert!(clients[2].is_closed());
        assert!(is_refused(), "the others are not idle for long");
        for client in [&mut clients[0], &mut fourth, &mut fifth] {
            assert_eq!(client.round_trip(READ, 0, 0, 512).error, 0);
        }
        server.stop();
    }
}

#[test]
fn an_unreachable_tcp_client_is_detected() {
    for mode in MODES {
        let server = RunningServer::start(mode, SIZE, &[]);
        let address = server.tcp().strip_prefix("nbd://").unwrap();
        let client = TcpStream::connect(address).unwrap();
        let port = client.local_addr().unwrap().port();
        // The state of the server's socket: its timer is the keepalive timer, number 2.
        let has_timer = || {
            let table = fs::read_to_string("/proc/net/tcp").unwrap();
            let peer = format!(":{port:04X}");
            let is_server = |line: &&str| {
                let columns: Vec<&str> = line.split_whitespace().collect();
                columns[2].ends_with(&peer) && columns[5].starts_with("02:")
            };
            table.lines().skip(1).any(|line| is_server(&line))
        };
        eventually("the keepalive timer runs", has_timer);
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
