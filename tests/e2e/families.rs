//! Every family plays the prisoner's dilemma with its own chat template, on random weights.

use super::Stage;
use greenroom_engine::fixtures::RandomModel;

/// Families with their real templates, and the control tokens that these print.
const FAMILIES: [(&str, &str, &str); 8] = [
    ("llama", "meta-llama-Llama-3.1-8B-Instruct", "<|start_header_id|> <|end_header_id|> <|eot_id|>"),
    ("qwen2", "Qwen-Qwen2.5-7B-Instruct", ""),
    ("qwen3", "Qwen-Qwen3-0.6B", "<think> </think>"),
    ("gemma3", "google-gemma-2-2b-it", "<start_of_turn> <end_of_turn>"),
    ("deepseek2", "deepseek-ai-DeepSeek-V3.1", "<｜User｜> <｜Assistant｜> <｜end▁of▁sentence｜> </think>"),
    ("gpt-oss", "openai-gpt-oss-120b", "<|start|> <|end|> <|message|> <|channel|> <|return|>"),
    ("qwen35", "Qwen-Qwen3.5-4B", "<think> </think>"),
    ("granitehybrid", "ibm-granite-granite-4.0", "<|start_of_role|> <|end_of_role|> <|end_of_text|>"),
];

#[test]
fn every_family_extends_at_every_permanent_turn() {
    for (family, template, control) in crate::some(FAMILIES, 3) {
        let stage = Stage::new();
        let template = std::fs::read_to_string(format!("tests/fixtures/templates/{template}.jinja")).unwrap();
        let tiny = RandomModel::tiny_of(family, 3);
        let model = RandomModel {
            n_layers: match &tiny.recurrence {
                Some(_) => tiny.n_layers,
                None if family == "gemma3" => 6,
                None => 2,
            },
            context_length: 32_768,
            template: Some(template),
            control: control.split_whitespace().map(str::to_owned).collect(),
            ..tiny
        };
        let path = stage.path("model.gguf");
        std::fs::write(&path, model.bytes()).unwrap();
        let path = path.display().to_string();
        let run = stage.play("prisoners-dilemma", "run", &["--model", &path]);
        let summary = run.summary();
        let mut permanent = 0;
        for (agent, figures) in summary["agents"].as_object().unwrap() {
            if figures["lifecycle"] == "permanent" {
                permanent += 1;
                let turns = figures["turns"].as_u64().unwrap();
                assert_eq!(figures["match"]["extend"], turns - 1, "{family}, {agent}: {figures}");
                assert_eq!(figures["tokens"]["recomputed"], 0, "{family}, {agent}: {figures}");
            }
        }
        assert!(permanent > 0 && run.turns("trace.jsonl").len() == 27, "{family}: {summary}");
        // From disk at every turn, windows included: the same file.
        let restored =
            stage.play("prisoners-dilemma", "restored", &["--model", &path, "--cache-memory", "0"]);
        assert_eq!(restored.transcript(), run.transcript(), "{family}");
        // What is stored is whole, in two parts and with layers left out of each.
        let cache = stage.path("cache").display().to_string();
        for kv in ["q4", "f16"] {
            stage.play("prisoners-dilemma", kv, &["--model", &path, "--kv", kv]);
            stage.greenroom(&["cache", "verify", "--cache-dir", &cache]).assert().success();
        }
        let replayed = stage.greenroom(&["replay", &run.dir.display().to_string()]).output().unwrap();
        assert!(replayed.status.success(), "{family}: {}", String::from_utf8_lossy(&replayed.stderr));
    }
}

/// A family that is not served is refused by name, and the file is named once.
#[test]
fn a_refusal_names_the_file_once() {
    let stage = Stage::new();
    let path = stage.path("model.gguf");
    let model = RandomModel { architecture: "kimi-linear".to_owned(), ..RandomModel::tiny(1) };
    std::fs::write(&path, model.bytes()).unwrap();
    let path = path.display().to_string();
    for args in [&["run", "scenarios/gossip.yaml", "--model", &path][..], &["models", &path]] {
        let output = stage.greenroom(args).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(printed.contains("unknown family `kimi-linear`"), "{args:?}: {printed}");
        assert_eq!(printed.matches("model.gguf").count(), 1, "{args:?}: {printed}");
    }
}
