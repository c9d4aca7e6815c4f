//! The history cannot be read: the page names the reason, shows the workers, and is complete once it can be read.

use evenstep_tests::store::{sqlite_file, sqlite_rows};
use evenstep_tests::wait::until;

use crate::scene::{JOB, Scene};

#[test]
fn the_page_says_why_the_history_is_missing_and_reads_it_again() {
    let test = "trouble::the_page_says_why_the_history_is_missing_and_reads_it_again";
    let Some(mut scene) = Scene::with_job(test, 3, 12) else { return };
    let rows = |sql: &str| sqlite_rows(&sqlite_file(scene.folder.path()), sql);
    let steps = "SELECT shown FROM step";
    until("all reported iterations in the store", || (rows(steps).len() == 11).then_some(()));
    rows("ALTER TABLE step RENAME TO hidden");
    scene.browser.open(&scene.at(&format!("#/jobs/{JOB}")));
    scene.browser.says(".trouble", "The history was not read. The store failed");
    scene.browser.until("no part waits without a reason", "!/Loading/.test(document.body.innerText)");
    // The workers and new iterations are shown all the same.
    scene.browser.until("the workers are shown", "document.querySelectorAll('.tall tbody tr').length > 0");
    rows("ALTER TABLE hidden RENAME TO step");
    scene.browser.until("the charts are drawn", "document.querySelectorAll('canvas').length >= 2");
    scene.browser.until("nothing is wrong any more", "document.querySelector('.trouble').innerText === ''");
    scene.step();
    scene.browser.picture("job-after-trouble");
}
