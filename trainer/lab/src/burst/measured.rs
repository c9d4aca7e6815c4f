//! Layer times over many iterations.

use super::watch::{Phase, PhaseInterval};
use evenstep_trainer::progress::statistics::quantile;

/// The times of a layer on one rank, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize)]
pub struct LayerTimes {
    /// Time of moving its activations in, and their gradients back.
    pub transfer_us: f64,
    /// Forward time; for the first layer including reading the samples.
    pub forward_us: f64,
    /// Time of backward and optimizer step.
    pub backward_us: f64,
    /// Time of summing its gradient.
    pub sum_us: f64,
}

impl LayerTimes {
    /// Returns the total time.
    pub fn all_us(&self) -> f64 {
        self.transfer_us + self.compute_us() + self.sum_us
    }

    /// Returns the time of forward, backward and step.
    pub fn compute_us(&self) -> f64 {
        self.forward_us + self.backward_us
    }
}

/// Returns the times of each layer in one iteration.
pub fn by_layer(intervals: &[PhaseInterval], layers: usize) -> Vec<LayerTimes> {
    let mut times = vec![LayerTimes::default(); layers];
    for moment in intervals {
        let Some(layer) = times.get_mut(moment.layer) else { continue };
        let us = (moment.to_s - moment.from_s) * 1e6;
        match moment.phase {
            Phase::Arrive | Phase::Return => layer.transfer_us += us,
            Phase::Load | Phase::Forward => layer.forward_us += us,
            Phase::Backward | Phase::Step => layer.backward_us += us,
            Phase::Sum => layer.sum_us += us,
        }
    }
    times
}

/// Returns the means over the middle half of the iterations, ordered by length: the shortest and the longest
/// quarter are left out.
///
/// Medians of each value separately would not add up to the median iteration. If each layer is occasionally
/// late, most iterations have a late layer.
pub fn middle(iterations: &[Vec<LayerTimes>]) -> Vec<LayerTimes> {
    let length = |times: &Vec<LayerTimes>| times.iter().map(LayerTimes::all_us).sum::<f64>();
    let mut by_length: Vec<_> = iterations.iter().map(|times| (length(times), times)).collect();
    by_length.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    let outside = by_length.len() / 4;
    let inside = by_length.get(outside..by_length.len() - outside).unwrap_or_default();
    let layers = iterations.first().map_or(0, Vec::len);
    let of = |layer: usize, figure: fn(&LayerTimes) -> f64| {
        let values = inside.iter().filter_map(|(_, times)| times.get(layer)).map(figure);
        values.sum::<f64>() / inside.len() as f64
    };
    (0..layers)
        .map(|layer| LayerTimes {
            transfer_us: of(layer, |times| times.transfer_us),
            forward_us: of(layer, |times| times.forward_us),
            backward_us: of(layer, |times| times.backward_us),
            sum_us: of(layer, |times| times.sum_us),
        })
        .collect()
}

/// Returns the median; 0 without values.
pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_layers_are_summed_by_what_was_done_and_those_of_the_middle_are_taken() {
        let moment = |layer, phase, from_ms: f64, to_ms: f64| PhaseInterval {
            layer,
            phase,
            from_s: 5.0 + from_ms / 1e3,
            to_s: 5.0 + to_ms / 1e3,
        };
        let iteration = |slow: f64| {
            let intervals = [
                moment(0, Phase::Load, 0.0, 1.0),
                moment(0, Phase::Forward, 1.0, 1.0 + slow),
                moment(1, Phase::Arrive, 4.0, 5.0),
                moment(1, Phase::Return, 5.0, 8.0),
                moment(0, Phase::Backward, 8.0, 10.0),
                moment(0, Phase::Sum, 10.0, 15.0),
                moment(0, Phase::Step, 15.0, 15.5),
            ];
            by_layer(&intervals, 2)
        };
        let rounded = |us: f64| (us * 10.0).round() / 10.0;
        // Of four iterations, the shortest and the longest are left out.
        let times = middle(&[iteration(2.0), iteration(0.5), iteration(3.0), iteration(9.0)]);
        let told = times.iter().map(|t| [t.transfer_us, t.forward_us, t.backward_us, t.sum_us].map(rounded));
        assert_eq!(told.collect::<Vec<_>>(), [[0.0, 3500.0, 2500.0, 5000.0], [4000.0, 0.0, 0.0, 0.0]]);
        assert_eq!(rounded(times[0].all_us()), 11_000.0);
        let one = iteration(1.0);
        assert_eq!(middle(std::slice::from_ref(&one)), one, "a single iteration is its own mean");
        assert_eq!(middle(&[]), []);
    }
}
