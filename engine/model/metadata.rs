//! A family's metadata: typed values of its keys, and which keys were asked for.

use super::family::Family;
use crate::Result;
use crate::model::gguf::{Gguf, Value};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// Counts above these are no model's; what is allocated by them stays small.
const MAX_COUNT: u32 = 1 << 28;

/// Keys without effect on what a decoder computes of text: sizes that the tensors tell too, notes of the
/// converter, and what belongs to images.
const WITHOUT_EFFECT: [&str; 11] = [
    "attention.key_length",
    "attention.value_length",
    "feed_forward_length",
    "n_deepstack_layers",
    "pooling_type",
    "rope.dimension_count",
    "rope.dimension_sections",
    "rope.scaling.finetuned",
    "tensor_data_layout",
    "use_parallel_residual",
    "vocab_size",
];

/// Reads a family's metadata.
pub(super) struct MetadataReader<'a> {
    pub(super) gguf: &'a Gguf,
    pub(super) family: &'static Family,
    /// Keys that were asked for.
    asked: RefCell<BTreeSet<String>>,
}

impl<'a> MetadataReader<'a> {
    pub(super) fn new(gguf: &'a Gguf, family: &'static Family) -> Self {
        Self { gguf, family, asked: RefCell::default() }
    }

    /// A key by its name within the family's.
    pub(super) fn key(&self, name: &str) -> String {
        let key = format!("{}.{name}", self.family.name);
        self.asked.borrow_mut().insert(key.clone());
        key
    }

    pub(super) fn get(&self, name: &str) -> Option<&'a Value> {
        self.gguf.get(&self.key(name))
    }

    /// A whole number; `None` where it is missing or 0.
    pub(super) fn positive(&self, name: &str) -> Result<Option<usize>> {
        Ok(self.gguf.int::<u32>(&self.key(name))?.filter(|n| *n > 0).map(|n| n as usize))
    }

    pub(super) fn count(&self, name: &str) -> Result<Option<usize>> {
        let key = self.key(name);
        match self.gguf.int::<u32>(&key)? {
            Some(n) if n == 0 || n > MAX_COUNT => {
                Err(self.gguf.error(format!("`{key}` is {n}; expected 1 to {MAX_COUNT}")))
            }
            n => Ok(n.map(|n| n as usize)),
        }
    }

    pub(super) fn needed(&self, name: &str) -> Result<usize> {
        let missing = || self.gguf.error(format!("`{}` is missing from its metadata", self.key(name)));
        self.count(name)?.ok_or_else(missing)
    }

    /// A number for each layer: a file gives one for all, or an array. It may have zeros where layers of the
    /// family may lack what is counted.
    pub(super) fn by_layer(&self, name: &str, n_layers: usize) -> Result<Option<Vec<usize>>> {
        let least = usize::from(self.family.recurrence.is_none());
        let Some(Value::Array(values)) = self.get(name) else {
            return Ok(self.count(name)?.map(|n| vec![n; n_layers]));
        };
        let count = |value: &Value| match value {
            Value::Int(n) => usize::try_from(*n).ok().filter(|n| (least..=MAX_COUNT as usize).contains(n)),
            _ => None,
        };
        let counts: Option<Vec<usize>> = values.iter().take(n_layers).map(count).collect();
        counts.filter(|counts| counts.len() == n_layers).map(Some).ok_or_else(|| {
            let key = self.key(name);
            let expected = format!("a number from {least} to {MAX_COUNT} for each of {n_layers} layers");
            self.gguf.error(format!("`{key}` is {values:?}; expected {expected}"))
        })
    }

    pub(super) fn float(&self, name: &str) -> Result<Option<f32>> {
        self.gguf.float(&self.key(name))
    }

    /// A float that is not 0, as a file says that there is no such factor.
    pub(super) fn factor(&self, name: &str) -> Result<Option<f32>> {
        Ok(self.float(name)?.filter(|x| *x != 0.0))
    }

    /// Refuses values of a key other than these, which change nothing.
    pub(super) fn refuse(&self, name: &str, harmless: &[Value]) -> Result<()> {
        match self.get(name) {
            Some(value) if !harmless.contains(value) => {
                Err(self.gguf.error(format!("`{}` is {value:?}, which is not supported", self.key(name))))
            }
            _ => Ok(()),
        }
    }

    /// All that is known was asked for.
    ///
    /// # Errors
    /// The file has another key of the family: ignoring it could mean wrong answers.
    pub(super) fn finish(self) -> Result<()> {
        let family = format!("{}.", self.family.name);
        let asked = self.asked.borrow();
        let mut unknown: Vec<&str> = self
            .gguf
            .keys()
            .filter(|key| key.strip_prefix(&family).is_some_and(|name| !WITHOUT_EFFECT.contains(&name)))
            .filter(|key| !asked.contains(*key))
            .collect();
        unknown.sort_unstable();
        match unknown.first() {
            None => Ok(()),
            Some(first) => Err(self.gguf.error(format!(
                "`{first}` (one of {}) is unknown in the metadata of a {} decoder; without it the model could \
                 give wrong answers",
                unknown.len(),
                self.family.name
            ))),
        }
    }
}
