//! Reports open from the page, and can do nothing to it.

use crate::scene::Scene;

/// A page that says what it is, wears a style of its own, and tries to get at what is not its own.
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
    // What it tried was refused, and the browser says so of nothing but the report.
    let others: Vec<String> = browser
        .complaints()
        .into_iter()
        .filter(|line| !line.contains("Content Security Policy") && !line.contains("about:srcdoc"))
        .collect();
    assert!(others.is_empty(), "{others:#?}");
}

/// The frame is of another origin: only the browser itself sees into it.
fn shown_and_harmless(scene: &Scene) {
    scene.browser.until("there is a frame", "document.querySelector('iframe.report')");
    scene.browser.in_frame("iframe.report", |browser| {
        browser.says("#words", "a report tried 0");
        assert_eq!(browser.run("return getComputedStyle(document.querySelector('p')).color"), "rgb(1, 2, 3)");
        assert_eq!(browser.run("return document.title"), "r");
    });
    assert_ne!(scene.browser.run("return document.title"), "taken");
}
