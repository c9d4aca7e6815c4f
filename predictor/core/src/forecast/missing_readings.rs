//! Input scaling by running means and deviations. A missing reading is replaced by its mean, not by 0 in its
//! own unit.

use serde::{Deserialize, Serialize};

use super::inputs::{Layout, Shape};
use super::recursive_least_squares::RunningScale;

/// Scales raw inputs to deviations from their running means. A missing input gets the scaled value 0, its
/// mean.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Scaler {
    scales: Vec<RunningScale>,
}

/// The inputs of an iteration.
#[derive(Debug, Clone, Default)]
pub struct Prepared {
    /// A constant 1, followed by the scaled inputs.
    pub inputs: Vec<f64>,
    scales: Vec<RunningScale>,
}

impl RunningScale {
    /// Adds a reading, and returns it in deviations.
    fn scaled(&mut self, raw: f64, shape: &Shape) -> f64 {
        *self = self.with(raw);
        self.deviations(raw, shape.deviations_max) * shape.weight
    }
}

impl Scaler {
    /// Creates a scaler for inputs of this layout.
    pub fn new(layout: &Layout) -> Self {
        Self { scales: vec![RunningScale::default(); layout.width()] }
    }

    /// Whether a stored scaler for inputs of this layout is usable.
    pub fn is_valid(&self, layout: &Layout) -> bool {
        self.scales.len() == layout.width() && self.scales.iter().all(RunningScale::is_valid)
    }

    /// Computes the inputs of a model from raw inputs, and the scales that have learned from them.
    pub fn prepare(&self, layout: &Layout, raw: &[Option<f64>], prepared: &mut Prepared) {
        prepared.scales.clone_from(&self.scales);
        prepared.inputs.clear();
        prepared.inputs.push(1.0);
        let scales = layout.scales().iter().zip(&mut prepared.scales).zip(raw);
        let input = |((shape, scale), raw): ((&Shape, &mut RunningScale), &Option<f64>)| {
            raw.map_or(0.0, |raw| scale.scaled(raw, shape))
        };
        prepared.inputs.extend(scales.map(input));
    }

    /// Replaces a raw input.
    pub fn replace(&self, layout: &Layout, prepared: &mut Prepared, at: usize, raw: f64) {
        let shape = layout.scales().get(at).zip(self.scales.get(at));
        let place = prepared.inputs.get_mut(1 + at).zip(prepared.scales.get_mut(at));
        if let (Some((shape, scale)), Some((input, learned))) = (shape, place) {
            *learned = *scale;
            *input = learned.scaled(raw, shape);
        }
    }

    /// Learns from inputs that it prepared.
    pub fn learn_prepared(&mut self, prepared: &mut Prepared) {
        std::mem::swap(&mut self.scales, &mut prepared.scales);
    }

    /// Returns raw inputs with missing ones replaced by their means.
    pub fn filled(&self, raw: &[Option<f64>]) -> impl Iterator<Item = f64> {
        self.scales.iter().zip(raw).map(|(scale, raw)| raw.unwrap_or(scale.mean()))
    }

    /// Updates the running means with raw inputs.
    pub fn learn(&mut self, raw: &[Option<f64>]) {
        for (scale, raw) in self.scales.iter_mut().zip(raw) {
            if let Some(raw) = raw {
                *scale = scale.with(*raw);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::inputs::{History, InputGroups};
    use super::*;
    use crate::series::DriverSet;

    #[test]
    fn missing_readings_say_nothing() {
        let drivers = DriverSet::new(["own_cpu"]);
        let layout = Layout::new(InputGroups::Selected, false, &drivers);
        let mut scaler = Scaler::new(&layout);
        let mut history = History::new(1.0, 8.0);
        history.boundary(&[Some(0.5)]);
        scaler.learn(&layout.raw(&history, 0.0, 8.0));
        history.boundary(&[Some(0.7)]);
        let inputs = |history: &History| {
            let mut prepared = Prepared::default();
            scaler.prepare(&layout, &layout.raw(history, 0.0, 8.0), &mut prepared);
            prepared.inputs
        };
        let with_reading = inputs(&history);
        history.boundary(&[None]);
        let without_reading = inputs(&history);
        assert!(
            with_reading
                .iter()
                .zip(&without_reading)
                .any(|(with_reading, without_reading)| with_reading != without_reading)
        );
        assert!(without_reading.iter().all(|input| input.is_finite()));
    }
}
