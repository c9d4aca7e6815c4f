//! Candidate forms of a curve with their likelihoods, and the resulting estimate.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::contention::{Contention, LANES, Lanes};
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
    /// The numbers that each iteration changes, of [`LANES`] candidates each, in their order.
    records: Vec<Record>,
    /// Logs of the work of the latest batch, in the order of the records; empty if they are not known.
    #[serde(skip)]
    log_works: Vec<Lanes>,
    /// The curves of the records, if all of them are ramps; empty if they are not known.
    #[serde(skip)]
    ramps: Vec<Option<Ramps>>,
    /// The estimate: form, and work over batch; `None` is proportional.
    belief: Option<(LearnedForm, Curve)>,
}

/// A form and its curve.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Candidate {
    form: Form,
    /// Work over batch under this form.
    curve: Curve,
    /// Posterior weight, relative to the most likely form.
    weight: f64,
}

/// The learned numbers of [`LANES`] candidates. Lanes beyond the last candidate repeat it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Record {
    contention: Option<Contention>,
    /// Scale of the errors of each form: a running mean.
    scale: Lanes,
    /// Negative log likelihood of the observations under each form, including the prior.
    loss: Lanes,
    prior: Lanes,
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
            records: Vec::new(),
            log_works: Vec::new(),
            ramps: Vec::new(),
            belief: None,
        };
        let candidate =
            |form: Form| Candidate { form, curve: learned.work_of(form), weight: (-form.prior()).exp() };
        learned.candidates = Form::all(learned.unit()).map(candidate).collect();
        let record = |candidates: &[Candidate]| {
            let prior = lanes(candidates, |candidate| candidate.form.prior());
            Record { contention: None, scale: [SCALE_FIRST; LANES], loss: prior, prior }
        };
        learned.records = learned.candidates.chunks(LANES).map(record).collect();
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
                && (0.0..=1.0).contains(&candidate.weight)
        };
        let is_record = |record: &Record| {
            record.contention.as_ref().is_none_or(Contention::is_valid)
                && record.loss.iter().chain(&record.prior).all(|loss| loss.abs() <= LOSS_MAX)
                && record.scale.iter().all(|scale| (SCALE_MIN..=LOSS_MAX).contains(scale))
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
            && self.candidates.iter().any(|candidate| candidate.weight > 0.0)
            && self.records.len() == self.candidates.len().div_ceil(LANES)
            && self.records.iter().all(is_record)
            && self.belief.as_ref().is_none_or(|(known, curve)| knowledge(known) && curve.is_valid())
    }

    /// Changes the size of micro-batches, if no batch observed exceeds the old or the new one. Forms and
    /// likelihoods stay.
    pub fn accumulate(&mut self, micro_batch: Option<u64>) {
        self.micro_batch = micro_batch;
        for candidate in self.candidates.iter_mut().filter(|candidate| !candidate.form.is_tiled) {
            candidate.curve.micro_batch = micro_batch;
        }
        self.log_works.clear();
        self.ramps.clear();
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
        let [mut weights, mut sum, mut squares] = [[0.0; LANES]; 3];
        let mut add = |weight: &Lanes, before: &Lanes, after: &Lanes| {
            for lane in 0..LANES {
                let ratio = after[lane] / before[lane];
                weights[lane] += weight[lane];
                sum[lane] += weight[lane] * ratio;
                squares[lane] += weight[lane] * ratio * ratio;
            }
        };
        for (at, some) in self.candidates.chunks(LANES).enumerate() {
            if let Some(Some(ramps)) = self.ramps.get(at) {
                add(&ramps[3], &times(ramps, from), &times(ramps, to));
            } else {
                let [before, after] =
                    [from, to].map(|amount| lanes(some, |candidate| candidate.curve.time_of(amount)));
                add(&weights_of(some), &before, &after);
            }
        }
        let [weights, sum, squares] = [weights, sum, squares].map(|lanes| lanes.iter().sum::<f64>());
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
        let before = self.range;
        self.range = (before.0.min(batch), before.1.max(batch));
        if self.classes.insert(self.class(batch)) {
            if self.range != before {
                self.update_estimate();
            }
            return;
        }
        let slower = |speed: f64| (self.log_speed - speed.ln()).clamp(-MAX_EXPECTED, MAX_EXPECTED);
        let expected = expected_speed.filter(|_| self.latest.is_some()).map_or(0.0, slower);
        self.log_speed = self.belief().map_or(batch as f64, |(_, curve)| curve.time(batch)).ln() - log_time;
        let changed = self.latest.is_some_and(|latest| latest != batch);
        if self.latest.is_some_and(|latest| (batch as f64 / latest as f64).ln().abs() > CHANGE_MIN) {
            self.changes = self.changes.saturating_add(1);
        }
        if self.latest.replace(batch) != Some(batch) || self.log_works.is_empty() {
            let log_work = |candidate: &Candidate| candidate.curve.time(batch).ln();
            self.log_works = self.candidates.chunks(LANES).map(|some| lanes(some, log_work)).collect();
            if self.ramps.is_empty() {
                self.ramps = self.candidates.chunks(LANES).map(ramps).collect();
            }
        }
        // The noise is what the best form cannot forecast. The scales of wrong forms contain their own errors.
        let scale = least(self.records.iter().map(|record| &record.scale));
        let (counts, step) = (!self.jumped, SCALE_STEP.max(1.0 / f64::from(self.errors.saturating_add(2))));
        let mut smallest = f64::INFINITY;
        for (record, log_work) in self.records.iter_mut().zip(&self.log_works) {
            let level = log_work.map(|log_work| log_time - log_work);
            let Some(contention) = &mut record.contention else {
                record.contention = Some(Contention::new(level));
                continue;
            };
            let error = contention.observe(&level, expected, scale);
            if counts && changed {
                record.score(&error.map(|error| error / scale));
            }
            for (scale, error) in record.scale.iter_mut().zip(error) {
                let seen = NORMAL_SCALE * error.min(SCALE_CLIP * *scale);
                *scale = (*scale + step * (seen - *scale)).max(SCALE_MIN);
            }
            smallest = smallest.min(least([&error].into_iter()));
        }
        if smallest.is_finite() {
            self.errors = self.errors.saturating_add(1);
            // No form explains it.
            self.jumped = smallest > JUMP * scale;
        }
        // Iterations at the same batch do not discriminate between forms.
        if changed {
            self.weigh();
            self.update_estimate();
        }
    }

    /// Bounds the lag of each form, and computes the weights of all.
    fn weigh(&mut self) {
        let least = least(self.records.iter().map(|record| &record.loss));
        let mut ramps = self.ramps.iter_mut();
        for (record, candidates) in self.records.iter_mut().zip(self.candidates.chunks_mut(LANES)) {
            record.loss = record.loss.map(|loss| (loss - least).min(MAX_LOSS));
            for (candidate, loss) in candidates.iter_mut().zip(record.loss) {
                candidate.weight = (-loss).exp();
            }
            if let Some(Some(ramps)) = ramps.next() {
                ramps[3] = weights_of(candidates);
            }
        }
    }

    /// Returns the candidates with their losses.
    fn losses(&self) -> impl Iterator<Item = (&Candidate, f64)> {
        self.candidates.iter().zip(self.records.iter().flat_map(|record| record.loss))
    }

    fn proportional_loss(&self) -> f64 {
        let is_proportional = |form: Form| form.fixed_share == 0.0 && form.is_line();
        let mut proportional = self.losses().filter(|(candidate, _)| is_proportional(candidate.form));
        proportional.next().map_or(f64::INFINITY, |(_, loss)| loss)
    }

    /// Updates the estimate: the posterior mean within the family of the most likely form.
    fn update_estimate(&mut self) {
        if self.changes < MIN_CHANGES {
            return;
        }
        let (smallest, largest) = self.range;
        // A saturation point outside the observed range cannot be distinguished from a line.
        let open = |(candidate, _): &(&Candidate, f64)| {
            let Form { saturation, is_tiled, .. } = candidate.form;
            candidate.form.is_line() || is_tiled || (smallest..largest).contains(&saturation)
        };
        let Some((best, best_loss)) = self.losses().filter(open).min_by(|a, b| a.1.total_cmp(&b.1)) else {
            return;
        };
        if best_loss + PROOF_LEAD > self.proportional_loss() {
            self.belief = None;
            return;
        }
        let form = best.form;
        let is_relative = |(candidate, _): &(&Candidate, f64)| {
            (candidate.form.is_line(), candidate.form.is_tiled) == (form.is_line(), form.is_tiled)
        };
        let family = self.losses().filter(open).filter(is_relative);
        let family = family.map(|(candidate, loss)| (candidate.form, (best_loss - loss).exp()));
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

impl Record {
    /// Adds errors at a change of the batch, in scales, to the losses. Earlier evidence is discounted.
    fn score(&mut self, errors: &Lanes) {
        for ((loss, prior), error) in self.loss.iter_mut().zip(self.prior).zip(errors) {
            *loss = prior + FORGETTING * (*loss - prior);
            let log_likelihood =
                -0.5 * (DEGREES_OF_FREEDOM + 1.0) * (error * error / DEGREES_OF_FREEDOM).ln_1p();
            *loss -= EVIDENCE * log_likelihood;
        }
    }
}

/// Returns a number of each of these candidates; lanes beyond the last repeat it.
fn lanes(candidates: &[Candidate], of: impl Fn(&Candidate) -> f64) -> Lanes {
    std::array::from_fn(|lane| candidates.get(lane).or(candidates.last()).map_or(0.0, &of))
}

/// Returns the weights of these candidates; 0 for lanes beyond the last.
fn weights_of(candidates: &[Candidate]) -> Lanes {
    std::array::from_fn(|lane| candidates.get(lane).map_or(0.0, |candidate| candidate.weight))
}

/// Base time, time per sample, saturation point and weight of some ramps, in few cache lines: wide jobs read all of them.
type Ramps = [Lanes; 4];

/// Returns the curves of these candidates if all of them are ramps.
fn ramps(candidates: &[Candidate]) -> Option<Ramps> {
    let all: Option<Vec<_>> = candidates.iter().map(|candidate| candidate.curve.as_ramp()).collect();
    let all = all?;
    let [base, per_sample, saturation] = [0, 1, 2]
        .map(|part| std::array::from_fn(|lane| all.get(lane).or(all.last()).map_or(0.0, |ramp| ramp[part])));
    Some([base, per_sample, saturation, weights_of(candidates)])
}

/// Returns the times of an amount by these curves.
fn times([base, per_sample, saturation, _]: &Ramps, amount: f64) -> Lanes {
    if amount <= 0.0 {
        return [0.0; LANES];
    }
    std::array::from_fn(|lane| {
        let beyond = amount - saturation[lane];
        base[lane] + per_sample[lane] * if beyond > 0.0 { beyond } else { 0.0 }
    })
}

/// Returns the smallest of all lanes.
fn least<'a>(lanes: impl Iterator<Item = &'a Lanes>) -> f64 {
    lanes.flatten().copied().fold(f64::INFINITY, |least, value| if value < least { value } else { least })
}

/// Returns the curve in units of work: its value at `reference` is `reference`.
fn work_curve(curve: Curve, reference: u64) -> Curve {
    let factor = reference as f64 / curve.time(reference);
    curve.scaled(factor)
}
