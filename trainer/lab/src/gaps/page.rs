//! The HTML page of a measurement.

use evenstep_report::{Axis, Bar, Cell, Chart, Figure, Mark, Report, RuleAt, Section, Table};

use super::args::GapsArgs;
use super::rank::{CONFIGURATIONS, Configuration, RankMeasurements};
use super::results::{Figures, median};

/// Returns the page with results, conditions and charts.
pub fn page(args: &GapsArgs, ranks: &[RankMeasurements], figures: &Figures) -> Report {
    let plan = args.plan.as_ref().map_or_else(
        || {
            let samples = args.global_batch;
            format!(
                "the first and the last layer on all ranks, the other layers on rank 0; {samples} samples"
            )
        },
        |path| path.display().to_string(),
    );
    Report {
        title: "Background work in the gaps of a burst plan".into(),
        subtitle: format!(
            "{}, {} ranks; {} rounds of {} iterations; plan: {plan}",
            args.task.model_name(),
            ranks.len(),
            args.rounds,
            super::rank::BLOCK
        ),
        sections: vec![
            Section::Notice(
                "Measured on this machine together with any other activity on it. The configurations take turns, so \
                                 that it affects all of them."
                                    .into(),
            ),
            Section::Figures(headline(figures)),
            Section::Charts(vec![throughput(figures), iterations(ranks, figures)]),
            Section::Table(jobs(ranks, figures)),
        ],
    }
}

fn headline(figures: &Figures) -> Vec<Figure> {
    vec![
        Figure::new(
            "slow-down of the foreground",
            format!("{:.3}", figures.slow_down),
            format!("limit {:.2}", figures.slow_down_limit),
        ),
        Figure::new(
            "throughput, both jobs",
            format!("{:.2}", figures.throughput),
            format!("data parallel alone 1, one rank per job {:.2}", figures.one_each_throughput),
        ),
        Figure::new(
            "background work",
            format!("{:.0} samples/s", figures.background_samples_per_s.iter().sum::<f64>()),
            "in the gaps of all ranks",
        ),
        Figure::new(
            "parameters of the foreground",
            if figures.unchanged { "unchanged" } else { "changed" },
            "bitwise comparison, with and without background work",
        ),
    ]
}

fn named(arm: Configuration) -> &'static str {
    match arm {
        Configuration::Burst => "burst plan",
        Configuration::Filled => "burst plan + background",
        Configuration::DataParallel => "data parallel",
        Configuration::OneRank => "one rank",
        Configuration::Background => "background alone",
    }
}

fn throughput(figures: &Figures) -> Chart {
    let ranks = figures.background_samples_per_s.len();
    let others = ranks.saturating_sub(1) as f64;
    let rows = [
        ("data parallel", 1.0, 0.0),
        ("burst plan", figures.burst_throughput, 0.0),
        ("burst plan + background", figures.foreground_throughput, figures.background_throughput),
        ("one rank per job", figures.one_each_throughput - others, others),
    ];
    let bars = |name: &str, value: fn(&(&str, f64, f64)) -> f64| Mark::Bars {
        name: name.into(),
        bars: rows.iter().map(|row| Bar { category: row.0.into(), value: value(row) }).collect(),
    };
    Chart {
        title: "Throughput of the machine".into(),
        description:
            "Relative to each job alone: the foreground with data parallelism on all ranks, a background job \
                    without the foreground."
                .into(),
        x: Axis::new("", ""),
        y: Axis::new("throughput", "jobs alone"),
        marks: vec![
            bars("foreground", |row| row.1),
            bars("background", |row| row.2),
            bars("both", |row| row.1 + row.2),
        ],
    }
}

/// Returns a chart of the median iteration time of each round.
fn iterations(ranks: &[RankMeasurements], figures: &Figures) -> Chart {
    let turns = ranks.first().map_or(&[][..], |rank| &rank.turns);
    let line = |arm: Configuration| {
        let turns = turns.iter().filter(|turn| turn.arm == arm).enumerate();
        Mark::Line {
            name: named(arm).into(),
            points: turns
                .map(|(round, turn)| (round as f64, 1e3 * median(turn.iterations_s.iter().copied())))
                .collect(),
            dashed: matches!(arm, Configuration::DataParallel | Configuration::OneRank),
        }
    };
    let mut marks: Vec<Mark> = CONFIGURATIONS.map(line).into();
    let alone_ms = figures.iteration_ms.get(&Configuration::Burst).copied().unwrap_or(f64::NAN);
    let limit_ms = figures.slow_down_limit * alone_ms;
    marks.push(Mark::Rule { name: format!("limit {limit_ms:.1} ms"), at: RuleAt::Y(limit_ms) });
    Chart {
        title: "Iterations of the foreground".into(),
        description: "Median of each round on rank 0. The limit applies to the plan with background work."
            .into(),
        x: Axis::new("round", ""),
        y: Axis::new("iteration", "ms").from_zero(),
        marks,
    }
}

fn jobs(ranks: &[RankMeasurements], figures: &Figures) -> Table {
    let rates = figures.background_samples_per_s.iter().zip(&figures.background_alone_samples_per_s);
    let row = |(rank, (told, (rate, alone))): (usize, (&RankMeasurements, (&f64, &f64)))| {
        let beside = told.background;
        vec![
            Cell::Text(format!("rank {rank}")),
            Cell::number(*rate, 0),
            Cell::number(*alone, 0),
            Cell::number(beside.piece_samples as f64, 0),
            Cell::Seconds(beside.piece_us / 1e6),
            Cell::number(beside.ran.steps as f64, 0),
            Cell::number(beside.ran.loss.0, 4),
            Cell::number(beside.ran.loss.1, 4),
        ]
    };
    Table::new(
        "Background jobs",
        "One job per rank; losses are measured on the first samples of each task.",
        &[
            "",
            "samples/s in gaps",
            "samples/s alone",
            "samples per piece",
            "piece",
            "steps",
            "loss before",
            "loss after",
        ],
        ranks.iter().zip(rates).enumerate().map(row).collect(),
    )
}
