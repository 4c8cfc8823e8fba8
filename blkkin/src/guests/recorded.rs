//! Guests among the nodes of a recording.
//!
//! *In*: batches of a recording. *Out*: the host of each guest, by the event of the node that the host's agent adds
//! to each record of a guest. *Invariant*: a node is a guest only if a host's agent has reported so; no guest sends that event
//! ([`super`]).

use std::collections::HashMap;

use blkkin_wire::batch::EventBatch;
use blkkin_wire::event::LayerEvent;
use blkkin_wire::ids::NodeId;

/// Guests, each with its host.
#[derive(Debug, Default)]
pub(crate) struct RecordedGuests(HashMap<NodeId, NodeId>);

impl RecordedGuests {
    /// Takes the host of a batch's node, if the batch has it.
    pub(crate) fn learn(&mut self, batch: &EventBatch) {
        let host = batch.events.iter().find_map(|event| match event {
            LayerEvent::VirtualMachine(event) if event.is_of_node() => event.host.as_ref(),
            _ => None,
        });
        if let Some(host) = host.filter(|host| host.node != batch.source.node) {
            self.0.insert(batch.source.node, host.node);
        }
    }

    /// Returns the host of a guest; none if the node is no guest.
    pub(crate) fn host_of(&self, node: NodeId) -> Option<NodeId> {
        self.0.get(&node).copied()
    }

    /// Returns whether no node is a guest.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use blkkin_wire::clock::MonotonicNs;
    use blkkin_wire::ids::{BootId, Pid, Source};
    use blkkin_wire::virtual_machine::{HostProcess, VirtualMachineEvent};

    use super::*;

    fn batch(node: u128, of: Pid, host: Option<u128>) -> EventBatch {
        let process = |node| HostProcess { node: NodeId(node), boot: BootId(1), pid: Pid(7), clock: None };
        let event = VirtualMachineEvent {
            host: host.map(|node| Box::new(process(node))),
            ..VirtualMachineEvent::bare(MonotonicNs(1), of, "web", "")
        };
        EventBatch {
            source: Source { node: NodeId(node), ..Source::NONE },
            events: vec![LayerEvent::VirtualMachine(Box::new(event))],
            ..EventBatch::tick()
        }
    }

    #[test]
    fn only_the_event_of_a_node_with_another_host_makes_a_guest() {
        let mut guests = RecordedGuests::default();
        guests.learn(&batch(1, Pid(70), Some(2)));
        guests.learn(&batch(2, VirtualMachineEvent::NODE, None));
        guests.learn(&batch(3, VirtualMachineEvent::NODE, Some(3)));
        assert!(guests.is_empty());
        guests.learn(&batch(4, VirtualMachineEvent::NODE, Some(2)));
        assert_eq!(
            [1, 2, 3, 4].map(|node| guests.host_of(NodeId(node))),
            [None, None, None, Some(NodeId(2))]
        );
    }
}
