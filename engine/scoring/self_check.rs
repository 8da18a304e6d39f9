//! Measurements of a model on a short text when it is opened for the first time: how its keys are best coded,
//! and whether it can be run with its coded cache, which is compared with an f16 cache.
//!
//! A self-check compares a coded cache with f16 on 320 tokens of a built-in dialogue before a model's first
//! run with it: two short prompts' time, once; the verdict is kept in the cache folder. Above 0.1 nats a
//! token (mean KL divergence) the default format is replaced by 8-bit keys, then values, and an explicit
//! format gets a warning. Without a folder the verdict is found each time. Where nothing is checked, keys with a
//! bias are 8 bits: their outliers break 4 bits in some models (small ones of Qwen, where codes are not rotated).

use crate::device::{Device, measure};
use crate::kv::layout::{BLOCK, KvLayout};
use crate::kv::table::BlockHash;
use crate::model::calibration::Calibration;
use crate::scoring::compare::Comparison;
use crate::store::numerics::Numerics;
use crate::store::{Found, Store};
use crate::text::tokenizer::{After, Tokenizer};
use crate::{FormatDivergence, KvChoice, KvFormat, KvLayer, Result, SAMPLE};
use std::sync::Arc;

/// Constants that a device codes keys by.
#[derive(Default)]
pub(crate) struct KeyConstants {
    /// Their name, for caches whose keys are coded by them; empty where no keys are.
    pub(crate) name: String,
    /// True if another device measured them, and this one measured others.
    pub(crate) adopted: bool,
}

/// Measures a model's keys, unless a folder knows them (`model` is the model's identity), and has them coded
/// accordingly. A cached latent is coded as it is. Where memories in the folder are to be adopted
/// (`to_adopt`, the newest first), the keys are coded as those of the first one that this device did not
/// compute alone. Tells `measuring` before the model reads a text.
///
/// # Errors
/// The text can't be read by the model.
pub(crate) fn calibrate(
    device: &mut dyn Device,
    tokenizer: &Tokenizer,
    store: Option<&Store>,
    model: &str,
    to_adopt: &[Numerics],
    measuring: &mut (dyn FnMut() + Send),
) -> Result<KeyConstants> {
    if device.spec().is_latent() {
        return Ok(KeyConstants::default());
    }
    let own = match stored_calibration(device, store, model, device.numerics()) {
        Some(known) => known,
        None => {
            measuring();
            let found =
                measure(device, &tokenizer.begin(&tokenizer.encode_message(SAMPLE, After::Special)?))?;
            let root = calibration_root(model, device.numerics());
            if let Some(Err(e)) = store.map(|store| store.write_check(root, &found.text())) {
                tracing::warn!("the model will be measured again: {e}");
            }
            found
        }
    };
    let alone = Numerics::new(device.numerics(), Some(&name_of(&own)));
    let others = to_adopt.iter().filter(|numerics| **numerics != alone);
    let keys = others.filter_map(|numerics| numerics.keys.as_ref()).next();
    let theirs = keys.filter(|keys| Some(*keys) != alone.keys.as_ref()).and_then(|keys| {
        let by =
            |id: &str| stored_calibration(device, store, model, id).filter(|found| name_of(found) == *keys);
        let found = to_adopt.iter().flat_map(Numerics::devices).find_map(by);
        match found {
            Some(_) => {
                tracing::info!("using the key constants {keys} of the newest memory")
            }
            None => {
                tracing::info!("can't adopt the newest memory: its key constants {keys} are missing")
            }
        }
        found
    });
    let adopted = theirs.is_some();
    let calibration = theirs.unwrap_or(own);
    device.calibrate(&calibration);
    Ok(KeyConstants { name: name_of(&calibration), adopted })
}

/// The calibration that a device measured, if a folder knows it.
fn stored_calibration(
    device: &dyn Device,
    store: Option<&Store>,
    model: &str,
    numerics: &str,
) -> Option<Calibration> {
    match store?.read_check(calibration_root(model, numerics)) {
        Found::Whole(text) => Calibration::from_text(&text, device.spec()),
        _ => None,
    }
}

/// Name of a calibration's constants.
fn name_of(calibration: &Calibration) -> String {
    blake3::hash(calibration.text().as_bytes()).to_hex()[..16].to_owned()
}

/// Address of a model's calibration in a folder.
pub(crate) fn calibration_root(model: &str, numerics: &str) -> BlockHash {
    BlockHash::root(&format!("calibration\n{model}\n{numerics}"))
}

/// Tokens that are read: a sealed block, and what reads it.
const CHECKED_TOKENS: usize = BLOCK + 64;

/// Mean Kullback–Leibler divergence from the f16 cache, in nats a token, above which a cache should not be
/// used: those of sound models stay some ten times below, broken ones are far above.
const LIMIT: f64 = 0.1;

/// The layout of a choice. The family's own is compared with an f16 cache, unless a folder knows how that
/// ended, and gives way to 8-bit keys, then 8-bit values too, until one holds; any other is compared, and a
/// warning given. Keys with a bias, which are 8 bits where nothing is measured, are tried in 4 bits first.
/// `root` is a layout's identity.
///
/// # Errors
/// The text can't be read by the model.
pub(crate) fn choose(
    device: &Arc<dyn Device>,
    tokenizer: &Tokenizer,
    choice: &KvChoice,
    store: Option<&Store>,
    root: &(dyn Fn(&KvLayout) -> BlockHash + Sync),
    measuring: &mut (dyn FnMut() + Send),
) -> Result<Arc<KvLayout>> {
    let (k, v) = (KvFormat::Q8, KvFormat::Q4);
    let finer = [KvChoice::Sides(KvLayer { k, v }), KvChoice::Uniform(KvFormat::Q8)];
    let (first, finer) = match choice {
        KvChoice::Auto if device.spec().is_latent() => (choice, &finer[..]),
        KvChoice::Auto => (&KvChoice::Mixture, &finer[..]),
        other => (other, &[][..]),
    };
    let mut layout = Arc::new(device.spec().kv_layout(first)?);
    let mut divergence = compared(device, tokenizer, &layout, store, root(&layout), measuring)?;
    for finer in finer {
        let next = Arc::new(device.spec().kv_layout(finer)?);
        if divergence.nats <= LIMIT || next == layout {
            continue;
        }
        if divergence.is_new {
            tracing::warn!(
                "with a {} cache, this model's next tokens differ by {:.2} nats from those with an f16 cache \
                 (expected less than {LIMIT}); using a {} cache instead",
                device.spec().kv_name(&layout),
                divergence.nats,
                device.spec().kv_name(&next)
            );
        }
        (divergence, layout) = (compared(device, tokenizer, &next, store, root(&next), measuring)?, next);
    }
    if divergence.nats.is_nan() || divergence.nats > LIMIT {
        tracing::warn!(
            "with a {} cache, this model's next tokens differ by {:.2} nats from those with an f16 cache \
             (expected less than {LIMIT}); use auto, f16, or formats that were measured for this model",
            device.spec().kv_name(&layout),
            divergence.nats
        );
    }
    Ok(layout)
}

/// Divergence of a cache's next tokens from those with an f16 cache.
struct CacheDivergence {
    /// Nats a token.
    nats: f64,
    /// No folder knew it.
    is_new: bool,
}

fn compared(
    device: &Arc<dyn Device>,
    tokenizer: &Tokenizer,
    layout: &Arc<KvLayout>,
    store: Option<&Store>,
    root: BlockHash,
    measuring: &mut (dyn FnMut() + Send),
) -> Result<CacheDivergence> {
    let known = match store.map(|store| store.read_check(root)) {
        Some(Found::Whole(text)) => text.parse::<f64>().ok(),
        Some(Found::Missing | Found::Damaged(_) | Found::Unreadable(_)) | None => None,
    };
    let nats = match known {
        Some(known) => known,
        None => {
            measuring();
            let found = distance(device, tokenizer, layout)?;
            if let Some(Err(e)) = store.map(|store| store.write_check(root, &found.to_string())) {
                tracing::warn!("the self-check will be done again: {e}");
            }
            found
        }
    };
    let name = device.spec().kv_name(layout);
    tracing::info!("cache {name}: differs by {nats:.4} nats per token from an f16 cache on a sample text");
    Ok(CacheDivergence { nats, is_new: known.is_none() })
}

/// Mean divergence over the rows that read a sealed block; 0 where nothing is coded or the context is too
/// short.
fn distance(device: &Arc<dyn Device>, tokenizer: &Tokenizer, layout: &Arc<KvLayout>) -> Result<f64> {
    let ids = tokenizer.encode_message(SAMPLE, After::Special)?;
    // The end: keys were measured on the beginning.
    let mut ids = tokenizer.begin(&ids[ids.len().saturating_sub(CHECKED_TOKENS)..]);
    ids.truncate(device.spec().context_length);
    let f16 = Arc::new(device.spec().kv_layout(&KvChoice::Uniform(KvFormat::F16))?);
    if f16 == *layout || ids.len() <= BLOCK {
        return Ok(0.0);
    }
    let (mut sum, mut n) = (0.0, 0);
    let mut comparison = Comparison::new(device, &[f16, layout.clone()], ids);
    comparison.skip(BLOCK)?;
    let mut see = |_, figures: &[FormatDivergence]| {
        (sum, n) = (sum + figures[1].divergence, n + 1);
        Ok(())
    };
    while !comparison.step(&mut see)? {}
    Ok(sum / f64::from(n))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelSource;
    use crate::device::cpu::Cpu;
    use crate::fixtures::RandomModel;
    use crate::model::gguf::Gguf;
    use crate::store::StoreLocation;
    use greenroom_kernels::Isa;

    struct Model {
        device: Arc<dyn Device>,
        tokenizer: Tokenizer,
        store: Store,
        _dir: tempfile::TempDir,
    }

    /// A model whose keys are `size` times as large.
    fn model(size: f32) -> Model {
        of_family("llama", size)
    }

    fn of_family(family: &str, size: f32) -> Model {
        let larger = |name: &str, x: &mut [f32]| {
            if name.ends_with("attn_k.weight") {
                x.iter_mut().for_each(|x| *x *= size);
            }
        };
        let bytes: &'static [u8] = RandomModel::tiny_of(family, 5).bytes_with(&larger).leak();
        let gguf = Arc::new(Gguf::open(&ModelSource::Bundled("random", bytes)).expect("a model"));
        let mut device = Cpu::load(&gguf, Isa::detect(), &mut |_, _| {}).expect("a device");
        let tokenizer = Tokenizer::from_gguf(&gguf).expect("a tokenizer");
        let dir = tempfile::tempdir().expect("a folder");
        let place = StoreLocation::new(dir.path().to_owned(), None, None);
        let store = Store::open(&place).expect("a store");
        calibrate(&mut device, &tokenizer, Some(&store), "a model", &[], &mut || {}).expect("a calibration");
        Model { device: Arc::new(device), tokenizer, store, _dir: dir }
    }

    fn root(layout: &KvLayout) -> BlockHash {
        BlockHash::root(&layout.describe())
    }

    impl Model {
        fn chosen(&self, choice: &KvChoice) -> String {
            let Self { device, tokenizer, store, .. } = self;
            choose(device, tokenizer, choice, Some(store), &root, &mut || {}).expect("a layout").name()
        }

        fn kept(&self, choice: &KvChoice) -> Option<f64> {
            let layout = self.device.spec().kv_layout(choice).expect("a layout");
            match self.store.read_check(root(&layout)) {
                Found::Whole(text) => text.parse().ok(),
                _ => None,
            }
        }
    }

    #[test]
    fn a_model_that_four_bits_break_gets_eight_for_its_keys() {
        let (q4, sides) =
            (KvChoice::Uniform(KvFormat::Q4), KvChoice::Sides(KvLayer { k: KvFormat::Q8, v: KvFormat::Q4 }));
        let (sound, broken) = (model(1.0), model(64.0));
        assert_eq!(
            (sound.chosen(&KvChoice::Auto), broken.chosen(&KvChoice::Auto)),
            ("q4".into(), "q8/q4".into())
        );
        assert_eq!(
            (sound.chosen(&q4), broken.chosen(&q4)),
            ("q4".into(), "q4".into()),
            "what is asked for stays"
        );
        assert!(sound.kept(&q4) < Some(LIMIT) && broken.kept(&q4) > Some(LIMIT));
        assert!(sound.kept(&sides).is_none() && broken.kept(&sides) < Some(LIMIT));
        let Model { device, tokenizer, .. } = &broken;
        let layout = Arc::new(device.spec().kv_layout(&q4).expect("a layout"));
        let again = distance(device, tokenizer, &layout).expect("a check");
        assert_eq!(broken.kept(&q4), Some(again), "what is found is kept");
    }

    #[test]
    fn a_calibration_is_kept_and_a_broken_one_made_again() {
        let Model { mut device, tokenizer, store, _dir } = model(1.0);
        let calibration = calibration_root("a model", device.numerics());
        let Found::Whole(kept) = store.read_check(calibration) else { panic!("no calibration") };
        assert!(Calibration::from_text(&kept, device.spec()).is_some());
        for broken in ["", "00", "no number"] {
            store.write_check(calibration, broken).expect("a file");
            let device = Arc::get_mut(&mut device).expect("nobody else's");
            calibrate(device, &tokenizer, Some(&store), "a model", &[], &mut || {}).expect("a calibration");
            let Found::Whole(again) = store.read_check(calibration) else { panic!("no calibration") };
            assert_eq!(again, kept);
        }
    }

    /// Where nothing is measured, they are 8 bits.
    #[test]
    fn keys_with_a_bias_are_as_fine_as_they_are_found_to_need() {
        let own = |model: &Model| model.device.spec().kv_layout(&KvChoice::Auto).expect("a layout").name();
        for (size, chosen) in [(1.0, "q4"), (64.0, "q8/q4")] {
            let model = of_family("qwen2", size);
            assert_eq!((own(&model).as_str(), model.chosen(&KvChoice::Auto).as_str()), ("q8/q4", chosen));
        }
    }
}
