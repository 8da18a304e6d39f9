//! What is found out about a model when it is opened for the first time, by a short text: how its keys are best coded, and whether it
//! can be run with its coded cache, which is compared with an f16 cache.

use crate::compare::compare;
use crate::kernels::NUMERICS;
use crate::kv::layout::{BLOCK, KvLayout};
use crate::kv::store::{Found, Store};
use crate::kv::table::BlockHash;
use crate::model::Decoder;
use crate::model::calibration::Calibration;
use crate::tokenizer::{After, Tokenizer};
use crate::{KvChoice, KvFormat, Result, SAMPLE};
use std::sync::Arc;

/// Measures a model's keys, unless a folder knows them (`model` is the model's identity), and has them coded accordingly. A cached
/// latent is coded as it is.
///
/// # Errors
/// The text can't be read by the model.
pub(crate) fn calibrate(
    decoder: &mut Decoder,
    tokenizer: &Tokenizer,
    store: Option<&Store>,
    model: &str,
) -> Result<()> {
    if decoder.spec.latent.is_some() {
        return Ok(());
    }
    let root = BlockHash::root(&format!("calibration\n{model}\n{NUMERICS}"));
    let known = match store.map(|store| store.read_check(root)) {
        Some(Found::Whole(text)) => Calibration::from_text(&text, &decoder.spec),
        _ => None,
    };
    let calibration = match known {
        Some(known) => known,
        None => {
            let found = decoder.calibration(&tokenizer.encode_message(SAMPLE, After::Special)?)?;
            if let Some(Err(e)) = store.map(|store| store.write_check(root, &found.text())) {
                tracing::warn!("the model will be measured again: {e}");
            }
            found
        }
    };
    decoder.shape_keys(&calibration);
    Ok(())
}

/// Tokens that are read: a sealed block, and what reads it.
const TOKENS: usize = BLOCK + 64;

/// Mean Kullback–Leibler divergence from the f16 cache, in nats a token, above which a warning is given: well rotated caches
/// stay some ten times below, broken ones are far above.
const LIMIT: f64 = 0.1;

/// Compares, unless that was done before, and warns.
///
/// # Errors
/// The text can't be read by the model.
pub(crate) fn run(
    decoder: &Decoder,
    tokenizer: &Tokenizer,
    layout: &Arc<KvLayout>,
    store: &Store,
    root: BlockHash,
) -> Result<()> {
    let known = match store.read_check(root) {
        Found::Whole(text) => text.parse::<f64>().ok(),
        Found::Missing | Found::Damaged(_) | Found::Unreadable(_) => None,
    };
    let divergence = match known {
        Some(known) => known,
        None => {
            let found = measure(decoder, tokenizer, layout)?;
            if let Err(e) = store.write_check(root, &found.to_string()) {
                tracing::warn!("the self-check will be done again: {e}");
            }
            found
        }
    };
    tracing::info!(
        "cache {}: {divergence:.4} nats a token from an f16 cache on a sample text",
        layout.name()
    );
    if divergence.is_nan() || divergence > LIMIT {
        tracing::warn!(
            "with a {} cache this model's next tokens are {divergence:.2} nats away from those with an f16 cache (a good \
             one stays below {LIMIT}): run it with `--kv q8`, or with a file of `greenroom kv-config`",
            layout.name()
        );
    }
    Ok(())
}

/// Mean divergence over the rows that read a sealed block; 0 where nothing is coded or the context is too short.
fn measure(decoder: &Decoder, tokenizer: &Tokenizer, layout: &Arc<KvLayout>) -> Result<f64> {
    let mut ids = tokenizer.encode_message(SAMPLE, After::Special)?;
    ids.truncate(TOKENS.min(decoder.spec.context_length));
    let f16 = Arc::new(decoder.spec.kv_layout(&KvChoice::Uniform(KvFormat::F16))?);
    if f16 == *layout || ids.len() <= BLOCK {
        return Ok(0.0);
    }
    let (mut sum, mut n) = (0.0, 0);
    compare(decoder, &[f16, layout.clone()], &ids, BLOCK, &mut |_, figures| {
        (sum, n) = (sum + figures[1].divergence, n + 1);
        Ok(())
    })?;
    Ok(sum / f64::from(n))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelSource;
    use crate::fixtures::RandomModel;
    use crate::gguf::Gguf;
    use crate::kernels::Isa;
    use crate::kv::store::Place;

    /// Divergence of a q4 cache for a model whose keys are `size` times as large.
    fn found(size: f32) -> f64 {
        let larger = |name: &str, x: &mut [f32]| {
            if name.ends_with("attn_k.weight") {
                x.iter_mut().for_each(|x| *x *= size);
            }
        };
        let bytes: &'static [u8] = RandomModel::tiny(5).bytes_with(&larger).leak();
        let gguf = Arc::new(Gguf::open(&ModelSource::Bundled("random", bytes)).expect("a model"));
        let decoder = Decoder::load(&gguf, Isa::detect(), &mut |_, _| {}).expect("a decoder");
        let tokenizer = Tokenizer::from_gguf(&gguf).expect("a tokenizer");
        let layout = Arc::new(decoder.spec.kv_layout(&KvChoice::Uniform(KvFormat::Q4)).expect("a layout"));
        let dir = tempfile::tempdir().expect("a folder");
        let place = Place { dir: dir.path().to_owned(), key: None };
        let store = Store::open(&place, "").expect("a store");
        let root = BlockHash::root("test");
        run(&decoder, &tokenizer, &layout, &store, root).expect("a check");
        let Found::Whole(kept) = store.read_check(root) else { panic!("no verdict") };
        let kept: f64 = kept.parse().expect("a number");
        assert_eq!(kept, measure(&decoder, &tokenizer, &layout).expect("a check"), "what is found is kept");
        kept
    }

    #[test]
    fn a_model_that_four_bits_break_is_told_from_one_that_they_do_not() {
        let (sound, broken) = (found(1.0), found(64.0));
        assert!(0.0 < sound && sound < LIMIT && LIMIT < broken, "{sound}, {broken}");
    }
}
