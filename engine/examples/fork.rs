//! One agent, two futures: after a shared past it is forked, and both go on at once. Neither reads the past
//! again.
//!
//! `cargo run --release -p greenroom-engine --example fork [MODEL.gguf]`

use greenroom_engine::*;

/// Text that Omar has read.
const PAST: &str = "On Saturday, around one in the morning, two people emptied the castle.
The patrol saw a painter and a nurse near the boat house. Bruno and Omar were arrested the next morning.
Two silent suspects get 4 years each. Two traitors get 5 years each. One talks: 3 years for that one, 19 for the other.
Detective questions Omar. Someone has left two cups of tea on the table.
Detective: A ruby ring does not walk out of the castle alone. Where were you on Saturday, Omar?
[Your turn, Omar.]";

fn main() -> Result<()> {
    let bundled = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/understudy.gguf");
    let model = std::env::args().nth(1).unwrap_or_else(|| bundled.to_owned());
    futures(ModelSource::Path(model.into())).map(drop)
}

/// Asks an agent, then two forks of it; returns what the three turns cost.
pub(crate) fn futures(model: ModelSource) -> Result<Vec<Usage>> {
    let engine = Engine::open(EngineConfig::new(model))?;
    let system = "You are Omar, a nurse under arrest. You are cunning and patient. You have known Bruno for \
                  two years. Answer briefly and in character.";
    let sampling = Sampling { temperature: 0.5, min_p: 0.1, ..Sampling::default() };
    let omar = engine.agent("castle", "omar").system(system).sampling(sampling);
    let mut omar = omar.stop(["\n"]).max_tokens(60);
    println!("{PAST}\n");
    let said = omar.extend(PAST)?.blocking_finish()?;
    println!("Omar: {}\n    {}\n", said.text.trim(), account(&said.usage));

    let news = [
        "Detective: Bruno took the offer. He named you.",
        "Detective: Bruno is silent. He did not name you.",
    ];
    let mut forks = [omar.fork("omar, betrayed"), omar.fork("omar, trusted")];
    let mut replies = Vec::new();
    for (fork, news) in forks.iter_mut().zip(news) {
        replies.push(fork.extend(format!("{news}\n[Your turn, Omar.]"))?); // both are at work from here on
    }
    let mut usages = vec![said.usage];
    for (reply, news) in replies.into_iter().zip(news) {
        let said = reply.blocking_finish()?;
        println!("{news}\nOmar: {}\n    {}\n", said.text.trim(), account(&said.usage));
        usages.push(said.usage);
    }
    Ok(usages)
}

fn account(usage: &Usage) -> String {
    let Usage { reused, prefilled, recomputed, .. } = usage;
    format!("[{reused} tokens reused, {prefilled} read, {recomputed} read again]")
}
