//! The device that answers sooner, for [`DeviceChoice::Auto`]: measured when a model is first opened, on a short
//! turn. The verdict is kept in the cache folder, for this model, GPU and processor; without a folder it is
//! found each time.

use crate::device::{self, Cache, DEFAULT_NUMERICS, Device, Pass};
use crate::kv::table::BlockHash;
use crate::model::gguf::Gguf;
use crate::store::{Found, Store};
use crate::{DeviceChoice, ErrorKind, GpuInfo, Isa, KvChoice, Loading, Result, default_gpu, gpus};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Tokens of the prompt and of the reply that are timed; a turn counts as four prompts and eight replies of these.
const PROMPT: usize = 64;
const REPLY: usize = 8;

/// A model to be opened.
pub(crate) struct Opening<'a> {
    pub(crate) gguf: &'a Arc<Gguf>,
    /// Its identity.
    pub(crate) model: &'a str,
    pub(crate) store: Option<&'a Store>,
    /// Threads of the processor.
    pub(crate) threads: usize,
    pub(crate) on_progress: &'a mut (dyn FnMut(Loading) + Send),
}

impl Opening<'_> {
    fn on(&mut self, choice: &DeviceChoice) -> Result<Box<dyn Device>> {
        device::open(choice, self.gguf, &mut |done, total| {
            (self.on_progress)(Loading::Weights { done, total })
        })
    }
}

/// Opens a model on the device of a choice.
///
/// # Errors
/// As [`device::open`].
pub(crate) fn open(choice: &DeviceChoice, mut opening: Opening<'_>) -> Result<Box<dyn Device>> {
    match choice {
        DeviceChoice::Auto => open_faster(default_gpu(&gpus()), opening),
        choice => opening.on(choice),
    }
}

/// Opens it on a GPU, or on the processor if that answers sooner or the GPU can't hold the model.
fn open_faster(gpu: Option<&GpuInfo>, mut opening: Opening<'_>) -> Result<Box<dyn Device>> {
    let Some(gpu) = gpu else { return opening.on(&DeviceChoice::Cpu) };
    let on_gpu = DeviceChoice::Gpu(Some(gpu.name.clone()));
    let (store, root) = (opening.store, root(opening.model, gpu, opening.threads));
    let known = match store.map(|store| store.read_check(root)) {
        Some(Found::Whole(text)) => Verdict::parse(&text),
        _ => None,
    };
    if known.is_some_and(|verdict| !verdict.prefers_gpu()) {
        tracing::info!("using the processor: it answers sooner than {}", gpu.name);
        return opening.on(&DeviceChoice::Cpu);
    }
    let device = match opening.on(&on_gpu) {
        Ok(device) if known.is_some() => return Ok(device),
        Ok(device) => device,
        Err(e) if e.kind() == ErrorKind::Device => {
            tracing::info!("using the processor: {e}");
            return opening.on(&DeviceChoice::Cpu);
        }
        Err(e) => return Err(e),
    };
    (opening.on_progress)(Loading::Measuring);
    let of_gpu = seconds(&*device)?;
    // Memory for both at a time may be missing.
    drop(device);
    let device = opening.on(&DeviceChoice::Cpu)?;
    let verdict = Verdict { gpu: of_gpu, cpu: seconds(&*device)? };
    tracing::info!(
        "a turn takes {:.2} s on {}, {:.2} s on the processor",
        verdict.gpu,
        gpu.name,
        verdict.cpu
    );
    if let Some(Err(e)) = store.map(|store| store.write_check(root, &verdict.text())) {
        tracing::warn!("the devices will be timed again: {e}");
    }
    match verdict.prefers_gpu() {
        true => {
            drop(device);
            opening.on(&on_gpu)
        }
        false => Ok(device),
    }
}

/// Address of a verdict in a folder.
fn root(model: &str, gpu: &GpuInfo, threads: usize) -> BlockHash {
    let (gpu, isa) = (gpu.numerics(), Isa::detect().name());
    BlockHash::root(&format!("device\n{model}\n{gpu}\n{DEFAULT_NUMERICS} {isa} {threads}"))
}

/// Seconds of a turn on either device.
#[derive(Clone, Copy)]
struct Verdict {
    gpu: f64,
    cpu: f64,
}

impl Verdict {
    fn prefers_gpu(self) -> bool {
        self.gpu < self.cpu
    }

    fn text(self) -> String {
        format!("gpu {} cpu {}", self.gpu, self.cpu)
    }

    fn parse(text: &str) -> Option<Self> {
        let (gpu, cpu) = text.strip_prefix("gpu ")?.split_once(" cpu ")?;
        Some(Self { gpu: gpu.parse().ok()?, cpu: cpu.parse().ok()? })
    }
}

/// Seconds of a turn, after one that compiles kernels and touches weights.
fn seconds(device: &dyn Device) -> Result<f64> {
    turn(device, 1)?;
    let [prompt, reply] = turn(device, REPLY)?;
    Ok((4 * prompt + 8 * reply).as_secs_f64())
}

/// Times of a prompt and of a reply of `n` tokens.
fn turn(device: &dyn Device, n: usize) -> Result<[Duration; 2]> {
    let layout = Arc::new(device.spec().kv_layout(&KvChoice::Auto)?);
    let mut cache: Box<dyn Cache> = device.cache(layout.clone());
    let n_prompt = PROMPT.min(device.spec().context_length.saturating_sub(n)).max(1);
    let ids: Vec<u32> = (0..(n_prompt + n) as u32).map(|i| i * 37 % device.n_vocab() as u32).collect();
    let began = Instant::now();
    let first = Pass { wanted: vec![n_prompt - 1], ..Pass::alone(&ids[..n_prompt], &layout) };
    device.run(&first, &mut *cache, None)?;
    let prompt = began.elapsed();
    for (at, id) in ids.iter().enumerate().skip(n_prompt) {
        device.run(&Pass::next(*id, at, &layout), &mut *cache, None)?;
    }
    Ok([prompt, began.elapsed() - prompt])
}

#[cfg(all(test, feature = "gpu"))]
mod tests {
    use super::*;
    use crate::ModelSource;
    use crate::fixtures::RandomModel;
    use crate::store::StoreLocation;

    /// Both devices are timed once for a folder; the verdict decides, whichever it is.
    #[test]
    fn a_verdict_is_found_once_and_decides() {
        let Some(gpu) = gpus().into_iter().find(|gpu| gpu.missing.is_empty()) else {
            eprintln!("skipped: there is no adapter (Debian: mesa-vulkan-drivers)");
            return;
        };
        let bytes: &'static [u8] = RandomModel::tiny(5).bytes().leak();
        let gguf = Arc::new(Gguf::open(&ModelSource::Bundled("random", bytes)).expect("a model"));
        let dir = tempfile::tempdir().expect("a folder");
        let store = Store::open(&StoreLocation::new(dir.path().to_owned(), None, None)).expect("a store");
        let open = |gpu: Option<&GpuInfo>, model: &str| {
            let mut n_timed = 0;
            let on_progress = &mut |loading| n_timed += usize::from(matches!(loading, Loading::Measuring));
            let opening = Opening { gguf: &gguf, model, store: Some(&store), threads: 1, on_progress };
            let device = open_faster(gpu, opening).expect("a device");
            (device.numerics().to_owned(), n_timed)
        };
        let (first, n_timed) = open(Some(&gpu), "a model");
        assert_eq!(n_timed, 1);
        assert_eq!(open(Some(&gpu), "a model"), (first, 0));
        for (model, verdict, expected) in [
            ("fast on a GPU", Verdict { gpu: 1.0, cpu: 2.0 }, gpu.numerics()),
            ("slow on a GPU", Verdict { gpu: 2.0, cpu: 1.0 }, DEFAULT_NUMERICS.to_owned()),
        ] {
            store.write_check(root(model, &gpu, 1), &verdict.text()).expect("a verdict");
            assert_eq!(open(Some(&gpu), model), (expected, 0), "{model}");
        }
        assert_eq!(open(None, "a model"), (DEFAULT_NUMERICS.to_owned(), 0));
    }
}
