//! Memory of the machine, and peak memory of this process.

use crate::MissingReason;
use std::path::Path;

use crate::procfs::ProcFile;

/// Reader of the machine's memory.
#[derive(Debug)]
pub(crate) struct MachineMemory {
    meminfo: ProcFile,
}

/// Memory of the machine, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemoryBytes {
    pub(crate) total: u64,
    pub(crate) available: u64,
}

impl MachineMemory {
    pub(crate) fn new(proc: &Path) -> Self {
        Self { meminfo: ProcFile::new(proc.join("meminfo")) }
    }

    pub(crate) fn read(&mut self) -> Result<MemoryBytes, MissingReason> {
        let text = self.meminfo.read()?;
        let (total, available) = (bytes_of(text, "MemTotal:"), bytes_of(text, "MemAvailable:"));
        let total = total.filter(|&total| total > 0).ok_or_else(|| self.meminfo.unexpected("MemTotal"))?;
        Ok(MemoryBytes {
            total,
            available: available.ok_or_else(|| self.meminfo.unexpected("MemAvailable"))?,
        })
    }
}

/// Returns the peak resident memory of this process in bytes; `None` if the kernel does not report it.
pub fn own_peak_bytes() -> Option<u64> {
    bytes_of(ProcFile::new("/proc/self/status").read().ok()?, "VmHWM:")
}

/// Parses the value of a line such as `VmHWM:     123 kB`, in bytes.
fn bytes_of(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_in_kibibytes_are_read() {
        let text = "VmPeak:\t  99 kB\nVmHWM:\t   1234 kB\nVmRSS:\t 1 kB\n";
        assert_eq!(bytes_of(text, "VmHWM:"), Some(1234 * 1024));
        for absent in ["", "VmHWM:", "VmHWM: 12", "VmHWM: x kB"] {
            assert_eq!(bytes_of(absent, "VmHWM:"), None, "{absent}");
        }
    }

    #[test]
    fn the_machine_has_memory_and_the_peak_rises_with_what_is_held() {
        let memory = MachineMemory::new(Path::new("/proc")).read().unwrap();
        assert!(0 < memory.available && memory.available <= memory.total, "{memory:?}");
        let before = own_peak_bytes().unwrap();
        let held = vec![1_u8; 2 * before as usize];
        assert!(own_peak_bytes().unwrap() > held.len() as u64);
    }
}
