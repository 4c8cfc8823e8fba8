//! JSON of the report: the numbers of the tables in ns and bytes, without rounding. Names are those
//! of the tables; a missing number is null. `docs/report.schema.json` is its schema.

mod daemon_spans;
mod final_state;
mod guests;
mod page_origins;

use std::collections::BTreeMap;

use blkkin_aggregator::latency;
use blkkin_aggregator::trace::thread_attributes;
use blkkin_aggregator::trace::{Root, Trace};
use blkkin_wire::call_sleeps::{CallSleeps, SleepPlace};
use blkkin_wire::call_waits::LongestWait;
use blkkin_wire::clock::DurationNs;
use blkkin_wire::event::SyscallOutcome;
use serde_json::{Map, Value, json};

use crate::collect::calls::{CallRow, IoKind, Operation};
use crate::collect::coverage::{Cause, CoverageRow};
use crate::collect::devices::DeviceRow;
use crate::collect::files::{self, CachedReads, FileRow};
use crate::collect::latency::Latency;
use crate::collect::layers::Layer;
use crate::collect::sleeps::{SleepKey, SleepSums};
use crate::collect::totals::Totals;
use crate::collect::waits::WaitKey;
use crate::collect::written_by::NamedRow;
use crate::losses::Losses;
use crate::report::Report;
use crate::view::{FILES_SHOWN, SLEEPS_SHOWN, WAITS_SHOWN, WRITERS_SHOWN};
use crate::waterfall::async_io;
use crate::waterfall::heading::invocation;

/// Version of the format. It changes if a field is removed or has another meaning.
const VERSION: u32 = 1;

pub(crate) fn value(report: &Report, losses: &Losses) -> Value {
    json!({
        "version": VERSION,
        "command": report.config.command,
        "wall_ns": report.wall_time().0,
        "totals": totals(&report.totals),
        "layers": layers(report),
        "calls": calls(report, IoKind::Storage),
        "stream_calls": calls(report, IoKind::NotStorage),
        "devices": report.devices.rows().map(device).collect::<Vec<_>>(),
        "files": files(report),
        "kernel": kernel(report),
        "written_by": written_by(report),
        "waits": waits(report),
        "sleeps": sleeps(report),
        "slowest_operations": daemon_spans::slowest(report),
        "guests": guests::value(report),
        "slowest": report.slowest.traces().iter().map(|trace| storage_operation(report, trace)).collect::<Vec<_>>(),
        "in_flight": final_state::in_flight(report),
        "devices_lost": final_state::lost_devices(report),
        "explained": report.coverage_rows().iter().map(explained).collect::<Vec<_>>(),
        "contexts": contexts(&report.totals, losses),
        "losses": self::losses(losses),
    })
}

fn totals(totals: &Totals) -> Value {
    json!({
        "storage_requests": totals.storage_requests(),
        "calls": totals.calls,
        "stream_calls": totals.stream_calls,
        "calls_without_exit": totals.calls_without_exit,
        "calls_with_path_cut": totals.calls_with_path_truncated,
        "commits": totals.commits,
        "kernel": totals.kernel,
        "bios": totals.bios,
        "requests": totals.requests,
        "flushes": totals.flushes,
        "bytes_read_by_calls": totals.by_calls.read,
        "bytes_written_by_calls": totals.by_calls.written,
        "bytes_read_at_devices": totals.by_devices.read,
        "bytes_written_at_devices": totals.by_devices.written,
        "bytes_discarded": totals.discarded,
        "incomplete": {
            "storage_requests": totals.incomplete.traces,
            "roots_missing": totals.incomplete.roots,
            "bios_missing": totals.incomplete.bios,
            "requests_missing": totals.incomplete.requests,
            "commits_missing": totals.incomplete.commits,
            "page_origins_missing": totals.incomplete.page_origins,
            "late_parts": totals.incomplete.late_parts,
        },
    })
}

fn contexts(totals: &Totals, losses: &Losses) -> Value {
    let Losses { contexts, process_contexts, .. } = losses;
    json!({
        "calls": totals.calls_with_context,
        "calls_sampled": totals.calls_sampled_by_program,
        "faulted": contexts.faulted,
        "unread": contexts.unread,
        "invalid": contexts.invalid,
        "attributes_cut": contexts.attributes_cut,
        "attributes_unread": contexts.attributes_unread,
        "processes": contexts.publishing,
        "processes_denied": contexts.denied,
        "processes_no_room": contexts.no_room,
        "resources": {
            "processes": process_contexts.publishing,
            "malformed": process_contexts.malformed,
            "unread": process_contexts.unread,
            "no_room": process_contexts.no_room,
        },
    })
}

/// Adds the count and quantiles of a latency distribution to other fields.
fn times(latency: &Latency, mut fields: Map<String, Value>) -> Value {
    let ns = |quantile| json!(latency.quantile(quantile).map(|time| time.0));
    fields.insert("count".to_owned(), json!(latency.count()));
    fields.insert("total_ns".to_owned(), json!(latency.total().0));
    for (name, quantile) in [("p50_ns", 0.5), ("p90_ns", 0.9), ("p99_ns", 0.99)] {
        fields.insert(name.to_owned(), ns(quantile));
    }
    fields.insert("max_ns".to_owned(), json!(latency.max().map(|time| time.0)));
    Value::Object(fields)
}

fn fields<const N: usize>(fields: [(&str, Value); N]) -> Map<String, Value> {
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn layers(report: &Report) -> Vec<Value> {
    let layer = |layer: Layer| {
        let row = report.layers.row(layer);
        times(&row.times, fields([("layer", json!(layer.name())), ("bytes", json!(row.bytes))]))
    };
    Layer::ALL.into_iter().map(layer).collect()
}

fn calls(report: &Report, subject: IoKind) -> Vec<Value> {
    let call = |(call, row): (Operation, &CallRow)| {
        let more = [("call", json!(call.name())), ("errors", json!(row.errors)), ("bytes", json!(row.bytes))];
        times(&row.times, fields(more))
    };
    report.calls.by_time(subject).into_iter().map(call).collect()
}

fn device(device: &DeviceRow) -> Value {
    let ops = device.ops.iter().map(|(op, row)| {
        json!({
            "operation": op.name(),
            "requests": row.requests,
            "merged": row.merged,
            "errors": row.errors,
            "requeued": row.requeued,
            "not_issued": row.unissued,
            "bytes": row.bytes,
            "queue": times(&row.queue, Map::new()),
            "plug": times(&row.plug, Map::new()),
            "scheduler": times(&row.scheduler, Map::new()),
            "device": times(&row.device, Map::new()),
        })
    });
    json!({ "device": &*device.name, "operations": ops.collect::<Vec<_>>() })
}

fn files(report: &Report) -> Value {
    let file = |row: &FileRow| {
        fields([
            ("calls", json!(row.calls)),
            ("bytes_read", json!(row.bytes.read)),
            ("bytes_written", json!(row.bytes.written)),
            ("total_ns", json!(row.total.0)),
            ("max_ns", json!(row.max.0)),
            ("page_cache", page_cache(&row.cached)),
        ])
    };
    let shown = report.files.by_time(FILES_SHOWN);
    let named = |(path, row): &(&str, &FileRow)| {
        let mut fields = file(row);
        fields.insert("path".to_owned(), json!(path));
        Value::Object(fields)
    };
    json!({
        "slowest": shown.iter().map(named).collect::<Vec<_>>(),
        "rest": Value::Object(file(&report.files.rest(&shown))),
        "count": report.files.count(),
    })
}

/// Returns the reads through the page cache, and what they fetched.
fn page_cache(cached: &CachedReads) -> Value {
    json!({
        "reads": cached.reads,
        "hits": cached.hits,
        "unknown": cached.unknown,
        "bytes": cached.bytes.bytes,
        "bytes_fetched": cached.bytes.fetched,
        "bytes_read_ahead": cached.bytes.read_ahead,
    })
}

fn kernel(report: &Report) -> Vec<Value> {
    let rows = report.kernel.rows.iter().map(|(kind, row)| {
        let more =
            [("bios", json!(row.bios)), ("requests", json!(row.requests)), ("bytes", json!(row.bytes))];
        let mut fields = fields(more);
        fields.insert("work".to_owned(), json!(kind.name()));
        times(&row.times, fields)
    });
    rows.collect()
}

fn written_by(report: &Report) -> Value {
    let shown = report.written_by.by_bytes(WRITERS_SHOWN);
    let (bytes, requests) = report.written_by.rest(&shown);
    let row = |(program, file, row): &NamedRow<'_>| {
        let ns = |time: Option<DurationNs>| json!(time.map(|time| time.0));
        json!({
            "program": program,
            "file": file,
            "bytes": row.bytes,
            "requests": row.requests,
            "age_p50_ns": ns(row.age.quantile(0.5)),
            "age_max_ns": ns(row.age.max()),
        })
    };
    json!({
        "rows": shown.iter().map(row).collect::<Vec<_>>(),
        "rest": { "bytes": bytes, "requests": requests },
        "count": report.written_by.count(),
    })
}

fn waits(report: &Report) -> Value {
    let waits = report.waits();
    let shown = waits.by_time(WAITS_SHOWN);
    let row = |(key, times): &(&WaitKey, &Latency)| {
        let ns = |time: Option<DurationNs>| json!(time.map(|time| time.0));
        json!({
            "program": &*key.program,
            "for": key.object.name(),
            "holder": key.holder.as_deref(),
            "times": times.count(),
            "total_ns": times.total().0,
            "p50_ns": ns(times.quantile(0.5)),
            "max_ns": ns(times.max()),
        })
    };
    json!({ "rows": shown.iter().map(row).collect::<Vec<_>>(), "count": waits.count() })
}

fn sleeps(report: &Report) -> Value {
    let rows = report.sleeps.by_time(SLEEPS_SHOWN);
    let row = |(key, sums): &(&SleepKey, SleepSums)| {
        json!({
            "program": &*key.program,
            "function": &*key.function,
            "caller": key.caller.as_deref(),
            "calls": sums.calls,
            "sleeps": sums.sleeps,
            "total_ns": sums.time.0,
        })
    };
    let others = report.sleeps.others();
    json!({
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
        "count": report.sleeps.count(),
        "others": { "sleeps": others.sleeps, "total_ns": others.time.0 },
        "unended": report.sleeps.unended(),
    })
}

/// Returns where a call slept.
fn call_sleeps(slept: &CallSleeps) -> Value {
    let place = |place: &SleepPlace| {
        json!({
            "function": place.function(),
            "callers": place.callers(),
            "sleeps": place.count,
            "total_ns": place.time.0,
        })
    };
    json!({
        "places": slept.by_time().into_iter().map(place).collect::<Vec<_>>(),
        "others": { "sleeps": slept.others, "total_ns": slept.others_time.0 },
        "unended": slept.unended,
    })
}

/// Returns the bytes that a disk counted itself, and those of each cause.
fn explained(row: &CoverageRow) -> Value {
    let mut fields = fields([
        ("device", json!(&*row.name)),
        ("bytes", json!(row.counted)),
        ("not_recorded", json!(row.not_recorded())),
    ]);
    let causes = Cause::ALL.iter().zip(row.recorded);
    fields.extend(causes.map(|(cause, bytes)| (cause.key().to_owned(), json!(bytes))));
    Value::Object(fields)
}

fn storage_operation(report: &Report, trace: &Trace) -> Value {
    let breakdown = latency::breakdown(trace);
    let task = trace.names.task.as_deref();
    let call = trace.call();
    let fault = if let Root::Fault(fault) = &trace.root { Some(fault) } else { None };
    let file = trace.names.file.as_ref().filter(|_| fault.is_some());
    let fault_path = file.map(|file| (**file.shown_path()).into());
    json!({
        "trace": trace.id.to_string(),
        "duration_ns": trace.duration().0,
        "start_ns": trace.start().since(report.config.started).0,
        "call": call.map(|call| invocation(call, report.config.arch)).or_else(|| {
            Some(async_io::label(&trace.root_async_io()?.event))
        }),
        "submissions": trace.async_ios.len(),
        "fault": fault.map(|fault| json!({ "address": fault.address, "offset": fault.offset })),
        "return": call.and_then(|call| match call.outcome {
            SyscallOutcome::Returned(ret) => Some(ret),
            SyscallOutcome::NoExit => None,
        }),
        "path": call.and_then(|call| files::path(trace, call)).or(fault_path),
        "comm": task.map(|task| &*task.comm),
        "pid": task.map(|task| task.pid.0),
        "tid": task.map(|task| task.tid.0),
        "virtual_machine": trace.names.virtual_machine().map(|machine| {
            json!({ "name": &*machine.name, "uuid": &*machine.uuid })
        }),
        "thread_attributes": thread_attributes::resolve(trace).map(|attributes| attributes.values.into_iter().collect::<BTreeMap<_, _>>()),
        "bios": trace.bios.len(),
        "requests": trace.requests.len(),
        "commits": trace.waited_for.len(),
        "page_origins": page_origins::of(trace),
        "cpu_wait_ns": breakdown.cpu.0,
        "lock_wait_ns": breakdown.locks.0,
        "throttled_ns": breakdown.throttled.0,
        "longest_wait": call.and_then(|call| Some(longest_wait(&call.waits.as_ref()?.longest))),
        "slept": call.and_then(|call| Some(call_sleeps(call.slept.as_deref()?))),
        "file_system_ns": breakdown.file_system.0,
        "journal_ns": breakdown.journal.0,
        "block_queue_ns": breakdown.block.0,
        "device_ns": breakdown.device.0,
        "unaccounted_ns": breakdown.unaccounted.0,
    })
}

fn longest_wait(longest: &LongestWait) -> Value {
    json!({
        "for": longest.kind.name(),
        "duration_ns": longest.time.0,
        "holder": longest.holder.as_ref().map(|holder| json!({
            "comm": &*holder.comm,
            "pid": holder.pid.0,
            "tid": holder.tid.0,
        })),
    })
}

fn losses(losses: &Losses) -> Value {
    json!({
        "fired": losses.fired,
        "recorded": losses.recorded,
        "balances": losses.balances(),
        "total": losses.total(),
        "calls_dropped": losses.calls_dropped,
        "bios_dropped": losses.bios_dropped,
        "requests_dropped": losses.requests_dropped,
        "commits_dropped": losses.commits_dropped,
        "names_dropped": losses.names_dropped,
        "faults_dropped": losses.faults_dropped,
        "waits_dropped": losses.waits_dropped,
        "sleeps_dropped": losses.sleeps_dropped,
        "page_origins_dropped": losses.page_origins_dropped,
        "dirty_writes_evicted": losses.dirty_writes_evicted,
        "ends_missed": losses.ends_missed,
        "untracked": losses.untracked,
        "tasks_missed": losses.tasks_missed,
        "recursion_misses": losses.recursion_misses,
        "malformed": losses.malformed,
        "walk_overflow": losses.walk_overflow,
        "flush_overflow": losses.flush_overflow,
        "compat": losses.compat,
        "paths_failed": losses.paths_failed,
        "nbd_messages": losses.nbd_messages,
        "usdt_events": losses.usdt_events,
        "batches_missed": losses.batches_missed,
        "orphaned": losses.orphaned,
        "spans_dropped": losses.spans_dropped,
        "other_counts": {
            "incomplete": losses.incomplete,
            "truncated": losses.truncated,
            "in_flight": losses.in_flight,
            "filtered": losses.filtered,
            "unsampled": losses.unsampled,
            "kept_slow": losses.kept[0],
            "kept_failed": losses.kept[1],
            "kept_large": losses.kept[2],
            "names_displaced": losses.names_displaced,
        },
    })
}
