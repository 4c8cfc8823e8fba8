//! Connections after the handshake, as `server` passes them to `pool` or `ring`.

use std::sync::Arc;

use crate::client::Client;
use crate::connection_name::ConnectionName;
use crate::protocol::Session;

/// Connection whose handshake is complete.
#[derive(Debug)]
pub(crate) struct AcceptedConnection {
    pub(crate) client: Arc<Client>,
    pub(crate) session: Session,
    /// Connection name; none if it cannot be computed.
    pub(crate) name: Option<ConnectionName>,
    /// Bytes that the handshake read, which is the stream offset of the first request.
    pub(crate) stream_offset: u64,
}
