//! The JSON files in `dashboards/`, parsed.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// A dashboard, as shipped.
#[derive(Debug, Clone)]
pub struct Dashboard {
    /// File name without the extension.
    pub name: String,
    /// Complete JSON.
    pub json: Value,
}

/// A query of a dashboard and its place: a panel, an annotation or a variable.
#[derive(Debug, Clone)]
pub struct DashboardQuery {
    /// Place, such as `job.json, panel "Workers", query C`.
    pub place: String,
    /// The panel, annotation or variable of the query.
    pub part: Value,
    /// PromQL, `label_values(..)` or `query_result(..)`, with variables.
    pub text: String,
    /// Whether the query is for one moment; otherwise it is over the time range.
    pub instant: bool,
}

/// Returns the path of a file in `dashboards/`.
pub fn path(inside: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../dashboards").join(inside)
}

/// Returns the text of a file in `dashboards/`.
pub fn text(inside: &str) -> String {
    let path = path(inside);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the files with this extension in a folder of `dashboards/`, in order.
pub fn files(folder: &str, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(path(folder)).expect("a folder");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.retain(|file| file.extension().is_some_and(|found| found == extension));
    files.sort();
    assert!(!files.is_empty(), "{folder}: no .{extension}");
    files
}

/// Returns all dashboards.
pub fn dashboards() -> Vec<Dashboard> {
    let read = |file: PathBuf| {
        let name = file.file_stem().expect("a name").to_string_lossy().into_owned();
        let json = serde_json::from_str(&fs::read_to_string(&file).expect("text")).expect("JSON");
        Dashboard { name, json }
    };
    files("grafana", "json").into_iter().map(read).collect()
}

/// Returns the dashboard with this name.
pub fn dashboard(name: &str) -> Dashboard {
    dashboards().into_iter().find(|dashboard| dashboard.name == name).expect("a dashboard")
}

/// Returns the entries of a list; empty if the value is not a list.
pub fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Returns the text of a value; empty if it is not text.
pub fn string(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

impl Dashboard {
    /// Returns the uid, which never changes.
    pub fn uid(&self) -> &str {
        string(&self.json["uid"])
    }

    /// Returns the panels, including panels in folded rows, but not the rows.
    pub fn panels(&self) -> Vec<&Value> {
        let panels = list(&self.json["panels"]).iter();
        panels
            .flat_map(|panel| {
                if panel["type"] == "row" { list(&panel["panels"]) } else { std::slice::from_ref(panel) }
            })
            .collect()
    }

    /// Returns the variables.
    pub fn variables(&self) -> &[Value] {
        list(&self.json["templating"]["list"])
    }

    /// Returns the annotations.
    pub fn annotations(&self) -> &[Value] {
        list(&self.json["annotations"]["list"])
    }

    /// Returns whether the dashboard has a variable with this name.
    pub fn has_variable(&self, name: &str) -> bool {
        self.variables().iter().any(|variable| variable["name"] == name)
    }

    /// Returns the queries of the panels.
    pub fn panel_queries(&self) -> Vec<DashboardQuery> {
        let mut questions = Vec::new();
        for panel in self.panels() {
            for target in list(&panel["targets"]) {
                questions.push(DashboardQuery {
                    place: format!(
                        "{}.json, panel {}, query {}",
                        self.name,
                        panel["title"],
                        string(&target["refId"])
                    ),
                    part: panel.clone(),
                    text: string(&target["expr"]).to_owned(),
                    instant: target["instant"] == true,
                });
            }
        }
        questions
    }

    /// Returns the queries of the annotations.
    pub fn annotation_queries(&self) -> Vec<DashboardQuery> {
        let question = |annotation: &Value| DashboardQuery {
            place: format!("{}.json, annotation {}", self.name, annotation["name"]),
            part: annotation.clone(),
            text: string(&annotation["expr"]).to_owned(),
            instant: false,
        };
        self.annotations().iter().map(question).collect()
    }

    /// Returns the queries of the variables.
    pub fn variable_queries(&self) -> Vec<DashboardQuery> {
        let variables = self.variables().iter().filter(|variable| variable["type"] == "query");
        let question = |variable: &Value| DashboardQuery {
            place: format!("{}.json, variable {}", self.name, variable["name"]),
            part: variable.clone(),
            text: string(&variable["definition"]).to_owned(),
            instant: true,
        };
        variables.map(question).collect()
    }
}
