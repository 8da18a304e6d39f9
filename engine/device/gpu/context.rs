//! Access to a GPU: adapters, buffers, errors. Failures in the driver are returned as errors and never panic.

use crate::device::GpuInfo;
use crate::{Error, Result};
use std::sync::{Arc, OnceLock};
use wgpu::{
    Adapter, Backends, Buffer, BufferDescriptor, BufferUsages, DeviceDescriptor, ErrorFilter, PollType,
};

/// Bytes that a workgroup of the largest kernels shares; kernels of one model may do with less.
const WORKGROUP_BYTES: u32 = 32 << 10;
/// Buffers of a kernel.
const BUFFERS: u32 = 8;
/// Invocations of a workgroup.
const INVOCATIONS: u32 = 256;

impl GpuInfo {
    fn of(adapter: &Adapter) -> Self {
        let (info, limits) = (adapter.get_info(), adapter.limits());
        let needs = [
            ("buffers of a kernel", BUFFERS, limits.max_storage_buffers_per_shader_stage),
            ("bytes of workgroup memory", WORKGROUP_BYTES, limits.max_compute_workgroup_storage_size),
            ("invocations of a workgroup", INVOCATIONS, limits.max_compute_invocations_per_workgroup),
        ];
        let missing = needs.into_iter().filter(|(_, needed, had)| had < needed);
        let missing = missing.map(|(what, needed, had)| format!("{needed} {what} (it has {had})"));
        let halves = wgpu::DownlevelFlags::SHADER_F16_IN_F32;
        let has_halves = adapter.get_downlevel_capabilities().flags.contains(halves);
        let missing = missing.chain((!has_halves).then(|| "packing of halves".to_owned())).collect();
        let driver = [info.driver.as_str(), info.driver_info.as_str()];
        let driver: Vec<&str> = driver.into_iter().filter(|text| !text.is_empty()).collect();
        Self {
            name: info.name,
            backend: info.backend.to_str().to_owned(),
            kind: match info.device_type {
                wgpu::DeviceType::DiscreteGpu => "discrete",
                wgpu::DeviceType::IntegratedGpu => "integrated",
                wgpu::DeviceType::VirtualGpu => "virtual",
                wgpu::DeviceType::Cpu => "software",
                wgpu::DeviceType::Other => "other",
            },
            driver: driver.join(" "),
            max_binding_bytes: limits.max_storage_buffer_binding_size.min(limits.max_buffer_size),
            workgroup_bytes: u64::from(limits.max_compute_workgroup_storage_size),
            missing,
        }
    }
}

/// All adapters, the best first: discrete, integrated, virtual, other, software.
fn adapters() -> Vec<Adapter> {
    /// One for the process, kept: NVIDIA's driver, loaded again after it was unloaded, finds no GPU, or
    /// crashes where threads of it are left.
    static INSTANCE: OnceLock<wgpu::Instance> = OnceLock::new();
    let backends = Backends::VULKAN | Backends::METAL | Backends::DX12;
    let descriptor =
        || wgpu::InstanceDescriptor { backends, ..wgpu::InstanceDescriptor::new_without_display_handle() };
    let instance = INSTANCE.get_or_init(|| wgpu::Instance::new(descriptor()));
    let mut adapters = pollster::block_on(instance.enumerate_adapters(backends));
    let rank = |adapter: &Adapter| match adapter.get_info().device_type {
        wgpu::DeviceType::DiscreteGpu => 0,
        wgpu::DeviceType::IntegratedGpu => 1,
        wgpu::DeviceType::VirtualGpu => 2,
        wgpu::DeviceType::Other => 3,
        wgpu::DeviceType::Cpu => 4,
    };
    adapters.sort_by_key(rank);
    adapters
}

/// The adapters of this machine, the best first.
pub(crate) fn list() -> Vec<GpuInfo> {
    adapters().iter().map(GpuInfo::of).collect()
}

/// An opened adapter.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) device: wgpu::Device,
    pub(super) queue: wgpu::Queue,
    pub(super) info: GpuInfo,
    /// Reason of the loss, once the device is lost.
    lost: Arc<OnceLock<String>>,
    /// Submits of work so far, and bytes that came back.
    #[cfg(test)]
    pub(super) traffic: std::sync::Mutex<(u64, u64)>,
    /// The first error that belongs to no call: after it nothing can be trusted.
    stray: Arc<OnceLock<String>>,
}

impl Context {
    /// Opens the best adapter whose name holds `name` (of any case), one that lacks nothing if there is one;
    /// none that is software unless it is named.
    ///
    /// # Errors
    /// There is none; it lacks something; the driver refuses.
    pub(super) fn open(name: Option<&str>) -> Result<Arc<Self>> {
        let all = adapters();
        let all: Vec<(&Adapter, GpuInfo)> =
            all.iter().map(|adapter| (adapter, GpuInfo::of(adapter))).collect();
        let is_meant = |info: &GpuInfo| match name {
            Some(name) => info.name.to_lowercase().contains(&name.to_lowercase()),
            None => !info.is_software(),
        };
        let meant = all.iter().filter(|(_, info)| is_meant(info));
        let Some((adapter, info)) = meant.min_by_key(|(_, info)| !info.missing.is_empty()) else {
            let names: Vec<String> =
                all.iter().map(|(_, info)| format!("{} ({})", info.name, info.kind)).collect();
            let had = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            let wanted = name.map_or("a GPU".to_owned(), |name| format!("a GPU with `{name}` in its name"));
            return Err(Error::device(format!("{wanted} was not found; available: {had}")));
        };
        if !info.missing.is_empty() {
            let missing = info.missing.join(", ");
            return Err(Error::device(format!("{} can't be used: it lacks {missing}", info.name)));
        }
        let descriptor = DeviceDescriptor {
            // Steps are timed where it is possible.
            required_features: adapter.features() & wgpu::Features::TIMESTAMP_QUERY,
            required_limits: adapter.limits(),
            memory_hints: wgpu::MemoryHints::MemoryUsage,
            ..DeviceDescriptor::default()
        };
        let (device, queue) = pollster::block_on(adapter.request_device(&descriptor))
            .map_err(|e| Error::device(format!("{} can't be opened: {e}", info.name)))?;
        let (lost, stray) = (Arc::new(OnceLock::new()), Arc::new(OnceLock::new()));
        let (why, heard) = (lost.clone(), stray.clone());
        device.set_device_lost_callback(move |_, message| drop(why.set(message)));
        device.on_uncaptured_error(Arc::new(move |e: wgpu::Error| {
            tracing::warn!("GPU: {e}");
            drop(heard.set(e.to_string()));
        }));
        Ok(Arc::new(Self {
            device,
            queue,
            info: info.clone(),
            #[cfg(test)]
            traffic: Default::default(),
            lost,
            stray,
        }))
    }

    /// Does something, and tells what the driver had against it.
    ///
    /// # Errors
    /// Memory runs out, the driver refuses, the device is lost.
    pub(super) fn checked<T>(&self, what: &str, does: impl FnOnce() -> Result<T>) -> Result<T> {
        let filters = [ErrorFilter::Internal, ErrorFilter::Validation, ErrorFilter::OutOfMemory];
        let [internal, validation, memory] = filters.map(|filter| self.device.push_error_scope(filter));
        let done = does();
        // Whether it is lost shows when it is asked.
        drop(self.device.poll(PollType::Poll));
        let found = [memory, validation, internal].map(|scope| pollster::block_on(scope.pop()));
        if let Some(e) = found.into_iter().flatten().next() {
            return Err(self.failed(what, &e.to_string()));
        }
        if let Some(why) = self.lost.get() {
            let why = if why.is_empty() { "the driver gives no reason" } else { why };
            return Err(self.failed(what, &format!("the device was lost ({why})")));
        }
        if let Some(e) = self.stray.get() {
            return Err(self.failed(what, e));
        }
        done
    }

    fn failed(&self, what: &str, why: &str) -> Error {
        Error::device(format!("{}: {what} failed: {}", self.info.name, why.trim()))
    }

    /// A buffer of zeros; of some bytes at least, for none can be empty.
    pub(super) fn buffer(&self, n_bytes: u64) -> Buffer {
        self.device.create_buffer(&BufferDescriptor {
            label: None,
            size: n_bytes.next_multiple_of(16).max(16),
            usage: BufferUsages::STORAGE
                | BufferUsages::COPY_SRC
                | BufferUsages::COPY_DST
                | BufferUsages::UNIFORM,
            mapped_at_creation: false,
        })
    }

    /// Copies pieces of buffers, `(buffer, offset, bytes)`, to the host, one after the other, after
    /// `encoder`'s work, which is `what`.
    ///
    /// # Errors
    /// As [`Context::checked`].
    pub(super) fn read(
        &self,
        what: &str,
        mut encoder: wgpu::CommandEncoder,
        pieces: &[(&Buffer, u64, u64)],
    ) -> Result<Vec<u8>> {
        let total: u64 = pieces.iter().map(|(_, _, n)| n).sum();
        #[cfg(test)]
        self.traffic
            .lock()
            .map(|mut traffic| *traffic = (traffic.0 + 1, traffic.1 + total))
            .expect("a count");
        self.checked(what, || {
            // The pacing of passes needs the time of each, so all are waited for.
            let wait = || {
                let waited = self.device.poll(PollType::wait_indefinitely());
                waited.map_err(|e| self.failed(what, &e.to_string()))
            };
            if total == 0 {
                self.queue.submit([encoder.finish()]);
                wait()?;
                return Ok(Vec::new());
            }
            let usage = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
            let staging = BufferDescriptor { label: None, size: total, usage, mapped_at_creation: false };
            let staging = self.device.create_buffer(&staging);
            let mut at = 0;
            for (buffer, offset, n) in pieces {
                encoder.copy_buffer_to_buffer(buffer, *offset, &staging, at, *n);
                at += n;
            }
            self.queue.submit([encoder.finish()]);
            let mapped = Arc::new(OnceLock::new());
            let done = mapped.clone();
            staging.map_async(wgpu::MapMode::Read, .., move |result| drop(done.set(result)));
            wait()?;
            match mapped.get() {
                Some(Ok(())) => {}
                _ => return Err(self.failed(what, "can't read its results")),
            }
            let view = staging.get_mapped_range(..).map_err(|e| self.failed(what, &e.to_string()))?;
            Ok(view.to_vec())
        })
    }

    /// An encoder of commands.
    pub(super) fn encoder(&self) -> wgpu::CommandEncoder {
        self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default())
    }

    /// Waits until all that was handed in is done.
    pub(super) fn settle(&self) {
        self.queue.submit([]);
        drop(self.device.poll(PollType::wait_indefinitely()));
    }
}
