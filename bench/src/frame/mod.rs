//! Framework of all benchmarks: runs alternate between subjects, figures have a spread, and results
//! are printed, saved as JSON and written into the docs.
//!
//! ```text
//! round_policy → rounds → figure ─┬→ outcome → target/bench/NAME.json → docs, svg
//! conditions ─────────────────────┘
//! ```
//!
//! *Invariants*: no absolute time is asserted. A figure is the median of its rounds; its spread is
//! half of the interval that contains the true median in 19 cases of 20. There is no verdict if the
//! spread is larger than the distance to the goal, or if other work disturbed the machine (see
//! [`conditions`]). No figure in the docs is typed: [`docs`] writes them from the JSON of this
//! program.
//!
//! *Rejected*: the fastest round as the figure. It is steadier if other guests only take time away,
//! but users do not get the fastest round, and of two sets with unequal spread it favours the wider
//! one.

pub(crate) mod conditions;
pub(crate) mod cost;
pub(crate) mod docs;
pub(crate) mod figure;
pub(crate) mod machine;
pub(crate) mod number;
pub(crate) mod outcome;
pub(crate) mod round_policy;
pub(crate) mod rounds;
pub(crate) mod svg;
pub(crate) mod tracers;

pub(crate) use conditions::Conditions;
pub(crate) use figure::{Figure, Goal};
pub(crate) use outcome::{BenchReport, Plot, Table};
pub(crate) use round_policy::RoundPolicy;
pub(crate) use rounds::Rounds;
