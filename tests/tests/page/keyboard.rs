//! All functions of the page work without a mouse.

use crate::scene::{JOB, Scene};

const TAB: char = '\u{e004}';
const ENTER: char = '\u{e007}';
const ESCAPE: char = '\u{e00c}';
const LEFT: char = '\u{e012}';
const SPACE: char = ' ';

/// Maximum number of key presses to reach any element.
const PRESSES_MAX: usize = 60;

impl Scene {
    /// Presses the key until an expression about the focused element is true.
    fn tab_until(&self, what: &str, expression: &str) {
        for _ in 0..PRESSES_MAX {
            self.browser.press(&[TAB]);
            let here = format!("const here = document.activeElement; return Boolean({expression})");
            if self.browser.run(&here) == true {
                // The focus must be visible.
                let seen = "const style = getComputedStyle(document.activeElement); const after = getComputedStyle(document.activeElement, '::after');
                    return style.outlineStyle !== 'none' || after.outlineStyle !== 'none'";
                assert_eq!(self.browser.run(seen), true, "{what}: the focus is not visible");
                return;
            }
        }
        panic!("not reachable by keyboard: {what}");
    }
}

#[test]
fn the_page_works_by_keyboard() {
    let Some(scene) = Scene::with_job("keyboard::the_page_works_by_keyboard", 4, 10) else { return };
    let browser = &scene.browser;
    browser.open(&scene.at(""));
    browser.says(".job a", JOB);
    browser.press(&[TAB]);
    assert_eq!(
        browser.run("return document.activeElement.className"),
        "skip",
        "the first element skips the header"
    );
    browser.press(&[ENTER]);
    assert_eq!(browser.run("return document.activeElement.id"), "content");
    scene.tab_until("the job", "here.closest('.job')");
    browser.press(&[ENTER]);
    // The focus moves to the new page.
    browser.until(
        "the job's page has the focus",
        "document.activeElement.tagName === 'H1' && document.activeElement.innerText === 'resnet-50'",
    );
    browser.until("the charts are drawn", "document.querySelectorAll('canvas').length >= 2");
    scene.tab_until("the list of workers", "here.tagName === 'SUMMARY'");
    browser.press(&[ENTER]);
    scene.tab_until("a worker of it", "here.type === 'checkbox'");
    browser.press(&[SPACE]);
    browser.until("one worker fewer is shown", "document.querySelectorAll('.chip').length === 3");
    browser.press(&[ESCAPE]);
    browser.until("the list is closed", "!document.querySelector('details').open");
    scene.tab_until("a table behind a chart", "here.getAttribute('aria-expanded') === 'false'");
    browser.press(&[ENTER]);
    browser.says(".behind", "node-a/0");
    scene.tab_until("a chart", "here.querySelector('canvas')");
    browser.press(&[LEFT, LEFT]);
    browser.until(
        "the chart shows a value at that moment",
        "document.activeElement.closest('figure').querySelector('.legend b').innerText !== ''",
    );
    scene.tab_until("the actions for a worker", "here.dataset.worker");
    browser.press(&[ENTER]);
    browser.until("the dialog has the focus", "document.activeElement.closest('dialog')");
    browser.press(&[ESCAPE]);
    browser.until("the focus is back", "document.activeElement.dataset.worker");
    scene.no_complaints();
}
