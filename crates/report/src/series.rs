//! Preparation of series for drawing: sorted, split at missing values, and thinned to the resolution of a
//! chart.

use crate::number::plottable;

/// Number of columns into which a long series is divided, about one per pixel of a chart.
pub const BUCKETS: usize = 600;
/// Maximum number of points drawn per series.
pub const MAX_POINTS: usize = 4 * BUCKETS;

/// Points connected without a gap.
pub(crate) type Run<T> = Vec<(f64, T)>;

/// A series in order of x; `None` is a missing value.
pub(crate) type Series<T> = Vec<(f64, Option<T>)>;

/// Sorts points by x. A point without a valid x creates a gap after the point before it.
pub(crate) fn ordered<T>(points: impl IntoIterator<Item = (f64, Option<T>)>) -> Series<T> {
    let mut last_x = None;
    let mut series: Series<T> = points
        .into_iter()
        .filter_map(|(x, reading)| {
            if plottable(x) {
                last_x = Some(x);
                Some((x, reading))
            } else {
                last_x.map(|x| (x, None))
            }
        })
        .collect();
    if !series.is_sorted_by(|a, b| a.0 <= b.0) {
        series.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    series
}

/// Keeps the first, lowest, highest and last point of each column.
pub(crate) fn line(series: &Series<f64>) -> Vec<Run<f64>> {
    runs(series, |bucket| {
        let by_y = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
        let mut kept: Vec<(f64, f64)> =
            [bucket.first(), bucket.iter().min_by(by_y), bucket.iter().max_by(by_y), bucket.last()]
                .into_iter()
                .flatten()
                .copied()
                .collect();
        kept.sort_by(|a, b| a.0.total_cmp(&b.0));
        kept.dedup();
        kept
    })
}

/// Keeps the whole range of each column, at both its ends.
pub(crate) fn band(series: &Series<(f64, f64)>) -> Vec<Run<(f64, f64)>> {
    runs(series, |bucket| {
        let low = bucket.iter().fold(f64::INFINITY, |low, (_, range)| low.min(range.0));
        let high = bucket.iter().fold(f64::NEG_INFINITY, |high, (_, range)| high.max(range.1));
        let mut kept: Vec<_> =
            [bucket.first(), bucket.last()].into_iter().flatten().map(|(x, _)| (*x, (low, high))).collect();
        kept.dedup();
        kept
    })
}

/// Splits a series at its missing values. If the series is long, `keep` thins each column, and gaps within a
/// column, narrower than a pixel, disappear.
fn runs<T: Copy>(series: &Series<T>, keep: impl Fn(&[(f64, T)]) -> Run<T>) -> Vec<Run<T>> {
    let present = |part: &[(f64, Option<T>)]| -> Run<T> {
        part.iter().filter_map(|(x, reading)| reading.map(|reading| (*x, reading))).collect()
    };
    if series.len() <= MAX_POINTS {
        return series
            .split(|(_, reading)| reading.is_none())
            .map(present)
            .filter(|run| !run.is_empty())
            .collect();
    }
    let (Some((low, _)), Some((high, _))) = (series.first(), series.last()) else { return Vec::new() };
    let column = |x: f64| ((((x - low) / (high - low)) * BUCKETS as f64) as usize).min(BUCKETS - 1);
    let mut runs: Vec<Run<T>> = Vec::new();
    let mut broken = true;
    for part in series.chunk_by(|a, b| column(a.0) == column(b.0)) {
        let readings = present(part);
        if readings.is_empty() || part.first().is_some_and(|(_, reading)| reading.is_none()) {
            broken = true;
        }
        if !readings.is_empty() {
            let kept = keep(&readings);
            match runs.last_mut() {
                Some(run) if !broken => run.extend(kept),
                _ => runs.push(kept),
            }
            broken = part.last().is_some_and(|(_, reading)| reading.is_none());
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn series(values: &[Option<f64>]) -> Series<f64> {
        ordered(values.iter().enumerate().map(|(index, value)| (index as f64, *value)))
    }

    fn values() -> impl Strategy<Value = Vec<Option<f64>>> {
        (0..20_000_usize, 0.0..1.0_f64).prop_flat_map(|(length, share)| {
            prop::collection::vec(prop::option::weighted(share.max(0.01), -1e3..1e3_f64), length)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn extremes_and_ends_stay_and_nothing_is_invented(values in values()) {
            let series = series(&values);
            let runs = line(&series);
            let kept: Vec<(f64, f64)> = runs.concat();
            prop_assert!(kept.len() <= MAX_POINTS);
            prop_assert!(kept.is_sorted_by(|a, b| a.0 < b.0));
            prop_assert!(kept.iter().all(|(x, y)| values[*x as usize] == Some(*y)));
            let readings: Vec<(f64, f64)> = series.iter().filter_map(|(x, y)| y.map(|y| (*x, y))).collect();
            let extremes = |of: &[(f64, f64)]| {
                (of.iter().map(|p| p.1).reduce(f64::min), of.iter().map(|p| p.1).reduce(f64::max))
            };
            prop_assert_eq!(extremes(&kept), extremes(&readings));
            prop_assert_eq!(kept.first(), readings.first());
            prop_assert_eq!(kept.last(), readings.last());
        }

        #[test]
        fn a_short_series_is_drawn_as_it_is(values in prop::collection::vec(any::<Option<i16>>(), 0..MAX_POINTS)) {
            let values: Vec<Option<f64>> = values.into_iter().map(|value| value.map(f64::from)).collect();
            let runs = line(&series(&values));
            prop_assert_eq!(runs.concat().len(), values.iter().flatten().count());
            for pair in runs.windows(2) {
                let (end, start) = (pair[0][pair[0].len() - 1].0 as usize, pair[1][0].0 as usize);
                prop_assert!(values[end + 1..start].iter().all(Option::is_none) && start > end + 1);
            }
        }
    }

    #[test]
    fn a_long_gap_in_a_series_is_not_joined() {
        let values: Vec<Option<f64>> =
            (0..100_000).map(|k| (!(40_000..50_000).contains(&k)).then_some(1.0)).collect();
        let runs = line(&series(&values));
        assert_eq!(
            runs.iter().map(|run| (run[0].0, run[run.len() - 1].0)).collect::<Vec<_>>(),
            [(0.0, 39_999.0), (50_000.0, 99_999.0)]
        );
    }

    #[test]
    fn points_are_sorted_and_one_without_a_place_breaks_the_line() {
        let points = [(2.0, Some(2.0)), (f64::NAN, Some(9.0)), (3.0, Some(3.0)), (1.0, Some(1.0))];
        assert_eq!(line(&ordered(points)), [vec![(1.0, 1.0), (2.0, 2.0)], vec![(3.0, 3.0)]]);
    }

    #[test]
    fn a_band_covers_every_range_it_replaces() {
        let points = (0..50_000).map(|k| (f64::from(k), Some((-f64::from(k % 977), f64::from(k % 1009)))));
        let runs = band(&ordered(points));
        assert_eq!(runs.len(), 1);
        assert!(runs[0].len() <= 2 * BUCKETS);
        assert_eq!(runs[0].iter().map(|point| point.1.0).reduce(f64::min), Some(-976.0));
        assert_eq!(runs[0].iter().map(|point| point.1.1).reduce(f64::max), Some(1008.0));
    }
}
