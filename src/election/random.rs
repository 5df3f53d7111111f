//! Random numbers from a seed, to spread requests: the same seed spreads them alike.

use std::time::Duration;

/// The first pause after an error; it doubles up to a bound.
const FIRST_BACKOFF: Duration = Duration::from_millis(100);

/// `SplitMix64` (Steele, Lea, Flood 2014): small, seeded, good enough to spread requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Between the two, evenly.
    pub fn between(&mut self, (least, most): (Duration, Duration)) -> Duration {
        least + (most - least).mul_f64(self.fraction())
    }

    /// Between three and five quarters of `mean`, evenly.
    pub fn about(&mut self, mean: Duration) -> Duration {
        mean.mul_f64(0.75 + 0.5 * self.fraction())
    }

    /// The pause after so many failures in a row: doubling, between half of it and all of it, at most `most`.
    pub fn backoff(&mut self, failures: u32, most: Duration) -> Duration {
        let doubled = FIRST_BACKOFF.saturating_mul(1 << failures.saturating_sub(1).min(16));
        doubled.min(most).mul_f64(0.5 + 0.5 * self.fraction())
    }

    /// The pause before the `number`th attempt in a row: `first`, doubling up to `most`, or up to a quarter less.
    pub fn grown(&mut self, first: Duration, number: u32, most: Duration) -> Duration {
        let doubled = first.max(FIRST_BACKOFF).saturating_mul(1 << number.saturating_sub(1).min(16));
        doubled.min(most.max(FIRST_BACKOFF)).mul_f64(0.75 + 0.25 * self.fraction())
    }

    #[expect(clippy::cast_precision_loss, reason = "53 bits are all that is wanted")]
    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}
