//! End-to-end tests of the commands `profile` and `burst`.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use evenstep_protocol::{BurstLayer, BurstProfile, CountChange};

fn trainer(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenstep-trainer"));
    let small = ["--samples=400", "--hidden=16,8", "--timeout-s=30"];
    command.args(arguments).args(small).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn succeed(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn profile(folder: &Path, extra: &[&str]) -> BurstProfile {
    let path = folder.join("profile.json");
    let out = format!("--json={}", path.display());
    succeed(&trainer(&[&["profile", &out], extra].concat()).output().unwrap());
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Writes a plan for these layers (name and samples of each GPU), and returns the argument for it.
fn plan(folder: &Path, gpus: usize, layers: &[(&str, &[u64])]) -> String {
    let layer = |(name, samples): &(&str, &[u64])| {
        format!(
            r#"{{"name": "{name}", "gpus": {}, "samples": {samples:?}, "compute_us": 500.0}}"#,
            samples.len()
        )
    };
    let layers: Vec<String> = layers.iter().map(layer).collect();
    let text = format!(
        r#"{{"gpus": {gpus}, "global_batch": 24, "iteration_us": 1500.0, "layers": [{}]}}"#,
        layers.join(", ")
    );
    let path = folder.join("plan.json");
    fs::write(&path, text).unwrap();
    format!("--plan={}", path.display())
}

const SOUND: [(&str, &[u64]); 3] = [("hidden0", &[12, 12]), ("hidden1", &[24]), ("output", &[20, 4])];

#[test]
fn layers_and_the_network_are_measured() {
    let folder = tempfile::tempdir().unwrap();
    let told = |layers: &[BurstLayer]| -> Vec<(String, u64, u64)> {
        let layer =
            |layer: &BurstLayer| (layer.name.clone(), layer.parameters.unwrap(), layer.outputs.unwrap());
        layers.iter().map(layer).collect()
    };
    // 256 features and ten classes.
    let layers = [("hidden0", 256 * 16 + 16, 16), ("hidden1", 16 * 8 + 8, 8), ("output", 8 * 10 + 10, 10)]
        .map(|(name, parameters, outputs)| (name.to_owned(), parameters, outputs));

    let curves = profile(folder.path(), &["--workers=2", "--batches=4,1"]);
    assert_eq!(told(&curves.layers), layers);
    for layer in &curves.layers {
        let (compute, forward) = (layer.compute_us.as_ref().unwrap(), layer.forward_us.as_ref().unwrap());
        assert_eq!(compute.keys().copied().collect::<Vec<_>>(), [1, 4]);
        assert!(compute.iter().all(|(batch, us)| forward[batch] > 0.0 && forward[batch] < *us), "{layer:?}");
        let bytes = layer.activation_bytes.as_ref().unwrap();
        assert_eq!(bytes[&4], 16 * layer.outputs.unwrap());
        assert_eq!((&layer.cost_us, &layer.edge_us), (&None, &None));
    }
    let network = curves.network.unwrap();
    let (bandwidth, latency_us) = (network.bandwidth_bytes_per_s.unwrap(), network.latency_us.unwrap());
    assert!(bandwidth.is_finite() && bandwidth > 0.0 && latency_us >= 0.0, "{network:?}");

    // Plans count in values of four bytes.
    let twice = layers.map(|(name, parameters, outputs)| (name, 2 * parameters, 2 * outputs));
    let tables = profile(folder.path(), &["--workers=2", "--global-batch=24", "--dtype=float64"]);
    assert_eq!((told(&tables.layers), tables.network), (twice.to_vec(), None));
    for (number, layer) in tables.layers.iter().enumerate() {
        assert_eq!(layer.compute_us, None);
        assert_eq!(layer.cost_us.as_ref().unwrap().keys().copied().collect::<Vec<_>>(), [1, 2]);
        let changes = layer.edge_us.iter().flat_map(|edges| edges.iter());
        let changes: Vec<CountChange> =
            changes.filter(|(_, us)| **us > 0.0).map(|(change, _)| *change).collect();
        let both = [CountChange { from: 1, to: 2 }, CountChange { from: 2, to: 1 }];
        assert_eq!(changes, if number == 0 { vec![] } else { both.to_vec() });
    }
}

#[test]
fn a_plan_is_run_and_compared_with_its_prediction() {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan(folder.path(), 2, &SOUND);
    let [json, page] = ["figures.json", "page.html"].map(|name| folder.path().join(name));
    let outputs = [format!("--json={}", json.display()), format!("--html={}", page.display())];
    let run = ["burst", &plan, "--steps=6", "--lr=0.2", "--workers=3", &outputs[0], &outputs[1]];
    let table = succeed(&trainer(&run).output().unwrap());
    assert!(table.contains("hidden1") && table.contains("1.500 ms planned"), "{table}");
    let figures: serde_json::Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    let number = |key: &str| figures[key].as_f64().unwrap();
    assert_eq!([number("planned_us"), number("workers"), number("iterations")], [1500.0, 3.0, 6.0]);
    assert_eq!(number("ratio"), number("iteration_us") / 1500.0);
    // The layers cover the whole iteration except for reading samples.
    let layers = figures["layers"].as_array().unwrap();
    let sum: f64 = layers.iter().map(|layer| layer["measured_us"].as_f64().unwrap()).sum();
    assert!(layers.len() == 3 && sum > 0.0, "{figures}");
    let losses: Vec<f64> =
        figures["losses"].as_array().unwrap().iter().map(|loss| loss.as_f64().unwrap()).collect();
    assert!((losses[0] - 10_f64.ln()).abs() < 0.5 && losses[1].is_finite(), "{losses:?}");
    let page = fs::read_to_string(page).unwrap();
    for word in
        ["rank 1 measured", "rank 0 planned", "Timeline of one iteration", "waiting for others", "rank 2"]
    {
        assert!(page.contains(word), "{word}");
    }
}

#[test]
fn plans_that_cannot_run_are_rejected_by_value_and_rule() {
    let folder = tempfile::tempdir().unwrap();
    type Layers<'a> = &'a [(&'a str, &'a [u64])];
    let other = [("hidden0", &[24][..]), ("conv1", &[24]), ("output", &[24])];
    let few = [("hidden0", &[24][..]), ("hidden1", &[24])];
    let lost = [("hidden0", &[12, 11][..]), ("hidden1", &[24]), ("output", &[24])];
    let wide = [("hidden0", &[12, 6, 6][..]), ("hidden1", &[24]), ("output", &[24])];
    let cases: [(usize, Layers<'_>, &str, &str); 6] = [
        (2, &other, "", "at layer 1 the plan has \"conv1\", but the model has \"hidden1\""),
        (2, &few, "", "at layer 2 the plan has no layer, but the model has \"output\""),
        (2, &lost, "", "samples [12, 11]: the sum must equal the global batch 24"),
        (2, &wide, "", "gpus 3: must be from 1 to 2, the GPUs of the plan"),
        (4, &SOUND, "--workers=2", "the plan requires 4 workers, one per GPU, but the run has 2 workers"),
        (0, &SOUND, "", "gpus 0: must be from 1 to 1024"),
    ];
    for (gpus, layers, extra, rule) in cases {
        let plan = plan(folder.path(), gpus, layers);
        let arguments: Vec<&str> =
            ["burst", &plan, extra].into_iter().filter(|word| !word.is_empty()).collect();
        let output = trainer(&arguments).output().unwrap();
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && words.contains(rule), "{rule}: {words}");
    }
    let missing = trainer(&["burst", "--plan=nowhere.json"]).output().unwrap();
    assert!(String::from_utf8_lossy(&missing.stderr).contains("plan nowhere.json"));
}

#[test]
fn a_killed_worker_ends_the_run_with_a_clear_error() {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan(folder.path(), 2, &SOUND);
    let mut launcher = trainer(&["burst", &plan, "--steps=100000"]).spawn().unwrap();
    let mut lines = BufReader::new(launcher.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("1/100005") {
        line.clear();
        assert_ne!(lines.read_line(&mut line).unwrap(), 0, "the run ended before its first iteration");
    }
    let number = launcher.id();
    let children = fs::read_to_string(format!("/proc/{number}/task/{number}/children")).unwrap();
    let victim = children.split_whitespace().last().unwrap();
    assert!(Command::new("kill").args(["-KILL", victim]).status().unwrap().success());
    let mut words = String::new();
    lines.read_to_string(&mut words).unwrap();
    assert_eq!(launcher.wait().unwrap().code(), Some(1));
    assert!(words.contains(&format!("burst: rank 1 (pid {victim}) was killed by signal 9")), "{words}");
    assert!(words.contains("rank 0: error: iteration"), "{words}");
}
