//! Two turns with one agent, and what they cost.
use greenroom_engine::*;

fn main() -> Result<()> {
    let path = std::env::args().nth(1).expect("a model's path");
    let dir = std::env::temp_dir().join("greenroom-say");
    let config = EngineConfig { cache_dir: Some(dir), ..EngineConfig::new(ModelSource::Path(path.into())) };
    let engine = Engine::open(config, &mut |_, _| {})?;
    println!("{:#?}", engine.model());
    let mut conversation =
        Conversation { system: Some("You are Rolf, a baker. You are calm.".into()), ..Default::default() };
    for line in
        ["The kitchen is dark.\nPia: Where is the key?\n[Your turn, Rolf.]", "Pia: Why?\n[Your turn, Rolf.]"]
    {
        conversation.next = line.into();
        let mut turn = engine.submit(Request {
            session: SessionKey { run: "say".into(), agent: "rolf".into() },
            parent: None,
            retention: Retention::Persistent,
            conversation: conversation.clone(),
            sampling: Sampling::default(),
            max_tokens: 60,
            stop: vec!["\nPia:".into()],
            next_use: None,
            cold: false,
        })?;
        while let Some(event) = turn.blocking_next() {
            match event {
                Event::Text(text) => print!("{text}"),
                Event::Done(done) => {
                    println!("\n{done:?}");
                    let reply = ReplyContent::Ids(done.ids.into());
                    conversation.exchanges.push(Exchange { user: conversation.next.clone(), reply });
                }
                Event::Failed(e) => return Err(e),
                Event::Prefill { .. } => {}
            }
        }
        turn.blocking_commit()?;
    }
    Ok(())
}
