//! Patterns of job IDs.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use evenstep_protocol::JobId;

/// The jobs of a token: all jobs (`*`), jobs with a prefix such as a team (`team-a/*`), or one job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobPattern {
    start: Arc<str>,
    is_prefix: bool,
}

impl JobPattern {
    /// All jobs.
    pub fn all() -> Self {
        Self { start: "".into(), is_prefix: true }
    }

    /// Whether it includes all jobs.
    pub fn is_all(&self) -> bool {
        self.is_prefix && self.start.is_empty()
    }

    /// Whether it includes this job.
    pub fn includes(&self, job_id: &JobId) -> bool {
        if self.is_prefix {
            job_id.as_str().starts_with(&*self.start)
        } else {
            job_id.as_str() == &*self.start
        }
    }
}

impl FromStr for JobPattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (start, is_prefix) = text.strip_suffix('*').map_or((text, false), |start| (start, true));
        // A prefix of a job ID that ends with a slash is one that a letter completes.
        let completed = if is_prefix { format!("{start}a") } else { start.to_owned() };
        match JobId::new(completed) {
            Ok(_) => Ok(Self { start: start.into(), is_prefix }),
            Err(_) => Err(format!(
                "{text:?} must be *, a job ID, or the beginning of job IDs and *, such as team-a/*"
            )),
        }
    }
}

impl fmt::Display for JobPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.start, if self.is_prefix { "*" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_include_their_jobs_only() {
        let includes = |pattern: &str, job: &str| {
            let pattern: JobPattern = pattern.parse().unwrap();
            pattern.includes(&JobId::new(job).unwrap())
        };
        assert!(includes("*", "job") && includes("*", "team-a/job"));
        assert!(includes("team-a/*", "team-a/job"));
        for other in ["team-b/job", "team-a", "team-ab/job"] {
            assert!(!includes("team-a/*", other), "{other}");
        }
        assert!(includes("job-*", "job-7") && !includes("job-*", "jobs"));
        assert!(includes("job", "job") && !includes("job", "job-7"));
    }

    #[test]
    fn patterns_are_printed_as_they_are_given() {
        for text in ["*", "team-a/*", "job-*", "team-a/job", "job"] {
            assert_eq!(text.parse::<JobPattern>().unwrap().to_string(), text);
        }
        for bad in ["", "/*", "a b*", "a*b", "**", "team-a/b/*", "-*", "team-a/"] {
            let error = bad.parse::<JobPattern>().unwrap_err();
            assert!(error.contains(&format!("{bad:?}")) && error.contains("team-a/*"), "{error}");
        }
    }
}
