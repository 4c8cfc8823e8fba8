//! Connections after the handshake, as `server` passes them to `pool` or `ring`.

use crate::connection_name::ConnectionName;
use crate::protocol::Session;
use crate::socket::Socket;

/// Connection whose handshake is complete.
#[derive(Debug)]
pub(crate) struct AcceptedConnection {
    pub(crate) socket: Socket,
    pub(crate) session: Session,
    /// Connection name; none if it cannot be computed.
    pub(crate) name: Option<ConnectionName>,
    /// Bytes that the handshake read, which is the stream offset of the first request.
    pub(crate) stream_offset: u64,
}
