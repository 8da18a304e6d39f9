//! Writes a random model to a file: a tiny one for `tests/goldens/make.py`, or one of a real shape.
//!
//! `random_gguf OUT SEED [--shape NAME] [--weights TYPE] [--rope-base X] [--layers N] [--kv-heads N]`

use greenroom_engine::fixtures::{Dtype, RandomModel};
use std::error::Error;
use std::io::{BufWriter, Write as _};

const USAGE: &str = "usage: random_gguf OUT SEED [--shape tiny|135m|500m|1b|3b|8b] \
    [--weights f32|f16|bf16|q8_0|q4_0|q4_k|q5_k|q6_k|q4_k_m] [--rope-base X] [--layers N] [--kv-heads N]";

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or(USAGE)?;
    let mut model = RandomModel::tiny(args.next().ok_or(USAGE)?.parse()?);
    while let Some(option) = args.next() {
        let value = args.next().ok_or(USAGE)?;
        match option.as_str() {
            "--shape" => model = RandomModel::shape(&value, model.seed).ok_or(USAGE)?,
            "--weights" => model.dtype = Dtype::from_word(&value).ok_or(USAGE)?,
            "--rope-base" => model.rope_base = value.parse()?,
            "--layers" => model.n_layers = value.parse()?,
            "--kv-heads" => model.n_kv_heads = value.parse()?,
            _ => return Err(USAGE.into()),
        }
    }
    let mut out = BufWriter::new(std::fs::File::create(path)?);
    model.write_to(&mut out)?;
    Ok(out.flush()?)
}
