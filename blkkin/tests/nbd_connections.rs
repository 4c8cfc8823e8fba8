//! The table of NBD connections: more connections than it holds, and more than ever are open at once.
//!
//! *Input*: a process that sends a read over each of many socket pairs and answers each itself. Its
//! own numbers are the expected ones.

use blkkin_tracer::TracerConfig;
use blkkin_tracer::enrich::nbd::NbdStats;

use crate::support::gated_process::GatedProcess;
use crate::support::needs;
use crate::support::recording::record;

/// Connections for which the table has ways.
const WAYS: u64 = 4_096;
/// Connections that find room: in a simulation with random inode numbers the first without room was
/// one of more than 1,890, in each of 100 runs.
const OPEN: u64 = 1_536;
/// Request of a read of 0 bytes, less its cookie, and the reply ("Request message" and "Simple reply
/// message" of NBD's doc/proto.md).
const REQUEST: u32 = 0x2560_9513;
const REPLY: u32 = 0x6744_6698;

/// No reply is missed while all connections are in use.
#[test]
fn connections_in_use_are_never_displaced() {
    needs!();
    let nbd = record_connections(OPEN, 1);
    assert_eq!((nbd.requests, nbd.replies, nbd.untracked, nbd.unanswered), (OPEN, OPEN, 0, 0), "{nbd:#?}");
}

/// A connection without room is counted; the others are traced to the end.
#[test]
fn connections_without_room_are_counted() {
    needs!();
    let open = WAYS + WAYS / 2;
    let nbd = record_connections(open, 1);
    assert_eq!((nbd.replies, nbd.unanswered), (nbd.requests, 0), "{nbd:#?}");
    assert_eq!(nbd.requests + nbd.untracked, open, "{nbd:#?}");
    // Of six connections for four ways two find none, and few ways stay free.
    assert!((WAYS * 9 / 10..=WAYS).contains(&nbd.requests), "{nbd:#?}");
}

/// No hook reports the end of a Unix connection, so closed ones must make room.
#[test]
fn closed_connections_make_room() {
    needs!();
    let rounds = 3;
    let nbd = record_connections(OPEN, rounds);
    let all = OPEN * rounds;
    assert!(all > WAYS);
    assert_eq!((nbd.requests, nbd.replies, nbd.untracked, nbd.unanswered), (all, all, 0, 0), "{nbd:#?}");
}

/// Traces a process that has `open` connections open at once, in each of `rounds` rounds.
fn record_connections(open: u64, rounds: u64) -> NbdStats {
    let config = TracerConfig { nbd: true, ..TracerConfig::default() };
    let mut process = GatedProcess::new(move || {
        allow_descriptors(2 * open + 64);
        (0..rounds).for_each(|_| exchange_over(open));
        0
    });
    record(&config, &mut [&mut process]).nbd.unwrap()
}

/// Sends a request over each of `open` connections, then answers each, then closes all.
fn exchange_over(open: u64) {
    let pairs: Vec<[i32; 2]> = (0..open).map(|_| socket_pair()).collect();
    for (cookie, [client, server]) in pairs.iter().enumerate() {
        let header = [&REQUEST.to_be_bytes()[..], &[0; 4], &cookie.to_be_bytes(), &[0; 12]].concat();
        send(*client, &header);
        receive(*server, header.len());
    }
    for (cookie, [client, server]) in pairs.iter().enumerate() {
        let reply = [&REPLY.to_be_bytes()[..], &[0; 4], &cookie.to_be_bytes()].concat();
        send(*server, &reply);
        receive(*client, reply.len());
    }
    for end in pairs.into_iter().flatten() {
        // SAFETY: a descriptor of this function.
        unsafe { libc::close(end) };
    }
}

fn allow_descriptors(number: u64) {
    let limit = libc::rlimit { rlim_cur: number, rlim_max: number };
    // SAFETY: a structure of this frame.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
}

fn socket_pair() -> [i32; 2] {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors.
    let made = unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, ends.as_mut_ptr()) };
    assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
    ends
}

fn send(socket: i32, bytes: &[u8]) {
    // SAFETY: a slice that outlives the call.
    let sent = unsafe { libc::write(socket, bytes.as_ptr().cast(), bytes.len()) };
    assert_eq!(sent, bytes.len() as isize);
}

fn receive(socket: i32, length: usize) {
    let mut bytes = [0u8; 64];
    // SAFETY: room for the bytes.
    let received = unsafe { libc::read(socket, bytes.as_mut_ptr().cast(), length) };
    assert_eq!(received, length as isize);
}
