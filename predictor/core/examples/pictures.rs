//! Draws the charts of `docs/explanation/allocation.md` with the code that they describe.
//!
//! `cargo run -p evenstep-core --example pictures -- FILE.html` writes a page with the charts. The output is
//! deterministic. `scripts/pictures --only documents` makes the pictures in `docs/pictures` from it.

use std::error::Error;
use std::io::Write;
use std::path::PathBuf;

use evenstep_core::allocate::{Scenarios, SplitWorker, allocate, allocate_expected, even, finish_s};
use evenstep_core::curve::{Curve, CurveLearner, Kind, LearnedForm};
use evenstep_core::learning_rate::{Controller, noise};
use evenstep_protocol::Ramp;
use evenstep_report::{Axis, Chart, Layer, Mark, Report, RuleAt, Section};
use evenstep_rules::learning_rate::{RampLength, Rule};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A chart, and a summary of its results.
type Picture = Result<(Chart, String), Box<dyn Error>>;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(path), None) = (arguments.next().map(PathBuf::from), arguments.next()) else {
        return Err("expected one argument, the page to write: pictures FILE.html".into());
    };
    let mut charts = Vec::new();
    let mut out = std::io::stdout().lock();
    for draw in [learned_curves, search, ramp, expected_maximum] {
        let (chart, found) = draw()?;
        writeln!(out, "{}: {found}", chart.title)?;
        charts.push(chart);
    }
    let sections = charts.into_iter().map(|chart| Section::Charts(vec![chart])).collect();
    let report = Report { title: "Pictures".into(), subtitle: String::new(), sections };
    std::fs::write(&path, report.to_html()).map_err(|error| format!("{}: {error}", path.display()).into())
}

fn milliseconds(time_s: f64) -> f64 {
    1e3 * time_s
}

/// Returns an approximately normal number: the sum of twelve uniform ones.
fn normal(random: &mut ChaCha8Rng) -> f64 {
    (0..12).map(|_| random.random::<f64>()).sum::<f64>() - 6.0
}

/// Draws the curves of two workers, measured while their batches changed, and the learned curves.
fn learned_curves() -> Picture {
    const ITERATIONS: u64 = 240;
    const LARGEST: u64 = 256;
    let workers = [
        ("GPU", Curve::saturating(0.040, 96, 0.000_42), 40..LARGEST),
        ("CPU", Curve::linear(0.016, 0.000_55), 32..144),
    ];
    let mut random = ChaCha8Rng::seed_from_u64(4);
    let (mut marks, mut found) = (Vec::new(), Vec::new());
    for (name, truth, sizes) in workers {
        let mut learner = CurveLearner::new();
        let mut contention = 0.0;
        let mut seen = Vec::new();
        for _ in 0..ITERATIONS {
            let batch = random.random_range(sizes.clone());
            contention = 0.9 * contention + 0.02 * normal(&mut random);
            let time_s = truth.time(batch) * (contention + 0.02 * normal(&mut random)).exp();
            learner.observe(batch, time_s);
            seen.push((batch, time_s));
        }
        // The learner provides the form; the level is the contention, here its mean.
        let log_speed = |(batch, time_s): &(u64, f64)| (learner.work(*batch) / time_s).ln();
        let speed = (seen.iter().map(log_speed).sum::<f64>() / seen.len() as f64).exp();
        let learned = learner.curve_at(speed);
        let line = |curve: &Curve| {
            (0..=LARGEST / 4)
                .map(|x| (4 * x).max(1))
                .map(|x| (x as f64, milliseconds(curve.time(x))))
                .collect()
        };
        marks.push(Mark::Points {
            name: format!("{name}: measured, learned"),
            points: seen.iter().map(|(x, t)| (*x as f64, milliseconds(*t))).collect(),
        });
        marks.push(Mark::Line {
            name: format!("{name}: measured, learned"),
            points: line(&learned),
            dashed: false,
        });
        marks.push(Mark::Line { name: format!("{name}, true curve"), points: line(&truth), dashed: true });
        found.push(format!("{name} {}", in_words(learner.knowledge())));
    }
    let chart = Chart {
        title: "How compute time grows with the batch, as learned while a job runs".into(),
        description: format!(
            "{ITERATIONS} iterations of a saturating and of a linear worker under contention."
        ),
        x: Axis::new("batch", "samples").from_zero(),
        y: Axis::new("compute time", "ms").from_zero(),
        marks,
    };
    Ok((chart, found.join("; ")))
}

fn in_words(knowledge: LearnedForm) -> String {
    match knowledge {
        LearnedForm::Unproven => "one size only".into(),
        LearnedForm::Identified { kind, fixed_share, saturation } => {
            let kind = match kind {
                Kind::Proportional => "proportional",
                Kind::Linear => "linear",
                Kind::Saturating => "saturating",
                Kind::Staircase => "staircase",
            };
            let flat = saturation.map_or(String::new(), |samples| format!(", flat up to {samples} samples"));
            format!("{kind}, fixed share {fixed_share:.2}{flat}")
        }
    }
}

/// Draws the samples that each worker completes by a finish time, and the smallest finish time that admits
/// the global batch.
fn search() -> Picture {
    const GLOBAL_BATCH: u64 = 512;
    let workers = [
        ("GPU, flat to 64", SplitWorker::new(Curve::saturating(0.045, 64, 0.000_5))),
        (
            "GPU, cap 160",
            SplitWorker { cap: Some(160), ..SplitWorker::new(Curve::saturating(0.030, 32, 0.000_4)) },
        ),
        ("CPU", SplitWorker::new(Curve::linear(0.008, 0.001_2))),
        ("CPU, high fixed cost", SplitWorker::new(Curve::linear(0.039, 0.001_0))),
    ];
    let shares: Vec<SplitWorker> = workers.iter().map(|(_, share)| share.clone()).collect();
    let batches = allocate(&shares, GLOBAL_BATCH, 1)?;
    let optimum_s = finish_s(&shares, &batches);
    let times = (0..=360).map(|k| 1.35 * optimum_s * f64::from(k) / 360.0);
    let layer = |(name, share): &(&str, SplitWorker)| Layer {
        name: (*name).into(),
        points: times
            .clone()
            .map(|time_s| {
                (milliseconds(time_s), share.batch_within(time_s, share.cap.unwrap_or(u64::MAX)) as f64)
            })
            .collect(),
    };
    let chart = Chart {
        title: "The search for the finish time: what fits under it".into(),
        description: "Samples that four workers complete by a finish time, summed; the smallest time that holds the global batch is the optimum.".into(),
        x: Axis::new("finish time", "ms"),
        y: Axis::new("samples that fit", ""),
        marks: vec![
            Mark::StackedArea { layers: workers.iter().map(layer).collect() },
            Mark::Rule { name: format!("global batch {GLOBAL_BATCH}"), at: RuleAt::Y(GLOBAL_BATCH as f64) },
            Mark::Rule { name: format!("optimum {:.1} ms", milliseconds(optimum_s)), at: RuleAt::X(milliseconds(optimum_s)) },
        ],
    };
    Ok((chart, format!("{batches:?} in {:.2} ms", milliseconds(optimum_s))))
}

/// Draws the multiplier of Dynamic SGD as a client receives it, and the noise of an update under the ramp and
/// under a jump.
fn ramp() -> Picture {
    const GROWTH: u64 = 4;
    const MOMENTUM: f64 = 0.9;
    const CHANGE: u64 = 8;
    const LAST: u64 = 56;
    let mut controller = Controller::new(Rule::DynamicSgd { ramp: RampLength::default() }, 1)?;
    controller.accept(controller.preview(CHANGE - 1, 1)?);
    let ramp = controller.preview(CHANGE, GROWTH)?.instruction().ramp;
    let ramp = ramp.ok_or("a batch that grows starts a ramp")?;
    let jump = Ramp { iterations: 0, ..ramp };
    let line = |name: &str, dashed, value: &dyn Fn(u64) -> f64| Mark::Line {
        name: name.into(),
        points: (0..=LAST).map(|iteration| (iteration as f64 - CHANGE as f64, value(iteration))).collect(),
        dashed,
    };
    let noise_under = |ramp: Ramp| {
        move |iteration: u64| {
            iteration.checked_sub(CHANGE).map_or(1.0, |t| noise::update_noise(&ramp, MOMENTUM, t))
        }
    };
    let peak = |ramp: Ramp| (0..=LAST).map(noise_under(ramp)).fold(0.0, f64::max);
    let peaks = [jump, ramp].map(peak);
    let marks = vec![
        line("noise N(t) under a jump", false, &noise_under(jump)),
        line("noise N(t) under the ramp", false, &noise_under(ramp)),
        line("learning rate c(t) of the ramp", true, &|iteration| ramp.multiplier(iteration)),
        Mark::Rule { name: format!("k² = {}", GROWTH * GROWTH), at: RuleAt::Y((GROWTH * GROWTH) as f64) },
    ];
    let chart = Chart {
        title: format!("The global batch grows {GROWTH}-fold: jump or ramp (momentum {MOMENTUM})"),
        description: "Variance of an update relative to an update before the change, in closed form.".into(),
        x: Axis::new("iterations since the change", ""),
        y: Axis::new("times its value before the change", "").from_zero(),
        marks,
    };
    Ok((chart, format!("noise peaks at {:.3} under a jump, at {:.3} under the ramp", peaks[0], peaks[1])))
}

/// Draws the step time over the share of one noisy worker among steady ones: as forecast, and on average.
fn expected_maximum() -> Picture {
    const GLOBAL_BATCH: u64 = 256;
    const SPREADS: [f64; 4] = [0.30, 0.03, 0.03, 0.03];
    const SCENARIOS: usize = 64;
    let shares: Vec<SplitWorker> =
        SPREADS.iter().map(|_| SplitWorker::new(Curve::at_speed(1_000.0))).collect();
    let mut random = ChaCha8Rng::seed_from_u64(11);
    let residuals: Vec<Vec<f64>> = SPREADS
        .iter()
        .map(|spread| {
            let drawn: Vec<f64> = (0..SCENARIOS).map(|_| spread * normal(&mut random)).collect();
            // All forecasts are right on average, so both curves have the same expectations.
            let level = (drawn.iter().map(|residual| (-residual).exp()).sum::<f64>() / SCENARIOS as f64).ln();
            drawn.iter().map(|residual| residual + level).collect()
        })
        .collect();
    let scenarios = Scenarios::from_residuals(&residuals);
    let with_noisy = |batch: u64| -> Result<Vec<u64>, Box<dyn Error>> {
        let steady = even(&[(0, None); SPREADS.len() - 1], GLOBAL_BATCH - batch, 1)?;
        Ok([batch].into_iter().chain(steady).collect())
    };
    let (mut forecast, mut expected) = (Vec::new(), Vec::new());
    // In steps of three, so that the three other workers get equal shares.
    for batch in (28..=88).step_by(3) {
        let batches = with_noisy(batch)?;
        forecast.push((batch as f64, milliseconds(finish_s(&shares, &batches))));
        expected.push((batch as f64, milliseconds(scenarios.expected_finish(&shares, &batches))));
    }
    let plain = allocate(&shares, GLOBAL_BATCH, 1)?;
    let weighed = allocate_expected(&shares, &scenarios, GLOBAL_BATCH, 1)?;
    let at = |batches: &[u64]| milliseconds(scenarios.expected_finish(&shares, batches));
    let chart = Chart {
        title: "One noisy worker among three steady ones of the same mean speed".into(),
        description: format!(
            "{SCENARIOS} scenarios; the noisy worker's log speed spreads by {}, the others' by {}.",
            SPREADS[0], SPREADS[1]
        ),
        x: Axis::new("batch of the noisy worker", "samples"),
        y: Axis::new("step time", "ms"),
        marks: vec![
            Mark::Line {
                name: "as forecast: the maximum of expectations".into(),
                points: forecast,
                dashed: true,
            },
            Mark::Line { name: "on average: the expected maximum".into(), points: expected, dashed: false },
            Mark::Rule { name: format!("best on average: {}", weighed[0]), at: RuleAt::X(weighed[0] as f64) },
            Mark::Rule { name: format!("best as forecast: {}", plain[0]), at: RuleAt::X(plain[0] as f64) },
        ],
    };
    Ok((
        chart,
        format!("{plain:?} takes {:.2} ms on average, {weighed:?} {:.2} ms", at(&plain), at(&weighed)),
    ))
}
