//! Signals that blkkin receives, and the decision which of them to forward to CMD.
//!
//! CMD shares blkkin's process group, so it receives what a terminal sends (Ctrl-C, Ctrl-\,
//! hang-up) directly. Forwarding it would deliver it twice, and many programs take a second Ctrl-C
//! as "exit at once". A signal that a process sends to blkkin alone (`kill PID`) must be forwarded.
//! The kernel distinguishes the two: `si_code` is SI_KERNEL for the terminal's.
//!
//! One case is ambiguous: a signal that a process sends to the whole group (`kill -TERM -PGID`). It
//! counts as sent to blkkin alone and reaches CMD twice, unless CMD or a descendant sent it (`kill
//! 0` in a script's trap). sudo(8) does the same. *Rejected*: a process group of its own for CMD.
//! blkkin would have to implement job control (tcsetpgrp, stopped jobs), and a CMD that reads from
//! the terminal would stop.
//!
//! Job-control stops (Ctrl-Z, SIGCONT) need no handling: the terminal stops both, the shell
//! continues both.

use std::io;
use std::sync::mpsc::Sender;
use std::thread;

use libc::{c_int, siginfo_t};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithRawSiginfo;

use crate::control::ControlEvent;
use crate::privileges;

/// Signals that ask a program to terminate.
const TERMINATION_SIGNALS: [c_int; 4] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT];

/// Signal that asks an agent for a dump of its flight recorder.
pub(crate) const DUMP_SIGNAL: c_int = SIGUSR1;

/// A received signal, with its sender as the kernel reports it (siginfo).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReceivedSignal {
    /// The signal number.
    pub(crate) number: c_int,
    /// The sender.
    pub(crate) sender: SignalSender,
}

/// The sender of a signal, which decides whether it is forwarded to CMD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignalSender {
    /// The kernel: a terminal key, a hang-up, a child's exit.
    Kernel,
    /// A process, by kill(2) or a similar call; 0 for one in another pid namespace.
    Process(libc::pid_t),
}

impl ReceivedSignal {
    /// Returns whether a child exited or stopped.
    pub(crate) fn is_child(&self) -> bool {
        self.number == SIGCHLD
    }

    /// Returns whether the signal asks for a dump.
    pub(crate) fn is_dump(&self) -> bool {
        self.number == DUMP_SIGNAL
    }

    /// Returns whether the signal is Ctrl-C, or a script's equivalent.
    pub(crate) fn is_interrupt(&self) -> bool {
        self.number == SIGINT
    }

    /// Returns whether CMD has not received the signal from its sender.
    pub(crate) fn must_forward(&self, command: libc::pid_t) -> bool {
        match self.sender {
            // The terminal does not reach a CMD that left the process group.
            SignalSender::Kernel => !in_own_process_group(command),
            SignalSender::Process(sender) => !descends_from(sender, command),
        }
    }

    /// Sends the signal to CMD. CMD must not have been waited for, else another process may have
    /// its pid.
    pub(crate) fn forward(&self, command: libc::pid_t) {
        // SAFETY: kill takes numbers only. A CMD that has exited is no error here.
        unsafe { libc::kill(command, self.number) };
    }
}

/// Sends every signal that arrives to `events`, also one of `more`. A signal that was ignored when blkkin started stays
/// ignored (nohup(1), background jobs of a script), because CMD inherits that too.
pub(crate) fn listen(events: Sender<ControlEvent>, more: &[c_int]) -> io::Result<()> {
    let endings = TERMINATION_SIGNALS.into_iter().filter(|signal| !is_ignored(*signal));
    let numbers: Vec<c_int> = endings.chain([SIGCHLD]).chain(more.iter().copied()).collect();
    let mut signals = SignalsInfo::<WithRawSiginfo>::new(&numbers)?;
    unblock(&numbers)?;
    thread::Builder::new().name("signals".into()).spawn(move || {
        privileges::drop_all();
        for info in signals.forever() {
            if events.send(ControlEvent::Signal(received(&info))).is_err() {
                return;
            }
        }
    })?;
    Ok(())
}

fn received(info: &siginfo_t) -> ReceivedSignal {
    let sender = match info.si_code {
        // SAFETY: with these codes the kernel fills in the sender (sigaction(2)).
        libc::SI_USER | libc::SI_QUEUE | libc::SI_TKILL => SignalSender::Process(unsafe { info.si_pid() }),
        _ => SignalSender::Kernel,
    };
    ReceivedSignal { number: info.si_signo, sender }
}

fn is_ignored(signal: c_int) -> bool {
    // SAFETY: sigaction is a plain structure for which zeros are valid.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: no new action is given; the call writes the old one to `action`, which outlives it.
    let result = unsafe { libc::sigaction(signal, std::ptr::null(), &mut action) };
    result == 0 && action.sa_sigaction == libc::SIG_IGN
}

/// Unblocks the signals: a parent may have left them blocked, which would hide Ctrl-C and CMD's
/// exit.
fn unblock(signals: &[c_int]) -> io::Result<()> {
    // SAFETY: sigset_t is a plain structure; sigemptyset makes it valid before any other use, and
    // it outlives all calls. All numbers are valid signals.
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

fn in_own_process_group(process: libc::pid_t) -> bool {
    // SAFETY: both calls take and return numbers only.
    unsafe { libc::getpgid(process) == libc::getpgrp() }
}

/// Maximum number of ancestors to examine: enough for any shell script, and a bound for a process
/// table that changes meanwhile.
const GENERATIONS_MAX: usize = 64;

fn descends_from(process: libc::pid_t, ancestor: libc::pid_t) -> bool {
    let line = std::iter::successors(Some(process), |process| parent(*process));
    line.take(GENERATIONS_MAX).take_while(|process| *process > 0).any(|process| process == ancestor)
}

fn parent(process: libc::pid_t) -> Option<libc::pid_t> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name in parentheses may contain any character; state and parent follow the last
    // parenthesis.
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
    fn terminal_signals_are_not_forwarded_to_a_command_of_the_same_group() {
        let signal = ReceivedSignal { number: SIGINT, sender: SignalSender::Kernel };
        assert!(!signal.must_forward(own()));
        // It waits for its stdin to close.
        let mut other = Command::new("cat").stdin(Stdio::piped()).process_group(0).spawn().unwrap();
        assert!(signal.must_forward(other.id() as libc::pid_t));
        other.wait().unwrap();
    }

    #[test]
    fn signals_of_others_are_forwarded_and_those_of_the_command_are_not() {
        let parent = std::os::unix::process::parent_id() as libc::pid_t;
        assert!(
            ReceivedSignal { number: SIGTERM, sender: SignalSender::Process(parent) }.must_forward(own())
        );
        assert!(ReceivedSignal { number: SIGTERM, sender: SignalSender::Process(0) }.must_forward(own()));
        assert!(
            !ReceivedSignal { number: SIGTERM, sender: SignalSender::Process(own()) }.must_forward(own())
        );
    }
}
