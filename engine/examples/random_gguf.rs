//! Writes a random model to a file, for `tests/goldens/make.py`:
//!
//! `random_gguf OUT SEED [--rope-base X] [--layers N] [--kv-heads N]`

use greenroom_engine::fixtures::RandomModel;
use std::error::Error;

const USAGE: &str = "usage: random_gguf OUT SEED [--rope-base X] [--layers N] [--kv-heads N]";

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or(USAGE)?;
    let mut model = RandomModel::tiny(args.next().ok_or(USAGE)?.parse()?);
    while let Some(option) = args.next() {
        let value = args.next().ok_or(USAGE)?;
        match option.as_str() {
            "--rope-base" => model.rope_base = value.parse()?,
            "--layers" => model.n_layers = value.parse()?,
            "--kv-heads" => model.n_kv_heads = value.parse()?,
            _ => return Err(USAGE.into()),
        }
    }
    Ok(std::fs::write(path, model.bytes())?)
}
