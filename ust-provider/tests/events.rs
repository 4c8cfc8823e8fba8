//! Events of a crate that depends on blkkin-ust and sets no flag: all are recorded with their
//! fields, and accounted for.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking, and prints results")]

mod support;

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Write as _};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::LazyLock;

use support::{Event, Lttng, UserCrate, succeed};

/// Debug build of the crate.
static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| UserCrate::traced().build("debug"));

#[test]
fn every_call_is_recorded_in_debug_and_release_builds() {
    let Some(lttng) = Lttng::start_or_skip() else { return };
    for profile in ["debug", "release"] {
        // Another build would remove the program while another test copies it.
        let built = if profile == "debug" { PROGRAM.clone() } else { UserCrate::traced().build(profile) };
        let program = lttng.install(&built);
        lttng.record(profile, &["blkkin:*"], &[]);
        let stdout = succeed(lttng.command(program).arg("spans").output().unwrap());
        let recorded: Vec<String> = lttng.finish(profile).iter().map(Event::line).collect();
        assert_eq!(recorded, stdout.lines().collect::<Vec<_>>(), "{profile}");
        assert_eq!(recorded.len(), 14);
    }
}

/// A session without `switch_span` receives separate events with the same meaning.
#[test]
fn a_sequence_switches_spans_by_one_event() {
    let Some(lttng) = Lttng::start_or_skip() else { return };
    let program = lttng.install(&PROGRAM);
    let run = |session: &str, events: &[&str]| {
        lttng.record(session, events, &[]);
        let stdout = succeed(lttng.command(&program).arg("sequence").output().unwrap());
        let lines: Vec<String> = lttng.finish(session).iter().map(Event::line).collect();
        (stdout.lines().map(str::to_owned).collect::<Vec<_>>(), lines)
    };
    let events = ["begin", "end", "enter", "leave"].map(|name| format!("blkkin:{name}"));
    let (emitted, lines) = run("before", &events.each_ref().map(String::as_str));
    assert_eq!(lines, emitted);
    let (emitted, lines) = run("now", &["blkkin:*"]);
    let switch = |pair: &[String]| {
        let [left, span] = [&pair[0], &pair[1]].map(|line| line.split(' ').nth(4).unwrap());
        format!("blkkin:switch_span {{ left = {left}, span = {span} }}")
    };
    let switches = [switch(&emitted[4..6]), switch(&emitted[6..8])];
    assert_eq!(lines, [&emitted[..4], &switches, &emitted[8..]].concat());
}

/// A session without enter events receives the current spans only if threads do not publish them.
#[test]
fn a_process_that_publishes_thread_contexts_emits_no_unpublished_events() {
    let Some(lttng) = Lttng::start_or_skip() else { return };
    let program = lttng.install(&PROGRAM);
    let events =
        ["begin", "end", "unpublished_enter", "unpublished_leave"].map(|name| format!("blkkin:{name}"));
    for (publishes, expected) in [("1", 0), ("0", 3)] {
        lttng.record(publishes, &events.each_ref().map(String::as_str), &[]);
        let mut command = lttng.command(&program);
        succeed(command.arg("sequence").env("BLKKIN_UST_CONTEXT", publishes).output().unwrap());
        let recorded = lttng.finish(publishes);
        let count = |name: &str| recorded.iter().filter(|event| event.name == name).count();
        assert_eq!(
            (count("blkkin:unpublished_enter"), count("blkkin:unpublished_leave")),
            (expected, expected)
        );
        assert_eq!(count("blkkin:begin"), 3);
    }
}

#[test]
fn passed_events_are_recorded_or_discarded() {
    let Some(lttng) = Lttng::start_or_skip() else { return };
    let program = lttng.install(&PROGRAM);
    lttng.record("storm", &["blkkin:*"], &["--subbuf-size=4K", "--num-subbuf=2"]);
    let stdout = succeed(lttng.command(program).args(["storm", "3", "40000"]).output().unwrap());
    let (events, discarded) = lttng.finish_counting("storm");
    let recorded = events.len() as u64;
    let passed: u64 = stdout.trim().parse().unwrap();
    println!("passed {passed}, recorded {recorded}, discarded {discarded}");
    assert_eq!(passed, 6 * 40_002);
    assert!(discarded > 0, "the buffers were large enough");
    assert_eq!(passed, recorded + discarded);
}

/// Two threads begin some 40,000 roots per second: more than any of these rates.
#[test]
fn sampling_keeps_the_rate_and_the_weights_count_all_roots() {
    let Some(lttng) = Lttng::start_or_skip() else { return };
    let program = lttng.install(&PROGRAM);
    // 0 is the default rate.
    for (option, rate) in [(200, 200.0), (0, 1000.0)] {
        let session = format!("sampled-{option}");
        lttng.record(&session, &["blkkin:*"], &["--subbuf-size=1M"]);
        let seconds = 5;
        let args = ["sampled".to_owned(), option.to_string(), seconds.to_string()];
        let made: f64 = succeed(lttng.command(&program).args(args).output().unwrap()).trim().parse().unwrap();
        let (events, discarded) = lttng.finish_counting(&session);
        assert_eq!(discarded, 0);
        let of = |name: &'static str| events.iter().filter(move |event| event.name == name);
        let (roots, children): (Vec<_>, Vec<_>) =
            of("blkkin:begin").partition(|event| event.number("parent") == 0);
        assert!(roots.iter().all(|event| event.field("name") == "root"));
        // A kept root has its child, its attribute and both ends, and a dropped one has nothing.
        let ids = |events: &[&Event], field| {
            events
                .iter()
                .map(|event| (event.number(field), event.number("sampled_per_million")))
                .collect::<HashSet<_>>()
        };
        assert_eq!(ids(&roots, "span"), ids(&children, "parent"));
        let kept: HashSet<_> = roots.iter().chain(&children).map(|event| event.number("span")).collect();
        let number = |name| of(name).inspect(|event| assert!(kept.contains(&event.number("span")))).count();
        assert_eq!((number("blkkin:number"), number("blkkin:end")), (roots.len(), 2 * roots.len()));
        let weights: f64 = roots.iter().map(|event| 1e6 / event.number("sampled_per_million") as f64).sum();
        println!("rate {rate}: made {made}, kept {}, weights {weights}", roots.len());
        assert!((weights / made - 1.0).abs() < 0.01, "made {made}, weights {weights}");
        // Bound of the first second: rate * (2 + log2(load / rate)).
        let first = rate * (2.0 + (made / rate).log2());
        let kept = roots.len() as f64;
        assert!(kept < first + rate * f64::from(seconds) && kept > rate * f64::from(seconds) / 2.0);
    }
}

#[test]
fn a_forked_child_emits_events_only_if_forks_are_followed() {
    let Some(lttng) = Lttng::start_or_skip() else { return };
    let program = lttng.install(&PROGRAM);
    let run = |how: &str, preload: Option<&str>| {
        lttng.record(how, &["blkkin:*"], &[]);
        let mut command = lttng.command(&program);
        command.args(["forks", how]);
        preload.inspect(|library| {
            command.env("LD_PRELOAD", library);
        });
        let stdout = succeed(command.output().unwrap());
        let (child_stdout, ids) = stdout.trim_end().split_once('\n').unwrap();
        let (parent, child) = ids.split_once(' ').unwrap();
        let (parent, child): (u32, u32) = (parent.parse().unwrap(), child.parse().unwrap());
        let events = lttng.finish(how);
        let begins: Vec<(String, bool)> = events
            .iter()
            .filter(|event| event.name == "blkkin:begin")
            .map(|event| (event.field("name").to_owned(), event.vpid == child))
            .collect();
        assert!(events.iter().all(|event| [parent, child].contains(&event.vpid)));
        (child_stdout.to_owned(), begins)
    };
    let (parent, again) = (("parent".to_owned(), false), ("parent again".to_owned(), false));
    let (stdout, begins) = run("silent", None);
    assert!(stdout.starts_with("0 forked from a process that was connected"), "{stdout}");
    assert_eq!(begins, [parent.clone(), again.clone()]);
    let all = [parent, ("child".to_owned(), true), again];
    let (stdout, begins) = run("followed", None);
    assert_eq!(stdout.trim(), "2");
    assert_eq!(begins, all);
    // LTTng's own library has the same effect, and both together register the child once.
    for how in ["preloaded", "followed"] {
        let (stdout, begins) = run(how, Some("liblttng-ust-fork.so.1"));
        assert_eq!((stdout.trim(), &begins[..]), ("2", &all[..]), "{how}, preloaded");
    }
}

#[test]
fn an_instrumented_future_enters_its_span_in_every_poll_on_any_thread() {
    let Some(lttng) = Lttng::start_or_skip() else { return };
    let program = lttng.install(&PROGRAM);
    lttng.record("hops", &["blkkin:*"], &["--subbuf-size=4M"]);
    let (tasks, awaits) = (40, 50);
    succeed(lttng.command(program).args(["hops", &tasks.to_string(), &awaits.to_string()]).output().unwrap());
    let events = lttng.finish("hops");
    // For each thread, its entered spans, outermost first. For each span, the threads that entered
    // it, and its parent.
    let mut working: HashMap<u32, Vec<u64>> = HashMap::new();
    let mut threads: HashMap<u64, HashSet<u32>> = HashMap::new();
    let mut parents = HashMap::new();
    let (mut outer, mut inner) = (0, 0);
    for event in &events {
        let stack = working.entry(event.vtid).or_default();
        let span = event.number("span");
        match event.name.as_str() {
            "blkkin:begin" => assert_eq!(parents.insert(span, event.number("parent")), None),
            "blkkin:enter" => {
                stack.push(span);
                threads.entry(span).or_default().insert(event.vtid);
            }
            "blkkin:leave" => assert_eq!(stack.pop(), Some(span), "spans nest"),
            "blkkin:number" if event.field("key") == "outer" => {
                assert_eq!(stack.last(), Some(&span));
                outer += 1;
            }
            "blkkin:number" => {
                // Set for the task's span while its child is current.
                let child = event.number("val");
                assert_eq!(stack.as_slice(), [span, child]);
                assert_eq!(parents[&child], span);
                inner += 1;
            }
            "blkkin:end" => {
                let entered = working.values().flatten().filter(|&&open| open == span).count();
                assert_eq!(entered, 0, "ended while entered");
            }
            other => panic!("{other}"),
        }
    }
    assert_eq!((outer, inner), (tasks * awaits, tasks * awaits));
    let hopped = threads.values().filter(|threads| threads.len() > 1).count();
    println!("{hopped} of {} spans were entered by several threads", threads.len());
    assert!(hopped > 0, "no task moved to another thread");
    assert!(working.values().all(Vec::is_empty));
}

#[test]
fn a_span_from_before_the_session_does_not_hide_its_later_children() {
    let Some(lttng) = Lttng::start_or_skip() else { return };
    let program = lttng.install(&PROGRAM);
    let mut late = lttng.command(program);
    let mut child = late.arg("late").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    lttng.record("late", &["blkkin:*"], &[]);
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    assert!(child.wait().unwrap().success());
    let events = lttng.finish("late");
    assert_eq!(events.len(), 2, "{events:?}");
    assert_eq!((events[0].field("name"), events[0].number("parent")), ("request", 0));
    assert_eq!(events[1].name, "blkkin:end");
}
