//! Block layer: bios and block requests from submission to completion.
//!
//! *In*: the block tracepoints, or the functions that replace them. *Out*: bio, request and
//! combined bio-request records. *Invariant*: each module uses only modules before it in this list:
//!
//! - `device` and `in_flight`: devices, and the tables of bios and requests in flight
//! - `passthrough`: requests without a bio, which a driver or user space sends directly
//! - `new_request`: the state of a request that starts
//! - `single_bio`: requests with exactly one bio, the common case of direct I/O
//! - `legacy_request`: request start on kernels before 6.5
//! - `flush`, `stacked`: requests served by a flush, and bios of stacked devices
//! - `pages`: the file whose pages a bio carries
//! - `loop_file`: the range of its file that a bio of a loop device writes or discards
//! - `bio`, `request`: the hooks

pub mod bio;
pub mod device;
mod flush;
pub mod in_flight;
pub mod legacy_request;
mod loop_file;
pub mod new_request;
pub mod pages;
pub mod passthrough;
pub mod request;
mod single_bio;
mod stacked;
