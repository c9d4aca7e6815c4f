//! `plan`: the published tables, measured profiles, and error messages.

use evenstep_burst::BurstPlan;
use serde_json::{Value, json};

use crate::support::Folder;
use crate::vgg16_table::{CHANGES, PLANS, TABLE};

/// Costs by count, with the same cost for every change between them.
fn counted(counts: &[usize], cost_us: &[f64]) -> Value {
    counts.iter().zip(cost_us).map(|(count, us)| (count.to_string(), json!(us))).collect()
}

/// Three layers on up to four GPUs, with 0.5 us for each change of the count.
fn toy() -> Value {
    let changes = [(1, 2), (1, 4), (2, 4)].into_iter().flat_map(|(a, b)| [(a, b), (b, a)]);
    let edge_us: Value = changes.map(|(from, to)| (format!("{from}->{to}"), json!(0.5))).collect();
    let layer = |(name, cost_us): (&str, [f64; 3])| json!({"name": name, "cost_us": counted(&[1, 2, 4], &cost_us), "edge_us": edge_us});
    let layers = [("A", [8.0, 4.0, 2.0]), ("B", [6.0, 5.0, 4.5]), ("C", [4.0, 2.0, 1.0])];
    json!({"layers": layers.map(layer)})
}

/// The published table in its own format, with unknown keys.
fn vgg16() -> Value {
    let layer = |(at, (name, cost_us, edges)): (usize, &(&str, [f64; 4], [f64; 6]))| {
        let both = |((a, b), us): (&(usize, usize), &f64)| {
            [(format!("{a}->{b}"), json!(us)), (format!("{b}->{a}"), json!(us))]
        };
        let edge_us: Value = CHANGES.iter().zip(edges).flat_map(both).filter(|_| at > 0).collect();
        json!({"id": at, "name": name, "inputDim": [3, 224, 224], "cost_us": counted(&[1, 2, 4, 8], cost_us), "edge_us": edge_us})
    };
    json!({"layers": TABLE.iter().enumerate().map(layer).collect::<Vec<_>>(), "plans": [], "source": "published"})
}

/// By hand: 100 us and 10 us per sample; 4 bytes take 1 us.
fn measured() -> Value {
    let compute_us = json!({"1": 110, "8": 180, "64": 740});
    json!({"model": "two linear", "device": "cpu", "network": {"bandwidth_bytes_per_s": 4e6, "latency_us": 5, "all_reduce": "ring"},
           "layers": [
               {"name": "first", "compute_us": compute_us, "forward_us": {"1": 40, "8": 60}, "parameters": 10, "outputs": 2,
                "activation_bytes": {"1": 100, "64": 6400}},
               {"name": "second", "compute_us": compute_us, "parameters": 0, "outputs": 1}]})
}

fn folder(profile: &Value) -> Folder {
    let folder = Folder::to_plan();
    folder.write("p.json", &profile.to_string());
    folder
}

fn planned(folder: &Folder, words: &str) -> BurstPlan {
    serde_json::from_value(folder.json(&format!("--profile p.json {words}"))).unwrap()
}

fn gpus(plan: &BurstPlan) -> Vec<u64> {
    plan.layers.iter().map(|layer| layer.gpus).collect()
}

#[test]
fn the_published_tables_have_their_exact_plans() {
    let folder = folder(&vgg16());
    for (limit, iteration_us, gpu_us, runs) in PLANS {
        let limit = if limit.is_finite() { format!("--amplification {limit}") } else { String::new() };
        let plan = planned(&folder, &format!("--gpus 8 --global-batch 32 {limit}"));
        let expected: Vec<u64> = runs.iter().flat_map(|(layers, gpus)| vec![*gpus as u64; *layers]).collect();
        assert_eq!(gpus(&plan), expected, "{limit}");
        let near = |ours: f64, golden: f64| (ours - golden).abs() < 1e-6;
        assert!(near(plan.iteration_us, iteration_us) && near(plan.gpu_us, gpu_us), "{limit}: {plan:?}");
        let (parallel, alone) = (plan.data_parallel.unwrap(), plan.one_gpu.unwrap());
        assert!(near(parallel.iteration_us, 12_032.336) && near(parallel.gpu_us, 96_258.688), "{parallel:?}");
        assert!(near(alone.iteration_us, 60_506.045) && plan.exact && plan.front_complete);
        let idle_us: f64 = plan.idle_us.iter().sum();
        assert!(near(idle_us, 8.0 * iteration_us - gpu_us) && plan.exempt_below_us == 300.0);
        assert!(plan.layers.iter().all(|layer| layer.sync_us.is_none()));
        assert!(plan.layers.iter().all(|layer| layer.samples == vec![32 / layer.gpus; layer.gpus as usize]));
    }
}

/// The plans of all limits equal the plans that are computed for each limit alone.
#[test]
fn the_front_has_one_point_per_useful_limit() {
    let folder = folder(&toy());
    let at = |limit: f64| {
        planned(&folder, &format!("--gpus 4 --global-batch 32 --exempt-below-us 0 --amplification {limit}"))
    };
    let golden = [
        (1.0, 12.5, 18.5, [4, 1, 1]),
        (1.4, 11.0, 19.5, [4, 1, 2]),
        (1.5, 10.0, 20.5, [4, 1, 4]),
        (1.9, 9.0, 25.0, [4, 2, 4]),
        (3.0, 7.5, 30.0, [4, 4, 4]),
    ];
    for (limit, iteration_us, gpu_us, expected) in golden {
        let plan = at(limit);
        assert_eq!((plan.iteration_us, plan.gpu_us, gpus(&plan)), (iteration_us, gpu_us, expected.to_vec()));
    }
    let front = at(1.0).front;
    assert_eq!(front.len(), 5, "{front:?}");
    for point in front {
        let plan = at(point.amplification);
        assert_eq!((plan.iteration_us, plan.gpu_us), (point.iteration_us, point.gpu_us));
    }
    // All layers are under 300 us, so a limit without a threshold exempts them.
    assert_eq!(gpus(&planned(&folder, "--gpus 4 --global-batch 32 --amplification 1")), [4, 4, 4]);
}

/// By hand: on two GPUs a layer takes 180 us for 8 samples, and the first sums 10 parameters in 10 + 2 * 5 us.
#[test]
fn costs_are_made_of_measured_profiles() {
    let folder = folder(&measured());
    let plan = planned(&folder, "--gpus 2 --global-batch 16");
    assert_eq!(gpus(&plan), [2, 2]);
    let first = &plan.layers[0];
    assert_eq!((first.compute_us, first.sync_us, first.samples.clone()), (180.0, Some(20.0), vec![8, 8]));
    assert_eq!((plan.iteration_us, plan.layers[1].start_us), (380.0, 200.0));
    assert_eq!(plan.one_gpu.unwrap().iteration_us, 2.0 * 260.0);
    assert_eq!(
        plan.memory_bytes, 800,
        "activations of 8 samples; the memory of parameters was not requested"
    );
    // Over a slow network the sum takes longer than it saves, and so does moving 16 outputs back and forth.
    let slow = planned(&folder, "--gpus 2 --global-batch 16 --bandwidth 4e4 --latency-us 0");
    assert_eq!((gpus(&slow), slow.iteration_us), (vec![1, 1], 520.0));
    // Of 19 samples the slower GPU gets 9: 190 us divided by its speed, and the faster one waits.
    let unequal = planned(&folder, "--speeds 0.9,1 --global-batch 19 --all-reduce tree --amplification 9");
    assert_eq!((unequal.gpus, &unequal.gpu_order), (2, &vec![1, 0]));
    assert_eq!((&unequal.layers[1].samples, unequal.layers[0].sync_us), (&vec![10, 9], Some(30.0)));
    assert!((unequal.layers[1].compute_us - 190.0 / 0.9).abs() < 1e-6, "{unequal:?}");
    let capped = planned(&folder, "--gpus 2 --global-batch 16 --memory-bytes 900 --bytes-per-parameter 8");
    assert_eq!((gpus(&capped), capped.memory_bytes), (vec![2, 2], 880));
    assert_eq!(gpus(&planned(&folder, "--gpus 3 --global-batch 16 --counts 1,3")), [3, 3]);
}

#[test]
fn layers_read_others_by_name() {
    let mut profile = measured();
    let layers = profile["layers"].as_array_mut().unwrap();
    let mut join = layers[1].clone();
    join["name"] = json!("join");
    join["inputs"] = json!(["first", "second"]);
    layers.push(join);
    let plan = planned(&folder(&profile), "--gpus 2 --global-batch 16");
    assert_eq!(gpus(&plan), [2, 2, 2]);
    profile["layers"][1]["inputs"] = json!([]);
    assert_eq!(planned(&folder(&profile), "--gpus 2 --global-batch 16").layers.len(), 3);
}

#[test]
fn every_output_goes_where_it_should() {
    let folder = folder(&vgg16());
    let words = "--profile p.json --gpus 8 --global-batch 32 --amplification 2";
    let table = folder.prints(&format!("{words} --json j.json --report r.html"));
    for said in
        ["an iteration takes 10764 us, 15.9 %", "data parallel on 8", "96259", "2.797 free", "limit from"]
    {
        assert!(table.contains(said), "{said}: {table}");
    }
    assert_eq!(table.lines().filter(|line| line.contains("ReLU2d")).count(), 13);
    let json: Value = serde_json::from_str(&folder.read("j.json")).unwrap();
    assert_eq!(json, folder.json(words));
    let page = folder.read("r.html");
    for said in ["Timeline", "GPU 7", "idle", "Trade-off by limit", "data parallel on 8", "maxPool2d"] {
        assert!(page.contains(said), "{said}");
    }
    assert!(
        page.starts_with("<!DOCTYPE html>") && page.contains("default-src 'none'") && !page.contains(" src=")
    );
    assert_eq!(
        folder.prints_with_input(&toy().to_string(), "--profile - --gpus 4 --global-batch 8").lines().count(),
        13
    );
}

#[test]
fn faults_are_reported() {
    let at = |layer: usize, key: &str, value: Value| {
        let mut profile = measured();
        profile["layers"][layer][key] = value;
        move |named: &str| folder(&profile).refuses(1, "--profile p.json --gpus 2 --global-batch 16", named)
    };
    at(0, "compute_us", Value::Null)("layer first: compute_us and cost_us are both missing");
    at(0, "cost_us", json!({"1": 1}))("layer first: compute_us and cost_us are mutually exclusive");
    at(0, "compute_us", json!({"1": -2}))("layer first: compute_us -2 is out of range");
    at(0, "compute_us", json!({"0": 2}))("layer first: compute_us needs at least one point");
    at(0, "compute_us", json!({}))("layer first: compute_us needs at least one point");
    at(0, "compute_us", json!({"one": 2}))("layers[0].compute_us");
    at(0, "parameters", json!(-1))("layers[0].parameters: invalid value: integer `-1`");
    at(0, "name", json!(""))("layer number 0: name \"\"");
    at(1, "name", json!("x".repeat(257)))("1 to 256 bytes");
    at(1, "inputs", json!(["third"]))("layer second: inputs: layer \"third\" does not exist");
    at(1, "inputs", json!(["second"]))("layer \"second\" must come before the layer that reads it");
    at(1, "edge_us", json!({"1-2": 3}))("layers[1].edge_us");
    at(1, "edge_us", json!({"1->2": 3}))("layer second: edge from first has no cost for 2->1");
    at(0, "activation_bytes", json!({"1": 1e16 as u64}))("layer first: activation_bytes 1");
    let many: Value = (1..=1025).map(|batch| (batch.to_string(), json!(batch))).collect();
    at(0, "compute_us", many)("layer first: compute_us has 1025 entries, the maximum is 1024");
    let mut twice = measured();
    twice["layers"][1]["name"] = json!("first");
    folder(&twice).prints("--profile p.json --gpus 2 --global-batch 16");
    twice["layers"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "last", "compute_us": {"1": 1}, "inputs": ["first"]}));
    let words = "--profile p.json --gpus 2 --global-batch 16";
    folder(&twice).refuses(1, words, "layer last: inputs: 2 layers have the name \"first\"");
    twice["layers"][2] = json!({"name": "first"});
    folder(&twice).refuses(1, words, "layer first (number 2): compute_us and cost_us are both missing");

    let folder = folder(&measured());
    folder.write("none.json", r#"{"layers": []}"#);
    folder.write("more.json", "{\"layers\": []} more");
    folder.write("net.json", r#"{"network": {"bandwith": 1}, "layers": []}"#);
    let refuses = |status, words: &str, named: &str| folder.refuses(status, words, named);
    let with = |words: &str| format!("--profile p.json --gpus 2 --global-batch 16 {words}");
    refuses(2, "--gpus 2 --global-batch 16", "--profile");
    refuses(2, "--profile p.json --global-batch 16", "--gpus");
    refuses(2, "--profile p.json --gpus 2", "--global-batch");
    refuses(2, "--profile p.json --gpus 0 --global-batch 16", "--gpus");
    refuses(2, "--profile p.json --gpus 65537 --global-batch 16", "65537");
    refuses(2, &with("--amplification 0.9"), "must be 1 or more");
    refuses(2, &with("--amplification inf"), "must be 1 or more");
    refuses(2, &with("--speeds 1"), "--speeds: 1 for --gpus 2");
    refuses(2, &with("--speeds 1,-1"), "greater than 0");
    refuses(2, &with("--bandwidth 0"), "greater than 0");
    refuses(2, &with("--all-reduce star"), "ring");
    refuses(2, &with("--report p.json"), "overwrite");
    refuses(1, &with("--json nowhere/x.json"), "the folder does not exist");
    refuses(1, &with("--counts 3"), "allowed GPU count 3 must be 1 to 2, the number of GPUs");
    refuses(1, &with("--memory-bytes 10"), "960 bytes on the fastest GPU, the cap is 10; layer first");
    refuses(
        1,
        &with("--counts 2 --amplification 1 --exempt-below-us 0"),
        "layer first exceeds the amplification limit of 1",
    );
    refuses(1, "--profile missing.json --gpus 2 --global-batch 16", "missing.json: No such file");
    refuses(1, "--profile none.json --gpus 2 --global-batch 16", "0 layers: the number must be 1 to");
    refuses(1, "--profile more.json --gpus 2 --global-batch 16", "more.json");
    refuses(1, "--profile net.json --gpus 2 --global-batch 16", "network");
}
