//! A narrow Rust face over libtorch's own c10d: TCPStore, Gloo and NCCL.
