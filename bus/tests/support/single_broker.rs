//! Configuration of a Kafka broker that is its own cluster (KRaft), for the tests and for xtask.

use std::path::Path;

/// Returns the lines without those for the advertised listeners. `more_listeners` begins with a comma.
pub(crate) fn properties(port: u16, controller: u16, log: &Path, more_listeners: &str) -> String {
    let log = log.display();
    format!(
        "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:{controller}\n\
         listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}{more_listeners}\n\
         controller.listener.names=CONTROLLER\n\
         log.dirs={log}\nauto.create.topics.enable=false\noffsets.topic.replication.factor=1\n\
         transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\n\
         share.coordinator.state.topic.replication.factor=1\nshare.coordinator.state.topic.min.isr=1\n\
         group.initial.rebalance.delay.ms=0\n"
    )
}
