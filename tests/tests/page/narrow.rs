//! Dark mode, phone size and reduced motion.

use evenstep_tests::browser::{DESKTOP, PHONE};

use crate::scene::{JOB, Scene};

/// Whether a page is wider than the window, which would require horizontal scrolling.
const OVERFLOWS: &str = "document.documentElement.scrollWidth > document.documentElement.clientWidth";

#[test]
fn every_page_fits_a_phone_and_follows_the_scheme() {
    let name = "narrow::every_page_fits_a_phone_and_follows_the_scheme";
    let Some(scene) = Scene::with_job(name, 4, 40) else { return };
    scene.measure("node-a");
    let browser = &scene.browser;
    let ground = "return getComputedStyle(document.body).backgroundColor";
    browser.prefer(&[("prefers-color-scheme", "light"), ("prefers-reduced-motion", "reduce")]);
    scene.open_job();
    let light = browser.run(ground);
    let moving = "return getComputedStyle(document.querySelector('.took')).transitionDuration";
    assert_eq!(browser.run(moving), "0s", "no motion with reduced motion");
    // The page follows the system's color scheme.
    browser.prefer(&[("prefers-color-scheme", "dark")]);
    browser.until("the page is dark", "document.documentElement.dataset.theme === 'dark'");
    assert_ne!(browser.run(ground), light);
    browser.picture("job-dark");
    for (page, words, picture) in [
        ("", "resnet-50", "jobs-phone"),
        ("#/jobs/resnet-50", "Workers", "job-phone"),
        ("#/nodes", "node-a", "nodes-phone"),
        ("#/nodes/node-a", "Processors", "node-phone"),
        ("#/store", "Contents", "store-phone"),
        ("#/reports", "Open a report file", "reports-phone"),
    ] {
        browser.resize(PHONE);
        browser.open(&scene.at(page));
        browser.says("main", words);
        assert_eq!(browser.run(&format!("return {OVERFLOWS}")), false, "{page:?} is wider than a phone");
        if page.is_empty() {
            for value in ["Report", "Workers", "Step"] {
                let shown =
                    format!("return document.querySelector('.job [data-title={value}]').checkVisibility()");
                assert_eq!(browser.run(&shown), true, "{value} on a phone");
            }
        }
        if picture == "job-phone" {
            let table = "document.querySelector('.tall')";
            browser.until("the workers are shown", &format!("{table}.querySelector('tbody tr')"));
            let heads = format!(
                "return [...{table}.querySelectorAll('th[scope=col]')].filter((head) => head.checkVisibility()).map((head) => head.innerText).join()"
            );
            assert_eq!(browser.run(&heads), "Worker,Batch,Speed,Slow or overridden,Operator");
            assert_eq!(browser.run(&format!("return {table}.scrollWidth > {table}.clientWidth")), false);
        }
        browser.picture(picture);
    }
    // A scheme that was chosen by hand is kept.
    browser.resize(DESKTOP);
    browser.click("#theme");
    browser.open(&scene.at(""));
    browser.until("the page is light", "document.documentElement.dataset.theme === 'light'");
    scene.no_complaints();
}

/// The longest names do not widen or heighten charts, chips and rows.
#[test]
fn long_names_fit() {
    let name = "narrow::long_names_fit";
    let workers: Vec<_> =
        ["a", "b", "c"].map(|letter| evenstep_protocol::WorkerId::new(letter.repeat(128)).unwrap()).into();
    let Some(scene) = Scene::with_workers(name, &workers, 10) else { return };
    for size in [DESKTOP, PHONE] {
        scene.browser.resize(size);
        scene.open_job();
        scene
            .browser
            .until("a chart for each", "document.querySelectorAll('.multiples canvas').length === 3");
        assert_eq!(scene.browser.run(&format!("return {OVERFLOWS}")), false, "at {size:?}");
        for (css, most) in [(".multiples .head", 40.0), (".chip", 40.0), (".tall tbody th", 80.0)] {
            let height = format!("return document.querySelector('{css}').clientHeight");
            assert!(scene.browser.run(&height).as_f64() <= Some(most), "{css} at {size:?}");
        }
    }
    scene.browser.open(&scene.at(&format!("#/jobs/{JOB}/workers/{}", workers[0])));
    scene.browser.says("h1", workers[0].as_str());
    assert_eq!(scene.browser.run(&format!("return {OVERFLOWS}")), false, "the page of a worker");
    scene.no_complaints();
}
