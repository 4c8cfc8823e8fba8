//! Names of the files and the writers of a trace's page origins.
//!
//! *In*: the name table, when an origin is joined. *Out*: names for the spans and the report.
//!
//! *Invariant*: a writer's name is that of the version of the task that wrote, which the origin
//! names. A writer without a known name stays without one.
//!
//! *Rejected*: names inside [`Names`](super::Names). Those are the root's, and are set as a whole
//! when the root arrives, which can be after the origin.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use blkkin_wire::event::{BioEvent, Submitter, TaskEvent, TaskRef};
use blkkin_wire::ids::{FileId, SpanId};
use blkkin_wire::page_origin::PageOriginEvent;
use blkkin_wire::virtual_machine::VirtualMachineEvent;
use serde::{Deserialize, Serialize};

use super::id_map::SpanMap;
use super::interned_file::{InternedFile, inode};
use super::{ProcessNames, Trace};

/// Names of a trace's page origins.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct OriginNames {
    /// Files of the pages.
    pub files: BTreeMap<FileId, Arc<InternedFile>>,
    /// Tasks that wrote.
    pub writers: BTreeMap<TaskRef, WriterName>,
}

/// A task that wrote, with its program.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WriterName {
    /// Task.
    pub task: Arc<TaskEvent>,
    /// Program of the task.
    pub exe: Option<Arc<InternedFile>>,
    /// Further names of the task's process, if it has any.
    pub process: Option<Arc<ProcessNames>>,
}

impl WriterName {
    /// Returns the name of the executable or, if unknown, the comm; and the virtual machine that the
    /// process runs: `qemu-system-x86_64 (VM web1)`.
    pub fn program(&self) -> Cow<'_, str> {
        match self.virtual_machine() {
            Some(machine) => format!("{} (VM {})", self.program_alone(), machine.shown_name()).into(),
            None => self.program_alone().into(),
        }
    }

    /// Returns the program with the process: `dd (pid 4711)`, `qemu-system-x86_64 (VM web1, pid 4712)`.
    pub fn process(&self) -> String {
        let machine = self.virtual_machine();
        let machine = machine.map(|machine| format!("VM {}, ", machine.shown_name())).unwrap_or_default();
        format!("{} ({machine}pid {})", self.program_alone(), self.task.pid.0)
    }

    fn virtual_machine(&self) -> Option<&VirtualMachineEvent> {
        self.process.as_ref()?.named_machine()
    }

    fn program_alone(&self) -> &str {
        let exe = self.exe.as_ref().map(|exe| &**exe.base());
        exe.filter(|name| !name.is_empty()).unwrap_or(&self.task.comm)
    }
}

impl OriginNames {
    /// Returns the path of a file, or its device and inode number if it has no known name.
    pub fn path(&self, file: &FileId) -> Arc<str> {
        self.files.get(file).map_or_else(|| inode(file).into(), |named| Arc::clone(named.shown_path()))
    }

    /// Drops all names.
    pub(crate) fn clear(&mut self) {
        self.files.clear();
        self.writers.clear();
    }
}

/// Maximum number of devices that are stacked on each other.
const STACK_MAX: usize = 8;

/// Page origins of a trace by bio.
#[derive(Debug, Default)]
pub struct OriginIndex<'a> {
    origins: SpanMap<&'a PageOriginEvent>,
    /// Submitter of each lower bio, and first bio of each request.
    upper: SpanMap<SpanId>,
}

impl<'a> OriginIndex<'a> {
    /// Indexes the origins of a trace. A trace without any costs nothing.
    pub fn of(trace: &'a Trace) -> Self {
        if trace.page_origins.is_empty() {
            return OriginIndex::default();
        }
        let lower = trace.bios.iter().filter_map(|bio| match bio.submitter {
            Submitter::Span(upper) if upper != trace.root_span => Some((bio.span, upper)),
            Submitter::Span(_) | Submitter::Kernel => None,
        });
        let requests = trace.requests.iter().filter_map(|request| Some((request.span, request.parent?)));
        OriginIndex {
            origins: trace.page_origins.iter().map(|origin| (origin.bio, origin)).collect(),
            upper: lower.chain(requests).collect(),
        }
    }

    /// Returns the origin of a bio's own pages.
    pub fn of_bio(&self, bio: &BioEvent) -> Option<&'a PageOriginEvent> {
        self.origins.get(&bio.span).copied()
    }

    /// Returns the origin of a bio's pages or, on a lower device, that of the bio that it serves.
    pub fn of_data(&self, bio: &BioEvent) -> Option<&'a PageOriginEvent> {
        let upper = |span: &SpanId| self.upper.get(span).copied();
        // A request lies between two bios of the stack.
        let chain = std::iter::successors(Some(bio.span), upper).take(2 * STACK_MAX);
        chain.into_iter().find_map(|span| self.origins.get(&span).copied())
    }
}
