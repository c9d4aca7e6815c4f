//! Names of workers, jobs and devices.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use evenstep_protocol::{JobId, WorkerId};
use evenstep_sensors::host::Host;
use rustix::time::{ClockId, clock_gettime};

use crate::plan::Policy;

/// Returns `PREFIX/RANK`; the prefix is the host name by default.
///
/// # Errors
/// The result is not a valid worker id.
pub fn worker_id(prefix: Option<&str>, rank: usize) -> Result<WorkerId> {
    let prefix = prefix.map(str::to_owned).or_else(Host::name).unwrap_or_default();
    WorkerId::new(format!("{prefix}/{rank}"))
        .context("no valid worker id; set a valid prefix with --worker-id")
}

/// Returns a unique job id.
///
/// # Errors
/// The system clock is before 1970.
#[expect(clippy::disallowed_methods, reason = "a job id is made once per run and contains the time")]
pub fn default_job_id() -> Result<JobId> {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .context("the system clock is before 1970; set it, or set --job")?;
    Ok(JobId::new(format!("train-{}-{}", since.as_secs(), std::process::id()))?)
}

/// Returns the job id of a policy that queries the predictor. The policy `base` has a separate job, so that
/// both policies can alternate in one run.
///
/// # Errors
/// The result is not a valid job id.
pub fn job_of(policy: Policy, run: &JobId) -> Result<JobId> {
    match policy {
        Policy::Even | Policy::Evenstep => Ok(run.clone()),
        Policy::Base => {
            JobId::new(format!("{run}-base")).context("job id of the policy base; set a shorter --job")
        }
    }
}

/// Returns the token of one life of a worker process, started by the launcher or by hand.
pub fn life_token(own: &WorkerId, slot: usize, life: Option<u32>) -> String {
    match life {
        Some(life) => format!("{slot}.{life}"),
        None => {
            let now = clock_gettime(ClockId::Monotonic);
            format!("{own}.{}.{}.{:09}", std::process::id(), now.tv_sec, now.tv_nsec)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_base_has_a_job_beside_that_of_the_run() {
        let run = JobId::new("run").unwrap();
        let job = |policy| job_of(policy, &run).unwrap().to_string();
        assert_eq!([Policy::Base, Policy::Evenstep].map(job), ["run-base", "run"]);
        let long = (1..).map(|length| JobId::new("x".repeat(length))).take_while(Result::is_ok).last();
        assert!(job_of(Policy::Base, &long.unwrap().unwrap()).is_err());
    }
}
