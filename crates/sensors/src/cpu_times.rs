//! CPU times of `/proc/stat`, by core.

use std::collections::BTreeMap;

use crate::MissingReason;

/// Ticks by which idle time and I/O wait of a core may decrease, because the kernel rounds them.
const FALL_TICKS_MAX: u64 = 5;

/// CPU time of one core or of several since a time before, in ticks.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct CpuTimes {
    pub(crate) busy: u64,
    pub(crate) idle: u64,
    pub(crate) iowait: u64,
    pub(crate) steal: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CpuShares {
    pub(crate) busy: f64,
    pub(crate) iowait: f64,
    pub(crate) steal: f64,
}

impl CpuTimes {
    /// Parses the `cpu` line: user nice system idle iowait irq softirq steal (guest time is part of user).
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split_ascii_whitespace().skip(1).map(str::parse::<u64>);
        let mut next = || fields.next()?.ok();
        let (user, nice, system, idle, iowait, irq, softirq, steal) =
            (next()?, next()?, next()?, next()?, next()?, next()?, next()?, next()?);
        Some(Self { busy: user + nice + system + irq + softirq, idle, iowait, steal })
    }

    /// Returns the increase since `then`. Idle time and I/O wait may decrease by a few ticks; `None` after another
    /// decrease.
    fn since(self, then: Self) -> Option<Self> {
        let idle = |now: u64, then: u64| (now + FALL_TICKS_MAX >= then).then(|| now.saturating_sub(then));
        Some(Self {
            busy: self.busy.checked_sub(then.busy)?,
            idle: idle(self.idle, then.idle)?,
            iowait: idle(self.iowait, then.iowait)?,
            steal: self.steal.checked_sub(then.steal)?,
        })
    }

    /// Returns the shares of the time since `then`.
    pub(crate) fn shares_since(self, then: Self) -> Result<CpuShares, MissingReason> {
        let Self { busy, idle, iowait, steal } = self.since(then).ok_or(MissingReason::CounterDecreased)?;
        let all = busy + steal + iowait + idle;
        if all == 0 {
            return Err(MissingReason::EmptyWindow);
        }
        let share = |ticks: u64| ticks as f64 / all as f64;
        Ok(CpuShares { busy: share(busy), iowait: share(iowait), steal: share(steal) })
    }
}

/// Sums the increases of the cores that are online. The kernel's own sum falls when a core goes offline, because it counts
/// the idle time of that core differently.
#[derive(Debug, Default)]
pub(crate) struct Cores {
    last: BTreeMap<u32, CpuTimes>,
    sum: CpuTimes,
}

impl Cores {
    /// Returns the sum over all readings. `all` replaces the cores if the kernel does not list them.
    pub(crate) fn advance(
        &mut self,
        all: CpuTimes,
        mut cores: BTreeMap<u32, CpuTimes>,
    ) -> Result<CpuTimes, MissingReason> {
        if cores.is_empty() {
            cores.insert(0, all);
        }
        let last = std::mem::replace(&mut self.last, cores);
        let both = self.last.iter().filter_map(|(core, now)| Some(now.since(*last.get(core)?)));
        let rises: Vec<Option<CpuTimes>> = both.collect();
        if !rises.is_empty() && rises.iter().all(Option::is_none) {
            return Err(MissingReason::CounterDecreased);
        }
        for rise in rises.into_iter().flatten() {
            self.sum.busy += rise.busy;
            self.sum.idle += rise.idle;
            self.sum.iowait += rise.iowait;
            self.sum.steal += rise.steal;
        }
        Ok(self.sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_cpu_time_are_shares() {
        let then = CpuTimes { busy: 100, idle: 100, iowait: 10, steal: 0 };
        let now = CpuTimes { busy: 130, idle: 160, iowait: 15, steal: 5 };
        let shares = now.shares_since(then).unwrap();
        assert_eq!((shares.busy, shares.iowait, shares.steal), (0.3, 0.05, 0.05));
        assert_eq!(then.shares_since(now), Err(MissingReason::CounterDecreased));
    }
}
