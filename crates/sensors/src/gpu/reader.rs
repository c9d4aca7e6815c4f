//! Reader of one GPU and its MIG instances.

use std::sync::OnceLock;

use evenstep_protocol::{GpuInstanceSample, GpuSample, ProcessSample, driver};
use nvml_wrapper::Device;
use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;

use super::device::{NAMES, Readout, process_busy};
use super::error::not_found;
use super::session::Session;
use crate::{GpuId, MissingReason, Reading};

/// Maximum number of reported processes per GPU.
const PROCESSES_MAX: usize = 64;
/// Maximum number of MIG instances per GPU; NVIDIA's limit is 7.
const INSTANCES_MAX: u32 = 8;
/// Maximum number of GPUs of a machine that are read all at once.
pub const GPUS_MAX: u32 = 64;

/// Name of the reading of a process's GPU memory.
const PROCESS_MEMORY: &str = "gpu_memory_bytes";

/// Names of a GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identity {
    /// UUID, stable over restarts.
    pub uuid: Option<String>,
    /// PCI bus id, which changes when the GPU is moved to another slot.
    pub pci_bus_id: Option<String>,
    /// Model name.
    pub name: Option<String>,
    /// Index in NVML's order when NVML last listed the GPU; only for information.
    pub index: u32,
}

impl Identity {
    /// Returns the identity of the GPU with this index.
    ///
    /// # Errors
    /// NVML cannot open the GPU, or it has neither a UUID nor a PCI bus id.
    pub fn of_index(nvml: &Nvml, index: u32) -> Result<Self, NvmlError> {
        let device = nvml.device_by_index(index)?;
        let pci_bus_id = device.pci_info().map(|pci| pci.bus_id);
        let uuid = match (device.uuid(), &pci_bus_id) {
            (Err(error), Err(_)) => return Err(error),
            (uuid, _) => uuid.ok(),
        };
        Ok(Self { uuid, pci_bus_id: pci_bus_id.ok(), name: device.name().ok(), index })
    }

    /// Whether both are the same GPU. A GPU without UUID is identified by its PCI bus id.
    pub fn is(&self, other: &Self) -> bool {
        match (&self.uuid, &other.uuid) {
            (Some(uuid), Some(others)) => uuid == others,
            _ => self.pci_bus_id.is_some() && self.pci_bus_id == other.pci_bus_id,
        }
    }

    /// Returns the UUID, or the PCI bus id of a GPU without UUID.
    pub fn id(&self) -> &str {
        self.uuid.as_deref().or(self.pci_bus_id.as_deref()).unwrap_or_default()
    }

    /// Returns a sample without readings.
    pub fn sample(&self) -> GpuSample {
        GpuSample {
            index: self.index,
            uuid: self.uuid.clone(),
            pci_bus_id: self.pci_bus_id.clone(),
            name: self.name.clone(),
            ..GpuSample::default()
        }
    }

    /// Returns a sample of a GPU that cannot be read.
    pub fn gap(&self, reason: &MissingReason) -> GpuSample {
        let missing = Reading::gap(&NAMES, reason).missing;
        GpuSample { gap: Some(reason.gpu_gap()), missing, ..self.sample() }
    }

    /// Opens the device. By its PCI bus id NVML initialises no other GPU, which may hang.
    ///
    /// # Errors
    /// The GPU is lost, or NVML cannot open it.
    pub fn open<'a>(&self, nvml: &'a Nvml) -> Result<Device<'a>, MissingReason> {
        let device = match (&self.pci_bus_id, &self.uuid) {
            (Some(id), _) => nvml.device_by_pci_bus_id(id.as_str()),
            (None, uuid) => nvml.device_by_uuid(uuid.as_deref().unwrap_or_default()),
        };
        device.map_err(not_found)
    }
}

/// Reader of one GPU. It opens the device for each reading, because a GPU that was lost returns as another device.
#[derive(Debug)]
pub struct Gpu {
    session: Session,
    identity: Identity,
    processes_seen_us: u64,
}

impl Gpu {
    /// Creates a reader.
    pub fn new(session: Session, identity: Identity) -> Self {
        Self { session, identity, processes_seen_us: 0 }
    }

    /// Finds a GPU for a training loop. All readers of a process share one session.
    ///
    /// # Errors
    /// There is no driver or no such GPU, or it cannot be opened.
    pub fn find(id: &GpuId) -> Result<Self, MissingReason> {
        static SESSION: OnceLock<Session> = OnceLock::new();
        let session = SESSION.get_or_init(Session::new).clone();
        let nvml = session
            .open()
            .map_err(|error| MissingReason::Unsupported(format!("no NVIDIA driver: {error}")))?;
        let count = nvml.device_count()?;
        let known = (0..count).filter_map(|index| Identity::of_index(&nvml, index).ok());
        let is_named = |identity: &Identity| {
            id.names(identity.uuid.as_deref(), identity.pci_bus_id.as_deref())
                || identity
                    .open(&nvml)
                    .is_ok_and(|device| instances(&device).any(|instance| is_instance(&instance, id)))
        };
        let identity = known.into_iter().find(is_named).ok_or_else(|| unknown(id))?;
        Ok(Self::new(session, identity))
    }

    /// Sets the identity that NVML lists now.
    pub fn identify(&mut self, identity: Identity) {
        self.identity = identity;
    }

    /// Reads the device only, as a training loop does at the boundary of an iteration. If `id` names a MIG
    /// instance, the memory readings describe the instance.
    pub fn read_device(&self, id: &GpuId) -> (Reading, Vec<String>) {
        let gap = |reason: &MissingReason| (Reading::gap(&NAMES, reason), Vec::new());
        let nvml = match self.session.get() {
            Ok(nvml) => nvml,
            Err(reason) => return gap(&reason),
        };
        let device = match self.identity.open(&nvml) {
            Ok(device) => device,
            Err(reason) => return gap(&reason),
        };
        let mut readout = Readout::new(&device);
        let reasons = readout.boundary();
        let mut reading = readout.reading;
        if !id.names(self.identity.uuid.as_deref(), self.identity.pci_bus_id.as_deref()) {
            match instances(&device).find(|instance| is_instance(instance, id)) {
                Some(instance) => {
                    let mut readout = Readout::new(&instance);
                    readout.memory();
                    for name in readout.reading.readings.keys().chain(readout.reading.missing.keys()) {
                        reading.readings.remove(name);
                        reading.missing.remove(name);
                    }
                    reading.extend(readout.reading);
                }
                None => return gap(&unknown(id)),
            }
        }
        (reading, reasons)
    }

    /// Reads the device, its counters, its MIG instances, and the processes that use it.
    pub fn read(&mut self) -> GpuSample {
        let nvml = match self.session.get() {
            Ok(nvml) => nvml,
            Err(reason) => return self.identity.gap(&reason),
        };
        let device = match self.identity.open(&nvml) {
            Ok(device) => device,
            Err(reason) => return self.identity.gap(&reason),
        };
        let mut readout = Readout::new(&device);
        let throttle_reasons = readout.boundary();
        readout.counters();
        let processes = self.read_processes(&mut readout);
        let instances =
            readout.call(|device| Ok(instances(device).map(|instance| sample(&instance)).collect()));
        let gap = readout.gap();
        let Reading { readings, missing, .. } = readout.reading;
        GpuSample {
            gap,
            readings,
            throttle_reasons,
            missing,
            processes,
            instances: instances.unwrap_or_default(),
            ..self.identity.sample()
        }
    }

    fn read_processes(&mut self, readout: &mut Readout<'_, '_>) -> Vec<ProcessSample> {
        let running = match readout.call(Device::running_compute_processes) {
            Ok(running) => running,
            Err(reason) => {
                readout.reading.put("processes", Err(reason));
                return Vec::new();
            }
        };
        let mut seen_us = self.processes_seen_us;
        let busy = readout.call(|device| process_busy(device, &mut seen_us));
        self.processes_seen_us = seen_us;
        let sample = |process: &ProcessInfo| {
            let mut reading = Reading::default();
            reading.put(
                PROCESS_MEMORY,
                match process.used_gpu_memory {
                    UsedGpuMemory::Used(bytes) => Ok(bytes as f64),
                    UsedGpuMemory::Unavailable => {
                        Err(MissingReason::Unsupported("not reported by driver".to_owned()))
                    }
                },
            );
            let idle = || {
                MissingReason::Unsupported(
                    "no driver sample of this process since the last reading".to_owned(),
                )
            };
            let busy = busy.as_ref().map_err(MissingReason::clone);
            reading.put(
                driver::GPU_BUSY,
                busy.and_then(|busy| busy.get(&process.pid).copied().ok_or_else(idle)),
            );
            let Reading { readings, missing, .. } = reading;
            ProcessSample { pid: process.pid, worker: None, readings, missing }
        };
        running.iter().take(PROCESSES_MAX).map(sample).collect()
    }
}

/// Returns the MIG instances of a device. A GPU without MIG has none.
fn instances<'a, 'nvml>(device: &'a Device<'nvml>) -> impl Iterator<Item = Device<'nvml>> + use<'a, 'nvml> {
    let is_divided = device.mig_mode().is_ok_and(|mode| mode.current == 1);
    let count = if is_divided { device.mig_device_count().unwrap_or(0).min(INSTANCES_MAX) } else { 0 };
    (0..count).filter_map(|index| device.mig_device_by_index(index).ok())
}

fn is_instance(instance: &Device<'_>, id: &GpuId) -> bool {
    instance.uuid().is_ok_and(|uuid| id.names(Some(&uuid), None))
}

fn sample(instance: &Device<'_>) -> GpuInstanceSample {
    let mut readout = Readout::new(instance);
    readout.memory();
    let Reading { readings, missing, .. } = readout.reading;
    let uuid = instance.uuid().unwrap_or_default();
    GpuInstanceSample { uuid, name: instance.name().ok(), readings, missing }
}

/// Returns that NVML lists no GPU of this name.
pub fn unknown(id: &GpuId) -> MissingReason {
    MissingReason::Unsupported(format!("NVML lists no GPU {id}"))
}
