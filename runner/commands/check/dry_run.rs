//! `check --dry-run`: the turns of a run and what opens each agent's memory, without playing.

use super::models::AgentTokenizers;
use crate::backend::conversation;
use crate::diagnostic::printable;
use crate::prompt::Memories;
use crate::scenario::{AgentId, Announced, Audience, Condition, Input, Plan, Scenario, Turn, TurnId};
use crate::terminal::{is_fancy, table};
use crate::tools::Toolbox;
use crate::walk::{Answers, walk};
use console::Style;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Prints the turns, then each memory's first prompt as the model's chat template renders it.
pub(super) fn dry_run(scenario: &Arc<Scenario>, counting: &AgentTokenizers<'_>) -> anyhow::Result<()> {
    let plan = scenario.plan().clone();
    heading("Turns");
    let rows = plan
        .order()
        .map(|(_, turn)| vec![turn.path.clone(), reads(scenario, &plan, turn), says(scenario, &plan, turn)]);
    println!("{}", table(&["turn", "reads first", "says"], rows.collect(), 3));
    let mut memories = Memories::new(scenario.clone(), plan.clone(), BTreeMap::new(), 0);
    memories.open_all();
    walk(&mut memories, plan.end(), &mut Showing { counting, shown: BTreeSet::new() })
}

/// Shows each agent's first prompt.
struct Showing<'a> {
    counting: &'a AgentTokenizers<'a>,
    shown: BTreeSet<AgentId>,
}

impl Answers for Showing<'_> {
    fn takes_place(&mut self, _memories: &mut Memories, _id: TurnId) -> anyhow::Result<bool> {
        Ok(true)
    }

    fn turn(&mut self, memories: &mut Memories, id: TurnId) -> anyhow::Result<ControlFlow<()>> {
        let (plan, scenario) = (memories.plan().clone(), memories.scenario().clone());
        let turn = plan.turn(id);
        let agent = scenario.agent(turn.speaker);
        memories.hear(id)?;
        if self.shown.insert(turn.speaker) && agent.strategy.is_none() {
            heading(&printable(&format!("First prompt of {} ({})", agent.name, turn.path)));
            let prompter = self.counting.prompter(self.counting.of(turn.timeline));
            let tools = Toolbox::at_rest(&scenario).offer(&scenario, agent);
            let first = conversation(memories.ask(id)?.conversation, tools.as_deref());
            let first = match prompter {
                Some(prompter) => prompter.render(&first)?,
                None => as_messages(&first),
            };
            println!("{}", printable(&first));
        }
        memories.make_up(id, &format!("({} at {})", agent.name, turn.path));
        Ok(ControlFlow::Continue(()))
    }
}

/// A first prompt as an engine gets it that has the chat template itself.
fn as_messages(first: &greenroom_engine::Conversation) -> String {
    let system = first.system.iter().map(|text| format!("[system]\n{text}\n\n"));
    system.chain([format!("[user]\n{}\n", first.next)]).collect()
}

fn heading(text: &str) {
    if is_fancy() {
        println!("\n{}\n", Style::new().bold().apply_to(text));
    } else {
        println!("\n== {text} ==\n");
    }
}

fn reads(scenario: &Scenario, plan: &Plan, turn: &Turn) -> String {
    let (mut parts, mut heard): (Vec<String>, BTreeMap<&str, usize>) = (Vec::new(), BTreeMap::new());
    for input in &turn.inputs {
        match input {
            Input::Opening(phase) => parts.push(format!("opening of {}", scenario.phase(*phase).name)),
            Input::Record(phase) => parts.push(format!("record of {}", scenario.phase(*phase).part)),
            Input::Vote(phase, _) => parts.push(format!("vote of {}", scenario.phase(*phase).name)),
            Input::Announced(Announced { phase, round, .. }) => {
                parts.push(format!("announcement of {}/{round}", scenario.phase(*phase).name));
            }
            Input::Heard(turn) => {
                *heard.entry(&scenario.agent(plan.turn(*turn).speaker).key).or_default() += 1;
            }
        }
    }
    parts.extend(
        heard.into_iter().map(|(key, n)| if n == 1 { key.to_string() } else { format!("{key} × {n}") }),
    );
    parts.join(", ")
}

fn says(scenario: &Scenario, plan: &Plan, turn: &Turn) -> String {
    let mut what = match &turn.constraint {
        Some(constraint) => {
            let texts: Vec<&str> =
                constraint.choice.options.iter().map(|option| option.text.as_str()).collect();
            texts.join(" | ")
        }
        None => "words".to_string(),
    };
    match &turn.audience {
        Audience::All => {}
        Audience::Nobody => what += ", heard by nobody",
        Audience::Whisper { to, .. } => {
            let to: Vec<&str> = to.iter().map(|agent| scenario.agent(*agent).key.as_str()).collect();
            what += &format!(", to {}", to.join(", "));
        }
    }
    let conditions: Vec<String> =
        turn.guard.iter().map(|condition| in_words(scenario, plan, turn, condition)).collect();
    if !conditions.is_empty() {
        what += &format!("; if {}", conditions.join(" and "));
    }
    printable(&what)
}

fn in_words(scenario: &Scenario, plan: &Plan, turn: &Turn, condition: &Condition) -> String {
    let text = |expression: &Option<crate::scenario::template::Expression>| {
        expression.as_ref().map_or(String::new(), |expression| expression.text.clone())
    };
    match condition {
        Condition::Opens(phase) => {
            let conditions = scenario.opens_if(*phase).map(|condition| condition.text.as_str());
            match scenario.phase(*phase).pass {
                Some(pass) if scenario.pass(pass).number > 1 => {
                    format!("pass {} is played", scenario.pass(pass).number)
                }
                _ => conditions.collect::<Vec<_>>().join(" and "),
            }
        }
        Condition::NotYetEnded(phase, _) => format!("not yet ({})", text(&scenario.phase(*phase).until)),
        Condition::Holds(expression) => expression.text.clone(),
        Condition::Chose(asked, option) => {
            let asked = plan.turn(*asked);
            let options =
                asked.constraint.as_ref().map(|constraint| &constraint.choice.options[*option].text);
            format!("{} is \"{}\"", asked.path, options.map_or("", String::as_str))
        }
        Condition::Played(turn) => format!("{} is played", plan.turn(*turn).path),
        Condition::NotPlayed(turn) => format!("{} is skipped", plan.turn(*turn).path),
        Condition::Drawn(place) => format!("drawn for place {} of the round", place + 1),
        Condition::Paired(one, other, pairs) => {
            let [one, other] = [one, other].map(|agent| &scenario.agent(*agent).key);
            format!("{one} is paired with {other} ({})", pairs.text)
        }
        Condition::Present if scenario.phase(turn.phase).route.is_some() => {
            "picked by the route, or always present".into()
        }
        Condition::Present => format!("present ({})", text(&scenario.phase(turn.phase).cast)),
        Condition::Votes => {
            let voters = scenario.phase(turn.phase).voters.as_ref();
            format!("a voter ({})", voters.map_or(String::new(), |voters| text(&voters.among)))
        }
        Condition::CanChoose => "an option is available".to_string(),
        Condition::Undecided(..) => "nobody has agreed yet".to_string(),
    }
}
