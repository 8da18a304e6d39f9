//! Scores the ids of a golden with a model, as JSON lines for `tests/goldens/make.py --against`:
//!
//! `score_ids MODEL.gguf GOLDEN.json f16|q8|q4`

use greenroom_engine::{Engine, EngineConfig, KvFormat, ModelSource};
use std::error::Error;

const USAGE: &str = "usage: score_ids MODEL.gguf GOLDEN.json f16|q8|q4";

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [model, golden, format] = args.as_slice() else { return Err(USAGE.into()) };
    let kv = match format.as_str() {
        "f16" => KvFormat::F16,
        "q8" => KvFormat::Q8,
        "q4" => KvFormat::Q4,
        _ => return Err(USAGE.into()),
    };
    let golden: serde_json::Value = serde_json::from_slice(&std::fs::read(golden)?)?;
    let ids: Vec<u32> = serde_json::from_value(golden["ids"].clone())?;
    let config = EngineConfig { kv, ..EngineConfig::new(ModelSource::Path(model.into())) };
    let engine = Engine::open(config, &mut |_, _| {})?;
    engine.score(&ids, &mut |s| {
        println!(r#"{{"pos":{},"id":{},"logprob":{},"top":{}}}"#, s.pos, s.id, s.logprob, s.top);
    })?;
    Ok(())
}
