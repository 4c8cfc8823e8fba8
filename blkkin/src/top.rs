//! `blkkin top`: which programs use the disks, live, from totals that the kernel counts.
//!
//! *In*: the totals of block requests ([`blkkin_tracer::totals`]), once an interval. *Out*: a screen, or lines of text
//! or JSON. No request is recorded, so this costs a part of what `blkkin trace` does (docs/top.md).
//!
//! - [`sample`] is what was counted in one interval, and groups it.
//! - [`view`] lays out a sample as lines; [`json`] writes it for programs.
//! - [`screen`] shows lines on a terminal and reads keys.
//! - [`cgroup_names`] finds the path of a cgroup.
//!
//! *Invariant*: each request that completed in an interval is in exactly one row of each table, and what was not
//! counted is named on the screen.

mod cgroup_names;
mod json;
mod sample;
mod screen;
mod view;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use blkkin_tracer::totals::{KeyKind, RequestCounter};
use blkkin_tracer::{Filter, TraceScope, TracerConfig};

use crate::cli::{TopArgs, units};
use crate::control::ControlReceiver;
use crate::error::{CliError, Status};
use crate::filter;
use crate::terminal;

use cgroup_names::CgroupNames;
use sample::{Sample, Sampler};
use screen::{Action, Screen};
use view::View;

/// Shortest interval: reading the totals takes some ms.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Shows the totals until the user ends it, or for `--count` intervals.
pub(crate) fn top(args: &TopArgs) -> Result<ExitCode, CliError> {
    let interval = units::std_duration("--interval", &args.interval)?;
    if interval < INTERVAL_MIN {
        return Err(CliError::usage(
            format!("--interval {} is too short", args.interval),
            "reading the totals takes some milliseconds",
            "--interval 100ms or more",
        ));
    }
    let devices = filter::disks(&args.device)?;
    let mut control = ControlReceiver::open()?;
    let config = TracerConfig {
        scope: TraceScope::All,
        filter: Filter { devices, ..Filter::default() },
        ..TracerConfig::default()
    };
    let counter = RequestCounter::load(&config, KeyKind::Submitter)?;
    let mut sampler = Sampler::start(counter)?;
    let interactive = !args.json && args.count.is_none() && io::stdout().is_terminal();
    if interactive {
        return on_screen(&mut sampler, interval, &mut control, args);
    }
    let mut names = CgroupNames::default();
    let style = terminal::style(args.color, &io::stdout());
    let view = View::new(args.by, false);
    let mut left = args.count;
    while left != Some(0) {
        if wait(&mut control, interval) {
            break;
        }
        let sample = sampler.next()?;
        let text = match args.json {
            true => format!("{}\n", json::of(&sample, &mut names)),
            false => view.lines(&sample, &mut names, &style, None).join("\n") + "\n\n",
        };
        if io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush()).is_err() {
            // Its reader has ended.
            break;
        }
        left = left.map(|left| left - 1);
    }
    Ok(Status::Success.code())
}

/// Waits for this time. Returns whether a signal ended the wait.
fn wait(control: &mut ControlReceiver, time: Duration) -> bool {
    let until = Instant::now() + time;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        if control.next(left).is_some() {
            return true;
        }
    }
}

fn on_screen(
    sampler: &mut Sampler,
    interval: Duration,
    control: &mut ControlReceiver,
    args: &TopArgs,
) -> Result<ExitCode, CliError> {
    let mut names = CgroupNames::default();
    let mut view = View::new(args.by, true);
    let mut screen = Screen::open()?;
    let mut sample = Sample::default();
    let mut next = Instant::now() + interval;
    loop {
        let style = terminal::style(args.color, &io::stdout());
        screen.draw(&view.lines(&sample, &mut names, &style, Some(screen.rows())))?;
        match screen.wait(next)? {
            Action::Quit => break,
            Action::Redraw => {}
            Action::Key(key) => view.on_key(key),
            Action::Due => {
                next += interval;
                let new = sampler.next()?;
                view.remember(&new);
                if !view.is_paused {
                    sample = new;
                }
            }
        }
        if control.next(Duration::ZERO).is_some() {
            break;
        }
    }
    Ok(Status::Success.code())
}
