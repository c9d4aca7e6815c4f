//! The long words of `--help`.

use std::fmt::Write;

use evenstep_core::forecast::EXPERT_NAMES;

use crate::backtest::models::{DEFAULT_MODELS, MIX_NAMES};
use crate::backtest::recipes::RecipeName;

/// What the command does.
pub const LONG_ABOUT: &str = "\
Judge forecasters on recorded traces: error, interval, and the step time they would have given.

Rolling origin: each model walks through a trace row by row. It forecasts a row from what was known before it, then sees
it. Rows after the warm-up count. Besides errors (rmse, mae, mape, rrse, nmse; /last is rmse over that of the last value)
and intervals (coverage, width) it says what matters: how long steps would have taken, over an oracle's that knows each
speed, had the global batch been split by these forecasts. The series of all traces take part as workers, row by row, cut to
the shortest; where tables hold several workers (--id), each table is a job of its own. Steps after the warm-up of the
shortest series count: the mean step over the oracle's mean, and the ratio that 95 % of the steps stay under.

System identification (--train, --test): batch models are fitted to some rows and predict others, one step ahead or on
their own predictions (--free-run).

Traces of our own need no flags for their columns. Drivers are what was known just before the row's iteration; columns named
truth_* are never inputs. Exit status: 0 done, 1 the data cannot be used, 2 the command line cannot.";

/// How it is called.
pub const EXAMPLES: &str = "\
Examples:
  Two traces of our own, a page with charts, and JSON for scripts:
    evenstep-predictor backtest --trace steady.csv bursty.csv --models last,ema_0.3,mix --report out.html --json out.json

  A long table of several workers that holds times:
    evenstep-predictor backtest --trace job.csv --id worker --time time --target-time batch_time --models last,mix

  A benchmark of system identification, free run:
    evenstep-predictor backtest --trace SNLS80mV.csv --target V2 --drivers V1 --train 40650..105712 --test 105712..127400 \\
        --lags-y 8 --lags-u 8 --models arx --free-run --skip 50";

/// The models there are.
pub fn models() -> String {
    let recipes = RecipeName::ALL.map(RecipeName::as_str).join(", ");
    let mut text = format!("Models to compare: {EXPERT_NAMES}, {MIX_NAMES}; batch models: {recipes}.");
    // Writing to a string cannot fail.
    let _ = write!(text, " With --train or --test: last, arx (by least squares), {recipes}.");
    let _ = write!(text, " [default: {}; with --train or --test: last,arx]", DEFAULT_MODELS.join(","));
    text
}

/// Of `--id`.
pub const ID: &str = "The worker that a row belongs to, in a table of several [default: worker, where there is such a \
column; none with --train or --test]";

/// Of `--drivers`.
pub const DRIVERS: &str = "Inputs known before the row: COLUMN or sign(COLUMN); empty for none [default: every other column, \
except iter, iter_ms, speed, truth_* and those without a name; none with --train or --test]";
