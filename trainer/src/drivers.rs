//! Boundary drivers: what is read of the machine when a worker's compute ends, to forecast its next iteration.

use evenstep_protocol::{Readings, driver};

/// The drivers that travel with the gradients, in the order of their slots. Fixed, so that all ranks agree without a
/// word; a reading outside this list stays with the agent.
pub const NAMES: [&str; 13] = [
    driver::PSI_CPU_SOME,
    driver::PSI_MEMORY_SOME,
    driver::PSI_IO_SOME,
    driver::RUN_QUEUE_WAIT,
    driver::OWN_CPU,
    driver::OTHER_CPU,
    driver::PROCS_RUNNING,
    driver::VOLUNTARY_SWITCHES,
    driver::INVOLUNTARY_SWITCHES,
    driver::CPU_BUSY,
    driver::MEMORY_USED,
    driver::SM_CLOCK_MHZ,
    driver::GPU_BUSY,
];

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
