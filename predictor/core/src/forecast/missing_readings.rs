//! Inputs on one scale: deviations from their running means. A missing reading enters at its mean, never as 0 of its own unit.

use serde::{Deserialize, Serialize};

use super::inputs::{Layout, Shape};
use super::recursive_least_squares::RunningScale;

/// Brings raw inputs to one scale: deviations from their running mean. A missing one enters at its mean: it says nothing.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Scaler {
    scales: Vec<RunningScale>,
}

impl Scaler {
    /// For inputs of this layout.
    pub fn new(layout: &Layout) -> Self {
        Self { scales: vec![RunningScale::default(); layout.width()] }
    }

    /// The inputs of a model: scaled, and a constant 1 behind them.
    pub fn scaled(&self, layout: &Layout, raw: &[Option<f64>]) -> Vec<f64> {
        let scale = |((shape, scale), raw): ((&Shape, &RunningScale), &Option<f64>)| {
            raw.map_or(0.0, |raw| scale.with(raw).deviations(raw, shape.deviations_max) * shape.weight)
        };
        layout.scales().iter().zip(&self.scales).zip(raw).map(scale).chain([1.0]).collect()
    }

    /// Raw inputs with the mean in the place of each missing one.
    pub fn filled(&self, raw: &[Option<f64>]) -> impl Iterator<Item = f64> {
        self.scales.iter().zip(raw).map(|(scale, raw)| raw.unwrap_or(scale.mean()))
    }

    /// Takes raw inputs into the running means.
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
        let told = scaler.scaled(&layout, &layout.raw(&history, 0.0, 8.0));
        history.boundary(&[None]);
        let silent = scaler.scaled(&layout, &layout.raw(&history, 0.0, 8.0));
        assert!(told.iter().zip(&silent).any(|(told, silent)| told != silent));
        assert!(silent.iter().all(|input| input.is_finite()));
    }
}
