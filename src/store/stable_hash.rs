//! FNV-1a, in 64 bits: for names that are made from longer ones.
//!
//! The hazard: such names are stored, and all releases must agree on them. So this is not the hash of a library, which
//! may change in its next version.

pub fn fnv1a(bytes: impl IntoIterator<Item = u8>) -> u64 {
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    bytes.into_iter().fold(BASIS, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
}
