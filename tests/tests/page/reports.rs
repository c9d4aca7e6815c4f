//! Reports open in the page without access to it; evenstep's reports draw their charts wherever they are
//! opened.

use evenstep_report::{Axis, Bar, Chart, Layer, Mark, Report, RuleAt, Section, Span, Table};
use evenstep_tests::Browser;
use evenstep_tests::browser::{PHONE, axe};

use crate::accessible::{SCHEMES, serious_faults};
use crate::scene::Scene;

/// A page with text and a style that tries to access data outside of it.
const REPORT: &str =
    "<!doctype html><title>r</title><style>p { color: rgb(1, 2, 3) }</style><p id=words>a report</p><script>
    const tried = [];
    try { parent.document.title = 'taken'; tried.push('parent'); } catch {}
    try { localStorage.setItem('a', 'b'); tried.push('storage'); } catch {}
    fetch('/v1/jobs').then(() => document.title = 'net', () => 0);
    document.querySelector('p').textContent += ' tried ' + tried.length;
</script>";

#[test]
fn reports_open_from_the_folder_and_from_a_file() {
    let Some(scene) = Scene::empty("reports::reports_open_from_the_folder_and_from_a_file") else { return };
    let browser = &scene.browser;
    std::fs::write(scene.folder.path().join("reports/backtest.html"), REPORT).unwrap();
    browser.open(&scene.at("#/reports"));
    browser.click("main tbody a");
    browser.says("h1", "backtest.html");
    shown_and_harmless(&scene);

    let elsewhere = scene.folder.path().join("mine.html");
    std::fs::write(&elsewhere, REPORT).unwrap();
    browser.open(&scene.at("#/reports"));
    browser.says("main", "backtest.html");
    browser.fill("#report-file", elsewhere.to_str().unwrap());
    browser.says("main > div > h2", "mine.html");
    shown_and_harmless(&scene);
    browser.picture("report");
    // Its attempts were blocked, and the browser complains only about the report.
    let others: Vec<String> = browser
        .complaints()
        .into_iter()
        .filter(|line| !line.contains("Content Security Policy") && !line.contains("about:srcdoc"))
        .collect();
    assert!(others.is_empty(), "{others:#?}");
}

/// The frame has another origin: only the browser can look inside.
fn shown_and_harmless(scene: &Scene) {
    scene.browser.until("a frame exists", "document.querySelector('iframe.report')");
    scene.browser.in_frame("iframe.report", |browser| {
        browser.says("#words", "a report tried 0");
        assert_eq!(browser.run("return getComputedStyle(document.querySelector('p')).color"), "rgb(1, 2, 3)");
        assert_eq!(browser.run("return document.title"), "r");
    });
    assert_ne!(scene.browser.run("return document.title"), "taken");
}

/// Text that would change the title if it were parsed as markup.
const HOSTILE: &str =
    "</script><img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>&amp;";

/// Returns a chart with these marks.
fn chart(title: &str, y: Axis, marks: Vec<Mark>) -> Chart {
    Chart { title: title.into(), description: HOSTILE.into(), x: Axis::new("iteration", ""), y, marks }
}

/// Returns a report with every kind of mark.
fn every_mark() -> Report {
    let wave = |k: u32| 0.1 + 0.05 * (f64::from(k) / 9.0).sin();
    let points = |of: &dyn Fn(u32) -> f64| (0..200).map(|k| (f64::from(k), of(k))).collect::<Vec<_>>();
    let band = (0..200).map(|k| (f64::from(k), wave(k) * 0.9, wave(k) * 1.1)).collect();
    let lines = vec![
        Mark::Line {
            name: "measured".into(),
            points: points(&|k| if k < 90 { wave(k) } else { f64::NAN }),
            dashed: false,
        },
        Mark::Band { name: HOSTILE.into(), points: band },
        Mark::Points { name: "seen".into(), points: vec![(3.0, 0.12), (3.0, 0.14)] },
        Mark::Rule { name: "load begins".into(), at: RuleAt::X(40.0) },
    ];
    let layer = |name: &str, size: f64| Layer { name: name.into(), points: points(&|k| size + wave(k)) };
    let bars = |name: &str, values: [f64; 2]| Mark::Bars {
        name: name.into(),
        bars: ["p50", "p95"]
            .into_iter()
            .zip(values)
            .map(|(of, value)| Bar { category: of.into(), value })
            .collect(),
    };
    let span = |lane: &str, from: f64, to: f64| Span {
        lane: lane.into(),
        from,
        to,
        label: HOSTILE.into(),
        inside: "192".into(),
    };
    let spans = vec![span("node-a/0", 0.0, 0.3), span("node-b/0", 0.0, 0.5)];
    let idle = vec![span("node-a/0", 0.3, 0.5)];
    let charts = vec![
        chart("Step time", Axis::new("step time", "s").from_zero(), lines),
        chart(
            "Batches",
            Axis::new("batch", "samples"),
            vec![Mark::StackedArea { layers: vec![layer("a", 3.0), layer("b", 2.0)] }],
        ),
        chart(
            "Percentiles",
            Axis::new("step time", "ms"),
            vec![bars("even", [420.0, 710.0]), bars("evenstep", [260.0, 320.0])],
        ),
        chart(
            "One step",
            Axis::new("worker", ""),
            vec![
                Mark::Spans { name: "compute".into(), idle: false, spans },
                Mark::Spans { name: "waiting".into(), idle: true, spans: idle },
            ],
        ),
        chart("Clocks", Axis::new("clock", "MHz"), vec![]),
    ];
    let table = Table {
        title: "Summary".into(),
        columns: vec!["policy".into()],
        rows: vec![vec![HOSTILE.into()]],
        ..Table::default()
    };
    Report {
        title: "Every mark".into(),
        subtitle: HOSTILE.into(),
        sections: vec![Section::Charts(charts), Section::Table(table)],
    }
}

/// Asserts that four charts are drawn, and that no text was parsed as markup.
fn drawn(browser: &Browser) {
    browser.until("the charts have frames", "document.querySelectorAll('.figure .plot').length === 4");
    // Charts out of view are drawn when they are printed or scrolled into view.
    browser.run("dispatchEvent(new Event('beforeprint')); dispatchEvent(new Event('afterprint'));");
    browser.until("every chart is drawn", "document.querySelectorAll('canvas').length === 4");
    let ink = "[...document.querySelectorAll('canvas')].every((canvas) => \
        new Set(new Uint32Array(canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.buffer)).size > 20)";
    browser.until("every canvas has colours", ink);
    assert_eq!(browser.run("return document.title"), "Every mark");
    assert_eq!(browser.run("return document.querySelectorAll('img, iframe, link').length"), 0);
    assert_eq!(browser.text(".nodata:not([hidden])"), "no data");
}

/// Returns the data of a chart as a table, the first row without spaces.
fn table_behind(browser: &Browser, title: &str) -> String {
    let row = format!(
        "const figure = [...document.querySelectorAll('figure')].find((figure) => figure.querySelector('h3').textContent === '{title}');
        const button = figure.querySelector('button');
        if (button.getAttribute('aria-expanded') === 'false') button.click();
        return [...figure.querySelector('tbody tr').children].map((cell) => cell.textContent).join('|');"
    );
    browser.run(&row).as_str().unwrap().to_owned()
}

#[test]
fn a_report_draws_its_charts_from_a_file_and_from_the_service() {
    let name = "reports::a_report_draws_its_charts_from_a_file_and_from_the_service";
    let Some(scene) = Scene::empty(name) else { return };
    let browser = &scene.browser;
    let path = scene.folder.path().join("reports/every.html");
    std::fs::write(&path, every_mark().to_html()).unwrap();

    browser.open(&format!("file://{}", path.display()));
    drawn(browser);
    assert_eq!(
        table_behind(browser, "Step time"),
        format!("0|100|{}|", "90 … 110"),
        "seconds are shown as milliseconds"
    );
    assert_eq!(table_behind(browser, "Batches"), "0|3.1|2.1");
    assert_eq!(table_behind(browser, "Percentiles"), "p50|420|260");
    assert_eq!(table_behind(browser, "One step"), format!("node-a/0|compute: {HOSTILE}|0|0.3"));
    // Points can be read without a pointer.
    browser.run("document.querySelector('.plot').focus()");
    browser.press(&['\u{e011}', '\u{e014}']);
    browser.says(".figure .plot + .axis", "iteration 1");
    browser.picture("report-of-evenstep");
    browser.resize(PHONE);
    browser.until("it fits a phone", "document.documentElement.scrollWidth <= innerWidth");
    scene.no_complaints();

    browser.open(&scene.at("#/reports/every.html"));
    browser.until("a frame exists", "document.querySelector('iframe.report')");
    browser.in_frame("iframe.report", drawn);
    browser.open(&scene.at("#/reports"));
    browser.says("main", "every.html");
    browser.fill("#report-file", path.to_str().unwrap());
    browser.until("a frame exists", "document.querySelector('iframe.report')");
    browser.in_frame("iframe.report", drawn);
    scene.no_complaints();
}

#[test]
fn axe_finds_nothing_serious_in_a_report() {
    let name = "reports::axe_finds_nothing_serious_in_a_report";
    let Some(axe) = axe(name) else { return };
    let Some(browser) = Browser::start(name) else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.html");
    // The policy of the report would also block axe.
    let html = every_mark().to_html().replacen("http-equiv", "data-left-out", 1);
    std::fs::write(&path, html).unwrap();
    for (scheme, rules) in SCHEMES {
        browser.prefer(&[("prefers-color-scheme", scheme)]);
        browser.open(&format!("file://{}", path.display()));
        drawn(&browser);
        table_behind(&browser, "Percentiles");
        let faults = serious_faults(&browser, &axe, rules, &format!("{scheme} report"));
        assert!(faults.is_empty(), "{faults:#?}");
    }
}
