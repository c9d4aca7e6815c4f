//! The state and the models of each live worker, found once for all steps of a decision.

use evenstep_protocol::WorkerId;

use super::state::{JobState, WorkerState};
use super::worker::WorkerModel;
use crate::allocate::Scenarios;
use crate::curve::Curve;
use crate::forecast::{Expected, Forecast};
use crate::parallel;

/// A live worker.
#[derive(Debug, Clone, Copy)]
pub struct Known<'a> {
    pub id: &'a WorkerId,
    pub state: Option<&'a WorkerState>,
    /// Its models, except its forecast; `None` before its first report.
    pub model: Option<&'a WorkerModel>,
    /// Its forecast; `None` while it is unmeasured.
    pub expected: Option<Expected<'a>>,
}

impl<'a> Known<'a> {
    /// Returns the kind of its device.
    pub fn device(&self) -> Option<&'a str> {
        self.state?.request.device.as_deref()
    }

    /// Returns its forecast and curve, as `Models::expected`.
    pub fn expected(&self, micro_batch: Option<u64>) -> Option<(Forecast, Curve)> {
        let forecast = self.expected?.forecast;
        Some((forecast, self.model?.curve.curve_with(forecast.speed, micro_batch)))
    }
}

impl JobState {
    /// Returns the live workers in rank order.
    pub(super) fn known(&self) -> Vec<Known<'_>> {
        let (ids, ranks): (Vec<&WorkerId>, Vec<usize>) = self.members.live_by_id().into_iter().unzip();
        let models = self.current_models();
        let states = parallel::find(&self.workers, &ids).into_iter();
        let found = states.zip(models.of(&ids)).zip(models.forecaster().expected(&ids));
        let mut known = vec![None; ids.len()];
        for ((id, rank), ((state, model), expected)) in ids.into_iter().zip(ranks).zip(found) {
            known[rank] = Some(Known { id, state, model, expected });
        }
        known.into_iter().flatten().collect()
    }
}

/// Returns the joint distribution of the forecasts of these workers, from their recent residuals. Workers without a share do not
/// report, so their forecasts are taken as exact.
pub fn scenarios<'a>(known: &[Known<'a>], has_share: impl Fn(usize) -> bool) -> Scenarios {
    let of = |(rank, known): (usize, &Known<'a>)| {
        let recent = known.expected.map_or((&[][..], &[][..]), |known| (known.residuals, known.pauses));
        has_share(rank).then_some(recent).unzip()
    };
    let (residuals, pauses): (Vec<_>, Vec<_>) = known.iter().enumerate().map(of).unzip();
    Scenarios::joined(&residuals).with_pauses(&pauses)
}
