//! Processor time and memory of a child process, without its own children.

use std::fs;
use std::io;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
pub(crate) use blkkin_pipeline::aggregate::thread_time;

/// Interval of memory samples.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(20);
/// Interval of checks in [`wait_until`].
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Time limit of a child; the longest known takes a tenth of it.
const CHILD_TIMEOUT: Duration = Duration::from_secs(180);

/// Resource usage of a child.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    pub(crate) status: ExitStatus,
    /// User and system time of all threads; the kernel reports ticks of 10 ms.
    pub(crate) processor: Duration,
    /// Maximum resident memory.
    pub(crate) resident_max: u64,
}

/// Runs a command to its end and returns its trimmed output. The error contains its standard error.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {name}"))?;
    if !output.status.success() {
        bail!("{name} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Sends a signal to a child. It has not been waited for, so its pid is not reused.
pub(crate) fn signal(child: &Child, signal: libc::c_int) -> Result<()> {
    let pid = libc::pid_t::try_from(child.id()).context("invariant: a pid is positive")?;
    // SAFETY: no memory is passed.
    match unsafe { libc::kill(pid, signal) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()).context("cannot signal a child"),
    }
}

/// Waits until `condition` is true. An error `failure` if the child ends before, or after
/// `timeout`.
pub(crate) fn wait_until(
    child: &mut Child,
    timeout: Duration,
    failure: &str,
    mut condition: impl FnMut() -> bool,
) -> Result<()> {
    let started = Instant::now();
    while !condition() {
        if child.try_wait()?.is_some() || started.elapsed() > timeout {
            bail!("{failure}");
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// Returns µs since the Unix epoch.
pub(crate) fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

/// Child whose memory a thread samples while it runs, because its parent may be busy.
pub(crate) struct WatchedChild {
    child: Child,
    sampler: JoinHandle<Resident>,
}

impl WatchedChild {
    /// Starts the sampling.
    pub(crate) fn new(child: Child) -> WatchedChild {
        let pid = child.id();
        let sampler = std::thread::spawn(move || {
            let mut sampled = Resident::default();
            // Until the child is a zombie, which has no memory and remains until it is waited for.
            while let Some(now) = resident(pid) {
                sampled = Resident { most: sampled.most.max(now.most), last: now.last };
                std::thread::sleep(SAMPLE_INTERVAL);
            }
            sampled
        });
        WatchedChild { child, sampler }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the child and returns its usage. `wait4` would add the children that it waited
    /// for, so its own share is read from /proc while it is a zombie.
    pub(crate) fn wait(mut self) -> Result<Usage> {
        let started = Instant::now();
        while !has_ended(self.child.id()).context("cannot wait for a child")? {
            if started.elapsed() > CHILD_TIMEOUT {
                self.child
                    .kill()
                    .and_then(|()| self.child.wait())
                    .context("cannot end a child that hangs")?;
                bail!("it did not end within {} s, and was killed", CHILD_TIMEOUT.as_secs());
            }
            std::thread::sleep(SAMPLE_INTERVAL);
        }
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))
            .context("a child has no entry in /proc")?;
        let processor = processor_time(&stat).context("/proc/PID/stat cannot be understood")?;
        let sampled = self.sampler.join().ok().context("invariant: looking does not panic")?;
        Ok(Usage { status: self.child.wait()?, processor, resident_max: sampled.most })
    }

    /// Sends SIGINT, like Ctrl-C, and waits.
    pub(crate) fn interrupt(self) -> Result<Usage> {
        signal(&self.child, libc::SIGINT)?;
        self.wait()
    }
}

/// Waits for a child like [`WatchedChild::wait`].
pub(crate) fn wait(child: Child) -> Result<Usage> {
    WatchedChild::new(child).wait()
}

/// Reads the usage of a running process so far.
pub(crate) fn usage_now(pid: u32) -> Result<(Duration, Resident)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).context("the process is gone")?;
    let processor = processor_time(&stat).context("/proc/PID/stat cannot be understood")?;
    Ok((processor, resident(pid).context("the process has no memory any more")?))
}

/// Returns whether the child is a zombie; it remains one.
pub(crate) fn has_ended(pid: u32) -> io::Result<bool> {
    // SAFETY: a structure of integers; zero means that no child changed its state.
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

/// Resident memory in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resident {
    pub(crate) most: u64,
    pub(crate) last: u64,
}

fn resident(pid: u32) -> Option<Resident> {
    resident_of(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

fn resident_of(status: &str) -> Option<Resident> {
    let field = |name: &str| {
        let text = status.lines().find_map(|line| line.strip_prefix(name))?;
        Some(text.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
    };
    Some(Resident { most: field("VmHWM:")?, last: field("VmRSS:")? })
}

/// Parses fields 14 and 15 of /proc/PID/stat (man 5 proc), counted after the name, which may
/// contain any character.
fn processor_time(stat: &str) -> Option<Duration> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let ticks = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
    // SAFETY: no memory is passed.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    Some(Duration::from_secs_f64(ticks as f64 / per_second as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_parsed_after_any_name() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 1 0 0 0 150 50 900 900 20 0 1 0 5 0 0";
        assert_eq!(processor_time(stat), Some(Duration::from_secs(2)));
        assert_eq!(processor_time("7 (a"), None);
    }

    #[test]
    fn memory_is_parsed_and_absent_for_a_zombie() {
        let status = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n";
        assert_eq!(resident_of(status), Some(Resident { most: 2 << 20, last: 1 << 20 }));
        assert_eq!(resident_of("Name:\tx\nState:\tZ (zombie)\n"), None);
    }

    #[test]
    fn exit_status_is_returned() {
        let child = Command::new("sh").args(["-c", "exit 3"]).spawn().unwrap();
        assert_eq!(wait(child).unwrap().status.code(), Some(3));
    }

    #[test]
    fn child_is_interrupted() {
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        let usage = WatchedChild::new(child).interrupt().unwrap();
        assert_eq!(usage.status.code(), None, "it died of the signal");
    }
}
