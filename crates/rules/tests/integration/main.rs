//! Tests of the cut of samples by cost: laws, golden values, and its distance from the bound.

mod cut;
mod cut_golden;
mod cut_quality;
mod draws;
