//! The pure core of evenstep: forecasts, allocations, decisions. No I/O, no clock, no async.
