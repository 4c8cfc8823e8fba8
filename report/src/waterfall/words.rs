//! Where a request's time went, in a sentence.

use std::cmp::Reverse;

use blkkin_aggregator::account::Breakdown;
use blkkin_aggregator::trace::{Missing, Trace};

use super::block;
use crate::text::line::harmless;
use crate::text::units;

/// `91.2 % at the device loop0, 6.1 % in the file system, 2.7 % unaccounted`, and what else is known of it.
pub fn words(trace: &Trace, split: Breakdown) -> String {
    let at_device = format!("at {}", devices(trace));
    let mut parts = [
        (split.device, at_device.as_str()),
        (split.block, "in the block queue"),
        (split.journal, "in the journal"),
        (split.file_system, "in the file system"),
        (split.unaccounted, "unaccounted"),
    ];
    // Stable: of equals in the order from the device upwards.
    parts.sort_by_key(|(time, _)| Reverse(*time));
    let whole = trace.duration().0;
    let said = parts.iter().filter(|(time, _)| time.0 > 0);
    let said: Vec<String> =
        said.map(|(time, place)| format!("{} {place}", units::share(time.0, whole))).collect();
    let mut sentence = said.join(", ");
    for remark in remarks(trace) {
        sentence.push_str(if sentence.is_empty() { "" } else { "; " });
        sentence.push_str(&remark);
    }
    sentence
}

/// By name while they are few.
fn devices(trace: &Trace) -> String {
    let names: Vec<String> = block::devices(trace).into_iter().map(|name| harmless(&name)).collect();
    match names.as_slice() {
        [] => "the device".to_owned(),
        [one] => format!("the device {one}"),
        [one, two] => format!("the devices {one} and {two}"),
        many => format!("{} devices", many.len()),
    }
}

fn remarks(trace: &Trace) -> Vec<String> {
    let mut remarks = Vec::new();
    let Some(call) = trace.call() else { return remarks };
    if trace.bios.is_empty() && trace.causes.is_empty() && trace.missing.nothing() {
        remarks.push("nothing went to a device".to_owned());
    }
    if call.sleeps == 0 {
        remarks.push("it never slept".to_owned());
    }
    if trace.last_end() > call.exit {
        let after = units::duration(trace.last_end().since(call.exit));
        remarks.push(format!("its last bio ended {after} after it returned"));
    }
    let Missing { bios, requests, commits, .. } = trace.missing;
    let missing: Vec<String> = [(bios, "bio"), (requests, "request"), (commits, "commit")]
        .into_iter()
        .filter(|(number, _)| *number > 0)
        .map(|(number, noun)| units::counted(number.into(), noun))
        .collect();
    if !missing.is_empty() {
        remarks.push(format!("incomplete: {} never arrived", missing.join(" and ")));
    }
    remarks
}
