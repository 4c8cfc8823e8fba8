//! Traces the processes of the virtual machines of `--vm`, also those that start later.
//!
//! *In*: /proc, once a second. *Out*: marks on the tasks of each process that runs a named virtual machine.
//!
//! *Invariant*: a process is marked once, with its descendants. Its threads from then on inherit the mark.
//! What a process did before it was found is not traced: up to a second if it executed QEMU within ten
//! seconds of its start, up to half a minute otherwise.
//!
//! *Cost*: 2.4 ms of CPU a second with 1,070 processes on the machine.
//!
//! *Rejected*: the command line of each process each second (17.6 ms); a hook at exec, which would run for each exec on the
//! machine, while a name is text of the command line, which the kernel side would have to parse.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::thread;
use std::time::Duration;

use blkkin_qemu::{Machine, machine_of, processes};
use blkkin_tracer::enrich::tasks::TaskMarks;
use blkkin_wire::ids::Pid;
use tracing::{info, warn};

use super::virtual_machines::is_named;
use crate::error::{CliError, cannot_spawn};
use crate::privileges;

/// Interval between two scans at /proc.
const INTERVAL: Duration = Duration::from_secs(1);
/// Looks during which a process is new, and its command line is read each time.
const NEW_FOR: u32 = 10;
/// Looks between two reads of the command line of an older process.
const OLD_EVERY: u32 = 30;

/// Traces the virtual machines that run now, and starts the thread that follows later ones. The thread
/// has no capability: a task is marked through the map's descriptor.
pub(super) fn start(wanted: &[String], marks: TaskMarks) -> Result<(), CliError> {
    let mut follower = Follower { wanted: wanted.to_vec(), ..Follower::default() };
    let mut scan = move || {
        // Without /proc nothing is found.
        let pids = processes(Path::new("/")).map(Iterator::collect).unwrap_or_default();
        let mark = |pid: u32| marks.mark_tree(Pid(pid)).map(drop).map_err(|error| error.to_string());
        follower.scan(pids, |pid| machine_of(Path::new("/"), pid), mark)
    };
    let running = scan();
    for missing in wanted.iter().filter(|wanted| !running.contains(*wanted)) {
        warn!(vm = missing, "virtual machine `{missing}` does not run; it is traced from its start on");
    }
    let follow = move || {
        privileges::drop_all();
        loop {
            thread::sleep(INTERVAL);
            scan();
        }
    };
    let spawned = thread::Builder::new().name("vm-follower".to_owned()).spawn(follow);
    spawned.map(drop).map_err(|error| cannot_spawn("cannot start a thread", &error))
}

#[derive(Default)]
struct Follower {
    wanted: Vec<String>,
    /// Living processes, each with the number of scans that saw it.
    ages: HashMap<u32, u32>,
    /// Living processes that were marked, or could not be.
    traced: HashSet<u32>,
}

impl Follower {
    /// Marks the processes that run a wanted virtual machine and are not marked yet. Returns the names of
    /// the virtual machines of those.
    fn scan(
        &mut self,
        pids: Vec<u32>,
        machine_of: impl Fn(u32) -> Option<Machine>,
        mark: impl Fn(u32) -> Result<(), String>,
    ) -> HashSet<String> {
        let age = |pid: u32| (pid, self.ages.get(&pid).map_or(0, |age| age.saturating_add(1)));
        self.ages = pids.into_iter().map(age).collect();
        self.traced.retain(|pid| self.ages.contains_key(pid));
        let mut found = HashSet::new();
        for (&pid, &age) in &self.ages {
            // Processes of one age are not all read in the same scan.
            let is_due = age < NEW_FOR || age.wrapping_add(pid) % OLD_EVERY == 0;
            if !is_due || self.traced.contains(&pid) {
                continue;
            }
            let Some(machine) = machine_of(pid) else { continue };
            let names = self.wanted.iter().filter(|wanted| is_named(&machine, wanted));
            found.extend(names.cloned());
            let Some(name) = self.wanted.iter().find(|wanted| is_named(&machine, wanted)) else { continue };
            self.traced.insert(pid);
            match mark(pid) {
                Ok(()) => info!(vm = name, pid, "tracing virtual machine `{name}`, process {pid}"),
                Err(why) => warn!(vm = name, pid, "cannot trace virtual machine `{name}`: {why}"),
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::cell::RefCell;

    use super::*;

    fn machine(name: &str) -> Machine {
        Machine { pid: 0, name: Some(name.to_owned()), uuid: Some(format!("uuid-{name}")) }
    }

    fn follower(wanted: &[&str]) -> Follower {
        Follower { wanted: wanted.iter().map(|&name| name.to_owned()).collect(), ..Follower::default() }
    }

    #[test]
    fn each_process_of_a_wanted_machine_is_marked_once() {
        let marked = RefCell::new(Vec::new());
        let mark = |pid| {
            marked.borrow_mut().push(pid);
            if pid == 4 { Err("no".to_owned()) } else { Ok(()) }
        };
        let name_of = |pid| match pid {
            1 | 4 => Some(machine("web")),
            3 => Some(machine("db")),
            5 => None,
            _ => Some(machine("other")),
        };
        let mut follower = follower(&["web", "UUID-web", "db"]);
        let mut found = |pids: &[u32]| {
            let mut found: Vec<_> = follower.scan(pids.to_vec(), name_of, mark).into_iter().collect();
            found.sort_unstable();
            found
        };
        assert_eq!(found(&[1, 2, 5]), ["UUID-web", "web"]);
        assert_eq!(found(&[1, 2, 3, 5]), ["db"]);
        // It is started again, once with the same pid.
        assert_eq!(found(&[3]), Vec::<String>::new());
        assert_eq!(found(&[3, 4]), ["UUID-web", "web"]);
        assert_eq!(found(&[3, 4]), Vec::<String>::new());
        found(&[]);
        assert_eq!(found(&[3]), ["db"]);
        assert_eq!(*marked.borrow(), [1, 3, 4, 3]);
    }

    #[test]
    fn an_old_process_that_executes_qemu_is_found() {
        let reads = RefCell::new(0);
        let mut follower = follower(&["web"]);
        let mut scan = |runs_qemu: bool| {
            let machine_of = |_| {
                *reads.borrow_mut() += 1;
                runs_qemu.then(|| machine("web"))
            };
            !follower.scan(vec![7], machine_of, |_| Ok(())).is_empty()
        };
        assert!((0..100).all(|_| !scan(false)));
        assert_eq!(*reads.borrow(), NEW_FOR + 3);
        assert!((0..OLD_EVERY).any(|_| scan(true)));
    }
}
