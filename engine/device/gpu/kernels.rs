//! Kernels by name and constants: one source for each, compiled when it is first needed.

use super::context::Context;
use crate::Result;
use greenroom_kernels::quant::LEVELS;
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};
use wgpu::{
    BindGroupLayout, BindGroupLayoutDescriptor, BindGroupLayoutEntry, BindingType, BufferBindingType,
    ComputePipeline, ComputePipelineDescriptor, PipelineCompilationOptions, PipelineLayoutDescriptor,
    ShaderModuleDescriptor, ShaderRuntimeChecks, ShaderSource, ShaderStages,
};

/// A kernel's source: its name, the files that it is made of, and how it uses each of its buffers.
#[derive(Debug)]
pub(super) struct KernelSource {
    pub(super) name: &'static str,
    pub(super) files: &'static [&'static str],
    pub(super) bindings: &'static [Access],
    /// Whether it can code what it writes, into its last buffer.
    pub(super) can_code: bool,
}

impl KernelSource {
    /// All of them.
    #[cfg(test)]
    pub(super) fn all() -> [&'static Self; 24] {
        [
            &PRODUCT,
            &PRODUCT_FLOATS,
            &TILE,
            &TILE_FLOATS,
            &SENT,
            &SORT,
            &MIX,
            &CODE,
            &HEADS,
            &SEAL,
            &ATTEND,
            &COMBINE,
            &LOG,
            &CONVOLVE,
            &WALK,
            &KEEP,
            &FINISH,
            &CENTER,
            &NORM,
            &NORMS,
            &INPUTS,
            &SURVEY,
            &BINS,
            &CANDIDATES,
        ]
    }

    /// Threads of a workgroup, as the source says.
    #[cfg(any(test, feature = "fixtures"))]
    pub(super) fn threads(&self) -> u64 {
        let size = self.files.iter().find_map(|file| file.split_once("@workgroup_size(")?.1.split_once(')'));
        size.and_then(|(n, _)| n.parse().ok()).unwrap_or(1)
    }
}

/// Use of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Uniform,
    Read,
    Write,
}

use Access::{Read, Uniform, Write as Written};

macro_rules! shader {
    ($name:literal) => {
        include_str!(concat!("shaders/", $name, ".wgsl"))
    };
}

pub(super) static PRODUCT: KernelSource = KernelSource {
    name: "product",
    files: &[
        shader!("common"),
        shader!("activation"),
        shader!("coded"),
        shader!("results"),
        shader!("units"),
        shader!("few_coded"),
        shader!("product"),
    ],
    bindings: &[Uniform, Read, Read, Read, Read, Read, Written, Read, Written],
    can_code: true,
};

/// The same for matrices that are not coded.
pub(super) static PRODUCT_FLOATS: KernelSource = KernelSource {
    name: "product of floats",
    files: &[
        shader!("common"),
        shader!("activation"),
        shader!("coded"),
        shader!("results"),
        shader!("floats"),
        shader!("few_floats"),
        shader!("product"),
    ],
    ..PRODUCT
};

/// The same for many rows.
pub(super) static TILE: KernelSource = KernelSource {
    name: "tile",
    files: &[
        shader!("common"),
        shader!("activation"),
        shader!("coded"),
        shader!("results"),
        shader!("units"),
        shader!("tile"),
        shader!("tile_coded"),
    ],
    ..PRODUCT
};

pub(super) static TILE_FLOATS: KernelSource = KernelSource {
    name: "tile of floats",
    files: &[
        shader!("common"),
        shader!("activation"),
        shader!("coded"),
        shader!("results"),
        shader!("floats"),
        shader!("tile"),
        shader!("tile_floats"),
    ],
    ..PRODUCT
};

/// The experts of each row; the rows by expert; and what they gave, added up.
pub(super) static SENT: KernelSource = KernelSource {
    name: "sent",
    files: &[
        shader!("common"),
        shader!("activation"),
        shader!("choose"),
        shader!("coded"),
        shader!("results"),
        shader!("sent"),
    ],
    can_code: false,
    ..PRODUCT
};

pub(super) static SORT: KernelSource = KernelSource {
    name: "sort",
    files: &[shader!("common"), shader!("sort")],
    bindings: &[Uniform, Read, Written],
    can_code: false,
};

pub(super) static MIX: KernelSource = KernelSource {
    name: "mix",
    files: &[shader!("common"), shader!("activation"), shader!("coded"), shader!("results"), shader!("mix")],
    ..PRODUCT
};

pub(super) static CODE: KernelSource = KernelSource {
    name: "code",
    files: &[shader!("common"), shader!("coded"), shader!("sixteen"), shader!("code")],
    bindings: &[Read, Read, Read, Written],
    can_code: false,
};

pub(super) static HEADS: KernelSource = KernelSource {
    name: "heads",
    files: &[shader!("common"), shader!("hadamard"), shader!("sum"), shader!("heads")],
    bindings: &[Uniform, Read, Read, Read, Read, Read, Read, Written, Written],
    can_code: false,
};

pub(super) static SEAL: KernelSource = KernelSource {
    name: "seal",
    files: &[shader!("common"), shader!("seal")],
    bindings: &[Uniform, Read, Read, Read, Read, Written, Written],
    can_code: false,
};

pub(super) static ATTEND: KernelSource = KernelSource {
    name: "attend",
    files: &[shader!("common"), shader!("merge"), shader!("cached"), shader!("attend")],
    bindings: &[Uniform, Read, Read, Read, Read, Read, Read, Read, Written],
    can_code: false,
};

pub(super) static COMBINE: KernelSource = KernelSource {
    name: "combine",
    files: &[
        shader!("common"),
        shader!("coded"),
        shader!("sixteen"),
        shader!("merge"),
        shader!("hadamard"),
        shader!("combine"),
    ],
    bindings: &[Uniform, Read, Read, Read, Read, Read, Written, Written],
    can_code: true,
};

pub(super) static LOG: KernelSource = KernelSource {
    name: "log",
    files: &[shader!("common"), shader!("mixers"), shader!("log")],
    bindings: &[Read, Read, Read, Read, Written],
    can_code: false,
};

pub(super) static CONVOLVE: KernelSource = KernelSource {
    name: "convolve",
    files: &[shader!("common"), shader!("mixers"), shader!("sum"), shader!("convolve")],
    bindings: &[Read, Read, Read, Read, Read, Written],
    can_code: false,
};

pub(super) static WALK: KernelSource = KernelSource {
    name: "walk",
    files: &[shader!("common"), shader!("mixers"), shader!("walk")],
    bindings: &[Read, Read, Read, Written, Written, Written],
    can_code: false,
};

pub(super) static KEEP: KernelSource = KernelSource {
    name: "keep",
    files: &[shader!("common"), shader!("keep")],
    bindings: &[Read, Read, Read, Written],
    can_code: false,
};

pub(super) static FINISH: KernelSource = KernelSource {
    name: "finish",
    files: &[
        shader!("common"),
        shader!("coded"),
        shader!("sixteen"),
        shader!("mixers"),
        shader!("sum"),
        shader!("finish"),
    ],
    bindings: &[Read, Read, Read, Read, Read, Read, Written, Written],
    can_code: true,
};

pub(super) static CENTER: KernelSource = KernelSource {
    name: "center",
    files: &[shader!("sum"), shader!("center")],
    bindings: &[Read, Written],
    can_code: false,
};

pub(super) static NORM: KernelSource = KernelSource {
    name: "norm",
    files: &[shader!("common"), shader!("coded"), shader!("sixteen"), shader!("sum"), shader!("norm")],
    bindings: &[Read, Read, Read, Written, Written],
    can_code: true,
};

pub(super) static NORMS: KernelSource = KernelSource {
    name: "norms",
    files: &[shader!("sum"), shader!("norms")],
    bindings: &[Read, Read, Read, Read, Written],
    can_code: false,
};

pub(super) static INPUTS: KernelSource = KernelSource {
    name: "inputs",
    files: &[shader!("sum"), shader!("inputs")],
    bindings: &[Read, Read, Read, Written],
    can_code: false,
};

/// The three steps that find the likeliest tokens.
pub(super) static SURVEY: KernelSource = KernelSource {
    name: "survey",
    files: &[shader!("likely"), shader!("survey")],
    bindings: &[Read, Written, Written, Written],
    can_code: false,
};

pub(super) static BINS: KernelSource = KernelSource {
    name: "bins",
    files: &[shader!("likely"), shader!("surveyed"), shader!("bins")],
    bindings: &[Read, Read, Read, Written],
    can_code: false,
};

pub(super) static CANDIDATES: KernelSource = KernelSource {
    name: "candidates",
    files: &[shader!("likely"), shader!("surveyed"), shader!("candidates")],
    bindings: &[Read, Read, Read, Read, Written],
    can_code: false,
};

/// Constants that precede a kernel's source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct KernelConstants(String);

impl KernelConstants {
    /// A number without a sign.
    pub(super) fn uint(mut self, name: &str, value: usize) -> Self {
        let _ = writeln!(self.0, "const {name} = {value}u;");
        self
    }

    /// A float, to the bit.
    pub(super) fn float(mut self, name: &str, value: f32) -> Self {
        let _ = writeln!(self.0, "const {name} = {value:?}f;");
        self
    }

    /// A flag.
    pub(super) fn flag(mut self, name: &str, value: bool) -> Self {
        let _ = writeln!(self.0, "const {name} = {value};");
        self
    }

    /// Sixteen bytes in four words.
    pub(super) fn bytes(mut self, name: &str, value: [i8; 16]) -> Self {
        let word = |four: &[i8]| u32::from_le_bytes([0, 1, 2, 3].map(|i| four[i].cast_unsigned()));
        let words: Vec<String> = value.chunks_exact(4).map(|four| format!("{}u", word(four))).collect();
        let _ = writeln!(self.0, "const {name} = array<u32, 4>({});", words.join(", "));
        self
    }

    /// The levels of 4-bit codes: all, as bytes, and the positive ones.
    pub(super) fn levels(self) -> Self {
        let mut constants = self.bytes("LEVELS", LEVELS);
        let positive: Vec<String> = LEVELS[8..].iter().map(|level| format!("{level}.0")).collect();
        let _ = writeln!(constants.0, "const POSITIVE = array<f32, 8>({});", positive.join(", "));
        constants
    }
}

/// The whole text of a kernel.
pub(super) fn text(source: &KernelSource, constants: &KernelConstants) -> String {
    [constants.0.as_str()].into_iter().chain(source.files.iter().copied()).collect()
}

/// A compiled kernel.
#[derive(Debug)]
pub(super) struct Compiled {
    pub(super) pipeline: ComputePipeline,
    pub(super) layout: BindGroupLayout,
}

/// Kernels of one GPU, by source and constants.
pub(super) struct Kernels {
    context: Arc<Context>,
    compiled: Mutex<HashMap<(&'static str, KernelConstants), Arc<Compiled>>>,
    /// A fault that tests put in: this text becomes that one.
    #[cfg(test)]
    pub(super) fault: Option<[&'static str; 2]>,
}

impl Kernels {
    pub(super) fn new(context: &Arc<Context>) -> Self {
        Self {
            context: context.clone(),
            compiled: Mutex::default(),
            #[cfg(test)]
            fault: None,
        }
    }

    /// The kernel of a source with these constants.
    ///
    /// # Errors
    /// The driver does not take it.
    pub(super) fn get(&self, source: &KernelSource, constants: &KernelConstants) -> Result<Arc<Compiled>> {
        let key = (source.name, constants.clone());
        if let Some(compiled) = self.compiled.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Ok(compiled.clone());
        }
        let what = format!("compiling the kernel `{}`", source.name);
        let compiled = Arc::new(self.context.checked(&what, || Ok(self.compile(source, constants)))?);
        self.compiled.lock().unwrap_or_else(PoisonError::into_inner).insert(key, compiled.clone());
        Ok(compiled)
    }

    fn compile(&self, source: &KernelSource, constants: &KernelConstants) -> Compiled {
        let device = &self.context.device;
        let entry = |(binding, access): (usize, &Access)| BindGroupLayoutEntry {
            binding: binding as u32,
            visibility: ShaderStages::COMPUTE,
            ty: BindingType::Buffer {
                ty: match access {
                    Access::Uniform => BufferBindingType::Uniform,
                    Access::Read => BufferBindingType::Storage { read_only: true },
                    Access::Write => BufferBindingType::Storage { read_only: false },
                },
                has_dynamic_offset: false,
                min_binding_size: None,
            },
            count: None,
        };
        let entries: Vec<BindGroupLayoutEntry> = source.bindings.iter().enumerate().map(entry).collect();
        let layout = device.create_bind_group_layout(&BindGroupLayoutDescriptor {
            label: Some(source.name),
            entries: &entries,
        });
        let text = text(source, constants);
        #[cfg(test)]
        let text = self.fault.map_or(text.clone(), |[right, wrong]| text.replace(right, wrong));
        let descriptor =
            ShaderModuleDescriptor { label: Some(source.name), source: ShaderSource::Wgsl(text.into()) };
        // A counter in each loop keeps drivers from unrolling it, and loads from overlapping.
        let checks = ShaderRuntimeChecks { force_loop_bounding: false, ..ShaderRuntimeChecks::checked() };
        // SAFETY: no loop is endless: each counts towards a bound, as a test of the sources finds. All other
        // checks stay.
        #[allow(unsafe_code)]
        let module = unsafe { device.create_shader_module_trusted(descriptor, checks) };
        let pipeline_layout = device.create_pipeline_layout(&PipelineLayoutDescriptor {
            label: Some(source.name),
            bind_group_layouts: &[Some(&layout)],
            immediate_size: 0,
        });
        let pipeline = device.create_compute_pipeline(&ComputePipelineDescriptor {
            label: Some(source.name),
            layout: Some(&pipeline_layout),
            module: &module,
            entry_point: Some("main"),
            // What is shared is written before it is read.
            compilation_options: PipelineCompilationOptions {
                zero_initialize_workgroup_memory: false,
                ..PipelineCompilationOptions::default()
            },
            cache: None,
        });
        Compiled { pipeline, layout }
    }
}
