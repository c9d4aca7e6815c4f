//! A folder of tables, and the command run in it.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use evenstep_tests::predictor::without_settings;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;
use tempfile::TempDir;

/// A separate folder for each test, and the command to run in it.
pub struct Folder(pub TempDir, &'static str);

impl Folder {
    /// For `backtest`.
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap(), "backtest")
    }

    /// For `simulate`.
    pub fn to_simulate() -> Self {
        Self(tempfile::tempdir().unwrap(), "simulate")
    }

    /// For `plan`.
    pub fn to_plan() -> Self {
        Self(tempfile::tempdir().unwrap(), "plan")
    }

    /// For `store`.
    pub fn for_store() -> Self {
        Self(tempfile::tempdir().unwrap(), "store")
    }

    /// A folder with one table, `t.csv`.
    pub fn with(table: &str) -> Self {
        let folder = Self::new();
        folder.write("t.csv", table);
        folder
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.path().join(name), text).unwrap();
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.path().join(name)).unwrap()
    }

    /// The command with these arguments, run in the folder.
    pub fn command(&self, words: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_evenstep-predictor"));
        without_settings(&mut command).arg(self.1).args(words.split_whitespace());
        command.current_dir(self.0.path()).stdin(Stdio::null());
        command
    }

    /// Runs the command, which must succeed. Returns its standard output.
    pub fn prints(&self, words: &str) -> String {
        printed(&self.command(words).output().unwrap())
    }

    /// Runs the command with this standard input. It must succeed.
    pub fn prints_with_input(&self, input: &str, words: &str) -> String {
        let mut command = self.command(words);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        printed(&child.wait_with_output().unwrap())
    }

    /// Runs the command, which must succeed. Returns its JSON.
    pub fn json(&self, words: &str) -> Value {
        serde_json::from_str(&self.prints(&format!("{words} --json"))).unwrap()
    }

    /// Checks that the command exits with this status, prints nothing, and its error names `named`.
    pub fn refuses(&self, status: i32, words: &str, named: &str) {
        let output = self.command(words).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{words:?}: {said}");
        assert!(said.contains(named), "{words:?} must name {named:?}: {said}");
        assert!(!said.contains("panicked"), "{said}");
        assert!(output.stdout.is_empty(), "{words:?} printed something");
    }
}

fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty(), "no progress unless standard error is a terminal: {output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// A trace in evenstep's format: speed follows a random walk and the driver `load`.
pub fn own_trace(rows: usize, seed: u64) -> String {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut table = String::from("t_start,iter,batch,iter_ms,speed,load,flat,truth_load,\n");
    let mut level = 4.0f64;
    for row in 0..rows {
        let load: f64 = rng.random();
        level += 0.05 * (rng.random::<f64>() - 0.5);
        let (batch, speed) = (32 + 8 * (row % 2), (level - load).exp());
        let (time, milliseconds) = (row as f64 * 0.5, 1e3 * batch as f64 / speed);
        // One reading is missing, one is not a number.
        let load = match row {
            7 => String::new(),
            9 => "NaN".into(),
            _ => load.to_string(),
        };
        writeln!(table, "{time},{row},{batch},{milliseconds},{speed},{load},1,{row},").unwrap();
    }
    table
}

/// A value of a model in a series.
pub fn number(json: &Value, series: usize, model: &str, key: &str) -> f64 {
    let models = json["series"][series]["models"].as_array().unwrap();
    let found =
        models.iter().find(|found| found["model"] == model).unwrap_or_else(|| panic!("no {model}: {json}"));
    found[key].as_f64().unwrap_or_else(|| panic!("{model} has no {key}: {found}"))
}
