//! Every construct of the language, played by scripted agents: who reads what, what is skipped, what it comes
//! to.
//!
//! Each file of `tests/scenarios` is played with fixed replies; the snapshot is the whole play. Each also
//! replays, and every memory's prompts only ever grow.

use crate::extend::only_grows;
use crate::play::play;
use greenroom::backend::{Backend, BoxFuture, ModelCard, Reply, Request, Scripted, Session, Sink};
use greenroom::prompt::by_score;
use greenroom::rehearsal::open;
use greenroom::replay::replay;
use greenroom::run::RunOptions;
use greenroom::stage::End;
use greenroom::transcript::Transcript;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// A scripted backend that records its requests, and whose context is this many characters.
pub(crate) struct Noting {
    script: Scripted,
    context: usize,
    pub(crate) seen: Arc<Mutex<Vec<Request>>>,
}

impl Noting {
    pub(crate) fn new(
        context: usize,
        script: impl Fn(&Request) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        Self { script: Scripted::new(script), context, seen: Arc::default() }
    }
}

impl Backend for Noting {
    fn card(&self) -> ModelCard {
        self.script.card()
    }
    fn reply(&self, request: Request, sink: Sink) -> BoxFuture<'_, anyhow::Result<Reply>> {
        self.seen.lock().unwrap().push(request.clone());
        self.script.reply(request, sink)
    }
    fn forget(&self, session: &Session) {
        self.script.forget(session);
    }
    fn overflows(&self, request: &Request) -> anyhow::Result<bool> {
        Ok(length(request) > self.context)
    }
    fn fills_half(&self, request: &Request) -> anyhow::Result<bool> {
        Ok(length(request) > self.context / 2)
    }
    fn embed(&self, texts: Vec<String>) -> BoxFuture<'_, anyhow::Result<Vec<Vec<f32>>>> {
        self.script.embed(texts)
    }
}

/// Characters of a prompt.
fn length(request: &Request) -> usize {
    let conversation = &request.conversation;
    let read: usize = conversation.exchanges.iter().map(|past| past.user.len() + past.raw.len()).sum();
    read + conversation.next.len()
}

/// The option number of a turn: `wanted` by path, else the first that is open.
fn option(request: &Request, wanted: &[(&str, usize)]) -> Option<String> {
    let options = request.choice.as_ref()?;
    let wanted = wanted.iter().find(|(path, _)| *path == request.path).map(|(_, option)| *option);
    let option =
        wanted.filter(|option| options.open.contains(option)).or(options.open.iter().min().copied())?;
    Some(options.choice.options[option].text.clone())
}

/// Plays a file, replays it, and describes the play: each turn's path, what is read there and what is said.
pub(crate) fn described(
    file: &str,
    context: usize,
    script: impl Fn(&Request) -> Option<String> + Send + Sync + 'static,
) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios").join(file);
    let loaded = open(&path, &[]).unwrap();
    assert!(loaded.report.diagnostics.is_empty(), "{}", loaded.report.render(false));
    let scenario = loaded.scenario.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let backend = Arc::new(Noting::new(context, script));
    let played = play(&scenario, backend.clone(), folder.path(), &RunOptions::default()).unwrap();
    let text = std::fs::read_to_string(&played.transcript).unwrap();
    let transcript = Transcript::parse(&played.transcript, &text).unwrap();
    let replayed = replay(&scenario, &transcript, BTreeMap::new()).unwrap();
    let End::Complete(footer) = played.end else { panic!("stopped") };
    assert_eq!(replayed.footer, *footer);
    only_grows(&backend.seen.lock().unwrap(), &transcript);
    let mut out = String::new();
    for turn in transcript.turns.iter().map(|turn| &turn.record) {
        writeln!(out, "--- {}\n{}", turn.path, turn.delta).unwrap();
        let chosen = turn.constraint.as_ref().map(|choice| format!("  => {}", choice.chosen));
        let read = turn.form.as_ref().map(|form| match &form.invalid {
            Some(reason) => format!("  => invalid: {reason}"),
            None => format!("  => {}", form.value),
        });
        let chosen = chosen.or(read);
        match &turn.call {
            Some(call) if call.failed => writeln!(out, "! {} failed: {}", call.quoted(), call.result),
            Some(call) => writeln!(out, "! {} gave {}", call.quoted(), call.result),
            None => writeln!(out, "> {}{}", turn.spoken, chosen.unwrap_or_default()),
        }
        .unwrap();
        if !turn.hints.is_empty() {
            writeln!(out, "  ({})", turn.hints.words()).unwrap();
        }
    }
    for route in transcript.routes() {
        let scores: Vec<_> =
            by_score(&route.scores).iter().map(|(key, score)| format!("{key} {score}")).collect();
        let (met, chosen) = (format!("{:?}", route.met).to_lowercase(), route.chosen.join(", "));
        writeln!(out, "~~~ {}: {met} [{chosen}] of {}", route.path, scores.join(", ")).unwrap();
    }
    let mut footer = serde_json::to_value(&*footer).unwrap();
    footer.sort_all_objects();
    footer.as_object_mut().unwrap().retain(|_, value| !value.as_array().is_some_and(Vec::is_empty));
    writeln!(out, "=== {footer}").unwrap();
    out
}

/// A file of `tests/scenarios`, options by path, and nothing special said.
pub(crate) fn simple(file: &str, wanted: &'static [(&'static str, usize)]) -> String {
    described(file, usize::MAX, move |request| {
        option(request, wanted).or_else(|| Some(format!("words of {}", request.path.replace('/', " "))))
    })
}

#[test]
fn whispers_reach_the_pair_and_who_observes() {
    insta::assert_snapshot!(simple("whisper.yaml", &[]));
}

#[test]
fn replies_have_a_form_and_a_value() {
    insta::assert_snapshot!(described("replies.yaml", usize::MAX, |request| {
        let said = match request.path.as_str() {
            "market/1/ann" => "{\"price\": 12, \"goods\": [\"figs\"]}",
            "market/2/ann" => {
                "{\"price\": 9, \"goods\": [\"figs\", \"dates\"], \"note\": \"Ann: <think>hm</think>\"}"
            }
            "market/1/ben" => " { \"price\": 7,\n\"goods\": [] } ",
            "market/2/ben" => "{\"price\": 8, \"goods\": [\"fi",
            "deal/1/ann" => "two days",
            "deal/1/ben" => "Ben pays.",
            "deal/1/ann.2" => "Fine.",
            _ => return option(request, &[]),
        };
        Some(said.to_string())
    }));
}

#[test]
fn orders_and_pairs_are_drawn() {
    insta::assert_snapshot!(simple("mingling.yaml", &[]));
}

#[test]
fn blocks_are_played_for_each_item() {
    insta::assert_snapshot!(simple("items.yaml", &[]));
}

#[test]
fn couples_play_games_of_their_own() {
    let wanted = &[("game.ann-ben/1/ben", 1), ("game.ann-cas/2/ann", 1), ("game.ann-cas/2/cas", 1)];
    insta::assert_snapshot!(simple("couples.yaml", wanted));
}

#[test]
fn several_are_picked_and_calls_are_made() {
    insta::assert_snapshot!(described("sets.yaml", usize::MAX, |request| {
        let call =
            |what: &str| Some(format!(r#"{{"tool": "sums", "arguments": {{"expression": "{what}"}}}}"#));
        match (request.path.as_str(), &request.must_call) {
            ("price/1/ann", Some(_)) => call("3 * 4"),
            // Not a call: it fails, and the reply follows.
            ("price/1/ben", Some(_)) => Some("I don't reckon.".into()),
            (_, Some(_)) => call("1 / 0"),
            (path, None) if path.starts_with("price") => Some(r#"{"price": 12}"#.into()),
            _ => {
                option(request, &[("basket/1/ben", 2)]).or_else(|| Some(format!("words of {}", request.path)))
            }
        }
    }));
}

#[test]
fn interactions_bound_who_hears() {
    insta::assert_snapshot!(simple("observe.yaml", &[]));
}

#[test]
fn the_first_who_wants_to_cuts_in_once_a_round() {
    let wanted = &[
        ("quarrel/1/cas.on-ann", 1),
        ("quarrel/1/ann.on-ben", 1),
        ("quarrel/2/ann.on-cas", 1),
        ("quarrel/2/ben.on-cas", 1),
    ];
    insta::assert_snapshot!(simple("interrupt.yaml", wanted));
}

#[test]
fn the_moderator_gives_the_floor() {
    let wanted = &[("panel/1/mod", 1), ("panel/2/mod", 2), ("panel/3/mod", 1), ("panel/4/mod", 0)];
    insta::assert_snapshot!(simple("moderated.yaml", wanted));
}

#[test]
fn a_majority_decides_what_is_played() {
    let wanted = &[
        ("council/1/ann.vote", 1),
        ("council/1/cas.vote", 1),
        ("rating/1/ann.vote", 3),
        ("rating/1/cas.vote", 3),
    ];
    insta::assert_snapshot!(simple("majority.yaml", wanted));
}

#[test]
fn a_ranking_is_run_off() {
    // soup 2, bread 2, fish 1; the fish lover's second choice is bread.
    let wanted = &[
        ("supper/1/ann.vote-2", 2),
        ("supper/1/cas.vote-1", 1),
        ("supper/1/dan.vote-1", 1),
        ("supper/1/eve.vote-1", 2),
        ("supper/1/eve.vote-2", 1),
    ];
    insta::assert_snapshot!(simple("ranked.yaml", wanted));
}

#[test]
fn a_coordinator_decides_alone() {
    insta::assert_snapshot!(simple("coordinator.yaml", &[("briefing/1/chief.vote", 1)]));
}

#[test]
fn a_consensus_is_sought_until_it_is_found() {
    let wanted =
        &[("jury/1/cas.vote", 1), ("jury/2/ann.vote", 1), ("jury/2/ben.vote", 1), ("jury/2/cas.vote", 1)];
    insta::assert_snapshot!(simple("consensus.yaml", wanted));
}

#[test]
fn a_consensus_that_is_not_found_decides_nothing() {
    let wanted = &[("jury/1/cas.vote", 1), ("jury/2/ann.vote", 1), ("jury/3/ben.vote", 1)];
    let described = simple("consensus.yaml", wanted);
    assert!(described.contains("jury/3/cas.vote") && !described.contains("sentence"), "{described}");
    assert!(described.contains("\"decisions\":{\"jury\":null}"), "{described}");
}

#[test]
fn a_loop_ends_when_its_condition_holds() {
    insta::assert_snapshot!(simple(
        "loops.yaml",
        &[("haggle/1/ben", 1), ("haggle/2/ann", 1), ("haggle/2/ben", 0)]
    ));
}

#[test]
fn rounds_know_themselves() {
    let wanted = &[("pot/1/ann", 2), ("pot/1/ben", 1), ("pot/2/ann", 2), ("pot/3/ben", 2)];
    insta::assert_snapshot!(simple("rounds.yaml", wanted));
}

#[test]
fn unclear_replies_are_invalid() {
    let described = described("parse.yaml", usize::MAX, |request| {
        Some(match request.path.as_str() {
            "answer/1/ann" => "I talk, or I stay silent".into(),
            "answer/2/ann" => "Well. I TALK!".into(),
            _ => "<think>talk?</think>I stay silent.".into(),
        })
    });
    insta::assert_snapshot!(described);
}

#[test]
fn models_and_settings_stand_everywhere() {
    insta::assert_snapshot!(simple("models.yaml", &[]));
}

#[test]
fn strategies_know_what_they_heard() {
    insta::assert_snapshot!(simple("strategies.yaml", &[("game/2/model", 1), ("with_grim/3/model", 1)]));
}

#[test]
fn casts_are_included() {
    insta::assert_snapshot!(simple("include.yaml", &[]));
}

#[test]
fn a_full_memory_begins_a_new_epoch() {
    insta::assert_snapshot!(described("overflow.yaml", 400, |request| {
        let summary = request.path.ends_with(".summary");
        Some(if summary { "It rained.".into() } else { format!("words of {}", request.path) })
    }));
}

#[test]
fn a_full_memory_keeps_what_is_recent() {
    insta::assert_snapshot!(described("window.yaml", 420, |request| Some(format!(
        "words of {}",
        request.path
    ))));
}

#[test]
fn a_full_memory_keeps_what_is_near() {
    insta::assert_snapshot!(described("retrieve.yaml", 420, |request| Some(format!(
        "words of {}",
        request.path
    ))));
}

#[test]
fn who_has_read_what_is_near_is_picked() {
    insta::assert_snapshot!(simple("route.yaml", &[]));
}

#[test]
fn formats_open_their_phases() {
    insta::assert_snapshot!(simple("debate.yaml", &[]));
}

#[test]
fn the_state_changes() {
    let wanted = &[("pot/1/ann", 1), ("pot/2/ann", 1), ("pot/2/ben", 1), ("again/1/ben", 1)];
    insta::assert_snapshot!(simple("state.yaml", wanted));
}

#[test]
fn blocks_go_round() {
    let wanted = &[
        ("night.1/1/ann", 1),
        ("hour.1.2/1/ann", 1),
        ("night.2/1/ben", 1),
        ("hour.2.1/1/ann", 1),
        ("vote.2/1/ann.vote", 1),
        ("vote.2/1/ben.vote", 1),
    ];
    insta::assert_snapshot!(simple("blocks.yaml", wanted));
}

#[test]
fn the_living_speak_hear_and_vote() {
    let wanted =
        &[("night.1/1/cas", 1), ("trial.1/1/ann.vote", 3), ("trial.1/1/cas.vote", 3), ("floor/1/mod", 2)];
    insta::assert_snapshot!(simple("living.yaml", wanted));
}

#[test]
fn judges_read_what_was_said_and_decide() {
    insta::assert_snapshot!(described("judges.yaml", usize::MAX, |request| {
        match request.path.as_str() {
            "judge/1/mia" => Some("{\"fair\": 7}".into()),
            path => {
                let wanted = [("move.1/1/ann", 1), ("promise/1/promise", 1)];
                option(request, &wanted).or_else(|| Some(format!("words of {}", path.replace('/', " "))))
            }
        }
    }));
}
