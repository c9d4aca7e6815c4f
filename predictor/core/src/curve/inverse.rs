//! The inverse of a step function over integers, starting from a guess that can be off by rounding.

/// Returns the largest number up to `most` that fits.
///
/// 0 must fit, and if a number does not fit, no larger number may fit. The function doubles its steps from
/// `guess`, then bisects. It makes two calls to `fits` if the guess is right, and never more than two for
/// each bit of `most`.
#[inline]
pub fn largest(guess: f64, most: u64, fits: impl Fn(u64) -> bool) -> u64 {
    let guess = if guess >= most as f64 { most } else { guess as u64 };
    let (mut low, mut high);
    let mut step = 1u64;
    if guess == 0 || fits(guess) {
        low = guess;
        loop {
            if low == most {
                return most;
            }
            let next = low.saturating_add(step).min(most);
            if !fits(next) {
                high = next;
                break;
            }
            low = next;
            step = step.saturating_mul(2);
        }
    } else {
        high = guess;
        loop {
            low = high.saturating_sub(step);
            if low == 0 || fits(low) {
                break;
            }
            high = low;
            step = step.saturating_mul(2);
        }
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if fits(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}
