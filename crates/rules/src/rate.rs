//! The multiplier of the learning rate, also in iterations without an allocation.

use evenstep_protocol::{OptimizerInstruction, Ramp};
use serde::{Deserialize, Serialize};

/// A constant multiplier, or a ramp from one multiplier to another.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// The multiplier without a ramp.
    multiplier: f64,
    ramp: Option<Ramp>,
}

/// The largest value below which every integer is exact as a 32-bit float. Larger integers are sent in two
/// parts.
const PART: u64 = 1 << 24;

/// Number of slots of an encoded rate.
pub const SLOTS: usize = 8;

impl From<f64> for Rate {
    fn from(multiplier: f64) -> Self {
        Self { multiplier, ramp: None }
    }
}

impl From<Ramp> for Rate {
    fn from(ramp: Ramp) -> Self {
        Self { multiplier: ramp.from, ramp: (ramp.iterations > 0).then_some(ramp) }
    }
}

impl Rate {
    /// Returns the rate of an instruction.
    ///
    /// # Errors
    /// Returns the first multiplier that is negative or not finite.
    pub fn from_instruction(instruction: &OptimizerInstruction) -> Result<Self, f64> {
        let ramp = instruction.ramp;
        let said =
            [instruction.lr_multiplier].into_iter().chain(ramp.iter().flat_map(|ramp| [ramp.from, ramp.to]));
        match said.into_iter().find(|multiplier| !(multiplier.is_finite() && *multiplier >= 0.0)) {
            Some(wrong) => Err(wrong),
            None => Ok(Self { multiplier: instruction.lr_multiplier, ramp }),
        }
    }

    /// Returns the rate on this ramp, if any. `multiplier` is in force without one.
    pub fn new(multiplier: f64, ramp: Option<Ramp>) -> Self {
        Self { multiplier, ramp }
    }

    /// Returns the multiplier without a ramp.
    pub fn multiplier(&self) -> f64 {
        self.multiplier
    }

    /// Returns the ramp, if any.
    pub fn ramp(&self) -> Option<Ramp> {
        self.ramp
    }

    /// Returns the final multiplier.
    pub fn end(&self) -> f64 {
        self.ramp.map_or(self.multiplier, |ramp| ramp.to)
    }

    /// Returns the rate in force after the predictor sent `said`. The predictor learns of a changed group
    /// later than the group itself, so its ramp to the same end may start later. Of two ramps to the same
    /// end, the one that started first continues.
    #[must_use]
    pub fn with(self, said: Self) -> Self {
        let began = |rate: &Self| rate.ramp.map_or(0, |ramp| ramp.start_iteration);
        if self.end() == said.end() && began(&self) <= began(&said) { self } else { said }
    }

    /// Returns the multiplier of an iteration, on a ramp as well.
    pub fn at(&self, iteration: u64) -> f64 {
        self.ramp.map_or(self.multiplier, |ramp| ramp.multiplier(iteration))
    }

    /// Encodes the rate into its slots.
    pub fn encode(&self) -> [f64; SLOTS] {
        let Some(ramp) = self.ramp else { return [self.multiplier, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0] };
        let [start, count] =
            [ramp.start_iteration, ramp.iterations].map(|n| [(n / PART) as f64, (n % PART) as f64]);
        [self.multiplier, 1.0, ramp.from, ramp.to, start[0], start[1], count[0], count[1]]
    }

    /// Decodes the slots of [`Rate::encode`].
    pub fn decode(slots: [f64; SLOTS]) -> Self {
        let whole = |high: f64, low: f64| (high as u64) * PART + low as u64;
        let [multiplier, on_ramp, from, to, start_high, start_low, count_high, count_low] = slots;
        let ramp = (on_ramp == 1.0).then(|| Ramp {
            from,
            to,
            start_iteration: whole(start_high, start_low),
            iterations: whole(count_high, count_low),
        });
        Self { multiplier, ramp }
    }
}

#[cfg(test)]
mod tests {
    use evenstep_protocol::LearningRateRule;

    use super::*;

    fn told(lr_multiplier: f64, ramp: Option<Ramp>) -> OptimizerInstruction {
        OptimizerInstruction {
            rule: LearningRateRule::DynamicSgd,
            lr_multiplier,
            momentum_buffer_scale: 1.0,
            ramp,
            schedule_iteration: None,
        }
    }

    /// Dynamic Mini-batch SGD growing fourfold over 32 iterations: c(t) = 1 + 3 t / 32.
    #[test]
    fn a_ramp_continues_without_responses() {
        let start = 40_000_000;
        let ramp = Ramp { from: 1.0, to: 4.0, start_iteration: start, iterations: 32 };
        let rate = Rate::from_instruction(&told(1.75, Some(ramp))).unwrap();
        for (gone, multiplier) in
            [(0, 1.0), (1, 1.09375), (8, 1.75), (16, 2.5), (31, 3.90625), (32, 4.0), (99, 4.0)]
        {
            assert_eq!(rate.at(start + gone), multiplier, "after {gone} iterations");
        }
        let narrow = rate.encode().map(|slot| f64::from(slot as f32));
        assert_eq!(Rate::decode(narrow), rate);
        assert_eq!(Rate::decode(Rate::from(0.5).encode()), Rate::from(0.5));
        assert_eq!(Rate::from(0.5).at(7), 0.5);
    }

    #[test]
    fn the_first_of_two_ramps_to_the_same_target_continues() {
        let ramp = |to, start_iteration| {
            let ramp = Ramp { from: 1.0, to, start_iteration, iterations: 32 };
            Rate::from_instruction(&told(1.0, Some(ramp))).unwrap()
        };
        assert_eq!(ramp(4.0, 10).with(ramp(4.0, 13)), ramp(4.0, 10));
        assert_eq!(ramp(4.0, 10).with(ramp(4.0, 7)), ramp(4.0, 7));
        assert_eq!(ramp(4.0, 10).with(ramp(2.0, 13)), ramp(2.0, 13));
        assert_eq!(ramp(4.0, 10).with(4.0.into()), 4.0.into());
        assert_eq!(Rate::from(1.0).with(1.7.into()), 1.7.into());
    }

    #[test]
    fn multipliers_that_are_none_are_refused() {
        assert!(Rate::from_instruction(&told(f64::NAN, None)).is_err_and(f64::is_nan));
        let ramp = Ramp { from: 1.0, to: -4.0, start_iteration: 0, iterations: 0 };
        assert_eq!(Rate::from_instruction(&told(1.0, Some(ramp))), Err(-4.0));
    }
}
