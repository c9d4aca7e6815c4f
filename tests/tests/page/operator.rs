//! Operator actions on a worker: only with the token, with messages.

use evenstep_protocol::{WorkerView, WorkersView};

use crate::scene::{JOB, Scene, TOKEN, worker};

fn view(scene: &Scene, place: usize) -> WorkerView {
    let workers: WorkersView = scene.client().get(&format!("/v1/jobs/{JOB}/workers")).json();
    workers.workers.into_iter().find(|view| view.worker == worker(place)).unwrap()
}

#[test]
fn overrides_require_the_operator_token() {
    let name = "operator::overrides_require_the_operator_token";
    let Some(scene) = Scene::with_job(name, 3, 8) else { return };
    let browser = &scene.browser;
    let button = format!("button[data-worker='{}']", worker(1));
    scene.open_job();
    browser.click(&button);
    browser.click("dialog input[value=pause]");
    browser.click("dialog [type=submit]");
    browser.says("dialog .error", "Enter the operator token");
    browser.fill("dialog [name=token]", "wrong");
    browser.click("dialog [type=submit]");
    browser.until("the rejection is shown", "document.querySelector('dialog .error').innerText.length > 20 && !document.querySelector('dialog .error').innerText.includes('Enter')");
    browser.picture("operator-wrong");
    assert_eq!(view(&scene, 1).operator_override, None, "nothing was changed");

    browser.fill("dialog [name=token]", TOKEN);
    browser.click("dialog [type=submit]");
    browser.until("the dialog closes", "!document.querySelector('dialog')");
    browser.says(".toast", "paused by an operator");
    browser.says(".tall tbody", "paused by an operator");
    assert!(view(&scene, 1).operator_override.unwrap().paused);

    // The token is now known in this tab, but not in the page.
    browser.click(&button);
    browser.until(
        "the token is not requested again",
        "document.querySelector('dialog [name=token]').closest('label').hidden",
    );
    browser.click("dialog input[value=pin]");
    browser.click("dialog [type=submit]");
    browser.says("dialog .error", "Enter the number of samples");
    browser.fill("dialog [name=pinned]", "17");
    browser.click("dialog [type=submit]");
    browser.says(".tall tbody", "pinned to 17 samples");
    assert_eq!(view(&scene, 1).operator_override.unwrap().pinned_local_batch, Some(17));
    let kept =
        browser.run("return [JSON.stringify(localStorage), document.documentElement.outerHTML]").to_string();
    assert!(!kept.contains(TOKEN), "the token is kept for the tab only");

    browser.click(&button);
    browser.click("dialog input[value=lift]");
    browser.click("dialog [type=submit]");
    browser.says(".toast", "evenstep decides again");
    assert_eq!(view(&scene, 1).operator_override, None);
    // The browser itself reports the rejected request; there are no other complaints.
    let others: Vec<String> = browser.complaints().into_iter().filter(|line| !line.contains("401")).collect();
    assert!(others.is_empty(), "{others:#?}");
}
