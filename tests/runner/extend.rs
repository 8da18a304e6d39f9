//! EXTEND, over random scenarios with all constructs: every prompt begins with the one before it and the
//! reply, nobody hears what was said where they were not, every run replays, and what is read never depends
//! on who finished first.

use crate::constructs::Noting;
use crate::play::{Backwards, Shuffled, play, scenario};
use crate::today;
use greenroom::backend::{Backend, Request};
use greenroom::prompt::PromptError;
use greenroom::replay::replay;
use greenroom::run::RunOptions;
use greenroom::scenario::{Scenario, turn_seed};
use greenroom::stage::End;
use greenroom::transcript::Transcript;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::sync::Arc;

#[derive(Clone, Debug)]
struct Phase {
    cast: Vec<usize>,
    topology: &'static str,
    rounds: usize,
    max_turns: Option<usize>,
    quotes: bool,
    private: bool,
    format: Option<&'static str>,
    choice: Option<&'static str>,
    decision: Option<&'static str>,
    /// The earlier phase that the phase's conditions look at, by its distance.
    when: Option<usize>,
    until: bool,
    /// Announcements: none, before, after, both.
    announced: usize,
    /// Settings of its replies.
    hints: Option<&'static str>,
    route: Option<&'static str>,
}

const AGENTS: usize = 5;
const TOPOLOGIES: [&str; 9] = [
    "round_robin",
    "rotating",
    "random",
    "broadcast",
    "whisper",
    "matched",
    "interrupt",
    "moderated",
    "turns",
];
const CHOICES: [&str; 4] = [
    "choice: [x, y, z]",
    "choice: {options: {x: 'I say x', y: 'I say y'}, shuffle: true, ask: 'Which, {{ me }}, after {{ \
     HERE.choices[me] }}?'}",
    "parse_choice: [x, y]",
    "choice: [1, 10]",
];
const DECISIONS: [&str; 4] = ["majority_vote", "ranked_choice", "coordinator_decides", "consensus"];

fn phase() -> impl Strategy<Value = Phase> {
    let shape = (
        proptest::sample::subsequence((0..AGENTS).collect::<Vec<_>>(), 2..=AGENTS).prop_shuffle(),
        proptest::sample::select(TOPOLOGIES.to_vec()),
        0..4usize,
        proptest::option::of(1..6usize),
    );
    let texts = (
        any::<bool>(),
        any::<bool>(),
        proptest::option::of(proptest::sample::select(vec!["free", "pro_con", "socratic"])),
    );
    let results = (
        proptest::option::of(proptest::sample::select(CHOICES.to_vec())),
        proptest::option::weighted(0.4, proptest::sample::select(DECISIONS.to_vec())),
        proptest::option::weighted(0.4, 1..4usize),
        any::<bool>(),
        (0..4usize, proptest::option::weighted(0.3, proptest::sample::select(HINTS.to_vec()))),
        proptest::option::weighted(0.3, proptest::sample::select(ROUTES.to_vec())),
    );
    (shape, texts, results).prop_map(
        |(
            (cast, topology, rounds, max_turns),
            (quotes, private, format),
            (choice, decision, when, until, (announced, hints), route),
        )| Phase {
            cast,
            topology,
            rounds,
            max_turns,
            quotes,
            private,
            format,
            choice,
            decision,
            when,
            until,
            announced,
            hints,
            route,
        },
    )
}

/// Settings that any reply may have.
const HINTS: [&str; 4] = [
    "sampling: { temperature: 0 }",
    "top_k: 5, max_tokens: 9",
    "min_p: 0.1, repetition_penalty: 1.2",
    "reasoning: high",
];

/// Ways to pick speakers.
const ROUTES: [&str; 4] = [
    "query: 'Phase 0 opens.'",
    "query: 'plain words of mark', take: 2, best: 2",
    "query: 'Agent 1', least: 0.6, otherwise: FIRST",
    "query: 'Nothing of the kind', least: 0.99",
];

/// Ways to go on with a full memory.
const MEMORIES: [&str; 4] = [
    ", memory: {keep: summary}",
    ", memory: {keep: window}",
    ", memory: {keep: window, recent: 3}",
    ", memory: {keep: retrieve, recent: 1, nearest: 2}",
];

/// Tools of an agent.
const TOOLS: [&str; 3] = ["", ", tools: [sums, roll, diary]", ", tools: [diary, roll], max_calls: 1"];

/// A scenario with these phases; agent 4 is an observer if requested, agents with a strategy follow it.
fn yaml(phases: &[Phase], ephemeral: &[bool], strategies: &[usize], memory: &str, tools: &str) -> String {
    let mut out = String::from(
        "id: random\n\
         models: {big: understudy, small: understudy}\n\
         model: big\n\
         sampling: { top_p: 0.9 }\n\
         tools: {sums: calculator, roll: {built_in: dice}, diary: notes}\n\
         agents:\n\
         ",
    );
    for (id, ephemeral) in ephemeral.iter().enumerate() {
        let lifecycle = if *ephemeral { "ephemeral" } else { "permanent" };
        let strategy = match strategies.iter().position(|with| *with == id) {
            Some(0) => ", strategy: tit_for_tat",
            Some(1) => ", strategy: {random: 0.3}",
            Some(_) => ", strategy: grim",
            None => memory,
        };
        // A model of its own for some, others have settings.
        let model = match (id, strategy) {
            (1, own) if own == memory => ", model: small",
            (2, own) if own == memory => ", temperature: 1.1",
            _ => "",
        };
        let tools = if id != 2 && strategy == memory { tools } else { "" };
        writeln!(
            out,
            "  a{id}: {{display_name: Agent {id}, lifecycle: {lifecycle}{strategy}{model}{tools}}}"
        )
        .unwrap();
    }
    out.push_str("phases:\n");
    for (at, phase) in phases.iter().enumerate() {
        let cast: Vec<String> = phase.cast.iter().map(|id| format!("a{id}")).collect();
        writeln!(out, "  - name: p{at}\n    agents: [{}]", cast.join(", ")).unwrap();
        let decodes = phase.choice.is_some_and(|choice| choice.starts_with("choice"));
        let decision = phase
            .decision
            .filter(|decision| phase.choice.is_some() && (decodes || *decision != "ranked_choice"));
        let topology =
            if phase.topology == "moderated" && cast.len() < 3 { "broadcast" } else { phase.topology };
        match topology {
            "turns" => {
                let when = format!("when: \"p{at}.rounds == 0 or p{at}.rounds is odd\"");
                let (first, last) = (&cast[0], &cast[cast.len() - 1]);
                writeln!(
                    out,
                    "    turns: [{{agent: {first}}}, {{agent: {last}, {when}}}, {{agent: {first}, \
                               to: {last}}}]"
                )
                .unwrap();
            }
            "whisper" => {
                let edge = |to: &String| format!("{{from: {}, to: {to}, kind: whisper}}", cast[0]);
                let edges: Vec<String> = cast[1..].iter().map(edge).collect();
                writeln!(out, "    topology: whisper\n    interactions: [{}]", edges.join(", ")).unwrap();
            }
            "matched" => {
                let all = cast.iter().map(|key| format!("'{key}'")).collect::<Vec<_>>().join(", ");
                writeln!(out, "    pairs: \"[{all}] | shuffle | batch(2)\"").unwrap();
            }
            "moderated" => writeln!(out, "    topology: moderated\n    moderator: {}", cast[0]).unwrap(),
            plain => writeln!(out, "    topology: {plain}").unwrap(),
        }
        // The first may moderate or decide; who forgets has read nothing that could be near.
        let among = phase.cast.iter().zip(&cast).skip(1).filter(|(id, _)| !ephemeral[**id]);
        let among: Vec<&str> = among.map(|(_, key)| key.as_str()).collect();
        let is_routed = among.len() > 1 && (at == 0 || phase.rounds > 0) && topology != "matched";
        if let Some(route) = phase.route.filter(|_| is_routed) {
            writeln!(
                out,
                "    route: {{{}, among: [{}]}}",
                route.replace("FIRST", among[0]),
                among.join(", ")
            )
            .unwrap();
        }
        // Phases without rounds are only read, but somebody speaks somewhere.
        let rounds = if at == 0 { phase.rounds.max(1) } else { phase.rounds };
        writeln!(out, "    auto_rounds: {rounds}\n    initial_prompt: Phase {at} opens.").unwrap();
        for hint in phase.hints.iter().flat_map(|hints| hints.split(", ")) {
            writeln!(out, "    {hint}").unwrap();
        }
        if let Some(choice) = phase.choice {
            writeln!(out, "    {}", choice.replace("HERE", &format!("p{at}"))).unwrap();
        }
        if phase.announced > 0 {
            let role_text = format!(
                "Round {{{{ round }}}} of {{{{ rounds }}}}, {{{{ p{at}.votes }}}} {{{{ p{at}.said[me] }}}}"
            );
            let lines = [("before", format!(", to: {}", cast[0])), ("after", String::new())];
            let lines = lines.iter().enumerate().filter(|(line, _)| phase.announced & (1 << line) > 0);
            let lines: Vec<String> =
                lines.map(|(_, (field, to))| format!("{{{field}: '{role_text}'{to}}}")).collect();
            writeln!(out, "    announce: [{}]", lines.join(", ")).unwrap();
        }
        if let Some(decision) = decision {
            writeln!(out, "    decision_mode: {decision}").unwrap();
            if decision == "coordinator_decides" {
                writeln!(out, "    coordinator: {}", cast[0]).unwrap();
            }
        }
        if let Some(from) = phase.when.and_then(|distance| at.checked_sub(distance)) {
            let test = ["p.played", "p.votes | length > 0", "p.decision is none", "p.rounds > 1"][at % 4];
            writeln!(out, "    when: \"{}\"", test.replace("p.", &format!("p{from}."))).unwrap();
        }
        if phase.until && phase.rounds > 1 {
            writeln!(out, "    until: \"p{at}.said.{} | length > 30 or p{at}.invalid > 0\"", cast[0])
                .unwrap();
        }
        if let Some(max) = phase.max_turns.filter(|_| topology != "matched") {
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
    today(&out)
}

const REPLIES: [&str; 5] = [
    "plain words",
    "x",
    "{{ x }} ${p0.messages[a0]} {% raw %}",
    "Agent 1: not me\nAgent 2: nor me",
    "<think>hm</think><|im_end|>",
];

/// Calls: two that give something, a note, one that fails, one that is in no schema, one of no tool.
const CALLS: [&str; 6] = [
    r#"{"tool": "roll", "arguments": {"count": 2, "sides": 6}}"#,
    r#"{"tool": "sums", "arguments": {"expression": "17 * 3"}}"#,
    r#"{"tool": "diary", "arguments": {"note": "{{ me }} saw mark-none-mark"}}"#,
    r#"{"tool": "sums", "arguments": {"expression": "1 / 0"}}"#,
    r#"{"tool": "roll", "arguments": {"count": "two"}}"#,
    r#"{"tool": "hammer", "arguments": {}}"#,
];

/// A call in every other request that may be answered by one.
pub(crate) fn call(request: &Request, salt: u64) -> Option<String> {
    let drawn = turn_seed(salt, &format!("{} {}", request.path, request.n_calls)) as usize;
    (request.may_call && drawn % 2 == 0).then(|| CALLS[drawn / 2 % CALLS.len()].to_string())
}

/// Options by the turn's seed; else calls, and words with a mark of the phase.
fn reply(request: &Request, salt: usize) -> Option<String> {
    let decoded = request
        .choice
        .as_ref()
        .filter(|options| options.choice.method == greenroom::scenario::ChoiceMethod::Decode);
    if let Some(options) = decoded {
        let option = options.open[turn_seed(salt as u64, &request.path) as usize % options.open.len()];
        return Some(options.choice.options[option].text.clone());
    }
    if let Some(call) = call(request, salt as u64) {
        return Some(call);
    }
    let phase = request.path.split('/').next().unwrap();
    let words = REPLIES[(turn_seed(salt as u64, &request.path) % 5) as usize];
    Some(format!("{words} mark-{phase}-mark"))
}

/// Paths of the turns before which a memory started over with pieces of its past.
fn begun_again(transcript: &Transcript) -> BTreeSet<&str> {
    let kept = transcript.turns.iter().map(|turn| &turn.record).filter(|turn| turn.kept.is_some());
    kept.filter_map(|turn| turn.path.strip_suffix(".summary")).collect()
}

/// Every memory's prompts grow by the reply and what is new; the only exception is a new epoch: after a
/// summary, or with pieces.
pub(crate) fn only_grows(seen: &[Request], transcript: &Transcript) {
    let begun_again = begun_again(transcript);
    let mut last: HashMap<String, &Request> = HashMap::new();
    for request in seen {
        let now = &request.conversation;
        assert!(!now.next.is_empty(), "{}: a user message always precedes a reply", request.path);
        let before = last.insert(request.session.agent.clone(), request);
        match before {
            Some(before)
                if before.path.ends_with(".summary")
                    || request.n_calls == 0 && begun_again.contains(request.path.as_str()) =>
            {
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

fn is_too_long(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(PromptError::TooLong { .. }))
}

/// Plays a scenario and demands what holds of every run: prompts only grow; it replays; it is the same in
/// whatever order the answers come in, and if it is interrupted and resumed. Returns what was asked; `None`:
/// a prompt is longer than the context.
pub(crate) fn holds_of_any_run(
    scenario: &Arc<Scenario>,
    context: usize,
    salt: usize,
    reply: impl Fn(&Request, u64) -> Option<String> + Copy + Send + Sync + 'static,
) -> Option<Vec<Request>> {
    let folder = tempfile::tempdir().unwrap();
    let answering = || Arc::new(Noting::new(context, move |request| reply(request, salt as u64)));
    let backend = answering();
    let played = play(scenario, backend.clone(), &folder.path().join("one"), &RunOptions::default());
    if played.as_ref().is_err_and(is_too_long) {
        return None;
    }
    let played = played.unwrap();
    let seen = std::mem::take(&mut *backend.seen.lock().unwrap());
    let recorded = std::fs::read_to_string(&played.transcript).unwrap();
    let transcript = Transcript::parse(&played.transcript, &recorded).unwrap();
    only_grows(&seen, &transcript);
    let replayed = replay(scenario, &transcript, BTreeMap::new()).unwrap();
    let End::Complete(footer) = played.end else { panic!("stopped") };
    assert_eq!(replayed.footer, *footer);
    let orders: [Arc<dyn Backend>; 2] =
        [Arc::new(Backwards(answering())), Arc::new(Shuffled(answering(), salt as u64))];
    for (at, backend) in orders.into_iter().enumerate() {
        let again =
            play(scenario, backend, &folder.path().join(format!("order-{at}")), &RunOptions::default());
        same(&recorded, &again.unwrap().transcript, "the order of answers shows");
    }
    let cut = folder.path().join("cut");
    std::fs::create_dir(&cut).unwrap();
    let end = recorded.floor_char_boundary(salt * recorded.len() / 1000);
    std::fs::write(cut.join("transcript.jsonl"), &recorded[..end]).unwrap();
    let resume = RunOptions { resume: true, ..RunOptions::default() };
    let resumed = play(scenario, answering(), &cut, &resume).unwrap();
    same(&recorded, &resumed.transcript, "a resumed run differs");
    Some(seen)
}

/// Two transcripts are the same, or their first line that is not is shown.
fn same(recorded: &str, other: &std::path::Path, what: &str) {
    let other = std::fs::read_to_string(other).unwrap();
    let mut pairs = recorded.lines().zip(other.lines());
    if let Some((was, is)) = pairs.find(|(was, is)| was != is) {
        panic!("{what}:\n{was}\n{is}");
    }
    assert!(recorded == other, "{what}: one is longer");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn prompts_only_ever_grow(
        phases in proptest::collection::vec(phase(), 1..5),
        ephemeral in proptest::collection::vec(proptest::bool::weighted(0.25), AGENTS),
        strategies in proptest::sample::subsequence((0..AGENTS).collect::<Vec<_>>(), 0..=2),
        memory in proptest::option::weighted(0.5, proptest::sample::select(&MEMORIES[..])),
        tools in proptest::sample::select(&TOOLS[..]),
        salt in 0..1000usize,
    ) {
        let text = yaml(&phases, &ephemeral, &strategies, memory.unwrap_or_default(), tools);
        let scenario = scenario(&text);
        let context = if memory.is_some() { 900 } else { usize::MAX };
        let seen = holds_of_any_run(&scenario, context, salt, |request, salt| reply(request, salt as usize));
        // Some scenarios quote more at once than this small a context holds: they are rightly refused.
        prop_assume!(seen.is_some());
        let seen = seen.unwrap();
        for request in seen.iter() {
            let now = &request.conversation;
            let agent: usize = request.session.agent[1..2].parse().unwrap();
            for (at, phase) in phases.iter().enumerate().filter(|(_, phase)| !phase.cast.contains(&agent)) {
                let mark = format!("mark-p{at}-mark");
                let leaks = now.next.contains(&mark) || now.exchanges.iter().any(|past| past.user.contains(&mark));
                prop_assert!(!leaks, "{} heard phase {at} ({:?}): {now:?}", request.path, phase.cast);
            }
        }
    }
}

#[test]
fn a_condition_sees_what_comes_before_it_and_not_what_has_finished() {
    let text = "
id: before
agents: {a: {}, b: {}, c: { role: observer, speaks: false }}
phases:
  - name: p
    agents: [a, b, c]
    turns:
      - {agent: a, to: c}
      - {agent: a, to: c, when: \"p.said.b == ''\"}
      - {agent: b, to: c}
";
    let folder = tempfile::tempdir().unwrap();
    // b has long spoken when a's second turn comes; the condition is before b all the same.
    let backwards = Arc::new(Backwards(Arc::new(Noting::new(usize::MAX, |_| Some("words".into())))));
    let played = play(&scenario(text), backwards, folder.path(), &RunOptions::default()).unwrap();
    assert_eq!(played.n_written, 3);
}
