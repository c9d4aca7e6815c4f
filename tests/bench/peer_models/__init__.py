"""Other forecasters, run on traces with the protocol of `evenstep-predictor backtest`."""
