//! A crate that depends on blkkin-ust and sets nothing: its events arrive, each with its fields, and add up.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

mod support;

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Write as _};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::LazyLock;

use support::{Event, Fresh, Lttng, batch, succeed};

/// The crate, built for debugging.
static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| Fresh::traced().build("debug"));

fn lttng() -> Option<Lttng> {
    Lttng::start().map_err(|why| println!("skipped: {why}")).ok()
}

#[test]
fn every_call_arrives_in_debug_and_release() {
    let Some(lttng) = lttng() else { return };
    for profile in ["debug", "release"] {
        let program = lttng.install(&Fresh::traced().build(profile));
        lttng.record(profile, &["blkkin:*"], &[]);
        let said = succeed(lttng.command(program).arg("spans").output().unwrap());
        let told: Vec<String> = lttng.finish(profile).iter().map(Event::line).collect();
        assert_eq!(told, said.lines().collect::<Vec<_>>(), "{profile}");
        assert_eq!(told.len(), 14);
    }
}

/// What is said together is what is said one by one: to a session that does not know of it, one by one; else in few events.
#[test]
fn what_is_said_together_is_the_same() {
    let Some(lttng) = lttng() else { return };
    let program = lttng.install(&PROGRAM);
    let run = |session: &str, events: &[&str]| {
        lttng.record(session, events, &[]);
        let said = succeed(lttng.command(&program).arg("together").output().unwrap());
        let events = lttng.finish(session);
        (said.lines().map(str::to_owned).collect::<Vec<_>>(), events)
    };
    let known = ["begin", "end", "enter", "leave", "event", "text", "number", "meeting"];
    let known = known.map(|name| format!("blkkin:{name}"));
    let (said, events) = run("before", &known.each_ref().map(String::as_str));
    assert_eq!(events.iter().map(Event::line).collect::<Vec<_>>(), said);
    let (said, events) = run("now", &["blkkin:*"]);
    assert_eq!(batch::lines(&events), said);
    println!("{} things in {} events", said.len(), events.len());
    assert!(events.len() * 10 < said.len(), "{} events", events.len());
}

/// To a session that has no enters what threads work for is said only where they do not publish it.
#[test]
fn who_publishes_what_it_works_for_need_not_say_it() {
    let Some(lttng) = lttng() else { return };
    let program = lttng.install(&PROGRAM);
    let events =
        ["begin", "end", "text", "number", "event", "meeting", "together", "unseen_enter", "unseen_leave"];
    let events = events.map(|name| format!("blkkin:{name}"));
    for (publishes, expected) in [("1", 0), ("0", 3)] {
        lttng.record(publishes, &events.each_ref().map(String::as_str), &[]);
        let mut command = lttng.command(&program);
        succeed(command.arg("together").env("BLKKIN_UST_CONTEXT", publishes).output().unwrap());
        let told = lttng.finish(publishes);
        let count = |name: &str| told.iter().filter(|event| event.name == name).count();
        assert_eq!((count("blkkin:unseen_enter"), count("blkkin:unseen_leave")), (expected, expected));
        assert_eq!(batch::lines(&told).iter().filter(|line| line.starts_with("blkkin:begin")).count(), 40);
    }
}

#[test]
fn what_was_given_is_what_was_recorded_and_discarded() {
    let Some(lttng) = lttng() else { return };
    let program = lttng.install(&PROGRAM);
    lttng.record("storm", &["blkkin:*"], &["--subbuf-size=4K", "--num-subbuf=2"]);
    let said = succeed(lttng.command(program).args(["storm", "3", "40000"]).output().unwrap());
    let (events, discarded) = lttng.finish_counting("storm");
    let recorded = events.len() as u64;
    let given: u64 = said.trim().parse().unwrap();
    println!("given {given}, recorded {recorded}, discarded {discarded}");
    assert_eq!(given, 6 * 40_002);
    assert!(discarded > 0, "the buffers took everything");
    assert_eq!(given, recorded + discarded);
}

#[test]
fn sampling_keeps_about_the_rate_and_tells_the_part() {
    let Some(lttng) = lttng() else { return };
    let program = lttng.install(&PROGRAM);
    lttng.record("sampled", &["blkkin:*"], &["--subbuf-size=1M"]);
    let (rate, seconds) = (200, 5);
    let command = ["sampled".to_owned(), rate.to_string(), seconds.to_string()];
    let made: f64 = succeed(lttng.command(program).args(command).output().unwrap()).trim().parse().unwrap();
    let events = lttng.finish("sampled");
    let begins = events.iter().filter(|event| event.name == "blkkin:begin");
    let (roots, parts): (Vec<_>, Vec<_>) = begins.partition(|event| event.number("parent") == 0);
    assert_eq!(roots.len(), parts.len(), "a root that is kept keeps its part");
    let weights = roots.iter().map(|event| 1e6 / event.number("kept_per_million") as f64);
    let (sum, squares) = weights.fold((0.0, 0.0), |(sum, squares), w| (sum + w, squares + w * (w - 1.0)));
    println!("made {made}, kept {}, weighed {sum:.0} ± {:.0}", roots.len(), squares.sqrt());
    // The weights estimate how many began, without bias; six of their own standard deviations are never seen.
    assert!((sum - made).abs() <= 6.0 * squares.sqrt(), "made {made}, weighed {sum}");
    // The first second may keep rate * (2 + log2(load / rate)) before it knows.
    let first = f64::from(rate) * (2.0 + (made / f64::from(rate)).log2());
    let bound = first + f64::from(rate * seconds) * 2.0;
    assert!((roots.len() as f64) < bound && roots.len() as f64 > f64::from(rate * seconds) / 4.0);
}

#[test]
fn a_forked_child_is_silent_or_followed() {
    let Some(lttng) = lttng() else { return };
    let program = lttng.install(&PROGRAM);
    let run = |how: &str, preload: Option<&str>| {
        lttng.record(how, &["blkkin:*"], &[]);
        let mut command = lttng.command(&program);
        command.args(["forks", how]);
        preload.inspect(|library| {
            command.env("LD_PRELOAD", library);
        });
        let said = succeed(command.output().unwrap());
        let (child_said, ids) = said.trim_end().split_once('\n').unwrap();
        let (parent, child) = ids.split_once(' ').unwrap();
        let (parent, child): (u32, u32) = (parent.parse().unwrap(), child.parse().unwrap());
        let events = lttng.finish(how);
        let begins: Vec<(String, bool)> = events
            .iter()
            .filter(|event| event.name == "blkkin:begin")
            .map(|event| (event.field("name").to_owned(), event.vpid == child))
            .collect();
        assert!(events.iter().all(|event| [parent, child].contains(&event.vpid)));
        (child_said.to_owned(), begins)
    };
    let (parent, again) = (("parent".to_owned(), false), ("parent again".to_owned(), false));
    let (said, begins) = run("silent", None);
    assert!(said.starts_with("0 forked from a process that was connected"), "{said}");
    assert_eq!(begins, [parent.clone(), again.clone()]);
    let all = [parent, ("child".to_owned(), true), again];
    let (said, begins) = run("followed", None);
    assert_eq!(said.trim(), "2");
    assert_eq!(begins, all);
    // LTTng's own library does the same, and both together do it once.
    for how in ["preloaded", "followed"] {
        let (said, begins) = run(how, Some("liblttng-ust-fork.so.1"));
        assert_eq!((said.trim(), &begins[..]), ("2", &all[..]), "{how}, preloaded");
    }
}

#[test]
fn a_future_works_for_its_span_in_every_poll_and_on_every_thread() {
    let Some(lttng) = lttng() else { return };
    let program = lttng.install(&PROGRAM);
    lttng.record("hops", &["blkkin:*"], &["--subbuf-size=4M"]);
    let (tasks, awaits) = (40, 50);
    succeed(lttng.command(program).args(["hops", &tasks.to_string(), &awaits.to_string()]).output().unwrap());
    let events = lttng.finish("hops");
    // For each thread, the spans it works for, outermost first; for each span, where it began and is said to be.
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
            "blkkin:leave" => assert_eq!(stack.pop(), Some(span), "they nest"),
            "blkkin:number" if event.field("key") == "outer" => {
                assert_eq!(stack.last(), Some(&span));
                outer += 1;
            }
            "blkkin:number" => {
                // Said about the task's span by the part that is worked for.
                let part = event.number("val");
                assert_eq!(stack.as_slice(), [span, part]);
                assert_eq!(parents[&part], span);
                inner += 1;
            }
            "blkkin:end" => {
                let elsewhere = working.values().flatten().filter(|&&open| open == span).count();
                assert_eq!(elsewhere, 0, "ended while worked for");
            }
            other => panic!("{other}"),
        }
    }
    assert_eq!((outer, inner), (tasks * awaits, tasks * awaits));
    let hopped = threads.values().filter(|threads| threads.len() > 1).count();
    println!("{hopped} of {} spans were worked for by several threads", threads.len());
    assert!(hopped > 0, "no task changed its thread");
    assert!(working.values().all(Vec::is_empty));
}

#[test]
fn what_began_before_the_session_does_not_hide_what_begins_after() {
    let Some(lttng) = lttng() else { return };
    let program = lttng.install(&PROGRAM);
    let mut late = lttng.command(program);
    let mut child = late.arg("late").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(said.next().unwrap().unwrap(), "ready");
    lttng.record("late", &["blkkin:*"], &[]);
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    assert!(child.wait().unwrap().success());
    let events = lttng.finish("late");
    assert_eq!(events.len(), 2, "{events:?}");
    assert_eq!((events[0].field("name"), events[0].number("parent")), ("request", 0));
    assert_eq!(events[1].name, "blkkin:end");
}
