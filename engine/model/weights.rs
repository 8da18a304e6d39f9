//! A model's tensors: which there are, by what name and of what shape. What becomes of a matrix is a device's
//! business.

use super::rope;
use super::spec::{DecoderSpec, LatentSpec};
use crate::model::gguf::{Gguf, TensorType};
use crate::model::tensors::{Numbers, TokenEmbedding, floats};
use crate::{Error, Result};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// Converts a file's matrices to a device's form.
pub(crate) trait Pack {
    /// A matrix as the device has it.
    type Matrix;

    /// A matrix from its bytes in the file; also what was made of it, for the log.
    ///
    /// # Errors
    /// There is no conversion from its type; memory runs out.
    fn pack(&mut self, matrix: Matrix<'_>) -> Result<(Self::Matrix, String)>;

    /// The device's way to read numbers.
    fn numbers(&self) -> Numbers;
}

/// A matrix of the file, `[n_out, k]`.
pub(crate) struct Matrix<'a> {
    pub(crate) gguf: &'a Gguf,
    pub(crate) name: &'a str,
    pub(crate) kind: TensorType,
    pub(crate) n_out: usize,
    pub(crate) k: usize,
    pub(crate) bytes: &'a [u8],
    /// Bias that is added to its products, `[n_out]`.
    pub(crate) bias: Option<Vec<f32>>,
    /// Which of the matrices of its tensor it is, and how many there are: some devices keep them side by
    /// side.
    #[cfg_attr(not(feature = "gpu"), allow(dead_code))]
    pub(crate) index: usize,
    #[cfg_attr(not(feature = "gpu"), allow(dead_code))]
    pub(crate) of: usize,
}

/// All tensors of a model. `M` is a matrix.
pub(crate) struct Weights<M> {
    pub(crate) embedding: TokenEmbedding,
    pub(crate) layers: Vec<Layer<M>>,
    pub(crate) output_norm: Vec<f32>,
    /// `[n_vocab, d_model]`.
    pub(crate) output: M,
    /// Rows of `output`.
    pub(crate) n_vocab: usize,
}

/// One layer.
pub(crate) struct Layer<M> {
    pub(crate) attn_norm: Vec<f32>,
    pub(crate) attention: AttentionWeights<M>,
    pub(crate) ffn_norm: Vec<f32>,
    pub(crate) feed_forward: FeedForward<M>,
    /// Norms of what comes out of attention and feed-forward (`post_norms`).
    pub(crate) post_norms: Option<[Vec<f32>; 2]>,
}

/// Attention of one layer.
pub(crate) struct AttentionWeights<M> {
    /// Matrices that produce queries, keys and values; or queries and the latent.
    pub(crate) input: Vec<M>,
    pub(crate) heads: Heads<M>,
    /// `[n_heads]`.
    pub(crate) sinks: Option<Vec<f32>>,
    pub(crate) output: M,
}

/// Derivation of queries, keys and values from the products of [`AttentionWeights::input`].
pub(crate) enum Heads<M> {
    /// The products as they are, after norms of each head where there are some.
    Plain { norms: Option<[Vec<f32>; 2]> },
    /// MLA with its up-projections absorbed: queries meet the latent itself (DeepSeek-V2, appendix C). `k_b`:
    /// for each head `[rank, nope]`, `v_b`: `[value, rank]`.
    Latent { spec: LatentSpec, norm: Vec<f32>, k_b: Vec<M>, v_b: Vec<M> },
}

/// The feed-forward of a layer: one gated pair of matrices, or a mixture of experts.
pub(crate) enum FeedForward<M> {
    Dense(Mlp<M>),
    Experts { router: M, experts: Vec<Mlp<M>>, shared: Option<Mlp<M>> },
}

/// `down (act(gate x) · up x)`.
pub(crate) struct Mlp<M> {
    pub(crate) gate: M,
    pub(crate) up: M,
    pub(crate) down: M,
}

impl<M> Weights<M> {
    /// Loads all tensors. `on_progress` gets the bytes of the file read so far, and the total.
    ///
    /// # Errors
    /// A tensor is missing, has another shape or a type for which there is no conversion; one has no place;
    /// memory runs out.
    pub(crate) fn load(
        gguf: &Arc<Gguf>,
        spec: &DecoderSpec,
        pack: &mut dyn Pack<Matrix = M>,
        on_progress: &mut (dyn FnMut(u64, u64) + Send),
    ) -> Result<Self> {
        let d = spec.d_model;
        let embedding = TokenEmbedding::open(gguf, "token_embd.weight", d, pack.numbers())?;
        let taken = HashSet::from(["token_embd.weight".to_owned(), rope::FACTORS.to_owned()]);
        let mut loader = WeightLoader { gguf, pack, on_progress, done: 0, made: BTreeMap::new(), taken };
        let layers = (0..spec.layers.len()).map(|l| loader.layer(spec, l)).collect::<Result<_>>()?;
        let output = if gguf.has_tensor("output.weight") { "output" } else { "token_embd" };
        let n_vocab = embedding.n_vocab;
        let output = loader.matrix(output, n_vocab, d)?;
        let output_norm = loader.vector("output_norm", d)?;
        loader.finish(spec.family.name)?;
        Ok(Self { embedding, layers, output_norm, output, n_vocab })
    }
}

/// Takes a model's tensors one after another. The pages of the file that a matrix came from are given back,
/// so that the weights are never in memory twice.
struct WeightLoader<'a, M> {
    gguf: &'a Gguf,
    pack: &'a mut dyn Pack<Matrix = M>,
    on_progress: &'a mut (dyn FnMut(u64, u64) + Send),
    done: u64,
    /// Matrices by what was made of them, for the log.
    made: BTreeMap<String, usize>,
    /// Tensors that were requested.
    taken: HashSet<String>,
}

impl<M> WeightLoader<'_, M> {
    fn layer(&mut self, spec: &DecoderSpec, l: usize) -> Result<Layer<M>> {
        let mut norm = |name: &str| self.vector(&format!("blk.{l}.{name}"), spec.d_model);
        let (attn_norm, ffn_norm) = (norm("attn_norm")?, norm(spec.family.ffn_norm)?);
        let post_norms = if spec.family.post_norms {
            Some([norm("post_attention_norm")?, norm("post_ffw_norm")?])
        } else {
            None
        };
        let attention = self.attention(spec, l)?;
        let feed_forward = self.feed_forward(spec, l)?;
        Ok(Layer { attn_norm, attention, ffn_norm, feed_forward, post_norms })
    }

    fn attention(&mut self, spec: &DecoderSpec, l: usize) -> Result<AttentionWeights<M>> {
        let name = |part: &str| format!("blk.{l}.{part}");
        let (d, n) = (spec.d_model, spec.n_heads);
        let (input, heads, out_width) = match spec.latent {
            None => {
                let (q, kv) = (n * spec.k_dim, spec.n_kv_heads * spec.k_dim);
                let input = [("attn_q", q), ("attn_k", kv), ("attn_v", kv)];
                let input = input.map(|(part, width)| self.matrix(&name(part), width, d));
                let norms = if spec.family.head_norms {
                    let mut norm = |part| self.vector(&name(part), spec.k_dim);
                    Some([norm("attn_q_norm")?, norm("attn_k_norm")?])
                } else {
                    None
                };
                (input.into_iter().collect::<Result<Vec<_>>>()?, Heads::Plain { norms }, q)
            }
            Some(latent) => {
                let LatentSpec { rank, nope, rope, value } = latent;
                let q = self.matrix(&name("attn_q"), n * (nope + rope), d)?;
                let kv = self.matrix(&name("attn_kv_a_mqa"), rank + rope, d)?;
                let norm = self.vector(&name("attn_kv_a_norm"), rank)?;
                let k_b = self.matrices(&name("attn_k_b"), n, rank, nope)?;
                let v_b = self.matrices(&name("attn_v_b"), n, value, rank)?;
                (vec![q, kv], Heads::Latent { spec: latent, norm, k_b, v_b }, n * value)
            }
        };
        let sinks = spec.family.sinks.then(|| self.vector(&name("attn_sinks"), n)).transpose()?;
        let output = self.matrix(&name("attn_output"), d, out_width)?;
        Ok(AttentionWeights { input, heads, sinks, output })
    }

    fn feed_forward(&mut self, spec: &DecoderSpec, l: usize) -> Result<FeedForward<M>> {
        let d = spec.d_model;
        let mut mlp = |suffix: &str, d_ff: usize| {
            let name = |part: &str| format!("blk.{l}.ffn_{part}{suffix}");
            Ok::<_, Error>(Mlp {
                gate: self.matrix(&name("gate"), d_ff, d)?,
                up: self.matrix(&name("up"), d_ff, d)?,
                down: self.matrix(&name("down"), d, d_ff)?,
            })
        };
        let experts = match spec.experts {
            Some(experts) if spec.layers[l].experts => experts,
            _ => return Ok(FeedForward::Dense(mlp("", spec.d_ff)?)),
        };
        let shared = (experts.shared_ff > 0).then(|| mlp("_shexp", experts.shared_ff)).transpose()?;
        let (n, d_ff) = (experts.n, experts.d_ff);
        let name = |part: &str| format!("blk.{l}.ffn_{part}");
        let router = self.matrix(&name("gate_inp"), n, d)?;
        let gates = self.matrices(&name("gate_exps"), n, d_ff, d)?;
        let ups = self.matrices(&name("up_exps"), n, d_ff, d)?;
        let downs = self.matrices(&name("down_exps"), n, d, d_ff)?;
        let experts = gates.into_iter().zip(ups).zip(downs);
        let experts = experts.map(|((gate, up), down)| Mlp { gate, up, down }).collect();
        Ok(FeedForward::Experts { router, experts, shared })
    }

    /// The matrix `name.weight`, whose shape must be `[n_out, k]`, with `name.bias` if there is one.
    fn matrix(&mut self, name: &str, n_out: usize, k: usize) -> Result<M> {
        let bias = self.optional(&format!("{name}.bias"), &[n_out])?;
        let mut matrices = self.pack(name, &[n_out, k], vec![bias])?;
        matrices.pop().ok_or_else(|| self.gguf.error("no matrix was packed"))
    }

    /// `n` equal matrices in the tensor `name.weight`, `[n, n_out, k]`, with `name.bias`, `[n, n_out]`, if
    /// there is one.
    fn matrices(&mut self, name: &str, n: usize, n_out: usize, k: usize) -> Result<Vec<M>> {
        let biases = self.optional(&format!("{name}.bias"), &[n, n_out])?;
        let bias = |i: usize| biases.as_ref().map(|biases| biases[i * n_out..][..n_out].to_vec());
        let biases = (0..n).map(bias).collect();
        self.pack(name, &[n, n_out, k], biases)
    }

    /// The tensor `name.weight` of this shape as a matrix for each of `biases`.
    fn pack(&mut self, name: &str, shape: &[usize], biases: Vec<Option<Vec<f32>>>) -> Result<Vec<M>> {
        let gguf = self.gguf;
        let name = format!("{name}.weight");
        let (info, bytes) = gguf.tensor(&name)?;
        if info.shape != shape {
            let found = format!("tensor `{name}` has the shape {:?}; expected {shape:?}", info.shape);
            return Err(gguf.error(found));
        }
        let (n_out, k) = (shape[shape.len() - 2], shape[shape.len() - 1]);
        let mut matrices = Vec::with_capacity(biases.len());
        let of = biases.len();
        let each = bytes.chunks_exact((bytes.len() / of).max(1));
        for (index, (bytes, bias)) in each.zip(biases).enumerate() {
            let matrix = Matrix { gguf, name: &name, kind: info.kind, n_out, k, bytes, bias, index, of };
            let (matrix, made) = self.pack.pack(matrix)?;
            *self.made.entry(made).or_default() += 1;
            matrices.push(matrix);
        }
        gguf.release(bytes);
        self.done += bytes.len() as u64;
        self.taken.insert(name);
        (self.on_progress)(self.done, gguf.bytes().len() as u64);
        Ok(matrices)
    }

    /// The floats `name.weight`, `n` of them.
    fn vector(&mut self, name: &str, n: usize) -> Result<Vec<f32>> {
        let name = format!("{name}.weight");
        let vector = floats(self.gguf, &name, &[n], self.pack.numbers())?;
        self.taken.insert(name);
        Ok(vector)
    }

    fn optional(&mut self, name: &str, shape: &[usize]) -> Result<Option<Vec<f32>>> {
        if !self.gguf.has_tensor(name) {
            return Ok(None);
        }
        self.taken.insert(name.to_owned());
        floats(self.gguf, name, shape, self.pack.numbers()).map(Some)
    }

    /// All is loaded: says what the matrices are.
    ///
    /// # Errors
    /// The file has an unexpected tensor: ignoring it would mean wrong answers.
    fn finish(self, family: &str) -> Result<()> {
        let all = self.gguf.tensors().map(|(name, _)| name);
        let mut unknown: Vec<&str> = all.filter(|name| !self.taken.contains(*name)).collect();
        unknown.sort_unstable();
        if let Some(first) = unknown.first() {
            return Err(self.gguf.error(format!(
                "tensor `{first}` (one of {}) is unknown in a {family} decoder; without it the model would \
                 give wrong answers",
                unknown.len()
            )));
        }
        let total = self.gguf.bytes().len() as u64;
        (self.on_progress)(total, total);
        for (what, n) in self.made.iter().filter(|(what, _)| what.contains(" as ")) {
            tracing::warn!(
                "{}: {n} matrices of {what}, because their rows are not whole blocks of the file's type",
                self.gguf.name
            );
        }
        let made = self.made.iter().map(|(what, n)| format!("{n} × {what}")).collect::<Vec<_>>().join(", ");
        tracing::info!("matrices: {made}");
        Ok(())
    }
}
