//! Alignment of workers: rows of the same iteration have the same tick.
//!
//! Rows are of the same iteration if they have the same iteration, or the same number where the table has no times. By time, the
//! worker with the most rows is the reference. A row of another worker is of the iteration of a row of the reference if both begin
//! within a quarter of the iteration. So missing rows shift no others. If many rows are in the middle between two rows of the
//! reference, times do not tell to which iteration they belong, which is an error.

use std::collections::{BTreeMap, BTreeSet};

use super::columns::{Readings, Trace};
use super::time::TimeKind;

/// Maximum distance between the begins of an iteration, as a share of its time.
const NEAR: f64 = 0.25;
/// Maximum share and number of the rows of a worker that break a rule of times. Missing rows and single stalls make such rows.
const FAULTS_MAX: (f64, usize) = (0.02, 2);
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
    for (trace, series) in all() {
        check_order(trace, series, unit)?;
    }
    let reference = reference.1;
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
    let (name, id) = (&trace.trace, &series.id);
    let gap = |at: usize| series.times[at + 1] - series.times[at];
    let gaps = 0..series.times.len().saturating_sub(1);
    if let Some(at) = gaps.clone().find(|at| gap(*at) <= 0.0) {
        let (line, time) = (series.lines[at + 1], &series.at[at + 1]);
        anyhow::bail!(
            "{name}:{line}: a second row of {id:?} has the time {time}; workers are aligned by time, so each row needs its own"
        );
    }
    let mut sorted: Vec<f64> = gaps.clone().map(gap).collect();
    sorted.sort_unstable_by(f64::total_cmp);
    if let Some(median) = sorted.get(sorted.len() / 2).filter(|median| unit > NEAR * **median) {
        anyhow::bail!("{name}: times without a fraction are too coarse to align iterations of {median} s");
    }
    let compute_s = |at: usize| series.batch[at] as f64 / series.target[at];
    let overlaps = |at: &usize| gap(*at) + unit < (1.0 - TOLERANCE) * compute_s(*at);
    let mut faults = gaps.filter(overlaps).peekable();
    let first = faults.peek().copied();
    match first.filter(|_| trace.has_times && is_many(faults.count(), series)) {
        Some(at) => {
            let (line, gap, compute_s) = (series.lines[at], gap(at), compute_s(at));
            anyhow::bail!(
                "{name}:{line}: {id:?} computes for {compute_s:.6} s, but its next row is {gap:.6} s later; workers are aligned by \
                the times in seconds at which they begin an iteration"
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

/// The row of the reference that is of the same iteration, for each row.
fn pairs(reference: &[f64], times: &[f64]) -> Vec<Option<usize>> {
    let gap = |of: &[f64], at: usize| {
        of.get(at).zip(of.get(at + 1)).map_or(f64::INFINITY, |(this, next)| next - this)
    };
    // The time between a row and the next, or between it and the one before.
    let later = |of: &[f64], at: usize| {
        if at + 1 < of.len() { gap(of, at) } else { at.checked_sub(1).map_or(0.0, |at| gap(of, at)) }
    };
    let earlier = |of: &[f64], at: usize| {
        if at > 0 {
            gap(of, at - 1)
        } else if of.len() > 1 {
            gap(of, 0)
        } else {
            0.0
        }
    };
    let nearest = |at: usize| -> Option<(usize, f64)> {
        let time = times[at];
        let after = reference.partition_point(|other| *other < time);
        let late = after
            .checked_sub(1)
            .map(|row| (row, time - reference[row], later(reference, row).min(later(times, at))));
        let early = reference
            .get(after)
            .map(|row| (after, row - time, earlier(reference, after).min(earlier(times, at))));
        let near = [late, early].into_iter().flatten().filter(|(_, distance, step)| *distance <= NEAR * step);
        near.min_by(|one, other| one.1.total_cmp(&other.1)).map(|(row, distance, _)| (row, distance))
    };
    let found: Vec<Option<(usize, f64)>> = (0..times.len()).map(nearest).collect();
    let mut best: BTreeMap<usize, (f64, usize)> = BTreeMap::new();
    for (at, (row, distance)) in found.iter().enumerate().filter_map(|(at, found)| Some((at, (*found)?))) {
        let known = best.entry(row).or_insert((distance, at));
        if distance < known.0 {
            *known = (distance, at);
        }
    }
    let is_best = |at: usize, row: usize| best.get(&row).is_some_and(|(_, of)| *of == at);
    found
        .iter()
        .enumerate()
        .map(|(at, found)| found.map(|(row, _)| row).filter(|row| is_best(at, *row)))
        .collect()
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
        assert_eq!(ticks(&[&[0.0, 1.0, 5.0, 6.0], &[0.1, 1.7, 5.1, 6.1]]), [[0, 1, 2, 3], [0, 1, 2, 3]]);
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
        let mut ends =
            trace(TimeKind::Number, &[&[0.0, 1.0, 1.05, 1.1, 1.15, 1.3], &[0.0, 1.0, 1.05, 1.1, 1.15, 1.3]]);
        let said = "t:3: \"\" computes for 0.100000 s, but its next row is 0.050000 s later;";
        assert!(refused(&mut [&mut ends]).starts_with(said));
        ends.has_times = false;
        assert!(align(&mut [&mut ends]).is_ok());
        let mut coarse = trace(TimeKind::Utc, &[&[0.0, 2.0, 5.0], &[0.0, 2.0, 5.0]]);
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
