//! Links between dashboards have a target.

use serde_json::{Value, json};

use crate::shipped::{self, Dashboard, dashboards, string};

/// Returns the faults in the links of a dashboard.
fn complaints(dashboard: &Dashboard, all: &[Dashboard]) -> Vec<String> {
    let mut found = Vec::new();
    for url in urls(&dashboard.json) {
        let wrong = |what: String| format!("{}.json, {url}: {what}", dashboard.name);
        let Some((uid, query)) = url.strip_prefix("/d/").and_then(|rest| rest.split_once('?')) else {
            found.push(wrong("not a dashboard of this project".to_owned()));
            continue;
        };
        let Some(target) = all.iter().find(|target| target.uid() == uid) else {
            found.push(wrong(format!("{uid}: no dashboard has this uid")));
            continue;
        };
        for part in query.split('&') {
            if let Some((name, _)) = part.strip_prefix("var-").and_then(|part| part.split_once('='))
                && !target.has_variable(name)
            {
                found.push(wrong(format!("{} has no variable {name}", target.name)));
            }
        }
        // Variables of this dashboard that the link passes on. Names with `__` are Grafana's.
        for used in query.split("${").skip(1).filter_map(|rest| rest.split(['}', ':']).next()) {
            if !used.starts_with("__") && !dashboard.has_variable(used) {
                found.push(wrong(format!("{} has no variable {used}", dashboard.name)));
            }
        }
    }
    found
}

/// Returns every non-empty URL in the JSON.
fn urls(json: &Value) -> Vec<String> {
    match json {
        Value::Object(fields) => {
            let own = fields.get("url").map(string).filter(|url| !url.is_empty()).map(str::to_owned);
            own.into_iter().chain(fields.values().flat_map(urls)).collect()
        }
        Value::Array(entries) => entries.iter().flat_map(urls).collect(),
        _ => Vec::new(),
    }
}

/// Returns the pages of the documentation that a text names and that do not exist.
fn missing_pages(text: &str) -> Vec<&str> {
    let words = text.split(|letter: char| letter.is_whitespace() || letter == '"');
    let pages = words.filter(|word| word.starts_with("docs/")).map(|word| word.trim_end_matches(['.', ',']));
    pages.filter(|page| !shipped::path("..").join(page).is_file()).collect()
}

#[test]
fn the_named_pages_exist() {
    for dashboard in dashboards() {
        let description = string(&dashboard.json["description"]);
        assert!(description.contains("docs/glossary.md"), "{}: {description}", dashboard.name);
        let text = dashboard.json.to_string();
        assert!(missing_pages(&text).is_empty(), "{}: {:?}", dashboard.name, missing_pages(&text));
        assert_eq!(
            missing_pages(&text.replace("docs/glossary.md", "docs/glossaries.md")),
            ["docs/glossaries.md"]
        );
    }
}

#[test]
fn links_resolve() {
    let all = dashboards();
    let found: Vec<String> = all.iter().flat_map(|dashboard| complaints(dashboard, &all)).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(
        all.iter().map(|dashboard| urls(&dashboard.json).len()).sum::<usize>() >= 5,
        "the dashboards have links"
    );
    for dashboard in &all {
        let links = &dashboard.json["links"][0];
        assert_eq!(
            (&links["type"], &links["tags"], &dashboard.json["tags"]),
            (&json!("dashboards"), &json!(["evenstep"]), &json!(["evenstep"]))
        );
        let broken = dashboard.json.to_string().replace("/d/evenstep-", "/d/evenstop-");
        let broken = Dashboard { json: serde_json::from_str(&broken).expect("JSON"), ..dashboard.clone() };
        assert!(
            complaints(&broken, &all).iter().all(|found| found.contains("no dashboard has this uid")),
            "{}",
            dashboard.name
        );
        assert_eq!(complaints(&broken, &all).len(), urls(&dashboard.json).len(), "{}", dashboard.name);
    }
}
