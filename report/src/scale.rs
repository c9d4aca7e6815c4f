//! From values to places: ranges, round tick marks, and how numbers read.

/// Readings past this size, either way, count as missing: sums and differences of all others stay finite.
pub const MAX_MAGNITUDE: f64 = 1e300;
/// Ranges narrower than this share of their larger end are drawn as one value: ticks would read alike.
const MIN_RELATIVE_RANGE: f64 = 1e-9;
const MIN_RANGE: f64 = 1e-290;
const WANTED_STEPS: f64 = 5.0;

pub(crate) fn plottable(value: f64) -> bool {
    value.abs() <= MAX_MAGNITUDE
}

/// The smallest range that holds all readings, if there is one.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Extent(Option<(f64, f64)>);

impl Extent {
    pub fn add(&mut self, value: f64) {
        if plottable(value) {
            let (low, high) = self.0.unwrap_or((value, value));
            self.0 = Some((low.min(value), high.max(value)));
        }
    }

    pub fn range(self) -> Option<(f64, f64)> {
        self.0
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tick {
    pub at: f64,
    pub label: String,
}

/// A linear scale; `low` may lie above `high`, for an axis that counts downward.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Scale {
    pub low: f64,
    pub high: f64,
    pub ticks: Vec<Tick>,
}

impl Scale {
    /// Ends on ticks, so that the outermost readings have one beyond them.
    pub fn rounded((low, high): (f64, f64)) -> Self {
        let ticks = ticks(low, high);
        let (low, high) = match (ticks.first(), ticks.last()) {
            (Some(first), Some(last)) => (first.at.min(low), last.at.max(high)),
            _ => (low, high),
        };
        Self { low, high, ticks }
    }

    /// Ends on the outermost readings: time and iterations should fill the width.
    pub fn exact((low, high): (f64, f64)) -> Self {
        let mut scale = Self::rounded((low, high));
        if !is_flat(low, high) {
            scale.ticks.retain(|tick| (low..=high).contains(&tick.at));
            (scale.low, scale.high) = (low, high);
        }
        scale
    }

    /// One place for each name, in order.
    pub fn names(names: &[&str]) -> Self {
        let ticks = names
            .iter()
            .enumerate()
            .map(|(index, name)| Tick { at: index as f64, label: (*name).to_owned() })
            .collect();
        Self { low: -0.5, high: names.len() as f64 - 0.5, ticks }
    }

    pub fn reversed(self) -> Self {
        Self { low: self.high, high: self.low, ticks: self.ticks }
    }

    /// 0 at `low`, 1 at `high`.
    pub fn share(&self, value: f64) -> f64 {
        ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }
}

fn is_flat(low: f64, high: f64) -> bool {
    high - low <= (low.abs().max(high.abs()) * MIN_RELATIVE_RANGE).max(MIN_RANGE)
}

/// Multiples of 1, 2 or 5 times a power of ten that reach from at or below `low` to at or above `high`.
fn ticks(low: f64, high: f64) -> Vec<Tick> {
    let (low, high) = match (is_flat(low, high), low.abs().max(high.abs())) {
        (false, _) => (low, high),
        (true, size) if size <= MIN_RANGE => (0.0, 1.0),
        (true, size) => (low - size * 0.1, high + size * 0.1),
    };
    let step = step(high - low);
    // A hair of tolerance: 0.3 / 0.1 is a little under 3, and would add an empty interval.
    let first = (low / step + 1e-6).floor();
    let last = (high / step - 1e-6).ceil();
    let places: Vec<f64> = (0..=(last - first) as u32).map(|k| (first + f64::from(k)) * step).collect();
    labelled(&places, step)
}

fn step(range: f64) -> f64 {
    let rough = range / WANTED_STEPS;
    let power = 10f64.powf(rough.log10().floor());
    let factor = match rough / power {
        ..1.42 => 1.0,
        ..3.17 => 2.0,
        ..7.08 => 5.0,
        _ => 10.0,
    };
    factor * power
}

/// All labels of an axis share one form, so that they compare at a glance.
fn labelled(places: &[f64], step: f64) -> Vec<Tick> {
    let size = places.iter().fold(0.0_f64, |size, at| size.max(at.abs()));
    let (divisor, suffix) = match size {
        1e6..1e9 => (1e6, "M"),
        1e9..1e12 => (1e9, "G"),
        _ => (1.0, ""),
    };
    let decimals = decimals_of(step / divisor);
    let label = |at: f64| match (at, decimals) {
        (0.0, _) => "0".to_owned(),
        (_, Some(decimals)) if size < 1e12 => format!("{}{suffix}", fixed(at / divisor, decimals)),
        _ => format!("{:e}", at.signum() * rounded(at.abs(), 6)),
    };
    places.iter().map(|&at| Tick { at, label: label(at) }).collect()
}

/// Digits after the point that tell multiples of `step` apart; none where so many would be unreadable.
fn decimals_of(step: f64) -> Option<usize> {
    (0..=6)
        .find(|&digits| {
            let scaled = step * 10f64.powi(digits);
            scaled >= 0.999 && (scaled - scaled.round()).abs() < 1e-6 * scaled
        })
        .map(|digits| digits as usize)
}

fn rounded(value: f64, digits: usize) -> f64 {
    format!("{value:.digits$e}").parse().unwrap_or(value)
}

/// A reading in running text: four significant digits.
pub(crate) fn number(value: f64) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    match value.abs() {
        0.0 => "0".to_owned(),
        1e-3..1e9 => {
            let decimals = (3.0 - value.abs().log10().floor()).clamp(0.0, 6.0) as usize;
            trimmed(fixed(value, decimals))
        }
        _ => format!("{:e}", rounded(value, 3)),
    }
}

fn trimmed(text: String) -> String {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// Fixed digits after the point, thousands set apart, and a real minus sign.
pub(crate) fn fixed(value: f64, decimals: usize) -> String {
    let plain = format!("{:.decimals$}", value.abs());
    let (whole, fraction) = plain.split_once('.').map_or((plain.as_str(), None), |(w, f)| (w, Some(f)));
    let is_zero = !plain.bytes().any(|digit| (b'1'..=b'9').contains(&digit));
    let mut text = String::new();
    if value < 0.0 && !is_zero {
        text.push('\u{2212}');
    }
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if let Some(fraction) = fraction {
        text.push('.');
        text.push_str(fraction);
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn labels(low: f64, high: f64) -> Vec<String> {
        ticks(low, high).into_iter().map(|tick| tick.label).collect()
    }

    #[test]
    fn ticks_read_as_a_person_would_write_them() {
        assert_eq!(labels(0.0, 1.0), ["0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(labels(0.0, 0.3), ["0", "0.05", "0.10", "0.15", "0.20", "0.25", "0.30"]);
        assert_eq!(labels(-120.0, 250.0), ["\u{2212}200", "\u{2212}100", "0", "100", "200", "300"]);
        assert_eq!(labels(0.0, 9_800.0), ["0", "2,000", "4,000", "6,000", "8,000", "10,000"]);
        assert_eq!(labels(0.0, 2.5e6), ["0", "0.5M", "1.0M", "1.5M", "2.0M", "2.5M"]);
        assert_eq!(labels(0.0, 5e-9), ["0", "1e-9", "2e-9", "3e-9", "4e-9", "5e-9"]);
    }

    #[test]
    fn one_value_has_room_on_both_sides() {
        let scale = Scale::exact((42.0, 42.0));
        assert!(scale.low < 42.0 && scale.high > 42.0, "{scale:?}");
        assert_eq!(labels(0.0, 0.0), ["0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
    }

    #[test]
    fn readings_keep_four_digits() {
        let read: Vec<String> =
            [1060.84, 0.18312, 12.0, -3.0, 2.5e-7, 1e12, -0.0].into_iter().map(number).collect();
        assert_eq!(read, ["1,061", "0.1831", "12", "\u{2212}3", "2.5e-7", "1e12", "0"]);
    }

    fn any_value() -> impl Strategy<Value = f64> {
        prop_oneof![
            (-1e6..1e6_f64),
            (-1.0..1.0_f64, -290..290_i32).prop_map(|(digits, power)| digits * 10f64.powi(power)),
            Just(0.0),
            Just(MAX_MAGNITUDE),
            Just(-MAX_MAGNITUDE),
            Just(f64::MIN_POSITIVE),
        ]
    }

    proptest! {
        #[test]
        fn ticks_cover_the_range_in_order_with_round_equal_steps(a in any_value(), b in any_value()) {
            let (low, high) = (a.min(b), a.max(b));
            let ticks = ticks(low, high);
            prop_assert!((2..=12).contains(&ticks.len()), "{} ticks", ticks.len());
            let step = ticks[1].at - ticks[0].at;
            prop_assert!(ticks[0].at <= low + step * 1e-5);
            prop_assert!(ticks[ticks.len() - 1].at >= high - step * 1e-5);
            let digits = step / 10f64.powf(step.log10().floor());
            prop_assert!([1.0, 2.0, 5.0, 10.0].iter().any(|nice| (digits / nice - 1.0).abs() < 1e-5), "step {step}");
            for pair in ticks.windows(2) {
                prop_assert!(((pair[1].at - pair[0].at) / step - 1.0).abs() < 1e-5);
                prop_assert_ne!(&pair[0].label, &pair[1].label);
            }
            for scale in [Scale::exact((low, high)), Scale::rounded((low, high))] {
                for value in [low, high] {
                    prop_assert!((scale.low..=scale.high).contains(&value));
                    prop_assert!((0.0..=1.0).contains(&scale.share(value)));
                }
            }
        }
    }
}
