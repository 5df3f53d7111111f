//! FNV-1a, in 64 bits: for names that are made from longer ones.
//!
//! The hazard: such names are stored, and all releases must agree on them. So this is not the hash of a library, which
//! may change in its next version.

pub fn fnv1a(bytes: impl IntoIterator<Item = u8>) -> u64 {
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    bytes.into_iter().fold(BASIS, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_values_are_computed() {
        let of = |text: &str| fnv1a(text.bytes());
        assert_eq!((of(""), of("a")), (0xcbf2_9ce4_8422_2325, 0xaf63_dc4c_8601_ec8c));
        assert_eq!(of("foobar"), 0x8594_4171_f739_67e8);
    }
}
