//! System identification on all traces in parallel, with results in the requested order.

use anyhow::Context;
use rayon::iter::{IntoParallelRefIterator, ParallelIterator};

use super::args::{Args, Current};
use super::results::{Estimate, Forecasts, ModelResult, Results, SeriesResult, means};
use crate::backtest::{Clock, Identification, ModelName, Tuning};
use crate::batch::System;
use crate::trace::columns::{Readings, Trace};

/// One series to identify.
struct Task<'a> {
    trace: &'a Trace,
    readings: &'a Readings,
    inputs: Vec<Vec<f64>>,
    identification: Identification,
}

impl Task<'_> {
    fn system(&self) -> System<'_> {
        System { y: &self.readings.target, u: &self.inputs }
    }
}

/// Fits every model to the training range of every series and predicts its test range.
///
/// # Errors
/// If a range does not fit a series.
pub fn run(
    traces: &[Trace],
    args: &Args,
    clock: Clock<'_>,
    done_one: &(dyn Fn() + Sync),
) -> anyhow::Result<Results> {
    let tasks = traces
        .iter()
        .flat_map(|trace| trace.series.iter().map(move |readings| (trace, readings)))
        .map(|(trace, readings)| task(trace, readings, args))
        .collect::<anyhow::Result<Vec<Task<'_>>>>()?;
    let models = args.models();
    let units: Vec<(&Task<'_>, &ModelName)> =
        tasks.iter().flat_map(|task| models.iter().map(move |model| (task, model))).collect();
    let outcomes: Vec<(ModelResult, Vec<f64>)> = units
        .par_iter()
        .map(|(task, model)| {
            let outcome = predict(task, model, args, clock);
            done_one();
            outcome
        })
        .collect();
    let mut outcomes = outcomes.into_iter();
    let series: Vec<SeriesResult> =
        tasks.iter().map(|task| result(task, outcomes.by_ref().take(models.len()))).collect();
    Ok(Results {
        notes: Vec::new(),
        mean: means(&series),
        series,
        step_time: Vec::new(),
        step_time_even: None,
        step_time_by_trace: Vec::new(),
    })
}

/// Number of fits.
pub fn units(traces: &[Trace], args: &Args) -> usize {
    traces.iter().map(|trace| trace.series.len()).sum::<usize>() * args.models().len()
}

fn task<'a>(trace: &'a Trace, readings: &'a Readings, args: &Args) -> anyhow::Result<Task<'a>> {
    let (train, test) = args.ranges(readings.target.len());
    let identification =
        Identification { lags: args.lags(), train, test, skip: args.skip as usize, free_run: args.free_run };
    identification.check(&readings.id, readings.target.len()).with_context(|| trace.trace.clone())?;
    // No input is missing: the columns were read with that rule.
    let inputs = readings.drivers.iter().map(|row| row.iter().copied().flatten().collect()).collect();
    Ok(Task { trace, readings, inputs, identification })
}

fn predict(task: &Task<'_>, model: &ModelName, args: &Args, clock: Clock<'_>) -> (ModelResult, Vec<f64>) {
    let ours = &task.identification;
    let last_value = ours.last_value(&task.readings.target);
    let last = ours.judge(&task.readings.target, &last_value);
    let blank = ModelResult::new(model.to_string(), None, None, None);
    let Some(name) = model.recipe() else {
        return (ModelResult::new(model.to_string(), last, last, None), last_value);
    };
    let fitted = name.recipe(args.tuning()).and_then(|recipe| {
        let mut ours = ours.clone();
        if args.current == Current::Auto {
            // A quick fit suffices for the comparison.
            let quick = name.recipe(Tuning { thorough: false, ..args.tuning() })?;
            ours.lags.current = ours.current_helps(quick.as_ref(), task.system());
        }
        Ok((ours.run(recipe.as_ref(), task.system(), clock)?, ours.lags.current))
    });
    match fitted {
        Ok((done, current)) => {
            let result = ModelResult {
                current_inputs: Some(current),
                fit_s: Some(done.fit_s),
                predict_us: Some(done.predict_us),
                failure: done.accuracy.is_none().then(|| "a prediction is not a finite number".into()),
                ..ModelResult::new(model.to_string(), done.accuracy, last, None)
            };
            (result, done.predictions)
        }
        Err(error) => (ModelResult { failure: Some(error.to_string()), ..blank }, Vec::new()),
    }
}

fn result(task: &Task<'_>, outcomes: impl Iterator<Item = (ModelResult, Vec<f64>)>) -> SeriesResult {
    let ours = &task.identification;
    let counted = ours.test.start + ours.skip..ours.test.end;
    let estimates = |predictions: Vec<f64>| -> Vec<Option<Estimate>> {
        let known = |at: usize| predictions.get(at).copied().filter(|prediction| prediction.is_finite());
        let estimate = |at: usize| known(at).map(|y_hat| Estimate { y_hat, interval: None });
        (ours.skip..ours.test.len()).map(estimate).collect()
    };
    let (models, by_model) = outcomes.map(|(model, predictions)| (model, estimates(predictions))).unzip();
    SeriesResult {
        trace: task.trace.trace.clone(),
        unique_id: task.readings.id.clone(),
        rows: task.readings.target.len(),
        tested: counted.len(),
        models,
        forecasts: Forecasts {
            at: task.readings.at[counted.clone()].to_vec(),
            first_row: counted.start,
            y: task.readings.target[counted].to_vec(),
            by_model,
        },
    }
}
