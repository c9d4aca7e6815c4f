//! What is in `dashboards/`: the JSON that people import, taken apart.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// A dashboard as it is shipped.
#[derive(Debug, Clone)]
pub struct Dashboard {
    /// Its file, without the extension.
    pub name: String,
    /// All of it.
    pub json: Value,
}

/// A question that a dashboard asks, and where: of a panel, an annotation or a variable.
#[derive(Debug, Clone)]
pub struct Question {
    /// `job.json, panel "Workers", query C`.
    pub place: String,
    /// The panel, the annotation or the variable that it is part of.
    pub part: Value,
    /// PromQL, `label_values(..)` or SQL, with its variables and macros.
    pub text: String,
    /// Asked for one moment; otherwise over the range of time that is shown.
    pub instant: bool,
}

/// `dashboards/` and something in it.
pub fn path(inside: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../dashboards").join(inside)
}

/// The text of a file in `dashboards/`.
pub fn text(inside: &str) -> String {
    let path = path(inside);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Files in a folder of `dashboards/` with this extension, in order.
pub fn files(folder: &str, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(path(folder)).expect("a folder");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.retain(|file| file.extension().is_some_and(|found| found == extension));
    files.sort();
    assert!(!files.is_empty(), "{folder}: no .{extension}");
    files
}

/// All of them.
pub fn dashboards() -> Vec<Dashboard> {
    let read = |file: PathBuf| {
        let name = file.file_stem().expect("a name").to_string_lossy().into_owned();
        let json = serde_json::from_str(&fs::read_to_string(&file).expect("text")).expect("JSON");
        Dashboard { name, json }
    };
    files("grafana", "json").into_iter().map(read).collect()
}

/// One of them.
pub fn dashboard(name: &str) -> Dashboard {
    dashboards().into_iter().find(|dashboard| dashboard.name == name).expect("a dashboard")
}

/// The entries of a list; none where there is no list.
pub fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Text; empty where there is none.
pub fn string(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

impl Dashboard {
    /// What it is found by, for ever.
    pub fn uid(&self) -> &str {
        string(&self.json["uid"])
    }

    /// Whether its questions are SQL.
    pub fn is_sql(&self) -> bool {
        self.name.ends_with("-postgres")
    }

    /// Its panels, those in folded rows too; rows themselves are none.
    pub fn panels(&self) -> Vec<&Value> {
        let panels = list(&self.json["panels"]).iter();
        panels
            .flat_map(|panel| {
                if panel["type"] == "row" { list(&panel["panels"]) } else { std::slice::from_ref(panel) }
            })
            .collect()
    }

    /// A panel, to be changed.
    pub fn panel(&mut self, title: &str) -> &mut Value {
        let mut panels = self.json["panels"].as_array_mut().expect("panels").iter_mut();
        let found = panels.find(|panel| panel["title"] == title);
        found.unwrap_or_else(|| panic!("no panel {title:?}"))
    }

    /// Its variables.
    pub fn variables(&self) -> &[Value] {
        list(&self.json["templating"]["list"])
    }

    /// Its annotations.
    pub fn annotations(&self) -> &[Value] {
        list(&self.json["annotations"]["list"])
    }

    /// Whether it has a variable by this name.
    pub fn has_variable(&self, name: &str) -> bool {
        self.variables().iter().any(|variable| variable["name"] == name)
    }

    /// What its panels ask.
    pub fn asked_by_panels(&self) -> Vec<Question> {
        let mut questions = Vec::new();
        for panel in self.panels() {
            for target in list(&panel["targets"]) {
                let text = if self.is_sql() { &target["rawSql"] } else { &target["expr"] };
                questions.push(Question {
                    place: format!(
                        "{}.json, panel {}, query {}",
                        self.name,
                        panel["title"],
                        string(&target["refId"])
                    ),
                    part: panel.clone(),
                    text: string(text).to_owned(),
                    instant: target["instant"] == true,
                });
            }
        }
        questions
    }

    /// What its annotations ask.
    pub fn asked_by_annotations(&self) -> Vec<Question> {
        let question = |annotation: &Value| Question {
            place: format!("{}.json, annotation {}", self.name, annotation["name"]),
            part: annotation.clone(),
            text: string(if self.is_sql() { &annotation["target"]["rawSql"] } else { &annotation["expr"] })
                .to_owned(),
            instant: false,
        };
        self.annotations().iter().map(question).collect()
    }

    /// What its variables ask.
    pub fn asked_by_variables(&self) -> Vec<Question> {
        let variables = self.variables().iter().filter(|variable| variable["type"] == "query");
        let question = |variable: &Value| Question {
            place: format!("{}.json, variable {}", self.name, variable["name"]),
            part: variable.clone(),
            text: string(&variable["definition"]).to_owned(),
            instant: true,
        };
        variables.map(question).collect()
    }
}
