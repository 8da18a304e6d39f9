use greenroom_engine::*;
use std::time::Instant;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let kv = match a.get(2).map(|s| s.as_str()) { Some("f16") => KvFormat::F16, Some("q8") => KvFormat::Q8, _ => KvFormat::Q4 };
    let t = Instant::now();
    let mut config = EngineConfig { kv, ..EngineConfig::new(ModelSource::Path(a[1].clone().into())) };
    if let Some(c) = std::env::var("CHUNK").ok() { config.prefill_chunk = c.parse().unwrap(); }
    let engine = Engine::open(config, &mut |_, _| {}).unwrap();
    println!("load {:?}", t.elapsed());
    let turn = |c: &Conversation, n: usize| {
        let mut turn = engine.submit(Request { session: SessionKey { run: "s".into(), agent: "a".into() }, parent: None, retention: Retention::Ephemeral,
            conversation: c.clone(), sampling: Sampling { temperature: 0.0, ..Default::default() }, min_tokens: n, max_tokens: n, stop: vec![], constraint: None, next_use: None, cold: false }).unwrap();
        while let Some(e) = turn.blocking_next() { if let Event::Done(d) = e { 
            println!("reused {} prefilled {} in {:.1} ms = {:.1} tok/s; generated {} at {:.2} tok/s", d.usage.reused, d.usage.prefilled, d.usage.ttft_ms, d.usage.prefilled as f64 / d.usage.ttft_ms * 1e3, d.usage.generated, (d.ids.len() as f64 - 1.0) / (d.usage.total_ms - d.usage.ttft_ms) * 1e3);
            return d; } }
        panic!()
    };
    let n_gen: usize = std::env::var("GEN").ok().and_then(|s| s.parse().ok()).unwrap_or(24);
    let text = |n: usize| "self ".repeat(n);
    let mut c = Conversation { system: None, exchanges: vec![], next: text(std::env::var("FIRST").ok().and_then(|s| s.parse().ok()).unwrap_or(500)) };
    let list: Vec<usize> = std::env::var("TURNS").unwrap_or("240,1500,1500,600,240,10".into()).split(",").filter_map(|s| s.parse().ok()).collect();
    for n in list {
        let d = turn(&c, n_gen);
        c.exchanges.push(Exchange { user: c.next.clone(), reply: ReplyContent::Ids(d.ids.into()) });
        c.next = text(n);
    }
    let _ = turn(&c, n_gen);
}
