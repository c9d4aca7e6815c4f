//! A real Prometheus with a separate data folder, and its query results.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;
use ureq::Agent;

use crate::binaries::skip;
use crate::process::Process;
use crate::wait::PATIENCE;

/// A running server, which ends with the test.
#[derive(Debug)]
pub struct Prometheus {
    /// The process.
    pub process: Process,
    agent: Agent,
    url: String,
    _folder: TempDir,
}

/// A time series: labels, and values at times in seconds since 1970.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Labels, including `__name__`.
    pub labels: Value,
    /// (time, value)
    pub points: Vec<(f64, f64)>,
}

/// Returns the path of a program. Returns `None` and reports the test as skipped if it is not on the PATH.
pub fn program(name: &str, test: &str) -> Option<PathBuf> {
    let paths = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&paths).map(|folder| folder.join(name)).find(|file| file.is_file());
    if found.is_none() {
        skip(test, &format!("{name} is not on the PATH (Debian: prometheus)"));
    }
    found
}

impl Prometheus {
    /// Starts `binary` with this configuration on a free port, and waits until it responds.
    pub fn start(binary: &PathBuf, config: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("prometheus.yaml");
        std::fs::write(&file, config).expect("a file");
        let mut command = Command::new(binary);
        command.arg("--config.file").arg(&file).arg("--storage.tsdb.path").arg(folder.path().join("data"));
        command.arg("--web.listen-address=127.0.0.1:0");
        let process = Process::start(&mut command);
        let listening = |line: &str| {
            let address = line.split_once("msg=\"Listening on\" address=")?.1;
            Some(address.split_whitespace().next()?.to_owned())
        };
        let url = format!("http://{}", process.line("its address", listening));
        process
            .line("the line of readiness", |line| line.contains("Server is ready to receive").then_some(()));
        let config = Agent::config_builder().http_status_as_error(false).timeout_global(Some(PATIENCE));
        Self { process, agent: config.build().into(), url, _folder: folder }
    }

    /// Sends a query and returns the result.
    ///
    /// # Errors
    /// The query is invalid or cannot be executed; returns Prometheus' message.
    pub fn send(&self, path: &str, parameters: &[(&str, &str)]) -> Result<Value, String> {
        let request = self.agent.get(format!("{}{path}", self.url)).query_pairs(parameters.iter().copied());
        let mut response = request.call().map_err(|error| error.to_string())?;
        let text = response.body_mut().with_config().limit(1 << 30).read_to_string();
        let answer: Value = serde_json::from_str(&text.map_err(|error| error.to_string())?).expect("JSON");
        if answer["status"] == "success" {
            Ok(answer["data"].clone())
        } else {
            Err(format!("{}: {}", answer["errorType"], answer["error"]))
        }
    }

    /// Evaluates an expression at one time, or now.
    ///
    /// # Errors
    /// The expression is invalid or cannot be evaluated.
    pub fn instant(&self, expr: &str, at_s: Option<f64>) -> Result<Vec<Series>, String> {
        let at = at_s.map(|at| at.to_string());
        let mut parameters = vec![("query", expr)];
        parameters.extend(at.as_deref().map(|at| ("time", at)));
        self.send("/api/v1/query", &parameters).map(|data| series(&data))
    }

    /// Evaluates an expression over a range of time, in steps.
    ///
    /// # Errors
    /// The expression is invalid or cannot be evaluated.
    pub fn range(&self, expr: &str, (from_s, to_s): (f64, f64), step_s: f64) -> Result<Vec<Series>, String> {
        let times = [from_s, to_s, step_s].map(|time| time.to_string());
        let parameters = [("query", expr), ("start", &times[0]), ("end", &times[1]), ("step", &times[2])];
        self.send("/api/v1/query_range", &parameters).map(|data| series(&data))
    }

    /// Returns the values of a label in the series of a selector.
    ///
    /// # Errors
    /// The selector is invalid.
    pub fn label_values(&self, selector: &str, label: &str) -> Result<Vec<String>, String> {
        let data = self.send(&format!("/api/v1/label/{label}/values"), &[("match[]", selector)])?;
        Ok(serde_json::from_value(data).expect("strings"))
    }
}

fn series(data: &Value) -> Vec<Series> {
    let point = |point: &Value| {
        let value = point[1].as_str().and_then(|value| value.parse().ok()).expect("a number");
        (point[0].as_f64().expect("a time"), value)
    };
    if data["resultType"] == "scalar" {
        return vec![Series { labels: Value::Null, points: vec![point(&data["result"])] }];
    }
    let result = data["result"].as_array().expect("a list").iter();
    result
        .map(|entry| {
            let points = entry["values"].as_array().map(|values| values.iter().map(point).collect());
            let points = points.unwrap_or_else(|| vec![point(&entry["value"])]);
            Series { labels: entry["metric"].clone(), points }
        })
        .collect()
}
