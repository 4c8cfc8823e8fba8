//! `--probes`: what programs of others say at probes that their makers put into them (USDT), above what the kernel sees of it.
//!
//! ```text
//! thread "drain"                 thread "probes"                        thread "join"
//! Tracer::drain ── bus ────────── Listening ─┬─ Weave ─────────── bus ── Joiner
//!              └── hits, one a batch ── Probed ── Operations
//! ```
//!
//! *In*: files that name programs, their probes and what these mean; then the tracer's batches, and the hits before each. *Out*: the
//! batches with operations, and calls below them. *Invariant*: nothing waits for anything. Hits are of the tracer's own rings and clock,
//! in the order in which they came, so with a batch all is known that was said before its watermark; what was lost is known with it.
//!
//! All that can be refused is refused before anything is put into a program, and what a hit costs is said before that too. See
//! [`blkkin_ust_bridge::operations`] for which operation a call was made for: the rule is the one of daemons that speak by LTTng.

mod listening;
mod shown;

use std::fs;
use std::io;
use std::path::Path;
use std::sync::mpsc::Receiver;
use std::thread::{Builder, JoinHandle};

use blkkin_bus::{Publisher, Subscription};
use blkkin_tracer::usdt::hits::{HitBooks, Hits};
use blkkin_tracer::usdt::{self, Probe, UsdtError};
use blkkin_tracer::{Tracer, TracerConfig};
use blkkin_ust_bridge::mapping::config::Rule;
use blkkin_ust_bridge::mapping::probed::{Probed, ProbesFile, Shape};
use blkkin_wire::batch::EventBatch;

use crate::args::ProbesArgs;
use crate::failure::Failure;
use crate::nearest::nearest;
use crate::output::say;
use crate::run::cannot_trace;
use listening::{Heard, Listening};
pub(crate) use shown::{Shown, Told};

/// Probes that were found, and what they mean.
pub(crate) struct Wanted {
    probes: Vec<Probe>,
    rules: Vec<Rule>,
}

/// Probes that are listened to.
pub(crate) struct Probes {
    probed: Probed,
    hits: Receiver<Hits>,
}

/// At work.
pub(crate) struct AtWork {
    listening: JoinHandle<Heard>,
}

impl Wanted {
    /// Reads the files and looks for the probes; none where nobody asked.
    pub(crate) fn look_up(args: &ProbesArgs) -> Result<Wanted, Failure> {
        let mut wanted = Wanted { probes: Vec::new(), rules: Vec::new() };
        for path in &args.probes {
            wanted.add(path)?;
        }
        Ok(wanted)
    }

    fn add(&mut self, path: &Path) -> Result<(), Failure> {
        let what = || format!("cannot use the probes of {}", path.display());
        let remedy = "look at configs/mappings/postgresql.toml, which explains the form";
        let text = fs::read_to_string(path).map_err(|error| Failure::usage(what(), error, remedy))?;
        let file = ProbesFile::read(&text).map_err(|error| Failure::usage(what(), error, remedy))?;
        if let Some(event) = file.idle_rules().next() {
            let why = format!("a rule is about {event}, and no `probe` is called so");
            return Err(Failure::usage(what(), why, "name the probe in the file, or leave the rule out"));
        }
        if let Some(twice) =
            file.probe.iter().find(|asked| self.probes.iter().any(|known| known.name == asked.name))
        {
            let why = format!(
                "{} is asked for by a file before it, whose rules would be applied to both programs",
                twice.name
            );
            return Err(Failure::usage(what(), why, "trace one of the two programs at a time"));
        }
        let asked: Vec<_> = file.probe.iter().map(|asked| (asked.name.clone(), asked.text_of())).collect();
        let found = usdt::find(&file.program, &asked);
        self.probes.extend(found.map_err(|error| Failure::usage(what(), &error, remedy_for(&error)))?);
        self.rules.extend(file.rule);
        // So that a rule that does not fit is told with its file.
        Probed::new(self.shapes(), self.rules.clone())
            .map_err(|error| Failure::usage(what(), error, remedy))?;
        Ok(())
    }

    /// With these probes.
    pub(crate) fn tracer_config(&self, config: TracerConfig) -> TracerConfig {
        TracerConfig { probes: self.probes.clone(), ..config }
    }

    fn shapes(&self) -> Vec<Shape> {
        let shape = |probe: &Probe| Shape {
            name: probe.name.clone(),
            signed: probe
                .arguments
                .iter()
                .map(|argument| argument.is_read().then_some(argument.signed))
                .collect(),
            text: probe.text.is_some(),
        };
        self.probes.iter().map(shape).collect()
    }

    /// Says what a hit costs, and has the tracer put itself there.
    pub(crate) fn listen(self, tracer: &mut Tracer) -> Result<Option<Probes>, Failure> {
        let shapes = self.shapes();
        let Wanted { probes, rules } = self;
        let Some(ns) = tracer.hit_ns() else { return Ok(None) };
        for probe in &probes {
            say(&format!(
                "{} in {}: each hit costs about {:.1} µs here, of any process of that program",
                probe.name,
                probe.file.display(),
                ns / 1_000.0
            ));
        }
        let hits = tracer.put_probes().map_err(cannot_trace)?;
        let probed = Probed::new(shapes, rules).expect("invariant: it was made once, by the same words");
        Ok(hits.map(|hits| Probes { probed, hits }))
    }
}

impl Probes {
    /// Puts what `batches` brings together with what is heard, into `out`.
    pub(crate) fn start(
        self,
        batches: Subscription<EventBatch>,
        out: Publisher<EventBatch>,
        shown: &Shown,
    ) -> io::Result<AtWork> {
        let Probes { probed, hits } = self;
        let listening = Listening::new(probed, hits, shown.clone());
        let listening = Builder::new().name("probes".into()).spawn(move || listening.run(batches, out))?;
        Ok(AtWork { listening })
    }
}

impl AtWork {
    /// Waits for the end; what there is to say of it, in words and in numbers.
    pub(crate) fn collect(self, books: Option<HitBooks>) -> Result<(Vec<String>, Told), Failure> {
        let heard = self.listening.join();
        let heard = heard.map_err(|panic| crate::pipeline::broken("what probes say", &*panic))?;
        Ok((remarks(&heard, books.unwrap_or_default()), heard.told))
    }
}

fn remedy_for(error: &UsdtError) -> String {
    match error {
        UsdtError::Unknown { name, known, .. } => match nearest(name, known.iter().map(String::as_str)) {
            Some(meant) => format!("{meant}, if that is meant; `readelf -n` lists all {}", known.len()),
            None => format!("`readelf -n` lists all {}: {}, …", known.len(), known[0]),
        },
        UsdtError::File { .. } => {
            "name in `program` the file that the processes run, of a build with probes (PostgreSQL: --enable-dtrace)"
                .to_owned()
        }
        UsdtError::Arguments { .. } => "ask for another probe".to_owned(),
        UsdtError::NoText { .. } => "name an argument that there is, or leave `text` out".to_owned(),
        UsdtError::TooMany { .. } => "ask for fewer".to_owned(),
    }
}

/// What a person should know of it at the end.
fn remarks(heard: &Heard, books: HitBooks) -> Vec<String> {
    let Heard { operations, told: Told { woven, unread, unbelieved, .. } } = heard;
    let mut all = vec![format!(
        "probes: {} hits, {} operations ({} without an end), {} calls below them",
        books.recorded, woven.operations, woven.operations_unfinished, woven.calls_linked
    )];
    let mut say = |count: u64, words: &str| {
        if count > 0 {
            all.push(format!("probes: {count} {words}"));
        }
    };
    say(books.dropped, "hits were lost, as the rings were full; calls meanwhile are below nothing");
    say(*unbelieved, "hits came while others were lost, and are not believed");
    say(*unread, "hits had an argument that could not be read; calls until the next are below nothing");
    say(operations.no_room, "operations were given out without an end, as too many were open");
    let missing = books.fired.saturating_sub(books.recorded + books.dropped);
    say(missing, "records of hits were written and never read");
    all
}
