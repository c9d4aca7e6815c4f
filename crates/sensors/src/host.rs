//! Readings of the machine: pressure, CPU time, load and memory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use evenstep_protocol::driver;
use nix::unistd::{SysconfVar, sysconf};

use crate::counter::{Counter, Lookback, Window, rate};
use crate::cpu_times::{Cores, CpuTimes};
use crate::memory::MachineMemory;
use crate::procfs::{ProcFile, pressure_total};
use crate::{MissingReason, Reading};

/// Default number of ticks per second in `/proc/stat`, if the system does not report it.
const TICKS_PER_S: f64 = 100.0;

/// Reader of the machine.
#[derive(Debug)]
pub struct Host {
    window: Window,
    pressures: [Pressure; 3],
    stat: ProcFile,
    loadavg: ProcFile,
    cores: Cores,
    cpu_times: Lookback<CpuTimes>,
    context_switches: Counter,
    ticks_per_s: f64,
    busy_s: Option<f64>,
    memory: MachineMemory,
}

impl Host {
    /// Names of all readings.
    pub const NAMES: [&str; 15] = [
        driver::PSI_CPU_SOME,
        driver::PSI_MEMORY_SOME,
        "psi_memory_full",
        driver::PSI_IO_SOME,
        "psi_io_full",
        driver::CPU_BUSY,
        "cpu_iowait",
        "cpu_steal",
        "context_switches_per_s",
        driver::PROCS_BLOCKED,
        "load_1m",
        driver::PROCS_RUNNING,
        driver::MEMORY_USED,
        "memory_available_bytes",
        "memory_total_bytes",
    ];

    /// Creates a reader.
    pub fn new() -> Self {
        Self::at(Path::new("/proc"))
    }

    fn at(proc: &Path) -> Self {
        let pressure = |resource, some, full| Pressure::new(proc.join("pressure").join(resource), some, full);
        let ticks = sysconf(SysconfVar::CLK_TCK).ok().flatten();
        Self {
            window: Window::default(),
            pressures: [
                pressure("cpu", driver::PSI_CPU_SOME, None),
                pressure("memory", driver::PSI_MEMORY_SOME, Some("psi_memory_full")),
                pressure("io", driver::PSI_IO_SOME, Some("psi_io_full")),
            ],
            stat: ProcFile::new(proc.join("stat")),
            loadavg: ProcFile::new(proc.join("loadavg")),
            cores: Cores::default(),
            cpu_times: Lookback::default(),
            context_switches: Counter::default(),
            ticks_per_s: ticks.map_or(TICKS_PER_S, |ticks| ticks as f64),
            busy_s: None,
            memory: MachineMemory::new(proc),
        }
    }

    /// Reads the machine. Shares and rates cover the window since the last call.
    pub fn read(&mut self, now: Instant) -> Reading {
        let mut reading = Reading::default();
        let window_s = self.window.advance(now);
        reading.window_s = window_s.as_ref().ok().copied();
        for pressure in &mut self.pressures {
            pressure.read(&window_s, &mut reading);
        }
        self.read_stat(now, &window_s, &mut reading);
        self.read_loadavg(&mut reading);
        self.read_memory(&mut reading);
        reading
    }

    /// Returns the busy time of all cores together at the last reading, in seconds since boot.
    pub fn busy_s(&self) -> Option<f64> {
        self.busy_s
    }

    /// Returns the number of online cores and the name of their model, if the kernel reports them.
    pub fn cores() -> (Option<usize>, Option<String>) {
        let count = ProcFile::new("/proc/stat").read().ok().map(count_cores).filter(|&count| count > 0);
        (count, ProcFile::new("/proc/cpuinfo").read().ok().and_then(model_of_cores))
    }

    /// Returns the host name, if it is set.
    pub fn name() -> Option<String> {
        let mut file = ProcFile::new("/proc/sys/kernel/hostname");
        file.read().ok().map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned)
    }

    fn read_stat(&mut self, now: Instant, window_s: &Result<f64, MissingReason>, reading: &mut Reading) {
        let stat = self.stat.read().map(Stat::parse);
        let (times, context_switches, procs_blocked) = match stat {
            Ok(stat) => {
                let or = |value: Option<u64>, field| value.ok_or_else(|| self.stat.unexpected(field));
                self.busy_s = stat.cpu.map(|times| times.busy as f64 / self.ticks_per_s);
                let times = stat.cpu.ok_or_else(|| self.stat.unexpected("cpu"));
                (
                    times.and_then(|all| self.cores.advance(all, stat.cores)),
                    or(stat.context_switches, "ctxt"),
                    or(stat.procs_blocked, "procs_blocked"),
                )
            }
            Err(gap) => {
                self.busy_s = None;
                (Err(gap.clone()), Err(gap.clone()), Err(gap))
            }
        };
        let shares = match times {
            Ok(times) => self.cpu_times.advance(now, times).and_then(|(_, then)| times.shares_since(then)),
            Err(gap) => {
                self.cores = Cores::default();
                self.cpu_times.forget();
                Err(gap)
            }
        };
        reading.put(driver::CPU_BUSY, shares.clone().map(|shares| shares.busy));
        reading.put("cpu_iowait", shares.clone().map(|shares| shares.iowait));
        reading.put("cpu_steal", shares.map(|shares| shares.steal));
        let switches = self.context_switches.advance_or_reset(context_switches);
        reading.put("context_switches_per_s", rate(switches, window_s));
        reading.put(driver::PROCS_BLOCKED, procs_blocked.map(|count| count as f64));
    }

    fn read_loadavg(&mut self, reading: &mut Reading) {
        let loadavg = self.loadavg.read().map(parse_loadavg);
        let (load, running) = match loadavg {
            Ok((load, running)) => (
                load.ok_or_else(|| self.loadavg.unexpected("load")),
                running.ok_or_else(|| self.loadavg.unexpected("runnable tasks")),
            ),
            Err(gap) => (Err(gap.clone()), Err(gap)),
        };
        reading.put("load_1m", load);
        reading.put(driver::PROCS_RUNNING, running);
    }

    fn read_memory(&mut self, reading: &mut Reading) {
        let memory = self.memory.read();
        let (total, available) =
            (memory.clone().map(|memory| memory.total as f64), memory.map(|memory| memory.available as f64));
        // In a container, the two may come from different limits.
        let used = available.clone().and_then(|available| Ok((1.0 - available / total.clone()?).max(0.0)));
        reading.put(driver::MEMORY_USED, used);
        reading.put("memory_available_bytes", available);
        reading.put("memory_total_bytes", total);
    }
}

impl Default for Host {
    fn default() -> Self {
        Self::new()
    }
}

/// A file of `/proc/pressure`, which counts the time in which some or all tasks waited, in microseconds.
#[derive(Debug)]
struct Pressure {
    file: ProcFile,
    some: (&'static str, Counter),
    full: Option<(&'static str, Counter)>,
}

impl Pressure {
    fn new(path: PathBuf, some: &'static str, full: Option<&'static str>) -> Self {
        Self {
            file: ProcFile::new(path),
            some: (some, Counter::default()),
            full: full.map(|name| (name, Counter::default())),
        }
    }

    fn read(&mut self, window_s: &Result<f64, MissingReason>, reading: &mut Reading) {
        let text = self.file.read().map(|text| (pressure_total(text, "some"), pressure_total(text, "full")));
        let (some, full) = match text {
            Ok((some, full)) => (
                some.ok_or_else(|| self.file.unexpected("some total")),
                full.ok_or_else(|| self.file.unexpected("full total")),
            ),
            Err(gap) => (Err(gap.clone()), Err(gap)),
        };
        // The counter is read slightly after `now`, so a window with permanent waiting may give slightly more
        // than 1.
        let share =
            |waited_us: Result<u64, MissingReason>| rate(waited_us, window_s).map(|us| (us / 1e6).min(1.0));
        reading.put(self.some.0, share(self.some.1.advance_or_reset(some)));
        if let Some((name, counter)) = &mut self.full {
            reading.put(name, share(counter.advance_or_reset(full)));
        }
    }
}

/// Counts the lines such as `cpu0 ..` in `/proc/stat`.
fn count_cores(stat: &str) -> usize {
    let is_core = |line: &&str| line.strip_prefix("cpu").is_some_and(|rest| !rest.starts_with(' '));
    stat.lines().take_while(|line| line.starts_with("cpu")).filter(is_core).count()
}

/// Returns the first `model name` in `/proc/cpuinfo`. ARM kernels report an implementer and a part number
/// instead.
fn model_of_cores(cpuinfo: &str) -> Option<String> {
    let value = |name: &str| {
        let (_, value) = cpuinfo.lines().find(|line| line.starts_with(name))?.split_once(':')?;
        Some(value.trim()).filter(|value| !value.is_empty())
    };
    let part = || Some(format!("implementer {}, part {}", value("CPU implementer")?, value("CPU part")?));
    value("model name").map(str::to_owned).or_else(part)
}

/// Returns the 1-minute load, and the number of runnable tasks from `runnable/all`.
fn parse_loadavg(text: &str) -> (Option<f64>, Option<f64>) {
    let mut fields = text.split_ascii_whitespace();
    let load = fields.next().and_then(|load| load.parse().ok());
    let running = fields.nth(2).and_then(|tasks| tasks.split_once('/')?.0.parse::<u32>().ok());
    (load, running.map(f64::from))
}

/// Fields of `/proc/stat` that are used.
#[derive(Debug)]
struct Stat {
    /// All cores together.
    cpu: Option<CpuTimes>,
    cores: BTreeMap<u32, CpuTimes>,
    context_switches: Option<u64>,
    procs_blocked: Option<u64>,
}

impl Stat {
    fn parse(text: &str) -> Self {
        let mut stat =
            Self { cpu: None, cores: BTreeMap::new(), context_switches: None, procs_blocked: None };
        for line in text.lines() {
            if line.starts_with("cpu ") {
                stat.cpu = CpuTimes::parse(line);
            } else if let Some((core, _)) = line.strip_prefix("cpu").and_then(|rest| rest.split_once(' ')) {
                stat.cores.extend(core.parse().ok().zip(CpuTimes::parse(line)));
            } else if let Some(count) = line.strip_prefix("ctxt ") {
                stat.context_switches = count.trim().parse().ok();
            } else if let Some(count) = line.strip_prefix("procs_blocked ") {
                stat.procs_blocked = count.trim().parse().ok();
            }
        }
        stat
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;

    /// A `/proc` with these files.
    fn write(proc: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(proc.join("pressure")).unwrap();
        for (name, text) in files {
            fs::write(proc.join(name), text).unwrap();
        }
    }

    #[test]
    fn readings_are_those_of_the_files() {
        let proc = tempfile::tempdir().unwrap();
        let (mut host, start) = (Host::at(proc.path()), Instant::now());
        let files = [
            ("pressure/cpu", "some avg10=0.00 total=1000000\n"),
            ("pressure/memory", "some total=1\nfull total=1\n"),
            ("pressure/io", "some total=5\nfull total=5\n"),
            ("stat", "cpu  100 0 0 100 10 0 0 0 0 0\nintr 9 9\nctxt 50\nprocs_blocked 2\nsoftirq 1\n"),
            ("loadavg", "0.11 0.09 0.03 7/99 5175\n"),
            ("meminfo", "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable:  250 kB\n"),
        ];
        write(proc.path(), &files);
        let first = host.read(start).readings;
        let expected = [
            ("load_1m", 0.11),
            ("memory_available_bytes", 256_000.0),
            ("memory_total_bytes", 1_024_000.0),
            (driver::MEMORY_USED, 0.75),
            (driver::PROCS_BLOCKED, 2.0),
            (driver::PROCS_RUNNING, 7.0),
        ];
        assert_eq!(first, expected.map(|(name, value)| (name.to_owned(), value)).into());

        let later = [
            ("pressure/cpu", "some avg10=0.00 total=1500000\n"),
            ("pressure/memory", "some total=3000001\nfull total=0\n"),
            ("stat", "cpu  130 0 0 160 15 0 0 5 0 0\nctxt 150\nprocs_blocked 0\n"),
            ("meminfo", "MemTotal: 1000 kB\nMemAvailable: 1001 kB\n"),
        ];
        write(proc.path(), &later);
        let second = host.read(start + Duration::from_secs(2));
        for (name, value) in [
            (driver::PSI_CPU_SOME, 0.25),
            // The counter was read after the end of the window.
            (driver::PSI_MEMORY_SOME, 1.0),
            (driver::PSI_IO_SOME, 0.0),
            (driver::CPU_BUSY, 0.3),
            ("cpu_iowait", 0.05),
            ("cpu_steal", 0.05),
            ("context_switches_per_s", 50.0),
            (driver::MEMORY_USED, 0.0),
        ] {
            assert_eq!(second.readings.get(name), Some(&value), "{name}: {second:?}");
        }
        assert_eq!(second.missing["psi_memory_full"], MissingReason::CounterDecreased.to_string());
    }

    #[test]
    fn texts_that_are_not_the_kernels_give_nothing_rather_than_zero() {
        let proc = tempfile::tempdir().unwrap();
        let (mut host, start) = (Host::at(proc.path()), Instant::now());
        let texts = [
            "",
            "cpu  1 2 x 4 5 6 7 8\n",
            "cpu  1 2 3 4 5 6 7\n",
            "some avg10=0.0\n",
            "MemTotal: 5 kB\n",
            "MemTotal: 0 kB\nMemAvailable: 0 kB\n",
            "x 0.09 0.03 -7/99 5175\n",
        ];
        for (at_s, text) in texts.into_iter().enumerate() {
            for file in ["pressure/cpu", "pressure/memory", "pressure/io", "stat", "loadavg", "meminfo"] {
                write(proc.path(), &[(file, text)]);
            }
            host.read(start + Duration::from_millis(1000 * at_s as u64));
            let reading = host.read(start + Duration::from_millis(1000 * at_s as u64 + 500));
            assert_eq!((reading.readings.len(), reading.missing.len()), (0, Host::NAMES.len()), "{text}");
            let stat = proc.path().join("stat").display().to_string();
            assert_eq!(reading.missing["context_switches_per_s"], format!("cannot find ctxt in {stat}"));
        }
    }

    #[test]
    fn kernel_files_are_parsed() {
        let stat = Stat::parse(
            "cpu  4337 1 2246 162907 238 3 46 12 5 0\ncpu0 1 1 1 1 1 1 1 1 0 0\nintr 9 9\nctxt 240424\nprocs_blocked 2\n",
        );
        assert_eq!(stat.cpu, Some(CpuTimes { busy: 6633, idle: 162_907, iowait: 238, steal: 12 }));
        assert_eq!((stat.context_switches, stat.procs_blocked), (Some(240_424), Some(2)));
        assert_eq!(CpuTimes::parse("cpu  1 2 3 4 5 6 7"), None, "the steal time is missing");
        assert_eq!(parse_loadavg("0.11 0.09 0.03 7/99 5175\n"), (Some(0.11), Some(7.0)));
        let pressure = "some avg10=13.74 avg60=2.90 avg300=0.87 total=6499321\nfull avg10=0.00 total=7\n";
        assert_eq!(pressure_total(pressure, "some"), Some(6_499_321));
        assert_eq!(pressure_total(pressure, "full"), Some(7));
    }

    #[test]
    fn cores_are_counted_and_named() {
        assert_eq!(count_cores("cpu  1 2 3\ncpu0 1 2 3\ncpu7 1 2 3\nintr 9 9\n"), 2);
        let intel = "processor\t: 0\nmodel name\t: Xeon: 8480\nflags\t: fpu\n";
        assert_eq!(model_of_cores(intel).as_deref(), Some("Xeon: 8480"));
        let arm = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n";
        assert_eq!(model_of_cores(arm).as_deref(), Some("implementer 0x41, part 0xd4f"));
        assert_eq!(model_of_cores("processor\t: 0\n"), None);
        assert!(Host::cores().0.is_some_and(|count| count > 0) && Host::name().is_some());
    }

    /// The kernel's own sum of idle times falls by the time of this core, and the machine would seem to be busy.
    #[test]
    fn a_core_that_goes_offline_does_not_count() {
        let proc = tempfile::tempdir().unwrap();
        let (mut host, start) = (Host::at(proc.path()), Instant::now());
        let mut busy = |at_s: u64, stat: &str| {
            write(proc.path(), &[("stat", stat)]);
            host.read(start + Duration::from_secs(at_s)).readings.get(driver::CPU_BUSY).copied()
        };
        assert_eq!(
            busy(0, "cpu  20 0 0 9000 0 0 0 0\ncpu0 10 0 0 4000 0 0 0 0\ncpu1 10 0 0 5000 0 0 0 0\n"),
            None
        );
        assert_eq!(busy(1, "cpu  45 0 0 4085 0 0 0 0\ncpu0 35 0 0 4075 0 0 0 0\n"), Some(0.25));
        // A few ticks less are a rounding error.
        assert_eq!(busy(2, "cpu  95 0 0 4083 0 0 0 0\ncpu0 85 0 0 4073 0 0 0 0\n"), Some(1.0));
        assert_eq!(
            busy(3, "cpu  95 0 0 9000 0 0 0 0\ncpu0 85 0 0 4172 0 0 0 0\ncpu1 10 0 0 4000 0 0 0 0\n"),
            Some(0.0)
        );
        assert_eq!(
            busy(4, "cpu  95 0 0 4000 0 0 0 0\ncpu0 85 0 0 1000 0 0 0 0\ncpu1 10 0 0 3000 0 0 0 0\n"),
            None
        );
    }

    #[test]
    fn the_first_reading_has_no_shares_and_says_why() {
        let mut host = Host::new();
        let start = Instant::now();
        let first = host.read(start);
        assert_eq!(first.window_s, None);
        assert!(first.readings[driver::PROCS_RUNNING] >= 1.0);
        assert!(first.missing[driver::CPU_BUSY].contains("first reading"));
        let second = host.read(start + Duration::from_secs(1));
        assert_eq!(second.window_s, Some(1.0));
        assert!((0.0..=1.0).contains(&second.readings[driver::MEMORY_USED]));
        assert!(second.readings.contains_key("context_switches_per_s"));
        assert!(second.readings.keys().all(|name| !second.missing.contains_key(name)));
        let mut names: Vec<&str> =
            second.readings.keys().chain(second.missing.keys()).map(String::as_str).collect();
        let mut listed = Host::NAMES;
        names.sort_unstable();
        listed.sort_unstable();
        assert_eq!(names, listed);
    }
}
