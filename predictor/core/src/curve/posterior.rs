//! Candidate forms of a curve with their likelihoods, and the resulting estimate.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::contention::Contention;
use super::form::Form;
use super::knowledge::{Kind, LearnedForm, Uncertain};
use super::shape::Curve;
use crate::series::LOG_SPEED_MAX;

/// Degrees of freedom of the Student t distribution of errors.
const DEGREES_OF_FREEDOM: f64 = 4.0;

/// Scale of log errors: initial value, minimum, and smallest step of its average.
const SCALE_FIRST: f64 = 0.1;
const SCALE_MIN: f64 = 0.005;
const SCALE_STEP: f64 = 0.05;

/// Number of scales at which errors are clipped when the scale is updated.
const SCALE_CLIP: f64 = 4.0;

/// Number of scales beyond which an error is a jump; the iteration after a jump is not scored. Most outliers
/// are single iterations, and the allocator has responded with a batch that is far too small. The next error
/// would favour forms with a low time for small batches.
const JUMP: f64 = 4.0;

/// Maximum of expected changes of log speed.
const MAX_EXPECTED: f64 = 2.0;

/// Weight of the log likelihood of an error. One unusual time causes two errors: in its own iteration, and in the next one.
const EVIDENCE: f64 = 0.5;

/// Ratio of the standard deviation of a normal distribution to its mean absolute error.
const NORMAL_SCALE: f64 = 1.253;

/// Forgetting factor of the likelihoods, applied at each change of batch. Iterations at the same batch do not
/// discriminate between forms.
const FORGETTING: f64 = 0.998;

/// Maximum lag of a form in log likelihood. The limit allows a form to be learned again after a change.
const MAX_LOSS: f64 = 30.0;

/// Lead over the proportional form, in log likelihood, that a form needs to be used. With a curve that is
/// wrongly estimated as flat, all splits look alike. Batches then stay the same, sizes no longer vary, and
/// the error is never corrected.
const PROOF_LEAD: f64 = 5.0;

/// Minimum number of changes of the batch before a form is used, and the smallest change that counts, in log.
const MIN_CHANGES: u32 = 3;
const CHANGE_MIN: f64 = 0.1;

/// Maximum number of candidates in a stored posterior, and of the magnitude of a loss.
const CANDIDATES_MAX: usize = 128;
const LOSS_MAX: f64 = 1e6;

/// State of the learner after the first observation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Posterior {
    /// Reference batch: the first batch observed. Work is counted in its samples.
    reference: u64,
    micro_batch: Option<u64>,
    /// Smallest and largest batch observed.
    range: (u64, u64),
    /// Classes of sizes observed: powers of the square root of 2, relative to the reference.
    classes: BTreeSet<i32>,
    /// Batch of the most recent iteration that was used.
    latest: Option<u64>,
    /// Log speed in that iteration, in the work of the curve used then.
    log_speed: f64,
    /// Changes of the batch between iterations that were used.
    changes: u32,
    /// Number of errors so far.
    errors: u32,
    /// Whether the most recent error was a jump, so that its cause may persist or not.
    jumped: bool,
    candidates: Vec<Candidate>,
    /// The estimate: form, and work over batch; `None` is proportional.
    belief: Option<(LearnedForm, Curve)>,
}

/// A form and its likelihood.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Candidate {
    form: Form,
    /// Work over batch under this form.
    curve: Curve,
    contention: Option<Contention>,
    /// Scale of the errors of this form: a running mean.
    scale: f64,
    /// Negative log likelihood of the observations, including the prior.
    loss: f64,
}

impl Posterior {
    pub fn new(reference: u64, micro_batch: Option<u64>) -> Self {
        let mut learned = Self {
            reference,
            micro_batch,
            range: (reference, reference),
            classes: BTreeSet::new(),
            latest: None,
            log_speed: 0.0,
            changes: 0,
            errors: 0,
            jumped: false,
            candidates: Vec::new(),
            belief: None,
        };
        let candidate = |form: Form| Candidate {
            form,
            curve: learned.work_of(form),
            contention: None,
            scale: SCALE_FIRST,
            loss: form.prior(),
        };
        learned.candidates = Form::all(learned.unit()).map(candidate).collect();
        learned
    }

    /// Whether a stored posterior is usable: its curves are, and every number is in its range.
    pub fn is_valid(&self) -> bool {
        let is_share = |share: &f64| (0.0..=1.0).contains(share);
        let knowledge = |known: &LearnedForm| match known {
            LearnedForm::Unproven => true,
            LearnedForm::Identified { fixed_share, .. } => is_share(fixed_share),
        };
        let is_candidate = |candidate: &Candidate| {
            is_share(&candidate.form.fixed_share)
                && candidate.curve.is_valid()
                && candidate.contention.as_ref().is_none_or(Contention::is_valid)
                && candidate.loss.abs() <= LOSS_MAX
                && (SCALE_MIN..=LOSS_MAX).contains(&candidate.scale)
        };
        let (smallest, largest) = self.range;
        self.reference > 0
            && self.micro_batch != Some(0)
            && 0 < smallest
            && smallest <= largest
            && self.latest != Some(0)
            && self.log_speed.abs() <= 2.0 * LOG_SPEED_MAX
            && self.candidates.len() <= CANDIDATES_MAX
            && self.candidates.iter().all(is_candidate)
            && self.belief.as_ref().is_none_or(|(known, curve)| knowledge(known) && curve.is_valid())
    }

    /// Changes the size of micro-batches, if no batch observed exceeds the old or the new one. Forms and
    /// likelihoods stay.
    pub fn accumulate(&mut self, micro_batch: Option<u64>) {
        self.micro_batch = micro_batch;
        for candidate in self.candidates.iter_mut().filter(|candidate| !candidate.form.is_tiled) {
            candidate.curve.micro_batch = micro_batch;
        }
        self.update_estimate();
    }

    /// Returns the batch relative to which forms are defined; with gradient accumulation at most a
    /// micro-batch.
    fn unit(&self) -> u64 {
        self.micro_batch.map_or(self.reference, |micro_batch| micro_batch.min(self.reference))
    }

    fn work_of(&self, form: Form) -> Curve {
        let curve = form.curve(self.unit());
        let curve = match self.micro_batch {
            Some(micro_batch) if !form.is_tiled => curve.accumulating(micro_batch),
            _ => curve,
        };
        work_curve(curve, self.reference)
    }

    /// Returns the estimate: form, and work over batch; `None` is proportional.
    pub fn belief(&self) -> Option<&(LearnedForm, Curve)> {
        self.belief.as_ref()
    }

    /// Returns the mean and the standard deviation of the time of `to` samples over that of `from` samples, over the
    /// posterior of the candidates.
    pub fn ratio(&self, from: f64, to: f64) -> Uncertain {
        let (mut weights, mut sum, mut squares) = (0.0, 0.0, 0.0);
        for candidate in &self.candidates {
            let weight = (-candidate.loss).exp();
            let ratio = candidate.curve.time_of(to) / candidate.curve.time_of(from);
            weights += weight;
            sum += weight * ratio;
            squares += weight * ratio * ratio;
        }
        let mean = sum / weights;
        Uncertain { mean, deviation: (squares / weights - mean * mean).max(0.0).sqrt() }
    }

    /// Returns the largest batch observed.
    pub fn largest(&self) -> u64 {
        self.range.1
    }

    fn class(&self, batch: u64) -> i32 {
        (2.0 * (batch as f64 / self.reference as f64).log2()).round() as i32
    }

    pub fn observe(&mut self, batch: u64, log_time: f64, expected_speed: Option<f64>) {
        self.range = (self.range.0.min(batch), self.range.1.max(batch));
        if self.classes.insert(self.class(batch)) {
            return;
        }
        let slower = |speed: f64| (self.log_speed - speed.ln()).clamp(-MAX_EXPECTED, MAX_EXPECTED);
        let expected = expected_speed.filter(|_| self.latest.is_some()).map_or(0.0, slower);
        self.log_speed = self.belief().map_or(batch as f64, |(_, curve)| curve.time(batch)).ln() - log_time;
        let changed = self.latest.is_some_and(|latest| latest != batch);
        if self.latest.is_some_and(|latest| (batch as f64 / latest as f64).ln().abs() > CHANGE_MIN) {
            self.changes = self.changes.saturating_add(1);
        }
        self.latest = Some(batch);
        // The noise is what the best form cannot forecast. The scales of wrong forms contain their own errors.
        let scale = self.candidates.iter().map(|candidate| candidate.scale).fold(f64::INFINITY, f64::min);
        let (counts, step) = (!self.jumped, SCALE_STEP.max(1.0 / f64::from(self.errors.saturating_add(2))));
        let mut least = f64::INFINITY;
        for candidate in &mut self.candidates {
            let level = log_time - candidate.curve.time(batch).ln();
            let Some(error) = candidate.observe(level, expected, scale) else { continue };
            if counts && changed {
                candidate.score(error / scale);
            }
            let seen = NORMAL_SCALE * error.min(SCALE_CLIP * candidate.scale);
            candidate.scale = (candidate.scale + step * (seen - candidate.scale)).max(SCALE_MIN);
            least = least.min(error);
        }
        if least.is_finite() {
            self.errors = self.errors.saturating_add(1);
            // No form explains it.
            self.jumped = least > JUMP * scale;
        }
        let least = self.candidates.iter().map(|candidate| candidate.loss).fold(f64::INFINITY, f64::min);
        for candidate in &mut self.candidates {
            candidate.loss = (candidate.loss - least).min(MAX_LOSS);
        }
        self.update_estimate();
    }

    fn proportional_loss(&self) -> f64 {
        let is_proportional = |form: Form| form.fixed_share == 0.0 && form.is_line();
        let mut proportional = self.candidates.iter().filter(|candidate| is_proportional(candidate.form));
        proportional.next().map_or(f64::INFINITY, |candidate| candidate.loss)
    }

    /// Updates the estimate: the posterior mean within the family of the most likely form.
    fn update_estimate(&mut self) {
        let (smallest, largest) = self.range;
        // A saturation point outside the observed range cannot be distinguished from a line.
        let open = |candidate: &&Candidate| {
            let Form { saturation, is_tiled, .. } = candidate.form;
            candidate.form.is_line() || is_tiled || (smallest..largest).contains(&saturation)
        };
        let Some(best) = self.candidates.iter().filter(open).min_by(|a, b| a.loss.total_cmp(&b.loss)) else {
            return;
        };
        if self.changes < MIN_CHANGES {
            return;
        }
        if best.loss + PROOF_LEAD > self.proportional_loss() {
            self.belief = None;
            return;
        }
        let form = best.form;
        let is_relative = |candidate: &&Candidate| {
            (candidate.form.is_line(), candidate.form.is_tiled) == (form.is_line(), form.is_tiled)
        };
        let family = self.candidates.iter().filter(open).filter(is_relative);
        let family = family.map(|candidate| (candidate.form, (best.loss - candidate.loss).exp()));
        let (mut weights, mut fixed, mut log_saturation) = (0.0, 0.0, 0.0);
        for (member, weight) in family {
            weights += weight;
            fixed += weight * member.fixed_share;
            log_saturation += weight * (member.saturation.max(1) as f64).ln();
        }
        let saturation = (log_saturation / weights).exp().round() as u64;
        let mean = match form.kind() {
            // There is no tile between two tiles.
            Kind::Staircase => form,
            Kind::Saturating => Form { fixed_share: fixed / weights, saturation, ..form },
            Kind::Linear | Kind::Proportional => Form { fixed_share: fixed / weights, ..form },
        };
        let saturation = (!mean.is_line()).then_some(mean.saturation);
        let knowledge =
            LearnedForm::Identified { kind: mean.kind(), fixed_share: mean.fixed_share, saturation };
        self.belief = Some((knowledge, self.work_of(mean)));
    }
}

impl Candidate {
    /// Updates the contention model with the level that a time implies. Returns the absolute forecast error.
    fn observe(&mut self, level: f64, expected: f64, scale: f64) -> Option<f64> {
        let Some(contention) = &mut self.contention else {
            self.contention = Some(Contention::new(level));
            return None;
        };
        let error = level - contention.forecast(expected);
        contention.observe(level, expected, scale);
        Some(error.abs())
    }

    /// Adds an error at a change of the batch, in scales, to the loss. Earlier evidence is discounted.
    fn score(&mut self, error: f64) {
        let prior = self.form.prior();
        self.loss = prior + FORGETTING * (self.loss - prior);
        let log_likelihood = -0.5 * (DEGREES_OF_FREEDOM + 1.0) * (error * error / DEGREES_OF_FREEDOM).ln_1p();
        self.loss -= EVIDENCE * log_likelihood;
    }
}

/// Returns the curve in units of work: its value at `reference` is `reference`.
fn work_curve(curve: Curve, reference: u64) -> Curve {
    let factor = reference as f64 / curve.time(reference);
    curve.scaled(factor)
}
