//! A run as a table for `evenstep-predictor backtest`: one row per worker and iteration, in order of time.
//!
//! | column | |
//! |---|---|
//! | `worker` | the worker's id |
//! | `t_start` | start of its compute, in seconds since the start of the run, on rank 0's clock; for the other ranks, as if they had left the last barrier together with rank 0 |
//! | `iter` | number of the iteration, from 0, counted over all policies |
//! | `batch` | number of samples it computed |
//! | `iter_ms` | compute time in milliseconds |
//! | `speed` | samples per second of compute time |
//! | each of [`DRIVERS`] | reading at the end of its compute of the *previous* iteration; empty if missing |
//! | `barrier_wait_s` | barrier wait at the end of the previous iteration |
//! | `truth_load_start`, `truth_load_mean` | with a real or imposed load: number of busy threads at the start of the compute, and its mean over the compute |
//! | `truth_pace` | with imposed speeds: the worker's pace without a load |
//! | `truth_policy` | with several policies: number of the policy, from 0 |
//!
//! Forecasts must not use columns whose names begin with `truth_`: the values are not known at the time of
//! the forecast. A worker without samples in an iteration has no speed, and no row. Times are rounded to the
//! microsecond, all other values to six significant digits.

use std::io::{self, Write};

use evenstep_protocol::{Readings, driver};

use evenstep_trainer::collective::DRIVERS;
use evenstep_trainer::plan::Policy;
use evenstep_trainer::progress::{IterationLine, WorkerLine};

use super::run_line::RunLine;
use crate::load::Timeline;

const FIRST: [&str; 6] = ["worker", "t_start", "iter", "batch", "iter_ms", "speed"];
const LOAD: [&str; 2] = ["truth_load_start", "truth_load_mean"];
const PACE: &str = "truth_pace";
const POLICY: &str = "truth_policy";

/// Writes a table.
#[derive(Debug)]
pub struct Table<W: Write> {
    file: csv::Writer<W>,
    /// Readings at the end of the previous iteration, by rank.
    before: Vec<Readings>,
    /// Loads by rank; empty without an imposed load.
    loads: Vec<Timeline>,
    /// Paces by rank; empty without imposed speeds.
    paces: Vec<f64>,
    /// Policies of the run; empty if the run has only one.
    policies: Vec<Policy>,
    iteration: u64,
}

impl<W: Write> Table<W> {
    /// Writes the header of the table. `loads` are the loads of the workers by rank, if known.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn begin(file: W, run: &RunLine, loads: Vec<Timeline>) -> io::Result<Self> {
        let mut table = Self {
            file: csv::Writer::from_writer(file),
            before: vec![Readings::new(); run.workers.len()],
            loads,
            paces: run.paces.clone().unwrap_or_default(),
            policies: if run.policies.len() > 1 { run.policies.clone() } else { Vec::new() },
            iteration: 0,
        };
        let load = LOAD.iter().filter(|_| !table.loads.is_empty());
        let pace = (!table.paces.is_empty()).then_some(&PACE);
        let policy = (!table.policies.is_empty()).then_some(&POLICY);
        let names = FIRST
            .iter()
            .chain(&DRIVERS)
            .chain([&driver::BARRIER_WAIT_S])
            .chain(load)
            .chain(pace)
            .chain(policy);
        table.file.write_record(names)?;
        Ok(table)
    }

    /// Appends the rows of an iteration.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn add(&mut self, line: &IterationLine) -> io::Result<()> {
        // Assumes that all workers left the previous barrier together with rank 0. Machines share no
        // clock, so no better estimate exists.
        let begun_s = line.at_s - line.step_time_s + line.request_s;
        let mut rows: Vec<(f64, Vec<String>)> = Vec::new();
        for (rank, worker) in line.workers.iter().enumerate() {
            if worker.local_batch > 0 && worker.compute_time_s > 0.0 {
                let start_s = begun_s + worker.loader_wait_s;
                rows.push((start_s, self.row(line, rank, worker, start_s)));
            }
            self.before[rank].clone_from(&worker.drivers);
            self.before[rank].insert(driver::BARRIER_WAIT_S.to_owned(), worker.barrier_wait_s);
        }
        rows.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        for (_, row) in rows {
            self.file.write_record(row)?;
        }
        self.iteration += 1;
        Ok(())
    }

    fn row(&mut self, line: &IterationLine, rank: usize, worker: &WorkerLine, start_s: f64) -> Vec<String> {
        let time_s = worker.compute_time_s;
        let mut row = vec![
            worker.worker.to_string(),
            decimals(start_s, 1e6),
            self.iteration.to_string(),
            worker.local_batch.to_string(),
            decimals(time_s * 1e3, 1e3),
            significant(worker.local_batch as f64 / time_s),
        ];
        let before = &self.before[rank];
        let reading = |name: &&str| before.get(*name).map_or_else(String::new, |value| significant(*value));
        row.extend(DRIVERS.iter().chain([&driver::BARRIER_WAIT_S]).map(reading));
        if let Some(load) = self.loads.get_mut(rank) {
            let seen = load.over(start_s, start_s + time_s);
            row.extend([significant(seen.start), significant(seen.mean)]);
        }
        row.extend(self.paces.get(rank).map(|pace| significant(*pace)));
        let policy = self.policies.iter().position(|policy| *policy == line.policy);
        row.extend(policy.map(|policy| policy.to_string()));
        row
    }

    /// Writes all buffered rows to the file.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

fn decimals(value: f64, parts: f64) -> String {
    ((value * parts).round() / parts).to_string()
}

fn significant(value: f64) -> String {
    // Parsing cannot fail, because Rust wrote the text.
    format!("{value:.5e}").parse::<f64>().unwrap_or(value).to_string()
}

#[cfg(test)]
mod tests {
    use evenstep_protocol::{LearningRateRule, WorkerId};

    use super::*;
    use crate::load::{Load, LoadKind};
    use crate::record::Scenario;

    fn run(policies: &[Policy], paces: Option<Vec<f64>>) -> RunLine {
        RunLine {
            scenario: Scenario::Plain,
            job_id: None,
            paces,
            load: None,
            workers: ["node/0", "node/1"].map(|worker| WorkerId::new(worker).unwrap()).to_vec(),
            global_batch: 64,
            per_worker_batch: None,
            rule: LearningRateRule::None,
            model: "mlp".into(),
            data: "task".into(),
            steps: 2,
            seed: 1,
            policies: policies.to_vec(),
            elastic: false,
            block: 1,
            notes: Vec::new(),
        }
    }

    /// Returns an iteration that ends at `at_s` after 0.5 s, of which the request took 0.125 s. Worker 0
    /// computes for 0.25 s, worker 1 for 1/3 s.
    fn iteration(policy: Policy, at_s: f64, batches: [u64; 2], other_cpu: [Option<f64>; 2]) -> IterationLine {
        let worker = |rank: usize| WorkerLine {
            worker: WorkerId::new(format!("node/{rank}")).unwrap(),
            local_batch: batches[rank],
            compute_time_s: [0.25, 1.0 / 3.0][rank],
            micro_batches: None,
            tail: None,
            barrier_wait_s: [0.0, 0.015][rank],
            loader_wait_s: [0.0625, 0.03125][rank],
            predicted_compute_time_s: None,
            predicted_speed_samples_per_s: None,
            speed_lower_samples_per_s: None,
            speed_upper_samples_per_s: None,
            drivers: other_cpu[rank].map(|value| (driver::OTHER_CPU.to_owned(), value)).into_iter().collect(),
        };
        IterationLine {
            policy,
            iteration: 0,
            epoch: 0,
            at_s,
            global_batch: batches.iter().sum(),
            lr_multiplier: None,
            schedule_iteration: None,
            step_time_s: 0.5,
            request_s: 0.125,
            round_trip_s: None,
            server_s: None,
            all_reduce_s: 0.0,
            loss: 1.0,
            generation: None,
            decision: None,
            gradient_difference: None,
            workers: vec![worker(0), worker(1)],
        }
    }

    /// Returns the rows of the table as pairs of column name and value.
    fn table(run: &RunLine, loads: Vec<Timeline>, lines: &[IterationLine]) -> Vec<Vec<(String, String)>> {
        let mut bytes = Vec::new();
        let mut table = Table::begin(&mut bytes, run, loads).unwrap();
        lines.iter().for_each(|line| table.add(line).unwrap());
        table.flush().unwrap();
        drop(table);
        let mut reader = csv::Reader::from_reader(bytes.as_slice());
        let names = reader.headers().unwrap().clone();
        let named =
            |row: csv::StringRecord| names.iter().zip(&row).map(|(n, v)| (n.into(), v.into())).collect();
        reader.records().map(|row| named(row.unwrap())).collect()
    }

    fn cells<'a>(row: &'a [(String, String)], names: &[&str]) -> Vec<&'a str> {
        let cell = |name: &&str| row.iter().find(|(one, _)| one == name).map_or("none", |(_, value)| value);
        names.iter().map(cell).collect()
    }

    #[test]
    fn drivers_are_those_of_the_iteration_before_of_the_same_worker() {
        let lines = [
            iteration(Policy::Even, 1.0, [40, 24], [Some(0.5), Some(1.23456789)]),
            iteration(Policy::Even, 2.0, [40, 24], [None, Some(9.0)]),
            iteration(Policy::Even, 3.0, [40, 24], [None, None]),
        ];
        let rows = table(&run(&[Policy::Even], None), Vec::new(), &lines);
        let names: Vec<&str> = rows[0].iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            FIRST.iter().chain(&driver::ALL).chain([&driver::BARRIER_WAIT_S]).copied().collect::<Vec<_>>()
        );

        let wanted = [
            "worker",
            "t_start",
            "iter",
            "batch",
            "iter_ms",
            "speed",
            "other_cpu",
            "psi_cpu_some",
            "barrier_wait_s",
        ];
        let rows: Vec<Vec<&str>> = rows.iter().map(|row| cells(row, &wanted)).collect();
        // Worker 1 waited less for its data, so it started first.
        assert_eq!(
            rows,
            [
                ["node/1", "0.65625", "0", "24", "333.333", "72", "", "", ""],
                ["node/0", "0.6875", "0", "40", "250", "160", "", "", ""],
                ["node/1", "1.65625", "1", "24", "333.333", "72", "1.23457", "", "0.015"],
                ["node/0", "1.6875", "1", "40", "250", "160", "0.5", "", "0"],
                ["node/1", "2.65625", "2", "24", "333.333", "72", "9", "", "0.015"],
                ["node/0", "2.6875", "2", "40", "250", "160", "", "", "0"],
            ]
        );
    }

    #[test]
    fn policies_follow_each_other_and_workers_without_samples_have_no_row() {
        let lines = [
            iteration(Policy::Even, 1.0, [32, 32], [Some(1.0), Some(2.0)]),
            iteration(Policy::Evenstep, 2.0, [64, 0], [Some(3.0), Some(4.0)]),
            iteration(Policy::Even, 3.0, [32, 32], [None, None]),
        ];
        let run = run(&[Policy::Even, Policy::Evenstep], Some(vec![1.0, 2.5]));
        let rows = table(&run, Vec::new(), &lines);
        let wanted = ["worker", "iter", "other_cpu", "truth_pace", "truth_policy", "truth_load_mean"];
        let rows: Vec<Vec<&str>> = rows.iter().map(|row| cells(row, &wanted)).collect();
        assert_eq!(
            rows,
            [
                ["node/1", "0", "", "2.5", "0", "none"],
                ["node/0", "0", "", "1", "0", "none"],
                ["node/0", "1", "1", "1", "1", "none"],
                ["node/1", "2", "4", "2.5", "0", "none"],
                ["node/0", "2", "3", "1", "0", "none"],
            ]
        );
    }

    #[test]
    fn an_imposed_load_is_recorded_as_the_true_load() {
        let load = Load { kind: LoadKind::Walk, seed: 4 };
        let timelines = || vec![Timeline::new(load, 10.0), Timeline::new(Load { seed: 5, ..load }, 10.0)];
        let lines = [iteration(Policy::Even, 1.0, [32, 32], [None, None])];
        let rows = table(&run(&[Policy::Even], None), timelines(), &lines);
        let expected = timelines()[1].over(0.65625, 0.65625 + 1.0 / 3.0);
        let told = cells(&rows[0], &["worker", "truth_load_start", "truth_load_mean"]);
        assert_eq!(told, ["node/1", &significant(expected.start), &significant(expected.mean)]);
        assert_ne!(told[1], told[2]);
    }
}
