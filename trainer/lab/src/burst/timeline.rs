//! The measured times of one iteration on all ranks.
//!
//! In the exchanged vector, each rank fills its own slots and the other ranks have zeros there. An all-reduce
//! sum therefore distributes all times exactly.

use super::watch::{Phase, PhaseInterval};

/// Values per phase: start and end.
const ENDS: usize = 2;

/// The phases of each rank, in seconds since the iteration began.
#[derive(Debug, Clone, PartialEq)]
pub struct Timeline(pub Vec<Vec<PhaseInterval>>);

impl Timeline {
    /// Encodes one rank's times as a vector `[rank, layer, phase, end]` with slots for all ranks. Phases
    /// that did not run stay zero.
    pub fn encode(intervals: &[PhaseInterval], rank: usize, ranks: usize, layers: usize) -> Vec<f64> {
        let own = layers * Phase::ALL.len() * ENDS;
        let mut slots = vec![0.0; ranks * own];
        for moment in intervals {
            let phase = Phase::ALL.iter().position(|&phase| phase == moment.phase).unwrap_or(0);
            let at = rank * own + (moment.layer * Phase::ALL.len() + phase) * ENDS;
            let Some([from_s, to_s]) = slots.get_mut(at..at + ENDS) else { continue };
            // The backward of the last layer has two consecutive parts.
            *from_s = if *from_s == 0.0 { moment.from_s } else { *from_s };
            *to_s = moment.to_s;
        }
        slots
    }

    /// Decodes the times of all ranks from the summed vector.
    pub fn decode(slots: &[f64], ranks: usize, layers: usize) -> Self {
        let began_s = slots.iter().copied().filter(|&at_s| at_s > 0.0).fold(f64::INFINITY, f64::min);
        let own = layers * Phase::ALL.len() * ENDS;
        let of_rank = |rank: usize| {
            let slots = slots.get(rank * own..(rank + 1) * own).unwrap_or(&[]);
            let places = (0..layers).flat_map(|layer| Phase::ALL.map(|phase| (layer, phase)));
            let intervals =
                places.zip(slots.chunks_exact(ENDS)).filter_map(|((layer, phase), ends)| match ends {
                    &[from_s, to_s] if to_s > from_s => {
                        Some(PhaseInterval { layer, phase, from_s: from_s - began_s, to_s: to_s - began_s })
                    }
                    _ => None,
                });
            let mut intervals: Vec<PhaseInterval> = intervals.collect();
            intervals.sort_by(|a, b| a.from_s.total_cmp(&b.from_s));
            intervals
        };
        Self((0..ranks).map(of_rank).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_keeps_each_ranks_result() {
        let moment = |layer, phase, from_s, to_s| PhaseInterval { layer, phase, from_s, to_s };
        let first = [moment(0, Phase::Forward, 8.0, 8.5), moment(1, Phase::Forward, 8.5, 9.0)];
        let last = [moment(1, Phase::Backward, 9.0, 9.25), moment(1, Phase::Backward, 9.25, 9.5)];
        let parts = [(0, &[&first[..], &last[..]].concat()), (2, &first[..1].to_vec())];
        let parts = parts.map(|(rank, intervals)| Timeline::encode(intervals, rank, 3, 2));
        let sum: Vec<f64> = parts[0].iter().zip(&parts[1]).map(|(one, other)| one + other).collect();
        let Timeline(ranks) = Timeline::decode(&sum, 3, 2);
        let whole = [
            moment(0, Phase::Forward, 0.0, 0.5),
            moment(1, Phase::Forward, 0.5, 1.0),
            moment(1, Phase::Backward, 1.0, 1.5),
        ];
        assert_eq!(ranks, [whole.to_vec(), vec![], whole[..1].to_vec()]);
    }
}
