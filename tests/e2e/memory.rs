//! Many agents at once under a small budget: memory holds what the agents at work need, and the others wait.

use super::limits::Limits;
use super::{Run, Stage};
use greenroom_engine::fixtures::{Dtype, RandomModel};
use greenroom_engine::{KvChoice, ModelSource, PromptEncoder};
use std::path::Path;
use std::time::Duration;

const N_AGENTS: usize = 30;
const BUDGET: u64 = 5_000_000;
/// Bytes that a process may take besides model and budget: activations, the program itself.
const BESIDE: u64 = 400 << 20;
/// Longest reply.
const REPLY: usize = 12;

/// Permanent agents with long system prompts of their own, who all speak twice at once.
fn broadcast(stage: &Stage, sentences: usize) -> String {
    let agent = |i: usize| {
        let story = format!("The mill number {i} stands by the river and turns at night. ").repeat(sentences);
        format!("  a{i}: {{lifecycle: permanent, system_prompt: {story}}}\n")
    };
    let agents: String = (0..N_AGENTS).map(agent).collect();
    // Each tells another one alone: else all would read all.
    let names: Vec<String> = (0..N_AGENTS).map(|i| format!("a{i}")).collect();
    let whisper = |i: usize| format!("a{i}: a{}", (i + 1) % N_AGENTS);
    let whispers: Vec<String> = (0..N_AGENTS).map(whisper).collect();
    let phase = |name: &str| {
        let (agents, whispers) = (names.join(", "), whispers.join(", "));
        format!(
            "- {{name: {name}, agents: [{agents}], order: broadcast, prompt: Talk., to: \
             {{{whispers}}}}}\n"
        )
    };
    let text = format!("id: crowd\nagents:\n{agents}phases:\n{}{}", phase("once"), phase("again"));
    let file = stage.path("crowd.yaml");
    std::fs::write(&file, text).unwrap();
    file.display().to_string()
}

/// Plays it under budgets from none to plenty: the same transcript, and memory within its bound.
fn crowd(model: &Path, sentences: usize, budgets: &[u64]) {
    let stage = Stage::new();
    let file = broadcast(&stage, sentences);
    let source = ModelSource::Path(model.to_owned());
    let cost = PromptEncoder::open(&source).unwrap().kv_cost(&KvChoice::Auto).unwrap();
    let model_bytes = std::fs::metadata(model).unwrap().len();
    let mut first: Option<String> = None;
    for budget in budgets {
        let out = format!("with-{budget}");
        let limits = Limits { memory: 64 << 30, time: Duration::from_secs(3000), ..Limits::default() };
        let mut command = limits.greenroom();
        command.env("HOME", stage.dir.path()).args(["run", &file, "--quiet", "--out"]).arg(stage.path(&out));
        command.args(["--max-tokens", &REPLY.to_string(), "--cache-memory", &budget.to_string(), "--model"]);
        command.arg(model).arg("--cache-dir").arg(stage.path(&format!("cache-{budget}")));
        let ended = limits.wait(&mut command);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let run = Run { dir: stage.path(&out) };
        assert_eq!(*first.get_or_insert(run.transcript()), run.transcript(), "with {budget} bytes");
        let turns = run.turns("trace.jsonl");
        let tokens = |turn: &serde_json::Value| {
            let tokens = turn["tokens"].as_object().unwrap().values();
            tokens.filter_map(serde_json::Value::as_u64).sum::<u64>()
        };
        let longest = turns.iter().map(tokens).max().unwrap() + REPLY as u64;
        // What a turn may come to take; and ids and texts of all, until their lines are written.
        let need = cost.most(longest) + 2 * 256 * cost.open + N_AGENTS as u64 * 24 * longest;
        let found = turns.iter().map(|turn| turn["memory_bytes"].as_u64().unwrap()).max().unwrap();
        let beside = ended.peak.saturating_sub(model_bytes + budget.min(&found));
        eprintln!(
            "{} of up to {longest} tokens, budget {budget}: memories {found} bytes, a turn needs up to \
             {need}; the process {} MiB beside model and budget",
            turns.len(),
            beside >> 20
        );
        assert!(found <= budget.max(&need) + need, "{found} bytes, with {budget} and a need of {need}");
        assert!(beside <= BESIDE, "{} MiB beside model and budget", beside >> 20);
    }
}

fn understudy() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/models/understudy.gguf"))
}

#[test]
fn a_crowd_keeps_within_its_budget() {
    crowd(understudy(), 16, &[BUDGET, u64::MAX >> 1]);
}

#[test]
#[ignore = "minutes: cargo test --release --test e2e -- --ignored crowds --nocapture"]
fn crowds_of_long_memories_keep_within_their_budgets() {
    crowd(understudy(), 90, &[BUDGET, 0, 20_000_000, u64::MAX >> 1]);
}

#[test]
#[ignore = "minutes: cargo test --release --test e2e -- --ignored crowds --nocapture"]
fn crowds_of_a_larger_model_keep_within_their_budgets() {
    let dir = tempfile::tempdir().unwrap();
    let model =
        RandomModel { dtype: Dtype::Q4K, context_length: 4096, ..RandomModel::shape("135m", 1).unwrap() };
    let file = dir.path().join("135m.gguf");
    std::fs::write(&file, model.bytes()).unwrap();
    crowd(&file, 20, &[BUDGET, u64::MAX >> 1]);
}
