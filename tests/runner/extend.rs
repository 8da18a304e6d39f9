//! EXTEND, over random scenarios: every prompt begins with the one before it and the reply, and nobody hears
//! what was said where they were not.

use crate::play::{play, scenario};
use greenroom::backend::{Request, Scripted};
use greenroom::run::RunOptions;
use proptest::prelude::*;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

#[derive(Clone, Debug)]
struct Phase {
    cast: Vec<usize>,
    topology: &'static str,
    rounds: usize,
    max_turns: Option<usize>,
    quotes: bool,
    private: bool,
    format: Option<&'static str>,
}

const AGENTS: usize = 4;

fn phase() -> impl Strategy<Value = Phase> {
    (
        proptest::sample::subsequence((0..AGENTS).collect::<Vec<_>>(), 1..=AGENTS).prop_shuffle(),
        proptest::sample::select(vec!["round_robin", "turn_by_turn", "broadcast"]),
        1..4usize,
        proptest::option::of(1..6usize),
        any::<bool>(),
        any::<bool>(),
        proptest::option::of(proptest::sample::select(vec!["free", "pro_con", "socratic"])),
    )
        .prop_map(|(cast, topology, rounds, max_turns, quotes, private, format)| Phase {
            cast,
            topology,
            rounds,
            max_turns,
            quotes,
            private,
            format,
        })
}

fn yaml(phases: &[Phase], ephemeral: &[bool]) -> String {
    let mut out = String::from("id: random\nagents:\n");
    for (id, ephemeral) in ephemeral.iter().enumerate() {
        let lifecycle = if *ephemeral { "ephemeral" } else { "permanent" };
        writeln!(out, "  a{id}: {{display_name: Agent {id}, lifecycle: {lifecycle}}}").unwrap();
    }
    out.push_str("phases:\n");
    for (at, phase) in phases.iter().enumerate() {
        let cast: Vec<String> = phase.cast.iter().map(|id| format!("a{id}")).collect();
        writeln!(out, "  - name: p{at}\n    agents: [{}]", cast.join(", ")).unwrap();
        writeln!(out, "    topology: {}\n    auto_rounds: {}", phase.topology, phase.rounds).unwrap();
        writeln!(out, "    initial_prompt: Phase {at} opens.").unwrap();
        if let Some(max) = phase.max_turns {
            writeln!(out, "    max_turns: {max}").unwrap();
        }
        if let Some(format) = phase.format {
            writeln!(out, "    debate_format: {format}").unwrap();
        }
        if phase.private {
            // Quoting is a way of telling, so only those who were there are quoted to.
            let there = at > 0 && phases[at - 1].cast.contains(&phase.cast[0]) && phase.quotes;
            let quote = if there { format!("${{p{}.messages[{}]}}", at - 1, cast[0]) } else { "hush".into() };
            writeln!(out, "    per_agent_prompt_templates: {{{}: 'Only you: {quote}'}}", cast[0]).unwrap();
        }
    }
    out
}

const REPLIES: [&str; 5] = [
    "plain words",
    "",
    "{{ x }} ${p0.messages[a0]} {% raw %}",
    "Agent 1: not me\nAgent 2: nor me",
    "<think>hm</think><|im_end|>",
];

/// Every memory's prompts grow by the reply and what is new; the only exception is a new epoch, after a summary.
pub(crate) fn only_grows(seen: &[Request]) {
    let mut last: HashMap<String, &Request> = HashMap::new();
    for request in seen {
        let now = &request.conversation;
        assert!(!now.next.is_empty(), "{}: a user message always precedes a reply", request.path);
        let before = last.insert(request.session.agent.clone(), request);
        match before {
            Some(before) if before.path.ends_with(".summary") => {
                assert!(
                    now.exchanges.is_empty() && now.system == before.conversation.system,
                    "{}",
                    request.path
                );
            }
            Some(before) => {
                let before = &before.conversation;
                let n = before.exchanges.len();
                assert_eq!(now.system, before.system, "{}", request.path);
                assert_eq!(now.exchanges.len(), n + 1, "{}", request.path);
                assert_eq!(now.exchanges[..n], before.exchanges[..], "{}", request.path);
                assert_eq!(now.exchanges[n].user, before.next, "{}", request.path);
                assert!(!now.exchanges[n].ids.is_empty(), "{}", request.path);
            }
            None => assert!(now.exchanges.is_empty(), "{}", request.path),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn prompts_only_ever_grow(
        phases in proptest::collection::vec(phase(), 1..5),
        ephemeral in proptest::collection::vec(proptest::bool::weighted(0.25), AGENTS),
        salt in 0..5usize,
    ) {
        let scenario = scenario(&yaml(&phases, &ephemeral));
        let seen: Arc<Mutex<Vec<Request>>> = Arc::default();
        let note = seen.clone();
        let backend = Scripted::new(move |request| {
            note.lock().unwrap().push(request.clone());
            Some(format!("{} mark-{}-mark", REPLIES[(request.index + salt) % 5], request.path.split('/').next().unwrap()))
        });
        let folder = tempfile::tempdir().unwrap();
        play(&scenario, Arc::new(backend), folder.path(), &RunOptions::default()).unwrap();
        let seen = seen.lock().unwrap();
        let mut last: HashMap<String, &Request> = HashMap::new();
        for request in seen.iter() {
            let now = &request.conversation;
            if let Some(before) = last.insert(request.session.agent.clone(), request) {
                let before = &before.conversation;
                let n = before.exchanges.len();
                prop_assert_eq!(&now.system, &before.system);
                prop_assert_eq!(now.exchanges.len(), n + 1);
                prop_assert_eq!(&now.exchanges[..n], &before.exchanges[..]);
                prop_assert_eq!(&now.exchanges[n].user, &before.next);
                prop_assert!(!now.exchanges[n].ids.is_empty());
            } else {
                prop_assert!(now.exchanges.is_empty());
            }
            prop_assert!(!now.next.is_empty(), "a user message always precedes a reply");
            let agent: usize = request.session.agent[1..2].parse().unwrap();
            for (at, phase) in phases.iter().enumerate().filter(|(_, phase)| !phase.cast.contains(&agent)) {
                let mark = format!("mark-p{at}-mark");
                let leaks = now.next.contains(&mark) || now.exchanges.iter().any(|past| past.user.contains(&mark));
                prop_assert!(!leaks, "{} heard phase {at} ({:?}): {now:?}", request.path, phase.cast);
            }
        }
    }
}
