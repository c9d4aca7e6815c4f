//! Numbers as text: about three digits and a unit; a dash for unknown values.

use evenstep_protocol::GainView;

/// Text of an unknown value.
pub const UNKNOWN: &str = "-";

/// A count with its noun.
pub fn count(count: usize, thing: &str) -> String {
    if count == 1 { format!("1 {thing}") } else { format!("{} {thing}s", whole(count as u64)) }
}

/// A whole number in groups of three digits.
pub fn whole(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// A duration.
pub fn time(seconds: Option<f64>) -> String {
    match seconds {
        None => UNKNOWN.to_owned(),
        Some(seconds) if seconds < 0.000_95 => format!("{:.0} us", seconds * 1e6),
        Some(seconds) if seconds < 0.009_95 => format!("{:.1} ms", seconds * 1e3),
        Some(seconds) if seconds < 0.9995 => format!("{:.0} ms", seconds * 1e3),
        Some(seconds) if seconds < 99.95 => format!("{seconds:.2} s"),
        Some(seconds) => format!("{seconds:.0} s"),
    }
}

/// The age of an event.
pub fn age(seconds: f64) -> String {
    match seconds {
        s if s < 60.0 => format!("{s:.0} s"),
        s if s < 3600.0 => format!("{:.0} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.0} h", s / 3600.0),
        s => format!("{:.0} d", s / 86_400.0),
    }
}

/// A length of time that may be negative, such as time saved.
pub fn span(seconds: f64) -> String {
    let sign = if seconds < 0.0 { "-" } else { "" };
    match seconds.abs() {
        s if s < 60.0 => format!("{sign}{s:.1} s"),
        s if s < 3600.0 => format!("{sign}{:.1} min", s / 60.0),
        s if s < 172_800.0 => format!("{sign}{:.1} h", s / 3600.0),
        s => format!("{sign}{:.1} d", s / 86_400.0),
    }
}

/// A gain over even shares.
pub fn gain(gain: Option<GainView>) -> String {
    gain.map_or_else(|| UNKNOWN.to_owned(), |gain| format!("{}x", times(gain.ratio)))
}

/// A ratio of times.
pub fn times(ratio: f64) -> String {
    format!("{ratio:.2}")
}

/// A share from 0 to 1 for a sentence: whole percent, or a digit more below 1 %.
pub fn rough(share: f64) -> String {
    let percent = 100.0 * share;
    match percent {
        p if p < 0.05 => "less than 0.1 %".to_owned(),
        p if p < 0.95 => format!("{p:.1} %"),
        p => format!("{p:.0} %"),
    }
}

/// A speed in samples per second.
pub fn speed(samples_per_s: Option<f64>) -> String {
    match samples_per_s {
        None => UNKNOWN.to_owned(),
        Some(speed) if speed < 9.995 => format!("{speed:.2}"),
        Some(speed) if speed < 999.5 => format!("{speed:.1}"),
        // Above 2^64 the cast saturates.
        Some(speed) => whole(speed.round() as u64),
    }
}

/// A large number with a unit, in at most 8 characters.
pub fn short(number: f64) -> String {
    const UNITS: [(f64, &str); 5] = [(1e3, ""), (1e6, "k"), (1e9, "M"), (1e12, "G"), (1e15, "T")];
    // 999.96 rounds to 1000.0.
    match UNITS.iter().find(|(end, _)| number.abs() < 0.999_95 * end) {
        Some((end, unit)) => format!("{:.1}{unit}", number / (end / 1e3)),
        None => format!("{number:.1e}"),
    }
}

/// A share from 0 to 1.
pub fn share(share: Option<f64>) -> String {
    share.map_or_else(|| UNKNOWN.to_owned(), |share| format!("{:.1} %", share * 100.0))
}

/// A share with a sign.
pub fn signed(share: Option<f64>) -> String {
    share.map_or_else(|| UNKNOWN.to_owned(), |share| format!("{:+.1} %", share * 100.0))
}

/// (actual - predicted) / predicted.
pub fn error(actual: Option<f64>, predicted: Option<f64>) -> Option<f64> {
    Some(actual? / predicted.filter(|predicted| *predicted > 0.0)? - 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_keep_their_meaning() {
        assert_eq!([0, 999, 1000, 1_234_567].map(whole), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([1, 1024].map(|workers| count(workers, "worker")), ["1 worker", "1,024 workers"]);
        assert_eq!([0.0, 0.0006, 0.45].map(rough), ["less than 0.1 %", "0.1 %", "45 %"]);
        let times = [0.000_02, 0.0015, 0.2125, 1.5, 250.0].map(|time_s| time(Some(time_s)));
        assert_eq!(times, ["20 us", "1.5 ms", "212 ms", "1.50 s", "250 s"]);
        assert_eq!([2.0, 90.0, 7200.0, 864_000.0].map(age), ["2 s", "2 min", "2 h", "10 d"]);
        assert_eq!([12.34, -90.0, 11_520.0].map(span), ["12.3 s", "-1.5 min", "3.2 h"]);
        assert_eq!([1.234, 123.45, 2413.4].map(|s| speed(Some(s))), ["1.23", "123.5", "2,413"]);
        assert_eq!([512.0, 51_200.0, 999_960.0, 2e15].map(short), ["512.0", "51.2k", "1.0M", "2.0e15"]);
        assert_eq!([signed(Some(-0.051)), share(Some(0.25)), time(None)], ["-5.1 %", "25.0 %", "-"]);
        assert_eq!(
            [
                error(Some(90.0), Some(100.0)).map(|e| e < 0.0),
                error(None, Some(1.0)).map(|_| true),
                error(Some(1.0), Some(0.0)).map(|_| true)
            ],
            [Some(true), None, None]
        );
    }
}
