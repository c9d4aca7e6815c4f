//! Properties of a whole page, parsed with an XML parser and, for the data of charts, a JSON parser.
#![expect(clippy::expect_used, reason = "the parser is a test helper: invalid input fails the test")]

use evenstep_report::{
    Axis, BUCKETS, Bar, Cell, Chart, Figure, Layer, MAX_POINTS, Mark, Report, RuleAt, Section, Span, Table,
};
use parsed::Parsed;
use proptest::prelude::*;
use serde_json::Value;

mod parsed;

/// Parses the content of `<body>`. HTML's unclosed elements are all in the head.
fn parse(html: &str) -> Parsed {
    parsed::parse(&html[html.find("<body>").expect("a body")..html.rfind("</html>").expect("an end")])
}

/// Returns the data of each chart.
fn charts(parsed: &Parsed) -> Vec<Value> {
    let blocks = parsed.texts.iter().filter(|text| text.starts_with("{\"x\":"));
    blocks.map(|text| serde_json::from_str(text).expect("JSON")).collect()
}

/// Collects every string in a value.
fn strings<'a>(value: &'a Value, into: &mut Vec<&'a str>) {
    match value {
        Value::String(text) => into.push(text),
        Value::Array(values) => values.iter().for_each(|value| strings(value, into)),
        Value::Object(fields) => fields.values().for_each(|value| strings(value, into)),
        _ => {}
    }
}

/// Returns the marks of a kind in a page with one chart.
fn marks(chart: Chart, kind: &str) -> Vec<Value> {
    let charts = charts(&parse(&page(chart)));
    let marks = charts[0]["marks"].as_array().expect("marks");
    marks.iter().filter(|mark| mark["kind"] == kind).cloned().collect()
}

/// A report with every kind of section and mark. The same texts and values occur everywhere.
fn report(words: &str, values: &[(f64, f64)]) -> Report {
    let w = || words.to_owned();
    let chart = |marks| Chart {
        title: w(),
        description: w(),
        x: Axis::new(w(), w()),
        y: Axis::new(w(), w()).from_zero(),
        marks,
    };
    let (first, second) = values.first().copied().unwrap_or((f64::NAN, f64::NAN));
    Report {
        title: w(),
        subtitle: w(),
        sections: vec![
            Section::Verdict(w()),
            Section::Text { heading: w(), paragraphs: vec![w(), w()] },
            Section::Notice(w()),
            Section::Figures(vec![Figure { label: w(), value: w(), note: w() }]),
            Section::Table(Table {
                title: w(),
                description: w(),
                columns: vec![w()],
                rows: vec![
                    vec![Cell::Text(w()), Cell::number(first, 2)],
                    vec![Cell::Missing, Cell::Best { value: second, decimals: 2 }],
                    vec![],
                ],
            }),
            Section::Charts(vec![
                chart(vec![
                    Mark::Line { name: w(), points: values.to_vec(), dashed: true },
                    Mark::Band { name: w(), points: values.iter().map(|(x, y)| (*x, *y, y * 2.0)).collect() },
                    Mark::Points { name: w(), points: values.to_vec() },
                    Mark::Rule { name: w(), at: RuleAt::X(first) },
                    Mark::Rule { name: w(), at: RuleAt::Y(second) },
                ]),
                chart(vec![Mark::StackedArea {
                    layers: vec![
                        Layer { name: w(), points: values.to_vec() },
                        Layer { name: w(), points: values.iter().map(|(x, y)| (*x, y.abs())).collect() },
                    ],
                }]),
                chart(vec![Mark::Bars { name: w(), bars: vec![Bar { category: w(), value: second }] }]),
                chart(vec![Mark::Spans {
                    name: w(),
                    idle: first > 0.0,
                    spans: values
                        .iter()
                        .map(|(from, to)| Span {
                            lane: w(),
                            from: *from,
                            to: *to,
                            label: w(),
                            inside: format!("<{}", w()),
                        })
                        .collect(),
                }]),
            ]),
        ],
    }
}

fn line(points: Vec<(f64, f64)>) -> Chart {
    Chart {
        title: "speed".into(),
        description: String::new(),
        x: Axis::new("iteration", ""),
        y: Axis::new("speed", "samples/s"),
        marks: vec![Mark::Line { name: "measured".into(), points, dashed: false }],
    }
}

fn page(chart: Chart) -> String {
    Report { sections: vec![Section::Charts(vec![chart])], ..Report::default() }.to_html()
}

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![any::<String>(), "[<>&\"'/a-z!;\\-\\[\\]\\x00-\\x1f]{1,40}"]
        .prop_filter("some words", |text| !text.is_empty())
}

fn any_number() -> impl Strategy<Value = f64> {
    prop_oneof![
        any::<f64>(),
        (-1e4..1e4_f64),
        prop::sample::select(vec![
            f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::MAX,
            f64::MIN,
            f64::MIN_POSITIVE,
            5e-324,
            -0.0,
            0.0
        ]),
    ]
}

proptest! {
    #[test]
    fn any_text_round_trips_and_is_escaped(words in any_text()) {
        let values = [(0.0, 1.0), (1.0, 3.0), (2.0, 2.0)];
        let plain = parse(&report("plain", &values).to_html());
        let parsed = parse(&report(&words, &values).to_html());
        prop_assert_eq!(&parsed.elements, &plain.elements);
        // Forbidden characters are replaced, and a parser may read any line end as a line feed.
        let forbidden = |c: char| (c.is_control() && !matches!(c, '\t' | '\n' | '\r')) || matches!(c, '\u{fffe}' | '\u{ffff}');
        let normal = |text: &str| text.replace("\r\n", "\n").replace(['\r', '\u{85}', '\u{2028}'], "\n");
        let expected = normal(&words.replace(forbidden, "\u{fffd}"));
        // Occurrences in the page, and in the data of charts.
        let found = |parsed: &Parsed, words: &str| {
            let charts = charts(parsed);
            let mut inside = Vec::new();
            charts.iter().for_each(|chart| strings(chart, &mut inside));
            let shown = parsed.texts.iter().map(String::as_str);
            let inside = inside.iter().map(|text| text.replace(forbidden, "\u{fffd}"));
            (shown.filter(|text| normal(text) == words).count(), inside.filter(|text| normal(text) == words).count())
        };
        // Texts that every page contains, such as "line" in the data of charts.
        let anyway = if expected == "plain" { (0, 0) } else { found(&plain, &expected) };
        let (shown, inside) = found(&plain, "plain");
        prop_assert_eq!(found(&parsed, &expected), (shown + anyway.0, inside + anyway.1));
    }

    #[test]
    fn any_numbers_make_a_well_formed_page_without_nan(
        values in prop::collection::vec((any_number(), any_number()), 0..40),
    ) {
        let html = report("words", &values).to_html();
        charts(&parse(&html));
        let body = &html[html.find("<body>").unwrap()..];
        for wrong in ["NaN", "inf", "e308"] {
            prop_assert!(!body.contains(wrong), "{wrong} in {body}");
        }
    }
}

#[test]
fn the_file_stands_alone() {
    let html = report("words", &[(0.0, 1.0)]).to_html();
    for outside in ["src=", "href=", "url(", "@import", "fetch(", "XMLHttpRequest"] {
        assert!(!html.contains(outside), "{outside}");
    }
    // The licence of uPlot names its origin.
    assert_eq!(
        html.matches("http").count(),
        html.matches("http-equiv").count() + html.matches("https://github.com/leeoniya/uPlot").count()
    );
}

#[test]
fn a_page_with_several_headings_has_contents() {
    let heading = |words: &str| Section::Text { heading: words.into(), paragraphs: Vec::new() };
    let sections =
        vec![Section::Verdict("It pays.".into()), heading("One"), heading("Two"), heading("Three")];
    let html = Report { title: "t".into(), subtitle: String::new(), sections }.to_html();
    for (place, words) in [(1, "One"), (2, "Two"), (3, "Three")] {
        assert!(html.contains(&format!("<a href=\"#part-{place}\">{words}</a>")), "{words}");
        assert!(html.contains(&format!("id=\"part-{place}\"")), "{words}");
    }
    let table = || Section::Table(Table::new("Errors", "", &["a"], Vec::new()));
    let twice =
        Report { title: "t".into(), subtitle: String::new(), sections: vec![table(), table()] }.to_html();
    assert!(twice.contains("aria-label=\"Errors\"") && twice.contains("aria-label=\"Errors (2)\""));
    let [verdict, contents] = ["It pays.", "<nav"].map(|part| html.find(part).unwrap());
    assert!(verdict < contents, "the verdict comes first");
}

#[test]
fn the_policy_names_every_script_and_style_and_nothing_else() {
    let html = report("words", &[(0.0, 1.0)]).to_html();
    let policy = html.split("Content-Security-Policy\" content=\"").nth(1).expect("a policy");
    let policy = &policy[..policy.find('"').expect("its end")];
    assert!(policy.starts_with("default-src 'none'; ") && !policy.contains("unsafe"), "{policy}");
    let blocks = html.matches("<script").count() - html.matches("<script type=\"application/json\"").count();
    assert_eq!(policy.matches("'sha256-").count(), blocks + html.matches("<style").count());
    assert!(!html.contains(" style=\""), "the policy forbids style attributes");
}

#[test]
fn an_empty_chart_has_a_message() {
    let rule = Chart { marks: vec![Mark::Rule { name: "limit".into(), at: RuleAt::Y(1.0) }], ..line(vec![]) };
    for chart in [line(vec![]), line(vec![(0.0, f64::NAN), (f64::NAN, 1.0)]), rule] {
        let parsed = parse(&page(chart));
        assert!(parsed.texts.contains(&"no data".to_owned()) && charts(&parsed).is_empty());
    }
    assert_eq!(charts(&parse(&page(line(vec![(0.0, 1.0)])))).len(), 1);
}

#[test]
fn a_missing_reading_breaks_the_line() {
    let drawn = |y: f64| {
        let lines = marks(line(vec![(0.0, 1.0), (1.0, 2.0), (2.0, y), (3.0, 2.0), (4.0, 1.0)]), "line");
        lines[0]["y"].as_array().expect("readings").iter().filter(|y| y.is_null()).count()
    };
    assert_eq!((drawn(1.5), drawn(f64::NAN)), (0, 1));
}

#[test]
fn isolated_points_are_drawn_as_points() {
    let apart = [(0.0, 1.0), (0.0, f64::NAN), (1.0, 2.0), (1.0, f64::NAN)];
    assert_eq!(marks(line(apart.to_vec()), "points").len(), 1);
    assert_eq!(marks(line(vec![(0.0, 1.0), (1.0, 2.0)]), "points").len(), 0);
    let several = Mark::Points { name: "measured".into(), points: vec![(1.0, 2.0), (0.0, 1.0), (1.0, 3.0)] };
    let points = marks(Chart { marks: vec![several], ..line(vec![]) }, "points");
    assert_eq!(points[0]["y"], serde_json::json!([1, 2, 3]), "in order of x, with both points at x = 1");
}

#[test]
fn a_single_iteration_is_in_a_stack_and_a_band() {
    let chart = Chart {
        marks: vec![
            Mark::StackedArea { layers: vec![Layer { name: "node-a/0".into(), points: vec![(7.0, 128.0)] }] },
            Mark::Band { name: "interval".into(), points: vec![(7.0, 100.0, 150.0)] },
        ],
        ..line(vec![])
    };
    assert_eq!(marks(chart.clone(), "area")[0]["y"], serde_json::json!([128]));
    assert_eq!(marks(chart, "band")[0]["upper"], serde_json::json!([150]));
}

#[test]
fn series_over_the_same_x_share_it() {
    let points: Vec<(f64, f64)> = (0..1_000).map(|k| (f64::from(k), f64::from(k % 7))).collect();
    let chart = Chart { marks: [line(points.clone()).marks, line(points).marks].concat(), ..line(vec![]) };
    assert_eq!(charts(&parse(&page(chart)))[0]["xs"].as_array().expect("values of x").len(), 1);
}

#[test]
fn a_hundred_thousand_points_make_a_small_file_that_keeps_the_peak() {
    // Fourteen bytes per point, and a constant size of scripts and style.
    const MAX_BYTES: usize = 14 * MAX_POINTS + 110_000;
    let mut points: Vec<(f64, f64)> =
        (0..100_000).map(|k| (f64::from(k), f64::from(k * 7_919 % 1_009))).collect();
    points[54_321].1 = 5_000.0;
    let html = page(line(points.clone()));
    assert!(html.len() < MAX_BYTES, "{} bytes", html.len());
    let kept = &marks(line(points), "line")[0]["y"];
    assert!(kept.as_array().expect("readings").contains(&serde_json::json!(5_000)));
}

#[test]
fn many_spans_are_drawn_as_few() {
    let spans = (0..100_000)
        .map(|k| Span {
            lane: "node-a/0".into(),
            from: f64::from(k),
            to: f64::from(k) + 0.5,
            label: String::new(),
            inside: String::new(),
        })
        .collect();
    let marks = marks(
        Chart { marks: vec![Mark::Spans { name: "compute".into(), idle: false, spans }], ..line(vec![]) },
        "spans",
    );
    let drawn = marks[0]["spans"].as_array().expect("spans");
    assert!(drawn.len() <= 2 * BUCKETS + 1, "{}", drawn.len());
    let several =
        drawn.iter().filter_map(|span| span[3].as_str()?.strip_suffix(" intervals")?.parse::<usize>().ok());
    let alone = drawn.iter().filter(|span| span[3] == "").count();
    assert_eq!(several.sum::<usize>() + alone, 100_000, "every span is counted");
}

#[test]
fn a_short_row_ends_in_missing_cells_and_a_long_one_keeps_all() {
    let rows = vec![vec!["a".into()], vec!["b".into(), Cell::number(f64::NAN, 1), Cell::number(-1234.5, 1)]];
    let table = Table { columns: vec!["name".into(), "value".into()], rows, ..Table::default() };
    let html = Report { sections: vec![Section::Table(table)], ..Report::default() }.to_html();
    let parsed = parse(&html);
    assert_eq!(parsed.elements.iter().filter(|name| *name == "td").count(), 6);
    assert_eq!(parsed.texts.iter().filter(|text| *text == "–").count(), 3);
    assert!(parsed.texts.contains(&"\u{2212}1,234.5".to_owned()));
}

#[test]
fn times_have_the_unit_of_the_largest_in_their_column() {
    let rows = [0.021_17, 0.000_068_64, f64::NAN]
        .map(|time| vec![Cell::Seconds(time), Cell::Seconds(2.0 * time * 1e3)]);
    let table = Table::new("Policies", "", &["step", "all"], rows.into());
    let texts = parse(&Report { sections: vec![Section::Table(table)], ..Report::default() }.to_html()).texts;
    let has_text = |text: &str| texts.iter().any(|found| found == text);
    assert!(has_text("step (ms)") && has_text("21.2") && has_text("0.1"), "{texts:?}");
    assert!(has_text("all (s)") && has_text("42.3") && has_text("–"), "{texts:?}");
}
