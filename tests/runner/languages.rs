//! What the stage says in other tongues: whole plays as snapshots, negations, stop strings, the plan's hash.

use crate::constructs::{Noting, simple};
use crate::play::play;
use greenroom::rehearsal::load;
use greenroom::run::RunOptions;
use std::sync::Arc;

const TALK: &str = "
agents: { ann: { display_name: Ann }, ben: { display_name: Ben } }
phases: [{ name: talk, agents: [ann, ben], answer: { one_of: [gehen, bleiben], free_text: true } }]
outcome: { chosen: talk.choices.ann }
";

/// The outcome, and the requests, where everybody answers with `reply`.
fn said(language: &str, options: &str, reply: &'static str) -> (serde_json::Value, Vec<String>) {
    let text = format!("language: {language}\n{}", TALK.replace("[gehen, bleiben]", options));
    let scenario = load("x.yaml", &text, &[]).scenario.unwrap();
    let backend = Arc::new(Noting::new(usize::MAX, move |_| Some(reply.to_string())));
    let folder = tempfile::tempdir().unwrap();
    let played = play(&scenario, backend.clone(), folder.path(), &RunOptions::default()).unwrap();
    let transcript = std::fs::read_to_string(&played.transcript).unwrap();
    let footer: serde_json::Value = serde_json::from_str(transcript.lines().last().unwrap()).unwrap();
    let seen = backend.seen.lock().unwrap();
    (footer["outcomes"][0]["value"].clone(), seen[0].stops.all())
}

#[test]
fn whole_plays_are_in_one_tongue() {
    for file in ["german.yaml", "french.yaml", "spanish.yaml"] {
        let played = simple(file, &[]);
        for english in ["Your turn", "Your vote", "You are", "The vote", "whispers", "Reply with", "This is"]
        {
            assert!(!played.contains(english), "{file}: {english}\n{played}");
        }
        insta::assert_snapshot!(file, played);
    }
}

#[test]
fn negations_are_those_of_the_language() {
    let null = serde_json::Value::Null;
    for (language, options, reply, chosen) in [
        ("de", "[gehen, bleiben]", "Ich will gehen.", "gehen".into()),
        ("de", "[gehen, bleiben]", "Ich will nicht gehen.", null.clone()),
        ("en", "[gehen, bleiben]", "Ich will nicht gehen.", null.clone()),
        ("en", "[gehen, bleiben]", "Sin: gehen.", "gehen".into()),
        ("es", "[gehen, bleiben]", "Sin: gehen.", null.clone()),
        ("fr", "[accepter, attendre]", "Je vais l'accepter.", "accepter".into()),
        ("fr", "[accepter, attendre]", "Je n’irai pas accepter.", null.clone()),
        ("fr", "[accepte, attendre]", "J’accepte.", "accepte".into()),
        ("es", "[ir, esperar]", "Nunca quiero ir.", null.clone()),
        ("es", "[ir, esperar]", "¡Quiero ir!", "ir".into()),
        ("{ negations: nope }", "[gehen, bleiben]", "Nope, gehen", null),
    ] {
        assert_eq!(said(language, options, reply).0, chosen, "{language}: {reply}");
    }
}

#[test]
fn a_reply_ends_where_the_cue_of_its_language_would_come() {
    let (_, stops) = said("de", "[gehen, bleiben]", "gehen");
    for stop in ["[Du bist dran", "\nDu bist dran,", "\nErzähler:", "\n["] {
        assert!(stops.iter().any(|known| known == stop), "{stop:?} in {stops:?}");
    }
    let (_, stops) = said("{ cue: '{name}, please.' }", "[gehen, bleiben]", "gehen");
    assert!(!stops.iter().any(|stop| stop == "[" || stop == "\n" || stop.is_empty()), "{stops:?}");
}

#[test]
fn a_plan_knows_its_language_unless_it_is_english() {
    let hash = |language: &str| {
        let text = format!("{language}{TALK}");
        let scenario = load("x.yaml", &text, &[]).scenario.unwrap();
        scenario.plan().hash()
    };
    assert_eq!(hash(""), hash("language: en\n"));
    assert_eq!(hash(""), hash("language: { base: en }\n"));
    assert_ne!(hash(""), hash("language: { you: Thou }\n"));
    assert_ne!(hash("language: de\n"), hash("language: { base: de, you: Ich }\n"));
}
