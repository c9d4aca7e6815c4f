//! Laws of a picture, read back with an XML parser.
#![expect(clippy::expect_used, reason = "the parser is a helper of tests: what it cannot read fails them")]

use evenstep_report::{Axis, Bar, Chart, Layer, Mark, RuleAt, Span};
use parsed::{Parsed, parse};
use proptest::prelude::*;

mod parsed;

/// A chart for each kind of mark, with the same words everywhere.
fn charts(words: &str, values: &[(f64, f64)]) -> Vec<Chart> {
    let w = || words.to_owned();
    let (first, second) = values.first().copied().unwrap_or((f64::NAN, f64::NAN));
    let marks = [
        vec![
            Mark::Line { name: w(), points: values.to_vec(), dashed: true },
            Mark::Band { name: w(), points: values.iter().map(|(x, y)| (*x, *y, y * 2.0)).collect() },
            Mark::Rule { name: w(), at: RuleAt::X(first) },
            Mark::Rule { name: w(), at: RuleAt::Y(second) },
        ],
        vec![Mark::StackedArea { layers: vec![Layer { name: w(), points: values.to_vec() }] }],
        vec![Mark::Bars { name: w(), bars: vec![Bar { category: w(), value: second }] }],
        vec![Mark::Spans {
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
        }],
    ];
    let axis = || Axis::new(w(), w());
    let chart = |marks| Chart { title: w(), description: w(), x: axis(), y: axis(), marks };
    marks.into_iter().map(chart).collect()
}

/// Elements without those that hold what was cut short.
fn elements(parsed: &Parsed) -> Vec<&str> {
    parsed.elements.iter().map(String::as_str).filter(|name| *name != "title").collect()
}

fn any_number() -> impl Strategy<Value = f64> {
    prop_oneof![-1e4..1e4_f64, any::<f64>(), Just(f64::NAN), Just(0.0)]
}

proptest! {
    #[test]
    fn any_words_read_back_and_none_become_markup(words in "[<>&\"'/a-z!;\\-\\[\\]\\x01-\\x08 ]{1,40}") {
        let values = [(0.0, 1.0), (1.0, 3.0), (2.0, 2.0)];
        let whole = words.replace(char::is_control, "\u{fffd}");
        for (chart, plain) in charts(&words, &values).iter().zip(charts("plain", &values)) {
            let (parsed, plain) = (parse(&chart.to_svg()), parse(&plain.to_svg()));
            prop_assert_eq!(elements(&parsed), elements(&plain));
            prop_assert!(parsed.texts.contains(&whole), "{whole} in {:?}", parsed.texts);
        }
    }

    #[test]
    fn any_numbers_make_a_well_formed_picture_without_nan(
        values in prop::collection::vec((any_number(), any_number()), 0..40),
    ) {
        for chart in charts("words", &values) {
            let svg = chart.to_svg();
            parse(&svg);
            for wrong in ["NaN", "\"inf", "\"-inf", "e308"] {
                prop_assert!(!svg.contains(wrong), "{wrong} in {svg}");
            }
            prop_assert_eq!(svg, chart.to_svg());
        }
    }
}

#[test]
fn the_file_stands_alone() {
    let namespace = "xmlns=\"http://www.w3.org/2000/svg\"";
    for chart in charts("words", &[(0.0, 1.0)]) {
        let svg = chart.to_svg();
        assert!(svg.starts_with("<svg ") && svg.contains(namespace));
        let rest = svg.replace(namespace, "");
        for outside in ["http:", "https:", "href=", "url(", "@import", "<script"] {
            assert!(!rest.contains(outside), "{outside}");
        }
    }
}

#[test]
fn nothing_to_draw_says_so() {
    for chart in charts("words", &[(f64::NAN, f64::NAN)]) {
        assert!(parse(&chart.to_svg()).texts.contains(&"no data".to_owned()), "{}", chart.to_svg());
    }
}

#[test]
fn what_has_room_is_whole() {
    let svg = charts("words", &[(0.0, 1.0), (100.0, 3_000.0)]).remove(0).to_svg();
    assert!(parse(&svg).texts.contains(&"3,000".to_owned()) && !svg.contains('…'), "{svg}");
}

#[test]
fn points_that_no_line_joins_are_dots() {
    let drawn = |points: Vec<(f64, f64)>| {
        let marks = vec![Mark::Line { name: "measured".into(), points, dashed: false }];
        Chart { marks, ..charts("words", &[]).remove(0) }.to_svg().matches(" dots\"").count()
    };
    assert_eq!(
        drawn(vec![(0.0, 1.0), (0.0, f64::NAN), (1.0, 2.0), (1.0, f64::NAN)]),
        2,
        "in the legend and the plot"
    );
    assert_eq!(drawn(vec![(0.0, 1.0), (1.0, 2.0)]), 0);
}

#[test]
fn a_word_stands_inside_a_span_where_it_has_room() {
    let span = |from: f64, to: f64, inside: &str| Span {
        lane: "a".into(),
        from,
        to,
        label: String::new(),
        inside: inside.into(),
    };
    let spans = vec![span(0.0, 50.0, "wide"), span(50.0, 50.5, "narrow"), span(51.0, 100.0, "")];
    let marks = vec![Mark::Spans { name: "compute".into(), idle: false, spans }];
    let parsed = parse(&Chart { marks, ..charts("words", &[]).remove(0) }.to_svg());
    let has = |word: &str| parsed.texts.iter().any(|text| text == word);
    assert!(has("wide") && !has("narrow"));
}

#[test]
fn a_long_legend_makes_the_picture_higher_and_loses_no_name() {
    let lines = |count: usize| Chart {
        marks: (0..count)
            .map(|k| Mark::Line {
                name: format!("a worker, number {k}"),
                points: vec![(0.0, k as f64)],
                dashed: false,
            })
            .collect(),
        ..charts("words", &[]).remove(0)
    };
    let height = |svg: &str| -> f64 {
        let from = &svg[svg.find("height=\"").expect("a height") + 8..];
        from[..from.find('"').expect("its end")].parse().expect("a number")
    };
    let (few, many) = (lines(2).to_svg(), lines(30).to_svg());
    assert!(height(&few) == 300.0 && height(&many) > 400.0);
    let texts = parse(&many).texts;
    assert!((0..30).all(|k| texts.contains(&format!("a worker, number {k}"))));
}
