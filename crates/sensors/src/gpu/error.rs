//! Errors of NVML as reasons of missing readings.

use nvml_wrapper::error::NvmlError;

use crate::MissingReason;

impl From<NvmlError> for MissingReason {
    fn from(error: NvmlError) -> Self {
        let text = format!("NVML: {error}");
        match error {
            NvmlError::GpuLost | NvmlError::ResetRequired => Self::Lost(text),
            NvmlError::NoPermission | NvmlError::OperatingSystem => Self::NoPermission(text),
            NvmlError::NotSupported
            | NvmlError::FailedToLoadSymbol(_)
            | NvmlError::FunctionNotFound
            | NvmlError::NoData => Self::Unsupported(format!("unsupported: {text}")),
            NvmlError::Timeout => Self::TimedOut { source_name: "gpu" },
            _ => Self::Driver(text),
        }
    }
}

/// Returns why a known GPU was not found.
pub(super) fn not_found(error: NvmlError) -> MissingReason {
    match error {
        // NVML returns these errors for a GPU that has been removed.
        NvmlError::NotFound | NvmlError::InvalidArg => MissingReason::Lost(format!("NVML: {error}")),
        _ => error.into(),
    }
}
