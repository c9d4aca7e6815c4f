//! Everything can be reached and done without a mouse.

use crate::scene::{JOB, Scene};

const TAB: char = '\u{e004}';
const ENTER: char = '\u{e007}';
const ESCAPE: char = '\u{e00c}';
const LEFT: char = '\u{e012}';
const SPACE: char = ' ';

/// So many presses reach everything on a page.
const PRESSES_MAX: usize = 60;

impl Scene {
    /// Presses the key until an expression about the focused element is true.
    fn tab_until(&self, what: &str, expression: &str) {
        for _ in 0..PRESSES_MAX {
            self.browser.press(&[TAB]);
            let here = format!("const here = document.activeElement; return Boolean({expression})");
            if self.browser.run(&here) == true {
                // Whoever goes by keyboard must see where they are.
                let seen = "const style = getComputedStyle(document.activeElement); const after = getComputedStyle(document.activeElement, '::after');
                    return style.outlineStyle !== 'none' || after.outlineStyle !== 'none'";
                assert_eq!(self.browser.run(seen), true, "{what}: the focus is not to be seen");
                return;
            }
        }
        panic!("never reached by keyboard: {what}");
    }
}

#[test]
fn the_page_works_by_keyboard() {
    let Some(scene) = Scene::with_job("keyboard::the_page_works_by_keyboard", 4, 10) else { return };
    let browser = &scene.browser;
    browser.open(&scene.at(""));
    browser.says(".job h2", JOB);
    browser.press(&[TAB]);
    assert_eq!(
        browser.run("return document.activeElement.className"),
        "skip",
        "the first stop leads past the head"
    );
    browser.press(&[ENTER]);
    assert_eq!(browser.run("return document.activeElement.id"), "content");
    scene.tab_until("the job", "here.closest('.job')");
    browser.press(&[ENTER]);
    // The focus goes along to the new page.
    browser.until(
        "the job's page has the focus",
        "document.activeElement.tagName === 'H1' && document.activeElement.innerText === 'resnet-50'",
    );
    browser.until("the charts are drawn", "document.querySelectorAll('canvas').length >= 2");
    scene.tab_until("a table behind a chart", "here.getAttribute('aria-expanded') === 'false'");
    browser.press(&[ENTER]);
    browser.says(".behind", "node-a/0");
    scene.tab_until("the list of workers", "here.tagName === 'SUMMARY'");
    browser.press(&[ENTER]);
    scene.tab_until("a worker of it", "here.type === 'checkbox'");
    browser.press(&[SPACE]);
    browser.until("one is shown less", "document.querySelectorAll('.chip').length === 3");
    browser.press(&[ESCAPE]);
    browser.until("the list is closed", "!document.querySelector('details').open");
    scene.tab_until("a chart", "here.querySelector('canvas')");
    browser.press(&[LEFT, LEFT]);
    browser.until(
        "the chart says a value at that moment",
        "document.activeElement.closest('figure').querySelector('.legend b').innerText !== ''",
    );
    scene.tab_until("what can be done about a worker", "here.dataset.worker");
    browser.press(&[ENTER]);
    browser.until("the dialog has the focus", "document.activeElement.closest('dialog')");
    browser.press(&[ESCAPE]);
    browser.until("the focus is back", "document.activeElement.dataset.worker");
    scene.no_complaints();
}
