//! `blkkin agent --budget`: the cost is measured, and what is recorded follows it.
//!
//! *Input*: direct reads of a loop device, as fast as they go. *Independent counts*: the kernel's own
//! statistics of the agent's programs (kernel.bpf_stats_enabled, `run_time_ns` in /proc/PID/fdinfo), and
//! the agent's CPU time in /proc/PID/stat. How well a budget is kept is measured by hand and by the
//! controller's own tests, not here: a busy machine decides about it.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use blkkin_wire::event::LayerEvent;
use blkkin_wire::head_sampling::HeadSampling;

use crate::support::disk::Disk;
use crate::support::live::eventually;
use crate::support::service::Service;
use crate::support::tools::cpus;
use crate::support::{agent_recording, direct, metrics};
use crate::support::{needs, or_skip};

const LIMIT: Duration = Duration::from_secs(60);
/// Time over which the agent averages its cost.
const AVERAGE: Duration = Duration::from_secs(10);
const BLOCK: u64 = 4096;

/// Starts an agent that records into `recording` with this budget.
fn agent(folder: &Path, budget: &str, more: &[&str]) -> (Service, String) {
    let recording = folder.join("recording").display().to_string();
    let args = ["agent", "--record", &recording, "--budget", budget, "--metrics", "127.0.0.1:0"];
    let agent = Service::start(folder, "agent", &[&args[..], more].concat());
    agent.wait_for_output("tracing; events go", LIMIT);
    let address = metrics::address(&agent.output()).to_owned();
    (agent, address)
}

/// Reads blocks of the disk one after another while `body` runs, and returns their number.
fn with_reads(disk: &Disk, body: impl FnOnce()) -> u64 {
    let (stop, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            let device = direct::open(disk.node());
            while !stop.load(Relaxed) {
                direct::read_at(&device, reads.fetch_add(1, Relaxed) % 256 * BLOCK).unwrap();
            }
        });
        // A failed assertion must not leave the reader running.
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Relaxed);
            }
        }
        let _stop = Stop(&stop);
        body();
    });
    reads.into_inner()
}

#[test]
fn fewer_operations_are_recorded_and_each_has_its_ratio() {
    needs!("losetup");
    let disk = or_skip!(Disk::raw(1 << 20));
    let folder = tempfile::tempdir().unwrap();
    let (agent, address) = agent(folder.path(), "0.01%", &["--sample", "1/4"]);
    let value = |name: &str| metrics::value(&metrics::get(&address, "/metrics"), name);
    assert_eq!(value("blkkin_budget_ratio"), 0.0001);
    let reads = with_reads(&disk, || {
        assert!(eventually(|| value("blkkin_budget_recorded_one_in") >= 64.0), "{}", agent.output());
        // A ten-thousandth is less than the probes take.
        assert!(eventually(|| value("blkkin_budget_exceeded") == 1.0), "{}", agent.output());
    });
    let text = metrics::get(&address, "/metrics");
    let one_in = metrics::value(&text, "blkkin_budget_recorded_one_in");
    assert!(metrics::value(&text, "blkkin_budget_changes_total") >= 1.0);
    let [found, documented] = [metrics::families(&text), metrics::documented_families()]
        .map(|names| names.into_iter().filter(|name| metrics::is_budget_family(name)).collect::<Vec<_>>());
    assert_eq!(found, documented, "the table in docs/operating.md");
    let output = agent.finish_without_error();
    assert!(output.contains("the probes themselves are too dear for it"), "{output}");

    let batches = agent_recording::batches(&folder.path().join("recording"));
    let stats = &batches.last().unwrap().stats;
    let known = stats.calls.fired + stats.calls_filtered + stats.calls_unsampled;
    println!("{reads} reads, one in {one_in} at the end; {} dropped\n{output}", stats.calls_unsampled);
    // Some calls of the machine are open at the end.
    assert!(known <= stats.calls_entered && stats.calls_entered - known < 1_000, "{stats:#?}");
    assert!(stats.calls_unsampled > reads / 4, "{stats:#?}");
    let mut by_ratio = [0_u64; HeadSampling::MIN_RATIO.log2() as usize + 1];
    for event in batches.iter().flat_map(|batch| &batch.events) {
        let (id, sampling) = match event {
            LayerEvent::Syscall(call) if call.context.is_none() && !agent_recording::is_truncation(call) => {
                (call.span.0, call.sampling)
            }
            LayerEvent::AsyncIo(io) if io.submitter.is_none() => (io.span.0, io.sampling),
            _ => continue,
        };
        by_ratio[usize::from(sampling.log2())] += 1;
        let threshold = (1_u64 << 56) - (1 << (56 - sampling.log2()));
        assert!(id & ((1 << 56) - 1) >= threshold, "{id:x} {sampling:?}");
    }
    println!("{by_ratio:?} operations by the logarithm of the ratio");
    assert!(
        by_ratio[..2] == [0, 0] && by_ratio[2] > 0,
        "the ratio of the option is the greatest: {by_ratio:?}"
    );
}

#[test]
fn the_cost_is_that_of_the_kernels_own_statistics() {
    needs!("losetup");
    let disk = or_skip!(Disk::raw(1 << 20));
    let folder = tempfile::tempdir().unwrap();
    let (agent, address) = agent(folder.path(), "50%", &[]);
    // No clock is read in it, and no CPU takes a microsecond to call a function.
    let run = metrics::value(&metrics::get(&address, "/metrics"), "blkkin_budget_run_seconds");
    println!("{run} s for each run of a program");
    assert!((1e-9..1e-6).contains(&run), "{run}");
    let _statistics = ProgramStatistics::enable();
    let mut difference = Vec::new();
    with_reads(&disk, || {
        thread::sleep(Duration::from_secs(2));
        let (before, begun) = (cost(agent.id()), Instant::now());
        thread::sleep(AVERAGE);
        let (after, seconds) = (cost(agent.id()), begun.elapsed().as_secs_f64());
        let text = metrics::get(&address, "/metrics");
        assert_eq!(metrics::value(&text, "blkkin_budget_recorded_one_in"), 1.0, "{}", agent.output());
        for (part, name) in
            ["blkkin_budget_kernel_ratio", "blkkin_budget_agent_ratio"].into_iter().enumerate()
        {
            let by_kernel = (after[part] - before[part]) / seconds / cpus() as f64;
            difference.push((name, metrics::value(&text, name), by_kernel));
        }
    });
    agent.finish_without_error();
    println!("{difference:?}");
    for (name, own, by_kernel) in difference {
        // The kernel's statistics include a reading of the clock in each run.
        assert!(own > 0.65 * by_kernel && own < 1.5 * by_kernel, "{name}: {own}, not {by_kernel}");
    }
}

/// Two agents next to each other, of which one counts all requests too. Neither records one.
#[test]
fn the_cost_of_totals_is_part_of_it() {
    needs!("losetup");
    let disk = or_skip!(Disk::raw(1 << 20));
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let none = ["--comm", "no such task"];
    let (plain, address) = agent(folders[0].path(), "50%", &none);
    let (counting, of_counting) = agent(folders[1].path(), "50%", &[&none[..], &["--totals"]].concat());
    let mut costs = [0.0; 2];
    let reads = with_reads(&disk, || {
        thread::sleep(AVERAGE);
        costs = [&address, &of_counting]
            .map(|address| metrics::value(&metrics::get(address, "/metrics"), "blkkin_budget_kernel_ratio"));
    });
    plain.finish_without_error();
    counting.finish_without_error();
    let [plain, counting] = costs;
    let ns = (counting - plain) * cpus() as f64 * AVERAGE.as_nanos() as f64 / reads as f64;
    println!("{plain} without totals, {counting} with totals: {ns} ns for each of {reads} reads");
    // Three more programs for each request. Whatever else the machine does is in both.
    assert!((75.0..5_000.0).contains(&ns), "{ns}");
}

/// The kernel's statistics of eBPF programs, until the value is dropped.
struct ProgramStatistics(String);

const STATISTICS: &str = "/proc/sys/kernel/bpf_stats_enabled";

impl ProgramStatistics {
    fn enable() -> ProgramStatistics {
        let before = fs::read_to_string(STATISTICS).unwrap();
        fs::write(STATISTICS, "1").unwrap();
        ProgramStatistics(before)
    }
}

impl Drop for ProgramStatistics {
    fn drop(&mut self) {
        let _ = fs::write(STATISTICS, &self.0);
    }
}

/// Returns the seconds that the programs of a process took so far, and the process' own CPU time.
fn cost(process: u32) -> [f64; 2] {
    let mut programs = std::collections::BTreeMap::new();
    for entry in fs::read_dir(format!("/proc/{process}/fdinfo")).unwrap().flatten() {
        let text = fs::read_to_string(entry.path()).unwrap_or_default();
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|value| value.trim().parse::<u64>().ok())
        };
        // A link names its program too, without its time.
        if let (Some(program), Some(time)) = (field("prog_id"), field("run_time_ns")) {
            programs.insert(program, time);
        }
    }
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    // utime and stime, fields 14 and 15 of proc_pid_stat(5), of which the first two are cut off: ticks of 10 ms.
    let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().unwrap()).sum();
    [programs.values().sum::<u64>() as f64 / 1e9, ticks as f64 / 100.0]
}
