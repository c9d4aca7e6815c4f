//! The applicable rules of Grafana's dashboard-linter, and additional rules.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::shipped::{Dashboard, dashboards, list, string};

/// Grafana's names of the units in use; `si:` is for any other unit, with prefixes.
const UNITS: [&str; 10] =
    ["none", "percentunit", "s", "bytes", "hertz", "watt", "celsius", "cps", "reqps", "dateTimeFromNow"];
const TRANSFORMATIONS: [&str; 2] = ["merge", "organize"];
/// Uids of the dashboards. Bookmarks and links use them, so they must never change.
const UIDS: [(&str, &str); 4] = [
    ("overview", "evenstep-overview"),
    ("job", "evenstep-job"),
    ("node", "evenstep-node"),
    ("service", "evenstep-service"),
];

/// Returns the faults of a dashboard, one per line.
fn complaints(dashboard: &Dashboard) -> Vec<String> {
    let mut found = Vec::new();
    let mut complain =
        |place: &str, what: &str| found.push(format!("{}.json, {place}: {what}", dashboard.name));
    whole(dashboard, &mut complain);
    let source = json!({"type": "prometheus", "uid": "${datasource}"});
    for panel in dashboard.panels() {
        let place = format!("panel {}", panel["title"]);
        let mut complain = |what: &str| complain(&place, what);
        if panel["datasource"] != source
            || list(&panel["targets"]).iter().any(|target| target["datasource"] != source)
        {
            complain("the data source is not the variable, or of another type");
        }
        of_panel(panel, &mut complain);
    }
    for annotation in dashboard.annotations() {
        if annotation["datasource"] != source {
            complain(
                &format!("annotation {}", annotation["name"]),
                "the data source is not the variable, or of another type",
            );
        }
    }
    for variable in dashboard.variables().iter().filter(|variable| variable["type"] == "query") {
        let mut complain = |what: &str| complain(&format!("variable {}", variable["name"]), what);
        if variable["datasource"] != source {
            complain("the data source is not the variable, or of another type");
        }
        if variable["refresh"] != 2 {
            complain("it is not refreshed when the time range changes");
        }
        if string(&variable["label"]).is_empty() || string(&variable["description"]).is_empty() {
            complain("no label or description");
        }
    }
    found
}

/// Checks the rules of a whole dashboard.
fn whole(dashboard: &Dashboard, complain: &mut impl FnMut(&str, &str)) {
    let json = &dashboard.json;
    if !UIDS.contains(&(dashboard.name.as_str(), dashboard.uid())) {
        complain("uid", "not the uid of links and bookmarks");
    }
    if json.get("__inputs").is_some() || json.get("__requires").is_some() || json.get("id").is_some() {
        complain("dashboard", "exported for sharing, or from a running Grafana: __inputs, __requires, id");
    }
    if json["editable"] != false {
        complain("dashboard", "editable: a provisioned dashboard cannot be saved");
    }
    if string(&json["title"]).is_empty() || string(&json["description"]).is_empty() {
        complain("dashboard", "no title or description");
    }
    let sources = dashboard.variables().iter().filter(|variable| variable["type"] == "datasource");
    if sources
        .map(|variable| (&variable["name"], &variable["query"]))
        .ne([(&json!("datasource"), &json!("prometheus"))])
    {
        complain(
            "variables",
            "must have exactly one data source, of the right type, with the name datasource",
        );
    }
    let mut titles = BTreeSet::new();
    for panel in dashboard.panels() {
        // Grafana replaces variables in titles, but not in units.
        for used in string(&panel["title"]).split('$').skip(1) {
            let used = used
                .trim_start_matches('{')
                .split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')
                .next();
            if !used.is_some_and(|name| dashboard.has_variable(name)) {
                complain(&format!("panel {}", panel["title"]), "its title has an unknown variable");
            }
        }
        if !titles.insert(string(&panel["title"])) {
            complain(&format!("panel {}", panel["title"]), "its title is not unique");
        }
    }
    let mut seen = BTreeSet::new();
    for panel in
        list(&json["panels"]).iter().chain(list(&json["panels"]).iter().flat_map(|row| list(&row["panels"])))
    {
        if !seen.insert(panel["id"].as_u64()) || panel["id"].is_null() {
            complain(&format!("panel {}", panel["title"]), "its id is missing or not unique");
        }
    }
}

/// Checks the rules of a panel.
fn of_panel(panel: &Value, complain: &mut impl FnMut(&str)) {
    if string(&panel["title"]).is_empty() || string(&panel["description"]).is_empty() {
        complain("no title or description");
    }
    if list(&panel["targets"]).is_empty() {
        complain("has no query");
    }
    let defaults = &panel["fieldConfig"]["defaults"];
    let overrides =
        || list(&panel["fieldConfig"]["overrides"]).iter().flat_map(|entry| list(&entry["properties"]));
    let units = overrides().filter(|property| property["id"] == "unit").map(|property| &property["value"]);
    for unit in std::iter::once(&defaults["unit"]).chain(units) {
        let own = ["si:", "suffix:"];
        if !UNITS.contains(&string(unit)) && !own.iter().any(|prefix| string(unit).starts_with(prefix)) {
            complain(&format!("unit {unit}: unknown to Grafana"));
        }
    }
    let steps = list(&defaults["thresholds"]["steps"]);
    let levels: Vec<f64> = steps.iter().skip(1).filter_map(|step| step["value"].as_f64()).collect();
    if steps.first().is_none_or(|base| !base["value"].is_null())
        || levels.len() + 1 != steps.len()
        || !levels.is_sorted()
    {
        complain("no thresholds, or no increasing ones from a base");
    }
    if panel["type"] == "timeseries" {
        let style = &defaults["custom"]["thresholdsStyle"]["mode"];
        if !levels.is_empty() && style == "off" {
            complain("its thresholds are not drawn");
        }
        // Grafana labels only multiples of the decimals.
        if defaults["unit"] == "percentunit" && defaults["decimals"] == 0 {
            complain("the axis of a share has no numbers");
        }
        let lower =
            overrides().filter(|property| property["id"] == "custom.fillBelowTo").map(|to| &to["value"]);
        for lower in lower {
            let target = list(&panel["targets"]).iter().find(|target| target["legendFormat"] == *lower);
            let fills = |entry: &&Value| {
                target.is_some_and(|target| entry["matcher"]["options"] == target["refId"])
                    && list(&entry["properties"])
                        .iter()
                        .any(|property| property["id"] == "custom.fillOpacity")
            };
            if target.is_none() || list(&panel["fieldConfig"]["overrides"]).iter().any(|entry| fills(&entry))
            {
                complain("a band ends at an unknown line, or its lower line fills down to zero");
            }
        }
        let legend = &panel["options"]["legend"];
        if panel["gridPos"]["w"] != 24
            && (legend["placement"] != "bottom" || !list(&legend["calcs"]).is_empty())
        {
            complain("a narrow panel needs a legend below, without numbers");
        }
        if defaults["unit"] == "percentunit" && defaults["max"].is_null() && levels.is_empty() {
            complain("the axis of a share has no end");
        }
    }
    // Labels of the scrape would be columns, and rows of restarted predictors would be repeated.
    if panel["type"] == "table"
        && list(&panel["targets"]).iter().any(|target| string(&target["expr"]).starts_with("evenstep_"))
    {
        complain("a table of metrics that are not aggregated");
    }
    let position = |key: &str| panel["gridPos"][key].as_u64().unwrap_or(u64::MAX);
    if position("x").saturating_add(position("w")) > 24 {
        complain("outside the grid");
    }
    for transformation in list(&panel["transformations"]) {
        if !TRANSFORMATIONS.contains(&string(&transformation["id"])) {
            complain(&format!("transformation {}: unknown", transformation["id"]));
        }
    }
    // A renamed column without a query is misspelled.
    let refs: Vec<&str> = list(&panel["targets"]).iter().map(|target| string(&target["refId"])).collect();
    for transformation in list(&panel["transformations"]) {
        for name in
            transformation["options"]["renameByName"].as_object().into_iter().flatten().map(|(name, _)| name)
        {
            if name.strip_prefix("Value #").is_some_and(|name| !refs.contains(&name)) {
                complain(&format!("column {name}: no such query"));
            }
        }
    }
}

#[test]
fn dashboards_keep_the_rules() {
    let found: Vec<String> = dashboards().iter().flat_map(complaints).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
    let names: BTreeSet<String> = dashboards().into_iter().map(|dashboard| dashboard.name).collect();
    assert_eq!(
        names,
        UIDS.iter().map(|(name, _)| (*name).to_owned()).collect(),
        "exactly these dashboards exist"
    );
    let mut broken = dashboards().swap_remove(0);
    broken.json["editable"] = json!(true);
    assert!(complaints(&broken).iter().any(|found| found.contains("editable")));
}
