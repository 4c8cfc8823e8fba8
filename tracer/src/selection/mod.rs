//! Selection of the operations that are recorded: the kernel side's ratio, rules, a budget, and paths.
//!
//! *In*: settings, and the kernel side's counters. *Out*: words of the kernel side's maps, and the share of the budget
//! that is used. [`capture`](crate::capture) changes all of them while the trace runs. *Invariant*: each module here
//! decides about operations that begin later; none changes a record.

pub mod budget;
pub(crate) mod head_sampling;
pub mod keep;
pub mod path_filter;
