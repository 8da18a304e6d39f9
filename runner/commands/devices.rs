//! `greenroom devices`: what can compute on this machine.

use super::Exit;
use crate::terminal::{bytes, counted, printable, table};
use greenroom_engine::{BUILT_WITH_GPUS, GpuInfo, Isa, default_gpu, gpus};
use serde_json::{Value, json};

/// List the devices of this machine: the processor and GPUs, with their limits
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: greenroom devices")]
pub(super) struct Args {
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// The processor of this machine.
struct Processor {
    name: String,
    instructions: &'static str,
    threads: usize,
}

pub(super) fn run(args: Args) -> anyhow::Result<Exit> {
    let (processor, gpus) = (Processor::here(), gpus());
    if args.json {
        println!("{}", serde_json::to_string_pretty(&as_json(&processor, &gpus))?);
    } else {
        println!("{}", text(&processor, &gpus));
    }
    Ok(Exit::Pass)
}

impl Processor {
    fn here() -> Self {
        let brand = sysinfo::System::new().ok().and_then(|mut system| {
            system.refresh_cpu_all();
            system.cpus().first().map(|cpu| cpu.brand().trim().to_owned())
        });
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self { name: brand.unwrap_or_default(), instructions: Isa::detect().name(), threads }
    }
}

fn as_json(processor: &Processor, gpus: &[GpuInfo]) -> Value {
    let Processor { name, instructions, threads } = processor;
    let gpu = |gpu: &GpuInfo| {
        let GpuInfo { name, backend, kind, driver, max_binding_bytes, workgroup_bytes, missing } = gpu;
        json!({
            "name": name, "backend": backend, "kind": kind, "driver": driver,
            "binding_bytes": max_binding_bytes, "workgroup_bytes": workgroup_bytes, "missing": missing,
        })
    };
    json!({
        "processor": { "name": name, "instructions": instructions, "threads": threads },
        "gpus": gpus.iter().map(gpu).collect::<Vec<_>>(),
        "auto": default_gpu(gpus).map_or("cpu".to_owned(), |gpu| format!("gpu:{}", gpu.name)),
    })
}

fn text(processor: &Processor, gpus: &[GpuInfo]) -> String {
    let Processor { name, instructions, threads } = processor;
    let head = ["device", "kind", "backend", "driver", "binding", "workgroup"];
    let mut rows = vec![row([name, "processor", instructions, &counted(*threads, "thread"), "-", "-"])];
    for gpu in gpus {
        let (binding, workgroup) = (bytes(gpu.max_binding_bytes), bytes(gpu.workgroup_bytes));
        rows.push(row([&gpu.name, gpu.kind, &gpu.backend, &gpu.driver, &binding, &workgroup]));
    }
    let mut text = table(&head, rows, 4) + "\n";
    for gpu in gpus.iter().filter(|gpu| !gpu.missing.is_empty()) {
        text += &format!("\n{} can't be used: it lacks {}", printable(&gpu.name), gpu.missing.join(", "));
    }
    text + "\n" + &verdict(gpus) + "\nWithout --device, the processor is used."
}

fn row(cells: [&str; 6]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

/// The device that `--device auto` chooses, and why.
fn verdict(gpus: &[GpuInfo]) -> String {
    if let Some(gpu) = default_gpu(gpus) {
        return format!(
            "--device auto uses {} if it holds the model and answers sooner than the processor.",
            printable(&gpu.name)
        );
    }
    let why = match gpus {
        [] if !BUILT_WITH_GPUS => "this program was built without GPU support (the feature `gpu`)".to_owned(),
        [] => "there is no GPU and no software renderer (Debian: apt install mesa-vulkan-drivers)".to_owned(),
        [first, ..] if first.is_software() => {
            let word = first.name.split_whitespace().next().unwrap_or("NAME");
            format!("a software renderer is used only if it is named (--device gpu:{})", printable(word))
        }
        [first, ..] => format!("{} lacks a required feature", printable(&first.name)),
    };
    format!("--device auto uses the processor: {why}.")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(name: &str, kind: &'static str, missing: &[&str]) -> GpuInfo {
        GpuInfo {
            name: name.to_owned(),
            backend: "vulkan".to_owned(),
            kind,
            driver: "driver 1".to_owned(),
            max_binding_bytes: 128 << 20,
            workgroup_bytes: 32 << 10,
            missing: missing.iter().map(|text| text.to_string()).collect(),
        }
    }

    #[test]
    fn the_list_says_what_is_taken_and_why() {
        let processor = Processor { name: "Some CPU".to_owned(), instructions: "avx2", threads: 1 };
        let soft = gpu("llvmpipe (LLVM 15)", "software", &[]);
        let poor = gpu("Old GPU", "integrated", &["32768 bytes of workgroup memory (it has 16384)"]);
        for (gpus, auto, expected) in [
            (
                vec![],
                "cpu",
                if BUILT_WITH_GPUS { "apt install mesa-vulkan-drivers" } else { "built without GPU" },
            ),
            (vec![soft.clone()], "cpu", "only if it is named (--device gpu:llvmpipe)"),
            (vec![poor.clone(), soft.clone()], "cpu", "Old GPU can't be used: it lacks 32768 bytes"),
            (vec![gpu("New GPU", "discrete", &[]), poor, soft], "gpu:New GPU", "auto uses New GPU"),
        ] {
            let (json, text) = (as_json(&processor, &gpus), text(&processor, &gpus));
            assert_eq!(json["auto"], auto, "{json}");
            assert_eq!(json["gpus"].as_array().unwrap().len(), gpus.len());
            assert!(text.contains(expected) && text.contains("avx2") && text.contains("1 thread"), "{text}");
            assert!(gpus.is_empty() || text.contains("128.00 MiB"), "{text}");
        }
    }
}
