//! Names of GPUs in requests.

use std::fmt;
use std::str::FromStr;

/// A GPU or a MIG instance: its UUID or its PCI bus id. An index does not name a GPU, because CUDA and NVML count in
/// different orders.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuId(Name);

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Name {
    /// In lower case, without prefix.
    Uuid { kind: Option<Kind>, digits: String },
    /// MIG instance of a driver before R470: `mig-gpu-UUID/GPU-INSTANCE/COMPUTE-INSTANCE`.
    OldInstance(String),
    /// Domain, bus and device.
    Pci(u32, u8, u8),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Kind {
    Gpu,
    Mig,
}

/// A text that names no GPU.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "gpu {0:?} must be the UUID (GPU-8-4-4-4-12 hexadecimal digits) or the PCI bus id (such as 0000:65:00.0) of a GPU; \
     nvidia-smi -L lists UUIDs, and torch.cuda.get_device_properties returns the UUID of a device"
)]
pub struct InvalidGpuId(String);

/// Maximum length of a name, for error messages.
const LENGTH_MAX: usize = 96;

impl FromStr for GpuId {
    type Err = InvalidGpuId;

    /// Reads a UUID with the prefix `GPU-` or `MIG-`, or without prefix as CUDA returns it, or a PCI bus id.
    fn from_str(text: &str) -> Result<Self, InvalidGpuId> {
        let name = text.trim().to_ascii_lowercase();
        let name = Name::read(&name).filter(|_| text.len() <= LENGTH_MAX);
        name.map(Self).ok_or_else(|| InvalidGpuId(text.chars().take(LENGTH_MAX).collect()))
    }
}

impl Name {
    fn read(text: &str) -> Option<Self> {
        if text.starts_with("mig-gpu-") {
            return (text.matches('/').count() == 2).then(|| Self::OldInstance(text.to_owned()));
        }
        let (kind, digits) = match (text.strip_prefix("gpu-"), text.strip_prefix("mig-")) {
            (Some(digits), _) => (Some(Kind::Gpu), digits),
            (_, Some(digits)) => (Some(Kind::Mig), digits),
            _ => (None, text),
        };
        let is_hexadecimal = |part: &str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
        let parts: Vec<&str> = digits.split('-').collect();
        if parts.iter().map(|part| part.len()).eq([8, 4, 4, 4, 12])
            && parts.iter().copied().all(is_hexadecimal)
        {
            return Some(Self::Uuid { kind, digits: digits.to_owned() });
        }
        let (rest, device) = text.strip_suffix(".0").unwrap_or(text).rsplit_once(':')?;
        let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0", rest));
        let number =
            |text: &str| (is_hexadecimal(text)).then(|| u32::from_str_radix(text, 16).ok()).flatten();
        let byte = |text: &str| u8::try_from(number(text)?).ok();
        Some(Self::Pci(number(domain)?, byte(bus)?, byte(device)?))
    }
}

impl GpuId {
    /// Whether this names the GPU or MIG instance with this UUID and PCI bus id.
    pub fn names(&self, uuid: Option<&str>, pci_bus_id: Option<&str>) -> bool {
        let known = [uuid, pci_bus_id].into_iter().flatten();
        known.filter_map(|text| Name::read(&text.to_ascii_lowercase())).any(|other| self.0.equals(&other))
    }
}

impl Name {
    /// A UUID without prefix names a GPU or a MIG instance.
    fn equals(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Uuid { kind, digits }, Self::Uuid { kind: other, digits: others }) => {
                digits == others && (kind.is_none() || other.is_none() || kind == other)
            }
            _ => self == other,
        }
    }
}

impl fmt::Display for GpuId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Name::Uuid { kind: None, digits } => formatter.write_str(digits),
            Name::Uuid { kind: Some(Kind::Gpu), digits } => write!(formatter, "GPU-{digits}"),
            Name::Uuid { kind: Some(Kind::Mig), digits } => write!(formatter, "MIG-{digits}"),
            Name::OldInstance(name) => formatter.write_str(name),
            Name::Pci(domain, bus, device) => write!(formatter, "{domain:08x}:{bus:02x}:{device:02x}.0"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UUID: &str = "6a1b2c3d-0000-4444-8888-0123456789ab";

    fn names(id: &str, uuid: &str, pci_bus_id: Option<&str>) -> bool {
        id.parse::<GpuId>().unwrap().names(Some(uuid), pci_bus_id)
    }

    #[test]
    fn a_uuid_names_its_gpu_and_a_bus_id_in_any_form() {
        let (gpu, instance, bus) = (format!("GPU-{UUID}"), format!("MIG-{UUID}"), Some("00000000:65:0A.0"));
        for id in
            [UUID, &gpu, &gpu.to_uppercase(), "65:0a.0", "0000:65:0a.0", "00000000:65:0A.0", "0000:65:0a"]
        {
            assert!(names(id, &gpu, bus), "{id}");
        }
        for id in [instance.as_str(), "66:0a.0", "0001:65:0a.0", "6a1b2c3d-0000-4444-8888-0123456789ac"] {
            assert!(!names(id, &gpu, bus), "{id}");
        }
        assert!(
            names(UUID, &instance, None)
                && names(&instance, &instance, None)
                && !names(&gpu, &instance, None)
        );
        let old = "MIG-GPU-6a1b2c3d-0000-4444-8888-0123456789ab/1/0";
        assert!(names(old, old, None) && !names(old, &gpu, bus));
    }

    #[test]
    fn an_index_is_not_a_name() {
        for text in [
            "",
            "0",
            "4096",
            "cuda:0",
            "GPU-0",
            "65:0a.1",
            "gpu-",
            "::",
            "mig-gpu-x",
            "+1:2:3",
            &"0".repeat(1000),
        ] {
            let error = text.parse::<GpuId>().unwrap_err().to_string();
            assert!(error.contains("UUID") && error.len() < 400, "{error}");
        }
    }

    proptest! {
        #[test]
        fn fuzz_a_name_is_read_back(text in "(GPU-|MIG-|gpu-|)[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f:.]{1,16}|.*") {
            if let Ok(id) = text.parse::<GpuId>() {
                prop_assert_eq!(id.to_string().parse::<GpuId>(), Ok(id));
            }
        }
    }
}
