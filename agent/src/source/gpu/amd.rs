//! AMD GPUs, which are found but not read.

use std::path::Path;

/// PCI vendor of AMD in `/sys/class/drm/card*/device/vendor`.
const VENDOR: &str = "0x1002";
/// Maximum number of entries of `/sys/class/drm` to look at.
const ENTRIES_MAX: usize = 1024;

/// Whether the machine with this root directory has an AMD GPU, by its driver's device or its PCI vendor.
pub fn is_present(root: &Path) -> bool {
    let is_amd = |card: &Path| {
        std::fs::read_to_string(card.join("device/vendor")).is_ok_and(|vendor| vendor.trim() == VENDOR)
    };
    let cards =
        std::fs::read_dir(root.join("sys/class/drm")).into_iter().flatten().take(ENTRIES_MAX).flatten();
    root.join("dev/kfd").exists() || cards.map(|card| card.path()).any(|card| is_amd(&card))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn an_amd_gpu_is_found_by_its_device_or_vendor() {
        let root = tempfile::tempdir().unwrap();
        assert!(!is_present(root.path()));
        for (card, vendor) in [("card0", "0x10de\n"), ("renderD128", "")] {
            let device = root.path().join("sys/class/drm").join(card).join("device");
            fs::create_dir_all(&device).unwrap();
            fs::write(device.join("vendor"), vendor).unwrap();
        }
        assert!(!is_present(root.path()), "the GPU is another vendor's");
        fs::write(root.path().join("sys/class/drm/card0/device/vendor"), "0x1002\n").unwrap();
        assert!(is_present(root.path()));
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("dev/kfd")).unwrap();
        assert!(is_present(root.path()));
    }
}
