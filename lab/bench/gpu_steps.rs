//! Dispatches of a pass on a GPU: what they read, how many threads share it, and how long they take.

use super::lab::Bench;
use super::report::{Figure, Figures};
use super::speed::at_least_one;
use greenroom::backend::source;
use greenroom_engine::DeviceChoice;
use greenroom_engine::probes::{self, GpuPass, GpuStep};

/// Cost of each dispatch of a pass on a GPU
///
/// With `--device gpu` steps are timed by the GPU's clock, each alone. Otherwise they are counted from the plan of
/// the pass, which needs neither a GPU nor weights, and an estimate of time is made for some GPUs: bytes over
/// bandwidth, plus multiplications over peak, plus dispatches times 5 µs.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example: greenroom-lab bench gpu-steps --shape 8b --depth 4096\n         \
    greenroom-lab bench gpu-steps --shape 1b --tokens 512 --device gpu")]
pub(super) struct Args {
    /// New tokens of a prompt; 1: a token is decoded
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = at_least_one)]
    tokens: usize,
    /// Sequences that decode together
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = at_least_one, conflicts_with = "tokens")]
    sequences: usize,
    /// Tokens that are cached already
    #[arg(long, value_name = "N", default_value_t = 512)]
    depth: usize,
    /// Units of the GPU (multiprocessors, cores) that share the threads
    #[arg(long, value_name = "N", default_value_t = 132, value_parser = at_least_one)]
    units: usize,
}

/// A GPU as its maker describes it.
struct Machine {
    name: &'static str,
    gb_per_s: f64,
    /// Multiplications a second, in 10^12, as products do them here: `dot4I8Packed` where it is an
    /// instruction, else 32-bit floats.
    tera: f64,
}

/// NVIDIA's data sheets (RTX 4090, H100 SXM; four products of 8 bits in 64 lanes per clock and multiprocessor) and
/// Apple's for bandwidth; Apple states no rate of floats: cores · 128 lanes · clock.
const MACHINES: [Machine; 4] = [
    Machine { name: "M3", gb_per_s: 100.0, tera: 1.8 },
    Machine { name: "M4 Max", gb_per_s: 546.0, tera: 8.3 },
    Machine { name: "RTX 4090", gb_per_s: 1008.0, tera: 82.6 },
    Machine { name: "H100", gb_per_s: 3350.0, tera: 61.9 },
];

/// Seconds that a dispatch waits for the one before: an assumption.
const LATENCY: f64 = 5e-6;

impl Args {
    pub(super) fn run(&self, bench: &mut Bench) -> anyhow::Result<Figures> {
        let pass = match self.tokens {
            1 => GpuPass::Decode { sequences: self.sequences, depth: self.depth },
            tokens => GpuPass::Prefill { tokens, depth: self.depth },
        };
        let (model, kv) = (source(&bench.model), bench.common.kv.choice().clone());
        let mut figures = Figures::default();
        let steps = match bench.common.device.choice() {
            DeviceChoice::Cpu => probes::count_gpu_steps(&model, &kv, pass)?,
            choice => {
                let name = match choice {
                    DeviceChoice::Gpu(name) => name.clone(),
                    _ => None,
                };
                let repeats = usize::from(bench.common.repeat);
                let (steps, numerics) = probes::time_gpu_steps(&model, name.as_deref(), &kv, pass, repeats)?;
                bench.numerics = numerics;
                steps
            }
        };
        self.by_kind(&steps, &mut figures);
        if steps.iter().all(|step| step.time.is_none()) {
            "counted, not run".clone_into(&mut bench.numerics);
            self.estimate(&steps, &mut figures);
        }
        Ok(figures)
    }

    /// A row for all dispatches of a kernel with equally many workgroups.
    fn by_kind(&self, steps: &[GpuStep], figures: &mut Figures) {
        let mut kinds: Vec<(&str, u64)> = Vec::new();
        for step in steps {
            if !kinds.contains(&(step.kernel, step.workgroups)) {
                kinds.push((step.kernel, step.workgroups));
            }
        }
        for kind in kinds {
            let all: Vec<&GpuStep> =
                steps.iter().filter(|step| (step.kernel, step.workgroups) == kind).collect();
            let sum = |of: fn(&GpuStep) -> u64| all.iter().map(|step| of(step)).sum::<u64>();
            let first = all[0];
            let mut row = vec![
                ("kernel", Figure::Text(kind.0.to_owned())),
                ("steps", Figure::Count(all.len())),
                ("workgroups", Figure::Count(kind.1 as usize)),
                ("threads_per_unit", Figure::Count((kind.1 * first.threads) as usize / self.units)),
                ("barriers", Figure::Count(first.barriers as usize)),
                ("weights", Figure::Bytes(sum(|step| step.weight_bytes))),
                ("weights_read", Figure::Bytes(sum(|step| step.weight_reads))),
                ("rows_read", Figure::Bytes(sum(|step| step.row_reads))),
                ("cache_read", Figure::Bytes(sum(|step| step.cache_reads))),
            ];
            if first.time.is_some() {
                let seconds: f64 =
                    all.iter().filter_map(|step| step.time).map(|time| time.as_secs_f64()).sum();
                let read = sum(|step| step.weight_bytes + step.cache_reads) as f64;
                row.push(("us_per_step", Figure::Measured(vec![seconds * 1e6 / all.len() as f64])));
                row.push(("gb_per_s", Figure::Measured(vec![read / seconds / 1e9])));
            }
            figures.rows.push(row);
        }
        let total = |of: fn(&GpuStep) -> u64| steps.iter().map(of).sum::<u64>();
        figures.notes.push(format!(
            "{} dispatches; {} MiB of weights are needed, {} MiB are requested; {} MiB of rows; {:.1} · 10^9 \
             multiplications.",
            steps.len(),
            total(|step| step.weight_bytes) >> 20,
            total(|step| step.weight_reads) >> 20,
            total(|step| step.row_reads) >> 20,
            total(|step| step.multiplications) as f64 / 1e9,
        ));
    }

    fn estimate(&self, steps: &[GpuStep], figures: &mut Figures) {
        let total = |of: fn(&GpuStep) -> u64| steps.iter().map(of).sum::<u64>() as f64;
        let bytes = total(|step| step.weight_bytes + step.cache_reads);
        let (n, multiplications) = (steps.len() as f64, total(|step| step.multiplications));
        for machine in &MACHINES {
            let memory = bytes / machine.gb_per_s / 1e9;
            let (arithmetic, waiting) = (multiplications / machine.tera / 1e12, n * LATENCY);
            let seconds = memory + arithmetic + waiting;
            let ms = |seconds: f64| Figure::Measured(vec![seconds * 1e3]);
            figures.rows.push(vec![
                ("estimate", Figure::Text(machine.name.to_owned())),
                ("memory_ms", ms(memory)),
                ("arithmetic_ms", ms(arithmetic)),
                ("dispatches_ms", ms(waiting)),
                ("tokens_per_s", Figure::Measured(vec![(self.tokens * self.sequences) as f64 / seconds])),
            ]);
        }
        figures.notes.push("The estimates are arithmetic, not measurements.".to_owned());
    }
}
