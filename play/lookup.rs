//! Looks up pieces of memories by similarity: embeddings, their cosines, and which pieces matter most.
//!
//! All pieces are compared, one by one: below [`MAX_PIECES`] that is quick compared with embedding them.

use crate::backend::Backend;
use anyhow::ensure;
use greenroom_scenario::{Keep, MemoryPolicy};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of pieces that are compared with one text.
pub const MAX_PIECES: usize = 10_000;
/// Number of texts embedded in one request.
const TEXTS_PER_REQUEST: usize = 64;

/// Embeddings that are known already, by the model's identity and the text.
#[derive(Debug, Default)]
pub struct Lookup {
    known: Mutex<HashMap<blake3::Hash, Arc<[f32]>>>,
}

/// The nearness of each text to a query: the cosine of their embeddings.
///
/// # Errors
/// There are too many texts, or one can't be embedded.
pub async fn nearest(
    lookup: &Lookup,
    backend: &Arc<dyn Backend>,
    query: String,
    texts: Vec<String>,
) -> anyhow::Result<Vec<f32>> {
    ensure!(
        texts.len() <= MAX_PIECES,
        "{} pieces of memory are too many to compare; at most {MAX_PIECES} are allowed: let the agents hear \
         less, or use `keep: window`",
        texts.len()
    );
    let query = lookup.embedded(backend, &[query]).await?;
    let texts = lookup.embedded(backend, &texts).await?;
    Ok(query.first().map_or(Vec::new(), |query| texts.iter().map(|text| cosine(query, text)).collect()))
}

/// The nearness of each text of each list to a query.
///
/// # Errors
/// As [`nearest`], of all texts together.
pub async fn nearest_of_each(
    lookup: &Lookup,
    backend: &Arc<dyn Backend>,
    query: String,
    lists: Vec<Vec<String>>,
) -> anyhow::Result<Vec<Vec<f32>>> {
    let lengths: Vec<usize> = lists.iter().map(Vec::len).collect();
    let mut all = nearest(lookup, backend, query, lists.into_iter().flatten().collect()).await?.into_iter();
    Ok(lengths.into_iter().map(|n| all.by_ref().take(n).collect()).collect())
}

impl Lookup {
    async fn embedded(
        &self,
        backend: &Arc<dyn Backend>,
        texts: &[String],
    ) -> anyhow::Result<Vec<Arc<[f32]>>> {
        let identity = backend.card().model.identity;
        let key =
            |text: &String| blake3::keyed_hash(blake3::hash(identity.as_bytes()).as_bytes(), text.as_bytes());
        let known =
            |key: &blake3::Hash| self.known.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned();
        let mut new: Vec<&String> = texts.iter().filter(|text| known(&key(text)).is_none()).collect();
        new.sort_unstable();
        new.dedup();
        for some in new.chunks(TEXTS_PER_REQUEST) {
            let vectors = backend.embed(some.iter().map(|text| (*text).clone()).collect()).await?;
            ensure!(
                vectors.len() == some.len(),
                "{} texts were embedded as {} vectors",
                some.len(),
                vectors.len()
            );
            let vectors = some.iter().map(|text| key(text)).zip(vectors.into_iter().map(Arc::from));
            self.known.lock().unwrap_or_else(PoisonError::into_inner).extend(vectors);
        }
        Ok(texts.iter().filter_map(|text| known(&key(text))).collect())
    }
}

/// The cosine of two vectors of length 1, summed in their order.
fn cosine(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() as f32
}

/// Indices of the pieces that a memory may keep, the most important first: the recent ones, latest first,
/// then the nearest of the others, of equally near ones the latest.
pub fn by_importance(scores: &[f32], memory: MemoryPolicy) -> Vec<usize> {
    let n = scores.len();
    let before = n - memory.recent.unwrap_or(n).min(n);
    let mut order: Vec<usize> = (before..n).rev().collect();
    if memory.keep == Keep::Retrieve {
        let mut others: Vec<usize> = (0..before).collect();
        others.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(Reverse(*a).cmp(&Reverse(*b))));
        order.extend(others.into_iter().take(memory.nearest));
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recent_pieces_come_first_then_the_nearest() {
        let scores = [0.5, 0.9, 0.1, 0.9, 0.0, 0.2];
        let retrieve = MemoryPolicy { keep: Keep::Retrieve, recent: Some(2), nearest: 3 };
        assert_eq!(by_importance(&scores, retrieve), [5, 4, 3, 1, 0]);
        let window = MemoryPolicy { keep: Keep::Window, recent: None, nearest: 3 };
        assert_eq!(by_importance(&scores, window), [5, 4, 3, 2, 1, 0]);
        assert_eq!(by_importance(&scores, MemoryPolicy { recent: Some(9), ..retrieve }), [5, 4, 3, 2, 1, 0]);
        assert!(by_importance(&[], retrieve).is_empty());
    }
}
