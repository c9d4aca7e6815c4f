//! Candidates for a part of a plan, and the selection of the undominated ones.

/// Maximum number of candidates kept for one part between two counts. More than one is needed only if a
/// memory cap binds, or at joins whose transfers the limit includes.
pub(super) const LABELS_MAX: usize = 64;
/// The maximum under a binding memory cap.
pub(super) const CAPPED_LABELS_MAX: usize = 1024;
/// The minimum: the best candidate and the one with the least memory.
pub(super) const LABELS_MIN: usize = 2;

/// Objective of a plan, compared in this order: less time, less GPU time, fewer GPUs over all layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Value {
    pub time_fs: u128,
    pub gpu_fs: u128,
    pub gpus: u128,
}

impl Value {
    pub fn plus(self, other: Self) -> Self {
        Self {
            time_fs: self.time_fs + other.time_fs,
            gpu_fs: self.gpu_fs + other.gpu_fs,
            gpus: self.gpus + other.gpus,
        }
    }
}

/// A candidate for the part of the graph between two layers, excluding these layers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Label {
    pub value: Value,
    /// Time of the transfers into the layer at the end, which count towards its amplification.
    pub transfer_fs: u128,
    /// Memory above the minimum that the layers of this part need.
    pub memory_bytes: u128,
    /// Composition of the candidate.
    pub step: Composition,
}

/// Composition of a candidate; numbers are indices into the list of kept steps.
#[derive(Debug, Clone, Copy)]
pub(super) enum Composition {
    /// A single edge.
    Edge,
    /// Series: through a layer at a count, an index into the allowed counts.
    Through { before: u32, layer: u32, count: u32, after: u32 },
    /// Parallel: two candidates between the same nodes.
    Both(u32, u32),
    /// The kept step with this index.
    Kept(u32),
}

/// Criteria for comparing candidates, besides their value.
#[derive(Debug, Clone, Copy)]
pub(super) struct Criteria {
    /// Compare transfers: the layer at the end is a join under a limit, so further transfers may exceed it.
    pub transfer: bool,
    /// Compare memory: there is a cap.
    pub memory: bool,
}

/// Keeps up to `most` undominated candidates; `most` must be at least [`LABELS_MIN`]. Returns whether
/// undominated candidates were dropped.
pub(super) fn keep_undominated(labels: &mut Vec<Label>, matters: Criteria, most: usize) -> bool {
    let transfer = |label: &Label| if matters.transfer { label.transfer_fs } else { 0 };
    let memory = |label: &Label| if matters.memory { label.memory_bytes } else { 0 };
    let order = |label: &Label| (label.value, memory(label), transfer(label));
    if !matters.transfer && !matters.memory {
        let best = labels.iter().copied().min_by_key(order);
        labels.clear();
        labels.extend(best);
        return false;
    }
    labels.sort_by_key(order);
    let mut kept: Vec<Label> = Vec::new();
    for label in labels.drain(..) {
        // Labels are sorted by value, so every earlier one has a value at least as good.
        let dominates =
            |other: &Label| memory(other) <= memory(&label) && transfer(other) <= transfer(&label);
        if !kept.iter().rev().any(dominates) {
            kept.push(label);
        }
    }
    let dropped_candidates = kept.len() > most;
    if dropped_candidates {
        // Without the candidate of least memory, a plan that fits could be lost. Sample the rest evenly, from
        // the best on.
        let lightest = kept.iter().copied().min_by_key(|label| (memory(label), transfer(label)));
        let every = |at: usize| kept[at * kept.len() / (most - 1)];
        labels.extend((0..most - 1).map(every).chain(lightest));
    } else {
        *labels = kept;
    }
    dropped_candidates
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: Criteria = Criteria { transfer: true, memory: true };

    fn labels(all: &[(u128, u128, u128)]) -> Vec<Label> {
        let label = |&(time_fs, memory_bytes, transfer_fs): &(u128, u128, u128)| {
            let value = Value { time_fs, ..Value::default() };
            Label { value, transfer_fs, memory_bytes, step: Composition::Edge }
        };
        all.iter().map(label).collect()
    }

    fn kept(all: &[(u128, u128, u128)], matters: Criteria, most: usize) -> (Vec<u128>, bool) {
        let mut labels = labels(all);
        let dropped_candidates = keep_undominated(&mut labels, matters, most);
        (labels.iter().map(|label| label.value.time_fs).collect(), dropped_candidates)
    }

    #[test]
    fn undominated_points_are_kept() {
        let all = [(3, 1, 9), (1, 9, 5), (2, 9, 5), (4, 9, 1), (5, 1, 1), (6, 2, 2)];
        assert_eq!(kept(&all, BOTH, 9), (vec![1, 3, 4, 5], false));
        assert_eq!(kept(&all, Criteria { transfer: false, ..BOTH }, 9), (vec![1, 3], false));
        assert_eq!(kept(&all, Criteria { memory: false, ..BOTH }, 9), (vec![1, 4], false));
        assert_eq!(kept(&all, Criteria { transfer: false, memory: false }, 9), (vec![1], false));
    }

    #[test]
    fn a_pruned_front_keeps_the_fastest_and_the_lightest() {
        let all: Vec<(u128, u128, u128)> = (0..10).map(|at| (at, 10 - at, 0)).collect();
        assert_eq!(kept(&all, BOTH, 4), (vec![0, 3, 6, 9], true));
        assert_eq!(kept(&all, BOTH, LABELS_MIN), (vec![0, 9], true));
        assert_eq!(kept(&all, BOTH, 10).0.len(), 10);
    }
}
