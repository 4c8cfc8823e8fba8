//! Configuration of the exporter: one route for each destination.

use std::collections::BTreeSet;

use blkkin_bus::kafka::Group;
use blkkin_zipkin_export::Destination;

use crate::cli::ExporterArgs;
use crate::destination;
use crate::error::CliError;

/// A destination and its consumer group.
pub(super) struct Route {
    /// The argument of `--to`.
    pub(super) argument: String,
    /// The parsed destination.
    pub(super) destination: Destination,
    /// The consumer group.
    pub(super) group: Group,
}

/// Parses the destinations; each has its own consumer group.
pub(super) fn routes(args: &ExporterArgs) -> Result<Vec<Route>, CliError> {
    let (mut routes, mut names) = (Vec::new(), BTreeSet::new());
    for argument in &args.to {
        let destination = destination::parse(argument)?;
        let name = format!("{}-{}", args.group, destination.name());
        if !names.insert(name.clone()) {
            let why = "each destination has its own consumer group, and this one would be shared";
            return Err(CliError::usage(format!("{destination} is named twice"), why, "name it once"));
        }
        let group = Group { name, member: args.instance.clone() };
        routes.push(Route { argument: argument.clone(), destination, group });
    }
    Ok(routes)
}
