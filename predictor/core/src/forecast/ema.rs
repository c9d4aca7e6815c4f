//! Exponential moving average: `level += alpha (y - level)`.

/// An exponential moving average of log speed that has seen at least one value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ema {
    alpha: f64,
    level: f64,
}

impl Ema {
    /// Starts at the first value. `alpha` in (0, 1]: 1 is the last value.
    pub fn new(alpha: f64, first: f64) -> Self {
        debug_assert!(alpha > 0.0 && alpha <= 1.0);
        Self { alpha, level: first }
    }

    /// Takes the next value.
    pub fn update(&mut self, value: f64) {
        self.level += self.alpha * (value - self.level);
    }

    /// The average: the forecast of every coming value.
    pub fn level(&self) -> f64 {
        self.level
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: 1, then 1 + .5 (3 - 1) = 2, then 2 + .5 (0 - 2) = 1.
    #[test]
    fn follows_the_formula() {
        let mut ema = Ema::new(0.5, 1.0);
        ema.update(3.0);
        assert_eq!(ema.level(), 2.0);
        ema.update(0.0);
        assert_eq!(ema.level(), 1.0);
    }
}
