//! A guest's clock, in its answer to a ping.

/// Reading of a guest's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestTime {
    /// Boot of the guest.
    pub boot: u128,
    /// CLOCK_MONOTONIC, ns.
    pub time: u64,
}

/// Bytes of a payload.
const LENGTH: usize = 24;

impl GuestTime {
    pub(crate) fn encode(self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        bytes[..16].copy_from_slice(&self.boot.to_be_bytes());
        bytes[16..].copy_from_slice(&self.time.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(payload: &[u8]) -> Option<GuestTime> {
        let bytes: [u8; LENGTH] = payload.try_into().ok()?;
        let (boot, time) = (bytes.first_chunk()?, bytes.last_chunk()?);
        Some(GuestTime { boot: u128::from_be_bytes(*boot), time: u64::from_le_bytes(*time) })
    }
}
