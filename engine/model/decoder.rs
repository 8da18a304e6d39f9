//! The forward pass: rows of many sequences in, logits out.

use super::ops::{AddLinear, Attention, Gated, Linear, RmsNorm, SpanState};
use super::spec::DecoderSpec;
use super::weights::{Embedding, Loader, vector};
use crate::gguf::Gguf;
use crate::kernels::Isa;
use crate::kernels::panel::Packed;
use crate::kernels::tasks::n_threads;
use crate::kv::blocks::Arena;
use crate::kv::layout::KvLayout;
use crate::kv::sequence::Sequence;
use crate::{Error, KvFormat, Result};
use candle_core::{Device, Tensor};
use std::cell::RefCell;
use std::sync::Arc;

/// One layer's weights.
struct Layer {
    attn_norm: Vec<f32>,
    q: Packed,
    k: Packed,
    v: Packed,
    o: Packed,
    ffn_norm: Vec<f32>,
    gate: Packed,
    up: Packed,
    down: Packed,
}

/// A model, ready to run.
pub(crate) struct Decoder {
    pub(crate) spec: DecoderSpec,
    pub(crate) layout: Arc<KvLayout>,
    isa: Isa,
    embedding: Embedding,
    layers: Vec<Layer>,
    output_norm: Vec<f32>,
    output: Packed,
}

/// New tokens of one sequence.
pub(crate) struct Span<'a> {
    pub(crate) sequence: &'a mut Sequence,
    /// All tokens of the sequence, the new ones included: those from the cache's end to `end` are fed.
    pub(crate) tokens: &'a [u32],
    /// Where this pass stops.
    pub(crate) end: usize,
    /// Which rows' logits are wanted.
    pub(crate) logits: Wanted,
}

/// Which rows of a span give logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    None,
    Last,
    All,
}

impl Decoder {
    /// Loads a model's weights.
    pub(crate) fn load(
        gguf: &Arc<Gguf>,
        format: KvFormat,
        isa: Isa,
        on_progress: &mut (dyn FnMut(u64, u64) + Send),
    ) -> Result<Self> {
        let spec = DecoderSpec::from_gguf(gguf)?;
        refuse_unknown(gguf, &spec)?;
        let (d, ff) = (spec.d_model, spec.d_ff);
        let (q_width, kv_width) = (spec.n_heads * spec.head_dim, spec.n_kv_heads * spec.head_dim);
        let embedding = Embedding::open(gguf, "token_embd.weight", d)?;
        let mut loader = Loader::new(gguf, on_progress);
        let mut layers = Vec::new();
        for l in 0..spec.n_layers {
            let norm = |name: &str| vector(gguf, &format!("blk.{l}.{name}.weight"), d);
            let (attn_norm, ffn_norm) = (norm("attn_norm")?, norm("ffn_norm")?);
            let mut matrix =
                |name: &str, n_out, k| loader.matrix(&format!("blk.{l}.{name}.weight"), n_out, k);
            layers.push(Layer {
                attn_norm,
                q: matrix("attn_q", q_width, d)?,
                k: matrix("attn_k", kv_width, d)?,
                v: matrix("attn_v", kv_width, d)?,
                o: matrix("attn_output", d, q_width)?,
                ffn_norm,
                gate: matrix("ffn_gate", ff, d)?,
                up: matrix("ffn_up", ff, d)?,
                down: matrix("ffn_down", d, ff)?,
            });
        }
        let tied = !gguf.has_tensor("output.weight");
        let output = if tied { "token_embd.weight" } else { "output.weight" };
        let output = loader.matrix(output, embedding.n_vocab, d)?;
        loader.finish();
        let output_norm = vector(gguf, "output_norm.weight", d)?;
        let layout = Arc::new(spec.kv_layout(format));
        tracing::info!("kernels: {}, {} threads", isa.name(), n_threads());
        Ok(Self { spec, layout, isa, embedding, layers, output_norm, output })
    }

    /// Size of the vocabulary.
    pub(crate) fn n_vocab(&self) -> usize {
        self.output.n_out
    }

    /// Runs one batch of spans and returns the wanted logits, span by span: `[rows wanted, n_vocab]`.
    ///
    /// # Errors
    /// A token outside the vocabulary, a position outside the context, a failure of candle. The sequences are then as
    /// before the pass.
    pub(crate) fn forward(&self, spans: Vec<Span<'_>>, arena: &mut Arena) -> Result<Vec<Vec<f32>>> {
        let mut ids = Vec::new();
        for span in &spans {
            if span.end > self.spec.context_length {
                let (found, most) = (span.end, self.spec.context_length);
                return Err(Error::request(format!(
                    "{found} tokens do not fit in the model's context of {most}"
                )));
            }
            ids.extend_from_slice(&span.tokens[span.sequence.len()..span.end]);
        }
        if let Some(id) = ids.iter().find(|id| **id as usize >= self.n_vocab()) {
            return Err(Error::request(format!("token {id} is not in the vocabulary of {}", self.n_vocab())));
        }
        let wanted = spans.iter().scan(0, |row, s| {
            let n = s.end - s.sequence.len();
            *row += n;
            Some(match s.logits {
                Wanted::None => *row..*row,
                Wanted::Last => *row - 1..*row,
                Wanted::All => *row - n..*row,
            })
        });
        let wanted: Vec<_> = wanted.collect();
        let mut first_row = 0;
        let mut ends = Vec::new();
        let mut states = Vec::new();
        for span in spans {
            let (start, sealed) = (span.sequence.len(), span.sequence.sealed(arena));
            let n = span.end - start;
            ends.push((span.tokens, start, span.end));
            states.push(SpanState { sequence: span.sequence, sealed, first_row, start, n });
            first_row += n;
        }
        let states = RefCell::new(states);
        let result = self
            .run(&ids, &states, &wanted)
            .map_err(|e| Error::request(format!("a forward pass failed: {e}")));
        for (state, (tokens, start, end)) in states.into_inner().into_iter().zip(ends) {
            match &result {
                Ok(_) => state.sequence.finish_pass(&tokens[start..end], tokens, arena),
                Err(_) => state.sequence.abort_pass(),
            }
        }
        result
    }

    fn run(
        &self,
        ids: &[u32],
        spans: &RefCell<Vec<SpanState<'_>>>,
        wanted: &[std::ops::Range<usize>],
    ) -> candle_core::Result<Vec<Vec<f32>>> {
        let positions = spans.borrow();
        let rope: Vec<Vec<f32>> = positions
            .iter()
            .flat_map(|s| (s.start..s.start + s.n).map(|p| self.spec.rope.table(p)))
            .collect();
        drop(positions);
        let embedded = self.embedding.rows(ids).map_err(candle_core::Error::wrap)?;
        let mut x = Tensor::from_vec(embedded, (ids.len(), self.spec.d_model), &Device::Cpu)?;
        for (layer, weights) in self.layers.iter().enumerate() {
            let layout = self.layout.layers[layer];
            let attention = Attention { isa: self.isa, spec: &self.spec, layout, layer, rope: &rope, spans };
            x = self.layer(&x, weights, &attention)?;
        }
        let rows: Vec<u32> = wanted.iter().flat_map(|w| w.clone().map(|row| row as u32)).collect();
        if rows.is_empty() {
            return Ok(wanted.iter().map(|_| Vec::new()).collect());
        }
        let n_rows = rows.len();
        let x = x.index_select(&Tensor::from_vec(rows, n_rows, &Device::Cpu)?, 0)?;
        let x = self.norm(&x, &self.output_norm)?;
        let logits: Vec<f32> = self.linear(&x, &[&self.output])?.flatten_all()?.to_vec1()?;
        let mut rest = logits.as_slice();
        let cut = |w: &std::ops::Range<usize>| {
            let (piece, after) = rest.split_at(w.len() * self.n_vocab());
            rest = after;
            piece.to_vec()
        };
        Ok(wanted.iter().map(cut).collect())
    }

    /// `x: [n_rows, d_model]` through attention and feed-forward, each with its norm before and its residual.
    fn layer(&self, x: &Tensor, w: &Layer, attention: &Attention<'_, '_>) -> candle_core::Result<Tensor> {
        let normed = self.norm(x, &w.attn_norm)?;
        let qkv = self.linear(&normed, &[&w.q, &w.k, &w.v])?;
        let context = qkv.apply_op1_no_bwd(attention)?;
        let x = context.apply_op2_no_bwd(x, &AddLinear(self.isa, &w.o))?;
        let normed = self.norm(&x, &w.ffn_norm)?;
        let hidden = normed.apply_op1_no_bwd(&Gated(self.isa, &w.gate, &w.up))?;
        hidden.apply_op2_no_bwd(&x, &AddLinear(self.isa, &w.down))
    }

    fn norm(&self, x: &Tensor, weight: &[f32]) -> candle_core::Result<Tensor> {
        x.apply_op1_no_bwd(&RmsNorm(self.isa, weight, self.spec.norm_eps))
    }

    fn linear(&self, x: &Tensor, weights: &[&Packed]) -> candle_core::Result<Tensor> {
        x.apply_op1_no_bwd(&Linear(self.isa, weights))
    }
}

/// A tensor that the decoder would leave out (a bias, a norm of another family) is refused by name: silence here would
/// mean wrong answers.
fn refuse_unknown(gguf: &Gguf, spec: &DecoderSpec) -> Result<()> {
    const GLOBAL: [&str; 4] =
        ["token_embd.weight", "output_norm.weight", "output.weight", "rope_freqs.weight"];
    const LAYER: [&str; 9] = [
        "attn_norm.weight",
        "attn_q.weight",
        "attn_k.weight",
        "attn_v.weight",
        "attn_output.weight",
        "ffn_norm.weight",
        "ffn_gate.weight",
        "ffn_up.weight",
        "ffn_down.weight",
    ];
    let known = |name: &str| {
        let in_layer = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
        GLOBAL.contains(&name) || in_layer.is_some_and(|(_, rest)| LAYER.contains(&rest))
    };
    let mut unknown: Vec<&str> = gguf.tensors().map(|(name, _)| name).filter(|name| !known(name)).collect();
    unknown.sort_unstable();
    match unknown.first() {
        None => Ok(()),
        Some(first) => Err(gguf.error(format!(
            "tensor `{first}` (one of {}) has no place in a {} decoder: the model would answer wrongly without it",
            unknown.len(),
            spec.family
        ))),
    }
}
