//! The model to measure: a file, or random weights of a real shape, written once and reused.

use super::BenchCommon;
use anyhow::{Context as _, bail};
use greenroom::backend::{ModelFile, locate};
use greenroom::commands::default_cache_dir;
use greenroom_engine::fixtures::{Dtype, RandomModel};
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

/// Finds the model, or writes it; if `has_weights` is false, as a file with a hole in their place.
pub(super) fn find(
    common: &BenchCommon,
    has_weights: bool,
    bar: &indicatif::ProgressBar,
) -> anyhow::Result<ModelFile> {
    if let Some(name) = &common.model {
        return locate(name);
    }
    let Some(mut model) = RandomModel::shape(&common.shape, 1) else {
        let known: Vec<_> = RandomModel::shapes().collect();
        bail!("unknown shape `{}`; expected one of {}", common.shape, known.join(", "));
    };
    let Some(dtype) = Dtype::from_word(&common.weights) else {
        let known = Dtype::ALL.iter().map(|dtype| dtype.word()).collect::<Vec<_>>();
        bail!("unknown weight type `{}`; expected one of {}", common.weights, known.join(", "));
    };
    model.dtype = dtype;
    let folder = match &common.shape_dir {
        Some(folder) => folder.clone(),
        None => default_cache_dir().context("there is no home folder; use --shape-dir")?.join("models"),
    };
    let path = folder.join(format!(
        "{}-{}-{}-{}k.gguf",
        if has_weights { "random" } else { "outline" },
        common.shape,
        common.weights,
        model.context_length >> 10
    ));
    if !path.is_file() {
        bar.set_message(format!("writing {}", path.display()));
        write(&model, has_weights, &folder, &path)
            .with_context(|| format!("can't write {}", path.display()))?;
    }
    Ok(ModelFile::Path(path))
}

/// Written under another name first, so that a file with this name is always complete.
fn write(model: &RandomModel, has_weights: bool, folder: &Path, path: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder)?;
    let unfinished: PathBuf = path.with_extension(format!("{}.part", std::process::id()));
    let mut file = File::create(&unfinished)?;
    if has_weights {
        let mut out = BufWriter::new(file);
        model.write_to(&mut out)?;
        out.flush()?;
    } else {
        model.write_empty(&mut file)?;
    }
    Ok(std::fs::rename(&unfinished, path)?)
}
