//! Limits of tokens, from a file that is read again when it changes, and their use.
//!
//! - `file`: the limits
//! - `bucket`: rates
//! - `used`: the use of limits by a token

mod bucket;
mod file;
mod used;

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use evenstep_observability::metrics::Family;
use evenstep_observability::metrics::prometheus::proto::MetricFamily;
use evenstep_protocol::JobId;

use super::caller::Caller;
use file::LimitsFile;
pub use file::{Limit, TokenLimits};
pub use used::{Turn, Used};

/// The limits of all tokens.
#[derive(Debug, Default)]
pub struct Limits {
    path: Option<PathBuf>,
    current: Mutex<Arc<LimitsFile>>,
    /// The contents in use, or those that cannot be used.
    seen: Mutex<Option<Contents>>,
    /// The contents of the last reading.
    latest: Mutex<Option<Contents>>,
    /// By token. Only valid tokens have an entry, so their number is limited.
    used: Mutex<HashMap<Arc<str>, Arc<Used>>>,
    reloads: AtomicU64,
    failed_reloads: AtomicU64,
}

/// The contents of the file, or the error of reading it.
type Contents = Result<Vec<u8>, String>;

/// A rate that a request would exceed.
#[derive(Debug, Clone, PartialEq)]
pub struct TooFast {
    /// The limit.
    pub limit: Limit,
    /// The token.
    pub token_id: Arc<str>,
    /// The highest rate.
    pub per_s: f64,
    /// The time after which the request is accepted, if the token sends no other.
    pub wait: Duration,
}

impl Limits {
    /// Reads a file. Without one, no token has limits.
    ///
    /// # Errors
    /// A message that names the file, the value and the rule.
    pub fn load(path: Option<&Path>) -> Result<Self, String> {
        let Some(path) = path else { return Ok(Self::default()) };
        let contents = file::read(path);
        let current = parse(&contents).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self {
            path: Some(path.to_owned()),
            current: Mutex::new(Arc::new(current)),
            seen: Mutex::new(Some(contents)),
            ..Self::default()
        })
    }

    /// Whether a file has the limits.
    pub fn has_file(&self) -> bool {
        self.path.is_some()
    }

    /// Reads the file again. A valid change that the last call found too replaces all limits; after any other, they remain in
    /// use.
    pub fn reload(&self) {
        let Some(path) = &self.path else { return };
        let contents = file::read(path);
        let before = lock(&self.latest).replace(contents.clone());
        let mut seen = lock(&self.seen);
        // A file that is being written is empty or has a part of the limits. The next call finds all of it.
        if seen.as_ref() == Some(&contents) || before.as_ref() != Some(&contents) {
            return;
        }
        match parse(&contents) {
            Ok(limits) => {
                *lock(&self.current) = Arc::new(limits);
                self.reloads.fetch_add(1, Ordering::Relaxed);
                tracing::info!(file = %path.display(), "new limits are in use");
            }
            Err(error) => {
                self.failed_reloads.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(file = %path.display(), error, "new limits cannot be used; the previous ones stay in use");
            }
        }
        *seen = Some(contents);
    }

    /// Reports a reading that does not end.
    pub fn hangs(&self) {
        self.failed_reloads.fetch_add(1, Ordering::Relaxed);
        let file = self.path.as_deref().unwrap_or(Path::new("")).display();
        tracing::warn!(
            %file,
            "reading the limits hangs, as on a file system that does not respond; those in use stay until it ends"
        );
    }

    /// Counts a request of a token.
    ///
    /// # Errors
    /// The token sends too many. The request does not count then.
    pub fn request(&self, caller: &Caller, now: Instant) -> Result<(), TooFast> {
        self.take(caller, Limit::Requests, 1.0, now)
    }

    /// Counts a body of telemetry. A body of unknown length has 0 bytes here, and the caller counts its parts with
    /// [`Used::arrived`].
    ///
    /// # Errors
    /// The token sends too many bytes. The body does not count then.
    pub fn telemetry(&self, caller: &Caller, bytes: u64, now: Instant) -> Result<(), TooFast> {
        self.take(caller, Limit::TelemetryBytes, bytes as f64, now)
    }

    fn take(&self, caller: &Caller, limit: Limit, cost: f64, now: Instant) -> Result<(), TooFast> {
        let Some(used) = self.used(caller) else { return Ok(()) };
        let Some(per_s) = self.of(used.token_id()).get(limit) else { return Ok(()) };
        used.take(limit, cost, per_s, now).map_err(|wait| TooFast {
            limit,
            token_id: used.token_id().clone(),
            per_s,
            wait,
        })
    }

    /// The use of the client's token; `None` without a token or without limits.
    pub fn used(&self, caller: &Caller) -> Option<Arc<Used>> {
        let token_id = caller.token_id().filter(|_| self.has_file())?;
        let limits = self.of(token_id);
        if limits == TokenLimits::default() {
            return None;
        }
        let mut all = lock(&self.used);
        if let Some(used) = all.get(token_id) {
            return Some(used.clone());
        }
        let used = Arc::new(Used::new(token_id.into(), caller.jobs().clone()));
        all.insert(used.token_id().clone(), used.clone());
        Some(used)
    }

    /// The limits of a token.
    pub fn of(&self, token_id: &str) -> TokenLimits {
        lock(&self.current).of(token_id)
    }

    /// Whether the number of jobs or workers is limited.
    pub fn count_jobs(&self) -> bool {
        let current = lock(&self.current);
        current.has(Limit::Jobs) || current.has(Limit::Workers)
    }

    /// Sets the numbers of jobs and live workers of each token in the metrics.
    pub fn counted(&self, workers: &[(JobId, u64)]) {
        let all: Vec<Arc<Used>> = lock(&self.used).values().cloned().collect();
        // Tokens of a team have the same pattern.
        let mut by_pattern = HashMap::new();
        for used in all {
            let pattern = used.jobs();
            let counts =
                by_pattern.entry(pattern.to_string()).or_insert_with(|| used::count(pattern, workers));
            used.holds(*counts);
        }
    }

    /// Forgets the tokens that no longer exist.
    pub fn keep(&self, exists: impl Fn(&str) -> bool) {
        lock(&self.used).retain(|token_id, _| exists(token_id));
    }

    /// The metric families.
    pub fn families(&self) -> Vec<MetricFamily> {
        if !self.has_file() {
            return Vec::new();
        }
        let current = lock(&self.current).clone();
        let used: Vec<Arc<Used>> = lock(&self.used).values().cloned().collect();
        let mut limits = Family::gauge("evenstep_token_limit", "Limit of a token.");
        let mut held = Family::gauge("evenstep_token_used", "Jobs and live workers that count for a token.");
        let mut spent = Family::counter("evenstep_token_used_total", "Requests and bytes of a token.");
        let mut refused = Family::counter("evenstep_token_refusals_total", "Requests beyond a limit.");
        let seen = used.iter().map(|used| &**used.token_id());
        for token in current.names().chain(seen).collect::<BTreeSet<_>>() {
            let of_token = current.of(token);
            for limit in Limit::ALL {
                if let Some(value) = of_token.get(limit) {
                    limits.add([("token", token), ("limit", limit.name())], value);
                }
            }
        }
        for used in &used {
            let (token, of_token) = (used.token_id(), current.of(used.token_id()));
            for limit in Limit::ALL.into_iter().filter(|limit| of_token.get(*limit).is_some()) {
                let labels = [("token", &**token), ("limit", limit.name())];
                let family = if limit.is_rate() { &mut spent } else { &mut held };
                let counts = used.counts(limit);
                family.add(labels, counts.used);
                refused.add(labels, counts.refused as f64);
            }
        }
        let mut reloads = Family::counter("evenstep_limits_reloads_total", "Changes of the file of limits.");
        reloads.add([("outcome", "loaded")], self.reloads.load(Ordering::Relaxed) as f64);
        reloads.add([("outcome", "failed")], self.failed_reloads.load(Ordering::Relaxed) as f64);
        [limits, held, spent, refused, reloads].into_iter().filter_map(Family::done).collect()
    }
}

fn parse(contents: &Contents) -> Result<LimitsFile, String> {
    LimitsFile::parse(contents.as_ref().map_err(Clone::clone)?)
}

/// Every change leaves the value valid, so a panic of another thread does no harm.
fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}
