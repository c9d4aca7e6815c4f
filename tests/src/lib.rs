//! The whole system of evenstep under test: real processes, real servers, real training.
