//! The instruction sets that the kernels are compiled for, and which of them this machine has.

use crate::amx::Tiles;
#[cfg(target_arch = "aarch64")]
use crate::neon;
use crate::{Kernel, linear, scalar};
#[cfg(target_arch = "x86_64")]
use crate::{avx2, avx512};
use std::sync::OnceLock;

/// An instruction set that the kernels are compiled for, and that this machine has: there is no way to one
/// but [`Isa::detect`], [`Isa::available`] and [`Isa::SCALAR`].
///
/// ```compile_fail
/// let anywhere = greenroom_kernels::Isa::Avx512; // no machine was asked
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa(Set);

/// The instruction sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Set {
    Scalar,
    /// With FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// The same with AVX-VNNI.
    #[cfg(target_arch = "x86_64")]
    AvxVnni,
    /// F, BW and VNNI.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// The same with matrix tiles.
    #[cfg(target_arch = "x86_64")]
    Amx(Tiles),
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// The same with dot products.
    #[cfg(target_arch = "aarch64")]
    NeonDot,
    /// The same with products of matrices.
    #[cfg(target_arch = "aarch64")]
    NeonI8mm,
}

impl Isa {
    /// Plain Rust: the reference, on every machine.
    pub const SCALAR: Self = Self(Set::Scalar);

    /// The fastest instruction set of this machine, or the one that `GREENROOM_ISA` names (`scalar`, `avx2`,
    /// `avxvnni`, `avx512`, `amx`, `neon`, `neondot`, `neoni8mm`) where the machine has it.
    pub fn detect() -> Self {
        let wanted = std::env::var("GREENROOM_ISA").ok();
        let available = Self::available();
        match wanted.as_deref() {
            None => fastest(&available),
            Some(name) => available.iter().copied().find(|isa| isa.name() == name).unwrap_or_else(|| {
                tracing::warn!("GREENROOM_ISA={name} is not available here; using {}", available[0].name());
                available[0]
            }),
        }
    }

    /// The set of [`Isa::detect`], for work on the host that belongs to no device.
    pub fn of_host() -> Self {
        static FOUND: OnceLock<Isa> = OnceLock::new();
        *FOUND.get_or_init(Self::detect)
    }

    /// All instruction sets that can run here, best first; the scalar reference is always the last.
    pub fn available() -> Vec<Self> {
        let mut sets = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vnni") {
                #[cfg(target_os = "linux")]
                sets.extend(Tiles::detect().map(|tiles| Self(Set::Amx(tiles))));
                sets.push(Self(Set::Avx512));
            }
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            if avx2 && is_x86_feature_detected!("f16c") {
                if is_x86_feature_detected!("avxvnni") {
                    sets.push(Self(Set::AvxVnni));
                }
                sets.push(Self(Set::Avx2));
            }
        }
        #[cfg(target_arch = "aarch64")]
        if std::arch::is_aarch64_feature_detected!("neon") {
            if std::arch::is_aarch64_feature_detected!("dotprod") {
                if std::arch::is_aarch64_feature_detected!("i8mm") {
                    sets.push(Self(Set::NeonI8mm));
                }
                sets.push(Self(Set::NeonDot));
            }
            sets.push(Self(Set::Neon));
        }
        sets.push(Self::SCALAR);
        sets
    }

    /// Name as logged and as taken by `GREENROOM_ISA`.
    pub fn name(self) -> &'static str {
        match self.0 {
            Set::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Set::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Set::AvxVnni => "avxvnni",
            #[cfg(target_arch = "x86_64")]
            Set::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Set::Amx(_) => "amx",
            #[cfg(target_arch = "aarch64")]
            Set::Neon => "neon",
            #[cfg(target_arch = "aarch64")]
            Set::NeonDot => "neondot",
            #[cfg(target_arch = "aarch64")]
            Set::NeonI8mm => "neoni8mm",
        }
    }

    /// The matrix tiles of this set.
    pub(crate) fn tiles(self) -> Option<Tiles> {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Set::Amx(tiles) => Some(tiles),
            _ => None,
        }
    }

    /// Runs a kernel on this instruction set.
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self.0 {
            Set::Scalar => kernel.run::<scalar::Scalar>(),
            // SAFETY: only `Isa::available` makes an `Isa` of this set, where its features were detected.
            #[cfg(target_arch = "x86_64")]
            Set::Avx2 => unsafe { avx2::run(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Set::AvxVnni => unsafe { avx2::run_vnni(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Set::Avx512 | Set::Amx(_) => unsafe { avx512::run(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "aarch64")]
            Set::Neon => unsafe { neon::run(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "aarch64")]
            Set::NeonDot => unsafe { neon::run_dot(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "aarch64")]
            Set::NeonI8mm => unsafe { neon::run_i8mm(kernel) },
        }
    }
}

/// The first of the sets, unless it is one with matrix tiles and they make no product sooner here: what they are
/// worth differs between processors, and virtual machines.
fn fastest(available: &[Isa]) -> Isa {
    match available {
        [tiles, vectors, ..] if tiles.tiles().is_some() && !linear::is_faster(*tiles, *vectors) => *vectors,
        _ => available[0],
    }
}
