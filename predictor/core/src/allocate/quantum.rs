//! A split whose bounds were checked.

use super::worker::Share;

/// The bounds cannot hold the total.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{total} samples over {workers} workers: floors take {floors}, caps hold {}", caps_in_words(*.caps))]
pub struct Infeasible {
    /// What was to be split.
    pub total: u64,
    /// Over how many workers.
    pub workers: usize,
    /// The floors together, in multiples of the quantum.
    pub floors: u64,
    /// The caps together, in multiples of the quantum; `None` where some worker has no cap.
    pub caps: Option<u64>,
}

fn caps_in_words(caps: Option<u64>) -> String {
    caps.map_or_else(|| "any number".into(), |caps| caps.to_string())
}

/// Workers and their bounds: floors and caps are multiples of the quantum and hold the total.
pub(super) struct Problem<'a> {
    pub shares: &'a [Share],
    pub floors: Vec<u64>,
    pub caps: Vec<u64>,
    /// What is to be split, in whole quanta.
    pub whole: u64,
    /// What the total has beyond them.
    pub remainder: u64,
    pub quantum: u64,
}

impl<'a> Problem<'a> {
    pub fn new(shares: &'a [Share], total: u64, quantum: u64) -> Result<Self, Infeasible> {
        let quantum = quantum.max(1);
        let remainder = total % quantum;
        // Thousands of divisions by 1 are worth leaving out.
        let up = |samples: u64| {
            if quantum == 1 { samples } else { samples.div_ceil(quantum).saturating_mul(quantum) }
        };
        let floor = |share: &Share| up(share.floor);
        let floors: Vec<u64> = shares.iter().map(floor).collect();
        let capped = |share: &Share| share.cap.map(|cap| whole_quanta(cap, quantum));
        let caps: Vec<u64> = shares.iter().map(|share| capped(share).unwrap_or(u64::MAX)).collect();
        let infeasible = Infeasible {
            total,
            workers: shares.len(),
            floors: floors.iter().fold(0u64, |sum, floor| sum.saturating_add(*floor)),
            caps: shares.iter().try_fold(0u64, |sum, share| Some(sum.saturating_add(capped(share)?))),
        };
        // One worker more than full by less than a quantum would pass its cap, so the remainder needs a quantum free.
        let whole = total - remainder;
        let needed = whole.saturating_add(if remainder > 0 { quantum } else { 0 });
        let crossed = floors.iter().zip(&caps).any(|(floor, cap)| floor > cap);
        let held = infeasible.caps.is_none_or(|caps| caps >= needed);
        if shares.is_empty() || crossed || infeasible.floors > total || !held {
            return Err(infeasible);
        }
        // A cap beyond the total says nothing, and short caps keep the search short.
        let caps = caps.iter().map(|cap| (*cap).min(needed)).collect();
        Ok(Self { shares, floors, caps, whole, remainder, quantum })
    }

    /// The most whole quanta that worker `i` can do by `time_s`, in samples; its floor at least.
    pub fn most(&self, i: usize, time_s: f64) -> u64 {
        let most = self.shares[i].batch_within(time_s, self.caps[i]);
        whole_quanta(most, self.quantum).max(self.floors[i])
    }

    /// Gives the remainder to whoever finishes it first: the smaller batch, then the lower rank, where they tie.
    ///
    /// Exact on top of an optimal split of the whole quanta: either some worker can take a remainder within that
    /// split's finish time, or every further quantum, and with it every other split, ends later than this.
    pub fn add_remainder(&self, batches: &mut [u64]) {
        if self.remainder == 0 {
            return;
        }
        let room = (0..batches.len()).filter(|i| batches[*i] + self.quantum <= self.caps[*i]);
        let finish_s = |i: usize| self.shares[i].finish_s(batches[i] + self.remainder);
        let first = room
            .map(|i| (finish_s(i), batches[i], i))
            .min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2)));
        if let Some((_, _, i)) = first {
            batches[i] += self.remainder;
        }
    }
}

fn whole_quanta(samples: u64, quantum: u64) -> u64 {
    if quantum == 1 { samples } else { samples - samples % quantum }
}
