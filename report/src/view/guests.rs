//! Section: operations of guests by layer, across the kernels of guest and host; and the slowest of them.

use super::{note, program, title};
use crate::collect::guests::GuestKey;
use crate::collect::guests::layers::GuestLayer;
use crate::report::Report;
use crate::text::line::{Line, sanitize, wrap};
use crate::text::style::Ink;
use crate::text::table::{Column, Row, Table};
use crate::text::units::{self, NONE, count, counted};
use crate::waterfall::{draw, guest};

/// Maximum number of rows.
pub(crate) const PROGRAMS_SHOWN: usize = 10;
/// Column of each layer, in the order of [`GuestLayer::ALL`].
const COLUMNS: [&str; 8] = ["guest", "journal", "QEMU", "NBD", "network", "daemon", "host", "device"];
const MEANING: &str = "guest, journal: the guest's kernel, and commits of its journal. QEMU: a request of the guest's disk, \
    less QEMU's operations for it. network, daemon: an NBD request of QEMU, and its server outside of system calls; NBD: both, \
    where the server's part is not known. host: system calls of QEMU and of the server. device: requests of the host's disks.";

pub(super) fn lines(report: &Report, columns: usize) -> Vec<Line> {
    let guests = &report.guests;
    let rows = guests.rows().len();
    if rows == 0 {
        return Vec::new();
    }
    let mut lines = title("virtual machines", "time of guests' calls that reached a disk, by layer", columns);
    lines.extend(table(report, PROGRAMS_SHOWN, columns));
    if rows > PROGRAMS_SHOWN {
        lines.extend(note(&format!("and {} more", count((rows - PROGRAMS_SHOWN) as u64)), columns));
    }
    lines.extend(note(MEANING, columns));
    lines.extend(links(report).iter().flat_map(|text| note(text, columns)));
    for operation in guests.slowest().iter().take(report.config.slowest) {
        lines.push(Line::new());
        let title = format!("{}: {}", machine(&operation.key), sanitize(operation.name()));
        lines.push(Line::of(format!("{title}, {}", units::duration(operation.duration())), Ink::Bold));
        let rows = guest::rows(operation);
        lines.extend(draw::lines(&rows, guest::window(operation), operation.duration(), columns));
        lines.extend(wrap(&guest::shares(operation.times), draw::MARGIN, columns, Ink::Bold));
    }
    lines
}

/// Returns the programs with most time, each with the share of each layer.
pub(super) fn table(report: &Report, rows_max: usize, columns: usize) -> Vec<Line> {
    let first =
        [Column::name("VM"), Column::name("program"), Column::number("calls"), Column::number("time")];
    let mut table = Table::new(first.into_iter().chain(COLUMNS.map(Column::number)).collect());
    for (key, sums) in report.guests.rows().into_iter().take(rows_max) {
        let total = sums.times.total();
        let share = |layer| match sums.times.of(layer).0 {
            0 => NONE.to_owned(),
            time => units::share(time, total.0),
        };
        let time = if sums.operations > 0 { units::duration(total) } else { NONE.to_owned() };
        let first = [machine(key), program(&key.program), count(sums.operations), time];
        table.push(Row::new(first.into_iter().chain(GuestLayer::ALL.map(share)).collect(), Ink::Plain));
    }
    table.without_empty(&COLUMNS).lines(columns)
}

/// Returns what is known of the links, and what is missing.
fn links(report: &Report) -> Vec<String> {
    let [requests, linked] = report.guests.requests();
    let mut texts = vec![format!(
        "{} of {} have all their operations of QEMU",
        count(linked),
        counted(requests, "request")
    )];
    texts.extend(left_out(report));
    texts
}

/// Returns what is not in the figures.
pub(super) fn left_out(report: &Report) -> Vec<String> {
    let guests = &report.guests;
    let (operations, left_out) = guests.operations();
    let mut texts = Vec::new();
    let mut add = |number: u64, text: String| {
        if number > 0 {
            texts.push(text);
        }
    };
    let all = operations + left_out.total();
    let reasons = [
        (left_out.unlinked, "with a request that lacks an operation of QEMU"),
        (left_out.shared, "that waited for requests of other calls"),
        (left_out.incomplete, "with lost records"),
        (left_out.unnamed, "on a disk that the host does not know"),
    ];
    let reasons: Vec<String> = reasons
        .iter()
        .filter(|(number, _)| *number > 0)
        .map(|(number, reason)| format!("{} {reason}", count(*number)))
        .collect();
    let of_all = format!("{} of {} of guests", count(left_out.total()), counted(all, "call"));
    add(left_out.total(), format!("not in these figures: {of_all}: {}", reasons.join(", ")));
    let early = guests.decided_early();
    add(early, format!("{} did not wait for links: too many at once", counted(early, "call")));
    let refused = guests.refused();
    add(refused, format!("{} refused: several requests may be theirs", counted(refused, "operation")));
    add(guests.lost(), format!("lost by the guests: {}", counted(guests.lost(), "record")));
    texts
}

/// Returns the sentences of the summary: where the time of the guests' calls went, and of the slowest one.
pub(super) fn sentences(report: &Report) -> Vec<String> {
    let guests = &report.guests;
    let mut sentences = Vec::new();
    let mut of_machines: Vec<(&GuestKey, u64, _)> = Vec::new();
    for (key, sums) in guests.rows() {
        match of_machines.iter_mut().find(|(other, ..)| other.is_of_one_machine(key)) {
            Some((_, operations, times)) => {
                *operations += sums.operations;
                *times += sums.times;
            }
            None => of_machines.push((key, sums.operations, sums.times)),
        }
    }
    of_machines.retain(|(_, operations, _)| *operations > 0);
    if of_machines.is_empty() && !guests.rows().is_empty() {
        sentences.push("virtual machines: no call of a guest has all its operations of QEMU".to_owned());
    }
    if let Some((key, operations, times)) = of_machines.iter().max_by_key(|(.., times)| times.total()) {
        let (name, calls) = (sanitize(&key.machine), counted(*operations, "call"));
        let time = units::duration(times.total());
        sentences.push(format!("virtual machine {name}: {time} in {calls}, {}", guest::shares(*times)));
    }
    if let Some(slowest) = guests.slowest().first() {
        let (name, machine) = (sanitize(slowest.name()), machine(&slowest.key));
        let time = units::duration(slowest.duration());
        sentences.push(format!("slowest in {machine}: {name}, {time}: {}", guest::shares(slowest.times)));
    }
    sentences
}

fn machine(key: &GuestKey) -> String {
    program(&key.machine)
}
