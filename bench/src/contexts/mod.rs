//! `contexts`: what a traced call costs more where its thread says for which span it works (OpenTelemetry's thread context).
//!
//! The call is the cheapest that is followed, `msync(0, 0, 0)`. Each round measures it in a traced process six times, each under
//! a tracer of its own: where nobody's contexts are read (`--contexts off`); where they are, in a process that publishes nothing; in one
//! that publishes by a library whose variable is at a distance from the thread pointer; in one that says attributes besides, in a record that
//! is a cache line with them; by one whose variable the thread's vector leads to
//! (DTV), which is walked once a thread; and in a thread of such a process that has not published yet, where it is walked at each call,
//! since nothing is there to be remembered. The library is compiled here, so without a C compiler there is no figure.
//!
//! What the kernel's helper takes for such reads by itself is said beside ([`floor`]).
//!
//! *Invariant*: a way counts only if its calls were made for the span, or for none, as it says: the tracer's own events are counted.

mod floor;

use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use blkkin_tracer::{ContextPolicy, TracerConfig};

use crate::calls::{Call, Target};
use crate::frame::{Figure, Found, Goal, Rounds, Table, Turns};
use crate::harness::{self, Running};
use crate::{Setting, affinity, library};

const TURNS: Turns = Turns { warm_up: 1, least: 9, most: 15, at_most: Duration::from_secs(180) };
/// Chunks of 1,000 calls.
const CHUNKS: &str = "400";
const CHUNKS_QUICK: &str = "40";
/// ns; a tenth of the goals.
const SPREAD_ENOUGH: f64 = 13.0;
/// Calls are made and not measured, until the variable is found: some ms behind the library's being mapped, on a quiet machine.
const FOUND_WITHIN: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Off,
    Silent,
    Distance,
    Attributes,
    Vector,
    Walked,
}

impl Way {
    const ALL: [Way; 6] = [Way::Off, Way::Silent, Way::Distance, Way::Attributes, Way::Vector, Way::Walked];

    fn name(self) -> &'static str {
        match self {
            Way::Off => "contexts are not read",
            Way::Silent => "the process publishes nothing",
            Way::Distance => "published, at a distance from the thread pointer",
            Way::Attributes => "the same with two attributes (36 bytes)",
            Way::Vector => "published, behind the thread's vector (walked once)",
            Way::Walked => "not published yet by this thread, the vector walked at each call",
        }
    }

    /// What its calls are compared with, and how much dearer they may be.
    fn above(self) -> Option<(Way, f64)> {
        match self {
            Way::Off => None,
            Way::Silent => Some((Way::Off, 10.0)),
            Way::Distance | Way::Vector => Some((Way::Silent, 130.0)),
            // One more read of the process's memory (57), and a record of no fixed size (10).
            Way::Attributes => Some((Way::Distance, 90.0)),
            Way::Walked => Some((Way::Silent, 250.0)),
        }
    }

    fn publishes(self) -> bool {
        self.word() != "keep"
    }

    /// What the load is told.
    fn word(self) -> &'static str {
        match self {
            Way::Off | Way::Silent | Way::Walked => "keep",
            Way::Distance | Way::Vector => "publish",
            Way::Attributes => "say",
        }
    }

    /// What the compiler is told of the library.
    fn model(self) -> Option<&'static str> {
        match self {
            Way::Off | Way::Silent => None,
            Way::Distance | Way::Attributes => Some("-ftls-model=initial-exec"),
            // Elsewhere the compilers know descriptors only, which lead to a distance.
            Way::Vector | Way::Walked => Some("-mtls-dialect=gnu"),
        }
    }
}

/// Measures.
pub(crate) fn run(setting: &Setting) -> Result<Found> {
    let quick = setting.extent.is_quick();
    let chunks = if quick { CHUNKS_QUICK } else { CHUNKS };
    let folder = tempfile::tempdir()?;
    let libraries = Way::ALL.map(|way| way.model().map(|model| library(folder.path(), model)).transpose());
    let libraries = libraries.into_iter().collect::<Result<Vec<_>>>()?;
    let (mut lost, all) = (0, affinity::cpus());
    let one = |way: Way| {
        let place = Way::ALL.iter().position(|one| *one == way).unwrap_or_default();
        measured(way, libraries[place].as_deref(), chunks, &mut lost)
    };
    let enough = |rounds: &[Vec<f64>]| {
        let above = Way::ALL.into_iter().filter_map(|way| above(rounds, way));
        above.map(|rounds| rounds.spread()).all(|spread| spread < SPREAD_ENOUGH)
    };
    let rounds = TURNS.quick(quick).run(&Way::ALL, one, enough)?;
    affinity::pin(&[affinity::load_cpu()]).context("cannot bind this process to a CPU")?;
    let reads = [8, 28, 36].map(floor::read).into_iter().collect::<Result<Vec<_>>>();
    affinity::pin(&all).context("cannot unbind this process")?;
    Ok(found(&rounds, &reads?, lost))
}

fn library(folder: &Path, model: &str) -> Result<PathBuf> {
    library::compile(folder, &format!("slot{model}"), include_str!("slot.c"), model)
}

/// ns a call.
fn measured(way: Way, library: Option<&Path>, chunks: &str, lost: &mut u64) -> Result<f64> {
    let contexts = if way == Way::Off { ContextPolicy::None } else { ContextPolicy::All };
    let tracer = harness::tracer_with(&TracerConfig { contexts, ..TracerConfig::default() })?;
    let library = library.map_or("-".into(), Path::to_string_lossy);
    let folder = tempfile::tempdir()?;
    let go = folder.path().join("go");
    let words = ["measure-context", chunks, &library, way.word(), &go.to_string_lossy()];
    let load = harness::traced_load(&tracer, &words)?;
    let running = Running::start(tracer);
    let begun = Instant::now();
    while way.model().is_some() && running.publishing() == 0 && begun.elapsed() < FOUND_WITHIN {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::fs::write(&go, "")?;
    let answer = harness::answer(load)?;
    let done = running.finish()?;
    *lost += done.accounts.lost();
    let (all, below) = (done.accounts.calls.recorded, done.in_contexts);
    let said = done.with_attributes;
    let as_said = if way.publishes() { below > all / 2 } else { below == 0 };
    let with = if way == Way::Attributes { said > all / 2 } else { said == 0 };
    if !as_said || !with {
        bail!("{}: of {all} calls {below} were made for a span, {said} with attributes", way.name());
    }
    answer.trim().parse().context("a load says ns")
}

/// In the process that is traced: `measure-context CHUNKS LIBRARY|- publish|say|keep GO`; it measures once the file GO is there.
pub(crate) fn load(chunks: usize, library: &str, word: &str, go: &Path) -> Result<()> {
    affinity::pin(&[affinity::load_cpu()])?;
    affinity::prefer_this_process();
    if library != "-" {
        let publish = publisher(library)?;
        let record: Option<&[u8]> = match word {
            "publish" => Some(&RECORD),
            "say" => Some(&SAYING),
            _ => None,
        };
        if let Some(record) = record {
            // Written by this process, as a program's own is: a page of the file that nobody has touched is not there to be read.
            let record = record.to_vec().leak();
            // SAFETY: the library's own function, and a record that lives as long as the process.
            unsafe { publish(record.as_ptr().cast()) };
        }
    }
    let target = Target::new()?;
    while !go.exists() {
        target.measure(Call::Msync, 1);
    }
    println!("{:.2}", target.measure(Call::Msync, chunks));
    Ok(())
}

/// Trace and span of ones, valid, sampled, without attributes.
static RECORD: [u8; 28] = {
    let mut record = [1; 28];
    (record[26], record[27]) = (0, 0);
    record
};

/// The same with two of them, a number, a length and 16 bytes of text each.
static SAYING: [u8; 64] = {
    let mut record = [b'x'; 64];
    let mut at = 0;
    while at < 26 {
        record[at] = 1;
        at += 1;
    }
    let bytes = 36u16.to_ne_bytes();
    (record[26], record[27]) = (bytes[0], bytes[1]);
    (record[28], record[29], record[46], record[47]) = (0, 16, 1, 16);
    record
};

type Publish = unsafe extern "C" fn(*const c_void);

fn publisher(library: &str) -> Result<Publish> {
    let function = library::function(library, "publish")?;
    // SAFETY: `slot.c` has it so.
    Ok(unsafe { std::mem::transmute::<*mut c_void, Publish>(function) })
}

fn of(rounds: &[Vec<f64>], way: Way) -> Rounds {
    let place = Way::ALL.iter().position(|one| *one == way).unwrap_or_default();
    rounds[place].iter().copied().collect()
}

/// ns above what it is compared with, round by round.
fn above(rounds: &[Vec<f64>], way: Way) -> Option<Rounds> {
    let (base, _) = way.above()?;
    Some(Rounds::differences(&of(rounds, way), &of(rounds, base)))
}

fn found(rounds: &[Vec<f64>], reads: &[Rounds], lost: u64) -> Found {
    let mut table = Table::new("", &["a traced msync(0, 0, 0)", "ns", "above", "of"]);
    let mut figures = Vec::new();
    for way in Way::ALL {
        let shown = |rounds: &Rounds| crate::frame::number::with_spread(rounds.median(), rounds.spread());
        let (time, above) = (of(rounds, way), above(rounds, way));
        let base = way.above().map_or("", |(base, _)| base.name());
        table.row([
            way.name().to_owned(),
            shown(&time),
            above.as_ref().map_or(String::new(), shown),
            base.to_owned(),
        ]);
        if let (Some(above), Some((base, goal))) = (above, way.above()) {
            let ratios = Rounds::ratios(&time, &of(rounds, base));
            let figure = Figure::of(way.name(), &above, "ns above").ratio(&ratios);
            figures.push(figure.goal(Goal::AtMost(goal)));
        }
    }
    let how = format!(
        "ns a traced call; medians of {} rounds of {CHUNKS},000 calls of each, in turns, each under a tracer that was loaded for it. The load \
         runs on CPU {}, the reader on the others. Counted besides: how many calls were made for a span.",
        rounds[0].len(),
        affinity::load_cpu()
    );
    let lost = format!("{lost} records were lost meanwhile: a full ring makes a call cheaper.");
    let shown: Vec<String> =
        reads.iter().map(|read| crate::frame::number::with_spread(read.median(), read.spread())).collect();
    let floor = format!(
        "The kernel's helper by itself, 64 reads of this process's memory in a row: {} ns for 8 bytes, {} for 28, {} for 36. A context is the first \
         two of these, {} ns; attributes are one more.",
        shown[0],
        shown[1],
        shown[2],
        crate::frame::number::number(reads[0].median() + reads[1].median()),
    );
    Found { how, figures, tables: vec![table], notes: vec![lost, floor], ..Found::default() }
}
