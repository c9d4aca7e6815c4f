//! Boundary drivers: what is read of the machine when a worker's compute ends, to forecast its next iteration.

use evenstep_protocol::{Readings, driver};

/// The drivers that travel with the gradients, in the order of their slots.
pub const NAMES: [&str; driver::ALL.len()] = driver::ALL;

/// Readings in slots: a missing one is NaN, which survives a sum and is never taken for a number.
pub fn encode(readings: &Readings) -> [f64; NAMES.len()] {
    NAMES.map(|name| readings.get(name).copied().unwrap_or(f64::NAN))
}

/// Slots as readings: only what was there.
pub fn decode(slots: &[f64]) -> Readings {
    let present = NAMES.iter().zip(slots).filter(|(_, value)| value.is_finite());
    present.map(|(name, value)| ((*name).to_owned(), *value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_stays_missing_and_zero_stays_zero() {
        let readings: Readings = [("other_cpu".to_owned(), 0.0), ("psi_cpu_some".to_owned(), 0.25)].into();
        let sum = encode(&readings).map(|slot| slot + 0.0);
        assert_eq!(decode(&sum), readings);
    }
}
