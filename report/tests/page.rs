//! Laws of a whole page, read back with an XML parser.
#![expect(clippy::expect_used, reason = "the parser is a helper of tests: what it cannot read fails them")]

use evenstep_report::{
    Axis, Bar, Cell, Chart, Figure, Layer, MAX_POINTS, MAX_TIPS, Mark, Report, RuleAt, Section, Span, Table,
};
use parsed::Parsed;
use proptest::prelude::*;

mod parsed;

/// What stands between `<body>` and `</body>`: HTML's unclosed elements are all in the head.
fn parse(html: &str) -> Parsed {
    parsed::parse(&html[html.find("<body>").expect("a body")..html.rfind("</html>").expect("an end")])
}

/// One of everything, with the same words and numbers everywhere.
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
            Section::Text { heading: w(), paragraphs: vec![w(), w()] },
            Section::Notice(w()),
            Section::Figures(vec![Figure { label: w(), value: w(), note: w() }]),
            Section::Table(Table {
                title: w(),
                description: w(),
                columns: vec![w()],
                rows: vec![vec![Cell::Text(w()), Cell::number(first, 2)], vec![Cell::Missing], vec![]],
            }),
            Section::Charts(vec![
                chart(vec![
                    Mark::Line { name: w(), points: values.to_vec(), dashed: true },
                    Mark::Band { name: w(), points: values.iter().map(|(x, y)| (*x, *y, y * 2.0)).collect() },
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
                            inside: format!("<{}", w().chars().next().unwrap_or('a')),
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
    fn any_words_read_back_and_none_become_markup(words in any_text()) {
        let values = [(0.0, 1.0), (1.0, 3.0), (2.0, 2.0)];
        let plain = parse(&report("plain", &values).to_html());
        let parsed = parse(&report(&words, &values).to_html());
        prop_assert_eq!(&parsed.elements, &plain.elements);
        // What XML and HTML forbid is shown as a replacement, and a parser may read any line end as a line feed.
        let forbidden = |c: char| (c.is_control() && !matches!(c, '\t' | '\n' | '\r')) || matches!(c, '\u{fffe}' | '\u{ffff}');
        let normal = |text: &str| text.replace("\r\n", "\n").replace(['\r', '\u{85}', '\u{2028}'], "\n");
        let expected = normal(&words.replace(forbidden, "\u{fffd}"));
        let found = |parsed: &Parsed, words: &str| parsed.texts.iter().filter(|text| normal(text) == words).count();
        // Words such as "0" stand on every page, on its axes.
        let anyway = if expected == "plain" { 0 } else { found(&plain, &expected) };
        prop_assert_eq!(found(&parsed, &expected), found(&plain, "plain") + anyway);
    }

    #[test]
    fn any_numbers_make_a_well_formed_page_without_nan(
        values in prop::collection::vec((any_number(), any_number()), 0..40),
    ) {
        let html = report("words", &values).to_html();
        parse(&html);
        let body = &html[html.find("<body>").unwrap()..];
        for wrong in ["NaN", "inf", "e308"] {
            prop_assert!(!body.contains(wrong), "{wrong} in {body}");
        }
    }
}

#[test]
fn the_file_stands_alone() {
    let html = report("words", &[(0.0, 1.0)]).to_html();
    for outside in ["http:", "https:", "src=", "href=", "url(", "@import", "<script"] {
        assert!(!html.contains(outside), "{outside}");
    }
}

#[test]
fn nothing_to_draw_says_so() {
    let rule = Chart { marks: vec![Mark::Rule { name: "limit".into(), at: RuleAt::Y(1.0) }], ..line(vec![]) };
    for chart in [line(vec![]), line(vec![(0.0, f64::NAN), (f64::NAN, 1.0)]), rule] {
        let html = page(chart);
        assert!(html.contains("no data") && !html.contains("<path"));
    }
    assert!(!page(line(vec![(0.0, 1.0)])).contains("no data"));
}

#[test]
fn a_missing_reading_breaks_the_line() {
    let drawn = |y: f64| page(line(vec![(0.0, 1.0), (1.0, 2.0), (2.0, y), (3.0, 2.0), (4.0, 1.0)]));
    let strokes = |html: &str| {
        let path = &html[html.rfind("class=\"line").expect("a line")..];
        path[..path.find("</path>").expect("its end")].matches('M').count()
    };
    assert_eq!(strokes(&drawn(1.5)), 1);
    assert_eq!(strokes(&drawn(f64::NAN)), 2);
}

#[test]
fn a_single_iteration_can_be_seen_in_a_stack_and_a_band() {
    let chart = Chart {
        marks: vec![
            Mark::StackedArea { layers: vec![Layer { name: "node-a/0".into(), points: vec![(7.0, 128.0)] }] },
            Mark::Band { name: "interval".into(), points: vec![(7.0, 100.0, 150.0)] },
        ],
        ..line(vec![])
    };
    let html = page(chart);
    for class in ["area", "band"] {
        let path = &html[html.rfind(&format!("<path class=\"{class}")).expect("a path")..];
        let d = path.split("d=\"").nth(1).expect("its outline");
        assert!(d.starts_with("M498 ") && d.contains("L502 "), "{d:.80}");
    }
}

#[test]
fn a_hundred_thousand_points_make_a_small_file_that_keeps_the_peak() {
    // Twelve bytes for a point, and what surrounds the chart.
    const MAX_BYTES: usize = 12 * MAX_POINTS + 40_000;
    let mut points: Vec<(f64, f64)> =
        (0..100_000).map(|k| (f64::from(k), f64::from(k * 7_919 % 1_009))).collect();
    points[54_321].1 = 5_000.0;
    let html = page(line(points));
    assert!(html.len() < MAX_BYTES, "{} bytes", html.len());
    assert!(html.contains("L543.2 0L"), "the peak touches the top of the chart");
    assert!(html.matches("class=\"strip\"").count() <= MAX_TIPS);
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
    let html = page(Chart {
        marks: vec![Mark::Spans { name: "compute".into(), idle: false, spans }],
        ..line(vec![])
    });
    assert!(html.matches("<rect").count() < 1_500);
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
