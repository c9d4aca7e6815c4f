"""Forecasters of other people, walked through traces as `evenstep-predictor backtest` walks its own."""
