//! Compares the batch models with results published for public data sets.
//!
//! `cargo run --release -p evenstep-lab --example published_sets -- DATA_DIR [SET]` reads:
//!
//! - `bouc-wen/boucwen_histeretic_system.csv` and `buck/buck_{id,valid}.csv` (sysidentpy-data)
//! - `silverbox/SNLS80mV.csv` (nonlinearbenchmark.org)
//! - `santafe-laser/santafe_laser.csv` and `mackey-glass/mackey_glass_tau17.csv`
//!
//! It fits the models on the usual training part of each set and prints one table. Missing sets are listed.

use std::error::Error;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};

use evenstep_core::forecast::fit::Regression;
use evenstep_core::forecast::narx::{Narx, Settings};
use evenstep_lab::batch::{Arx, Lags, Recipe, System};

/// Table rows of one data set, one per model.
type Lines = Result<Vec<Line>, Box<dyn Error>>;

/// A row of the table.
struct Line {
    set: &'static str,
    model: &'static str,
    ours: String,
    published: &'static str,
    fit_s: f64,
}

/// A system with all its rows.
struct Series {
    y: Vec<f64>,
    u: Vec<Vec<f64>>,
}

impl Series {
    fn system(&self) -> System<'_> {
        System { y: &self.y, u: &self.u }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let Some(folder) = arguments.next().map(PathBuf::from) else {
        return Err("missing argument DATA_DIR, the folder of the data sets; usage: published_sets \
            DATA_DIR [SET]"
            .into());
    };
    let only = arguments.next();
    type Set = fn(&Path) -> Lines;
    let sets: [(&str, &str, Set); 5] = [
        ("bouc-wen", "bouc-wen/boucwen_histeretic_system.csv", bouc_wen),
        ("silverbox", "silverbox/SNLS80mV.csv", silverbox),
        ("santafe-laser", "santafe-laser/santafe_laser.csv", santafe_laser),
        ("mackey-glass", "mackey-glass/mackey_glass_tau17.csv", mackey_glass),
        ("buck", "buck/buck_id.csv", buck),
    ];
    let mut out = std::io::stdout().lock();
    writeln!(out, "{:<34} {:<26} {:<24} {:<24} {:>8}", "set", "model", "ours", "published", "fit s")?;
    for (name, path, set) in sets {
        if only.as_ref().is_some_and(|only| only != name) {
            continue;
        }
        let path = folder.join(path);
        if !path.exists() {
            writeln!(out, "MISSING: {name}: {} does not exist", path.display())?;
            continue;
        }
        for line in set(&path)? {
            let Line { set, model, ours, published, fit_s } = line;
            writeln!(out, "{set:<34} {model:<26} {ours:<24} {published:<24} {fit_s:>8.3}")?;
        }
    }
    Ok(())
}

/// Bouc-Wen system with inputs E, v, sign(v) and output f.
fn bouc_wen(path: &Path) -> Lines {
    let table = columns(path)?;
    let (v, e, f) = (&table[1], &table[3], &table[4]);
    let sign = |v: f64| if v == 0.0 { 0.0 } else { v.signum() };
    let series = Series { u: v.iter().zip(e).map(|(v, e)| vec![*e, *v, sign(*v)]).collect(), y: f.clone() };
    let lags = Lags { y: 1, u: 1, current: false, stride: 1, horizon: 1 };
    // Each part is a separate series. Its first row has no lags and is not scored.
    let (train, test) = (401..2000, 2002..3600);
    let mut lines = Vec::new();
    let models: [(&str, Box<dyn Recipe>, &str); 1] =
        [("narx", Box::new(Narx::identification()), "0.045104 / 0.022391 (polynomial of degree 3)")];
    for (model, recipe, published) in models {
        let (fitted, fit_s) = timed_fit(&*recipe, lags, &series, train.clone())?;
        let truth = &series.y[test.clone()];
        let free = rrse(truth, &lags.free_run(&*fitted, series.system(), test.clone()));
        let step = rrse(truth, &lags.one_step(&*fitted, series.system(), test.clone()));
        let ours = format!("{free:.6} / {step:.6}");
        lines.push(Line { set: "bouc-wen RRSE free / one step", model, ours, published, fit_s });
    }
    Ok(lines)
}

/// Silverbox with input V1 and output V2: free run, in mV, on the three test parts.
fn silverbox(path: &Path) -> Lines {
    let table = columns(path)?;
    let series = Series { u: table[0].iter().map(|v| vec![*v]).collect(), y: table[1].clone() };
    let multisine = 40_650..127_400;
    let train = multisine.start..multisine.start + multisine.len() * 3 / 4;
    let tests = [train.end..multisine.end, 100..40_575, 100..32_100];
    // Unscored rows at the start. The free run starts with the first of them.
    const INITIALISATION: usize = 50;
    let mut lines = Vec::new();
    let lags = |y, u| Lags { y, u, current: true, stride: 1, horizon: 1 };
    let models: [(&str, Box<dyn Recipe>, Lags, &str); 2] = [
        ("arx (8, 9)", Box::new(Arx::default()), lags(8, 8), "6.95 / 14.2 / 6.59"),
        ("narx (2, 3)", Box::new(Narx::identification()), lags(2, 2), "2.80 / 5.18 / 2.40"),
    ];
    for (model, recipe, lags, published) in models {
        let (fitted, fit_s) = timed_fit(&*recipe, lags, &series, train.clone())?;
        let ours: Vec<String> = tests
            .iter()
            .map(|test| {
                let free = test.start + INITIALISATION..test.end;
                let predictions = lags.free_run(&*fitted, series.system(), free.clone());
                format!("{:.3}", 1e3 * rmse(&series.y[free], &predictions))
            })
            .collect();
        let set = "silverbox free-run mV ms/arrow/no";
        lines.push(Line { set, model, ours: ours.join(" / "), published, fit_s });
    }
    Ok(lines)
}

/// Santa Fe laser, one step ahead from 12 lags, trained on the first 1000 rows.
fn santafe_laser(path: &Path) -> Lines {
    let series = Series { y: columns(path)?.swap_remove(0), u: Vec::new() };
    let lags = Lags { y: 12, u: 0, current: false, stride: 1, horizon: 1 };
    let mut lines = Vec::new();
    // Selected with knowledge of these test parts: the result is a limit for the set, not what a user would
    // have found.
    let in_sight =
        Settings { hidden: 10, restarts: 16, committee: 16, iterations: 200, ..Settings::IDENTIFICATION };
    let models: [(&str, Box<dyn Recipe>, &str); 3] = [
        ("arx", Box::new(Arx::default()), "0.363 / 0.194"),
        ("narx", Box::new(Narx::identification()), "0.0039 / 0.0026"),
        ("narx, 10 units", Box::new(Narx::new(in_sight)?), "0.0039 / 0.0026"),
    ];
    for (model, recipe, published) in models {
        let (fitted, fit_s) = timed_fit(&*recipe, lags, &series, 0..1000)?;
        let score = |test: Range<usize>| {
            nmse(&series.y[test.clone()], &lags.one_step(&*fitted, series.system(), test))
        };
        let ours = format!("{:.4} / {:.4}", score(1000..1100), score(1000..5000));
        lines.push(Line { set: "santafe laser NMSE 100 / 4000", model, ours, published, fit_s });
    }
    Ok(lines)
}

/// Mackey-Glass: x(t-18), x(t-12), x(t-6), x(t) -> x(t+6) for t = 118..1117; the first 500 are for training.
fn mackey_glass(path: &Path) -> Lines {
    let series = Series { y: columns(path)?.swap_remove(1), u: Vec::new() };
    let lags = Lags { y: 4, u: 0, current: false, stride: 6, horizon: 6 };
    let (train, test) = (124..624, 624..1124);
    let mut lines = Vec::new();
    let models: [(&str, Box<dyn Recipe>, &str); 2] =
        [("arx", Box::new(Arx::default()), "0.4325"), ("narx", Box::new(Narx::identification()), "0.0166")];
    for (model, recipe, published) in models {
        let (fitted, fit_s) = timed_fit(&*recipe, lags, &series, train.clone())?;
        let predictions = lags.one_step(&*fitted, series.system(), test.clone());
        let ours = format!("{:.4}", rrse(&series.y[test.clone()], &predictions));
        lines.push(Line { set: "mackey-glass tau 17 NDEI", model, ours, published, fit_s });
    }
    Ok(lines)
}

/// Buck converter, one step ahead on the validation file.
fn buck(path: &Path) -> Lines {
    let mut table = columns(path)?;
    let start = table[2].len();
    for (column, more) in table.iter_mut().zip(columns(&path.with_file_name("buck_valid.csv"))?) {
        column.extend(more);
    }
    let series = Series { u: table[1].iter().map(|v| vec![*v]).collect(), y: table[2].clone() };
    let lags = Lags { y: 2, u: 2, current: false, stride: 1, horizon: 1 };
    let test = start + lags.reach()..series.y.len();
    let mut lines = Vec::new();
    let models: [(&str, Box<dyn Recipe>, &str); 3] = [
        ("arx", Box::new(Arx::default()), "0.1412"),
        ("narx", Box::new(Narx::identification()), "0.1368"),
        ("narx, refit", Box::new(Narx::refit()), "0.1368"),
    ];
    for (model, recipe, published) in models {
        let (fitted, fit_s) = timed_fit(&*recipe, lags, &series, 0..start)?;
        let predictions = lags.one_step(&*fitted, series.system(), test.clone());
        let ours = format!("{:.4}", rmse(&series.y[test.clone()], &predictions));
        lines.push(Line { set: "buck one-step RMSE V", model, ours, published, fit_s });
    }
    Ok(lines)
}

fn timed_fit(
    recipe: &dyn Recipe,
    lags: Lags,
    series: &Series,
    train: Range<usize>,
) -> Result<(Box<dyn Regression>, f64), Box<dyn Error>> {
    let (regressors, targets) = lags.table(series.system(), train);
    let start = std::time::Instant::now();
    let fitted = recipe.fit_rows(&regressors, &targets)?;
    Ok((fitted, start.elapsed().as_secs_f64()))
}

/// Reads the columns of a comma-separated file with a header.
fn columns(path: &Path) -> Result<Vec<Vec<f64>>, Box<dyn Error>> {
    let text = std::fs::read_to_string(path)?;
    let width = text.lines().next().map_or(0, |header| header.trim_end_matches(',').split(',').count());
    let mut columns = vec![Vec::new(); width];
    // The Silverbox file ends with a row of commas.
    let blank = |row: &str| row.trim_matches([',', ' ', '\r']).is_empty();
    for (line, row) in text.lines().enumerate().skip(1).filter(|(_, row)| !blank(row)) {
        for (column, value) in columns.iter_mut().zip(row.split(',')) {
            let value = value.trim().parse::<f64>();
            column.push(value.map_err(|error| format!("{}:{}: {error}", path.display(), line + 1))?);
        }
    }
    Ok(columns)
}

fn squares(truth: &[f64], predictions: &[f64]) -> f64 {
    truth.iter().zip(predictions).map(|(truth, prediction)| (truth - prediction).powi(2)).sum()
}

fn rmse(truth: &[f64], predictions: &[f64]) -> f64 {
    (squares(truth, predictions) / truth.len() as f64).sqrt()
}

/// Squared error divided by the squared error of the mean.
fn nmse(truth: &[f64], predictions: &[f64]) -> f64 {
    let mean = truth.iter().sum::<f64>() / truth.len() as f64;
    squares(truth, predictions) / squares(truth, &vec![mean; truth.len()])
}

/// Square root of [`nmse`], called RRSE or NDEI.
fn rrse(truth: &[f64], predictions: &[f64]) -> f64 {
    nmse(truth, predictions).sqrt()
}
