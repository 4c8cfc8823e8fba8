//! Signals that reach blkkin, and which of them CMD must be given.
//!
//! CMD shares blkkin's process group, so what a terminal sends (Ctrl-C, Ctrl-\, hang-up) reaches it without
//! help, and to pass it on would deliver it twice: many programs take a second Ctrl-C as "at once". What somebody
//! sends to blkkin alone (`kill PID`) must be passed on. The kernel says which it was: `si_code` is SI_KERNEL for
//! the terminal's.
//!
//! One case cannot be told apart, a signal sent by a process to the whole group (`kill -TERM -PGID`): it counts
//! as sent to blkkin alone and reaches CMD twice, unless CMD or what it started sent it (`kill 0` in a script's
//! trap). sudo(8) does the same. *Rejected*: a process group of its own for CMD, since then blkkin would have to
//! play the shell (tcsetpgrp, stopped jobs) and a CMD that reads from the terminal would stop.
//!
//! Stops (Ctrl-Z, SIGCONT) are left as they are: the terminal stops both, the shell continues both.

use std::io;
use std::sync::mpsc::Sender;
use std::thread;

use libc::{c_int, siginfo_t};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithRawSiginfo;

use crate::session::Happening;

/// Signals by which people and machines ask a program to end.
const ENDINGS: [c_int; 4] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT];

/// A signal that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// Its number.
    pub(crate) number: c_int,
    /// Who sent it.
    pub(crate) sender: Sent,
}

/// Who sent a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// The kernel: the terminal's keys, its hang-up, a child's end.
    ByKernel,
    /// A process, by kill(2) or the like; 0 when it is in another pid namespace.
    ByProcess(libc::pid_t),
}

impl Arrival {
    /// The end of a child, or its stop.
    pub(crate) fn is_child(&self) -> bool {
        self.number == SIGCHLD
    }

    /// Ctrl-C, or what a script sends in its place.
    pub(crate) fn is_interrupt(&self) -> bool {
        self.number == SIGINT
    }

    /// Whether CMD does not have it yet.
    pub(crate) fn must_be_passed_on(&self, command: libc::pid_t) -> bool {
        match self.sender {
            // A CMD that left the group is out of the terminal's reach.
            Sent::ByKernel => !in_own_group(command),
            Sent::ByProcess(sender) => !descends_from(sender, command),
        }
    }

    /// Gives it to CMD, which must not have been waited for yet: else its number could be another's.
    pub(crate) fn pass_on(&self, command: libc::pid_t) {
        // SAFETY: kill takes numbers only. That CMD may be gone is no error here.
        unsafe { libc::kill(command, self.number) };
    }
}

/// From now on sends every signal that arrives to `inbox`. A signal that was ignored when blkkin started stays so
/// (nohup(1), background jobs of a script), for CMD inherits that too.
pub(crate) fn listen(inbox: Sender<Happening>) -> io::Result<()> {
    let endings = ENDINGS.into_iter().filter(|signal| !is_ignored(*signal));
    let numbers: Vec<c_int> = endings.chain([SIGCHLD]).collect();
    let mut signals = SignalsInfo::<WithRawSiginfo>::new(&numbers)?;
    unblock(&numbers)?;
    thread::Builder::new().name("signals".into()).spawn(move || {
        for info in signals.forever() {
            if inbox.send(Happening::Signal(arrival(&info))).is_err() {
                return;
            }
        }
    })?;
    Ok(())
}

fn arrival(info: &siginfo_t) -> Arrival {
    let sender = match info.si_code {
        // SAFETY: with these codes the kernel has filled in the sender (sigaction(2)).
        libc::SI_USER | libc::SI_QUEUE | libc::SI_TKILL => Sent::ByProcess(unsafe { info.si_pid() }),
        _ => Sent::ByKernel,
    };
    Arrival { number: info.si_signo, sender }
}

fn is_ignored(signal: c_int) -> bool {
    // SAFETY: sigaction is a plain structure for which zeros are valid.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: no new action is given, and the old one is written into `action`, which outlives the call.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), &mut action) };
    asked == 0 && action.sa_sigaction == libc::SIG_IGN
}

/// A parent may have left signals blocked; then Ctrl-C and CMD's end would never be heard of.
fn unblock(signals: &[c_int]) -> io::Result<()> {
    // SAFETY: sigset_t is a plain structure; sigemptyset makes it valid before anything else uses it, and it
    // outlives all calls. The numbers are of signals that exist.
    let result = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in signals {
            libc::sigaddset(&mut set, *signal);
        }
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut())
    };
    if result == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(result)) }
}

fn in_own_group(process: libc::pid_t) -> bool {
    // SAFETY: both calls take and return numbers only.
    unsafe { libc::getpgid(process) == libc::getpgrp() }
}

/// Generations that are looked at: enough for any shell script, and an end for a table that changes meanwhile.
const GENERATIONS_MAX: usize = 64;

fn descends_from(process: libc::pid_t, ancestor: libc::pid_t) -> bool {
    let line = std::iter::successors(Some(process), |process| parent(*process));
    line.take(GENERATIONS_MAX).take_while(|process| *process > 0).any(|process| process == ancestor)
}

fn parent(process: libc::pid_t) -> Option<libc::pid_t> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name in parentheses may itself contain any character; after the last one come state and parent.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    fn own() -> libc::pid_t {
        std::process::id() as libc::pid_t
    }

    #[test]
    fn descent_is_read_from_proc() {
        assert!(descends_from(own(), own()));
        assert!(descends_from(own(), std::os::unix::process::parent_id() as libc::pid_t));
        assert!(!descends_from(std::os::unix::process::parent_id() as libc::pid_t, own()));
        assert!(!descends_from(0, own()));
    }

    #[test]
    fn the_terminals_signals_reach_a_command_of_the_same_group_by_themselves() {
        let arrival = Arrival { number: SIGINT, sender: Sent::ByKernel };
        assert!(!arrival.must_be_passed_on(own()));
        // Waits for its stdin to close.
        let mut other = Command::new("cat").stdin(Stdio::piped()).process_group(0).spawn().unwrap();
        assert!(arrival.must_be_passed_on(other.id() as libc::pid_t));
        other.wait().unwrap();
    }

    #[test]
    fn what_others_send_is_passed_on_and_what_the_command_sends_is_not() {
        let parent = std::os::unix::process::parent_id() as libc::pid_t;
        assert!(Arrival { number: SIGTERM, sender: Sent::ByProcess(parent) }.must_be_passed_on(own()));
        assert!(Arrival { number: SIGTERM, sender: Sent::ByProcess(0) }.must_be_passed_on(own()));
        assert!(!Arrival { number: SIGTERM, sender: Sent::ByProcess(own()) }.must_be_passed_on(own()));
    }
}
