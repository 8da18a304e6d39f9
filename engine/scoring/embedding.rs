//! Embeddings: one vector for each text, from an empty cache, a pass at a time.
//!
//! A text's embedding is the mean over its positions of the hidden state after the final norm, divided by its
//! length: mean pooling as in sentence-transformers (`Pooling` with `pooling_mode_mean_tokens`, then
//! `Normalize`), and llama.cpp's `--pooling mean`. Each text is read alone and with an f16 cache, and each
//! element is summed in f64 in the order of positions, so its bits depend only on the text, the model and the
//! device.

use super::scratch::ScratchSequence;
use crate::device::Device;
use crate::kv::layout::{BLOCK, KvLayout};
use crate::{Error, KvChoice, KvFormat, Meter, Result};
use std::sync::Arc;
use tokio::sync::oneshot;

/// Answer to a request for embeddings: `[d_model]` for each text.
pub(crate) type EmbeddingSender = oneshot::Sender<Result<Vec<Vec<f32>>>>;

/// Texts that are being embedded, one after the other.
pub(crate) struct Embedder {
    device: Arc<dyn Device>,
    layout: Arc<KvLayout>,
    texts: Vec<Vec<u32>>,
    /// Embeddings of the first texts.
    embedded: Vec<Vec<f32>>,
    /// The text that is being read.
    current: Option<Pooling>,
    meter: Option<Meter>,
    answer: EmbeddingSender,
}

impl Embedder {
    /// Texts as ids; nothing is read yet.
    ///
    /// # Errors
    /// A text is empty, or longer than the model's context. The answer comes back with it.
    pub(crate) fn new(
        device: &Arc<dyn Device>,
        texts: Vec<Vec<u32>>,
        meter: Option<Meter>,
        answer: EmbeddingSender,
    ) -> std::result::Result<Self, (Error, EmbeddingSender)> {
        let checked = layout_for(&**device, &texts);
        match checked {
            Ok(layout) => {
                let (embedded, current) = Default::default();
                Ok(Self { device: device.clone(), layout, texts, embedded, current, meter, answer })
            }
            Err(e) => Err((e, answer)),
        }
    }

    /// Maximum bytes while it is active.
    pub(crate) fn need(&self) -> u64 {
        self.texts.iter().map(|ids| self.layout.at_work(ids.len(), 0)).max().unwrap_or(0)
    }

    /// True once no caller waits for the answer.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.answer.is_closed()
    }

    /// One pass; `true`: it was the last one.
    ///
    /// # Errors
    /// The pass fails.
    pub(crate) fn step(&mut self) -> Result<bool> {
        let Some(ids) = self.texts.get(self.embedded.len()) else { return Ok(true) };
        let current = self.current.get_or_insert_with(|| Pooling::new(&self.device, self.layout.clone()));
        let before = current.len();
        let is_read = current.step(ids, BLOCK)?;
        if let Some(meter) = &self.meter {
            meter.add(current.len() - before);
        }
        if is_read {
            self.embedded.extend(self.current.take().map(Pooling::finish));
        }
        Ok(self.embedded.len() == self.texts.len())
    }

    /// Gives the answer, or tells what failed.
    pub(crate) fn answer(self, outcome: Result<()>) {
        // The caller may have gone.
        let _ = self.answer.send(outcome.map(|()| self.embedded));
    }
}

fn layout_for(device: &dyn Device, texts: &[Vec<u32>]) -> Result<Arc<KvLayout>> {
    let spec = device.spec();
    for ids in texts {
        let (n, most) = (ids.len(), spec.context_length);
        if n == 0 {
            return Err(Error::request("an empty text has no embedding"));
        }
        if n > most {
            let message = format!("a text of {n} tokens can't be embedded; the model's context is {most}");
            return Err(Error::request(message));
        }
    }
    Ok(Arc::new(spec.kv_layout(&KvChoice::Uniform(KvFormat::F16))?))
}

/// The sum of a text's hidden states so far.
pub(crate) struct Pooling {
    scratch: ScratchSequence,
    sum: Vec<f64>,
}

impl Pooling {
    pub(crate) fn new(device: &Arc<dyn Device>, layout: Arc<KvLayout>) -> Self {
        Self { scratch: ScratchSequence::new(device, layout), sum: vec![0.0; device.spec().d_model] }
    }

    /// Tokens that were read.
    fn len(&self) -> usize {
        self.scratch.sequence.len()
    }

    /// Reads at most `most` tokens of `ids` in one pass; `true`: they are all read.
    ///
    /// # Errors
    /// The pass fails.
    pub(crate) fn step(&mut self, ids: &[u32], most: usize) -> Result<bool> {
        let end = (self.len() + most).min(ids.len());
        let states = self.scratch.advance_hidden(ids, end)?;
        for state in states.chunks_exact(self.sum.len()) {
            self.sum.iter_mut().zip(state).for_each(|(sum, x)| *sum += f64::from(*x));
        }
        Ok(end == ids.len())
    }

    /// The mean's direction: the number of positions falls out with the length.
    pub(crate) fn finish(self) -> Vec<f32> {
        let length = self.sum.iter().map(|x| x * x).sum::<f64>().sqrt();
        let scale = if length > 0.0 { length.recip() } else { 0.0 };
        self.sum.iter().map(|x| (x * scale) as f32).collect()
    }
}
