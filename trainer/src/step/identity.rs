//! Who we are: names of workers, jobs and devices.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use evenstep_agent::source::host::Host;
use evenstep_protocol::{JobId, WorkerId};
use rustix::time::{ClockId, clock_gettime};

use crate::plan::Policy;

/// `PREFIX/RANK`, by default with the host's name.
///
/// # Errors
/// The result breaks the rule for worker ids.
pub fn worker_id(prefix: Option<&str>, rank: usize) -> Result<WorkerId> {
    let prefix = prefix.map(str::to_owned).or_else(Host::name).unwrap_or_default();
    WorkerId::new(format!("{prefix}/{rank}")).context("name the worker with --worker-id")
}

/// A job id that no other run has.
///
/// # Errors
/// The clock stands before 1970.
#[expect(clippy::disallowed_methods, reason = "a run begins once, and its name tells when")]
pub fn default_job_id() -> Result<JobId> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock stands before 1970")?;
    Ok(JobId::new(format!("train-{}-{}", since.as_secs(), std::process::id()))?)
}

/// The job of a run under one policy that asks: a run is one job, but where it is forecast only, whose job is of its own, so
/// that both can take turns.
///
/// # Errors
/// The result breaks the rule for job ids.
pub fn job_of(policy: Policy, run: &JobId) -> Result<JobId> {
    match policy {
        Policy::Even | Policy::Evenstep => Ok(run.clone()),
        Policy::Base => {
            JobId::new(format!("{run}-base")).context("the job of the policy base; name a shorter --job")
        }
    }
}

/// The name of one life of a worker process: one that the launcher started, or one that was started by hand.
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
