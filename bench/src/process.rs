//! What another process took: its own processor time and memory, without its children's.

use std::fs;
use std::io;
use std::process::{Child, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result};

/// How often its memory is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What it took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    pub(crate) status: ExitStatus,
    /// User and system time of all its threads; the kernel says it in ticks of 10 ms.
    pub(crate) processor: Duration,
    /// Most memory that it had resident.
    pub(crate) resident_max: u64,
}

/// Waits for a child's end and says what it took. `wait4` would add the children that it waited for, so its own
/// share is read from /proc while it is a zombie.
pub(crate) fn wait(child: &mut Child) -> Result<Usage> {
    let mut resident_max = 0;
    while !has_ended(child.id()).context("cannot wait for a child")? {
        resident_max = resident_max.max(resident(child.id()).unwrap_or(0));
        std::thread::sleep(LOOK_EVERY);
    }
    let stat =
        fs::read_to_string(format!("/proc/{}/stat", child.id())).context("a child has no entry in /proc")?;
    let processor = processor_time(&stat).context("/proc/PID/stat cannot be understood")?;
    Ok(Usage { status: child.wait()?, processor, resident_max })
}

/// Processor time of the calling thread.
pub(crate) fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable; every Linux has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Whether it is a zombie of ours; it stays one.
fn has_ended(pid: u32) -> io::Result<bool> {
    // SAFETY: a structure of integers; zero is "nothing happened".
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: `info` is writable.
    let result =
        unsafe { libc::waitid(libc::P_PID, pid, &mut info, libc::WEXITED | libc::WNOHANG | libc::WNOWAIT) };
    match result {
        // SAFETY: waitid has filled it, or left it zero.
        0 => Ok(unsafe { info.si_pid() } != 0),
        _ => Err(io::Error::last_os_error()),
    }
}

fn resident(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(most.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

/// Fields 14 and 15 of /proc/PID/stat (man 5 proc), counted from behind the name, which may contain anything.
fn processor_time(stat: &str) -> Option<Duration> {
    let (_, behind) = stat.rsplit_once(')')?;
    let mut fields = behind.split_whitespace().skip(11);
    let ticks = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
    // SAFETY: no memory is passed.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    Some(Duration::from_secs_f64(ticks as f64 / per_second as f64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn times_are_found_behind_any_name() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 1 0 0 0 150 50 900 900 20 0 1 0 5 0 0";
        assert_eq!(processor_time(stat), Some(Duration::from_secs(2)));
        assert_eq!(processor_time("7 (a"), None);
    }

    #[test]
    fn a_child_is_waited_for_and_its_status_kept() {
        let mut child = Command::new("sh").args(["-c", "exit 3"]).spawn().unwrap();
        assert_eq!(wait(&mut child).unwrap().status.code(), Some(3));
    }
}
