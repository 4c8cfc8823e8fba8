//! Columns of system calls.

use super::Malformed;
use super::call_sleeps;
use super::call_waits;
use super::columns::columns;
use super::decode_tables::DecodeTables;
use super::encode_tables::EncodeTables;
use super::ids::{IdWriter, head_sampling};
use super::message::{self, SyscallEvents};
use crate::clock::{DurationNs, MonotonicNs};
use crate::event::{Captured, OpenFile, SyscallEvent, SyscallOutcome};
use crate::head_sampling::HeadSampling;
use crate::ids::{Fd, SpanId};

const NO_EXIT: u32 = 1 << 0;
const FILE: FileFlags = FileFlags { present: 1 << 1, before: 1 << 2, after: 1 << 3 };
const OTHER: FileFlags = FileFlags { present: 1 << 4, before: 1 << 5, after: 1 << 6 };
const PATHS: [u32; 2] = [1 << 7, 1 << 8];
const PATHS_CUT: u32 = 1 << 9;
const PATHS_UNREADABLE: u32 = 1 << 10;
const CPU_WAIT: u32 = 1 << 11;
const SYNC_TID: u32 = 1 << 12;
const CONTEXT: u32 = 1 << 13;
const ATTRIBUTES: u32 = 1 << 14;
const WRITES_PAGE_CACHE: u32 = 1 << 15;
const WAITS: u32 = 1 << 16;
const READS_PAGE_CACHE: u32 = 1 << 17;
const SAMPLING: u32 = 1 << 18;
const SLEPT: u32 = 1 << 19;

/// Flags of one of a call's files.
#[derive(Clone, Copy)]
struct FileFlags {
    present: u32,
    before: u32,
    after: u32,
}

/// Writer of system call columns.
#[derive(Default)]
pub(super) struct SyscallWriter {
    columns: SyscallEvents,
    span: IdWriter,
}

impl SyscallWriter {
    pub(super) fn put<'a>(&mut self, call: &'a SyscallEvent, tables: &mut EncodeTables<'a>) {
        let columns = &mut self.columns;
        let mut flags = 0;
        columns.syscall.push(tables.calls.intern(call.call));
        tables.origins.put(&mut self.span, call.span.0);
        columns.task.push(tables.tasks.intern(call.task));
        columns.duration.push(call.exit.0.wrapping_sub(call.enter.0));
        match call.outcome {
            SyscallOutcome::Returned(value) => columns.returned.push(value),
            SyscallOutcome::NoExit => flags |= NO_EXIT,
        }
        if let Some(file) = &call.file {
            columns.file.push(tables.files.intern(file.file));
            columns.fd.push(file.fd.0);
            flags |= put_positions(file, FILE, &mut columns.position, &mut columns.moved);
        }
        if let Some(file) = &call.second_file {
            columns.other_file.push(tables.files.intern(file.file));
            columns.other_fd.push(file.fd.0);
            flags |= put_positions(file, OTHER, &mut columns.other_position, &mut columns.other_moved);
        }
        for (path, flag) in call.paths.iter().zip(PATHS) {
            if let Some(path) = path {
                columns.paths.push(path.as_ref().to_owned());
                flags |= flag;
            }
        }
        flags |= match call.paths_captured {
            Captured::Full => 0,
            Captured::Truncated => PATHS_CUT,
            Captured::Faulted => PATHS_UNREADABLE,
        };
        columns.bios.push(call.bios);
        columns.sleeps.push(call.sleeps);
        if let Some(wait) = call.cpu_wait.get() {
            columns.cpu_wait.push(wait.0);
            flags |= CPU_WAIT;
        }
        if let Some(tid) = call.sync_tid {
            columns.sync_tid.push(tid);
            flags |= SYNC_TID;
        }
        if let Some(context) = &call.context {
            columns.context.push(tables.contexts.intern(**context));
            flags |= CONTEXT;
        }
        if let Some(attributes) = &call.attributes {
            columns.attributes.push(tables.attributes.intern(attributes));
            flags |= ATTRIBUTES;
        }
        if call.writes_page_cache {
            flags |= WRITES_PAGE_CACHE;
        }
        if call.reads_page_cache {
            flags |= READS_PAGE_CACHE;
        }
        if let Some(waits) = &call.waits {
            columns.waits.push(call_waits::write(waits, call.enter));
            flags |= WAITS;
        }
        if let Some(slept) = &call.slept {
            columns.slept.push(call_sleeps::write(slept, &mut tables.strings));
            flags |= SLEPT;
        }
        if call.sampling != HeadSampling::ALL {
            columns.sampling.push(call.sampling.code().into());
            flags |= SAMPLING;
        }
        columns.flags.push(flags);
        let arguments = [
            &mut columns.argument0,
            &mut columns.argument1,
            &mut columns.argument2,
            &mut columns.argument3,
            &mut columns.argument4,
            &mut columns.argument5,
        ];
        let own = call.call.spec().args.len();
        arguments.into_iter().zip(call.args).take(own).for_each(|(column, value)| column.push(value));
    }

    pub(super) fn end(self) -> SyscallEvents {
        SyscallEvents { span: self.span.end(), ..self.columns }
    }
}

fn put_positions(file: &OpenFile, flags: FileFlags, before: &mut Vec<i64>, after: &mut Vec<i64>) -> u32 {
    before.extend(file.position_before);
    after.extend(file.position_after.map(|to| to.wrapping_sub(file.position_before.unwrap_or(0))));
    let set = |present: bool, flag| if present { flag } else { 0 };
    flags.present
        | set(file.position_before.is_some(), flags.before)
        | set(file.position_after.is_some(), flags.after)
}

columns! {
    /// Reader of system call columns.
    SyscallReader of SyscallEvents {
        syscall: u32, flags: u32, task: u32, duration: u64, returned: i64, file: u32, fd: i32, position: i64, moved: i64,
        other_file: u32, other_fd: i32, other_position: i64, other_moved: i64, paths: String, bios: u32, sleeps: u32,
        cpu_wait: u64, sync_tid: u32, argument0: u64, argument1: u64, argument2: u64, argument3: u64, argument4: u64,
        argument5: u64, context: u32, attributes: u32, waits: message::CallWaits,
        sampling: u32, slept: message::CallSleeps,
    } ids { span }
}

impl SyscallReader<'_> {
    /// Reads the next system call; none if this version does not know it.
    pub(super) fn next(
        &mut self,
        time: MonotonicNs,
        tables: &DecodeTables<'_>,
    ) -> Result<Option<SyscallEvent>, Malformed> {
        let flags = *self.flags.next()?;
        let has = |flag: u32| flags & flag != 0;
        let index = *self.syscall.next()?;
        let (call, own) =
            *tables.calls.get(index as usize).ok_or_else(|| self.syscall.refuse(index.into()))?;
        let span = SpanId(self.span.next(&tables.ids)?);
        let task = tables.task(self.task.next()?, "SyscallEvents.task")?;
        let enter = MonotonicNs(time.0.wrapping_sub(*self.duration.next()?));
        let ending = match self.returned.next_if(!has(NO_EXIT))? {
            Some(value) => SyscallOutcome::Returned(*value),
            None => SyscallOutcome::NoExit,
        };
        let mut open = |flags: FileFlags, other: bool| -> Result<Option<OpenFile>, Malformed> {
            let (file, fd, position, moved) = match other {
                false => (&mut self.file, &mut self.fd, &mut self.position, &mut self.moved),
                true => (
                    &mut self.other_file,
                    &mut self.other_fd,
                    &mut self.other_position,
                    &mut self.other_moved,
                ),
            };
            let Some(index) = file.next_if(has(flags.present))? else { return Ok(None) };
            let before = position.next_if(has(flags.before))?.copied();
            let moved = moved.next_if(has(flags.after))?;
            Ok(Some(OpenFile {
                fd: Fd(*fd.next()?),
                file: tables.file(index, "SyscallEvents.file")?,
                position_before: before,
                position_after: moved.map(|by| before.unwrap_or(0).wrapping_add(*by)),
            }))
        };
        let (file, second_file) = (open(FILE, false)?, open(OTHER, true)?.map(Box::new));
        let mut path = |flag| -> Result<Option<Box<str>>, Malformed> {
            Ok(self.paths.next_if(has(flag))?.map(|path| path.as_str().into()))
        };
        let paths = [path(PATHS[0])?, path(PATHS[1])?];
        let bios = *self.bios.next()?;
        let sleeps = *self.sleeps.next()?;
        let cpu_wait = self.cpu_wait.next_if(has(CPU_WAIT))?.map(|wait| DurationNs(*wait));
        let sync_tid = self.sync_tid.next_if(has(SYNC_TID))?.copied();
        let context = match self.context.next_if(has(CONTEXT))? {
            Some(index) => Some(Box::new(tables.context(index, "SyscallEvents.context")?)),
            None => None,
        };
        let attributes = match self.attributes.next_if(has(ATTRIBUTES))? {
            Some(index) => Some(tables.attributes(index, "SyscallEvents.attributes")?),
            None => None,
        };
        let waits = match self.waits.next_if(has(WAITS))? {
            Some(waits) => call_waits::read(waits, enter).map(Box::new),
            None => None,
        };
        let slept = match self.slept.next_if(has(SLEPT))? {
            Some(slept) => Some(Box::new(call_sleeps::read(slept, tables)?)),
            None => None,
        };
        let sampling = match self.sampling.next_if(has(SAMPLING))? {
            Some(code) => head_sampling(*code).ok_or_else(|| self.sampling.refuse((*code).into()))?,
            None => HeadSampling::ALL,
        };
        let mut args = [0; 6];
        let columns = [
            &mut self.argument0,
            &mut self.argument1,
            &mut self.argument2,
            &mut self.argument3,
            &mut self.argument4,
            &mut self.argument5,
        ];
        for (column, value) in columns.into_iter().zip(&mut args).take(own) {
            *value = *column.next()?;
        }
        let paths_kept = match (has(PATHS_CUT), has(PATHS_UNREADABLE)) {
            (true, _) => Captured::Truncated,
            (false, true) => Captured::Faulted,
            (false, false) => Captured::Full,
        };
        Ok(call.map(|call| SyscallEvent {
            span,
            task,
            call,
            args,
            enter,
            exit: time,
            outcome: ending,
            file,
            second_file,
            paths,
            paths_captured: paths_kept,
            bios,
            sleeps,
            cpu_wait: cpu_wait.into(),
            sync_tid,
            context,
            attributes,
            writes_page_cache: has(WRITES_PAGE_CACHE),
            reads_page_cache: has(READS_PAGE_CACHE),
            waits,
            slept,
            sampling,
        }))
    }
}
