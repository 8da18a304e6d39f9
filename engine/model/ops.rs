//! The kernels as candle custom ops. What candle's tensors can't carry (weights in the file, pool and block tables,
//! positions) is held by the op; activations are f32 tensors `[n_rows, width]`.

use crate::kernels::Isa;
use crate::kernels::linear::{self, Activations};
use crate::kernels::panel::Packed;
use crate::kernels::pointwise::{self, Activation};
use candle_core::{CpuStorage, CustomOp1, CustomOp2, Layout, Result, Shape, bail};

/// The contiguous f32 values behind a tensor.
pub(super) fn floats<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    let CpuStorage::F32(values) = storage else { bail!("activations are f32") };
    let Some((start, end)) = layout.contiguous_offsets() else { bail!("activations are contiguous") };
    Ok(&values[start..end])
}

/// `x: [n_rows, k]` → the products with each matrix side by side, `[n_rows, Σ n_out]`.
pub(crate) struct Linear<'a>(pub(crate) Isa, pub(crate) &'a [&'a Packed]);

impl CustomOp1 for Linear<'_> {
    fn name(&self) -> &'static str {
        "linear"
    }
    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (n_rows, k) = layout.shape().dims2()?;
        let x = Activations::new(self.0, floats(storage, layout)?, k, self.1);
        let width: usize = self.1.iter().map(|w| w.n_out).sum();
        Ok((CpuStorage::F32(linear::linear(self.0, &x, self.1, None)), (n_rows, width).into()))
    }
}

/// `x: [n_rows, k]` and a residual `[n_rows, n_out]` → the residual with the product added.
pub(crate) struct AddLinear<'a>(pub(crate) Isa, pub(crate) &'a Packed);

impl CustomOp2 for AddLinear<'_> {
    fn name(&self) -> &'static str {
        "add-linear"
    }
    fn cpu_fwd(
        &self,
        storage: &CpuStorage,
        layout: &Layout,
        residual: &CpuStorage,
        residual_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let Self(isa, weights) = *self;
        let x = Activations::new(isa, floats(storage, layout)?, weights.k, &[weights]);
        let out = linear::linear(isa, &x, &[weights], Some(floats(residual, residual_layout)?));
        Ok((CpuStorage::F32(out), residual_layout.shape().clone()))
    }
}

/// `x: [n_rows, k]` → `act(gate x) · up x`, `[n_rows, d_ff]`.
pub(crate) struct Gated<'a>(
    pub(crate) Isa,
    pub(crate) Activation,
    pub(crate) &'a Packed,
    pub(crate) &'a Packed,
);

impl CustomOp1 for Gated<'_> {
    fn name(&self) -> &'static str {
        "gated"
    }
    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let Self(isa, activation, gate, up) = *self;
        let (n_rows, k) = layout.shape().dims2()?;
        let x = Activations::new(isa, floats(storage, layout)?, k, &[gate, up]);
        Ok((CpuStorage::F32(linear::gated(isa, activation, &x, gate, up)), (n_rows, gate.n_out).into()))
    }
}

/// `x: [n_rows, n]` → the same shape, normed.
pub(crate) struct RmsNorm<'a>(pub(crate) Isa, pub(crate) &'a [f32], pub(crate) f32);

impl CustomOp1 for RmsNorm<'_> {
    fn name(&self) -> &'static str {
        "rms-norm"
    }
    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let out = pointwise::rms_norm(self.0, floats(storage, layout)?, self.1, self.2);
        Ok((CpuStorage::F32(out), layout.shape().clone()))
    }
}
