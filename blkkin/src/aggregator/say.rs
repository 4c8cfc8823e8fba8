//! What became of everything, in a line a stage: of the partitions that this member has at its end, since their states began.

use blkkin_aggregator::join::{JoinAccount, JoinAccounts};
use blkkin_aggregator::stage::assemble::AssembleStage;
use blkkin_aggregator::stage::join::JoinStage;
use blkkin_aggregator::stage::meet::MeetStage;
use blkkin_bus::kafka::stage::Ended;

use super::machines::{Assembling, Joining, Meeting};

/// Of the first stage.
pub(super) fn join(ended: &Ended<Joining>) -> String {
    let stages = || ended.machines.values().map(|joining| &joining.0);
    let events = |fate: fn(&JoinAccount) -> u64| -> u64 {
        stages().map(JoinStage::accounts).flat_map(kinds).map(fate).sum()
    };
    let of = |count: fn(&JoinAccounts) -> u64| -> u64 { stages().map(|stage| count(stage.accounts())).sum() };
    let books = |count: fn(&JoinStage) -> u64| -> u64 { stages().map(count).sum() };
    let mut line = format!(
        "join: {} partitions, {} events = {} joined + {} late + {} orphaned + {} pending; {} names; {} pieces of {} spans written",
        ended.machines.len(),
        events(|account| account.received),
        events(|account| account.joined),
        events(|account| account.late),
        events(|account| account.orphaned),
        events(|account| account.pending),
        of(|accounts| accounts.names),
        books(|stage| stage.books().pieces),
        books(|stage| stage.books().spans),
    );
    more(&mut line, of(|accounts| accounts.batches_repeated), "batches came again");
    more(&mut line, of(|accounts| accounts.batches_missed), "batches never came");
    more(&mut line, of(|accounts| accounts.traces_incomplete), "traces miss something");
    more(&mut line, of(|accounts| accounts.closed_for_room), "traces closed as too many were open");
    more(&mut line, of(|accounts| accounts.ahead_of_window), "events could not wait for the watermark");
    more(&mut line, of(|accounts| accounts.behind_watermark), "events came behind their watermark");
    more(&mut line, of(|accounts| accounts.names_dropped), "names had no room");
    more(
        &mut line,
        of(|accounts| accounts.starts_interleaved),
        "batches came after those of a later start of the same boot (a cloned machine, or an agent that sends what was left)",
    );
    more(&mut line, of(|accounts| accounts.clock_set_back), "times a node's clock was set back");
    more(&mut line, books(|stage| stage.books().idle_closed), "sources fell silent");
    more(&mut line, books(|stage| stage.books().poison), "records could not be read");
    more(&mut line, books(|stage| stage.books().calls_unknown), "calls are of no known name");
    common(&mut line, ended.gone, ended.oversize);
    line
}

/// Of the one between nodes.
pub(super) fn meet(ended: &Ended<Meeting>) -> String {
    let books = |count: fn(&MeetStage) -> u64| -> u64 {
        ended.machines.values().map(|meeting| count(&meeting.0)).sum()
    };
    let mut line = format!(
        "meet: {} partitions, {} ends of requests between nodes = {} matched + {} alone + {} refused + {} pending",
        ended.machines.len(),
        books(|stage| stage.books().received),
        books(|stage| stage.books().matched),
        books(|stage| stage.books().alone),
        books(|stage| stage.books().refused),
        books(MeetStage::pending),
    );
    more(&mut line, books(|stage| stage.books().repeated), "came again");
    more(&mut line, books(|stage| stage.books().missed), "never came");
    more(&mut line, books(|stage| stage.books().poison), "records could not be read");
    more(&mut line, books(|stage| stage.books().misplaced), "pieces belong to another topic");
    common(&mut line, ended.gone, ended.oversize);
    line
}

/// Of the last.
pub(super) fn assemble(ended: &Ended<Assembling>) -> String {
    let books = |count: fn(&AssembleStage) -> u64| -> u64 {
        ended.machines.values().map(|assembling| count(&assembling.0)).sum()
    };
    let mut line = format!(
        "assemble: {} partitions, {} pieces = {} kept + {} left out; {} spans written",
        ended.machines.len(),
        books(|stage| stage.books().received),
        books(|stage| stage.books().kept),
        books(|stage| stage.books().left_out),
        books(|stage| stage.books().spans),
    );
    more(&mut line, books(|stage| stage.books().nameless), "pieces have no trace id");
    more(&mut line, books(AssembleStage::pending), "pieces wait to hear in which trace they are shown");
    more(&mut line, books(|stage| stage.books().moved), "pieces went on to the trace that asked");
    more(&mut line, books(|stage| stage.books().moves), "pieces said where");
    more(&mut line, books(|stage| stage.books().moves_late), "of these came too late");
    more(
        &mut line,
        books(|stage| stage.books().unasked),
        "traces answered somebody of whom nothing was heard",
    );
    more(&mut line, books(|stage| stage.books().circles), "pieces had been moved too often");
    more(&mut line, books(|stage| stage.books().misplaced), "pieces belong to another topic");
    more(&mut line, books(|stage| stage.books().repeated), "pieces came again");
    more(&mut line, books(|stage| stage.books().missed), "pieces never came");
    more(&mut line, books(|stage| stage.books().poison), "records could not be read");
    common(&mut line, ended.gone, ended.oversize);
    line
}

fn kinds(accounts: &JoinAccounts) -> [&JoinAccount; 5] {
    [&accounts.calls, &accounts.bios, &accounts.requests, &accounts.commits, &accounts.meetings]
}

fn common(line: &mut String, gone: u64, oversize: u64) {
    more(line, gone, "records were deleted before they were read");
    more(line, oversize, "pieces are longer than a record");
}

/// Said only where there are any.
fn more(line: &mut String, count: u64, what: &str) {
    if count > 0 {
        line.push_str(&format!("; {count} {what}"));
    }
}
