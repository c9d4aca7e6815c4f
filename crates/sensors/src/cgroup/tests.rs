use std::fs;

use proptest::prelude::*;

use super::*;

/// Texts of Linux 6.18 with all controllers of version 1, and also version 2.
const V1_MEMBERSHIP: &str = "9:name=systemd:/\n5:memory:/pod/worker\n2:cpu,cpuacct:/pod/worker\n0::/pod\n";
const V1_STAT: &str =
    "nr_periods 66\nnr_throttled 15\nthrottled_time 1204000000\nnr_bursts 0\nburst_time 0\n";
/// Texts of Linux 6.18 with version 2 only.
const V2_STAT: &str = "usage_usec 1330000\nuser_usec 1300000\nsystem_usec 30000\nnice_usec 0\nnr_periods 66\n\
    nr_throttled 15\nthrottled_usec 1204000\nnr_bursts 0\nburst_usec 0\n";
const PRESSURE: &str = "some avg10=33.44 avg60=76.47 avg300=78.18 total=26959072517\n\
    full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";

/// A tree of files in place of `/proc` and `/sys/fs/cgroup`.
struct Tree {
    folder: tempfile::TempDir,
}

impl Tree {
    /// Mounts each hierarchy, which is `(name of the folder, root, kind, options)`.
    fn new(mounts: &[(&str, &str, &str, &str)]) -> Self {
        let tree = Self { folder: tempfile::tempdir().unwrap() };
        let mut text = "22 27 0:21 / /proc rw,relatime - proc proc rw\n".to_owned();
        for (name, root, kind, options) in mounts {
            let mount_point = tree.path(name).display().to_string();
            text +=
                &format!("32 31 0:29 {root} {mount_point} rw,relatime shared:9 - {kind} {kind} {options}\n");
        }
        tree.write("mountinfo", &text);
        tree
    }

    fn v1() -> Self {
        let controller = |name| (name, "/", "cgroup");
        let [(cpu, root, kind), (memory, ..)] = [controller("cpu"), controller("memory")];
        Self::new(&[
            (cpu, root, kind, "rw,cpu,cpuacct"),
            (memory, root, kind, "rw,memory"),
            ("unified", "/", "cgroup2", "rw"),
        ])
    }

    fn v2() -> Self {
        Self::new(&[("unified", "/", "cgroup2", "rw,nsdelegate")])
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn reader(&self) -> Cgroup {
        Cgroup::at(self.path("cgroup"), self.path("mountinfo"))
    }
}

/// Two readings, 6.6 s apart; `between` changes the files. Returns the second.
fn read_twice(tree: &Tree, between: impl FnOnce()) -> Reading {
    let (mut reader, start) = (tree.reader(), Instant::now());
    let first = reader.read(start, &Err(MissingReason::First), true);
    assert!(!first.readings.contains_key(driver::CGROUP_CPU_THROTTLED), "{first:?}");
    between();
    reader.read(start + Duration::from_millis(6600), &Ok(6.6), false)
}

fn assert_readings(reading: &Reading, expected: &[(&str, f64)]) {
    let expected: Vec<(String, f64)> =
        expected.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
    assert_eq!(reading.readings, expected.into_iter().collect(), "{reading:?}");
    assert_eq!(reading.readings.len() + reading.missing.len(), Cgroup::NAMES.len(), "{reading:?}");
}

#[test]
fn limits_of_version_1_are_read() {
    let tree = Tree::v1();
    tree.write("cgroup", V1_MEMBERSHIP);
    tree.write("cpu/cpu.cfs_quota_us", "-1\n");
    tree.write("cpu/pod/cpu.cfs_quota_us", "-1\n");
    tree.write("cpu/pod/worker/cpu.cfs_quota_us", "20000\n");
    tree.write("cpu/pod/worker/cpu.cfs_period_us", "100000\n");
    tree.write("cpu/pod/worker/cpu.stat", "nr_periods 0\nnr_throttled 0\nthrottled_time 0\n");
    tree.write("memory/memory.limit_in_bytes", "9223372036854771712\n");
    tree.write("memory/pod/memory.limit_in_bytes", "536870912\n");
    tree.write("memory/pod/memory.usage_in_bytes", "402653184\n");
    tree.write("memory/pod/worker/memory.limit_in_bytes", "1073741824\n");
    tree.write("memory/pod/worker/memory.usage_in_bytes", "268435456\n");
    tree.write("unified/pod/cpu.pressure", PRESSURE);
    let second = read_twice(&tree, || {
        tree.write("cpu/pod/worker/cpu.stat", V1_STAT);
        tree.write("unified/pod/cpu.pressure", &PRESSURE.replace("26959072517", "26962372517"));
    });
    assert_readings(
        &second,
        &[
            (driver::CGROUP_CPU_LIMIT, 0.2),
            (driver::CGROUP_CPU_THROTTLED, 15.0 / 66.0),
            (driver::CGROUP_MEMORY_USED, 0.75),
            (driver::CGROUP_PSI_CPU_SOME, 0.5),
            ("cgroup_memory_bytes", 402_653_184.0),
            ("cgroup_memory_limit_bytes", 536_870_912.0),
        ],
    );
}

#[test]
fn limits_of_version_2_are_read() {
    let tree = Tree::v2();
    tree.write("cgroup", "0::/pod.slice/worker\n");
    tree.write("unified/pod.slice/cpu.max", "20000 100000\n");
    tree.write("unified/pod.slice/cpu.stat", "usage_usec 0\nnr_periods 0\nnr_throttled 0\n");
    tree.write("unified/pod.slice/memory.max", "536870912\n");
    tree.write("unified/pod.slice/memory.current", "268435456\n");
    tree.write("unified/pod.slice/worker/cpu.max", "max 100000\n");
    tree.write("unified/pod.slice/worker/memory.max", "max\n");
    tree.write("unified/pod.slice/worker/cpu.pressure", PRESSURE);
    let second = read_twice(&tree, || tree.write("unified/pod.slice/cpu.stat", V2_STAT));
    assert_readings(
        &second,
        &[
            (driver::CGROUP_CPU_LIMIT, 0.2),
            (driver::CGROUP_CPU_THROTTLED, 15.0 / 66.0),
            (driver::CGROUP_MEMORY_USED, 0.5),
            (driver::CGROUP_PSI_CPU_SOME, 0.0),
            ("cgroup_memory_bytes", 268_435_456.0),
            ("cgroup_memory_limit_bytes", 536_870_912.0),
        ],
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// The tightest limit of the cgroup and its ancestors counts, at whatever level it is set.
    #[test]
    fn the_tightest_limit_counts(
        limits in prop::collection::vec((prop::option::of(1_u64..1_000_000), prop::option::of(1_u64..1 << 50)), 1..8),
    ) {
        let tree = Tree::v2();
        let mut path = "unified".to_owned();
        for (level, (quota_us, bytes)) in limits.iter().enumerate() {
            path += &format!("/{level}");
            let or_max = |limit: &Option<u64>| limit.map_or_else(|| "max".to_owned(), |limit| limit.to_string());
            tree.write(&format!("{path}/cpu.max"), &format!("{} 100000\n", or_max(quota_us)));
            tree.write(&format!("{path}/cpu.stat"), V2_STAT);
            tree.write(&format!("{path}/memory.max"), &format!("{}\n", or_max(bytes)));
            tree.write(&format!("{path}/memory.current"), "1\n");
        }
        tree.write("cgroup", &format!("0::{}\n", path.strip_prefix("unified").unwrap()));
        let reading = read_twice(&tree, || ());
        let cores = limits.iter().filter_map(|limit| limit.0).min().map(|quota_us| quota_us as f64 / 1e5);
        let bytes = limits.iter().filter_map(|limit| limit.1).min().map(|bytes| bytes as f64);
        prop_assert_eq!(reading.readings.get(driver::CGROUP_CPU_LIMIT).copied(), cores);
        prop_assert_eq!(reading.readings.get("cgroup_memory_limit_bytes").copied(), bytes);
        prop_assert_eq!(reading.readings.contains_key(driver::CGROUP_CPU_THROTTLED), cores.is_some());
    }
}

#[test]
fn what_is_not_limited_or_not_visible_is_missing_with_a_reason() {
    let reason = |tree: &Tree, membership: &str| {
        tree.write("cgroup", membership);
        let reading = tree.reader().read(Instant::now(), &Ok(1.0), true);
        assert_readings(&reading, &[]);
        reading.missing[driver::CGROUP_CPU_LIMIT].clone()
    };
    let tree = Tree::v2();
    fs::create_dir(tree.path("unified")).unwrap();
    assert!(reason(&tree, "0::/\n").ends_with("unified has no CPU limit"));
    assert!(reason(&tree, "0::/gone (deleted)\n").ends_with("unified/gone does not exist"));
    assert_eq!(reason(&tree, "0::/../other\n"), "no mount shows the cgroup /../other");
    assert_eq!(reason(&tree, "1:cpu:/\n"), "no mount shows the cgroup /");
    assert_eq!(reason(&tree, ""), "no cgroup of version 2");
    let deep = "/a".repeat(LEVELS_MAX);
    assert!(reason(&tree, &format!("0::{deep}\n")).contains("more than 32 cgroups deep"));
    for text in ["", "20000", "x 100000", "20000 0"] {
        tree.write("unified/odd/cpu.max", text);
        assert!(reason(&tree, "0::/odd\n").contains("cannot find"), "{text:?}");
    }
    fs::remove_file(tree.path("mountinfo")).unwrap();
    assert!(reason(&tree, "0::/\n").ends_with("mountinfo does not exist"));
}

/// Without a cgroup namespace, a container sees its cgroup as the root of the mount, and the whole path in `/proc`.
#[test]
fn the_root_of_the_mount_is_not_part_of_the_path() {
    let tree = Tree::new(&[("unified", "/docker/5f", "cgroup2", "rw")]);
    tree.write("cgroup", "0::/docker/5f/worker\n");
    tree.write("unified/cpu.max", "50000 100000\n");
    tree.write("unified/cpu.stat", V2_STAT);
    tree.write("unified/worker/cpu.max", "max 100000\n");
    let reading = read_twice(&tree, || ());
    assert_eq!(reading.readings[driver::CGROUP_CPU_LIMIT], 0.5);
    tree.write("cgroup", "0::/docker/6e\n");
    let other = tree.reader().read(Instant::now(), &Ok(1.0), true);
    assert_eq!(other.missing[driver::CGROUP_CPU_LIMIT], "no mount shows the cgroup /docker/6e");
}

#[test]
fn counters_start_again_in_another_cgroup() {
    let tree = Tree::v2();
    tree.write("cgroup", "0::/a\n");
    for (name, periods) in [("a", 1000), ("b", 4)] {
        tree.write(&format!("unified/{name}/cpu.max"), "20000 100000\n");
        tree.write(&format!("unified/{name}/cpu.stat"), &format!("nr_periods {periods}\nnr_throttled 2\n"));
    }
    let second = read_twice(&tree, || tree.write("cgroup", "0::/b\n"));
    assert_eq!(second.missing[driver::CGROUP_CPU_THROTTLED], MissingReason::First.to_string());
    assert_eq!(second.readings[driver::CGROUP_CPU_LIMIT], 0.2);
    tree.write("cgroup", "0::/a\n");
    let fallen = read_twice(&tree, || tree.write("unified/a/cpu.stat", "nr_periods 1\nnr_throttled 0\n"));
    assert_eq!(fallen.missing[driver::CGROUP_CPU_THROTTLED], MissingReason::CounterDecreased.to_string());
    // An idle cgroup is not throttled.
    let idle = read_twice(&tree, || ());
    assert_eq!(idle.readings[driver::CGROUP_CPU_THROTTLED], 0.0);
}
