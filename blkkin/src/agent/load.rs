//! What an agent traces, ready to begin.

use blkkin_tracer::{Tracer, TracerConfig};
use blkkin_wire::ids::Pid;

use crate::args::AgentArgs;
use crate::failure::Failure;
use crate::probes::Wanted;
use crate::run::cannot_trace;
use crate::what::{What, believed, whom};

/// A tracer that has not begun, the processes whose children are followed, and probes that nobody listens at yet.
pub(super) struct Loaded {
    pub(super) tracer: Tracer,
    pub(super) tree: Vec<Pid>,
    pub(super) wanted: Wanted,
}

/// All that can be refused is refused before a program is in the kernel.
pub(super) fn load(args: &AgentArgs) -> Result<Loaded, Failure> {
    let wanted = Wanted::look_up(&args.probes)?;
    let mut what = What::look_up(&args.what)?;
    let config = TracerConfig { nbd: args.ust.nbd, ..what.tracer_config(whom(&what.tree), &args.how)? };
    let config = wanted.tracer_config(config);
    let tracer = Tracer::load(&config).map_err(cannot_trace)?;
    believed::say_reach(&config.contexts);
    for pid in &what.tree {
        tracer.follow_tree(*pid).map_err(cannot_trace)?;
    }
    Ok(Loaded { tracer, tree: what.tree, wanted })
}
