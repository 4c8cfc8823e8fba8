//! Kafka partitioning of keys.
//!
//! *In*: the bytes of a key and the number of partitions. *Out*: the partition that a Java
//! producer, or librdkafka with `partitioner=murmur2_random`, would choose. *Invariant*: it never
//! changes, so fragments of a trace that were written years apart are in one partition.
//!
//! *Why not the producer's partitioner*: a record of `blkkin.spans` holds many traces, so it has no
//! key for the producer. Also, fragments are numbered by partition before a producer exists.

use crate::ids::TraceId;

/// Seed of Kafka's murmur2 (org.apache.kafka.common.utils.Utils.murmur2).
const SEED: u32 = 0x9747_b28c;
/// Multiplier and shift of MurmurHash2 (Appleby, 2008).
const M: u32 = 0x5bd1_e995;
const R: u32 = 24;

/// Returns the partition of `key` among `partitions`; 0 if there are none.
pub fn partition_of(key: &[u8], partitions: u32) -> u32 {
    // Kafka masks the sign bit, it does not negate.
    (murmur2(key) & 0x7fff_ffff) % partitions.max(1)
}

impl TraceId {
    /// Returns the partition of all records of this trace. The key is the 16 bytes of the id, most
    /// significant first.
    pub fn partition(self, partitions: u32) -> u32 {
        partition_of(&self.0.to_be_bytes(), partitions)
    }
}

fn murmur2(key: &[u8]) -> u32 {
    let mut hash = SEED ^ key.len() as u32;
    let (words, rest) = key.as_chunks::<4>();
    for word in words {
        let mut k = u32::from_le_bytes(*word).wrapping_mul(M);
        k = (k ^ k >> R).wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ k;
    }
    if !rest.is_empty() {
        let tail = rest.iter().rev().fold(0, |tail, &byte| tail << 8 | u32::from(byte));
        hash = (hash ^ tail).wrapping_mul(M);
    }
    hash = (hash ^ hash >> 13).wrapping_mul(M);
    hash ^ hash >> 15
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected values of Kafka's own tests (clients, UtilsTest.testMurmur2).
    #[test]
    fn hash_equals_kafkas_murmur2() {
        let expected = [
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            ("abc", 479_470_107),
        ];
        for (key, hash) in expected {
            assert_eq!(murmur2(key.as_bytes()) as i32, hash, "{key}");
        }
    }

    #[test]
    fn traces_spread_evenly_over_partitions() {
        let mut traces = [0; 12];
        for n in 0..12_000_u128 {
            traces[TraceId(7 << 64 | n).partition(12) as usize] += 1;
        }
        assert!(traces.iter().all(|&traces| (850..1_150).contains(&traces)), "{traces:?}");
        assert_eq!(TraceId(1).partition(0), 0);
    }
}
