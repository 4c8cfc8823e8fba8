//! Loads the tracer of an agent.

use blkkin_tracer::{Tracer, TracerConfig};
use blkkin_wire::ids::Pid;

use crate::cli::AgentArgs;
use crate::error::CliError;
use crate::filter::{TraceFilter, context_trust, trace_scope};
use crate::sources::usdt::UsdtProbes;

/// A loaded tracer, the processes whose children are traced, and resolved USDT probes.
pub(super) struct LoadedTracer {
    pub(super) tracer: Tracer,
    pub(super) tree: Vec<Pid>,
    pub(super) usdt_probes: UsdtProbes,
}

/// Validates the options, then loads the tracer.
pub(super) fn load(args: &AgentArgs) -> Result<LoadedTracer, CliError> {
    let usdt_probes = UsdtProbes::resolve(&args.usdt)?;
    let mut filter = TraceFilter::resolve(&args.filter)?;
    let config = TracerConfig {
        nbd: args.lttng.nbd,
        ..filter.tracer_config(trace_scope(&filter.tree), &args.tracer)?
    };
    let config = usdt_probes.tracer_config(config);
    let tracer = Tracer::load(&config)?;
    context_trust::warn_if_limited(&config.contexts);
    for pid in &filter.tree {
        tracer.trace_process_tree(*pid)?;
    }
    Ok(LoadedTracer { tracer, tree: filter.tree, usdt_probes })
}
