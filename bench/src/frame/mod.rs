//! The frame of every bench: what is compared runs in turns, a figure says how far it can be trusted, and what came out
//! is printed, kept as JSON, compared with an earlier run, and written into the docs.
//!
//! ```text
//! turns → rounds → figure ─┬→ outcome → print, target/bench/NAME.json → docs, svg
//! conditions ──────────────┘      └→ reference (ratios only)
//! ```
//!
//! *Invariants*: no absolute time is asserted by anybody. A figure is the median of its rounds, its spread half of the
//! interval that holds the true median in 19 cases of 20, and where the spread is larger than the distance to the goal,
//! or the machine was not ours (see [`conditions`]), the verdict is that there is none. No figure in the docs is typed:
//! [`docs`] writes them from the JSON, which this same program wrote.
//!
//! *Rejected*: the fastest round as the figure. It is steadier where neighbours only take time away, but users do not get
//! the fastest round, and of two sets with unequal spread it favours the wider.

pub(crate) mod conditions;
pub(crate) mod docs;
pub(crate) mod figure;
pub(crate) mod machine;
pub(crate) mod number;
pub(crate) mod outcome;
pub(crate) mod print;
pub(crate) mod reference;
pub(crate) mod rounds;
pub(crate) mod svg;
pub(crate) mod tracers;
pub(crate) mod turns;

pub(crate) use conditions::Conditions;
pub(crate) use figure::{Figure, Goal};
pub(crate) use outcome::{Found, Plot, Shape, Table};
pub(crate) use rounds::Rounds;
pub(crate) use turns::Turns;
