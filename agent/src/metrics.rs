//! Prometheus metrics of the readings and of the agent itself. `docs/reference/metrics.md` lists the names.
//!
//! A scrape reads no sources: it exposes the latest sample. Readings that are missing from that sample have
//! no series.

mod names;

use std::collections::BTreeMap;
use std::sync::Arc;

use evenstep_observability::Gather;
use evenstep_observability::metrics::Family;
use evenstep_observability::metrics::prometheus::proto::MetricFamily;
use evenstep_protocol::{GpuSample, NodeSample, ProcessSample, Readings};

use crate::local::{Shared, lock};
use evenstep_server::{Tls, TlsStatus};
use names::{GPU, GPU_INSTANCE, GPU_PROCESS, HOST, PROCESS, ReadingMetric};

/// Returns the function that gathers the metrics of an agent.
pub fn gather(shared: Arc<Shared>, tls: Option<Tls>) -> Gather {
    Arc::new(move || families(&shared, tls.as_ref()))
}

fn families(shared: &Shared, tls: Option<&Tls>) -> Vec<MetricFamily> {
    let mut families = Families { node: shared.identity.node.as_str(), by_name: BTreeMap::new() };
    machine(&mut families, shared);
    agent_metrics(&mut families, shared);
    if let Some(tls) = tls {
        tls_metrics(&mut families, tls.status());
    }
    let latest = lock(&shared.sampling).latest.clone();
    if let Some(sample) = latest {
        families.sample(&sample);
    }
    families.by_name.into_values().filter_map(Family::done).collect()
}

/// Metric families by name; each series has the label `node`.
struct Families<'a> {
    node: &'a str,
    by_name: BTreeMap<&'static str, Family>,
}

impl Families<'_> {
    fn gauge(&mut self, name: &'static str, help: &'static str, labels: &[(&str, &str)], value: f64) {
        let family = self.by_name.entry(name).or_insert_with(|| Family::gauge(name, help));
        family.add([("node", self.node)].into_iter().chain(labels.iter().copied()), value);
    }

    fn counter(&mut self, name: &'static str, help: &'static str, labels: &[(&str, &str)], value: u64) {
        let family = self.by_name.entry(name).or_insert_with(|| Family::counter(name, help));
        family.add([("node", self.node)].into_iter().chain(labels.iter().copied()), value as f64);
    }

    fn sample(&mut self, sample: &NodeSample) {
        self.readings(&HOST, &[], &sample.readings);
        for process in &sample.processes {
            self.readings(&PROCESS, &[("pid", &process.pid.to_string())], &process.readings);
        }
        for gpu in &sample.gpus {
            self.gpu(gpu, &sample.processes);
        }
    }

    /// Adds a GPU, and its use by watched processes. Other processes are only counted, since their number is
    /// not bounded.
    fn gpu(&mut self, gpu: &GpuSample, watched: &[ProcessSample]) {
        let index = gpu.index.to_string();
        let gpu_labels = [("gpu", index.as_str()), ("uuid", gpu.uuid.as_deref().unwrap_or_default())];
        let known = [("name", &gpu.name), ("pci_bus_id", &gpu.pci_bus_id)];
        let known = known.iter().filter_map(|(label, value)| Some((*label, value.as_deref()?)));
        let info: Vec<_> = gpu_labels.into_iter().chain(known).collect();
        self.gauge("evenstep_gpu_info", "GPU of the node.", &info, 1.0);
        let up = f64::from(u8::from(gpu.gap.is_none()));
        self.gauge("evenstep_gpu_up", "1 if the GPU can be read, else 0.", &gpu_labels, up);
        self.readings(&GPU, &gpu_labels, &gpu.readings);
        for reason in &gpu.throttle_reasons {
            let help = "1 while the GPU lowers its clocks for this reason.";
            let labels: Vec<_> = gpu_labels.into_iter().chain([("reason", reason.as_str())]).collect();
            self.gauge("evenstep_gpu_throttled", help, &labels, 1.0);
        }
        if gpu.gap.is_none() && !gpu.missing.contains_key("processes") {
            let help = "Number of processes that compute on the GPU.";
            self.gauge("evenstep_gpu_processes", help, &gpu_labels, gpu.processes.len() as f64);
        }
        let is_watched = |process: &&ProcessSample| watched.iter().any(|other| other.pid == process.pid);
        for process in gpu.processes.iter().filter(is_watched) {
            let pid = process.pid.to_string();
            let labels: Vec<_> = [("pid", pid.as_str())].into_iter().chain(gpu_labels).collect();
            self.readings(&GPU_PROCESS, &labels, &process.readings);
        }
        for instance in &gpu.instances {
            let labels: Vec<_> =
                gpu_labels.into_iter().chain([("instance_uuid", instance.uuid.as_str())]).collect();
            self.readings(&GPU_INSTANCE, &labels, &instance.readings);
        }
    }

    fn readings(&mut self, shown: &[ReadingMetric], labels: &[(&str, &str)], readings: &Readings) {
        for shown in shown {
            if let Some(value) = readings.get(shown.reading) {
                let labels: Vec<_> = labels.iter().chain(shown.labels).copied().collect();
                if shown.is_counter {
                    self.counter(shown.name, shown.help, &labels, *value as u64);
                } else {
                    self.gauge(shown.name, shown.help, &labels, value * shown.unit);
                }
            }
        }
    }
}

fn machine(families: &mut Families<'_>, shared: &Shared) {
    let (cores, cpu) = &shared.cores;
    let source = if shared.synthetic { "demo" } else { "machine" };
    let cpu = cpu.as_deref().map(|cpu| ("cpu", cpu));
    let labels: Vec<_> = [("source", source)].into_iter().chain(cpu).collect();
    families.gauge("evenstep_node_info", "Node, with the source of its readings.", &labels, 1.0);
    if let Some(cores) = cores {
        families.gauge("evenstep_node_cores", "Number of cores of the node.", &[], *cores as f64);
    }
}

/// Adds the metrics of the agent itself.
fn agent_metrics(families: &mut Families<'_>, shared: &Shared) {
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    families.gauge("evenstep_agent_info", "Version of the agent.", &version, 1.0);
    let interval = shared.interval.as_secs_f64();
    families.gauge("evenstep_agent_interval_seconds", "Time between samples.", &[], interval);
    let watched = lock(&shared.watch).pids().count();
    families.gauge("evenstep_agent_processes_watched", "Number of watched processes.", &[], watched as f64);
    {
        let sampling = lock(&shared.sampling);
        if let Some(sample) = &sampling.latest {
            let (name, help) = ("evenstep_agent_last_sample_timestamp_seconds", "Time of the latest sample.");
            families.gauge(name, help, &[], sample.at_unix_ms as f64 / 1e3);
        }
        families.counter("evenstep_agent_samples_taken_total", "Samples taken.", &[], sampling.taken);
        let help = "Samples skipped because the previous one was still being taken.";
        families.counter("evenstep_agent_samples_skipped_total", help, &[], sampling.skipped);
        for missing in sampling.missing.list() {
            let labels = [("source", missing.source), ("name", &missing.name)];
            let help = "Missing readings.";
            families.counter("evenstep_agent_readings_missing_total", help, &labels, missing.count);
        }
    }
    for state in shared.sources.states() {
        let help = "Time since the last reading of a source.";
        let uuid = state.uuid.as_deref().map(|uuid| ("uuid", uuid));
        let labels: Vec<_> = [("source", state.source)].into_iter().chain(uuid).collect();
        families.gauge("evenstep_agent_source_age_seconds", help, &labels, state.age_s);
    }
    let spool = lock(&shared.spool).clone();
    let gauges = [
        ("evenstep_agent_spool_samples", "Samples waiting in the spool.", spool.waiting),
        ("evenstep_agent_spool_bytes", "Size of the spool on disk.", spool.bytes),
        ("evenstep_agent_spool_limit_bytes", "Maximum size of the spool on disk.", spool.bytes_max),
    ];
    for (name, help, value) in gauges {
        families.gauge(name, help, &[], value as f64);
    }
    for (reason, count) in [
        ("full", spool.dropped_full),
        ("unwritable", spool.dropped_unwritable),
        ("removed", spool.dropped_removed),
        ("damaged", spool.damaged_lines),
    ] {
        let help = "Lost samples.";
        families.counter("evenstep_agent_samples_dropped_total", help, &[("reason", reason)], count);
    }
    let uplink = lock(&shared.uplink).clone();
    for (name, help, count) in [
        (
            "evenstep_agent_samples_sent_total",
            "Samples acknowledged by the predictor.",
            uplink.samples_acknowledged,
        ),
        (
            "evenstep_agent_samples_duplicate_total",
            "Samples sent that the predictor already had.",
            uplink.duplicates,
        ),
        ("evenstep_agent_samples_rejected_total", "Samples in rejected batches.", spool.rejected_samples),
        (
            "evenstep_agent_batches_sent_total",
            "Batches acknowledged by the predictor.",
            uplink.batches_acknowledged,
        ),
        (
            "evenstep_agent_batches_rejected_total",
            "Batches rejected for their content.",
            spool.rejected_batches,
        ),
        ("evenstep_agent_send_failures_total", "Failed attempts to send a batch.", uplink.failed_attempts),
    ] {
        families.counter(name, help, &[], count);
    }
    if uplink.batches_acknowledged + uplink.failed_attempts + spool.rejected_batches > 0 {
        let up = f64::from(u8::from(uplink.last_failure.is_none()));
        families.gauge(
            "evenstep_agent_uplink_up",
            "1 if the latest attempt to send a batch succeeded, else 0.",
            &[],
            up,
        );
    }
}

/// Adds the metrics of the TLS of `--metrics-listen`.
fn tls_metrics(families: &mut Families<'_>, tls: TlsStatus) {
    for (outcome, count) in [("loaded", tls.reloads), ("failed", tls.failed_reloads)] {
        let (name, help) = ("evenstep_agent_tls_reloads_total", "Changes of the TLS files.");
        families.counter(name, help, &[("outcome", outcome)], count);
    }
    let (name, help) =
        ("evenstep_agent_tls_handshake_failures_total", "Connections without a TLS handshake.");
    families.counter(name, help, &[], tls.failed_handshakes);
    if let Some(expires_unix_s) = tls.expires_unix_s {
        let name = "evenstep_agent_tls_certificate_expiry_timestamp_seconds";
        families.gauge(name, "End of the validity of the certificate.", &[], expires_unix_s as f64);
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use evenstep_observability::metrics::text;

    use super::*;
    use crate::sampler::Sampler;
    use crate::sources::Sources;
    use crate::watch::WatchList;

    fn shown(sample: &NodeSample) -> String {
        let mut families = Families { node: "node-a", by_name: BTreeMap::new() };
        families.sample(sample);
        text(&families.by_name.into_values().filter_map(Family::done).collect::<Vec<_>>()).unwrap()
    }

    /// Two samples of this machine and process: all their readings have series, except those of cgroups, which the container
    /// runtime exports. Missing ones have none.
    #[test]
    fn exactly_the_readings_are_exposed() {
        let mut sampler =
            Sampler::for_machine(Arc::new(Sources::start(Duration::from_secs(60)).unwrap())).unwrap();
        let mut watch = WatchList::new(vec![std::process::id()]);
        let start = Instant::now();
        sampler.sample(start, 1, &mut watch);
        let sample = sampler.sample(start + Duration::from_secs(1), 2, &mut watch);
        let known = |table: &[ReadingMetric], readings: &Readings| {
            let unknown =
                readings.keys().find(|reading| table.iter().all(|shown| shown.reading != reading.as_str()));
            assert_eq!(unknown, None, "reading without a metric");
        };
        let mut sample = sample;
        sample.processes[0].readings.retain(|name, _| !name.starts_with("cgroup_"));
        known(&HOST, &sample.readings);
        known(&PROCESS, &sample.processes[0].readings);
        sample.gpus.iter().for_each(|gpu| known(&GPU, &gpu.readings));
        let text = shown(&NodeSample { gpus: Vec::new(), ..sample.clone() });
        let series = text.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(series, sample.readings.len() + sample.processes[0].readings.len(), "{text}");
    }

    #[test]
    fn a_missing_reading_has_no_series() {
        let sample = NodeSample {
            readings: [("cpu_busy".to_owned(), 0.25)].into(),
            missing: [("memory_used".to_owned(), "broken".to_owned())].into(),
            ..NodeSample::default()
        };
        let expected = "# HELP evenstep_node_cpu_ratio Share of all cores' time.\n\
             # TYPE evenstep_node_cpu_ratio gauge\n\
             evenstep_node_cpu_ratio{node=\"node-a\",mode=\"busy\"} 0.25\n";
        assert_eq!(shown(&sample), expected);
    }

    #[test]
    fn gpus_are_in_base_units_and_strangers_on_them_are_counted() {
        let readings = |pairs: &[(&str, f64)]| -> Readings {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
        };
        let process = |pid| ProcessSample {
            pid,
            readings: readings(&[("gpu_memory_bytes", 7.0)]),
            ..ProcessSample::default()
        };
        let gpu = GpuSample {
            index: 1,
            uuid: Some("GPU-1".into()),
            name: Some("H200".into()),
            readings: readings(&[("sm_clock_mhz", 1980.0), ("gpu_power_w", 350.5)]),
            throttle_reasons: vec!["sw_power_cap".into()],
            processes: vec![process(10), process(11)],
            ..GpuSample::default()
        };
        let text = shown(&NodeSample {
            processes: vec![ProcessSample { pid: 10, ..ProcessSample::default() }],
            gpus: vec![gpu],
            ..NodeSample::default()
        });
        let series: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            series,
            [
                "evenstep_gpu_clock_hertz{node=\"node-a\",gpu=\"1\",uuid=\"GPU-1\",clock=\"sm\"} 1980000000",
                "evenstep_gpu_info{node=\"node-a\",gpu=\"1\",uuid=\"GPU-1\",name=\"H200\"} 1",
                "evenstep_gpu_power_watts{node=\"node-a\",gpu=\"1\",uuid=\"GPU-1\"} 350.5",
                "evenstep_gpu_processes{node=\"node-a\",gpu=\"1\",uuid=\"GPU-1\"} 2",
                "evenstep_gpu_throttled{node=\"node-a\",gpu=\"1\",uuid=\"GPU-1\",reason=\"sw_power_cap\"} 1",
                "evenstep_gpu_up{node=\"node-a\",gpu=\"1\",uuid=\"GPU-1\"} 1",
                "evenstep_process_gpu_memory_bytes{node=\"node-a\",pid=\"10\",gpu=\"1\",uuid=\"GPU-1\"} 7",
            ]
        );
    }
}
