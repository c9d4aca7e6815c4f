//! The training loop of evenstep: data-parallel training over libtorch that asks for its batches.
