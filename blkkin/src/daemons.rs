//! `--ust`: what daemons say of their own work, put above what the kernel sees of it.
//!
//! ```text
//! thread "drain"     thread "weave"                                thread "join"
//! Tracer::drain ── bus ── Weave ──────────────────────────── bus ── Joiner
//! thread "daemons"       ┌┘  └ processes that ended ┐
//! relay → Follower → Mapper → Operations ───────────┘
//! ```
//!
//! *In*: a session of our own, made before a CMD starts; LTTng's daemons are started where none run, and end with us. *Out*: the
//! tracer's batches with operations and their links. *Invariant*: nothing of the kernel's is held for longer than
//! [`HOLD_MAX`](blkkin_ust_bridge::weave::HOLD_MAX), whatever becomes of the session.
//!
//! *End*: when the tracer has ended, the session is ended, which sends what its rings still have; what was read then is the rest.

mod reading;
mod session;
mod shown;
mod weaving;

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{channel, sync_channel};
use std::thread::{Builder, JoinHandle};

use blkkin_bus::{Publisher, Subscription};
use blkkin_report::collect::operations::Heard as Operations;
use blkkin_tracer::{Believed, Follow, Reach, StopSignal};
use blkkin_ust_bridge::mapping::config::Mapping;
use blkkin_ust_bridge::session::tool::ToolError;
use blkkin_ust_bridge::weave::WeaveBooks;
use blkkin_wire::batch::EventBatch;

use crate::args::{ProbesArgs, UstArgs};
use crate::failure::Failure;
pub(crate) use reading::Heard;
use reading::{Reading, Ways};
use session::Session;
pub(crate) use shown::Shown;

/// What is said between threads: each of them is what some ms brought.
const HEARD_MAX: usize = 256;

/// What a report will hear of programs' own operations.
pub(crate) fn heard(ust: &UstArgs, probes: &ProbesArgs) -> Operations {
    match (ust.nbd, ust.ust || !probes.probes.is_empty()) {
        (true, _) => Operations::Meetings,
        (false, true) => Operations::Operations,
        (false, false) => Operations::Nothing,
    }
}

/// A session that is ready for programs to come.
pub(crate) struct Daemons {
    session: Session,
    mapping: Mapping,
}

/// At work.
pub(crate) struct AtWork {
    weaving: JoinHandle<WeaveBooks>,
    reading: JoinHandle<Heard>,
}

impl Daemons {
    /// Makes the session; nothing where it was not asked for. What threads publish need not be said besides where everybody is `believed`,
    /// and can be looked at.
    pub(crate) fn prepare(args: &UstArgs, believed: &Believed) -> Result<Option<Daemons>, Failure> {
        if !args.ust {
            return Ok(None);
        }
        let mut mapping = Mapping::built_in();
        for file in &args.ust_mapping {
            mapping = mapping.and(read(file)?);
        }
        let published = *believed == Believed::Everybody && blkkin_tracer::reach() == Reach::Everybody;
        let events = mapping.events(published);
        let folder = tempfile::Builder::new().prefix("blkkin-ust.").tempdir();
        let folder = folder.map_err(|error| {
            Failure::cannot_trace("no folder for what LTTng writes", error, "say where by TMPDIR=FOLDER")
        })?;
        let session = Session::open(events, folder).map_err(cannot_listen)?;
        Ok(Some(Daemons { session, mapping }))
    }

    /// Puts what `batches` brings together with what is heard, into `out`.
    pub(crate) fn start(
        self,
        batches: Subscription<EventBatch>,
        out: Publisher<EventBatch>,
        follow: Follow,
        shown: &Shown,
    ) -> io::Result<AtWork> {
        let (words, heard) = sync_channel(HEARD_MAX);
        let (ended, exits) = channel();
        let stop = StopSignal::new();
        let Daemons { session, mapping } = self;
        let reading = Reading::new(session, mapping, Ways { words, exits }, stop.clone(), shown.clone());
        let reading = Builder::new().name("daemons".into()).spawn(move || reading.run())?;
        let shown = shown.clone();
        let weaving = Builder::new()
            .name("weave".into())
            .spawn(move || weaving::weave(batches, out, heard, ended, &stop, follow, &shown))?;
        Ok(AtWork { weaving, reading })
    }
}

impl AtWork {
    /// Waits for the end of both threads; with the reading the daemons have ended that are ours.
    pub(crate) fn collect(self) -> Result<Vec<String>, Failure> {
        let AtWork { weaving, reading } = self;
        let broken =
            |panic: Box<dyn std::any::Any + Send>| crate::pipeline::broken("what daemons say", &*panic);
        let woven = weaving.join().map_err(broken)?;
        let heard = reading.join().map_err(broken)?;
        Ok(remarks(&woven, &heard))
    }
}

fn read(file: &PathBuf) -> Result<Mapping, Failure> {
    let what = || format!("cannot use the mapping {}", file.display());
    let remedy = "look at configs/mappings/blkkin.toml, which explains the form";
    let text = fs::read_to_string(file).map_err(|error| Failure::usage(what(), error, remedy))?;
    Mapping::read(&text).map_err(|error| Failure::usage(what(), error, remedy))
}

fn cannot_listen(error: ToolError) -> Failure {
    let remedy = match error {
        ToolError::Start { .. } => "install LTTng (Debian: lttng-tools), or leave --ust out",
        _ => "see whether `lttng list` works for this user, or leave --ust out",
    };
    Failure::cannot_trace("cannot listen to daemons (--ust)", error, remedy)
}

/// What a person should know of it at the end.
fn remarks(woven: &WeaveBooks, heard: &Heard) -> Vec<String> {
    let Heard { counts, .. } = heard;
    let mut all = vec![format!(
        "daemons: {} operations ({} without an end), {} calls below them ({} by their threads' own context)",
        woven.operations, woven.operations_unfinished, woven.calls_linked, woven.calls_exact
    )];
    let lost = counts.lost.events;
    if lost > 0 || counts.lost.packets > 0 {
        all.push(format!(
            "daemons: {lost} of their events and {} packets were lost; calls meanwhile are below nothing",
            counts.lost.packets
        ));
    }
    if counts.late > 0 {
        all.push(format!(
            "daemons: {} of their events came too late to be put in order; calls meanwhile are below nothing",
            counts.late
        ));
    }
    if woven.calls_contradicted > 0 {
        all.push(format!(
            "daemons: {} calls are below what their threads published, and not below what these said in events",
            woven.calls_contradicted
        ));
    }
    if woven.operations_elsewhere > 0 {
        all.push(format!(
            "daemons: {} operations are of another pid namespace, of a process that is not known here: nothing is below them",
            woven.operations_elsewhere
        ));
    }
    if woven.operations_of_others > 0 {
        all.push(format!(
            "daemons: {} operations of processes that are not followed are left out",
            woven.operations_of_others
        ));
    }
    if woven.words_late > 0 {
        all.push(format!(
            "daemons: {} times a thread said what it works for after its calls had been judged",
            woven.words_late
        ));
    }
    if woven.calls_unjudged > 0 {
        all.push(format!(
            "daemons: {} calls are below nothing, as what was said of them came too late",
            woven.calls_unjudged
        ));
    }
    if heard.renewed > 0 {
        all.push(format!(
            "daemons: {} times the session was made anew; calls meanwhile are below nothing",
            heard.renewed
        ));
    }
    all.extend(heard.troubles.iter().map(|trouble| format!("daemons: {trouble}")));
    all
}
