//! Which partition of a topic a key lies in.
//!
//! *In*: a key's bytes and how many partitions there are. *Out*: the one that a Java producer would choose, and
//! librdkafka with `partitioner=murmur2_random`.
//! *Invariant*: it never changes: pieces of a trace that are written years apart meet in one partition.
//!
//! *Why here and not the producer's own*: a record of `blkkin.spans` holds many traces, so it has no key that a producer could
//! look at; and pieces are numbered by their partition before there is a producer.

use crate::ids::TraceId;

/// Any would do; this one is Kafka's (org.apache.kafka.common.utils.Utils.murmur2).
const SEED: u32 = 0x9747_b28c;
/// MurmurHash2's multiplier and shift (Appleby, 2008).
const M: u32 = 0x5bd1_e995;
const R: u32 = 24;

/// The partition of `key` among `partitions`; 0 where there are none.
pub fn partition_of(key: &[u8], partitions: u32) -> u32 {
    // Kafka takes the sign away by masking it, not by negation.
    (murmur2(key) & 0x7fff_ffff) % partitions.max(1)
}

impl TraceId {
    /// Where all that is known of this trace lies: its key is the id's 16 bytes, the highest first.
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

    /// What Kafka's own tests expect (clients, UtilsTest.testMurmur2).
    #[test]
    fn it_is_kafkas_murmur2() {
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
    fn every_partition_gets_its_share_of_traces() {
        let mut traces = [0; 12];
        for n in 0..12_000_u128 {
            traces[TraceId(7 << 64 | n).partition(12) as usize] += 1;
        }
        assert!(traces.iter().all(|&traces| (850..1_150).contains(&traces)), "{traces:?}");
        assert_eq!(TraceId(1).partition(0), 0);
    }
}
