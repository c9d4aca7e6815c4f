//! Roles of the columns of a table, and the resulting series.

use std::collections::BTreeMap;

use evenstep_core::series::LEARNABLE;

use super::table::{Table, TableError};
use super::time::{self, TimeKind};
use crate::backtest::{Job, Row, Series};

/// Prefix of columns that hold information not available at forecast time. They are never inputs.
const TRUTH_PREFIX: &str = "truth_";
/// Columns that hold the time of a row by default: the first that exists.
const TIME_COLUMNS: [&str; 3] = ["iteration", "iter", time::SECONDS];
/// Columns that hold the outcome of iterations. Like those of times, they are drivers only if named explicitly.
const EXCLUDED_COLUMNS: [&str; 2] = ["iter_ms", "speed"];
/// Columns of an exported job: the job, times, and the samples of a worker.
const EXPORTED: [&str; 3] = ["job_id", "compute_time_s", "local_batch"];
/// Maximum number of series in a table.
pub const SERIES_MAX: usize = 10_000;

/// Requested roles of the columns. `None` means the default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ColumnRoles {
    /// Column to forecast: speeds of workers, which are positive. Default: `speed`.
    pub target: Option<String>,
    /// Column with times: the forecast quantity is the batch divided by the time. Default: `compute_time_s` if the column exists
    /// and `speed` does not, as in an exported job.
    pub target_time: Option<String>,
    /// Column with batches. Default: `batch` or `local_batch`, the first that exists, otherwise every batch is 1.
    pub batch: Option<String>,
    /// Column with the iteration or time of each row; empty for none. Default: `iteration`, `iter` or `t_start`, the first that
    /// exists, otherwise the row number.
    pub time: Option<String>,
    /// Column with the series of each row. Default: `worker` if the column exists.
    pub id: Option<String>,
    /// Driver columns.
    pub drivers: Drivers,
}

/// Driver columns of a table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Drivers {
    /// Every column without another role, except `truth_*` columns and those that hold the time or the outcome of
    /// iterations. None of an exported job: its columns are of the iteration itself.
    #[default]
    Others,
    /// The listed columns.
    Named(Vec<String>),
}

/// The name of a column that cannot be an input.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "column {0:?} cannot be an input: columns named {TRUTH_PREFIX}* hold information not available at \
    forecast time"
)]
pub struct TruthColumn(String);

/// Checks that a column may be an input.
///
/// # Errors
/// [`TruthColumn`] for a `truth_*` column.
pub fn check_input(column: &str) -> Result<(), TruthColumn> {
    if column.starts_with(TRUTH_PREFIX) { Err(TruthColumn(column.to_owned())) } else { Ok(()) }
}

/// One series of a table, row by row.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Readings {
    /// Id of the series; empty if the table holds only one.
    pub id: String,
    /// Line of each row in the file.
    pub lines: Vec<u64>,
    /// Position of each row in the order of the job. Rows of the same iteration have the same.
    pub ticks: Vec<u64>,
    /// Time of each row as written in the table; the row number if there is no time column.
    pub at: Vec<String>,
    /// Time of each row as a number.
    pub times: Vec<f64>,
    /// Values to forecast.
    pub target: Vec<f64>,
    /// Samples per row.
    pub batch: Vec<u64>,
    /// Drivers by row; `None` for a missing reading.
    pub drivers: Vec<Vec<Option<f64>>>,
}

impl Readings {
    /// Keeps only some rows, in this order.
    fn keep(&mut self, rows: &[usize]) {
        *self = Self {
            id: std::mem::take(&mut self.id),
            lines: rows.iter().map(|row| self.lines[*row]).collect(),
            ticks: rows.iter().map(|row| self.ticks[*row]).collect(),
            at: rows.iter().map(|row| std::mem::take(&mut self.at[*row])).collect(),
            times: rows.iter().map(|row| self.times[*row]).collect(),
            target: rows.iter().map(|row| self.target[*row]).collect(),
            batch: rows.iter().map(|row| self.batch[*row]).collect(),
            drivers: rows.iter().map(|row| std::mem::take(&mut self.drivers[*row])).collect(),
        };
    }

    /// Orders the rows by iteration, and keeps the last one of each.
    fn keep_last(&mut self) {
        let mut order: Vec<usize> = (0..self.times.len()).collect();
        order.sort_by(|a, b| self.times[*a].total_cmp(&self.times[*b]));
        let is_last = |place: usize| {
            order.get(place + 1).is_none_or(|next| self.times[*next] != self.times[order[place]])
        };
        let kept: Vec<usize> =
            (0..order.len()).filter(|place| is_last(*place)).map(|place| order[place]).collect();
        self.keep(&kept);
        self.ticks = self.times.iter().map(|time| *time as u64).collect();
    }

    /// Removes the rows without samples, which have no speed. Returns their number.
    fn remove_idle(&mut self) -> usize {
        let busy: Vec<usize> = (0..self.batch.len()).filter(|row| self.batch[*row] > 0).collect();
        let idle = self.batch.len() - busy.len();
        if idle > 0 {
            self.keep(&busy);
        }
        idle
    }
}

/// All series of a table.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    /// The file, as given on the command line.
    pub trace: String,
    /// Quantity that orders the rows.
    pub time: TimeKind,
    /// Whether batches and speeds give compute times in seconds.
    pub has_times: bool,
    /// Names of the drivers.
    pub drivers: Vec<String>,
    /// The series, in the order of their first rows.
    pub series: Vec<Readings>,
    /// Sentences about rows of the table that are left out.
    pub notes: Vec<String>,
}

impl Trace {
    /// Returns the series as a job.
    pub fn job(&self) -> Job {
        let series = |readings: &Readings| {
            let row = |at: usize| Row {
                tick: readings.ticks[at],
                batch: readings.batch[at],
                speed: readings.target[at],
                drivers: readings.drivers[at].clone(),
            };
            Series { id: readings.id.clone(), rows: (0..readings.target.len()).map(row).collect() }
        };
        Job {
            trace: self.trace.clone(),
            drivers: self.drivers.clone(),
            series: self.series.iter().map(series).collect(),
        }
    }

    /// Keeps the last row of each iteration of a worker: a run that was resumed repeats iterations. Returns the number of others.
    fn keep_last(&mut self) -> usize {
        let rows = |trace: &Self| trace.series.iter().map(|series| series.times.len()).sum::<usize>();
        let before = rows(self);
        self.series.iter_mut().for_each(Readings::keep_last);
        before - rows(self)
    }

    /// Notes the number of rows that are left out, unless it is 0.
    pub(super) fn note(&mut self, rows: usize, why: &str) {
        if rows > 0 {
            self.notes.push(format!("{}: rows left out {why}: {rows}", self.trace));
        }
    }
}

impl ColumnRoles {
    /// Splits a table into series. Rows of workers that computed no samples have no speed and are left out.
    ///
    /// # Errors
    /// [`TableError`] if a column does not exist or a cell has an invalid value.
    pub fn apply(&self, table: &Table) -> Result<Trace, TableError> {
        let parts = ColumnIndices::find(self, table)?;
        let (time, times) = match parts.time {
            Some(column) => time::read(table, column)?,
            None => (TimeKind::Row, Vec::new()),
        };
        let mut places: BTreeMap<&str, usize> = BTreeMap::new();
        let mut series: Vec<Readings> = Vec::new();
        // By series: its number of rows, the last one, and the last one of each iteration.
        let mut seen: Vec<(usize, usize, BTreeMap<u64, usize>)> = Vec::new();
        let mut equal = 0;
        let mut repeated: Option<(usize, usize)> = None;
        for row in 0..table.len() {
            let id = parts.id.map_or("", |column| table.text(row, column));
            if let (Some(column), true) = (parts.id, id.is_empty()) {
                return Err(table.cell_error(row, column, "is missing; each row needs an id"));
            }
            let place = *places.entry(id).or_insert(series.len());
            if place == series.len() {
                series.push(Readings { id: id.to_owned(), ..Readings::default() });
                seen.push((0, row, BTreeMap::new()));
            }
            if series.len() > SERIES_MAX {
                let rule = format!("more than {SERIES_MAX} series");
                return Err(TableError::Whole { trace: table.trace.clone(), rule });
            }
            let (number, before, iterations) = &mut seen[place];
            let before = std::mem::replace(before, row);
            let same = match time {
                TimeKind::Row => None,
                TimeKind::Iteration => iterations.insert(times[row] as u64, row),
                _ if *number > 0 && times[row] < times[before] => {
                    return Err(parts.earlier(table, row, before, time));
                }
                _ => Some(before).filter(|before| *number > 0 && times[*before] == times[row]),
            };
            *number += 1;
            match same {
                // A log that was written twice.
                Some(same) if table.are_equal(row, same) => {
                    equal += 1;
                    continue;
                }
                Some(_) => repeated = Some(repeated.map_or((row, 1), |(first, count)| (first, count + 1))),
                None => {}
            }
            let readings = &mut series[place];
            readings.lines.push(table.line(row));
            readings.ticks.push(*number as u64 - 1);
            readings.times.push(times.get(row).copied().unwrap_or(*number as f64 - 1.0));
            parts.take(table, row, *number - 1, readings)?;
        }
        if let (TimeKind::Row, Some(other)) = (time, seen.iter().position(|(rows, ..)| *rows != seen[0].0)) {
            let (first, id, rows) = (&series[0].id, &series[other].id, seen[other].0);
            let rule = format!(
                "{first:?} has {} rows and {id:?} has {rows}; without a column of iterations or times (--time), each worker \
                needs a row in each iteration",
                seen[0].0
            );
            return Err(TableError::Whole { trace: table.trace.clone(), rule });
        }
        let rows = table.len() - equal;
        if let (TimeKind::Iteration, Some((row, count)), Some(column)) = (time, repeated, parts.time)
            && 2 * count >= rows
        {
            let rule = format!(
                "repeats an iteration of its worker, as do {count} of {rows} rows: too many for a run that was resumed"
            );
            return Err(table.cell_error(row, column, &rule));
        }
        let mut trace = Trace {
            trace: table.trace.clone(),
            time,
            has_times: parts.target_is_time || parts.batch.is_some(),
            drivers: parts.drivers.iter().map(|(name, _)| name.clone()).collect(),
            series,
            notes: Vec::new(),
        };
        trace.note(equal, "because they repeat another row");
        if time == TimeKind::Iteration {
            let superseded = trace.keep_last();
            trace.note(superseded, "because a later row has the same worker and iteration");
        }
        let idle = trace.series.iter_mut().map(Readings::remove_idle).sum();
        trace.note(idle, "because they have no samples");
        trace.series.retain(|series| !series.target.is_empty());
        Ok(trace)
    }
}

/// Indices of the columns by role.
struct ColumnIndices {
    target: usize,
    target_is_time: bool,
    batch: Option<usize>,
    time: Option<usize>,
    /// Column that labels forecasts.
    label: Option<usize>,
    id: Option<usize>,
    drivers: Vec<(String, usize)>,
    drivers_named: bool,
}

impl ColumnIndices {
    fn find(choice: &ColumnRoles, table: &Table) -> Result<Self, TableError> {
        let named = |name: &Option<String>, default: &str| match name {
            Some(name) => table.column(name).map(Some),
            None => Ok(table.find(default)),
        };
        let [exported_job, exported_time, exported_batch] = EXPORTED;
        let has_times = choice.target.is_none() && table.find("speed").is_none();
        let has_times = has_times && table.find(exported_time).is_some();
        let is_exported = table.find(exported_job).is_some() && table.find(exported_time).is_some();
        let time_column = choice.target_time.as_deref().or(has_times.then_some(exported_time));
        let target = table.column(time_column.or(choice.target.as_deref()).unwrap_or("speed"))?;
        let (id, batch) = (named(&choice.id, "worker")?, named(&choice.batch, "batch")?);
        let batch = batch.or_else(|| table.find(exported_batch));
        let time = match choice.time.as_deref() {
            Some("") => None,
            Some(name) => Some(table.column(name)?),
            None => TIME_COLUMNS.iter().find_map(|name| table.find(name)),
        };
        let taken = |at: usize| at == target || [batch, time, id].contains(&Some(at));
        let excluded = |name: &str| TIME_COLUMNS.contains(&name) || EXCLUDED_COLUMNS.contains(&name);
        let drivers_named = choice.drivers != Drivers::Others;
        let drivers = match &choice.drivers {
            Drivers::Named(drivers) => drivers
                .iter()
                .map(|name| Ok((name.clone(), table.column(name)?)))
                .collect::<Result<Vec<_>, TableError>>()?,
            Drivers::Others if is_exported => Vec::new(),
            Drivers::Others => table
                .columns
                .iter()
                .enumerate()
                .filter(|(at, name)| !taken(*at) && !name.is_empty() && !excluded(name))
                .filter(|(_, name)| check_input(name).is_ok())
                .map(|(at, name)| (name.clone(), at))
                .collect(),
        };
        if let Some((name, _)) = drivers.iter().find(|(_, at)| *at == target) {
            let rule = format!("{name:?} is the forecast column and cannot be a driver");
            return Err(TableError::Whole { trace: table.trace.clone(), rule });
        }
        Ok(Self {
            target,
            target_is_time: time_column.is_some(),
            batch,
            time,
            label: match choice.time {
                None => table.find(time::SECONDS).or(time),
                Some(_) => time,
            },
            id,
            drivers,
            drivers_named,
        })
    }

    /// Whether the row is of an iteration in which the worker had no samples, and so no speed.
    fn is_idle(&self, table: &Table, row: usize) -> Result<bool, TableError> {
        match self.batch.filter(|_| self.target_is_time) {
            Some(batch) => Ok(table.number(row, batch)? == Some(0.0)),
            None => Ok(false),
        }
    }

    fn earlier(&self, table: &Table, row: usize, before: usize, kind: TimeKind) -> TableError {
        let above = if before + 1 == row {
            "the row above".to_owned()
        } else {
            format!("line {}", table.line(before))
        };
        let rule = format!("is earlier than {above}; rows of a worker must be in order of time");
        let local = "; where a clock is set back, times need their offset from UTC";
        let rule = if kind == TimeKind::Local { format!("{rule}{local}") } else { rule };
        table.cell_error(row, self.time.unwrap_or_default(), &rule)
    }

    /// Appends row number `number` of its series.
    fn take(
        &self,
        table: &Table,
        row: usize,
        number: usize,
        series: &mut Readings,
    ) -> Result<(), TableError> {
        if self.is_idle(table, row)? {
            series.target.push(f64::NAN);
            series.batch.push(0);
            series.drivers.push(Vec::new());
            series.at.push(String::new());
            return Ok(());
        }
        let batch = self.batch.map_or(Ok(1), |column| whole(table, row, column))?;
        let measured = table.measured(row, self.target)?;
        if measured <= 0.0 {
            return Err(table.cell_error(row, self.target, "is not positive"));
        }
        let target = if self.target_is_time { batch as f64 / measured } else { measured };
        if !target.is_finite() {
            return Err(table.cell_error(row, self.target, "gives a number that is not finite"));
        }
        if !LEARNABLE.contains(&target) {
            return Err(table.cell_error(row, self.target, "gives a speed that is not from 1e-30 to 1e30"));
        }
        let at = self.label.map_or_else(|| number.to_string(), |column| table.text(row, column).to_owned());
        let read = |(_, column): &(String, usize)| {
            let hint = |error| match error {
                TableError::Cell { trace, line, column, value, rule } if !self.drivers_named => {
                    let rule = format!("{rule} (--drivers selects the drivers, --time the time column)");
                    TableError::Cell { trace, line, column, value, rule }
                }
                error => error,
            };
            table.number(row, *column).map_err(hint)
        };
        series.drivers.push(self.drivers.iter().map(read).collect::<Result<_, TableError>>()?);
        series.at.push(at);
        series.target.push(target);
        series.batch.push(batch);
        Ok(())
    }
}

/// Maximum samples of a batch. Every integer up to it is exact in floating point.
const BATCH_MAX: f64 = 9_007_199_254_740_992.0;

fn whole(table: &Table, row: usize, column: usize) -> Result<u64, TableError> {
    let batch = table.measured(row, column)?;
    if batch.fract() == 0.0 && (1.0..=BATCH_MAX).contains(&batch) {
        Ok(batch as u64)
    } else {
        Err(table.cell_error(
            row,
            column,
            "is not a number of samples; it must be a whole number of at least 1",
        ))
    }
}
