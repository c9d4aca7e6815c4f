//! Alignment of workers: rows of the same iteration have the same tick.
//!
//! Rows are of the same iteration if they have the same iteration, or the same number where the table has no times. By time, the
//! worker with the most rows is the reference. A row of another worker is of the iteration of a row of the reference if both begin
//! within a quarter of the iteration. So missing rows shift no others. If many rows are in the middle between two rows of the
//! reference, times do not tell to which iteration they belong, which is an error.

use std::collections::BTreeSet;

use super::columns::{Readings, Trace};
use super::time::TimeKind;

/// Maximum distance between the begins of an iteration, as a share of its time.
const NEAR: f64 = 0.25;
/// Maximum share and number of the rows of a worker that break a rule of times. Missing rows and single stalls make such rows.
const FAULTS_MAX: (f64, usize) = (0.02, 2);
/// Maximum time of an iteration, as a multiple of the median.
const STEP_MAX: f64 = 2.0;
/// Maximum usual compute time of a worker, as a multiple of the median time of an iteration.
const UNIT_MAX: f64 = 1.5;
/// Tolerance of the rule that an iteration begins after the one before it, as a share of the compute time.
const TOLERANCE: f64 = 0.02;

/// Sets the ticks of all rows of traces whose series are workers of one job.
///
/// # Errors
/// If the traces have times of different kinds, or a worker has two rows of the same time.
pub fn align(traces: &mut [&mut Trace]) -> anyhow::Result<()> {
    if traces.len() < 2 && traces.iter().all(|trace| trace.series.len() < 2) {
        return Ok(());
    }
    let kind = traces[0].time;
    if let Some(other) = traces.iter().find(|trace| trace.time != kind) {
        let (first, time) = (&traces[0].trace, other.time);
        anyhow::bail!(
            "{first} has {kind}, but {} has {time}, so workers cannot be aligned (--time '' pairs rows by their number)",
            other.trace
        );
    }
    match kind {
        TimeKind::Row => {
            let note = format!("{}: rows of workers are paired by their number", traces[0].trace);
            traces[0].notes.push(note);
            Ok(())
        }
        TimeKind::Iteration => Ok(()),
        TimeKind::Number | TimeKind::Local | TimeKind::Utc => by_time(traces),
    }
}

fn by_time(traces: &mut [&mut Trace]) -> anyhow::Result<()> {
    let all = || traces.iter().flat_map(|trace| trace.series.iter().map(move |series| (&**trace, series)));
    // Whole seconds may differ by almost a second from the real times.
    let unit =
        if all().all(|(_, series)| series.times.iter().all(|time| time.fract() == 0.0)) { 1.0 } else { 0.0 };
    let longest = |best: (&'_ Trace, &'_ Readings), next: (&'_ Trace, &'_ Readings)| {
        next.1.times.len() > best.1.times.len()
    };
    let Some(reference) = all().reduce(|best, next| if longest(best, next) { next } else { best }) else {
        return Ok(());
    };
    let reference = reference.1;
    // Unless all rows have times of the reference: then they are from one clock.
    let is_common = |time: &f64| reference.times.binary_search_by(|other| other.total_cmp(time)).is_ok();
    let unit = if all().all(|(_, series)| series.times.iter().all(is_common)) { 0.0 } else { unit };
    for (trace, series) in all() {
        check_order(trace, series, unit)?;
    }
    let mut keys: Vec<Vec<f64>> = Vec::new();
    for (trace, series) in all() {
        let pairs = pairs(&reference.times, &series.times);
        check_between(reference, &pairs, trace, series)?;
        let key =
            |(at, pair): (usize, &Option<usize>)| pair.map_or(series.times[at], |pair| reference.times[pair]);
        keys.push(pairs.iter().enumerate().map(key).collect());
    }
    let mut order: Vec<f64> = keys.iter().flatten().copied().collect();
    order.sort_unstable_by(f64::total_cmp);
    order.dedup();
    let series = traces.iter_mut().flat_map(|trace| &mut trace.series);
    for (series, keys) in series.zip(keys) {
        series.ticks = keys.iter().map(|key| order.partition_point(|other| other < key) as u64).collect();
    }
    Ok(())
}

/// Checks that each row has a later time than the one before it, and that an iteration begins after the compute of the one before
/// it. Otherwise the times are too coarse, or not the begins of iterations.
fn check_order(trace: &Trace, series: &Readings, unit: f64) -> anyhow::Result<()> {
    let (name, id, times) = (&trace.trace, &series.id, &series.times);
    let gaps = || (0..times.len()).filter_map(|at| Some((at, gap(times, at)?)));
    if let Some((at, _)) = gaps().find(|(_, gap)| *gap <= 0.0) {
        let (line, time) = (series.lines[at + 1], &series.at[at + 1]);
        anyhow::bail!(
            "{name}:{line}: a second row of {id:?} has the time {time}; workers are aligned by time, so each row needs its own"
        );
    }
    let Some(median) = median_gap(times) else { return Ok(()) };
    if unit > NEAR * median {
        anyhow::bail!("{name}: times without a fraction are too coarse to align iterations of {median} s");
    }
    let compute_s = |at: usize| series.batch[at] as f64 / series.target[at];
    let mut computes: Vec<f64> = (0..times.len()).map(compute_s).collect();
    computes.sort_unstable_by(f64::total_cmp);
    // Computes that are usually longer than iterations have another unit.
    if !trace.has_times || computes[computes.len() / 2] > UNIT_MAX * median {
        return Ok(());
    }
    let overlaps = |(at, gap): &(usize, f64)| gap + unit < (1.0 - TOLERANCE) * compute_s(*at);
    let mut faults = gaps().filter(overlaps).peekable();
    let first = faults.peek().copied();
    match first.filter(|_| is_many(faults.count(), series)) {
        Some((at, gap)) => {
            let (line, compute_s) = (series.lines[at], compute_s(at));
            anyhow::bail!(
                "{name}:{line}: {id:?} computes for {compute_s:.6} s, but its next row is {gap:.6} s later; workers are aligned by \
                the times at which they begin an iteration"
            )
        }
        None => Ok(()),
    }
}

/// Checks that few rows are in the middle between two rows of the reference that have no others.
fn check_between(
    reference: &Readings,
    pairs: &[Option<usize>],
    trace: &Trace,
    series: &Readings,
) -> anyhow::Result<()> {
    let paired: BTreeSet<usize> = pairs.iter().flatten().copied().collect();
    let after = |at: usize| reference.times.partition_point(|other| *other < series.times[at]);
    let is_between = |at: &usize| {
        let after = after(*at);
        let has_neighbours = after > 0 && after < reference.times.len();
        pairs[*at].is_none() && has_neighbours && !paired.contains(&after) && !paired.contains(&(after - 1))
    };
    let mut faults = (0..pairs.len()).filter(is_between).peekable();
    let first = faults.peek().copied();
    match first.filter(|_| is_many(faults.count(), series)) {
        Some(at) => {
            let (name, line, id, after) = (&trace.trace, series.lines[at], &series.id, after(at));
            let (since, until) =
                (series.times[at] - reference.times[after - 1], reference.times[after] - series.times[at]);
            anyhow::bail!(
                "{name}:{line}: the row of {id:?} is {since:.6} s after a row of {:?} and {until:.6} s before the next; \
                to align workers by time, they must begin an iteration within a quarter of it",
                reference.id
            )
        }
        None => Ok(()),
    }
}

fn is_many(faults: usize, series: &Readings) -> bool {
    let (share, number) = FAULTS_MAX;
    faults > number && faults as f64 > share * series.times.len() as f64
}

/// The row of the reference that is of the same iteration, for each row. Only the last row before a row of the reference and the
/// first one after it may be of its iteration, so pairs are in order.
fn pairs(reference: &[f64], times: &[f64]) -> Vec<Option<usize>> {
    // Longer ones may be pauses with missing rows.
    let most = STEP_MAX * median_gap(reference).unwrap_or(0.0);
    let later =
        |of: &[f64], at: usize| gap(of, at).or(at.checked_sub(1).and_then(|at| gap(of, at))).unwrap_or(0.0);
    let earlier =
        |of: &[f64], at: usize| at.checked_sub(1).and_then(|at| gap(of, at)).or(gap(of, at)).unwrap_or(0.0);
    let nearest = |at: usize| -> Option<(usize, f64)> {
        let time = times[at];
        let after = reference.partition_point(|other| *other < time);
        let late = after.checked_sub(1).filter(|row| at == 0 || times[at - 1] < reference[*row]);
        let early = Some(after).filter(|row| {
            *row < reference.len() && times.get(at + 1).is_none_or(|next| *next > reference[*row])
        });
        let late = late.map(|row| (row, time - reference[row], later(reference, row).min(later(times, at))));
        let early =
            early.map(|row| (row, reference[row] - time, earlier(reference, row).min(earlier(times, at))));
        let near = [late, early]
            .into_iter()
            .flatten()
            .filter(|(_, distance, step)| *distance <= NEAR * step.min(most));
        near.min_by(|one, other| one.1.total_cmp(&other.1)).map(|(row, distance, _)| (row, distance))
    };
    let found: Vec<Option<(usize, f64)>> = (0..times.len()).map(nearest).collect();
    let is_nearer = |at: Option<usize>, row: usize, distance: f64, or_equal: bool| {
        let other = at.and_then(|at| found.get(at).copied().flatten()).filter(|(other, _)| *other == row);
        other.is_some_and(|(_, other)| other < distance || or_equal && other <= distance)
    };
    let pair = |(at, found): (usize, &Option<(usize, f64)>)| {
        let (row, distance) = (*found)?;
        let is_nearest = !is_nearer(at.checked_sub(1), row, distance, true)
            && !is_nearer(Some(at + 1), row, distance, false);
        is_nearest.then_some(row)
    };
    found.iter().enumerate().map(pair).collect()
}

/// Time between a row and the next.
fn gap(times: &[f64], at: usize) -> Option<f64> {
    Some(times.get(at + 1)? - times.get(at)?)
}

fn median_gap(times: &[f64]) -> Option<f64> {
    let mut gaps: Vec<f64> = (0..times.len()).filter_map(|at| gap(times, at)).collect();
    gaps.sort_unstable_by(f64::total_cmp);
    gaps.get(gaps.len() / 2).copied()
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
            batch: vec![1; times.len()],
            target: vec![10.0; times.len()],
            ..Readings::default()
        };
        let series = series.iter().map(readings).collect();
        Trace { trace: "t".into(), time, has_times: true, drivers: Vec::new(), series, notes: Vec::new() }
    }

    fn ticks(series: &[&[f64]]) -> Vec<Vec<u64>> {
        let mut trace = trace(TimeKind::Number, series);
        align(&mut [&mut trace]).unwrap();
        trace.series.into_iter().map(|series| series.ticks).collect()
    }

    /// By hand: a missing row, a worker that logs every second iteration, a pause, and an iteration that takes longer.
    #[test]
    fn rows_near_in_time_are_of_one_iteration() {
        let reference: &[f64] = &[0.0, 1.0, 2.0, 3.0, 4.0];
        assert_eq!(ticks(&[reference, &[0.1, 1.1, 3.1, 4.1]]), [vec![0, 1, 2, 3, 4], vec![0, 1, 3, 4]]);
        assert_eq!(ticks(&[reference, &[-0.1, 1.9, 3.9]]), [vec![0, 1, 2, 3, 4], vec![0, 2, 4]]);
        assert_eq!(ticks(&[&[0.0, 1.0, 9.0, 10.0], &[0.2, 1.2, 9.2]]), [vec![0, 1, 2, 3], vec![0, 1, 2]]);
        assert_eq!(ticks(&[&[0.0, 1.0, 5.0, 6.0], &[0.1, 1.4, 5.1, 6.1]]), [[0, 1, 2, 3], [0, 1, 2, 3]]);
        // A pause with missing rows on both sides, and a second row near one of the reference.
        assert_eq!(ticks(&[&[0.5, 1.5, 2.5, 33.5, 34.5], &[0.5, 1.5, 2.5, 32.5, 34.5]])[1], [0, 1, 2, 3, 5]);
        let long: &[f64] = &[0.5, 10.0, 20.0, 30.0, 40.0];
        assert_eq!(ticks(&[long, &[0.5, 8.0, 8.5, 20.0]]), [vec![0, 3, 4, 5, 6], vec![0, 1, 2, 4]]);
        // Other hours, and a last row that is far away.
        assert_eq!(ticks(&[&[0.0, 1.0, 2.5], &[50.0, 51.5]]), [vec![0, 1, 2], vec![3, 4]]);
        assert_eq!(ticks(&[&[0.5], &[5.0]]), [[0], [1]]);
        let long: Vec<f64> = (0..65).map(f64::from).collect();
        let (short, far) = (&long[..40], 80.1);
        let short: Vec<f64> = short.iter().map(|time| time + 0.1).chain([far]).collect();
        assert_eq!(ticks(&[&long, &short])[1][40], 65);
    }

    #[test]
    fn what_cannot_be_aligned_is_named() {
        let refused = |traces: &mut [&mut Trace]| align(traces).unwrap_err().to_string();
        let mut numbers = trace(TimeKind::Number, &[&[0.5, 1.5, 1.5], &[0.5, 1.5, 2.5]]);
        assert!(refused(&mut [&mut numbers]).starts_with("t:4: a second row of \"\" has the time 1.5;"));
        let mut local = trace(TimeKind::Local, &[&[0.0]]);
        let said =
            "t has local times, but t has times in numbers, so workers cannot be aligned (--time '' pairs";
        assert!(refused(&mut [&mut local, &mut numbers]).starts_with(said));
        // Half a step apart.
        let mut between = trace(TimeKind::Number, &[&[0.0, 1.0, 2.0, 3.0], &[0.5, 1.5, 2.5]]);
        let said = "t:2: the row of \"\" is 0.500000 s after a row of \"\" and 0.500000 s before the next;";
        assert!(refused(&mut [&mut between]).starts_with(said));
        // The next row comes before the compute has ended.
        let begins: &[f64] = &[0.0, 1.0, 1.2, 1.28, 1.36, 1.44, 1.6, 1.8, 2.0];
        let mut ends = trace(TimeKind::Number, &[begins, begins]);
        let said = "t:4: \"\" computes for 0.100000 s, but its next row is 0.080000 s later;";
        assert!(refused(&mut [&mut ends]).starts_with(said));
        ends.has_times = false;
        assert!(align(&mut [&mut ends]).is_ok());
        // Milliseconds.
        ends.has_times = true;
        ends.series.iter_mut().for_each(|series| series.target.fill(0.01));
        assert!(align(&mut [&mut ends]).is_ok());
        let mut coarse = trace(TimeKind::Utc, &[&[0.0, 2.0, 5.0], &[1.0, 3.0, 6.0]]);
        assert_eq!(
            refused(&mut [&mut coarse]),
            "t: times without a fraction are too coarse to align iterations of 3 s"
        );
        // A single worker is compared with no other.
        assert!(align(&mut [&mut trace(TimeKind::Number, &[&[0.0, 0.0]])]).is_ok());
        let mut rows = trace(TimeKind::Row, &[&[0.0], &[0.0]]);
        align(&mut [&mut rows]).unwrap();
        assert_eq!(rows.notes, ["t: rows of workers are paired by their number"]);
    }

    proptest! {
        /// Ticks increase in each series, whatever the times.
        #[test]
        fn ticks_are_in_order(series in prop::collection::vec(prop::collection::vec(0.001..3.0, 1..30), 1..5)) {
            let sums = |gaps: &Vec<f64>| -> Vec<f64> {
                gaps.iter().scan(0.0, |sum, gap| { *sum += gap; Some(*sum) }).collect()
            };
            let times: Vec<Vec<f64>> = series.iter().map(sums).collect();
            let mut trace = trace(TimeKind::Number, &times.iter().map(Vec::as_slice).collect::<Vec<_>>());
            trace.has_times = false;
            if align(&mut [&mut trace]).is_ok() {
                for series in &trace.series {
                    prop_assert!(series.ticks.windows(2).all(|pair| pair[0] < pair[1]), "{:?}", trace.series);
                }
            }
        }

        /// Missing rows shift no other row. Workers begin an iteration within a fifth of it, and at most two rows in succession are
        /// missing.
        #[test]
        fn missing_rows_shift_no_others(
            (late, noise, present) in (2usize..5, 4usize..16).prop_flat_map(|(workers, rows)| (
                prop::collection::vec(0.0..0.1, workers),
                prop::collection::vec(prop::collection::vec(-0.04..0.04, rows), workers),
                prop::collection::vec(prop::collection::vec(prop::bool::weighted(0.85), rows), workers),
            ))
        ) {
            let rows = |worker: usize| -> Vec<usize> { (0..noise[worker].len()).filter(|at| present[worker][*at]).collect() };
            let times: Vec<Vec<f64>> = (0..late.len())
                .map(|worker| rows(worker).iter().map(|at| *at as f64 + late[worker] + noise[worker][*at]).collect())
                .collect();
            let longest = times.iter().map(Vec::len).max().unwrap();
            let reference = times.iter().position(|times| times.len() == longest).unwrap();
            let is_whole = |worker: usize| rows(worker).windows(2).all(|pair| pair[1] - pair[0] <= 3);
            prop_assume!(times.iter().all(|times| times.len() > 1) && (0..times.len()).all(is_whole));
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
