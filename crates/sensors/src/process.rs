//! Readings of a process: CPU time, run-queue wait, context switches, memory, and the limits of its cgroup.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Instant;

use evenstep_protocol::driver;
use nix::sys::resource::{UsageWho, getrusage};
use nix::time::ClockId;
use nix::unistd::{Pid, SysconfVar, sysconf};

use crate::cgroup::Cgroup;
use crate::counter::{Counter, Window, rate};
use crate::procfs::{self, ProcFile};
use crate::{MissingReason, Reading};

/// Maximum number of threads per process. Run-queue wait and context switches of a process with more threads
/// are missing.
const THREADS_MAX: usize = 1024;

/// Maximum number of threads whose files stay open, and only for this process. Otherwise an agent that
/// watches many processes would run out of file descriptors.
const THREAD_HANDLES_MAX: usize = 128;

/// Reader of the process that has the id `pid` at the first reading.
///
/// After that process has ended all readings are missing, even if another process gets the same id. The other
/// process needs a new reader.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    window: Window,
    stat: ProcFile,
    start_time: Option<u64>,
    ended: bool,
    cpu_ns: Counter,
    cpu_s: Option<f64>,
    threads: Threads,
    voluntary: Counter,
    involuntary: Counter,
    page_bytes: Option<f64>,
    cgroup: Cgroup,
}

impl Process {
    /// Names of all readings.
    pub const NAMES: [&str; 12] = [
        driver::OWN_CPU,
        driver::RUN_QUEUE_WAIT,
        driver::VOLUNTARY_SWITCHES,
        driver::INVOLUNTARY_SWITCHES,
        "rss_bytes",
        "threads",
        driver::CGROUP_CPU_LIMIT,
        driver::CGROUP_CPU_THROTTLED,
        driver::CGROUP_PSI_CPU_SOME,
        driver::CGROUP_MEMORY_USED,
        "cgroup_memory_bytes",
        "cgroup_memory_limit_bytes",
    ];

    /// Creates a reader.
    pub fn new(pid: u32) -> Self {
        Self {
            pid,
            window: Window::default(),
            stat: ProcFile::new(format!("/proc/{pid}/stat")),
            start_time: None,
            ended: false,
            cpu_ns: Counter::default(),
            cpu_s: None,
            threads: Threads::new(format!("/proc/{pid}/task")),
            voluntary: Counter::default(),
            involuntary: Counter::default(),
            page_bytes: sysconf(SysconfVar::PAGE_SIZE).ok().flatten().map(|bytes| bytes as f64),
            cgroup: Cgroup::new(pid),
        }
    }

    /// Whether the process has ended or never existed.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Returns the CPU time that the process had used at the last reading, in seconds.
    pub fn cpu_s(&self) -> Option<f64> {
        self.cpu_s
    }

    /// Reads the process. Shares and rates cover the window since the last call.
    pub fn read(&mut self, now: Instant) -> Reading {
        let mut reading = Reading::default();
        let window_s = self.window.advance(now);
        reading.window_s = window_s.as_ref().ok().copied();
        let own = self.pid == std::process::id();
        let stat = self.read_stat(own);
        // The clock and the switches of the reader's own process do not need `/proc`.
        if let Err(gap) = &stat
            && !own
        {
            self.cpu_s = None;
            reading.extend(Reading::gap(&Self::NAMES, gap));
            return reading;
        }
        let cpu_ns = self.read_cpu_ns();
        self.cpu_s = cpu_ns.as_ref().ok().map(|ns| *ns as f64 / 1e9);
        let per_s_of_ns = |ns: Result<u64, MissingReason>| rate(ns, &window_s).map(|ns| ns / 1e9);
        reading.put(driver::OWN_CPU, per_s_of_ns(self.cpu_ns.advance_or_reset(cpu_ns)));

        let threads = self.threads.read(own);
        reading.put(driver::RUN_QUEUE_WAIT, per_s_of_ns(threads.clone().map(|sums| sums.wait_ns)));
        // For the reader's own process, one call returns the sum over all threads, including ended ones.
        let (voluntary, involuntary) = if own {
            let (voluntary, involuntary) = own_switches();
            (self.voluntary.advance_or_reset(voluntary), self.involuntary.advance_or_reset(involuntary))
        } else {
            (threads.clone().map(|sums| sums.voluntary), threads.map(|sums| sums.involuntary))
        };
        reading.put(driver::VOLUNTARY_SWITCHES, rate(voluntary, &window_s));
        reading.put(driver::INVOLUNTARY_SWITCHES, rate(involuntary, &window_s));
        let page_bytes = self
            .page_bytes
            .ok_or_else(|| MissingReason::Unsupported("the system does not report its page size".to_owned()));
        let rss_pages = stat.clone().map(|stat| stat.rss_pages as f64);
        reading.put("rss_bytes", rss_pages.and_then(|pages| Ok(pages * page_bytes?)));
        reading.put("threads", stat.map(|stat| stat.threads as f64));
        reading.extend(self.cgroup.read(now, &window_s, own));
        reading
    }

    /// Also detects that the process has ended or that another process has its id. The reader's own process has
    /// not ended, even if `/proc` lacks it.
    fn read_stat(&mut self, own: bool) -> Result<Stat, MissingReason> {
        if self.ended {
            return Err(MissingReason::Ended(self.pid));
        }
        let stat = match self.stat.read().map(Stat::parse) {
            Ok(Some(stat)) => stat,
            Ok(None) => return Err(self.stat.unexpected("state, start time, threads and rss")),
            Err(MissingReason::PathNotFound { .. }) if !own => {
                self.ended = true;
                return Err(MissingReason::Ended(self.pid));
            }
            Err(gap) => return Err(gap),
        };
        if stat.is_zombie || *self.start_time.get_or_insert(stat.start_time) != stat.start_time {
            self.ended = true;
            return Err(MissingReason::Ended(self.pid));
        }
        Ok(stat)
    }

    /// Returns the process's CPU time up to now in nanoseconds, including threads that have ended.
    /// `schedstat` would count a running thread only up to its last tick or context switch.
    fn read_cpu_ns(&self) -> Result<u64, MissingReason> {
        let refused = |error: nix::Error| {
            MissingReason::Unsupported(format!("no CPU clock for process {}: {error}", self.pid))
        };
        let pid = i32::try_from(self.pid).map_err(|_| MissingReason::Ended(self.pid))?;
        let time = ClockId::pid_cpu_clock_id(Pid::from_raw(pid)).and_then(ClockId::now).map_err(refused)?;
        let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
        Ok(seconds * 1_000_000_000 + u64::try_from(time.tv_nsec()).unwrap_or(0))
    }
}

fn own_switches() -> (Result<u64, MissingReason>, Result<u64, MissingReason>) {
    match getrusage(UsageWho::RUSAGE_SELF) {
        Ok(usage) => {
            let count = |count: i64| u64::try_from(count).map_err(|_| MissingReason::CounterDecreased);
            (count(usage.voluntary_context_switches()), count(usage.involuntary_context_switches()))
        }
        Err(error) => {
            let gap = MissingReason::Unsupported(format!("getrusage: {error}"));
            (Err(gap.clone()), Err(gap))
        }
    }
}

/// Fields of `/proc/<pid>/stat` that are used.
#[derive(Debug, Clone, PartialEq)]
struct Stat {
    is_zombie: bool,
    threads: u64,
    start_time: u64,
    rss_pages: u64,
}

impl Stat {
    fn parse(text: &str) -> Option<Self> {
        // The command name is in parentheses and may itself contain parentheses and spaces.
        let (_, after_name) = text.rsplit_once(')')?;
        let mut fields = after_name.split_ascii_whitespace();
        let is_zombie = matches!(fields.next()?, "Z" | "X" | "x");
        // Field numbers of proc(5), where state is field 3: 20 threads, 22 start time, 24 resident pages.
        let threads = fields.nth(16)?.parse().ok()?;
        let start_time = fields.nth(1)?.parse().ok()?;
        let rss_pages = fields.nth(1)?.parse().ok()?;
        Some(Self { is_zombie, threads, start_time, rss_pages })
    }
}

/// The threads of a process.
#[derive(Debug)]
struct Threads {
    directory: String,
    known: BTreeMap<u32, Thread>,
    /// Whether an earlier reading listed the threads. If so, a new thread started within the window;
    /// otherwise before it.
    has_previous_list: bool,
    round: u64,
}

impl Threads {
    fn new(directory: String) -> Self {
        Self { directory, known: BTreeMap::new(), has_previous_list: false, round: 0 }
    }

    /// Sums over the live threads in the window. The values of a thread between the last reading and its end are
    /// unknown.
    fn read(&mut self, own: bool) -> Result<Sums, MissingReason> {
        let sums = self.list().and_then(|()| self.sum(own));
        if sums.is_err() {
            // A listing that fails forgets no thread.
            self.known.clear();
        }
        let has_window = std::mem::replace(&mut self.has_previous_list, sums.is_ok());
        if has_window { sums } else { sums.and(Err(MissingReason::First)) }
    }

    fn sum(&mut self, own: bool) -> Result<Sums, MissingReason> {
        let (mut sums, mut ended, mut unreadable) = (Sums::default(), None, None);
        let keep_open = own && self.known.len() <= THREAD_HANDLES_MAX;
        self.known.retain(|_, thread| {
            match thread.read(!own, keep_open) {
                Ok(rise) => {
                    sums.add(&rise);
                    return true;
                }
                // The thread ended between the listing and the reading.
                Err(gap @ MissingReason::PathNotFound { .. }) => ended = Some(gap),
                Err(gap) => unreadable = Some(gap),
            }
            false
        });
        // A process has a thread. If none has the file, the kernel does not have it.
        let absent = || MissingReason::PathNotFound { path: self.directory.clone() };
        let without = self.known.is_empty().then(|| ended.unwrap_or_else(absent));
        unreadable.or(without).map_or(Ok(sums), Err)
    }

    fn list(&mut self) -> Result<(), MissingReason> {
        let unreadable = |error: std::io::Error| procfs::unreadable(Path::new(&self.directory), &error);
        self.round += 1;
        let mut listed = 0;
        for entry in fs::read_dir(&self.directory).map_err(unreadable)? {
            let name = entry.map_err(unreadable)?.file_name();
            let Some(tid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            let began_in_window = self.has_previous_list;
            let thread =
                self.known.entry(tid).or_insert_with(|| Thread::new(&self.directory, tid, began_in_window));
            thread.seen_in_round = self.round;
            listed += 1;
            if listed > THREADS_MAX {
                return Err(MissingReason::Unsupported(format!("more than {THREADS_MAX} threads")));
            }
        }
        self.known.retain(|_, thread| thread.seen_in_round == self.round);
        Ok(())
    }
}

/// Counts of a thread since its start, or their increase.
#[derive(Debug, Default, Clone, Copy)]
struct Sums {
    wait_ns: u64,
    voluntary: u64,
    involuntary: u64,
}

impl Sums {
    fn add(&mut self, other: &Self) {
        self.wait_ns += other.wait_ns;
        self.voluntary += other.voluntary;
        self.involuntary += other.involuntary;
    }

    fn since(&self, then: &Self) -> Self {
        Self {
            wait_ns: self.wait_ns.saturating_sub(then.wait_ns),
            voluntary: self.voluntary.saturating_sub(then.voluntary),
            involuntary: self.involuntary.saturating_sub(then.involuntary),
        }
    }
}

#[derive(Debug)]
struct Thread {
    schedstat: ProcFile,
    status: ProcFile,
    last: Option<Sums>,
    seen_in_round: u64,
}

impl Thread {
    fn new(directory: &str, tid: u32, began_in_window: bool) -> Self {
        Self {
            schedstat: ProcFile::new(format!("{directory}/{tid}/schedstat")),
            status: ProcFile::new(format!("{directory}/{tid}/status")),
            last: began_in_window.then(Sums::default),
            seen_in_round: 0,
        }
    }

    /// Returns the increase since the last reading.
    fn read(&mut self, with_switches: bool, keep_open: bool) -> Result<Sums, MissingReason> {
        let sums = self.read_sums(with_switches);
        if !keep_open {
            self.schedstat.close();
            self.status.close();
        }
        let sums = sums?;
        let last = self.last.replace(sums);
        Ok(last.map_or_else(Sums::default, |last| sums.since(&last)))
    }

    fn read_sums(&mut self, with_switches: bool) -> Result<Sums, MissingReason> {
        let wait_ns = parse_wait_ns(self.schedstat.read()?);
        let mut sums = Sums {
            wait_ns: wait_ns.ok_or_else(|| self.schedstat.unexpected("wait time"))?,
            ..Sums::default()
        };
        if with_switches {
            let switches = parse_switches(self.status.read()?);
            (sums.voluntary, sums.involuntary) =
                switches.ok_or_else(|| self.status.unexpected("context switches"))?;
        }
        Ok(sums)
    }
}

/// Parses `schedstat`: time run, time waited runnable (both in nanoseconds), number of time slices.
fn parse_wait_ns(text: &str) -> Option<u64> {
    text.split_ascii_whitespace().nth(1)?.parse().ok()
}

fn parse_switches(text: &str) -> Option<(u64, u64)> {
    let mut voluntary = None;
    let mut involuntary = None;
    // The fields are at the end of a long text.
    for line in text.lines().rev() {
        if let Some(count) = line.strip_prefix("nonvoluntary_ctxt_switches:") {
            involuntary = count.trim().parse().ok();
        } else if let Some(count) = line.strip_prefix("voluntary_ctxt_switches:") {
            voluntary = count.trim().parse().ok();
            break;
        }
    }
    Some((voluntary?, involuntary?))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use super::*;

    #[test]
    fn kernel_files_are_parsed() {
        let text = "5179 (a (b) c) S 5167 5167 3623 0 -1 4194304 103 0 0 0 0 0 0 0 20 0 7 0 85075 3133440 380 18446744073709551615 1 1\n";
        assert_eq!(
            Stat::parse(text),
            Some(Stat { is_zombie: false, threads: 7, start_time: 85_075, rss_pages: 380 })
        );
        assert_eq!(Stat::parse("5179 (a) S 1 2"), None);
        assert_eq!(parse_wait_ns("17 64216911 1\n"), Some(64_216_911));
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t2\nnonvoluntary_ctxt_switches:\t3\n";
        assert_eq!(parse_switches(status), Some((2, 3)));
        assert_eq!(parse_switches("Name:\tx\n"), None);
    }

    #[test]
    fn own_cpu_is_the_cpu_that_was_used() {
        let mut process = Process::new(std::process::id());
        let first = process.read(Instant::now());
        assert!(first.missing[driver::OWN_CPU].contains("first reading"));
        assert!(first.readings["rss_bytes"] > 1e5);
        process.read(Instant::now());
        let of_thread = || Duration::from(ClockId::CLOCK_THREAD_CPUTIME_ID.now().unwrap());
        let begun = of_thread();
        while of_thread() - begun < Duration::from_millis(20) {}
        let second = process.read(Instant::now());
        // Other tests run in parallel, so only these bounds are certain: it used the time of this thread, and at most one
        // core per thread.
        assert!(second.readings[driver::OWN_CPU] * second.window_s.unwrap() >= 0.019_999, "{second:?}");
        assert!(second.readings[driver::OWN_CPU] <= second.readings["threads"] + 1.0, "{second:?}");
        assert!(second.readings[driver::RUN_QUEUE_WAIT] >= 0.0);
    }

    #[test]
    fn short_lived_threads_give_no_negative_counts() {
        let mut process = Process::new(std::process::id());
        process.read(Instant::now());
        for _ in 0..20 {
            let threads: Vec<_> = (0..8)
                .map(|_| std::thread::spawn(|| std::hint::black_box((0..10_000_u64).sum::<u64>())))
                .collect();
            let reading = process.read(Instant::now());
            assert!(reading.readings.values().all(|value| *value >= 0.0), "{reading:?}");
            assert!(reading.missing.keys().all(|name| name.starts_with("cgroup_")), "{reading:?}");
            for thread in threads {
                thread.join().unwrap();
            }
        }
    }

    /// Writes the `schedstat` of threads, and returns the wait of all of them in the window.
    fn wait_ns(threads: &mut Threads, folder: &Path, files: &[(u32, &str)]) -> Result<u64, MissingReason> {
        for entry in fs::read_dir(folder).unwrap() {
            fs::remove_dir_all(entry.unwrap().path()).unwrap();
        }
        for (tid, text) in files {
            let thread = folder.join(tid.to_string());
            fs::create_dir(&thread).unwrap();
            fs::write(thread.join("schedstat"), text).unwrap();
        }
        // A handle would refer to a file that has been removed.
        threads.known.values_mut().for_each(|thread| thread.schedstat.close());
        threads.read(true).map(|sums| sums.wait_ns)
    }

    #[test]
    fn waits_are_summed_over_threads_that_come_and_go() {
        let folder = tempfile::tempdir().unwrap();
        let mut threads = Threads::new(folder.path().display().to_string());
        let mut read = |files: &[(u32, &str)]| wait_ns(&mut threads, folder.path(), files);
        assert_eq!(read(&[(7, "9 100 1\n")]), Err(MissingReason::First));
        assert_eq!(read(&[(7, "9 130 1\n"), (8, "9 5 1\n")]), Ok(35));
        assert_eq!(read(&[(8, "9 6 1\n")]), Ok(1));
    }

    #[test]
    fn threads_without_a_wait_time_are_missing_and_not_zero() {
        let folder = tempfile::tempdir().unwrap();
        let mut threads = Threads::new(folder.path().display().to_string());
        let mut read = |files: &[(u32, &str)]| wait_ns(&mut threads, folder.path(), files);
        assert_eq!(read(&[(7, "9 100 1\n")]), Err(MissingReason::First));
        let error = read(&[(7, "9 110 1\n"), (8, "9")]).unwrap_err().to_string();
        assert!(error.contains("cannot find wait time in") && error.ends_with("8/schedstat"), "{error}");
        assert_eq!(read(&[(7, "9 170 1\n")]), Err(MissingReason::First));
        assert_eq!(read(&[(7, "9 172 1\n")]), Ok(2));
        // A kernel without these files.
        fs::remove_file(folder.path().join("7/schedstat")).unwrap();
        threads.known.values_mut().for_each(|thread| thread.schedstat.close());
        for _ in 0..2 {
            let error = threads.read(true).map(|sums| sums.wait_ns).unwrap_err().to_string();
            assert!(error.ends_with("7/schedstat does not exist"), "{error}");
        }
    }

    #[test]
    fn the_own_process_has_a_cpu_time_without_proc() {
        let mut process = Process::new(std::process::id());
        process.stat = ProcFile::new("/proc/absent/stat");
        process.threads = Threads::new("/proc/absent/task".to_owned());
        process.cgroup = Cgroup::new(0);
        let start = Instant::now();
        process.read(start);
        let reading = process.read(start + Duration::from_secs(1));
        assert!(!process.has_ended());
        let names: Vec<&str> = reading.readings.keys().map(String::as_str).collect();
        assert_eq!(
            names,
            [driver::INVOLUNTARY_SWITCHES, driver::OWN_CPU, driver::VOLUNTARY_SWITCHES],
            "{reading:?}"
        );
        assert_eq!(reading.missing["rss_bytes"], "/proc/absent/stat does not exist");
    }

    #[test]
    fn a_process_that_ended_is_missing_by_name() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let mut process = Process::new(child.id());
        process.read(Instant::now());
        let alive = process.read(Instant::now());
        assert!(alive.missing.keys().all(|name| name.starts_with("cgroup_")), "{alive:?}");
        assert_eq!(alive.readings.len() + alive.missing.len(), Process::NAMES.len(), "{alive:?}");
        child.kill().unwrap();
        child.wait().unwrap();
        let ended = process.read(Instant::now());
        assert!(process.has_ended() && ended.readings.is_empty());
        assert_eq!(ended.missing.len(), Process::NAMES.len());
        assert!(ended.missing[driver::OWN_CPU].contains(&format!("process {} has ended", child.id())));
    }
}
