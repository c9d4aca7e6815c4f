//! The predictor of evenstep: telemetry in, forecasts and batch allocations out, over HTTP.
