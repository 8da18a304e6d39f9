//! `greenroom-lab bench`: the cost of a turn on this machine, measured through the engine's public API.
//!
//! `model` finds or writes the model, `lab` opens it and times turns of known token counts, `process` starts
//! the program again, `peer` times another engine for comparison, `report` shows the figures. The other files
//! are the measurements.

mod gaps;
#[cfg(feature = "gpu")]
mod gpu_steps;
mod growth;
mod kernels;
mod lab;
mod latency;
mod limits;
mod memory;
mod model;
mod peer;
pub(crate) mod plot;
mod pressure;
mod process;
pub(crate) mod report;
mod routing;
mod sampling;
mod scenario;
mod sharing;
mod speed;

use greenroom::backend::{Device, Kv};
use greenroom::commands::Exit;
use lab::Bench;
use peer::Peer;
use std::path::PathBuf;

/// Measure speed, latency and memory on a model or on random weights of a real shape
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: greenroom-lab bench decode --shape 1b --weights q8_0 --depth 0,4096\n         \
    greenroom-lab bench ttft --model ~/models/Llama-3.2-1B-Instruct-Q4_K_M.gguf --json"
)]
pub(super) struct Args {
    #[command(subcommand)]
    what: BenchKind,
    #[command(flatten)]
    common: BenchCommon,
}

/// Arguments of every measurement.
#[derive(Clone, Debug, clap::Args)]
struct BenchCommon {
    /// GGUF file, a name that `greenroom models` or `greenroom pull` lists, hf:ORG/REPO/FILE.gguf, or the
    /// bundled `understudy`
    #[arg(long, value_name = "MODEL", global = true, conflicts_with = "shape")]
    model: Option<String>,
    /// Use random weights of a real shape instead: tiny, 135m, 500m, 1b, 3b or 8b
    #[arg(long, value_name = "NAME", global = true, default_value = "135m")]
    shape: String,
    /// Format of the random weights: f32, f16, bf16, q8_0, q4_0, q4_k, q5_k, q6_k, q4_k_m or mxfp4
    #[arg(long, value_name = "TYPE", global = true, default_value = "q4_k_m")]
    weights: String,
    /// Folder for models with random weights [default: the user's cache folder]
    #[arg(long, value_name = "DIR", global = true)]
    shape_dir: Option<PathBuf>,
    /// KV cache formats: auto, f16, q8, q8/q4 (keys/values), q4-m, q4, or a file from
    /// `greenroom-lab kv-config`
    #[arg(long, value_name = "KV", global = true, default_value = "auto")]
    kv: Kv,
    /// Device that runs it: auto, cpu, gpu, or gpu:NAME (see `greenroom devices`)
    #[arg(long, value_name = "DEVICE", global = true, default_value = "cpu")]
    device: Device,
    /// Threads [default: all cores]
    #[arg(long, value_name = "N", global = true, value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// Number of measurements; shows median, minimum and maximum
    #[arg(
        long, value_name = "N", global = true, default_value_t = 3,
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    repeat: u16,
    /// Print one JSON object
    #[arg(long, global = true)]
    json: bool,
}

impl BenchCommon {
    /// Threads that compute.
    fn threads(&self) -> usize {
        let all = || std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.map_or_else(all, usize::from)
    }
}

#[derive(Clone, Debug, clap::Subcommand)]
enum BenchKind {
    Prefill(speed::Prefill),
    Decode(speed::Decode),
    Batch(speed::Batch),
    Ttft(latency::Ttft),
    Concurrent(latency::Concurrent),
    Sampling(sampling::Args),
    Kernels(kernels::Args),
    Limits(limits::Args),
    Scenario(scenario::Args),
    Routing(routing::Args),
    Memory(memory::Args),
    Pressure(pressure::Args),
    Sharing(sharing::Args),
    Growth(growth::Args),
    Gaps(gaps::Args),
    #[cfg(feature = "gpu")]
    GpuSteps(gpu_steps::Args),
}

impl Args {
    /// Returns whether the model is run, not only planned.
    fn has_weights(&self) -> bool {
        #[cfg(feature = "gpu")]
        if matches!(self.what, BenchKind::GpuSteps(_)) {
            return *self.common.device.choice() != greenroom_engine::DeviceChoice::Cpu;
        }
        true
    }
}

impl BenchKind {
    /// The engine that is timed for comparison.
    fn peer(&self) -> Option<Peer> {
        match self {
            Self::Prefill(args) => args.peer,
            Self::Decode(args) => args.peer,
            _ => None,
        }
    }
}

pub(super) fn run(args: Args) -> anyhow::Result<Exit> {
    if let Some(peer) = args.what.peer()
        && let Some(exit) = peer.start_again(args.common.threads())?
    {
        return Ok(exit);
    }
    let mut bench = Bench::new(&args.common, args.has_weights())?;
    let figures = match &args.what {
        BenchKind::Prefill(args) => args.run(&mut bench),
        BenchKind::Decode(args) => args.run(&mut bench),
        BenchKind::Batch(args) => args.run(&mut bench),
        BenchKind::Ttft(args) => args.run(&mut bench),
        BenchKind::Concurrent(args) => args.run(&mut bench),
        BenchKind::Sampling(args) => args.run(&mut bench),
        BenchKind::Kernels(args) => args.run(&mut bench),
        BenchKind::Limits(args) => args.run(&mut bench),
        BenchKind::Scenario(args) => args.run(&mut bench),
        BenchKind::Routing(args) => args.run(&mut bench),
        BenchKind::Memory(args) => args.run(&mut bench),
        BenchKind::Pressure(args) => args.run(&mut bench),
        BenchKind::Sharing(args) => args.run(&mut bench),
        BenchKind::Growth(args) => args.run(&mut bench),
        BenchKind::Gaps(args) => args.run(&mut bench),
        #[cfg(feature = "gpu")]
        BenchKind::GpuSteps(args) => args.run(&mut bench),
    }?;
    bench.show(&figures)?;
    Ok(Exit::Pass)
}
