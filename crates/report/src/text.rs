//! Results as text: aligned columns, and numbers with significant digits only.

use std::fmt::Write;

use crate::number::{decimals, fixed, time_unit};

/// Number of significant digits in text.
const DIGITS: i32 = 4;

/// Appends a line.
pub fn line(text: &mut String, words: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{words}");
}

/// Appends aligned columns: the first left-aligned, the others right-aligned.
pub fn aligned(text: &mut String, rows: &[Vec<String>]) {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in rows {
        let first = format!("  {:<1$}", row[0], widths[0]);
        let rest = row.iter().zip(&widths).skip(1).map(|(cell, width)| format!("  {cell:>width$}"));
        line(text, format_args!("{first}{}", rest.collect::<String>()));
    }
}

/// Formats a number with significant digits only, or a dash for `None`.
pub fn number(value: Option<f64>) -> String {
    let Some(value) = value else { return "-".into() };
    if value == 0.0 {
        return "0".into();
    }
    let magnitude = value.abs().log10().floor() as i32;
    if (-4..7).contains(&magnitude) {
        let decimals = (DIGITS - 1 - magnitude).max(0);
        format!("{value:.*}", decimals.unsigned_abs() as usize)
    } else {
        format!("{value:.*e}", DIGITS.unsigned_abs() as usize - 1)
    }
}

/// Formats a time with three significant digits in a suitable unit.
pub fn seconds(value: f64) -> String {
    let (factor, unit) = time_unit(value);
    let scaled = value * factor;
    format!("{} {unit}", fixed(scaled, decimals(scaled, 3)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_in_the_unit_that_suits_them() {
        assert_eq!(
            [0.018594, 0.0000686, 1.5, 0.0, 1204.0].map(seconds),
            ["18.6 ms", "68.6 µs", "1.50 s", "0.00 µs", "1,204 s"]
        );
    }

    #[test]
    fn numbers_keep_four_digits() {
        let printed =
            [0.0, 1.0, 0.91234, 165.4353, 12345.6, 0.00123456, 1.5e-9, -2.5, 1e12].map(|n| number(Some(n)));
        assert_eq!(
            printed,
            ["0", "1.000", "0.9123", "165.4", "12346", "0.001235", "1.500e-9", "-2.500", "1.000e12"]
        );
        assert_eq!(number(None), "-");
    }

    #[test]
    fn columns_stand_under_each_other() {
        let mut text = String::new();
        aligned(&mut text, &[vec!["model".into(), "rmse".into()], vec!["a".into(), "1.25000".into()]]);
        assert_eq!(text, "  model     rmse\n  a      1.25000\n");
    }
}
