//! Every kind of mark on one page, with invented but plausible data:
//! `cargo run -p evenstep-report --example gallery > FILE.html`.

use std::f64::consts::TAU;
use std::io::Write as _;

use evenstep_report::{Axis, Bar, Cell, Chart, Figure, Layer, Mark, Report, RuleAt, Section, Span, Table};

const WORKERS: [&str; 4] = ["node-a/0", "node-a/1", "node-b/0", "node-b/1"];
const ITERATIONS: u32 = 1_200;
const GLOBAL_BATCH: f64 = 512.0;

/// Repeatable noise between -1 and 1.
fn noise(seed: u32) -> f64 {
    let mixed = seed.wrapping_mul(2_654_435_761) ^ (seed.wrapping_mul(40_503) >> 7);
    f64::from(mixed % 2_001) / 1_000.0 - 1.0
}

/// Samples per second of a worker on a machine with an intermittent load.
fn speed(worker: u32, iteration: u32) -> f64 {
    let load = (f64::from(iteration) / 310.0 + f64::from(worker) * 0.27) * TAU;
    let contended = if load.sin() > 0.35 { 0.58 } else { 1.0 };
    [820.0, 610.0, 480.0, 300.0][worker as usize] * contended * (1.0 + 0.03 * noise(iteration * 7 + worker))
}

fn predicted(worker: u32, iteration: u32) -> f64 {
    let past: Vec<f64> = (1..=4).map(|lag| speed(worker, iteration.saturating_sub(lag))).collect();
    past.iter().sum::<f64>() / past.len() as f64
}

fn over_time(value: impl Fn(u32) -> f64) -> Vec<(f64, f64)> {
    (0..ITERATIONS).map(|k| (f64::from(k), value(k))).collect()
}

fn speed_chart(worker: u32) -> Chart {
    let name = WORKERS[worker as usize];
    let away = |k: u32| worker == 2 && (700..790).contains(&k);
    let measured = over_time(|k| if away(k) { f64::NAN } else { speed(worker, k) });
    let forecast = over_time(|k| if away(k) { f64::NAN } else { predicted(worker, k) });
    let interval = forecast.iter().map(|(k, speed)| (*k, speed * 0.9, speed * 1.1)).collect();
    Chart {
        title: format!("Speed of {name}"),
        description: "Measured speed, and the forecast one step ahead with its 90 % interval.".into(),
        x: Axis::new("iteration", ""),
        y: Axis::new("speed", "samples/s").from_zero(),
        marks: vec![
            Mark::Line { name: "measured".into(), points: measured, dashed: false },
            Mark::Band { name: "predicted".into(), points: interval },
            Mark::Line { name: "predicted".into(), points: forecast, dashed: true },
        ],
    }
}

fn batches_chart() -> Chart {
    let share = |worker: u32, k: u32| {
        let k = k / 20 * 20;
        GLOBAL_BATCH * predicted(worker, k) / (0..4).map(|other| predicted(other, k)).sum::<f64>()
    };
    Chart {
        title: "Batches over time".into(),
        description: "Split of the global batch of 512 samples; the sum is constant.".into(),
        x: Axis::new("iteration", ""),
        y: Axis::new("local batch", "samples"),
        marks: vec![Mark::StackedArea {
            layers: (0..4)
                .map(|worker| Layer {
                    name: WORKERS[worker as usize].into(),
                    points: over_time(|k| share(worker, k)),
                })
                .collect(),
        }],
    }
}

fn step_time_chart() -> Chart {
    let even = |k: u32| 1e3 * (0..4).map(|w| GLOBAL_BATCH / 4.0 / speed(w, k)).fold(0.0, f64::max);
    let evenstep = |k: u32| 1e3 * GLOBAL_BATCH / (0..4).map(|w| speed(w, k)).sum::<f64>() * 1.06;
    Chart {
        title: "Step time under both policies".into(),
        description: "Each point is one iteration, which ends when the slowest worker finishes.".into(),
        x: Axis::new("iteration", ""),
        y: Axis::new("step time", "ms").from_zero(),
        marks: vec![
            Mark::Line { name: "even".into(), points: over_time(even), dashed: false },
            Mark::Line { name: "evenstep".into(), points: over_time(evenstep), dashed: false },
            Mark::Rule { name: "load begins".into(), at: RuleAt::X(238.0) },
        ],
    }
}

fn percentile_chart() -> Chart {
    let bars = |values: [f64; 4]| {
        ["p50", "p90", "p95", "p99"]
            .iter()
            .zip(values)
            .map(|(name, value)| Bar { category: (*name).into(), value })
            .collect()
    };
    Chart {
        title: "Step time percentiles".into(),
        description: "Lower is better.".into(),
        x: Axis::new("percentile", ""),
        y: Axis::new("step time", "ms"),
        marks: vec![
            Mark::Bars { name: "even".into(), bars: bars([436.0, 702.0, 718.0, 741.0]) },
            Mark::Bars { name: "evenstep".into(), bars: bars([261.0, 312.0, 324.0, 347.0]) },
            Mark::Rule { name: "ideal 246 ms".into(), at: RuleAt::Y(246.0) },
        ],
    }
}

fn timeline_chart() -> Chart {
    let compute = [0.156, 0.209, 0.267, 0.427];
    let mut parts: [Vec<Span>; 3] = Default::default();
    for step in 0..3_u32 {
        let start = f64::from(step) * 0.46;
        for (lane, time) in WORKERS.iter().zip(compute) {
            let mut add = |part: usize, from: f64, to: f64| {
                let label = format!("iteration {step}");
                let (from, to, inside) = (start + from, start + to, String::new());
                parts[part].push(Span { lane: (*lane).into(), from, to, label, inside });
            };
            add(0, 0.0, time);
            add(1, time, 0.427);
            add(2, 0.427, 0.46);
        }
    }
    Chart {
        title: "Three iterations with even batches".into(),
        description: "Time of each worker by activity.".into(),
        x: Axis::new("time", "s"),
        y: Axis::new("worker", ""),
        marks: ["compute", "barrier wait", "all-reduce"]
            .into_iter()
            .zip(parts)
            .map(|(name, spans)| Mark::Spans { name: name.into(), idle: name == "barrier wait", spans })
            .collect(),
    }
}

fn empty_chart() -> Chart {
    Chart {
        title: "GPU clocks".into(),
        description: "This host has no GPU.".into(),
        x: Axis::new("time", "s"),
        y: Axis::new("SM clock", "MHz"),
        marks: vec![Mark::Line { name: "GPU 0".into(), points: vec![], dashed: false }],
    }
}

fn table() -> Table {
    let row = |policy: &str, values: [f64; 5]| {
        let [p50, p95, wait, throughput, loss] = values;
        vec![
            policy.into(),
            Cell::number(p50, 0),
            Cell::number(p95, 0),
            Cell::number(wait, 1),
            Cell::number(throughput, 0),
            Cell::number(loss, 4),
        ]
    };
    let mut ideal = row("ideal (sum of the speeds)", [246.0, f64::NAN, 0.0, 2_081.0, f64::NAN]);
    ideal.truncate(5);
    Table {
        title: "Both policies".into(),
        description: "Same job, seed and samples under both policies.".into(),
        columns: [
            "policy",
            "step p50 (ms)",
            "step p95 (ms)",
            "barrier wait (%)",
            "throughput (samples/s)",
            "final loss",
        ]
        .map(String::from)
        .to_vec(),
        rows: vec![
            row("even", [436.0, 718.0, 38.2, 1_121.0, 0.3127]),
            row("evenstep", [261.0, 324.0, 4.1, 1_940.0, 0.3126]),
            ideal,
        ],
    }
}

fn main() -> std::io::Result<()> {
    let report = Report {
        title: "Report gallery".into(),
        subtitle: "Every kind of mark in the reports of evenstep".into(),
        sections: vec![
            Section::Notice("All data on this page are invented. Nothing was measured.".into()),
            Section::Figures(vec![
                Figure::new("Throughput", "1.73×", "1,940 against 1,121 samples/s"),
                Figure::new("Of the ideal", "93 %", "the sum of the speeds"),
                Figure::new("Barrier wait", "4.1 %", "38.2 % with even batches"),
                Figure::new("Request latency", "0.21 ms", "p50, 0.08 % of a step"),
            ]),
            Section::Table(table()),
            Section::Text {
                heading: "Step time".into(),
                paragraphs: vec![
                    "With even batches the other workers wait for the slowest at the barrier. \
                     With batches in proportion to speed all workers finish together."
                        .into(),
                ],
            },
            Section::Charts(vec![step_time_chart(), percentile_chart()]),
            Section::Charts(vec![timeline_chart()]),
            Section::Text {
                heading: "Speeds and batches".into(),
                paragraphs: vec![
                    "node-b/0 was not a member between iterations 700 and 790, so its lines have a \
                        gap."
                        .into(),
                ],
            },
            Section::Charts((0..4).map(speed_chart).collect()),
            Section::Charts(vec![batches_chart(), empty_chart()]),
        ],
    };
    std::io::stdout().write_all(report.to_html().as_bytes())
}
