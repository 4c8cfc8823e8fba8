//! Table of the programs of a load.

use std::collections::BTreeSet;

use super::{Load, Program, Reading};
use crate::frame::number::{number, with_spread};
use crate::frame::{Rounds, Table};

/// Minimum runs per operation; rarer programs belong to other tasks or to the start of the load.
pub(super) const RUNS_SHOWN: f64 = 0.02;

/// Makes the table of a load, and the sum per operation of each round.
pub(super) fn of(load: Load, readings: &[Reading], floor: f64) -> (Table, Rounds) {
    let mut table =
        Table::new(load.title(), &["program", "ns a run", "runs an operation", "ns an operation"]);
    let own = |program: &Program| (program.ns - program.runs * floor).max(0.0);
    let names: BTreeSet<&String> = readings.iter().flat_map(|reading| reading.programs.keys()).collect();
    for name in names {
        let each = |of: &dyn Fn(&Program, f64) -> f64| {
            let found = readings.iter().filter_map(|reading| {
                let program = reading.programs.get(name).filter(|program| program.runs > 0.0)?;
                Some(of(program, reading.operations))
            });
            found.collect::<Rounds>()
        };
        let runs = each(&|program, operations| program.runs / operations);
        // NaN of a program that never ran is excluded too.
        if runs.median().max(0.0) < RUNS_SHOWN {
            continue;
        }
        let ns = each(&|program, _| own(program) / program.runs);
        let cost = each(&|program, operations| own(program) / operations);
        table.row([
            name.clone(),
            with_spread(ns.median(), ns.spread()),
            number(runs.median()),
            with_spread(cost.median(), cost.spread()),
        ]);
    }
    let sum: Rounds = readings
        .iter()
        .map(|reading| reading.programs.values().map(own).sum::<f64>() / reading.operations)
        .collect();
    table.row(["in all", "", "", &with_spread(sum.median(), sum.spread())]);
    (table, sum)
}
