//! Signing in to a predictor that requires tokens.

use std::process::Command;

use evenstep_protocol::JobSpec;
use evenstep_tests::predictor::without_settings;
use evenstep_tests::{binaries, store};

use crate::scene::Scene;

#[test]
fn a_session_begins_with_a_token_and_ends_with_a_click() {
    let name = "session::a_session_begins_with_a_token_and_ends_with_a_click";
    let Some(scene) = Scene::with_flags(name, &["--auth=required"]) else { return };
    let Some(binary) = binaries::find("evenstep-predictor", name) else { return };
    let address = store::sqlite_address(scene.folder.path());
    let create = |scope: &str, jobs: &str| {
        let options = [format!("--scope={scope}"), format!("--jobs={jobs}"), format!("--store={address}")];
        let mut command = Command::new(&binary);
        let created =
            without_settings(&mut command).args(["token", "create"]).args(options).output().unwrap();
        String::from_utf8(created.stdout).unwrap().trim_end().to_owned()
    };
    let trainer = scene.client().with_token(&create("trainer", "*"));
    for job in ["team-a%2Fresnet", "team-b%2Fbert"] {
        trainer.put_job(job, &JobSpec::new(64));
    }
    let token = create("operator", "team-a/*");
    let browser = &scene.browser;
    browser.open(&format!("{}/#/jobs/team-a%2Fresnet", scene.predictor.url));
    browser.says("main h1", "Sign in");
    browser.says("main", "this predictor requires a token");
    browser.fill("[name=token]", "wrong");
    browser.click("main [type=submit]");
    browser.says("main .error", "does not exist or was revoked");
    browser.picture("sign-in");
    browser.fill("[name=token]", &token);
    browser.click("main [type=submit]");
    browser.says("main h1", "team-a/resnet");
    let kept = browser.run(
        "return [document.cookie, JSON.stringify({...localStorage, ...sessionStorage}), document.documentElement.outerHTML]",
    );
    assert!(!kept.to_string().contains(&token), "the page keeps no token");
    browser.open(&format!("{}/#/", scene.predictor.url));
    browser.says("main", "team-a/resnet");
    assert!(!browser.text("main").contains("bert"), "the other team's job is not shown");
    browser.click("#sign-out");
    browser.says("main h1", "Sign in");
    browser.open(&format!("{}/#/nodes", scene.predictor.url));
    browser.says("main h1", "Sign in");
    // The browser itself reports the rejected requests; there are no other complaints.
    let others: Vec<String> = browser.complaints().into_iter().filter(|line| !line.contains("401")).collect();
    assert!(others.is_empty(), "{others:#?}");
}
