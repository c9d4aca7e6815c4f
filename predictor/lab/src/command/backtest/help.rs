//! Long help texts of `backtest`.

use evenstep_core::forecast::EXPERT_NAMES;

use crate::backtest::models::{DEFAULT_MODELS, MIX_NAMES};

/// Description of the command.
pub const LONG_ABOUT: &str = "\
Evaluate forecasters on recorded traces: error, prediction interval and resulting step time.

Each model walks through a trace row by row. It forecasts a row from the rows before it, then sees the
actual value. Only rows after the warm-up count. The output shows errors, intervals and step times.

  errors       rmse, mae, mape, rrse, nmse; /last is the rmse divided by the rmse of the last value.
  intervals    coverage and width.
  step time    duration of a step whose global batch is split by these forecasts, divided by the duration under an
               oracle that knows each speed. Shown are the ratio of the means and the 95th percentile of the ratio.

For the step time, the series of all traces act as workers of one job. If tables hold several workers (--id), each table is a
separate job. Rows of workers belong to the same step if they have the same iteration, or the nearest time (--time), or the same
number in tables without both. Steps count if they have a row of every worker, after the warm-up of the shortest series.

Traces that evenstep wrote need no column flags. Drivers are values known just before the row's iteration. Columns named truth_*
are never inputs. Exit status: 0 success, 1 unusable data, 2 invalid command line.";

/// Examples for `--help`.
pub const EXAMPLES: &str = "\
Examples:
  Two traces that evenstep wrote, with an HTML report and JSON output.
    evenstep-predictor backtest --trace steady.csv bursty.csv --models last,ema_0.3,mix --report out.html --json out.json

  One table of several workers, with times instead of speeds.
    evenstep-predictor backtest --trace job.csv --id worker --time time --target-time batch_time --models last,mix";

/// Help text of `--models`.
pub fn models() -> String {
    format!("Models to compare: {EXPERT_NAMES}, {MIX_NAMES} [default: {}]", DEFAULT_MODELS.join(","))
}
