//! The shutdown summary: one line for each stage, over the partitions that this member holds at the
//! end, since their states began.

use blkkin_aggregator::join::{EventStats, JoinStats};
use blkkin_aggregator::stage::assemble::AssembleStage;
use blkkin_aggregator::stage::join::JoinStage;
use blkkin_aggregator::stage::link::LinkStage;
use blkkin_bus::kafka::stage::StageOutcome;
use blkkin_wire::stage::Stage;

/// Returns the summary line of the join stage.
pub(super) fn join(outcome: &StageOutcome<JoinStage>) -> String {
    let stages = || outcome.stages.values();
    let events = |count: fn(&EventStats) -> u64| -> u64 {
        stages().map(JoinStage::join_stats).flat_map(kinds).map(count).sum()
    };
    let of = |count: fn(&JoinStats) -> u64| -> u64 { stages().map(|stage| count(stage.join_stats())).sum() };
    let sum = |count: fn(&JoinStage) -> u64| -> u64 { stages().map(count).sum() };
    let mut line = format!(
        "join: {} partitions, {} events = {} joined + {} late + {} orphaned + {} pending; {} names; {} fragments of {} spans written",
        outcome.stages.len(),
        events(|stats| stats.received),
        events(|stats| stats.joined),
        events(|stats| stats.late),
        events(|stats| stats.orphaned),
        events(|stats| stats.pending),
        of(|stats| stats.names),
        sum(|stage| stage.stats().fragments),
        sum(|stage| stage.stats().spans),
    );
    append_count(&mut line, of(|stats| stats.batches_repeated), "duplicate batches");
    append_count(&mut line, of(|stats| stats.batches_missed), "batches missing");
    append_count(&mut line, of(|stats| stats.traces_incomplete), "traces incomplete");
    append_count(
        &mut line,
        of(|stats| stats.closed_for_room),
        "traces closed early because too many were open",
    );
    append_count(
        &mut line,
        of(|stats| stats.ahead_of_window),
        "events processed before the watermark because the window was full",
    );
    append_count(&mut line, of(|stats| stats.behind_watermark), "events arrived after their watermark");
    append_count(&mut line, of(|stats| stats.names_dropped), "names dropped because the table was full");
    append_count(
        &mut line,
        of(|stats| stats.sources_evicted),
        "sources forgotten because there were too many",
    );
    append_count(
        &mut line,
        of(|stats| stats.starts_interleaved),
        "batches arrived after those of a later start of the same boot (a cloned machine, or an agent that sends a spool)",
    );
    append_count(
        &mut line,
        of(|stats| stats.batches_contested),
        "batches joined alone because two agents sent as one source (a machine that was cloned while its agent ran)",
    );
    append_count(&mut line, of(|stats| stats.clock_set_back), "times a node's clock was set back");
    append_count(&mut line, sum(|stage| stage.stats().idle_closed), "sources became inactive");
    append_count(&mut line, sum(|stage| stage.stats().poison), "records could not be decoded");
    append_count(&mut line, sum(|stage| stage.stats().calls_unknown), "system calls with an unknown name");
    append_common(&mut line, outcome);
    line
}

/// Returns the summary line of the link stage.
pub(super) fn link(outcome: &StageOutcome<LinkStage>) -> String {
    let sum = |count: fn(&LinkStage) -> u64| -> u64 { outcome.stages.values().map(count).sum() };
    let mut line = format!(
        "link: {} partitions, {} RPC endpoints = {} matched + {} unmatched + {} refused + {} pending",
        outcome.stages.len(),
        sum(|stage| stage.stats().received),
        sum(|stage| stage.stats().matched),
        sum(|stage| stage.stats().unmatched),
        sum(|stage| stage.stats().refused),
        sum(LinkStage::pending),
    );
    append_count(&mut line, sum(|stage| stage.stats().duplicates), "duplicates");
    append_count(&mut line, sum(|stage| stage.stats().missed), "missing");
    append_count(&mut line, sum(|stage| stage.stats().poison), "records could not be decoded");
    append_count(&mut line, sum(|stage| stage.stats().misplaced), "fragments belong to another topic");
    append_common(&mut line, outcome);
    line
}

/// Returns the summary line of the assemble stage.
pub(super) fn assemble(outcome: &StageOutcome<AssembleStage>) -> String {
    let sum = |count: fn(&AssembleStage) -> u64| -> u64 { outcome.stages.values().map(count).sum() };
    let mut line = format!(
        "assemble: {} partitions, {} fragments = {} sampled + {} dropped by sampling; {} spans written",
        outcome.stages.len(),
        sum(|stage| stage.stats().received),
        sum(|stage| stage.stats().sampled),
        sum(|stage| stage.stats().dropped),
        sum(|stage| stage.stats().spans),
    );
    append_count(&mut line, sum(|stage| stage.stats().without_trace_id), "fragments without a trace id");
    append_count(&mut line, sum(AssembleStage::pending), "fragments wait for their client's trace");
    append_count(&mut line, sum(|stage| stage.stats().reparented), "fragments moved to their client's trace");
    append_count(&mut line, sum(|stage| stage.stats().reparents), "fragments with a client's trace id");
    append_count(&mut line, sum(|stage| stage.stats().reparents_late), "of these arrived too late");
    append_count(&mut line, sum(|stage| stage.stats().timed_out), "server traces without their client's");
    append_count(
        &mut line,
        sum(|stage| stage.stats().unanswered),
        "server traces emitted before the link stage had answered",
    );
    append_count(
        &mut line,
        sum(|stage| stage.stats().reparent_loops),
        "fragments dropped because they had moved too often",
    );
    append_count(&mut line, sum(|stage| stage.stats().misplaced), "fragments belong to another topic");
    append_count(&mut line, sum(|stage| stage.stats().duplicates), "duplicate fragments");
    append_count(&mut line, sum(|stage| stage.stats().missed), "fragments missing");
    append_count(&mut line, sum(|stage| stage.stats().poison), "records could not be decoded");
    append_common(&mut line, outcome);
    line
}

fn kinds(stats: &JoinStats) -> [&EventStats; 8] {
    let JoinStats { calls, bios, requests, async_ios, commits, faults, rpc_endpoints, page_origins, .. } =
        stats;
    [calls, bios, requests, async_ios, commits, faults, rpc_endpoints, page_origins]
}

fn append_common<S>(line: &mut String, outcome: &StageOutcome<S>) {
    append_count(line, outcome.expired, "records deleted before they were read");
    append_count(line, outcome.oversize, "fragments larger than a record");
    append_count(line, outcome.dated_ahead, "records dated ahead of this machine's clock");
}

/// Appends a count, unless it is zero.
fn append_count(line: &mut String, count: u64, what: &str) {
    if count > 0 {
        line.push_str(&format!("; {count} {what}"));
    }
}
