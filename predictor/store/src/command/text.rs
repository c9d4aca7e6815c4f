//! Formatting of addresses, sizes and counts.

use anyhow::Context;

use crate::address::Address;
use crate::error::StoreError;

/// Parses a store address.
pub(super) fn address(given: &str) -> anyhow::Result<Address> {
    Ok(given.parse()?)
}

/// Adds the store's address to an error.
pub(super) fn with_store_context<T>(address: &Address, outcome: Result<T, StoreError>) -> anyhow::Result<T> {
    outcome.with_context(|| format!("store {address}"))
}

/// Formats a size in bytes with a binary unit, such as `3.4 MiB`.
pub(super) fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} bytes");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// Formats a count with its noun: `1 row`, `2 rows`.
pub(super) fn counted(count: u64, noun: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_printed_in_a_fitting_unit() {
        let said = [0, 1023, 1024, 1_048_575, 1_048_576, 5 << 30, u64::MAX].map(size);
        assert_eq!(
            said,
            ["0 bytes", "1023 bytes", "1.0 KiB", "1.0 MiB", "1.0 MiB", "5.0 GiB", "16777216.0 TiB"]
        );
    }
}
