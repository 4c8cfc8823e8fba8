//! Nodes by the guest that sends their events.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use blkkin_wire::ids::NodeId;

/// Nodes by the socket of the guest that sends their events. A guest keeps its node for as long as its socket
/// is connected, so another guest cannot send events of the same node meanwhile.
#[derive(Debug)]
pub(super) struct NodeClaims {
    own: NodeId,
    guests: HashMap<NodeId, PathBuf>,
}

impl NodeClaims {
    /// Creates the claims of a host. No guest may have its own node.
    pub(super) fn new(own: NodeId) -> NodeClaims {
        NodeClaims { own, guests: HashMap::new() }
    }

    /// Claims a node for a guest, or returns why it may not have it.
    pub(super) fn claim(&mut self, node: NodeId, guest: &Path) -> Result<(), String> {
        if node == self.own {
            return Err("it has the machine id of this host: give it one of its own".to_owned());
        }
        match self.guests.get(&node) {
            Some(other) if other != guest => Err(format!(
                "it has the machine id of the guest of {}, as a clone of it has: give it one of its own",
                other.display()
            )),
            Some(_) => Ok(()),
            None => {
                // One guest is one node; a guest that has changed its node gives up the other.
                self.release(guest);
                self.guests.insert(node, guest.to_owned());
                Ok(())
            }
        }
    }

    /// Gives up the node of a guest.
    pub(super) fn release(&mut self, guest: &Path) {
        self.guests.retain(|_, other| other != guest);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_node_belongs_to_one_guest_and_never_to_the_host() {
        let mut claims = NodeClaims::new(NodeId(1));
        let [web, db] = ["/g/web", "/g/db"].map(Path::new);
        assert!(claims.claim(NodeId(1), web).unwrap_err().contains("this host"));
        claims.claim(NodeId(2), web).unwrap();
        claims.claim(NodeId(2), web).unwrap();
        assert!(claims.claim(NodeId(2), db).unwrap_err().contains("/g/web"));
        // A guest has one node at a time.
        claims.claim(NodeId(3), web).unwrap();
        claims.claim(NodeId(2), db).unwrap();
        claims.release(web);
        claims.claim(NodeId(3), db).unwrap();
        claims.claim(NodeId(2), web).unwrap();
    }
}
