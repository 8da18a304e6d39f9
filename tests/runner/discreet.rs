//! What stands on the terminal while a human plays: only what the human's agent has heard, until the run is over.

use crate::play::scenario;
use crate::terminal::Kept;
use greenroom::backend::{Backend, BoxFuture, ModelCard, Progress, Reply, Request, Scripted, Session, Sink};
use greenroom::run::{RunOptions, perform};
use greenroom::scenario::{Strategy as Rule, compile};
use greenroom::stage::End;
use greenroom::terminal::{Dialogue, Page};
use greenroom::transcript::Transcript;
use proptest::prelude::*;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

/// A question to the human: what stood on the terminal by then, and all that the human's agent has read and said.
struct Question {
    path: String,
    shown: String,
    read: String,
}

/// Answers every turn with its path, character by character; where a human is asked, keeps what stands on the terminal.
struct Asking {
    kept: Kept,
    questions: Mutex<Vec<Question>>,
}

/// The reply to a turn: an option, or its path in angle brackets.
fn reply(request: &Request) -> String {
    match &request.choice {
        Some(options) => {
            let at = request.path.len() % options.open.len();
            options.choice.options[options.open[at]].text.clone()
        }
        None => format!("<<{}>>", request.path),
    }
}

impl Backend for Asking {
    fn card(&self) -> ModelCard {
        Scripted::new(|_| None).card()
    }
    fn reply(&self, request: Request, sink: Sink) -> BoxFuture<'_, anyhow::Result<Reply>> {
        Box::pin(async move {
            if request.strategy == Some(Rule::Human) {
                // Others that run at the same time get ahead.
                for _ in 0..500 {
                    tokio::task::yield_now().await;
                }
                let shown = String::from_utf8(self.kept.0.lock().unwrap().clone()).unwrap();
                let mut read = request.conversation.next.clone();
                for past in &request.conversation.exchanges {
                    write!(read, "\n{}\n{}", past.user, past.raw).unwrap();
                }
                self.questions.lock().unwrap().push(Question { path: request.path.clone(), shown, read });
            }
            let text = reply(&request);
            for c in text.chars() {
                sink(Progress::Text(c.to_string()));
                tokio::task::yield_now().await;
            }
            let said = Scripted::new(move |_| Some(text.clone()));
            said.reply(request, Box::new(|_| ())).await
        })
    }
    fn forget(&self, _session: &Session) {}
}

/// Plays a scenario; the questions, the whole page, and what was said at each turn.
fn played(text: &str) -> (Vec<Question>, String, Vec<(String, String)>) {
    let scenario = scenario(text);
    let folder = tempfile::tempdir().unwrap();
    let kept = Kept::default();
    let page = Page::new(Box::new(kept.clone()), None);
    let mut dialogue = Dialogue::on(page, false, scenario.clone(), Arc::new(compile(&scenario)));
    let backend = Arc::new(Asking { kept: kept.clone(), questions: Mutex::default() });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let options = RunOptions::default();
    let playing =
        perform(&scenario, backend.clone(), folder.path(), &options, &mut dialogue, std::future::pending());
    let performed = runtime.block_on(playing).unwrap();
    assert!(matches!(performed.end, End::Complete(_)));
    drop(dialogue);
    let page = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
    let questions = std::mem::take(&mut *backend.questions.lock().unwrap());
    let turns = Transcript::open(&performed.transcript).unwrap().turns.into_iter();
    (questions, page, turns.map(|turn| (turn.record.path, turn.record.spoken)).collect())
}

/// The key of a turn's speaker.
fn speaker(path: &str) -> &str {
    path.rsplit('/').next().unwrap().split('.').next().unwrap()
}

/// The texts in angle brackets.
fn marks(text: &str) -> Vec<&str> {
    text.match_indices("<<").filter_map(|(at, _)| Some(&text[at..at + text[at..].find(">>")? + 2])).collect()
}

#[test]
fn simultaneous_choices_are_shown_once_the_human_has_chosen() {
    let (questions, page, _) = played(
        "agents: {ann: {}, you: {strategy: human}, ben: {}}
phases:
  - {name: game, agents: [ann, ben, you], order: broadcast, rounds: 2, choice: [share, take]}
",
    );
    assert_eq!(questions.len(), 2);
    assert!(
        !questions[0].shown.contains("ann:") && !questions[0].shown.contains("ben:"),
        "{}",
        questions[0].shown
    );
    let second = &questions[1].shown;
    assert_eq!((second.matches("ann:").count(), second.matches("ben:").count()), (1, 1), "{second}");
    assert_eq!((page.matches("ann:").count(), page.matches("you:").count()), (2, 2), "{page}");
    assert!(!page.contains("not heard by"), "{page}");
}

#[test]
fn what_a_human_never_hears_is_shown_after_the_run() {
    let (questions, page, _) = played(
        "agents: {ann: {}, you: {strategy: human}, ben: {}}
phases:
  - {name: council, label: The secret council, agents: [ann, ben]}
  - name: yard
    agents: [ann, you, ben]
    announce: [{before: 'For Ann alone.', to: ann}, {before: 'For all.'}, {after: 'For you.', to: you}]
    turns: [{agent: ann, to: ben}, {agent: ann}, {agent: you}]
  - {name: vote, agents: [ann, you, ben], decision_mode: majority_vote, secret: true, choice: [stay, leave]}
  - {name: end, agents: [you, ann]}
",
    );
    let last = &questions.last().unwrap().shown;
    for hidden in
        ["<<council", "The secret council", "For Ann alone.", "<<yard/1/ann>>", "ann votes", "ben votes"]
    {
        assert!(!last.contains(hidden), "{hidden}: {last}");
        assert!(page.contains(hidden), "{hidden}: {page}");
    }
    for heard in ["<<yard/1/ann.2>>", "<<yard/1/you>>", "For all.", "For you.", "you votes"] {
        assert!(last.contains(heard), "{heard}: {last}");
    }
    let unveiled = page.find("== not heard by you ==").unwrap();
    assert!(
        unveiled > page.find("<<end/1/ann>>").unwrap() && unveiled < page.find("<<council").unwrap(),
        "{page}"
    );
}

fn phase() -> impl Strategy<Value = Drawn> {
    let topology = proptest::sample::select(vec![
        "round_robin",
        "broadcast",
        "whisper",
        "interrupt",
        "moderated",
        "turns",
    ]);
    let cast = proptest::sample::subsequence(vec![0usize, 1, 2, 3], 3..=4).prop_shuffle();
    (topology, cast, 1..3usize, any::<[bool; 4]>(), 0..4usize)
}

type Drawn = (&'static str, Vec<usize>, usize, [bool; 4], usize);

fn written(phases: &[Drawn], humans: &[usize]) -> String {
    let mut text = "id: drawn\nagents:\n".to_string();
    for id in 0..4 {
        let strategy = if humans.contains(&id) { "strategy: human" } else { "" };
        writeln!(text, "  a{id}: {{{strategy}}}").unwrap();
    }
    text += "state: {here: [a0, a1, a3]}\nphases:\n";
    for (at, (topology, cast, rounds, [is_open, votes, unheard, announces], to)) in phases.iter().enumerate()
    {
        let keys: Vec<String> = cast.iter().map(|id| format!("a{id}")).collect();
        let first = &keys[0];
        let agents = if *is_open && *topology == "round_robin" {
            "here".into()
        } else {
            format!("[{}]", keys.join(", "))
        };
        writeln!(text, "  - name: p{at}\n    agents: {agents}\n    rounds: {rounds}").unwrap();
        match *topology {
            "turns" => {
                let to = &keys[1 + to % (keys.len() - 1)];
                let turns =
                    format!("{{agent: {first}, to: {to}}}, {{agent: {}}}, {{agent: {first}}}", keys[1]);
                writeln!(text, "    turns: [{turns}]").unwrap();
            }
            "whisper" => {
                writeln!(text, "    order: whisper\n    interactions:").unwrap();
                for pair in keys.windows(2) {
                    writeln!(text, "      - {{from: {}, to: {}, kind: whisper}}", pair[0], pair[1]).unwrap();
                }
            }
            "moderated" => writeln!(text, "    order: moderated\n    moderator: {first}").unwrap(),
            order => writeln!(text, "    order: {order}").unwrap(),
        }
        if *unheard && *topology != "whisper" {
            writeln!(text, "    hears: none").unwrap();
        }
        if *votes && *topology != "moderated" {
            writeln!(text, "    decision_mode: majority_vote\n    choice: [stay, leave]").unwrap();
        }
        if *announces && agents != "here" {
            let reader = &keys[to % keys.len()];
            writeln!(
                text,
                "    announce: [{{before: '<<to {reader} {at}>>', to: {reader}}}, {{after: '<<all {at}>>'}}]"
            )
            .unwrap();
        }
    }
    text
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn a_human_sees_only_what_its_agent_has_heard(
        phases in proptest::collection::vec(phase(), 1..5),
        humans in proptest::sample::select(vec![vec![1usize], vec![1], vec![0], vec![1, 3]]),
    ) {
        let text = written(&phases, &humans);
        let (questions, page, turns) = played(&text);
        for (at, Question { path, shown, read }) in questions.iter().enumerate() {
            // Several humans share a terminal; what this one hears later is still kept from it.
            let own = || questions[at..].iter().filter(|other| speaker(&other.path) == speaker(path));
            let later = |mark: &str| own().any(|other| other.read.contains(mark));
            for mark in marks(shown).into_iter().filter(|mark| humans.len() == 1 || later(mark)) {
                prop_assert!(read.contains(mark), "{} at {}, which has read {}\nin\n{}\n{}", mark, path, read, shown, text);
            }
            let human = speaker(path);
            for line in shown.lines().filter(|line| line.contains(" votes:") || line.contains("asked to cut in")) {
                prop_assert!(line.starts_with(human), "{} at {}\n{}", line, path, text);
            }
        }
        // In the end all is there, once.
        for (path, spoken) in turns.iter().filter(|(_, spoken)| spoken.starts_with("<<")) {
            prop_assert_eq!(page.matches(spoken.as_str()).count(), 1, "{}: {}\n{}", path, page, text);
        }
    }
}
