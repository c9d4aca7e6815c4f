//! Tests of the core's public functions against independent solutions.

mod allocate_exact;
mod curve_closed_loop;
