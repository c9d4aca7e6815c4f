//! Dark mode, phone size and reduced motion.

use evenstep_tests::browser::{DESKTOP, PHONE};

use crate::scene::Scene;

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
        browser.picture(picture);
    }
    // A scheme that was chosen by hand is kept.
    browser.resize(DESKTOP);
    browser.click("#theme");
    browser.open(&scene.at(""));
    browser.until("the page is light", "document.documentElement.dataset.theme === 'light'");
    scene.no_complaints();
}
