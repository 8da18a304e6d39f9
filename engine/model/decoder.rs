//! The forward pass: rows of many sequences in, logits out.

use super::attention::{Attention, AttentionWeights, SpanState};
use super::calibration::{self, Calibration, Measured};
use super::feed_forward::FeedForward;
use super::ops::{AddLinear, Linear, RmsNorm};
use super::rope;
use super::spec::DecoderSpec;
use super::weights::{Embedding, Loader};
use crate::gguf::Gguf;
use crate::kernels::Isa;
use crate::kernels::panel::Packed;
use crate::kernels::tasks::{self, n_threads};
use crate::kv::blocks::Arena;
use crate::kv::layout::BLOCK;
use crate::kv::sequence::Sequence;
use crate::kv::table::BlockHash;
use crate::{Error, KvChoice, KvFormat, Result, fault};
use candle_core::{Device, Tensor};
use std::cell::RefCell;
use std::sync::Arc;

/// One layer's weights.
struct Layer {
    attn_norm: Vec<f32>,
    attention: AttentionWeights,
    ffn_norm: Vec<f32>,
    feed_forward: FeedForward,
    /// Norms of what comes out of attention and feed-forward (`sandwich`).
    after: Option<[Vec<f32>; 2]>,
}

impl Layer {
    fn load(loader: &mut Loader<'_>, spec: &DecoderSpec, l: usize) -> Result<Self> {
        let mut norm = |name: &str| loader.vector(&format!("blk.{l}.{name}"), spec.d_model);
        let (attn_norm, ffn_norm) = (norm("attn_norm")?, norm(spec.family.ffn_norm)?);
        let after = match spec.family.sandwich {
            true => Some([norm("post_attention_norm")?, norm("post_ffw_norm")?]),
            false => None,
        };
        let attention = AttentionWeights::load(loader, spec, l)?;
        let feed_forward = FeedForward::load(loader, spec, l)?;
        Ok(Self { attn_norm, attention, ffn_norm, feed_forward, after })
    }
}

/// A model, ready to run.
pub(crate) struct Decoder {
    pub(crate) spec: DecoderSpec,
    pub(crate) isa: Isa,
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

/// Logits that are in memory at a time, at most (but one row's).
const LOGITS: usize = 1 << 23;

impl Decoder {
    /// Loads a model's weights.
    pub(crate) fn load(
        gguf: &Arc<Gguf>,
        isa: Isa,
        on_progress: &mut (dyn FnMut(u64, u64) + Send),
    ) -> Result<Self> {
        let spec = DecoderSpec::from_gguf(gguf)?;
        let d = spec.d_model;
        let embedding = Embedding::open(gguf, "token_embd.weight", d)?;
        let mut loader = Loader::new(gguf, on_progress);
        loader.taken("token_embd.weight");
        loader.taken(rope::FACTORS);
        let layers = (0..spec.layers.len()).map(|l| Layer::load(&mut loader, &spec, l));
        let layers = layers.collect::<Result<Vec<_>>>()?;
        let tied = !gguf.has_tensor("output.weight");
        let output = if tied { "token_embd" } else { "output" };
        let output = loader.matrix(output, embedding.n_vocab, d)?;
        let output_norm = loader.vector("output_norm", d)?;
        loader.finish(spec.family.name)?;
        tracing::info!("kernels: {}, {} threads", isa.name(), n_threads());
        Ok(Self { spec, isa, embedding, layers, output_norm, output })
    }

    /// Size of the vocabulary.
    pub(crate) fn n_vocab(&self) -> usize {
        self.output.n_out
    }

    /// Rows of a sequence whose logits may be wanted of one pass.
    pub(crate) fn most_wanted(&self) -> usize {
        (LOGITS / self.n_vocab()).clamp(1, BLOCK)
    }

    /// Runs one batch of spans, whose sequences have one layout, and returns the wanted logits, span by span: `[rows wanted, n_vocab]`.
    ///
    /// # Errors
    /// A token outside the vocabulary, a position outside the context, a failure of candle. The sequences are then as
    /// before the pass.
    pub(crate) fn forward(&self, spans: Vec<Span<'_>>, arena: &mut Arena) -> Result<Vec<Vec<f32>>> {
        self.pass(spans, arena, None)
    }

    /// Reads the first tokens of a text, and measures queries, keys and values; nothing where keys are a latent.
    ///
    /// # Errors
    /// As [`Decoder::forward`].
    pub(crate) fn calibration(&self, ids: &[u32]) -> Result<Calibration> {
        if self.spec.latent.is_some() {
            return Ok(Calibration::default());
        }
        let ids = &ids[..ids.len().min(calibration::TOKENS).min(self.spec.context_length)];
        let layout = Arc::new(self.spec.kv_layout(&KvChoice::Uniform(KvFormat::F16))?);
        let mut arena = Arena::new(&layout, u64::MAX);
        let mut sequence = Sequence::new(layout, BlockHash::root("calibration"));
        let span = Span { sequence: &mut sequence, tokens: ids, end: ids.len(), logits: Wanted::None };
        let found = RefCell::new(Measured::default());
        self.pass(vec![span], &mut arena, Some(&found))?;
        Ok(found.into_inner().finish())
    }

    /// From now on keys are coded as a calibration says.
    pub(crate) fn calibrate(&mut self, calibration: &Calibration) {
        if self.spec.latent.is_none() {
            self.spec.sensitive = calibration.sensitive(&self.spec.layers);
        }
        let shaping = |l| calibration.shaping(self.isa, l, self.spec.k_dim);
        let shapings = tasks::map(self.layers.len(), shaping);
        for (layer, shaping) in self.layers.iter_mut().zip(shapings) {
            layer.attention.shaping = shaping;
        }
    }

    fn pass(
        &self,
        spans: Vec<Span<'_>>,
        arena: &mut Arena,
        watch: Option<&RefCell<Measured>>,
    ) -> Result<Vec<Vec<f32>>> {
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
            .run(&ids, &states, &wanted, watch)
            .map_err(|e| Error::internal(format!("a pass through the model failed: {e}")));
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
        watch: Option<&RefCell<Measured>>,
    ) -> candle_core::Result<Vec<Vec<f32>>> {
        fault::pass().map_err(candle_core::Error::msg)?;
        let positions = spans.borrow();
        let kv = positions.first().map(|span| span.sequence.layout().clone());
        let kv = kv.ok_or_else(|| candle_core::Error::msg("a pass without spans"))?;
        let rows = || positions.iter().flat_map(|s| s.start..s.start + s.n);
        let ropes = self.spec.ropes.iter().map(|rope| rows().map(|p| rope.table(p)).collect());
        let ropes: Vec<Vec<Vec<f32>>> = ropes.collect();
        drop(positions);
        let embedded = self.embedding.rows(ids).map_err(candle_core::Error::wrap)?;
        let mut x = Tensor::from_vec(embedded, (ids.len(), self.spec.d_model), &Device::Cpu)?;
        if self.spec.family.scaled_embedding {
            x = (x * (self.spec.d_model as f64).sqrt())?;
        }
        for (layer, w) in self.layers.iter().enumerate() {
            let (layout, rope) = (kv.layers[layer], &ropes[self.spec.layers[layer].rope]);
            let (isa, spec, weights) = (self.isa, &self.spec, &w.attention);
            let attention = Attention { isa, spec, weights, layout, layer, rope, spans, watch };
            x = self.layer(&x, w, &attention)?;
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
        let input: Vec<&Packed> = w.attention.input.iter().collect();
        let context = self.linear(&self.norm(x, &w.attn_norm)?, &input)?.apply_op1_no_bwd(attention)?;
        let output = &w.attention.output;
        let attended = |context: &Tensor| match &w.after {
            None => context.apply_op2_no_bwd(x, &AddLinear(self.isa, output)),
            Some([norm, _]) => self.norm(&self.linear(context, &[output])?, norm)? + x,
        };
        let x = attended(&context)?;
        if let Some(watch) = attention.watch {
            let mut watch = watch.borrow_mut();
            let noise = Tensor::from_slice(watch.noise(), context.dims(), &Device::Cpu)?;
            let changed: Vec<f32> = attended(&(&context + noise)?)?.flatten_all()?.to_vec1()?;
            watch.felt(&x.flatten_all()?.to_vec1::<f32>()?, &changed, self.spec.d_model);
        }
        let normed = self.norm(&x, &w.ffn_norm)?;
        let add = |residual| w.feed_forward.add(self.isa, self.spec.family.activation, &normed, residual);
        match &w.after {
            None => add(&x),
            Some([_, norm]) => self.norm(&add(&x.zeros_like()?)?, norm)? + &x,
        }
    }

    fn norm(&self, x: &Tensor, weight: &[f32]) -> candle_core::Result<Tensor> {
        x.apply_op1_no_bwd(&RmsNorm(self.isa, weight, self.spec.norm_eps))
    }

    fn linear(&self, x: &Tensor, weights: &[&Packed]) -> candle_core::Result<Tensor> {
        x.apply_op1_no_bwd(&Linear(self.isa, weights))
    }
}
