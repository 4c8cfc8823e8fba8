//! Parts of the soak test: recordings of nodes, instrumented programs, the services between them and Zipkin, a seeded
//! random generator, and multisets of the resulting spans.

pub(crate) mod endurance;
pub(crate) mod live;
pub(crate) mod node_recordings;
pub(crate) mod pipeline;
pub(crate) mod rng;
pub(crate) mod span_multiset;
