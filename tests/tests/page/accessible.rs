//! axe-core finds no serious or critical fault on any page; in dark mode, none of colors.

use evenstep_tests::Browser;
use evenstep_tests::browser::axe;
use serde_json::{Value, json};

use crate::scene::Scene;

/// Each scheme with the rules that axe checks in it: all (WCAG 2.0 to 2.2, A and AA, and its best practices), then those of colors,
/// because a scheme changes only colors.
pub const SCHEMES: [(&str, &str); 2] =
    [("light", "undefined"), ("dark", "{ type: 'rule', values: ['color-contrast', 'link-in-text-block'] }")];
/// Script for the page, with RULES instead of the rules.
const RUN: &str = "const done = arguments[arguments.length - 1];
    axe.run(document, { resultTypes: ['violations'], runOnly: RULES }).then((found) => done(found.violations.map((fault) => ({
        rule: fault.id, impact: fault.impact, help: fault.help, where: fault.nodes.slice(0, 5).map((node) => node.html + ' ' + node.failureSummary),
    }))), (error) => done([{ impact: 'critical', help: String(error) }]));";

#[test]
fn axe_finds_nothing_serious() {
    let name = "accessible::axe_finds_nothing_serious";
    let Some(axe) = axe(name) else { return };
    let Some(scene) = Scene::with_job(name, 4, 40) else { return };
    scene.measure("node-a");
    let browser = &scene.browser;
    let mut faults: Vec<Value> = Vec::new();
    for (scheme, rules) in SCHEMES {
        browser.prefer(&[("prefers-color-scheme", scheme), ("prefers-reduced-motion", "reduce")]);
        let worker = "#/jobs/resnet-50/workers/node-a%2F0";
        for page in [
            "",
            "#/jobs/resnet-50",
            worker,
            "#/nodes",
            "#/nodes/node-a",
            "#/store",
            "#/reports",
            "docs/",
            "dialog",
        ] {
            match page {
                "" => {
                    browser.open(&scene.at(""));
                    browser.says(".job a", "resnet-50");
                }
                "#/jobs/resnet-50" => {
                    scene.open_job();
                    browser.click("figure button");
                    browser.click("summary");
                }
                "dialog" => {
                    scene.open_job();
                    browser.click("button[data-worker]");
                }
                other => {
                    browser.open(&scene.at(other));
                    browser.until(
                        "it is loaded",
                        "document.querySelector('h1') && !document.querySelector('.loading')",
                    );
                }
            }
            faults.extend(serious_faults(browser, &axe, rules, &format!("{scheme} {page:?}")));
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
    // The rules of the dark scheme find text that can hardly be read.
    browser.open(&scene.at("#/nodes"));
    browser.says("main", "node-a");
    browser.until("the dialog of the page before is closed", "!document.querySelector('dialog')");
    browser.run("const text = document.createElement('p'); text.textContent = 'planted'; text.style = 'color: #333; background: #222';
        document.body.append(text)");
    let planted = serious_faults(browser, &axe, SCHEMES[1].1, "planted");
    assert!(planted.iter().any(|fault| fault.to_string().contains("color-contrast")), "{planted:#?}");
}

/// Returns axe's findings in the open page by some of its rules, with `place` in each.
pub fn serious_faults(browser: &Browser, axe: &str, rules: &str, place: &str) -> Vec<Value> {
    browser.run(axe);
    let found = browser.run_until_called(&RUN.replace("RULES", rules));
    let faults = found.as_array().unwrap().iter();
    faults
        .inspect(|fault| eprintln!("{place}: {} {}: {}", fault["impact"], fault["rule"], fault["help"]))
        .filter(|fault| fault["impact"] == "serious" || fault["impact"] == "critical")
        .map(|fault| json!({ "place": place, "fault": fault }))
        .collect()
}
