//! Checks judges. Each becomes a phase after all others with one turn, which no agent hears; if no member of
//! the cast is asked, an external agent is added for it. In all other respects they are phases, turns and
//! agents.

use super::choices::Answer;
use super::{Checker, is_identifier, named};
use crate::hints::Hints;
use crate::language::Text;
use crate::schema::{Key, Written, WrittenAssertion, WrittenJudge};
use crate::template::Template;
use crate::{Agent, AgentId, Choice, Form, Lifecycle, MemoryPolicy, Phase, PhaseId, ScriptTurn, Topology};
use greenroom_yaml::Path;
use greenroom_yaml::diagnostic::Diagnostic;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Maximum number of judges of a scenario.
const MAX_JUDGES: usize = 100;

/// A judge as it is written.
pub(super) struct JudgeDeclaration {
    /// Its place in the file.
    pub(super) path: Path,
    /// The name of its phase.
    pub(super) name: String,
    written: WrittenJudge,
}

impl Checker {
    /// All judges, each with a name, those beside assertions last; they are taken out.
    pub(super) fn judges(&mut self, written: &mut Written) -> Vec<JudgeDeclaration> {
        let mut taken = taken_names(written);
        let mut found: Vec<(Option<String>, Box<WrittenJudge>, Path)> = Vec::new();
        let top = Path::default();
        for (name, judge) in written.judges.take().unwrap_or_default() {
            let (path, Some(mut judge)) = (top.key("judges").key(&*name), judge) else { continue };
            if judge.name.take().is_some() {
                let message = "`name` has no effect here: the judge's name is its key";
                self.unused(&path.key("name"), message, "remove it");
            }
            found.push((Some(name), judge, path));
        }
        for (at, assertion) in written.assertions.iter_mut().flatten().enumerate() {
            let Some(WrittenAssertion::Long(assertion)) = assertion else { continue };
            let Some(judge) = assertion.judge.take() else { continue };
            found.push((judge.name.clone(), judge, top.key("assertions").index(at).key("judge")));
        }
        let mut judges: Vec<JudgeDeclaration> = Vec::new();
        for (name, written, path) in found {
            if judges.len() == MAX_JUDGES {
                let message = format!("more than {MAX_JUDGES} judges; at most {MAX_JUDGES} are allowed");
                self.error("too-many", &path, message).help =
                    Some("let a judge answer several questions in one `schema`".into());
                break;
            }
            let name = name.unwrap_or_else(|| free_name(&taken));
            if let Some(first) = judges.iter().find(|other| other.name == name) {
                let first = self.tree.value(&first.path.key("name"));
                let message = format!("two judges are named `{name}`");
                let found = self.error("duplicate-name", &path.key("name"), message);
                found.related = Some((first, "first defined here".into()));
                found.help = Some("give each judge its own name".into());
            }
            if !is_identifier(&name) {
                let message = format!("`{name}` is not a valid judge name: use letters, digits and `_`");
                let help = format!("for example `{}`", super::phases::identifier_from(&name));
                self.error("bad-name", &path.key("name"), message).help = Some(help);
            }
            taken.insert(name.clone());
            judges.push(JudgeDeclaration { path, name, written: *written });
        }
        judges
    }

    /// The phases of judges, added to the others; the judges from outside are added to the cast.
    pub(super) fn ask_judges(
        &mut self,
        judges: Vec<JudgeDeclaration>,
        phases: &mut Vec<Phase>,
        agents: &mut Vec<Agent>,
    ) {
        let first = self.names.phases.len() - judges.len();
        for (at, judge) in judges.into_iter().enumerate() {
            let JudgeDeclaration { path, name, mut written } = judge;
            let id = PhaseId(first + at);
            let hints = self.hints(written.model.take(), written.sampling.take(), &path);
            let member = written.agent.take();
            let turn = self.question(written, &path, id);
            let agent = match member {
                Some(Key(key)) => {
                    let member = self.agent_id(&key, &path.key("agent"));
                    member.inspect(|member| self.remembers(*member, phases, &path))
                }
                None => {
                    agents.push(self.outsider(&name, &path));
                    Some(AgentId(agents.len() - 1))
                }
            };
            let turn = agent.zip(turn).map(|(agent, turn)| ScriptTurn { agent, ..turn });
            let agents = agent.into_iter().collect();
            phases.push(phase(name, path, agents, turn.into_iter().collect(), hints));
        }
    }

    /// What a judge is asked, and what it may answer.
    fn question(&mut self, written: WrittenJudge, path: &Path, id: PhaseId) -> Option<ScriptTurn> {
        let WrittenJudge { ask, answer, .. } = written;
        if ask.is_none() {
            let message = "a judge needs `ask`: the question";
            self.missing(&path.key("ask"), message, "e.g. `ask: Did both keep their promise?`");
        }
        if answer.is_none() {
            let message = "a judge needs `answer`: the possible verdicts";
            self.missing(&path.key("answer"), message, "e.g. `answer: [kept, broken]`");
        }
        let answer = self.answer(answer, None, path, id);
        self.is_one_reply(&answer, "a judge", path);
        let Answer { choice, form, .. } = answer;
        let ask = self.template(ask, path.key("ask"), id).map(Arc::new);
        (choice.is_some() || form.is_some()).then(|| turn(ask, choice, form))
    }

    /// Rejects a judge that remembers nothing of what it is asked about.
    fn remembers(&mut self, member: AgentId, phases: &[Phase], path: &Path) {
        let (path, agent) = (path.key("agent"), &self.names.agents[member.0]);
        let key = agent.key.clone();
        let help = "leave `agent` out: a judge from outside reads everything that was said";
        if agent.lifecycle == Lifecycle::Ephemeral {
            let message = format!("`{key}` is ephemeral: it remembers nothing after the phases");
            self.error("contradiction", &path, message).help = Some(help.into());
        } else if !phases.iter().any(|phase| phase.agents.contains(&member)) {
            let message =
                format!("`{key}` is not present in any phase, so it knows nothing of what happened");
            let span = self.tree.value(&path);
            self.push(Diagnostic::warning("no-effect", path.to_string(), span, message).help(help));
        }
    }

    fn outsider(&self, name: &str, path: &Path) -> Agent {
        Agent {
            key: name.to_string(),
            name: self.language.text(Text::Judge).to_string(),
            role: String::new(),
            traits: Arc::default(),
            system: self.language.text(Text::JudgeSystem).to_string(),
            system_path: path.clone(),
            lifecycle: Lifecycle::Ephemeral,
            is_silent: false,
            color: None,
            strategy: None,
            memory: MemoryPolicy::default(),
            hints: Hints::default(),
            tools: Vec::new(),
            max_calls: 0,
            is_outside: true,
        }
    }
}

/// Names that a scenario gives to anything else.
fn taken_names(written: &Written) -> BTreeSet<String> {
    let parts = written.phases.as_deref().unwrap_or_default();
    let (mut phases, mut places) = (Vec::new(), Vec::new());
    named(parts, &Path::default(), &mut phases, &mut places);
    let values = written.variables.iter().chain(&written.state).flat_map(|values| values.keys());
    let lets = written.lets.iter().flat_map(|lets| lets.keys());
    let agents = written.agents.iter().flat_map(|agents| agents.keys());
    values.chain(lets).chain(agents).cloned().chain(phases).collect()
}

/// `judge`, or the first of `judge_2`, `judge_3`, … that is not taken.
fn free_name(taken: &BTreeSet<String>) -> String {
    let numbered = (2..).map(|n| format!("judge_{n}"));
    let mut names = std::iter::once("judge".to_string()).chain(numbered);
    names.find(|name| !taken.contains(name)).unwrap_or_default()
}

fn turn(ask: Option<Arc<Template>>, choice: Option<Arc<Choice>>, form: Option<Arc<Form>>) -> ScriptTurn {
    ScriptTurn {
        agent: AgentId(0),
        variant: 0,
        ask,
        when: None,
        choice,
        form,
        call: None,
        to: Vec::new(),
        is_unheard: None,
        set: Arc::default(),
        hints: Hints::default(),
    }
}

/// A phase in which one agent is asked once, unheard.
fn phase(name: String, path: Path, agents: Vec<AgentId>, turns: Vec<ScriptTurn>, hints: Hints) -> Phase {
    Phase {
        label: name.clone(),
        part: name.clone(),
        name,
        path,
        pass: None,
        agents,
        cast: None,
        voters: None,
        is_secret_vote: false,
        is_unheard: true,
        is_judge: true,
        observers: Vec::new(),
        topology: Topology::Script(turns),
        whispers: BTreeMap::new(),
        overhears: Vec::new(),
        when: None,
        until: None,
        choice: None,
        ask: None,
        form: None,
        call: None,
        decision: None,
        format: None,
        initial: None,
        openings: Vec::new(),
        announcements: Vec::new(),
        set_each_round: Arc::default(),
        set: Arc::default(),
        route: None,
        rounds: 1,
        max_turns: None,
        fresh: false,
        hints,
    }
}
