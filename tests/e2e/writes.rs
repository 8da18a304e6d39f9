//! The cost of saving: each token is written at most once in f16 and once packed.

use greenroom_engine::{Engine, EngineConfig, KvChoice, ModelSource, PromptEncoder};

#[test]
fn fifty_turns_write_each_token_once_in_each_form() {
    let dir = tempfile::tempdir().unwrap();
    let model = ModelSource::Path(concat!(env!("CARGO_MANIFEST_DIR"), "/models/understudy.gguf").into());
    let cost = PromptEncoder::open(&model).unwrap().kv_cost(&KvChoice::Auto).unwrap();
    let engine = Engine::open(EngineConfig::new(model).cache_dir(dir.path())).unwrap();
    let mut agent =
        engine.agent("r", "ada").system("You are Ada, who keeps the ferry's books.").max_tokens(40);
    let (mut written, mut tokens, mut rewriting) = (0, 0, 0);
    for turn in 0..50 {
        let text = format!(
            "Rolf: On day {turn} the ferry took {} people over, and two sheep. What do you write?",
            7 * turn
        );
        let said = agent.extend(text).unwrap().blocking_finish().unwrap();
        assert_eq!(said.usage.recomputed, 0);
        tokens = (said.usage.reused + said.usage.prefilled + said.ids.len()) as u64;
        written += said.usage.bytes_written;
        rewriting += tokens * cost.global;
    }
    let once = tokens * (cost.open + cost.global);
    eprintln!(
        "50 turns, {tokens} tokens: {written} bytes written, {:.3} of every token once in f16 and once \
         packed; a packed cache written whole at each turn: {rewriting} bytes, {:.1} times as much",
        written as f64 / once as f64,
        rewriting as f64 / written as f64,
    );
    assert!(written as f64 <= 1.05 * once as f64, "{written} bytes for {tokens} tokens");
}
