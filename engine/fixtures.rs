//! Models with random weights in a real layout, for tests and for the script that makes the goldens.
//!
//! Weights come from a counter through blake3, so a seed gives the same file on every machine.

use crate::quant::BlockQ8_0;
use half::f16;

/// Number format of a random model's matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// GGUF Q8_0.
    Q8_0,
}

/// A llama-shaped model with random weights and a small byte-level tokenizer.
#[derive(Clone, Debug)]
pub struct RandomModel {
    /// Chooses the weights.
    pub seed: u64,
    /// `general.architecture`.
    pub architecture: String,
    /// Layers.
    pub n_layers: usize,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key/value heads.
    pub n_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Width of the feed-forward.
    pub d_ff: usize,
    /// Positions.
    pub context_length: u32,
    /// Base of the rotary embedding.
    pub rope_base: f32,
    /// Format of the matrices.
    pub dtype: Dtype,
    /// Chat template; `None` leaves it out.
    pub template: Option<String>,
    /// Control tokens beyond ChatML's.
    pub control: Vec<String>,
}

const CHATML: &str = include_str!("../templates/chat/chatml.jinja");

impl RandomModel {
    /// Two layers of `make_gguf.py`'s tiny preset: small enough to compute in a debug build.
    pub fn tiny(seed: u64) -> Self {
        Self {
            seed,
            architecture: "llama".to_owned(),
            n_layers: 2,
            d_model: 128,
            n_heads: 4,
            n_kv_heads: 2,
            head_dim: 64,
            d_ff: 256,
            context_length: 4096,
            rope_base: 10_000.0,
            dtype: Dtype::F32,
            template: Some(CHATML.to_owned()),
            control: Vec::new(),
        }
    }

    /// Tokens: 256 bytes, some merges, control tokens last (`<|endoftext|>`, `<|im_start|>`, `<|im_end|>`, then more).
    fn vocabulary(&self) -> (Vec<String>, Vec<String>, usize) {
        let printable = |b: &u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
        let mut extra = 256u32..;
        let mut tokens: Vec<String> = (0..=255u8)
            .map(|b| match printable(&b) {
                true => char::from(b).to_string(),
                false => extra.next().and_then(char::from_u32).unwrap_or('?').to_string(),
            })
            .collect();
        let space = '\u{120}';
        let pairs = ["t h", "th e", "o u", "i n", "e r", "a n", "in g", "y ou", "r e", "o n"];
        let merges: Vec<String> =
            pairs.iter().map(|p| (*p).to_owned()).chain([format!("{space} the")]).collect();
        tokens.extend(merges.iter().map(|m| m.replace(' ', "")));
        let n_plain = tokens.len();
        tokens.extend(["<|endoftext|>", "<|im_start|>", "<|im_end|>"].map(str::to_owned));
        tokens.extend(self.control.iter().cloned());
        (tokens, merges, n_plain)
    }

    /// The GGUF file.
    pub fn bytes(&self) -> Vec<u8> {
        self.bytes_with(&|_, _| {})
    }

    /// The GGUF file with weights changed: `edit` sees each tensor's name and numbers (row-major, as they were drawn)
    /// before they are put into the file's format.
    pub fn bytes_with(&self, edit: &dyn Fn(&str, &mut [f32])) -> Vec<u8> {
        let mut header = Writer::default();
        let (tokens, merges, n_plain) = self.vocabulary();
        let arch = self.architecture.clone();
        let key = |name: &str| format!("{arch}.{name}");
        let mut meta = Writer::default();
        let mut n_values = 0u64;
        let mut value = |key: &str, kind: u32, body: &dyn Fn(&mut Writer)| {
            meta.text(key);
            meta.u32(kind);
            body(&mut meta);
            n_values += 1;
        };
        value("general.architecture", 8, &|w| w.text(&arch));
        value("general.name", 8, &|w| w.text(&format!("random-{arch}-{}", self.seed)));
        for (name, n) in [
            ("context_length", self.context_length as usize),
            ("embedding_length", self.d_model),
            ("block_count", self.n_layers),
            ("feed_forward_length", self.d_ff),
            ("attention.head_count", self.n_heads),
            ("attention.head_count_kv", self.n_kv_heads),
            ("attention.key_length", self.head_dim),
            ("attention.value_length", self.head_dim),
            ("rope.dimension_count", self.head_dim),
        ] {
            value(&key(name), 4, &|w| w.u32(n as u32));
        }
        value(&key("attention.layer_norm_rms_epsilon"), 6, &|w| w.f32(1e-6));
        value(&key("rope.freq_base"), 6, &|w| w.f32(self.rope_base));
        value("tokenizer.ggml.model", 8, &|w| w.text("gpt2"));
        value("tokenizer.ggml.pre", 8, &|w| w.text("gpt-2"));
        value("tokenizer.ggml.tokens", 9, &|w| w.texts(&tokens));
        value("tokenizer.ggml.merges", 9, &|w| w.texts(&merges));
        value("tokenizer.ggml.token_type", 9, &|w| {
            w.u32(5);
            w.u64(tokens.len() as u64);
            (0..tokens.len()).for_each(|i| w.u32(if i < n_plain { 1 } else { 3 }));
        });
        value("tokenizer.ggml.bos_token_id", 4, &|w| w.u32(n_plain as u32));
        value("tokenizer.ggml.eos_token_id", 4, &|w| w.u32(n_plain as u32 + 2));
        value("tokenizer.ggml.add_bos_token", 7, &|w| w.0.push(0));
        if let Some(template) = &self.template {
            value("tokenizer.chat_template", 8, &|w| w.text(template));
        }
        let tensors = self.tensors(tokens.len(), edit);
        header.0.extend_from_slice(b"GGUF");
        header.u32(3);
        header.u64(tensors.len() as u64);
        header.u64(n_values);
        header.0.extend_from_slice(&meta.0);
        let mut data: Vec<u8> = Vec::new();
        for (name, shape, kind, bytes) in tensors {
            data.resize(data.len().next_multiple_of(32), 0);
            header.text(&name);
            header.u32(shape.len() as u32);
            shape.iter().rev().for_each(|d| header.u64(*d as u64));
            header.u32(kind);
            header.u64(data.len() as u64);
            data.extend_from_slice(&bytes);
        }
        header.0.resize(header.0.len().next_multiple_of(32), 0);
        header.0.extend_from_slice(&data);
        header.0
    }

    /// Name, shape, ggml type and bytes of every tensor.
    fn tensors(
        &self,
        n_vocab: usize,
        edit: &dyn Fn(&str, &mut [f32]),
    ) -> Vec<(String, Vec<usize>, u32, Vec<u8>)> {
        let (d, q) = (self.d_model, self.n_heads * self.head_dim);
        let kv = self.n_kv_heads * self.head_dim;
        let matrix = |name: String, n: usize, k: usize, std: f32| {
            let mut x: Vec<f32> = self.noise(&name, n * k).into_iter().map(|x| x * std).collect();
            edit(&name, &mut x);
            let (kind, bytes) = match self.dtype {
                Dtype::F32 => (0, bytemuck::cast_slice(&x).to_vec()),
                Dtype::F16 => {
                    let half: Vec<f16> = x.iter().map(|x| f16::from_f32(*x)).collect();
                    (1, bytemuck::cast_slice(&half).to_vec())
                }
                Dtype::Q8_0 => (8, bytemuck::cast_slice::<BlockQ8_0, u8>(&crate::quant::q8_0(&x)).to_vec()),
            };
            (name, vec![n, k], kind, bytes)
        };
        let norm = |name: String| {
            let mut x: Vec<f32> = self.noise(&name, d).into_iter().map(|x| 1.0 + 0.1 * x).collect();
            edit(&name, &mut x);
            (name, vec![d], 0, bytemuck::cast_slice(&x).to_vec())
        };
        let fan = |k: usize| (k as f32).powf(-0.5);
        let mut all = vec![
            matrix("token_embd.weight".to_owned(), n_vocab, d, 1.0),
            norm("output_norm.weight".to_owned()),
            matrix("output.weight".to_owned(), n_vocab, d, fan(d)),
        ];
        for l in 0..self.n_layers {
            let name = |name: &str| format!("blk.{l}.{name}.weight");
            all.push(norm(name("attn_norm")));
            all.push(matrix(name("attn_q"), q, d, fan(d)));
            all.push(matrix(name("attn_k"), kv, d, fan(d)));
            all.push(matrix(name("attn_v"), kv, d, fan(d)));
            all.push(matrix(name("attn_output"), d, q, fan(q)));
            all.push(norm(name("ffn_norm")));
            all.push(matrix(name("ffn_gate"), self.d_ff, d, fan(d)));
            all.push(matrix(name("ffn_up"), self.d_ff, d, fan(d)));
            all.push(matrix(name("ffn_down"), d, self.d_ff, fan(self.d_ff)));
        }
        all
    }

    /// `n` numbers of about unit variance, from seed and name.
    fn noise(&self, name: &str, n: usize) -> Vec<f32> {
        let mut hasher = blake3::Hasher::new_derive_key("greenroom 2026 random fixture");
        hasher.update(&self.seed.to_le_bytes()).update(name.as_bytes());
        let mut bytes = vec![0u8; n * 8];
        hasher.finalize_xof().fill(&mut bytes);
        let uniform = |b: &[u8]| f32::from(u16::from_le_bytes([b[0], b[1]])) / 65536.0 - 0.5;
        // Four uniforms make a bell that is close enough to a normal one: variance 4/12.
        let bell = |b: &[u8]| b.chunks_exact(2).map(uniform).sum::<f32>() * 3f32.sqrt();
        bytes.chunks_exact(8).map(bell).collect()
    }
}

/// Little-endian pieces of a GGUF header.
#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn u32(&mut self, n: u32) {
        self.0.extend_from_slice(&n.to_le_bytes());
    }
    fn u64(&mut self, n: u64) {
        self.0.extend_from_slice(&n.to_le_bytes());
    }
    fn f32(&mut self, x: f32) {
        self.0.extend_from_slice(&x.to_le_bytes());
    }
    fn text(&mut self, text: &str) {
        self.u64(text.len() as u64);
        self.0.extend_from_slice(text.as_bytes());
    }
    fn texts(&mut self, texts: &[String]) {
        self.u32(8);
        self.u64(texts.len() as u64);
        texts.iter().for_each(|t| self.text(t));
    }
}
