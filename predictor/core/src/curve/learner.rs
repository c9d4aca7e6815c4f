//! Learning the form of a curve from what a job runs.
//!
//! `t = s * curve(x)`, and s, the contention, is strongly autocorrelated. An allocator evens out times, so a worker's batches
//! are small exactly while it is slow: a regression of times on batches would find that time hardly depends on the batch.
//! So forms are judged by prediction error (Ljung, *System Identification*, 1999, chapter 13 on closed loops): under each form of a grid
//! the times seen imply a contention, a small model of its own forecasts that one step ahead, and the form whose forecasts
//! are best is believed. What a batch was chosen by lies in the past, which the forecast knows too, so its error
//! does not depend on the choice, and the loop does not bias the answer.
//!
//! Errors count by a Student t likelihood, so that outliers say little; weights are exponential in the sum of their
//! logarithms, over a prior that favours proportional; the answer is the posterior mean within the best family.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::contention::Contention;
use super::form::Form;
use super::{BadPoints, Curve};

/// Degrees of freedom of the errors.
const FREEDOM: f64 = 4.0;

/// The scale of log errors: at first, its smallest value, and the step of its average.
const SCALE_FIRST: f64 = 0.1;
const SCALE_MIN: f64 = 0.005;
const SCALE_STEP: f64 = 0.05;

/// Errors beyond so many scales count as this many for the scale.
const SCALE_CLIP: f64 = 4.0;

/// After an error of more than so many scales the next one is not counted. Most outliers are alone, and the allocator has answered
/// them with a batch that is far too small: what comes after would speak for whatever makes small batches cheap.
const JUMP: f64 = 4.0;

/// A normal distribution's standard deviation over its mean absolute error.
const NORMAL_SCALE: f64 = 1.253;

/// What is known of the forms fades by this factor at each change of batch; while the batch stays it says nothing new.
const FORGETTING: f64 = 0.998;

/// No form falls further behind than this, in log likelihood: what changes can be learned again.
const MAX_LOSS: f64 = 30.0;

/// What was measured on purpose is believed before forms that nothing speaks for: its lead in log likelihood.
const LEAD_OF_PROFILE: f64 = 1.0;

/// Changes from one class of sizes to another before a form is believed.
const MIN_CHANGES: u32 = 4;

/// A smaller fixed share is called proportional.
const FIXED_SHARE_MIN: f64 = 0.05;

/// The form of a worker's curve, learned while it runs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CurveLearner {
    micro_batch: Option<u64>,
    profile: Option<Curve>,
    learned: Option<Learned>,
}

/// What a worker that has run knows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Learned {
    /// The first batch seen: work is counted in its samples.
    reference: u64,
    micro_batch: Option<u64>,
    /// Smallest and largest batch seen.
    range: (u64, u64),
    /// Classes of sizes seen: powers of the square root of 2, around the reference.
    classes: BTreeSet<i32>,
    /// Batch of the latest iteration that counted.
    latest: Option<u64>,
    /// Changes of class between iterations that counted.
    changes: u32,
    scale: f64,
    /// The latest error was so large that nobody can say whether its cause stays.
    jumped: bool,
    candidates: Vec<Candidate>,
    /// The belief: time in units of work; `None` is proportional.
    belief: Option<(Knowledge, Curve)>,
}

/// A form and its record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Candidate {
    /// `None` is the profile.
    form: Option<Form>,
    /// Work of a batch under this form.
    curve: Curve,
    contention: Option<Contention>,
    /// Negative log likelihood of what was seen, the prior included.
    loss: f64,
}

/// What is known of a worker's curve.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Knowledge {
    /// It ran at one size only, or nearly: a fixed cost and a cost per sample cannot be told apart, and time is taken as
    /// proportional to the batch.
    OneSize,
    /// Sizes differed enough.
    Identified {
        /// The form that predicts best.
        kind: Kind,
        /// Share of the time at the reference batch (the first one seen) that no batch size changes.
        fixed_share: f64,
        /// Samples up to which time is flat; `None` where it grows from the first.
        saturation: Option<u64>,
    },
}

/// Forms of a curve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A cost per sample alone.
    Proportional,
    /// A fixed cost and a cost per sample.
    Linear,
    /// Flat up to the saturation point, then linear.
    Saturating,
    /// Straight lines through profiled sizes.
    Measured,
}

impl CurveLearner {
    /// Knows nothing: time is proportional to the batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// A worker that accumulates gradients over micro-batches of this size (at least 1): every form is made a staircase.
    pub fn accumulating(micro_batch: u64) -> Self {
        Self { micro_batch: Some(micro_batch.max(1)), ..Self::default() }
    }

    /// Takes a short profile: times of several batches, one after the other, under the same contention. The curve through
    /// them competes with the other forms from now on, a little ahead of them; it replaces an earlier profile.
    ///
    /// # Errors
    /// As [`Curve::through`].
    pub fn profile(&mut self, points: &[(u64, f64)]) -> Result<(), BadPoints> {
        let profile = Curve::through(points)?;
        if let Some(learned) = &mut self.learned {
            learned.add_profile(&profile);
        }
        self.profile = Some(profile);
        Ok(())
    }

    /// Takes what a batch took; a batch of 0, or a time that is not positive and finite, says nothing. The first
    /// iteration of a worker, and the first of each class of sizes, are left out: caches fill and kernels are tuned.
    pub fn observe(&mut self, batch: u64, compute_time_s: f64) {
        if batch == 0 || !compute_time_s.is_finite() || compute_time_s <= 0.0 {
            return;
        }
        let learned =
            self.learned.get_or_insert_with(|| Learned::new(batch, self.micro_batch, self.profile.as_ref()));
        learned.observe(batch, compute_time_s.ln());
    }

    /// Samples at the reference batch (the first one seen) that take as long as this batch: `batch` itself while time
    /// is taken as proportional, and always at the reference, so that what was measured there keeps its level when the
    /// form moves. `work(x) / t` is a speed that does not depend on the batch.
    pub fn work(&self, batch: u64) -> f64 {
        self.belief().map_or(batch as f64, |(_, curve)| curve.time(batch))
    }

    /// The curve of a worker that does `speed` units of [`work`](Self::work) per second; positive and finite.
    pub fn curve_at(&self, speed: f64) -> Curve {
        match self.belief() {
            Some((_, curve)) => curve.clone().scaled(1.0 / speed),
            None => Curve::at_speed(speed),
        }
    }

    /// The largest batch measured; 0 before the first.
    pub fn largest(&self) -> u64 {
        self.learned.as_ref().map_or(0, |learned| learned.range.1)
    }

    /// What is known of the form.
    pub fn knowledge(&self) -> Knowledge {
        self.belief().map_or(Knowledge::OneSize, |(knowledge, _)| *knowledge)
    }

    fn belief(&self) -> Option<&(Knowledge, Curve)> {
        self.learned.as_ref()?.belief.as_ref()
    }
}

impl Learned {
    fn new(reference: u64, micro_batch: Option<u64>, profile: Option<&Curve>) -> Self {
        let mut learned = Self {
            reference,
            micro_batch,
            range: (reference, reference),
            classes: BTreeSet::new(),
            latest: None,
            changes: 0,
            scale: SCALE_FIRST,
            jumped: false,
            candidates: Vec::new(),
            belief: None,
        };
        let candidate = |form: Form| Candidate {
            form: Some(form),
            curve: learned.work_of(form),
            contention: None,
            loss: form.prior(),
        };
        learned.candidates = Form::all(learned.unit()).map(candidate).collect();
        if let Some(profile) = profile {
            learned.add_profile(profile);
        }
        learned
    }

    fn add_profile(&mut self, profile: &Curve) {
        self.candidates.retain(|candidate| candidate.form.is_some());
        let best = self.candidates.iter().min_by(|a, b| a.loss.total_cmp(&b.loss));
        let loss = best.map_or(0.0, |best| best.loss) - LEAD_OF_PROFILE;
        let curve = work_curve(profile.clone(), self.reference);
        self.candidates.push(Candidate { form: None, curve, contention: None, loss });
        self.believe();
    }

    /// The batch that forms are relative to: under accumulation they are those of a micro-batch.
    fn unit(&self) -> u64 {
        self.micro_batch.map_or(self.reference, |micro_batch| micro_batch.min(self.reference))
    }

    fn work_of(&self, form: Form) -> Curve {
        let curve = form.curve(self.unit());
        let curve = match self.micro_batch {
            Some(micro_batch) => curve.accumulating(micro_batch),
            None => curve,
        };
        work_curve(curve, self.reference)
    }

    fn class(&self, batch: u64) -> i32 {
        (2.0 * (batch as f64 / self.reference as f64).log2()).round() as i32
    }

    fn observe(&mut self, batch: u64, log_time: f64) {
        self.range = (self.range.0.min(batch), self.range.1.max(batch));
        if self.classes.insert(self.class(batch)) {
            return;
        }
        let changed = self.latest.is_some_and(|latest| latest != batch);
        if self.latest.is_some_and(|latest| self.class(latest) != self.class(batch)) {
            self.changes = self.changes.saturating_add(1);
        }
        self.latest = Some(batch);
        let (scale, counts) = (self.scale, !self.jumped);
        let mut best = (f64::INFINITY, None);
        for candidate in &mut self.candidates {
            let before = candidate.loss;
            let level = log_time - candidate.curve.time(batch).ln();
            let error = candidate.observe(level, scale);
            if let Some(error) = error.filter(|_| counts) {
                candidate.score(error / scale, changed);
            }
            if before < best.0 {
                best = (before, error);
            }
        }
        if let (_, Some(error)) = best {
            let seen = NORMAL_SCALE * error.min(SCALE_CLIP * scale);
            self.jumped = error > JUMP * scale;
            self.scale = (scale + SCALE_STEP * (seen - scale)).max(SCALE_MIN);
        }
        let least = self.candidates.iter().map(|candidate| candidate.loss).fold(f64::INFINITY, f64::min);
        for candidate in &mut self.candidates {
            candidate.loss = (candidate.loss - least).min(MAX_LOSS);
        }
        self.believe();
    }

    /// The posterior mean within the family of the most likely form.
    fn believe(&mut self) {
        let (smallest, largest) = self.range;
        // Saturation outside of what was seen is no other than a line.
        let open = |candidate: &&Candidate| {
            let inside = |form: Form| !form.saturates() || (smallest..largest).contains(&form.saturation);
            candidate.form.is_none_or(inside)
        };
        let Some(best) = self.candidates.iter().filter(open).min_by(|a, b| a.loss.total_cmp(&b.loss)) else {
            return;
        };
        if best.form.is_some() && self.changes < MIN_CHANGES {
            return;
        }
        let Some(form) = best.form else {
            let fixed_share = best.curve.time(1) / best.curve.time(self.reference);
            let knowledge = Knowledge::Identified { kind: Kind::Measured, fixed_share, saturation: None };
            self.belief = Some((knowledge, best.curve.clone()));
            return;
        };
        let family = self.candidates.iter().filter(open).filter_map(|candidate| {
            let member = candidate.form.filter(|member| member.saturates() == form.saturates())?;
            Some((member, (best.loss - candidate.loss).exp()))
        });
        let (mut weights, mut fixed, mut log_saturation) = (0.0, 0.0, 0.0);
        for (member, weight) in family {
            weights += weight;
            fixed += weight * member.fixed_share;
            log_saturation += weight * (member.saturation.max(1) as f64).ln();
        }
        let saturation = form.saturates().then(|| (log_saturation / weights).exp().round() as u64);
        let mean = Form { fixed_share: fixed / weights, saturation: saturation.unwrap_or(0) };
        let kind = match saturation {
            Some(_) => Kind::Saturating,
            None if mean.fixed_share < FIXED_SHARE_MIN => Kind::Proportional,
            None => Kind::Linear,
        };
        let knowledge = Knowledge::Identified { kind, fixed_share: mean.fixed_share, saturation };
        self.belief = Some((knowledge, self.work_of(mean)));
    }
}

impl Candidate {
    /// Takes the contention that a time implies, and answers how far off its forecast was.
    fn observe(&mut self, level: f64, scale: f64) -> Option<f64> {
        let Some(contention) = &mut self.contention else {
            self.contention = Some(Contention::new(level));
            return None;
        };
        let error = level - contention.forecast();
        contention.observe(level, scale);
        Some(error.abs())
    }

    /// Counts an error, in scales; where the batch `changed`, what is older fades.
    fn score(&mut self, error: f64, changed: bool) {
        if changed {
            let prior = self.form.map_or(0.0, |form| form.prior());
            self.loss = prior + FORGETTING * (self.loss - prior);
        }
        self.loss += 0.5 * (FREEDOM + 1.0) * (error * error / FREEDOM).ln_1p();
    }
}

/// The curve in units of work: `reference` at the reference.
fn work_curve(curve: Curve, reference: u64) -> Curve {
    let factor = reference as f64 / curve.time(reference);
    curve.scaled(factor)
}
