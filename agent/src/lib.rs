//! The node agent of evenstep: CPU, memory, process and NVML GPU telemetry.
