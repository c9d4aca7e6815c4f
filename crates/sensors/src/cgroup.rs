//! Limits and pressure of the cgroup of a process, of versions 1 and 2: CPU quota and throttling, memory limit, and
//! waiting for cores.
//!
//! A limit of an ancestor also limits the process, so each reading covers the cgroup and its ancestors up to the root of
//! the mount. In a container with its own cgroup namespace, this root is the container's cgroup.

mod mounts;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use evenstep_protocol::driver;

use crate::counter::{Counter, Lookback, TICK_LOOKBACK, rate};
use crate::procfs::{ProcFile, pressure_total};
use crate::{MissingReason, Reading};
use mounts::{Hierarchy, Mounts, Version};

/// Maximum number of cgroups from the cgroup of a process to the root.
const LEVELS_MAX: usize = 32;
/// Version 1 reports a cgroup without a memory limit as a limit above this one.
const NO_LIMIT_BYTES: u64 = 1 << 62;
/// Microseconds per second.
const US_PER_S: f64 = 1e6;

/// Reader of the cgroup of a process.
#[derive(Debug)]
pub(crate) struct Cgroup {
    /// Lists the cgroup of the process in each hierarchy.
    membership: ProcFile,
    mountinfo: PathBuf,
    /// The text for which the files below were found.
    known: Option<String>,
    cpu: Result<Levels<CpuLevel>, MissingReason>,
    memory: Result<Levels<MemoryLevel>, MissingReason>,
    pressure: Result<ProcFile, MissingReason>,
    waited_us: Counter,
}

impl Cgroup {
    /// Names of all readings.
    pub(crate) const NAMES: [&str; 6] = [
        driver::CGROUP_CPU_LIMIT,
        driver::CGROUP_CPU_THROTTLED,
        driver::CGROUP_PSI_CPU_SOME,
        driver::CGROUP_MEMORY_USED,
        "cgroup_memory_bytes",
        "cgroup_memory_limit_bytes",
    ];

    /// Creates a reader for the process with this id.
    pub(crate) fn new(pid: u32) -> Self {
        Self::at(format!("/proc/{pid}/cgroup").into(), "/proc/self/mountinfo".into())
    }

    fn at(membership: PathBuf, mountinfo: PathBuf) -> Self {
        Self {
            membership: ProcFile::new(membership),
            mountinfo,
            known: None,
            cpu: Err(MissingReason::First),
            memory: Err(MissingReason::First),
            pressure: Err(MissingReason::First),
            waited_us: Counter::default(),
        }
    }

    /// Reads the cgroup. The share of waiting covers the window; the share of throttled periods covers the time since the
    /// last call, at least two periods. Files stay open if `keep_open` is true.
    pub(crate) fn read(
        &mut self,
        now: Instant,
        window_s: &Result<f64, MissingReason>,
        keep_open: bool,
    ) -> Reading {
        let mut reading = Reading::default();
        if let Err(gap) = self.find() {
            self.known = None;
            return Reading::gap(&Self::NAMES, &gap);
        }
        self.read_cpu(now, &mut reading);
        self.read_memory(&mut reading);
        self.read_pressure(window_s, &mut reading);
        if !keep_open {
            self.close();
        }
        reading
    }

    /// Finds the files, unless they are known for the cgroups in which the process is now.
    fn find(&mut self) -> Result<(), MissingReason> {
        let text = self.membership.read()?;
        if self.known.as_deref() == Some(text) {
            return Ok(());
        }
        let mounts = Mounts::read(&self.mountinfo)?;
        let text = text.to_owned();
        self.cpu = mounts.hierarchy("cpu", &text).and_then(|found| Levels::of(found, CpuLevel::new));
        self.memory = mounts.hierarchy("memory", &text).and_then(|found| Levels::of(found, MemoryLevel::new));
        // Version 1 has no pressure, but version 2 may be mounted too.
        let unified = mounts.unified(&text);
        self.pressure = unified.map(|found| ProcFile::new(found.directory.join("cpu.pressure")));
        self.waited_us = Counter::default();
        self.known = Some(text);
        Ok(())
    }

    fn read_cpu(&mut self, now: Instant, reading: &mut Reading) {
        let limits = limits(&mut self.cpu, "CPU", |level| level.read(now));
        let cores = limits.iter().flatten().map(|limit| limit.cores).reduce(f64::min);
        let throttled =
            limits.iter().flatten().filter_map(|limit| limit.throttled.clone().ok()).reduce(f64::max);
        let first = limits.and_then(|limits| limits.into_iter().next().ok_or(MissingReason::First));
        reading.put(driver::CGROUP_CPU_LIMIT, first.clone().map(|limit| cores.unwrap_or(limit.cores)));
        reading
            .put(driver::CGROUP_CPU_THROTTLED, first.and_then(|limit| throttled.map_or(limit.throttled, Ok)));
    }

    fn read_memory(&mut self, reading: &mut Reading) {
        let limits = limits(&mut self.memory, "memory", MemoryLevel::read);
        let used = |limit: &MemoryLimit| limit.bytes as f64 / limit.bytes_max as f64;
        let fullest = limits.clone().map(|limits| limits.iter().map(used).fold(0.0, f64::max));
        let tightest = limits.and_then(|limits| {
            limits.into_iter().min_by_key(|limit| limit.bytes_max).ok_or(MissingReason::First)
        });
        reading.put(driver::CGROUP_MEMORY_USED, fullest);
        reading.put("cgroup_memory_bytes", tightest.clone().map(|limit| limit.bytes as f64));
        reading.put("cgroup_memory_limit_bytes", tightest.map(|limit| limit.bytes_max as f64));
    }

    fn read_pressure(&mut self, window_s: &Result<f64, MissingReason>, reading: &mut Reading) {
        let waited_us = self.pressure.as_mut().map_err(|gap| gap.clone()).and_then(|file| {
            let waited_us = pressure_total(file.read()?, "some");
            waited_us.ok_or_else(|| file.unexpected("some total"))
        });
        let share =
            rate(self.waited_us.advance_or_reset(waited_us), window_s).map(|us| (us / US_PER_S).min(1.0));
        reading.put(driver::CGROUP_PSI_CPU_SOME, share);
    }

    fn close(&mut self) {
        self.membership.close();
        for level in self.cpu.iter_mut().flat_map(|found| &mut found.levels) {
            level.quota.close();
            level.period.iter_mut().for_each(ProcFile::close);
            level.stat.close();
        }
        for level in self.memory.iter_mut().flat_map(|found| &mut found.levels) {
            level.limit.close();
            level.current.close();
        }
        if let Ok(file) = &mut self.pressure {
            file.close();
        }
    }
}

/// Readers of a cgroup and its ancestors.
#[derive(Debug)]
struct Levels<T> {
    directory: PathBuf,
    /// The innermost first.
    levels: Vec<T>,
}

impl<T> Levels<T> {
    fn of(found: Hierarchy, new: impl Fn(&Path, Version) -> T) -> Result<Self, MissingReason> {
        let Hierarchy { version, mount_point, directory } = found;
        let all = directory.ancestors().take_while(|level| level.starts_with(&mount_point));
        let levels: Vec<T> = all.take(LEVELS_MAX + 1).map(|level| new(level, version)).collect();
        if levels.len() > LEVELS_MAX {
            let path = directory.display();
            return Err(MissingReason::Unsupported(format!("{path} is more than {LEVELS_MAX} cgroups deep")));
        }
        Ok(Self { directory, levels })
    }
}

/// Reads the limits of a cgroup and its ancestors; at least one.
fn limits<L, T>(
    found: &mut Result<Levels<L>, MissingReason>,
    of: &str,
    mut read: impl FnMut(&mut L) -> Result<Option<T>, MissingReason>,
) -> Result<Vec<T>, MissingReason> {
    let Levels { directory, levels } = found.as_mut().map_err(|gap| gap.clone())?;
    let limits = levels.iter_mut().filter_map(|level| read(level).transpose());
    let limits = limits.collect::<Result<Vec<T>, _>>()?;
    let path = directory.display();
    match limits.is_empty() {
        false => Ok(limits),
        true if directory.exists() => Err(MissingReason::Unsupported(format!("{path} has no {of} limit"))),
        true => Err(MissingReason::PathNotFound { path: path.to_string() }),
    }
}

/// Returns the text of a file, or `None` if the cgroup does not have it: the root has no limits, nor has a cgroup whose
/// controller is not enabled.
fn text(file: &mut ProcFile) -> Result<Option<&str>, MissingReason> {
    match file.read() {
        Ok(text) => Ok(Some(text.trim())),
        Err(MissingReason::PathNotFound { .. }) => Ok(None),
        Err(gap) => Err(gap),
    }
}

/// The CPU quota of one cgroup.
#[derive(Debug)]
struct CpuLevel {
    quota: ProcFile,
    /// The file of the period. Version 2 has both in one file.
    period: Option<ProcFile>,
    stat: ProcFile,
    periods: Lookback<Periods>,
}

#[derive(Debug, Clone)]
struct CpuLimit {
    cores: f64,
    throttled: Result<f64, MissingReason>,
}

/// Numbers of periods since the cgroup was created.
#[derive(Debug, Clone, Copy)]
struct Periods {
    all: u64,
    throttled: u64,
}

impl CpuLevel {
    fn new(directory: &Path, version: Version) -> Self {
        let file = |name: &str| ProcFile::new(directory.join(name));
        let (quota, period) = match version {
            Version::V1 => (file("cpu.cfs_quota_us"), Some(file("cpu.cfs_period_us"))),
            Version::V2 => (file("cpu.max"), None),
        };
        Self { quota, period, stat: file("cpu.stat"), periods: Lookback::default() }
    }

    /// Returns the limit; `None` if the cgroup has no limit.
    fn read(&mut self, now: Instant) -> Result<Option<CpuLimit>, MissingReason> {
        let Some(text) = text(&mut self.quota)? else { return Ok(None) };
        let mut fields = text.split_ascii_whitespace();
        let quota = fields.next().unwrap_or_default();
        if quota == "max" || quota == "-1" {
            self.periods.forget();
            return Ok(None);
        }
        let quota_us: Option<u64> = quota.parse().ok();
        let period_us = match &mut self.period {
            Some(file) => file.read()?.trim().parse().ok(),
            None => fields.next().and_then(|period| period.parse().ok()),
        };
        let period_us: u64 = period_us.filter(|us| *us > 0).ok_or_else(|| self.quota.unexpected("period"))?;
        let quota_us = quota_us.ok_or_else(|| self.quota.unexpected("quota"))?;
        let throttled = self.read_throttled(now, Duration::from_micros(period_us));
        Ok(Some(CpuLimit { cores: quota_us as f64 / period_us as f64, throttled }))
    }

    /// Returns the share of the periods in which the cgroup was throttled, over at least two periods.
    fn read_throttled(&mut self, now: Instant, period: Duration) -> Result<f64, MissingReason> {
        let periods = self.stat.read().map(Periods::parse);
        let Some(periods) = periods.inspect_err(|_| self.periods.forget())? else {
            self.periods.forget();
            return Err(self.stat.unexpected("nr_periods and nr_throttled"));
        };
        let (_, then) = self.periods.advance_over(now, periods, TICK_LOOKBACK.max(2 * period))?;
        let fallen = || MissingReason::CounterDecreased;
        let all = periods.all.checked_sub(then.all).ok_or_else(fallen)?;
        let throttled = periods.throttled.checked_sub(then.throttled).ok_or_else(fallen)?;
        // The kernel does not count periods while the cgroup is idle.
        Ok(if all == 0 { 0.0 } else { (throttled as f64 / all as f64).min(1.0) })
    }
}

impl Periods {
    fn parse(text: &str) -> Option<Self> {
        let value = |name: &str| {
            let mut fields = text.lines().map(|line| line.split_once(' '));
            fields.find_map(|field| field.filter(|(known, _)| *known == name))?.1.trim().parse().ok()
        };
        Some(Self { all: value("nr_periods")?, throttled: value("nr_throttled")? })
    }
}

/// The memory limit of one cgroup.
#[derive(Debug)]
struct MemoryLevel {
    limit: ProcFile,
    current: ProcFile,
}

#[derive(Debug, Clone)]
struct MemoryLimit {
    bytes: u64,
    bytes_max: u64,
}

impl MemoryLevel {
    fn new(directory: &Path, version: Version) -> Self {
        let file = |name: &str| ProcFile::new(directory.join(name));
        let (limit, current) = match version {
            Version::V1 => (file("memory.limit_in_bytes"), file("memory.usage_in_bytes")),
            Version::V2 => (file("memory.max"), file("memory.current")),
        };
        Self { limit, current }
    }

    /// Returns the limit; `None` if the cgroup has no limit.
    fn read(&mut self) -> Result<Option<MemoryLimit>, MissingReason> {
        let Some(text) = text(&mut self.limit)? else { return Ok(None) };
        if text == "max" {
            return Ok(None);
        }
        let bytes_max: Option<u64> = text.parse().ok();
        let bytes_max = bytes_max.ok_or_else(|| self.limit.unexpected("limit in bytes"))?;
        if bytes_max >= NO_LIMIT_BYTES {
            return Ok(None);
        }
        let bytes: Option<u64> = self.current.read()?.trim().parse().ok();
        let bytes = bytes.ok_or_else(|| self.current.unexpected("bytes"))?;
        Ok(Some(MemoryLimit { bytes, bytes_max: bytes_max.max(1) }))
    }
}

#[cfg(test)]
mod tests;
