//! Boundary drivers: readings at the end of a worker's compute, to forecast its next iteration.

use evenstep_protocol::{Readings, driver};

/// Drivers sent with the gradients, in the order of their slots.
pub const NAMES: [&str; driver::ALL.len()] = driver::ALL;

/// Encodes readings into slots. A missing reading is NaN, which survives a sum and is never mistaken for a
/// value.
pub fn encode(readings: &Readings) -> [f64; NAMES.len()] {
    NAMES.map(|name| readings.get(name).copied().unwrap_or(f64::NAN))
}

/// Decodes slots into readings, without the missing ones.
pub fn decode(slots: &[f64]) -> Readings {
    let present = NAMES.iter().zip(slots).filter(|(_, value)| value.is_finite());
    present.map(|(name, value)| ((*name).to_owned(), *value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_values_stay_missing_and_zeros_stay_zero() {
        let readings: Readings = [("other_cpu".to_owned(), 0.0), ("psi_cpu_some".to_owned(), 0.25)].into();
        let sum = encode(&readings).map(|slot| slot + 0.0);
        assert_eq!(decode(&sum), readings);
    }
}
