//! Models and settings of replies by scenario, agent, phase and turn: who is asked with what, what is
//! recorded, what is drift.

use crate::play::play;
use greenroom::backend::{Backend, BoxFuture, ModelCard, Reply, Request, Scripted, Session, Sink};
use greenroom::rehearsal::load;
use greenroom::replay::{carry, replay};
use greenroom::run::{ForkFrom, RunOptions};
use greenroom::scenario::{Given, Hints, Reasoning, Scenario};
use greenroom::transcript::{Cause, Drift, Transcript};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

const TEXT: &str = "
id: two
models: { big: a.gguf, small: b.gguf }
sampling: { temperature: 0.9 }
agents:
  ann: { model: big, sampling: { temperature: 0.2, top_k: 7 } }
  ben: {}
  cas: { lifecycle: ephemeral, model: big }
phases:
  - { name: one, agents: [ann, ben, cas], sampling: { top_p: 0.5, max_tokens: 33 } }
  - name: two
    agents: [ann, ben, cas]
    turns:
      - { agent: ann, sampling: { temperature: 0 }, answer: [left, right] }
      - { agent: ben }
      - { agent: cas, model: small }
";

/// What was asked: the file that answered, and the request.
type Asked = Arc<Mutex<Vec<(String, Request)>>>;

/// Several scripted models in one process, by file.
struct Files {
    file: String,
    suggested: f32,
    asked: Asked,
}

impl Files {
    fn new(asked: &Asked) -> Arc<Self> {
        Arc::new(Self { file: "own.gguf".into(), suggested: 0.7, asked: asked.clone() })
    }
}

impl Backend for Files {
    fn card(&self) -> ModelCard {
        let mut card = Scripted::new(|_| None).card();
        card.model.name.clone_from(&self.file);
        card.model.identity.clone_from(&self.file);
        card
    }
    fn named(&self, _name: &str, model: &str) -> anyhow::Result<Option<Arc<dyn Backend>>> {
        anyhow::ensure!(model != "gone.gguf", "there is no model file {model}");
        let asked = self.asked.clone();
        Ok(Some(Arc::new(Self { file: model.to_string(), suggested: 0.4, asked })))
    }
    fn suggested_sampling(&self) -> Hints {
        Hints { min_p: Some(self.suggested), ..Hints::default() }
    }
    fn reply(&self, request: Request, _sink: Sink) -> BoxFuture<'_, anyhow::Result<Reply>> {
        self.asked.lock().unwrap().push((self.file.clone(), request.clone()));
        let words = match &request.choice {
            Some(_) => "left".to_string(),
            None => format!("words of {}", self.file),
        };
        Box::pin(async move { Ok(Reply::of(vec![1], words, greenroom::backend::StopReason::EndOfTurn)) })
    }
    fn forget(&self, _session: &Session) {}
}

fn scenario(text: &str) -> Arc<Scenario> {
    let loaded = load("two.yaml", text, &[]);
    assert!(loaded.report.diagnostics.is_empty(), "{}", loaded.report.render(false));
    loaded.scenario.unwrap()
}

/// Plays; returns what was asked, and the transcript.
fn played(text: &str, folder: &Path, options: &RunOptions) -> (Vec<(String, Request)>, Transcript) {
    let asked = Asked::default();
    let run = play(&scenario(text), Files::new(&asked), folder, options).unwrap();
    let asked = std::mem::take(&mut *asked.lock().unwrap());
    (asked, Transcript::open(&run.transcript).unwrap())
}

/// A line for each turn: who answered, with which settings.
fn settings(asked: &[(String, Request)]) -> Vec<String> {
    let line = |(file, request): &(String, Request)| {
        let s = &request.sampling;
        let (t, p, k, m) = (s.temperature, s.top_p, s.top_k, s.min_p);
        format!("{} {file} T{t} p{p} k{k} m{m} n{}", request.path, request.max_tokens)
    };
    let mut lines: Vec<String> = asked.iter().map(line).collect();
    lines.sort();
    lines
}

#[test]
fn the_closest_setting_counts() {
    let folder = tempfile::tempdir().unwrap();
    let (asked, transcript) = played(TEXT, folder.path(), &RunOptions::default());
    assert_eq!(
        settings(&asked),
        [
            "one/1/ann a.gguf T0.2 p0.5 k7 m0.4 n33",
            "one/1/ben own.gguf T0.9 p0.5 k0 m0.7 n33",
            "one/1/cas a.gguf T0.9 p0.5 k0 m0.4 n33",
            "two/1/ann a.gguf T0 p0.95 k7 m0.4 n80",
            "two/1/ben own.gguf T0.9 p0.95 k0 m0.7 n80",
            "two/1/cas b.gguf T0.9 p0.95 k0 m0.4 n80",
        ]
    );
    let header = &transcript.header.record;
    assert_eq!(header.sampling.temperature, 0.9);
    let models: Vec<_> =
        header.models.iter().map(|(name, of)| (name.as_str(), of.model.name.as_str())).collect();
    assert_eq!(models, [("big", "a.gguf"), ("small", "b.gguf")]);
    assert_eq!(header.agents["ann"].model.as_deref(), Some("big"));
    let words: Vec<String> = transcript.turns.iter().map(|turn| turn.record.hints.words()).collect();
    assert_eq!(words[0], "model big, temperature 0.2, top-p 0.5, top-k 7, at most 33 tokens");
    assert_eq!(words[4], "");
    let played_by = |at: usize| header.model_of(&transcript.turns[at].record).name.as_str();
    assert_eq!([played_by(3), played_by(4), played_by(5)], ["a.gguf", "own.gguf", "b.gguf"]);
    assert_eq!(header.sampling_of(&transcript.turns[3].record, 3).temperature, 0.0);
    replay(&scenario(TEXT), &transcript, BTreeMap::new()).unwrap();
}

/// Amount of reasoning before each reply, and before those that the same prompt continues from.
#[test]
fn reasoning_is_a_setting_like_the_others_and_stays_in_what_was_read() {
    let text = "
id: two
sampling: { reasoning: low }
agents: { ann: { sampling: { reasoning: high } }, ben: {} }
phases:
  - { name: one, agents: [ann, ben], prompt: Go. }
  - name: two
    agents: [ann, ben]
    sampling: { reasoning: medium }
    turns:
      - { agent: ann, answer: [left, right] }
      - { agent: ben }
      - { agent: ann, sampling: { reasoning: none }, answer: { schema: { type: integer } } }
      - { agent: ben, sampling: { reasoning: none } }
  - { name: three, agents: [ann, ben] }
";
    let folder = tempfile::tempdir().unwrap();
    let (asked, transcript) = played(text, folder.path(), &RunOptions::default());
    let levels = |request: &Request| {
        let past = request.conversation.exchanges.iter().map(|past| past.reasoning);
        let all: Vec<&str> = past.chain([request.conversation.reasoning]).map(Reasoning::word).collect();
        format!("{}: {}", request.path, all.join(" "))
    };
    let mut settled: Vec<String> = asked.iter().map(|(_, request)| levels(request)).collect();
    settled.sort();
    // A choice, and a reply that has a form, begin with their first token.
    assert_eq!(
        settled,
        [
            "one/1/ann: high",
            "one/1/ben: low",
            "three/1/ann: high none none high",
            "three/1/ben: low medium none low",
            "two/1/ann.2: high none none",
            "two/1/ann: high none",
            "two/1/ben.2: low medium none",
            "two/1/ben: low medium",
        ]
    );
    assert_eq!(transcript.turns[0].record.hints.words(), "reasoning high");
    let changed = text.replace("{ reasoning: medium }", "{ reasoning: high }");
    let error = replay(&scenario(&changed), &transcript, BTreeMap::new()).unwrap_err();
    let drift = error.downcast_ref::<Drift>().unwrap_or_else(|| panic!("{error:#}"));
    assert_eq!((&*drift.recorded, &*drift.now), ("reasoning medium", "reasoning high"));
}

#[test]
fn the_command_line_counts_before_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let options = RunOptions {
        sampling: Hints { temperature: Some(0.3), ..Hints::default() },
        given: Given::from(["temperature".to_string(), "max_tokens".to_string()]),
        max_tokens: 5,
        models: [("", "x.gguf"), ("big", "c.gguf")].map(|(name, of)| (name.into(), of.into())).into(),
        ..RunOptions::default()
    };
    let (asked, transcript) = played(TEXT, folder.path(), &options);
    let settled = settings(&asked);
    assert_eq!(settled[0], "one/1/ann c.gguf T0.3 p0.5 k7 m0.4 n5");
    assert_eq!(settled[1], "one/1/ben x.gguf T0.3 p0.5 k0 m0.4 n5");
    assert_eq!(settled[5], "two/1/cas b.gguf T0.3 p0.95 k0 m0.4 n5");
    assert_eq!(transcript.turns[0].record.hints.words(), "model big, top-p 0.5, top-k 7");
    // What the command line gave stays out of a replay: the file may say what it likes of it.
    replay(&scenario(TEXT), &transcript, BTreeMap::new()).unwrap();
    replay(&scenario(&TEXT.replace("temperature: 0.2,", "temperature: 0.6,")), &transcript, BTreeMap::new())
        .unwrap();
    // A run is resumed with the settings that it began with, the given ones among them.
    let resume = RunOptions { resume: true, ..RunOptions::default() };
    let error = play(&scenario(TEXT), Files::new(&Asked::default()), folder.path(), &resume).unwrap_err();
    assert!(error.to_string().contains("complete"), "{error}");
}

#[test]
fn a_changed_setting_is_drift_at_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let (_, transcript) = played(TEXT, folder.path(), &RunOptions::default());
    let drift = |from: &str, to: &str| {
        let changed = TEXT.replace(from, to);
        assert_ne!(changed, TEXT);
        let error = replay(&scenario(&changed), &transcript, BTreeMap::new()).unwrap_err();
        let drift = error.downcast_ref::<Drift>().unwrap_or_else(|| panic!("{error:#}")).clone();
        (drift.path.to_string(), drift.line, drift.cause, drift.now.to_string())
    };
    let own = drift("temperature: 0.2,", "temperature: 0.25,");
    assert_eq!((own.0.as_str(), own.1, own.2), ("one/1/ann", Some(2), Cause::Settings));
    assert!(own.3.contains("temperature 0.25"), "{}", own.3);
    let turn = drift("{ temperature: 0 }", "{ temperature: 1 }");
    assert_eq!((turn.0.as_str(), turn.1, turn.2), ("two/1/ann", Some(5), Cause::Settings));
    let all = drift("temperature: 0.9", "temperature: 0.8");
    assert_eq!((all.0.as_str(), all.1, all.2), ("header", Some(1), Cause::Settings));
    let agent =
        drift("cas: { lifecycle: ephemeral, model: big }", "cas: { lifecycle: ephemeral, model: small }");
    assert_eq!((agent.0.as_str(), agent.2), ("agents/cas", Cause::AgentChanged));
    // Another file of the same name is no drift without a model: nothing that was read or said depends on the
    // path.
    replay(&scenario(&TEXT.replace("a.gguf", "moved.gguf")), &transcript, BTreeMap::new()).unwrap();
    // Carried over, the recording has today's settings.
    let changed = scenario(&TEXT.replace("temperature: 0.9", "temperature: 0.8"));
    let text = carry(&changed, &transcript, BTreeMap::new()).unwrap();
    let carried = Transcript::parse(Path::new("carried"), &text).unwrap();
    assert_eq!(carried.header.record.sampling.temperature, 0.8);
    replay(&changed, &carried, BTreeMap::new()).unwrap();
}

#[test]
fn runs_go_on_and_fork_with_all_their_models() {
    let folder = tempfile::tempdir().unwrap();
    let first = folder.path().join("first");
    let (_, transcript) = played(TEXT, &first, &RunOptions::default());
    let whole = std::fs::read_to_string(first.join("transcript.jsonl")).unwrap();
    // Resumed after its second turn: the same file.
    let cut = folder.path().join("cut");
    std::fs::create_dir(&cut).unwrap();
    let kept: String = whole.split_inclusive('\n').take(3).collect();
    std::fs::write(cut.join("transcript.jsonl"), kept).unwrap();
    let resume = RunOptions { resume: true, ..RunOptions::default() };
    let (asked, _) = played(TEXT, &cut, &resume);
    assert_eq!(asked.len(), 4);
    assert_eq!(std::fs::read_to_string(cut.join("transcript.jsonl")).unwrap(), whole);
    // With another model under a name, it does not go on.
    std::fs::write(cut.join("transcript.jsonl"), whole.split_inclusive('\n').take(3).collect::<String>())
        .unwrap();
    let other = RunOptions { models: [("big".into(), "c.gguf".into())].into(), ..resume };
    let error = play(&scenario(TEXT), Files::new(&Asked::default()), &cut, &other).unwrap_err();
    assert!(error.to_string().contains("`models` differs from what the run began with"), "{error:#}");
    // A fork asks the same models with the same settings.
    let header = &transcript.header.record;
    let named = header.models.iter().map(|(name, of)| (name.clone(), of.sampling.clone()));
    let fork = RunOptions {
        fork: Some(ForkFrom { run: first.clone(), at: Some("two".into()), changes: Default::default() }),
        given: header.given.clone().unwrap(),
        recorded: named.chain([(String::new(), header.sampling.clone())]).collect(),
        ..RunOptions::default()
    };
    std::fs::write(folder.path().join("two.yaml"), TEXT).unwrap();
    let (asked, forked) = played(TEXT, &folder.path().join("forked"), &fork);
    let files: Vec<&str> = asked.iter().map(|(file, _)| file.as_str()).collect();
    assert_eq!(files, ["a.gguf", "own.gguf", "b.gguf"]);
    assert_eq!(forked.turns[3].record, transcript.turns[3].record);
    assert_eq!(forked.header.record.models, header.models);
}

#[test]
fn a_missing_model_is_reported_by_name() {
    let text = TEXT.replace("b.gguf", "gone.gguf");
    let folder = tempfile::tempdir().unwrap();
    let error = play(&scenario(&text), Files::new(&Asked::default()), folder.path(), &RunOptions::default());
    assert!(error.unwrap_err().to_string().contains("gone.gguf"));
    assert!(!folder.path().join("transcript.jsonl").exists());
}

#[test]
fn a_scenario_without_settings_is_recorded_as_ever() {
    let text = "id: plain\nagents: { ann: {}, ben: {} }\nphases: [{ name: talk, agents: [ann, ben] }]\n";
    let folder = tempfile::tempdir().unwrap();
    let options = RunOptions { given: Given::from(["temperature".to_string()]), ..RunOptions::default() };
    let (_, transcript) = played(text, folder.path(), &options);
    let header = serde_json::to_value(&transcript.header.record).unwrap();
    for new in ["hints", "given", "models"] {
        assert!(header.get(new).is_none(), "{new}");
    }
    assert!(serde_json::to_value(&transcript.turns[0].record).unwrap().get("hints").is_none());
}
