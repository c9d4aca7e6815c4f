//! Alignment of workers: rows of the same iteration have the same tick.
//!
//! Rows are of the same iteration if they have the same iteration, or the same number where the table has no times. By time, the
//! worker with the most rows is the reference. A row of another worker is of the iteration of the reference's nearest row, if it
//! is also nearest to that row, and no further away than most of the time between rows. So missing rows shift no others.

use super::columns::Trace;
use super::time::TimeKind;

/// Maximum distance between rows of the same iteration, as a share of the time between rows of the reference.
const DISTANCE_MAX: f64 = 0.75;
/// Number of rows with the same time between rows.
const BLOCK: usize = 64;
/// Quantile of the times between the rows of a block that counts. Missing rows make longer ones.
const QUANTILE: f64 = 0.1;

/// Sets the ticks of all rows of traces whose series are workers of one job.
///
/// # Errors
/// If the traces have times of different kinds, or a worker has two rows of the same time.
pub fn align(traces: &mut [&mut Trace]) -> anyhow::Result<()> {
    if traces.len() < 2 && traces.iter().all(|trace| trace.series.len() < 2) {
        return Ok(());
    }
    let kind = traces[0].time;
    if traces.iter().any(|trace| trace.time == TimeKind::Row) {
        return by_number(traces);
    }
    if let Some(other) = traces.iter().find(|trace| trace.time != kind) {
        let (first, time) = (&traces[0].trace, other.time);
        anyhow::bail!(
            "{first} has {kind}, but {} has {time}; workers cannot be aligned by both",
            other.trace
        );
    }
    if kind == TimeKind::Iteration { Ok(()) } else { by_time(traces) }
}

/// Pairs rows by their number, and says so.
fn by_number(traces: &mut [&mut Trace]) -> anyhow::Result<()> {
    for trace in traces.iter_mut().filter(|trace| trace.time != TimeKind::Row) {
        for series in &mut trace.series {
            series.ticks = (0..series.ticks.len() as u64).collect();
        }
    }
    let without = traces.iter_mut().find(|trace| trace.time == TimeKind::Row);
    if let Some(trace) = without {
        let note = "no column of iterations or times, so the rows of workers are paired by their number";
        trace.notes.push(format!("{}: {note}", trace.trace));
    }
    Ok(())
}

fn by_time(traces: &mut [&mut Trace]) -> anyhow::Result<()> {
    for trace in traces.iter() {
        for series in &trace.series {
            if let Some(at) = series.times.windows(2).position(|pair| pair[0] == pair[1]) {
                let line = series.lines[at + 1];
                anyhow::bail!(
                    "{}:{line}: a second row of {:?} has the time {}; workers are aligned by time, so each row needs its own",
                    trace.trace,
                    series.id,
                    series.at[at + 1]
                );
            }
        }
    }
    let all = || traces.iter().flat_map(|trace| &trace.series).map(|series| series.times.as_slice());
    let longest = |best: &[f64], times: &[f64]| times.len() > best.len();
    let reference =
        all().fold(&[][..], |best, times| if longest(best, times) { times } else { best }).to_vec();
    let spacing: Vec<f64> = reference.chunks(BLOCK).map(spacing).collect();
    let keys: Vec<Vec<f64>> = all().map(|times| keys(&reference, &spacing, times)).collect();
    let mut order: Vec<f64> = keys.iter().flatten().copied().collect();
    order.sort_unstable_by(f64::total_cmp);
    order.dedup();
    let series = traces.iter_mut().flat_map(|trace| &mut trace.series);
    for (series, keys) in series.zip(keys) {
        series.ticks = keys.iter().map(|key| order.partition_point(|other| other < key) as u64).collect();
    }
    Ok(())
}

/// The time of the iteration of each row: the reference's if the row is of one of its iterations, otherwise the row's own.
fn keys(reference: &[f64], spacing: &[f64], times: &[f64]) -> Vec<f64> {
    let key = |(at, time): (usize, &f64)| {
        let other = nearest(reference, *time);
        let is_near = (reference[other] - time).abs() <= DISTANCE_MAX * spacing[other / BLOCK];
        if is_near && nearest(times, reference[other]) == at { reference[other] } else { *time }
    };
    times.iter().enumerate().map(key).collect()
}

/// Index of the nearest of at least one time; of two equally near ones the earlier.
fn nearest(times: &[f64], time: f64) -> usize {
    let after = times.partition_point(|other| *other < time).min(times.len() - 1);
    let before = after.saturating_sub(1);
    if (times[before] - time).abs() <= (times[after] - time).abs() { before } else { after }
}

/// Time between the rows of a block; infinite for a single row.
fn spacing(block: &[f64]) -> f64 {
    let mut gaps: Vec<f64> = block.windows(2).map(|pair| pair[1] - pair[0]).collect();
    gaps.sort_unstable_by(f64::total_cmp);
    gaps.get((QUANTILE * gaps.len() as f64) as usize).copied().unwrap_or(f64::INFINITY)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::trace::columns::Readings;

    fn trace(time: TimeKind, series: &[&[f64]]) -> Trace {
        let readings = |times: &&[f64]| Readings {
            lines: (2..).take(times.len()).collect(),
            ticks: (0..times.len() as u64).collect(),
            at: times.iter().map(f64::to_string).collect(),
            times: times.to_vec(),
            ..Readings::default()
        };
        Trace {
            trace: "t".into(),
            time,
            drivers: Vec::new(),
            series: series.iter().map(readings).collect(),
            notes: Vec::new(),
        }
    }

    fn ticks(series: &[&[f64]]) -> Vec<Vec<u64>> {
        let mut trace = trace(TimeKind::Number, series);
        align(&mut [&mut trace]).unwrap();
        trace.series.into_iter().map(|series| series.ticks).collect()
    }

    /// By hand: a missing row, a pause, an iteration that takes longer, and a worker that logs every second iteration.
    #[test]
    fn rows_near_in_time_are_of_one_iteration() {
        let reference: &[f64] = &[0.0, 1.0, 2.0, 3.0, 4.0];
        assert_eq!(ticks(&[reference, &[0.1, 1.1, 3.1, 4.1]]), [vec![0, 1, 2, 3, 4], vec![0, 1, 3, 4]]);
        assert_eq!(ticks(&[reference, &[0.1, 2.1, 4.1]]), [vec![0, 1, 2, 3, 4], vec![0, 2, 4]]);
        assert_eq!(ticks(&[&[0.0, 1.0, 9.0, 10.0], &[0.2, 1.2, 9.2]]), [vec![0, 1, 2, 3], vec![0, 1, 2]]);
        assert_eq!(ticks(&[&[0.0, 1.0, 4.0, 5.0], &[0.4, 1.4, 4.4, 5.4]]), [[0, 1, 2, 3], [0, 1, 2, 3]]);
        // Other hours.
        assert_eq!(ticks(&[&[0.0, 1.0, 2.0], &[50.0, 51.0]]), [vec![0, 1, 2], vec![3, 4]]);
        assert_eq!(ticks(&[&[0.0], &[5.0]]), [[0], [0]]);
    }

    #[test]
    fn what_cannot_be_aligned_is_named() {
        let refused = |traces: &mut [&mut Trace]| align(traces).unwrap_err().to_string();
        let mut numbers = trace(TimeKind::Number, &[&[0.0, 1.0, 1.0], &[0.0, 1.0, 2.0]]);
        assert!(refused(&mut [&mut numbers]).starts_with("t:4: a second row of \"\" has the time 1;"));
        let mut local = trace(TimeKind::Local, &[&[0.0]]);
        assert!(
            refused(&mut [&mut local, &mut numbers])
                .contains("t has local times, but t has times in numbers")
        );
        // Without times, rows are paired by their number.
        let (mut rows, mut other) =
            (trace(TimeKind::Row, &[&[0.0]]), trace(TimeKind::Iteration, &[&[7.0, 9.0]]));
        align(&mut [&mut other, &mut rows]).unwrap();
        assert_eq!((&other.series[0].ticks, rows.notes.len()), (&vec![0, 1], 1));
        // A single worker is compared with no other.
        assert!(align(&mut [&mut trace(TimeKind::Number, &[&[0.0, 0.0]])]).is_ok());
    }

    proptest! {
        /// Missing rows shift no other row. Workers begin an iteration within a sixth of it.
        #[test]
        fn missing_rows_shift_no_others(
            (late, noise, present) in (2usize..5, 4usize..40).prop_flat_map(|(workers, rows)| (
                prop::collection::vec(0.0..0.1, workers),
                prop::collection::vec(prop::collection::vec(-0.04..0.04, rows), workers),
                prop::collection::vec(prop::collection::vec(prop::bool::weighted(0.8), rows), workers),
            ))
        ) {
            let rows = |worker: usize| -> Vec<usize> { (0..noise[worker].len()).filter(|at| present[worker][*at]).collect() };
            let times: Vec<Vec<f64>> = (0..late.len())
                .map(|worker| rows(worker).iter().map(|at| *at as f64 + late[worker] + noise[worker][*at]).collect())
                .collect();
            let longest = times.iter().map(Vec::len).max().unwrap();
            let reference = times.iter().position(|times| times.len() == longest).unwrap();
            let adjacent = rows(reference).windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
            prop_assume!(times.iter().all(|times| !times.is_empty()) && 4 * adjacent > longest);
            let ticks = ticks(&times.iter().map(Vec::as_slice).collect::<Vec<_>>());
            for (worker, ticks_of) in ticks.iter().enumerate() {
                prop_assert!(ticks_of.windows(2).all(|pair| pair[0] < pair[1]));
                for (iteration, tick) in rows(worker).iter().zip(ticks_of) {
                    let of_reference = rows(reference).iter().position(|at| at == iteration);
                    let same = ticks[reference].iter().position(|other| other == tick);
                    prop_assert_eq!(of_reference, same, "worker {} iteration {}", worker, iteration);
                }
            }
        }
    }
}
