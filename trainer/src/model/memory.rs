//! This process's highest memory use so far.

use std::fs;

use tch::Device;

/// The peak of what it computes on, in bytes; none where the system does not say. On the CPU that is the highest resident
/// size of the process. A GPU's allocator is not asked yet.
pub fn peak_memory_bytes(device: Device) -> Option<u64> {
    match device {
        Device::Cpu => resident_peak(&fs::read_to_string("/proc/self/status").ok()?),
        _ => None,
    }
}

/// The line `VmHWM:  123 kB` of a process's status.
fn resident_peak(status: &str) -> Option<u64> {
    let words = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = words.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_read_and_rises_with_what_is_held() {
        assert_eq!(resident_peak("VmPeak:\t  99 kB\nVmHWM:\t   1234 kB\nVmRSS:\t 1 kB\n"), Some(1234 * 1024));
        for absent in ["", "VmHWM:", "VmHWM: 12", "VmHWM: x kB"] {
            assert_eq!(resident_peak(absent), None, "{absent}");
        }
        let before = peak_memory_bytes(Device::Cpu).unwrap();
        let held = vec![1_u8; 2 * before as usize];
        assert!(peak_memory_bytes(Device::Cpu).unwrap() > held.len() as u64);
    }
}
