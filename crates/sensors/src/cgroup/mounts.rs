//! The mounted hierarchies of cgroups.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use crate::MissingReason;
use crate::procfs::unreadable;

/// Maximum size of the list of mounts. On a machine with hundreds of containers, it has some hundred kilobytes.
const MOUNTS_BYTES_MAX: u64 = 16 << 20;

/// Version of a hierarchy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    V1,
    V2,
}

/// A mounted hierarchy with the cgroup of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hierarchy {
    pub(super) version: Version,
    pub(super) mount_point: PathBuf,
    /// The directory of the cgroup, in the mount point.
    pub(super) directory: PathBuf,
}

/// A mount of a hierarchy.
#[derive(Debug)]
struct Mount {
    version: Version,
    /// The cgroup that is visible at the mount point.
    root: PathBuf,
    mount_point: PathBuf,
    /// Controllers of a hierarchy of version 1.
    controllers: Vec<String>,
}

/// The mounts of hierarchies.
#[derive(Debug)]
pub(super) struct Mounts(Vec<Mount>);

impl Mounts {
    /// Reads `/proc/self/mountinfo`, see proc(5).
    pub(super) fn read(path: &Path) -> Result<Self, MissingReason> {
        let failed = |error: std::io::Error| unreadable(path, &error);
        let lines = BufReader::new(File::open(path).map_err(failed)?.take(MOUNTS_BYTES_MAX)).split(b'\n');
        let mut mounts = Vec::new();
        for line in lines {
            mounts.extend(Mount::parse(&String::from_utf8_lossy(&line.map_err(failed)?)));
        }
        Ok(Self(mounts))
    }

    /// Returns the hierarchy of a controller: version 1 if it has the controller, else version 2. `membership` is
    /// the text of `/proc/PID/cgroup`.
    pub(super) fn hierarchy(&self, controller: &str, membership: &str) -> Result<Hierarchy, MissingReason> {
        let has = |controllers: &str| controllers.split(',').any(|name| name == controller);
        let Some(path) = membership.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            has(controllers).then_some(path)
        }) else {
            return self.unified(membership);
        };
        self.find(path, |mount| mount.controllers.iter().any(|name| name == controller))
    }

    /// Returns the hierarchy of version 2.
    pub(super) fn unified(&self, membership: &str) -> Result<Hierarchy, MissingReason> {
        let path = membership.lines().find_map(|line| line.strip_prefix("0::"));
        let path = path.ok_or_else(|| MissingReason::Unsupported("no cgroup of version 2".to_owned()))?;
        self.find(path, |mount| mount.version == Version::V2)
    }

    fn find(&self, path: &str, is_it: impl Fn(&Mount) -> bool) -> Result<Hierarchy, MissingReason> {
        let path = path.trim_end_matches(" (deleted)");
        let visible = self.0.iter().filter(|mount| is_it(mount)).find_map(|mount| {
            let below = Path::new(path).strip_prefix(&mount.root).ok()?;
            // Above the root of the namespace, the names are not known.
            let is_below = !below.components().any(|part| part.as_os_str() == "..");
            let directory: PathBuf = mount.mount_point.join(below).components().collect();
            let mount_point = mount.mount_point.clone();
            is_below.then_some(Hierarchy { version: mount.version, mount_point, directory })
        });
        visible.ok_or_else(|| MissingReason::Unsupported(format!("no mount shows the cgroup {path}")))
    }
}

impl Mount {
    /// Parses a line such as `36 31 0:33 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu`.
    fn parse(line: &str) -> Option<Self> {
        let (of_mount, of_system) = line.split_once(" - ")?;
        let mut system = of_system.split(' ');
        let version = match system.next()? {
            "cgroup" => Version::V1,
            "cgroup2" => Version::V2,
            _ => return None,
        };
        let mut fields = of_mount.split(' ').skip(3).map(|field| PathBuf::from(unescaped(field)));
        let (root, mount_point) = (fields.next()?, fields.next()?);
        let options = system.nth(1).filter(|_| version == Version::V1).unwrap_or_default();
        Some(Self {
            version,
            root,
            mount_point,
            controllers: options.split(',').map(str::to_owned).collect(),
        })
    }
}

/// Replaces the escapes of white space and back slashes, such as `\040`.
fn unescaped(field: &str) -> String {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    escapes.iter().fold(field.to_owned(), |text, (escape, meant)| text.replace(escape, meant))
}
