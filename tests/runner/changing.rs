//! Random scenarios in which things change: state, blocks, casts, voters, open options, secrets, payoffs of
//! several phases, replies in a form, judges, languages, settings, tools. All that must hold of any scenario
//! is held against each, in [`crate::extend::holds_of_any_run`].

use crate::extend::{call, holds_of_any_run};
use crate::today;
use greenroom::backend::Request;
use greenroom::rehearsal::load;
use greenroom::scenario::{ChoiceMethod, turn_seed};
use proptest::prelude::*;
use std::fmt::Write as _;

const AGENTS: usize = 5;

/// Numbers that decide what a scenario is made of, one after the other; zeros make the simplest.
struct Dice<'a> {
    numbers: &'a [u16],
    at: usize,
}

impl Dice<'_> {
    fn below(&mut self, n: usize) -> usize {
        let number = self.numbers.get(self.at).copied().unwrap_or_default();
        self.at += 1;
        usize::from(number) % n
    }

    /// True in this many of ten cases.
    fn in_ten(&mut self, n: usize) -> bool {
        self.below(10) >= 10 - n
    }

    fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }
}

/// The replies that a phase asks for.
#[derive(Clone, Copy, PartialEq)]
enum Asks {
    Words,
    Numbers,
    Agents,
    Texts,
    Form,
}

/// A phase as others can name it.
#[derive(Clone)]
struct Phase {
    name: String,
    /// Its outermost block.
    block: Option<usize>,
    asks: Asks,
    decides: bool,
    cast: Vec<usize>,
}

/// A scenario being written.
struct Author<'a> {
    dice: Dice<'a>,
    /// All phases, by their later names: phases later in a block can be named, too.
    phases: Vec<Phase>,
    /// The phases whose choices are valued.
    valued: Vec<usize>,
    /// Rules may answer, so that no turn has a form.
    has_rules: bool,
    /// All who are played by a model have tools, so that calls can be demanded.
    has_calls: bool,
    /// The name of what the outermost block is played for.
    item: Option<&'static str>,
    out: String,
}

/// The point from which something is named.
#[derive(Clone, Copy)]
struct Site {
    phase: usize,
    /// The phase's own results are known.
    own: bool,
    round: bool,
}

impl Author<'_> {
    fn known(&mut self, site: Site) -> Option<Phase> {
        let (here, n) = (self.phases[site.phase].block, site.phase + usize::from(site.own));
        let known = self
            .phases
            .iter()
            .enumerate()
            .filter(|(id, phase)| *id < n || *id != site.phase && here.is_some() && phase.block == here);
        let known: Vec<Phase> = known.map(|(_, phase)| phase.clone()).collect();
        (!known.is_empty()).then(|| self.dice.pick(&known))
    }

    fn agent_of(&mut self, phase: &Phase) -> String {
        let agent = self.dice.pick(&phase.cast);
        format!("a{agent}")
    }

    /// A number of the state, of a phase or of the round.
    fn number(&mut self, site: Site) -> String {
        match self.dice.below(10) {
            0 => "n".into(),
            1 => "(l | length)".into(),
            2 => "(alive | length)".into(),
            3 => format!("m.a{}", self.dice.below(AGENTS)),
            4 => "twice".into(),
            5 if site.round => "round".into(),
            6 if self.phases[site.phase].block.is_some() => self.item.unwrap_or("pass").into(),
            7 if self.valued.first().is_some_and(|valued| *valued < site.phase) => {
                let of = self.phases[self.valued[0]].cast[0];
                format!("((payoffs.a{of} | default(0) or 0) | int)")
            }
            _ => match self.known(site) {
                None => "(n + 1)".into(),
                Some(phase) => {
                    let (name, who) = (phase.name.clone(), self.agent_of(&phase));
                    match (phase.asks, self.dice.below(5)) {
                        (_, 0) => format!("{name}.rounds"),
                        (_, 1) => format!("({name}.invalid + ({name}.calls.{who} | length))"),
                        (Asks::Numbers, 2) if phase.decides => format!("({name}.decision or 0)"),
                        (Asks::Numbers, _) if !phase.decides => format!("({name}.choices.{who} or 0)"),
                        (Asks::Form, 2..) => format!("({name}.replies.{who} or 0)"),
                        _ => format!("({name}.said.{who} | length)"),
                    }
                }
            },
        }
    }

    fn holds(&mut self, site: Site) -> String {
        let number = self.number(site);
        match self.dice.below(5) {
            0 => format!("{number} % 2 == 0"),
            1 => format!("{number} > {}", self.dice.below(4)),
            2 => format!("'a{}' in alive or {number} % 3 == 1", self.dice.below(AGENTS)),
            3 => format!("t | length < 9 and {number} < 5"),
            _ => match self.known(site) {
                Some(phase) => format!("{}.played or {number} > 3", phase.name),
                None => format!("{number} < 3"),
            },
        }
    }

    /// A list of agents.
    fn agents(&mut self, site: Site) -> String {
        let number = self.number(site);
        match self.dice.below(4) {
            0 => "alive".into(),
            1 => "alive | only(['a0', 'a1', 'a2'])".into(),
            2 => format!("['a0', 'a3', 'a1', 'a4', 'a2'][{number} % 4:]"),
            _ => "alive | without(most)".into(),
        }
    }

    /// A mapping of assignments, each in quotes.
    fn set(&mut self, site: Site) -> String {
        if self.dice.in_ten(2) {
            let (agents, number) = (self.agents(site), self.number(site));
            return format!("{{each: \"{agents}\", m: \"(m[me] + {number}) % 7\"}}");
        }
        let mut set = Vec::new();
        for at in 0..1 + self.dice.below(3) {
            let number = self.number(site);
            let name = ["n", "l", "m", "alive", "t", "d"][(self.dice.below(6) + at) % 6];
            let value = match name {
                "n" => format!("(n + {number}) % 17"),
                "l" => format!("(l + [{number}])[-3:]"),
                "m" => format!("m | with('a{}', {number} % 7)", self.dice.below(AGENTS)),
                "alive" => {
                    let test = self.holds(site);
                    format!("(alive | without(most)) if {test} else ['a0', 'a1', 'a2', 'a3', 'a4']")
                }
                "t" => format!("(t ~ {number})[:12]"),
                _ => match self.known(site).filter(|phase| phase.decides) {
                    Some(phase) => format!("{}.decision", phase.name),
                    None => "most".into(),
                },
            };
            if !set.iter().any(|other: &String| other.starts_with(&format!("{name}:"))) {
                set.push(format!("{name}: \"{value}\""));
            }
        }
        format!("{{{}}}", set.join(", "))
    }

    fn text(&mut self, site: Site) -> String {
        let number = self.number(site);
        match self.dice.below(5) {
            0 => format!("There are {{{{ {number} }}}}."),
            1 => "{{ t }} {{ l | join(' ') }} {{ d }}, {{ cast | length }} here.".into(),
            2 => format!("{{% if {} %}}So it is: {{{{ m[me] }}}}.{{% endif %}}", self.holds(site)),
            3 => format!("For {{{{ me }}}}: {{{{ {number} }}}} and {{{{ {} }}}}.", self.number(site)),
            _ => "The stage is set.".into(),
        }
    }

    fn line(&mut self, depth: usize, text: &str) {
        writeln!(self.out, "{}{text}", "  ".repeat(depth)).unwrap();
    }

    /// Phases from `at` to `end` and blocks of them.
    fn parts(&mut self, mut at: usize, end: usize, depth: usize, blocks: &[(usize, usize)], within: usize) {
        while at < end {
            let block = blocks.iter().skip(within).position(|block| block.0 == at && block.1 <= end);
            let Some(block) = block.map(|block| block + within) else {
                self.phase(at, depth);
                at += 1;
                continue;
            };
            let (begin, over) = blocks[block];
            let repeat = 2 + self.dice.below(2);
            if block == 0 && self.dice.in_ten(4) {
                self.item = Some("item_of_pass");
                self.line(
                    depth,
                    &format!("- for: item_of_pass, place in [[{repeat}, 'here'], [5, 'there']]"),
                );
            } else {
                self.line(depth, &format!("- repeat: {repeat}"));
            }
            if self.dice.in_ten(4) {
                let until = self.holds(Site { phase: over - 1, own: true, round: false });
                let until = if until.contains("pass") { "n > 9".into() } else { until };
                self.line(depth + 1, &format!("until: \"{until}\""));
            }
            if begin > 0 && self.dice.in_ten(4) {
                // Only what is before it; in a block around it there is the pass before.
                let when = self.holds(Site { phase: begin - 1, own: true, round: false });
                let when = if when.contains("pass") { "n < 9".into() } else { when };
                self.line(depth + 1, &format!("when: \"{when}\""));
            }
            self.line(depth + 1, "phases:");
            self.parts(begin, over, depth + 2, blocks, block + 1);
            at = over;
        }
    }

    fn phase(&mut self, id: usize, depth: usize) {
        let Phase { name, asks, decides, cast, .. } = self.phases[id].clone();
        let opens = Site { phase: id, own: false, round: false };
        let plays = Site { phase: id, own: true, round: true };
        let over = Site { phase: id, own: true, round: false };
        let is_open = cast.len() == AGENTS;
        self.line(depth, &format!("- name: {name}"));
        let depth = depth + 1;
        let keys: Vec<String> = cast.iter().map(|agent| format!("a{agent}")).collect();
        if is_open {
            let agents = self.agents(opens);
            self.line(depth, &format!("agents: \"{agents}\""));
        } else {
            self.line(depth, &format!("agents: [{}]", keys.join(", ")));
        }
        let orders = [
            "round_robin",
            "turns",
            "broadcast",
            "interrupt",
            "moderated",
            "turns",
            "whisper",
            "rotating",
            "random",
            "matched",
        ];
        let order = self.dice.pick(&orders);
        let rounds = if id == 0 { 1 + self.dice.below(2) } else { self.dice.below(3) };
        self.line(depth, &format!("rounds: {rounds}"));
        let choice = self.choice((asks, decides), plays, &keys);
        match order {
            "turns" => {
                let turns: Vec<String> =
                    (0..2 + self.dice.below(3)).map(|_| self.turn(&keys, asks, decides, plays)).collect();
                self.line(depth, "turns:");
                turns.iter().for_each(|turn| self.line(depth + 1, &format!("- {{{turn}}}")));
            }
            "whisper" => {
                let edges: Vec<String> = keys[1..]
                    .iter()
                    .map(|to| format!("{{from: {}, to: {to}, kind: whisper}}", keys[0]))
                    .collect();
                self.line(depth, "order: whisper");
                self.line(depth, &format!("interactions: [{}]", edges.join(", ")));
            }
            "matched" => {
                let all = keys.iter().map(|key| format!("'{key}'")).collect::<Vec<_>>().join(", ");
                // Of an open cast, somebody who is in a pair may not be here.
                let pairs = if is_open { "[]".into() } else { format!("[{all}] | shuffle | batch(2)") };
                self.line(depth, &format!("pairs: \"{pairs}\""));
            }
            "moderated" if keys.len() > 2 => {
                self.line(depth, "order: moderated");
                self.line(depth, &format!("moderator: {}", keys[0]));
                if self.dice.in_ten(5) {
                    self.line(depth, "again: false");
                }
            }
            "moderated" => self.line(depth, "order: broadcast"),
            plain => self.line(depth, &format!("order: {plain}")),
        }
        if let Some(choice) = choice {
            self.line(depth, &choice);
        }
        // A phase without rounds is read at least.
        if self.dice.in_ten(5) || rounds == 0 {
            let text = self.text(opens);
            self.line(depth, &format!("prompt: \"{text}\""));
        }
        let mut has_say = false;
        if self.dice.in_ten(2) {
            let text = self.text(opens);
            let private = self.dice.in_ten(5);
            let said = match private {
                true => format!("private_prompts: {{{}: \"{text}\"}}", keys[0]),
                false => format!("say: {{{}: \"{text}\", {}: Hush.}}", keys[0], keys[1]),
            };
            has_say = !private;
            self.line(depth, &said);
        }
        if self.dice.in_ten(3) {
            let when = self.holds(opens);
            self.line(depth, &format!("when: \"{when}\""));
        }
        if self.dice.in_ten(3) && rounds > 1 {
            let until = self.holds(plays);
            self.line(depth, &format!("until: \"{until}\""));
        }
        if self.dice.in_ten(4) {
            let set = self.set(plays);
            self.line(depth, &format!("set_each_round: {set}"));
        }
        if self.dice.in_ten(5) {
            let set = self.set(over);
            self.line(depth, &format!("set: {set}"));
        }
        if self.dice.in_ten(3) && !has_say {
            let (before, after) = (self.text(plays), self.text(plays));
            self.line(
                depth,
                &format!("announce: [{{before: \"{before}\", to: {}}}, {{after: \"{after}\"}}]", keys[0]),
            );
        }
        if self.dice.in_ten(2) {
            let (one, two) = (&keys[0], &keys[1]);
            let audience = self.dice.pick(&[
                "to: nobody".to_string(),
                "hears: none".to_string(),
                format!("to: [{one}, {two}]"),
                format!("to: {{{one}: {two}}}, overhears: {{{two}: {one}}}"),
            ]);
            for field in audience.split(", over") {
                let field = if field.starts_with("hears: {") { format!("over{field}") } else { field.into() };
                self.line(depth, &field);
            }
        }
        if self.dice.in_ten(2) && ![Asks::Words, Asks::Form].contains(&asks) {
            self.line(depth, "secret: true");
        }
        if self.dice.in_ten(2) {
            self.line(depth, "sampling: { temperature: 0.5 }");
        }
        if decides {
            let modes = ["majority_vote", "consensus", "ranked_choice", "coordinator_decides"];
            let mode = self.dice.pick(&modes);
            self.line(depth, &format!("decision_mode: {mode}"));
            match mode {
                "coordinator_decides" => self.line(depth, &format!("coordinator: {}", keys[0])),
                _ if self.dice.in_ten(5) && is_open => {
                    let voters = self.agents(over);
                    self.line(depth, &format!("voters: \"{voters}\""));
                }
                _ if self.dice.in_ten(3) => self.line(depth, &format!("voters: [{}]", keys[1])),
                _ => {}
            }
        }
    }

    fn choice(&mut self, (asks, decides): (Asks, bool), site: Site, keys: &[String]) -> Option<String> {
        let ask = self.text(site);
        Some(match asks {
            Asks::Words => return self.dice.in_ten(2).then(|| format!("ask: \"{ask}\"")),
            Asks::Numbers => match self.dice.below(2) {
                0 => "choice: [0, 1, 2]".into(),
                _ => {
                    let test = self.holds(site);
                    format!(
                        "choice: {{options: [0, 1, 2], ask: \"{ask}\", open: \"[0, 2] if me == '{}' or \
                         {test} else [1]\"}}",
                        keys[0]
                    )
                }
            },
            Asks::Agents => {
                let agents = self.agents(site);
                if !decides && self.dice.in_ten(3) {
                    return Some(format!("answer: {{some_of: \"({agents}) | without(me)\", size: 2}}"));
                }
                format!("choice: {{options: \"({agents}) | without(me)\", ask: \"{ask}\", shuffle: true}}")
            }
            Asks::Texts if !decides && self.dice.in_ten(2) => {
                "answer: {some_of: [plain, words, so], size: 2, shuffle: true}".into()
            }
            Asks::Texts => match self.dice.below(3) {
                0 => "choice: {yes: 'I do', no: 'I do not'}".into(),
                // A ranking is decoded.
                1 if !decides => "parse_choice: [plain, words]".into(),
                _ => {
                    let test = self.holds(site);
                    format!("choice: {{options: [yes, no, so], open: \"['yes', 'no'] if {test} else []\"}}")
                }
            },
            Asks::Form => match self.dice.below(2) {
                0 => "reply: {schema: {type: integer, minimum: 0, maximum: 9}}".into(),
                _ => "reply: {schema: {type: integer, minimum: 3, maximum: 70}, show: false}".into(),
            },
        })
    }

    /// Judges of what the phases came to: from outside or of the cast, each may know of those before it.
    fn judges(&mut self, n_phases: usize, lasting: &[usize]) {
        let n = self.dice.below(4);
        if n > 0 {
            self.line(0, "assertions:");
        }
        for at in 0..n {
            let site = Site { phase: n_phases - 1, own: true, round: false };
            // No block is around them, and judges are not in the state.
            let ask = self.text(site).replace("m[me]", "n");
            let ask = if ask.contains("pass") { "The stage is set.".into() } else { ask };
            let before = if at > 0 { format!(" {{{{ j{}.verdict }}}}", at - 1) } else { String::new() };
            let agent = if lasting.is_empty() { None } else { Some(self.dice.pick(lasting)) };
            let agent = agent.filter(|_| self.dice.in_ten(5));
            let agent = agent.map_or_else(String::new, |agent| format!("agent: a{agent}, "));
            let (form, that) = self.dice.pick(&[
                ("choice: [good, bad]", "verdict == 'good'"),
                ("choice: {options: [good, bad, so], shuffle: true}, temperature: 0", "verdict != 'bad'"),
                (
                    "reply: {schema: {type: integer, minimum: 0, maximum: 9}}",
                    "verdict is none or verdict > 4",
                ),
            ]);
            self.line(1, &format!("- judge: {{name: j{at}, {agent}ask: \"{ask}{before}\", {form}}}"));
            self.line(1, &format!("  that: \"{that} or n > 5\""));
        }
    }

    /// A turn that is written out.
    fn turn(&mut self, keys: &[String], asks: Asks, decides: bool, site: Site) -> String {
        let agent = match self.dice.in_ten(2) {
            true => format!("\"({} + ['{}'])[0]\"", self.agents(site), keys[0]),
            false => self.dice.pick(keys).clone(),
        };
        let mut fields = vec![format!("agent: {agent}")];
        if self.dice.in_ten(4) {
            fields.push(format!("ask: \"{}\"", self.text(site)));
        }
        if self.dice.in_ten(3) {
            fields.push(format!("when: \"{}\"", self.holds(site)));
        }
        if self.dice.in_ten(4) {
            fields.push(format!("set: {}", self.set(site)));
        }
        if self.dice.in_ten(2) {
            fields.push("hears: none".into());
        }
        if self.dice.in_ten(2) {
            fields.push("sampling: { max_tokens: 30 }".into());
        }
        if asks == Asks::Words && !decides && self.has_calls && self.dice.in_ten(4) {
            fields.push(
                self.dice.pick(&["answer: {call: sums}", "answer: {call: roll, regex: '[a-z ]+'}"]).into(),
            );
        } else if asks == Asks::Words && !decides && !self.has_rules && self.dice.in_ten(2) {
            fields.push("grammar: {regex: '[a-z ]+ -?[0-9]*'}".into());
        }
        fields.join(", ")
    }
}

/// Blocks among this many phases, outer ones first.
fn blocks(dice: &mut Dice<'_>, n: usize) -> Vec<(usize, usize)> {
    if n < 2 || !dice.in_ten(7) {
        return Vec::new();
    }
    let begin = dice.below(n - 1);
    let end = begin + 1 + dice.below(n - begin);
    let mut blocks = vec![(begin, end)];
    if end - begin > 1 && dice.in_ten(6) {
        let inner = begin + dice.below(end - begin);
        blocks.push((inner, inner + 1 + dice.below(end - inner)));
    }
    blocks
}

/// A scenario by these numbers.
fn yaml(numbers: &[u16]) -> String {
    today(&older(numbers))
}

/// A scenario by these numbers, in the fields of several editions.
pub(crate) fn older(numbers: &[u16]) -> String {
    let mut dice = Dice { numbers, at: 0 };
    let n = 2 + dice.below(4);
    let blocks = blocks(&mut dice, n);
    // A rule answers in no form.
    let has_rules = dice.in_ten(4);
    let phase = |id: usize, dice: &mut Dice<'_>| {
        let form = if has_rules { Asks::Numbers } else { Asks::Form };
        let asks = dice.pick(&[Asks::Words, Asks::Numbers, Asks::Agents, Asks::Texts, form, Asks::Numbers]);
        let decides = ![Asks::Words, Asks::Form].contains(&asks) && dice.in_ten(3);
        let first = dice.below(AGENTS);
        let n_cast = dice.pick(&[2, 5, 3, 2]);
        let cast = (0..n_cast).map(|at| (first + at) % AGENTS).collect();
        let block = blocks.iter().position(|(begin, end)| (*begin..*end).contains(&id));
        Phase { name: format!("p{id}"), block: block.map(|_| 0), asks, decides, cast }
    };
    let phases: Vec<Phase> = (0..n).map(|id| phase(id, &mut dice)).collect();
    let valued = phases.iter().enumerate().filter(|(_, phase)| phase.asks == Asks::Numbers && !phase.decides);
    let valued: Vec<usize> = valued.map(|(id, _)| id).collect();
    let has_calls = !has_rules && dice.in_ten(5);
    let (item, out) = (None, String::from("id: changing\n"));
    let mut author = Author { dice, phases, valued, has_rules, has_calls, item, out };
    let language = author.dice.pick(&["en", "de", "es", "{base: fr, cue: 'À toi, {name}.'}"]);
    author.line(0, &format!("language: {language}"));
    author.line(0, "tools: {sums: calculator, roll: {built_in: dice}, diary: notes}");
    author.line(0, "agents:");
    let mut lasting = Vec::new();
    for id in 0..AGENTS {
        let rule = if has_rules { "strategy: {random: 0.4}" } else { "sampling: { max_tokens: 40 }" };
        let tools = "tools: [sums, diary, roll], max_calls: 2";
        let more = author.dice.pick(&["", "", "lifecycle: ephemeral", rule, "top_k: 3", tools]);
        let more = if has_calls { tools } else { more };
        if more != "lifecycle: ephemeral" && more != rule {
            lasting.push(id);
        }
        author.line(
            1,
            &format!("a{id}: {{display_name: Agent {id}{}{more}}}", if more.is_empty() { "" } else { ", " }),
        );
    }
    author.line(
        0,
        "state: {n: 1, l: [], m: {a0: 1, a1: 2, a2: 3, a3: 2, a4: 0}, t: '', d: null, alive: [a0, \
                    a1, a2, a3, a4]}",
    );
    author.line(0, "let: {most: m | argmax, twice: n * 2}");
    author.line(0, "phases:");
    author.parts(0, n, 1, &blocks, 0);
    if !author.valued.is_empty() {
        let names: Vec<String> = author.valued.iter().map(|id| format!("p{id}")).collect();
        author.line(
            0,
            &format!("payoff: {{phase: [{}], each: \"mine + (others | sum) / 2\"}}", names.join(", ")),
        );
        author.line(0, "outcome: {worth: payoffs, n: n, m: m, alive: alive}");
    } else {
        author.line(0, "outcome: {n: n, m: m, alive: alive, l: l, t: t, d: d}");
    }
    author.judges(n, &lasting);
    author.out
}

/// A scenario that is shown as it is written.
#[derive(Clone)]
struct Yaml(String);

impl std::fmt::Debug for Yaml {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "\n{}", self.0)
    }
}

/// An option or a value by the turn's seed; some replies are in no form and choose nothing.
fn reply(request: &Request, salt: u64) -> Option<String> {
    if let Some(call) = call(request, salt) {
        return Some(call);
    }
    let drawn = turn_seed(salt, &request.path) as usize;
    if let Some(options) = request.choice.as_ref().filter(|of| of.choice.method == ChoiceMethod::Decode) {
        return Some(options.choice.options[options.open[drawn % options.open.len()]].text.clone());
    }
    if let Some(form) = request.form.as_ref().filter(|_| drawn % 7 > 0) {
        let mut tried = (0..80).map(|more| ((drawn + more) % 80).to_string());
        return tried.find(|text| form.read(text).is_ok()).or(Some(format!("so be it {}", drawn % 9)));
    }
    Some(
        ["plain", "words, and more of them", "{{ n }} {% if", "<think>hm</think>", "Agent 0: no"][drawn % 5]
            .to_string(),
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if crate::is_deep() { 48 } else { 12 }, failure_persistence: None, max_shrink_iters: 100, ..ProptestConfig::default() })]
    #[test]
    fn what_changes_is_a_function_of_the_plan(
        text in proptest::collection::vec(any::<u16>(), 400).prop_map(|numbers| Yaml(yaml(&numbers))),
        salt in 0..1000usize,
    ) {
        let Yaml(text) = text;
        let loaded = load("changing.yaml", &text, &[]);
        let report = loaded.report.render(false);
        let Some(scenario) = loaded.scenario else { panic!("{report}") };
        prop_assert!(holds_of_any_run(&scenario, usize::MAX, salt, reply).is_some());
    }
}
