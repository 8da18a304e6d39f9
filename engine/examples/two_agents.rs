//! Two agents talk to each other. Each reads, at its turn, what the other has just said, and nothing twice.
//!
//! `cargo run --release -p greenroom-engine --example two_agents [MODEL.gguf]`

use greenroom_engine::*;
use std::io::Write as _;

fn main() -> Result<()> {
    let bundled = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/understudy.gguf");
    let model = std::env::args().nth(1).unwrap_or_else(|| bundled.to_owned());
    talk(ModelSource::Path(model.into())).map(drop)
}

/// Plays eight turns; returns what each cost.
pub(crate) fn talk(model: ModelSource) -> Result<Vec<Usage>> {
    let engine = Engine::open(EngineConfig::new(model))?;
    let agent = |name: &str, who: &str| {
        let system = format!("You are {name}, {who}. Answer briefly and in character.");
        let sampling = Sampling { temperature: 0.5, min_p: 0.1, seed: 1, ..Sampling::default() };
        engine.agent("castle", name).system(system).sampling(sampling).stop(["\n"]).max_tokens(60)
    };
    let mut agents = [
        ("Detective", agent("Detective", "an officer who is dry, polite and hard to fool")),
        ("Omar", agent("Omar", "a nurse under arrest, cunning and patient")),
    ];
    let scene = "On Saturday, around one in the morning, two people emptied the castle.
Detective questions Omar. Someone has left two cups of tea on the table.";
    println!("{scene}\n");
    let mut news = [scene.to_owned(), scene.to_owned()]; // what each has not read yet
    let mut usages = Vec::new();
    for turn in 0..8 {
        let (name, speaker) = &mut agents[turn % 2];
        let cue = format!("\n[Your turn, {name}.]");
        print!("{name}: ");
        let mut reply = speaker.extend(std::mem::take(&mut news[turn % 2]) + &cue)?;
        for piece in &mut reply {
            print!("{}", piece?);
            let _ = std::io::stdout().flush();
        }
        let Completion { text, usage, .. } = reply.blocking_finish()?;
        println!("\n    [{} tokens reused, {} read]", usage.reused, usage.prefilled);
        let other = &mut news[1 - turn % 2];
        *other = format!("{other}\n{name}: {}", text.trim()).trim().to_owned();
        usages.push(usage);
    }
    Ok(usages)
}
