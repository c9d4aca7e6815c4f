//! What is asked for of background work.

use clap::Args;
use evenstep_core::gate::Limit;

use super::Settings;
use evenstep_protocol::BackgroundSettings;

/// Background work beside the training.
#[derive(Debug, Clone, Args)]
pub struct BackgroundArgs {
    /// Train a small model of its own in the gaps: widths of its hidden layers
    #[arg(long, value_delimiter = ',', value_name = "WIDTHS", num_args = 0..=1, default_missing_value = "64",
          value_parser = clap::value_parser!(i64).range(1..=65_536))]
    pub background: Option<Vec<i64>>,
    /// Samples of one of its optimizer steps
    #[arg(long, default_value_t = 64, requires = "background", value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub background_batch: u64,
    /// With background work an iteration may take at most so many times as long as alone
    #[arg(long, default_value = "1.1", requires = "background", value_parser = limit)]
    pub slow_down_limit: Limit,
}

impl BackgroundArgs {
    /// The job of a rank: each trains its own. That which is asked for, or the usual one.
    pub fn job(&self, rank: usize, seed: u64) -> Settings {
        let hidden = self.background.clone().unwrap_or_else(|| vec![64]);
        Settings { hidden, batch: self.background_batch, seed: seed.wrapping_add(rank as u64) }
    }

    /// What the predictor is asked for.
    pub fn wanted(&self) -> Option<BackgroundSettings> {
        let slow_down_limit = self.slow_down_limit.ratio();
        self.background.is_some().then_some(BackgroundSettings { slow_down_limit })
    }
}

fn limit(text: &str) -> Result<Limit, String> {
    let ratio: f64 = text.parse().map_err(|error| format!("{error}"))?;
    Limit::new(ratio).map_err(|error| error.to_string())
}
