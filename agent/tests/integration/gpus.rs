//! Tests of the real agent with a library that replaces NVML.

use std::fs::{self, File};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::support::agent::Agent;
use crate::support::nvml::{FakeNvml, mig_uuid, uuid};
use evenstep_tests::wait::until;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

/// An agent with GPUs. It sends nothing.
struct Rig {
    nvml: FakeNvml,
    agent: Agent,
    spool: TempDir,
}

impl Rig {
    fn start(nvml: FakeNvml) -> Self {
        let spool = tempfile::tempdir().unwrap();
        let mut command = Agent::command("off", spool.path());
        nvml.replace_in(&mut command);
        // A file, because a pipe without a reader would stop the agent when it is full.
        let log = File::create(spool.path().join("log")).unwrap();
        let agent = Agent::run(command.stderr(log));
        Self { nvml, agent, spool }
    }

    fn with(script: &str) -> Self {
        Self::start(FakeNvml::build(script))
    }

    /// Whether each of these GPUs can be read; `None` if it has no series.
    fn up<const N: usize>(&self, gpus: [u32; N]) -> [Option<bool>; N] {
        let metrics = self.agent.metrics();
        gpus.map(|gpu| {
            let label = format!("uuid=\"{}\"", uuid(gpu));
            let series = metrics
                .iter()
                .find(|(name, _)| name.starts_with("evenstep_gpu_up{") && name.contains(&label));
            series.map(|(_, value)| *value == 1.0)
        })
    }

    fn wait_until_up<const N: usize>(&self, gpus: [(u32, bool); N]) {
        let what = format!("GPUs are up as in {gpus:?}");
        self.agent.wait_until(&what, |_| self.up(gpus.map(|(gpu, _)| gpu)) == gpus.map(|(_, up)| Some(up)));
    }

    /// Readings of a GPU for a request.
    fn sample(&self, gpu: &str) -> Value {
        let (status, sample) = self.agent.get(&format!("/sample?gpu={gpu}"));
        assert_eq!(status, 200, "{sample}");
        sample
    }

    /// Ends the agent, and returns its log.
    fn end(self) -> String {
        let (status, said) = self.end_with_status();
        assert!(status.success(), "{said}");
        said
    }

    fn end_with_status(self) -> (ExitStatus, String) {
        let status = self.agent.terminate();
        (status, fs::read_to_string(self.spool.path().join("log")).unwrap())
    }
}

#[test]
fn a_gpu_is_requested_by_uuid_or_bus_id_in_any_order() {
    let rig = Rig::with("gpus 7 2 10\nset 2 power 250500\nset 2 throttle 64\nset 10 busy 90\n");
    rig.wait_until_up([(7, true), (2, true), (10, true)]);
    let page = format!("/sample?pid={}&gpu={}", std::process::id(), uuid(2));
    let (_, sample) = rig.agent.get(&page);
    let readings = &sample["readings"];
    assert_eq!(
        (&readings["gpu_power_w"], &readings["gpu_throttled"]),
        (&Value::from(250.5), &Value::from(1.0))
    );
    assert_eq!((&readings["gpu_busy"], &readings["sm_clock_mhz"]), (&Value::from(0.5), &Value::from(1410.0)));
    assert!(readings["procs_running"].is_number() && sample["pid"] == std::process::id(), "{sample:#}");
    assert_eq!((&sample["gpu"]["index"], &sample["gpu"]["uuid"]), (&Value::from(1), &Value::from(uuid(2))));
    assert_eq!(sample["gpu"]["throttle_reasons"][0], "hw_thermal_slowdown");
    for id in [uuid(10), uuid(10)[4..].to_owned(), "0000:0a:00.0".to_owned()] {
        let sample = rig.sample(&id);
        assert_eq!(
            (&sample["readings"]["gpu_busy"], &sample["gpu"]["index"]),
            (&Value::from(0.9), &Value::from(2))
        );
        assert_eq!(sample["readings"]["gpu_throttled"], 0.0);
    }
    let unknown = rig.sample(&uuid(3));
    let reason = unknown["missing"]["gpu_busy"].as_str().unwrap();
    assert!(reason.contains(&uuid(3)) && unknown.get("gpu").is_none(), "{unknown:#}");
    let (status, problem) = rig.agent.get("/sample?gpu=1");
    assert!(status == 400 && problem["detail"].as_str().unwrap().contains("UUID"), "{problem}");
    rig.end();
}

#[test]
fn gpus_beyond_the_limit_are_said_once() {
    let gpus: Vec<String> = (1..=100).map(|gpu| gpu.to_string()).collect();
    let rig = Rig::with(&format!("gpus {}\n", gpus.join(" ")));
    rig.wait_until_up([(1, true), (64, true)]);
    assert_eq!(rig.up([65, 100]), [None, None]);
    let said = rig.end();
    assert_eq!(said.matches("this machine has 100 GPUs; only the first 64 are read").count(), 1, "{said}");
}

#[test]
fn a_gpu_that_is_lost_is_named_and_read_again_with_a_new_handle() {
    let rig = Rig::with("gpus 1 2\n");
    rig.wait_until_up([(1, true), (2, true)]);
    rig.nvml.script("gpus 1 2\nfail 2 * 15\n");
    rig.wait_until_up([(1, true), (2, false)]);
    let sample = rig.sample(&uuid(2));
    assert!(sample["missing"]["gpu_power_w"].as_str().unwrap().starts_with("lost: "), "{sample:#}");
    rig.nvml.script("gpus 1 2\nhandle 2 1\n");
    rig.wait_until_up([(1, true), (2, true)]);
    assert_eq!(rig.sample(&uuid(2))["readings"]["gpu_power_w"], 300.0);
    let said = rig.end();
    let lines =
        |text: &str| said.lines().filter(|line| line.contains(text) && line.contains(&uuid(2))).count();
    assert_eq!((lines("a GPU cannot be read"), lines("a GPU can be read again")), (1, 1), "{said}");
}

/// NVML lists a GPU only if it was there when NVML was initialised.
#[test]
fn a_gpu_that_is_removed_and_added_again_is_found() {
    let rig = Rig::with("gpus 1 2\n");
    rig.wait_until_up([(1, true), (2, true)]);
    rig.nvml.script("gpus 1\n");
    rig.agent.wait_until("NVML is initialised again", |_| {
        rig.sample(&uuid(2))["missing"]["gpu_busy"]
            .as_str()
            .is_some_and(|reason| reason.contains("find an object"))
    });
    rig.wait_until_up([(1, true), (2, false)]);
    rig.nvml.script("gpus 2 1 3\n");
    rig.wait_until_up([(1, true), (2, true), (3, true)]);
    assert_eq!(rig.sample(&uuid(1))["gpu"]["index"], 1);
    rig.end();
}

#[test]
fn a_driver_that_is_installed_later_is_found() {
    let rig = Rig::start(FakeNvml::absent("gpus 1\nfail 0 nvmlInit_v2 9\n"));
    let missing = |text: &str| {
        let sample = rig.sample(&uuid(1));
        sample["missing"]["gpu_busy"].as_str().is_some_and(|reason| reason.contains(text))
    };
    rig.agent.wait_until("there is no library", |_| missing("no NVIDIA driver: "));
    rig.nvml.install();
    rig.agent.wait_until("there is no driver", |_| missing("NVIDIA driver is not loaded"));
    rig.nvml.script("gpus 1\n");
    rig.wait_until_up([(1, true)]);
    let said = rig.end();
    assert_eq!(said.matches("NVIDIA driver not found").count(), 1, "{said}");
}

/// One GPU hangs, in one function after the other; the other one is read, and all of the agent responds.
#[test]
fn a_gpu_that_hangs_stops_only_its_own_readings() {
    let rig = Rig::with("gpus 1 2\nset * pid 1\n");
    rig.wait_until_up([(1, true), (2, true)]);
    for function in [
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetHandleByPciBusId_v2",
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetClockInfo",
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetTemperature",
        "nvmlDeviceGetCurrentClocksThrottleReasons",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetProcessUtilization",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetMigMode",
        "*",
    ] {
        rig.nvml.script(&format!("gpus 1 2\nset * pid 1\nfail 2 {function} hang\n"));
        rig.wait_until_up([(1, true), (2, false)]);
        // On a busy machine other sources may exceed their time once, too.
        rig.agent.wait_until(&format!("everything else is read while {function} hangs"), |_| {
            let sample = rig.sample(&uuid(2));
            sample["missing"]["gpu_busy"].as_str().is_some_and(|why| why.starts_with("timed out"))
                && sample["readings"]["procs_running"].is_number()
                && rig.sample(&uuid(1))["readings"]["gpu_busy"] == 0.5
                && rig.agent.get("/healthz").0 == 200
        });
        rig.nvml.script("gpus 1 2\nset * pid 1\n");
        rig.wait_until_up([(1, true), (2, true)]);
    }
    rig.end();
}

/// The search for GPUs hangs: the known ones are still read.
#[test]
fn a_search_that_hangs_stops_no_readings() {
    for function in
        ["nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID", "nvmlEventSetWait_v2"]
    {
        let rig = Rig::with("gpus 1 2\n");
        rig.wait_until_up([(1, true), (2, true)]);
        rig.nvml.script(&format!("gpus 1 2\nset 1 busy 70\nfail * {function} hang\n"));
        rig.agent
            .wait_until("the new value is read", |_| rig.sample(&uuid(1))["readings"]["gpu_busy"] == 0.7);
        rig.nvml.script("gpus 1 2 3\nset 1 busy 80\n");
        rig.agent
            .wait_until("the next value is read", |_| rig.sample(&uuid(1))["readings"]["gpu_busy"] == 0.8);
        rig.end();
    }
}

/// Whatever hangs, the agent ends. Its status is 1 if a thread hangs, and it names the thread.
#[test]
fn an_agent_whose_driver_hangs_ends_and_names_the_gpu() {
    for (script, named) in [
        ("gpus 1 2\nfail * nvmlInit_v2 hang\n", "the gpu-search source"),
        ("gpus 1 2\nfail * nvmlDeviceGetCount_v2 hang\n", "the gpu-search source"),
        (
            "gpus 1 2\nfail 2 nvmlDeviceGetPowerUsage hang\n",
            "the gpu GPU-00000000-0000-0000-0000-000000000002 source",
        ),
    ] {
        let rig = Rig::with(script);
        rig.agent.wait_until("the driver hangs", |status| {
            let sources = status["sources"].as_array().unwrap();
            sources.iter().any(|source| source.get("hangs_for_s").is_some())
        });
        let start = Instant::now();
        let (status, said) = rig.end_with_status();
        // Far above the limit of 5 s, but below a wait without a limit.
        assert!(start.elapsed() < Duration::from_secs(150));
        assert_eq!(status.code(), Some(1), "{said}");
        assert!(said.contains(named), "{said}");
    }
}

#[test]
fn missing_readings_have_a_kind() {
    let rig = Rig::with(
        "gpus 1 2 3 4\nset 1 field3 -1\nfail 2 nvmlDeviceGetPowerUsage 3\nfail 3 * 4\nfail 4 nvmlDeviceGetPowerUsage 999\n",
    );
    rig.wait_until_up([(1, true), (2, true), (4, true)]);
    let missing = |gpu| rig.sample(&uuid(gpu))["missing"]["gpu_power_w"].clone();
    assert!(missing(2).as_str().unwrap().starts_with("unsupported: "), "{}", missing(2));
    assert!(missing(4).as_str().unwrap().starts_with("driver failed: "), "{}", missing(4));
    let readings = rig.sample(&uuid(2))["readings"].clone();
    assert!(readings.get("gpu_power_w").is_none() && readings["gpu_busy"] == 0.5, "{readings}");
    // The agent may not open the GPU, and learns nothing of it.
    assert_eq!(rig.up([3]), [None]);
    // After it was found, a GPU may lose the permission.
    rig.nvml.script("gpus 1 2 3 4\nfail 1 * 4\n");
    rig.wait_until_up([(1, false), (2, true), (3, true)]);
    assert!(missing(1).as_str().unwrap().starts_with("no permission: "), "{}", missing(1));
    let said = rig.end();
    assert!(said.contains("gap=\"no_permission\""), "{said}");
}

#[test]
fn errors_are_counted_and_xid_errors_are_logged() {
    let rig = Rig::with("gpus 1 2\nset 1 field3 7\nset 1 field4 -1\nset 1 field94 3\nset 1 field52 5\n");
    let series = |kind: &str| {
        let labels = format!("node=\"node-a\",gpu=\"0\",uuid=\"{}\",kind=\"{kind}\"", uuid(1));
        rig.agent.metrics().get(&format!("evenstep_gpu_errors_total{{{labels}}}")).copied()
    };
    rig.agent.wait_until("Xid errors are read", |_| series("xid") == Some(0.0));
    assert_eq!(
        ["ecc_corrected", "ecc_uncorrected", "pcie_replay", "nvlink_replay", "nvlink_crc"].map(series),
        [Some(7.0), None, Some(3.0), Some(5.0), Some(0.0)]
    );
    // Not before the thread has registered the GPU: until then the count is missing or 0.
    rig.agent.wait_until("Xid errors are counted", |_| {
        rig.nvml.script("gpus 1 2\nxid 1 79 3\n");
        series("xid") == Some(3.0)
    });
    let last = format!("evenstep_gpu_last_xid{{node=\"node-a\",gpu=\"0\",uuid=\"{}\"}}", uuid(1));
    assert_eq!(rig.agent.metrics()[&last], 79.0);
    let said = rig.end();
    assert_eq!(said.matches("Xid error").count(), 1, "{said}");
}

#[test]
fn mig_instances_have_their_own_memory() {
    let rig = Rig::with("gpus 1\nmig 1 2\nfail 1 nvmlDeviceGetUtilizationRates 3\n");
    rig.wait_until_up([(1, true)]);
    let memory = |uuid: &str| {
        let labels = format!("node=\"node-a\",gpu=\"0\",uuid=\"{}\",instance_uuid=\"{uuid}\"", self::uuid(1));
        rig.agent.metrics().get(&format!("evenstep_gpu_instance_memory_used_bytes{{{labels}}}")).copied()
    };
    assert_eq!([1, 2, 3].map(|instance| memory(&mig_uuid(1, instance))), [Some(1000.0), Some(2000.0), None]);
    let sample = rig.sample(&mig_uuid(1, 2));
    let readings = &sample["readings"];
    assert_eq!(
        (&readings["gpu_memory_used_bytes"], &readings["gpu_power_w"]),
        (&2000.0.into(), &300.0.into())
    );
    assert!(sample["missing"]["gpu_busy"].as_str().unwrap().starts_with("unsupported"), "{sample:#}");
    assert_eq!(sample["gpu"]["uuid"], uuid(1));
    assert_eq!(rig.sample(&uuid(1))["readings"]["gpu_memory_used_bytes"], 20000.0);
    rig.end();
}

/// 64 GPUs whose state changes all the time: log lines are limited, and the agent continues to send samples.
#[test]
fn many_gpus_that_change_all_the_time_write_few_log_lines() {
    let gpus: Vec<String> = (1..=64).map(|gpu| gpu.to_string()).collect();
    let gpus = format!("gpus {}\n", gpus.join(" "));
    let rig = Rig::with(&gpus);
    rig.wait_until_up([(1, true), (64, true)]);
    for round in 0..60 {
        let broken = ["fail * * 15\n", "", "fail 1 * 4\nfail 2 * 999\n", "handle * 1\n"][round % 4];
        rig.nvml.script(&format!("{gpus}{broken}"));
        let taken = rig.agent.status()["samples_taken"].as_u64().unwrap();
        rig.agent
            .wait_until("a sample is taken", |status| status["samples_taken"].as_u64().unwrap() > taken + 1);
    }
    rig.nvml.script(&gpus);
    rig.wait_until_up([(1, true), (2, true), (64, true)]);
    let said = rig.end();
    let lines = said.lines().filter(|line| line.contains(&format!("{} ", uuid(1)))).count();
    assert!(lines <= 60, "{lines} lines of a GPU");
}

/// A library that hangs while it is loaded blocks the start of threads, and so the agent. It still ends.
#[test]
fn an_agent_whose_driver_cannot_be_loaded_ends() {
    let (nvml, spool) = (FakeNvml::build("fail 0 load hang\n"), tempfile::tempdir().unwrap());
    let mut command = Agent::command("off", spool.path());
    nvml.replace_in(&mut command);
    let log = spool.path().join("log");
    let mut agent = command.stdout(Stdio::null()).stderr(File::create(&log).unwrap()).spawn().unwrap();
    let loads = || {
        let maps = fs::read_to_string(format!("/proc/{}/maps", agent.id())).unwrap();
        maps.contains("libnvidia-ml.so.1")
    };
    until("the library is loaded", || loads().then_some(()));
    kill(Pid::from_raw(agent.id() as i32), Signal::SIGTERM).unwrap();
    assert!(!agent.wait().unwrap().success());
}
