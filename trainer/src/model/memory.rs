//! Failures of forward and backward passes, and of loading samples.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use tch::TchError;

/// Parts of libtorch's messages that mean that memory ran out: allocators of CUDA and of the CPU, and cuBLAS.
const OUT_OF_MEMORY: [&str; 3] = ["out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED"];

/// Kind of work that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Loading samples onto the device.
    Load,
    /// A forward and backward pass.
    Pass,
}

/// A failure to load samples or to compute their gradients.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ComputeError {
    /// Memory ran out. Fewer samples at once may fit.
    #[error("out of memory while {work} {samples} samples: {message}")]
    OutOfMemory {
        /// Kind of work.
        work: Work,
        /// Number of samples at once.
        samples: u64,
        /// libtorch's message.
        message: String,
    },
    /// Any other failure of libtorch.
    #[error("{work} {samples} samples: {message}")]
    Failed {
        /// Kind of work.
        work: Work,
        /// Number of samples at once.
        samples: u64,
        /// libtorch's message.
        message: String,
    },
}

impl ComputeError {
    /// The device failed during a pass of `samples` samples. This is not the loss of another rank.
    pub(super) fn device(samples: u64, error: &evenstep_c10d::Error) -> Self {
        Self::Failed { work: Work::Pass, samples, message: error.to_string() }
    }
}

impl std::fmt::Display for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Load => "loading",
            Self::Pass => "computing the gradients of",
        })
    }
}

/// Runs `work` on a number of samples. Most functions of tch panic instead of returning an error, so that this function
/// also catches a panic that says that memory ran out. Other panics continue.
///
/// # Errors
/// libtorch failed. Gradients may then be partly accumulated.
pub fn attempt<T>(
    work: Work,
    samples: u64,
    body: impl FnOnce() -> Result<T, TchError>,
) -> Result<T, ComputeError> {
    // Unwind safety: only gradients can be inconsistent afterwards, and the caller computes them again or ends.
    let message = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(error)) => error.to_string(),
        Err(panic) => match message_of(&*panic).filter(|message| is_out_of_memory(message)) {
            Some(message) => message.to_owned(),
            None => resume_unwind(panic),
        },
    };
    let is_out_of_memory = is_out_of_memory(&message);
    let message = essential_part(&message).to_owned();
    Err(if is_out_of_memory {
        ComputeError::OutOfMemory { work, samples, message }
    } else {
        ComputeError::Failed { work, samples, message }
    })
}

fn message_of(panic: &(dyn Any + Send)) -> Option<&str> {
    panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied())
}

/// Returns the first line of libtorch's message, without C++ frames. A panic of tch contains the message in quotes.
fn essential_part(message: &str) -> &str {
    let quoted = message.split_once("Torch(\"").map_or(message, |(_, quoted)| quoted);
    let plain = quoted.strip_prefix("Internal torch error: ").unwrap_or(quoted);
    let line = plain.lines().next().unwrap_or_default();
    line.split("\\n").next().unwrap_or_default()
}

fn is_out_of_memory(message: &str) -> bool {
    OUT_OF_MEMORY.iter().any(|part| message.contains(part))
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::*;

    /// More bytes than an address space has: the allocator of the CPU fails at once.
    const TOO_MANY: i64 = 1 << 50;

    #[test]
    fn libtorchs_own_error_is_recognized_as_a_panic_and_as_a_value() {
        let kind = (Kind::Double, Device::Cpu);
        let panics = attempt(Work::Pass, 8, || Ok(Tensor::zeros([TOO_MANY], kind)));
        let returns = attempt(Work::Pass, 8, || Tensor::f_zeros([TOO_MANY], kind));
        for error in [panics.unwrap_err(), returns.unwrap_err()] {
            let ComputeError::OutOfMemory { work: Work::Pass, samples: 8, message } = &error else {
                panic!("{error:?}")
            };
            assert!(
                message.starts_with("[enforce fail") && message.contains("can't allocate memory"),
                "{message}"
            );
            assert!(!message.contains("frame #"), "{message}");
        }
    }

    #[test]
    fn messages_of_cuda_are_recognized() {
        for message in ["CUDA out of memory. Tried to allocate 2.00 GiB.", "CUDA error: out of memory"] {
            let error = attempt(Work::Load, 4, || Err::<(), _>(TchError::Torch(message.to_owned())));
            let error = error.unwrap_err();
            assert!(matches!(error, ComputeError::OutOfMemory { work: Work::Load, .. }), "{error:?}");
        }
    }

    #[test]
    fn other_failures_are_not_out_of_memory() {
        let error = attempt(Work::Pass, 2, || Tensor::from(1.0).f_view([2, 2]).map(drop)).unwrap_err();
        assert!(matches!(&error, ComputeError::Failed { samples: 2, .. }), "{error:?}");
        let panics = catch_unwind(|| attempt(Work::Pass, 2, || -> Result<(), TchError> { panic!("a bug") }));
        assert_eq!(message_of(&*panics.unwrap_err()), Some("a bug"));
    }
}
