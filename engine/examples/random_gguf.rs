//! Writes a random model to a file: a tiny one of any family, as the goldens have them, or one of a real
//! shape.
//!
//! `random_gguf OUT SEED [--shape NAME | --family NAME] [--weights TYPE] [--FIELD JSON]...`, where fields are
//! those of [`RandomModel`]: `--n_layers 4`, `--rope_scaling '{"type": "linear", "factor": 8}'`.

use greenroom_engine::fixtures::{Dtype, RandomModel};
use std::error::Error;
use std::io::{BufWriter, Write as _};

const USAGE: &str = "usage: random_gguf OUT SEED [--shape tiny|135m|500m|1b|3b|8b] \
                     [--family NAME] \
                     [--weights f32|f16|bf16|q8_0|q4_0|q4_k|q5_k|q6_k|q4_k_m|mxfp4] [--FIELD JSON]...";

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or(USAGE)?;
    let mut model = RandomModel::tiny(args.next().ok_or(USAGE)?.parse()?);
    while let Some(option) = args.next() {
        let value = args.next().ok_or(USAGE)?;
        match option.strip_prefix("--").ok_or(USAGE)? {
            "shape" => model = RandomModel::shape(&value, model.seed).ok_or(USAGE)?,
            "family" => model = RandomModel::tiny_of(&value, model.seed),
            "weights" => model.dtype = Dtype::from_word(&value).ok_or(USAGE)?,
            field => model = model.with(field, serde_json::from_str(&value)?)?,
        }
    }
    let mut out = BufWriter::new(std::fs::File::create(path)?);
    model.write_to(&mut out)?;
    Ok(out.flush()?)
}
