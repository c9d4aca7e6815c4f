//! All forecasts as CSV: unique_id, ds, y, model, y_hat, lo, hi.

use super::results::Results;

/// Returns the whole CSV file.
///
/// There is no column for the trace. If several traces contain ids, the id is prefixed with the trace.
///
/// # Errors
/// [`csv::Error`] if a record cannot be written. Writing to memory does not fail.
pub fn csv(results: &Results) -> Result<Vec<u8>, csv::Error> {
    let ambiguous = |at: usize| {
        let ours = &results.series[at];
        results.series.iter().any(|other| other.trace != ours.trace && other.unique_id == ours.unique_id)
    };
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(["unique_id", "ds", "y", "model", "y_hat", "lo", "hi"])?;
    let any_ambiguous = (0..results.series.len()).any(ambiguous);
    for series in &results.series {
        let id = if any_ambiguous {
            format!("{}/{}", series.trace, series.unique_id)
        } else {
            series.unique_id.clone()
        };
        for (model, estimates) in series.models.iter().zip(&series.forecasts.by_model) {
            for (at, estimate) in estimates.iter().enumerate() {
                let y = series.forecasts.y[at].to_string();
                let y_hat = estimate.map_or_else(String::new, |estimate| estimate.y_hat.to_string());
                let interval = estimate.and_then(|estimate| estimate.interval);
                let (lo, hi) =
                    interval.map_or_else(Default::default, |(lo, hi)| (lo.to_string(), hi.to_string()));
                writer.write_record([&id, &series.forecasts.at[at], &y, &model.model, &y_hat, &lo, &hi])?;
            }
        }
    }
    writer.into_inner().map_err(|error| error.into_error().into())
}
