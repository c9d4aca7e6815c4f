//! The arguments for background work.

use clap::Args;
use evenstep_rules::gate::Limit;

use super::Settings;
use evenstep_protocol::BackgroundSettings;

/// Samples per optimizer step of the background job.
const BATCH: u64 = 64;

/// Arguments for background work in parallel with the training.
#[derive(Debug, Clone, Args)]
pub struct BackgroundArgs {
    /// Train a small separate model in the idle gaps: widths of its hidden layers, comma-separated
    #[arg(long, value_delimiter = ',', value_name = "WIDTHS", num_args = 0..=1, default_missing_value = "64",
          value_parser = clap::value_parser!(i64).range(1..=65_536))]
    pub background: Option<Vec<i64>>,
    /// Maximum ratio of the iteration time with background work to the time without it
    #[arg(long, default_value = "1.1", requires = "background", value_parser = limit)]
    pub slow_down_limit: Limit,
}

impl BackgroundArgs {
    /// Returns the settings of a rank's background job, with the default widths if `--background` is
    /// absent. Each rank trains a separate model.
    pub fn job(&self, rank: usize, seed: u64) -> Settings {
        let hidden = self.background.clone().unwrap_or_else(|| vec![64]);
        Settings { hidden, batch: BATCH, seed: seed.wrapping_add(rank as u64) }
    }

    /// Returns the background settings to send to the predictor; `None` without `--background`.
    pub fn wanted(&self) -> Option<BackgroundSettings> {
        let slow_down_limit = self.slow_down_limit.ratio();
        self.background.is_some().then_some(BackgroundSettings { slow_down_limit })
    }
}

fn limit(text: &str) -> Result<Limit, String> {
    let ratio: f64 = text.parse().map_err(|error| format!("{error}"))?;
    Limit::new(ratio).map_err(|error| error.to_string())
}
