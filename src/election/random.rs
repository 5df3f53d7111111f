//! Random numbers from a seed, to spread requests. The same seed gives the same numbers.

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

    /// A duration between the two, evenly distributed.
    pub fn between(&mut self, (least, most): (Duration, Duration)) -> Duration {
        least + (most - least).mul_f64(self.fraction())
    }

    /// A duration between three and five quarters of `mean`, evenly distributed.
    pub fn about(&mut self, mean: Duration) -> Duration {
        mean.mul_f64(0.75 + 0.5 * self.fraction())
    }

    /// The pause after this many failures in a row. It doubles up to `most`; a random part, up to half of it, is left
    /// out.
    pub fn backoff(&mut self, failures: u32, most: Duration) -> Duration {
        let doubled = FIRST_BACKOFF.saturating_mul(1 << failures.saturating_sub(1).min(16));
        doubled.min(most).mul_f64(0.5 + 0.5 * self.fraction())
    }

    /// The pause before attempt `number` in a row. It doubles from `first` up to `most`; a random part, up to a
    /// quarter, is left out.
    pub fn grown(&mut self, first: Duration, number: u32, most: Duration) -> Duration {
        let doubled = first.max(FIRST_BACKOFF).saturating_mul(1 << number.saturating_sub(1).min(16));
        doubled.min(most.max(FIRST_BACKOFF)).mul_f64(0.75 + 0.25 * self.fraction())
    }

    #[expect(clippy::cast_precision_loss, reason = "53 bits are all that is wanted")]
    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}
