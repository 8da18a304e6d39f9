//! Tools in use: their descriptions for agents, and the results of calls.
//!
//! What is built in is a function of the scenario, the call and its seed, so a replay works it out again
//! ([`builtin_result`]). Programs and servers run only where a model answers and they were allowed; what they
//! gave is taken from the record afterwards.

mod built_in;
mod calculator;
mod functions;
mod mcp;
mod program;
mod streams;

use anyhow::bail;
pub use functions::{Functions, ToolFunctions};
use greenroom_engine::Call;
use greenroom_grammar::{Grammar, MAX_BYTES};
use greenroom_scenario::language::Text;
use greenroom_scenario::tools::too_large;
use greenroom_scenario::{Agent, Scenario, Tool, ToolId, ToolKind, ToolSpec};
use mcp::ServerClient;
pub use program::end_all;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The form of calls, for a model whose chat template knows no tools.
const FORM: &str = r#"{"tool": NAME, "arguments": {…}}"#;
/// Maximum number of characters of a result that are read.
pub const MAX_RESULT: usize = 2_000;

/// Reads a call of the form `{"tool": NAME, "arguments": {…}}`; `None`: a text is none.
pub fn read_call(text: &str) -> Option<Call> {
    let call: Call = serde_json::from_str(text).ok()?;
    call.arguments.is_object().then_some(call)
}

/// The beginning of a call, of which its tool could not be read: it has no name and no arguments.
pub fn cut_call() -> Call {
    Call { tool: String::new(), arguments: Value::Null }
}

/// True if a text says a call: the tool's name, and after it the arguments, as a JSON object or one by one.
pub fn says_call(text: &str, call: &Call) -> bool {
    let one_by_one = |rest: &str| {
        let mut arguments = call.arguments.as_object().into_iter().flatten();
        arguments.try_fold(rest, |rest, (name, value)| after_argument(rest, name, value)).is_some()
    };
    let follows = |rest: &str| says_value(rest, &call.arguments, '{') || one_by_one(rest);
    text.match_indices(&call.tool).any(|(at, name)| follows(&text[at + name.len()..]))
}

/// What follows an argument that is said in a text by its name, and its value after that.
fn after_argument<'t>(text: &'t str, name: &str, value: &Value) -> Option<&'t str> {
    let rest = &text[text.find(name)? + name.len()..];
    let is_said = match value {
        Value::String(said) => rest.contains(said) || rest.contains(&value.to_string()),
        // As JSON and Python write them.
        Value::Bool(said) => [said.to_string(), if *said { "True" } else { "False" }.to_string()]
            .iter()
            .any(|word| rest.contains(word)),
        Value::Null => rest.contains("null") || rest.contains("None"),
        Value::Number(_) => numbers(rest).any(|number| number == *value),
        Value::Array(_) => says_value(rest, value, '['),
        Value::Object(_) => says_value(rest, value, '{'),
    };
    is_said.then_some(rest)
}

/// True if the first value that begins so in a text is this one.
fn says_value(text: &str, value: &Value, begins: char) -> bool {
    let from = text.find(begins).map(|at| &text[at..]);
    let mut values = serde_json::Deserializer::from_str(from.unwrap_or_default()).into_iter();
    values.next().and_then(Result::ok).is_some_and(|said: Value| said == *value)
}

/// The numbers in a text.
fn numbers(text: &str) -> impl Iterator<Item = Value> {
    let words = text.split(|c: char| !(c.is_ascii_digit() || "+-.eE".contains(c)));
    words.filter_map(|word| serde_json::from_str(word).ok())
}

/// What a call gave: a text, or the reason why it failed.
pub type CallOutcome = Result<String, String>;

/// The descriptions of its tools for the model of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolOffer {
    /// The tools.
    pub tools: Vec<ToolSpec>,
    /// How they are called, as text, for a model whose chat template knows no tools.
    pub instructions: String,
}

/// The tools of a scenario, ready to be called.
#[derive(Debug, Default)]
pub struct Toolbox {
    tools: Vec<Tool>,
    /// Descriptions of each tool for models; of a server, as many as it has.
    specs: Vec<Vec<ToolSpec>>,
    /// Running servers, by the index of their tool.
    servers: BTreeMap<usize, ServerClient>,
    /// The folder in which programs start; `None`: they may not.
    folder: Option<PathBuf>,
    /// Those that are functions of the program that plays.
    functions: ToolFunctions,
}

impl Toolbox {
    /// Only the built-in tools can be called: no program is started.
    pub fn at_rest(scenario: &Scenario) -> Self {
        let specs = scenario.tools.iter().map(|tool| match &tool.kind {
            ToolKind::BuiltIn(_, spec) | ToolKind::Command(_, spec) | ToolKind::Function(_, spec) => {
                vec![spec.clone()]
            }
            ToolKind::Server(_) => Vec::new(),
        });
        Self { tools: scenario.tools.clone(), specs: specs.collect(), ..Self::default() }
    }

    /// The same, with what a recording knows of servers.
    pub fn recorded(scenario: &Scenario, recorded: &BTreeMap<String, Vec<ToolSpec>>) -> Self {
        let mut toolbox = Self::at_rest(scenario);
        for (tool, specs) in scenario.tools.iter().zip(&mut toolbox.specs) {
            if let (ToolKind::Server(_), Some(was)) = (&tool.kind, recorded.get(&tool.key)) {
                specs.clone_from(was);
            }
        }
        toolbox
    }

    /// The programs and servers that agents may call, as command lines and URLs.
    pub fn outside(scenario: &Scenario) -> Vec<String> {
        let lines = called(scenario).filter_map(|(_, tool)| match &tool.kind {
            ToolKind::Command(command, _) => Some(command.line.join(" ")),
            ToolKind::Server(server) => Some(server.address.to_string()),
            // A function belongs to whoever plays the scenario.
            ToolKind::BuiltIn(..) | ToolKind::Function(..) => None,
        });
        lines.collect()
    }

    /// With the functions of the program that plays.
    ///
    /// # Errors
    /// The program lacks one that an agent may call.
    pub fn with_functions(self, scenario: &Scenario, functions: ToolFunctions) -> anyhow::Result<Self> {
        for (_, tool) in called(scenario) {
            if let ToolKind::Function(name, _) = &tool.kind
                && !functions.has(name)
            {
                bail!(
                    "the tool `{}` is the function `{name}` of a Python program: play the scenario from \
                     there, with `greenroom.run(…, tools=[{name}])`",
                    tool.key
                );
            }
        }
        Ok(Self { functions, ..self })
    }

    /// The tools with their programs, which start in `folder`.
    ///
    /// # Errors
    /// A server can't be started or reached, does not list its tools, or an agent has too many.
    pub async fn open(scenario: &Scenario, folder: &Path) -> anyhow::Result<Self> {
        let mut toolbox = Self { folder: Some(folder.to_path_buf()), ..Self::at_rest(scenario) };
        for (at, tool) in called(scenario) {
            if let ToolKind::Server(server) = &tool.kind {
                let (client, specs) = ServerClient::open(&tool.key, server, folder).await?;
                toolbox.servers.insert(at, client);
                toolbox.specs[at] = specs;
            }
        }
        for agent in &scenario.agents {
            if let Some(bytes) = too_large(agent.tools.iter().flat_map(|id| &toolbox.specs[id.0])) {
                bail!(
                    "the descriptions of the tools of `{}` take {bytes} bytes in total; at most {MAX_BYTES} \
                     are allowed: select some of a server's tools with `only`, or divide the tools between \
                     two agents",
                    agent.key
                );
            }
        }
        Ok(toolbox)
    }

    /// Ends the sessions of servers elsewhere. Programs end with this value.
    pub async fn close(&self) {
        // All are told at once: one that does not answer keeps the others from nothing.
        let closing: Vec<_> = self.servers.values().filter_map(ServerClient::close).collect();
        for closed in closing {
            // Nothing depends on whether it succeeds.
            let _ = closed.await;
        }
    }

    /// True if a tool that works outside the scenario may be called here.
    pub fn can_call(&self, id: ToolId) -> bool {
        match &self.tools[id.0].kind {
            ToolKind::Function(name, _) => self.functions.has(name),
            _ => self.folder.is_some(),
        }
    }

    /// Descriptions of all tools for models, by their names in the scenario.
    pub fn specs_by_key(&self, scenario: &Scenario) -> BTreeMap<String, Vec<ToolSpec>> {
        let specs = scenario.tools.iter().zip(&self.specs);
        specs.map(|(tool, specs)| (tool.key.clone(), specs.clone())).collect()
    }

    /// Descriptions for the model of an agent; `None`: it has no tools.
    pub fn offer(&self, scenario: &Scenario, agent: &Agent) -> Option<Arc<ToolOffer>> {
        let tools: Vec<ToolSpec> = agent.tools.iter().flat_map(|id| self.specs[id.0].clone()).collect();
        if tools.is_empty() {
            return None;
        }
        let lines: String = tools.iter().map(|spec| format!("\n{}", describe(spec))).collect();
        let instructions = format!("{}\n{FORM}{lines}", scenario.language.text(Text::Tools));
        Some(Arc::new(ToolOffer { tools, instructions }))
    }

    /// What a call of a program, a function or a server gives. One whose arguments are not in their schema fails.
    pub async fn call(&self, id: ToolId, call: Call) -> CallOutcome {
        match &self.tools[id.0].kind {
            ToolKind::BuiltIn(..) => Err("it is not a program".into()),
            ToolKind::Command(command, spec) => {
                let Some(folder) = &self.folder else { return Err("programs are not allowed to run".into()) };
                let arguments = fitting(spec, &call.arguments)?;
                program::call(&command.line, folder, command.timeout, arguments.to_string()).await
            }
            ToolKind::Function(name, spec) => {
                self.functions.call(name, fitting(spec, &call.arguments)?).await
            }
            ToolKind::Server(_) => {
                let spec = self.specs[id.0].iter().find(|spec| spec.name == call.tool);
                let spec = spec.ok_or_else(|| format!("there is no tool `{}`", call.tool))?;
                let client = self.servers.get(&id.0).ok_or("the server was not started")?;
                client.call(&call, fitting(spec, &call.arguments)?).await
            }
        }
    }
}

/// The tools that some agent may call.
fn called(scenario: &Scenario) -> impl Iterator<Item = (usize, &Tool)> {
    let is_called = |at: usize| scenario.agents.iter().any(|agent| agent.tools.contains(&ToolId(at)));
    scenario.tools.iter().enumerate().filter(move |(at, _)| is_called(*at))
}

/// A tool in a line, for a model whose chat template knows no tools.
fn describe(spec: &ToolSpec) -> String {
    let fields = spec.arguments["properties"].as_object();
    let fields = fields.map(|fields| Value::Object(fields.clone()).to_string()).unwrap_or_default();
    format!("- {}: {} Arguments: {fields}", spec.name, spec.about.trim())
}

/// Arguments in the order of their schema, in which they must be.
fn fitting(spec: &ToolSpec, arguments: &Value) -> Result<Value, String> {
    let mut given = arguments.as_object().cloned().ok_or("the arguments are no object")?;
    let known = spec.arguments["properties"].as_object();
    let mut ordered = serde_json::Map::new();
    for name in known.into_iter().flat_map(|known| known.keys()) {
        ordered.extend(given.remove(name).map(|value| (name.clone(), value)));
    }
    ordered.extend(given);
    let ordered = Value::Object(ordered);
    let relaxed = Grammar::json_schema(&spec.arguments).relaxed().map_err(|error| error.to_string())?;
    let accepted = relaxed.accepts(&ordered.to_string());
    accepted.map(|()| ordered).map_err(|mismatch| format!("the arguments do not fit: {mismatch}"))
}

/// The tool of that name which an agent may call; of a server's, whether it has one of that name is not known
/// here.
pub fn named(scenario: &Scenario, agent: &Agent, name: &str) -> Option<ToolId> {
    agent.tools.iter().find(|id| scenario.tools[id.0].is_called(name)).copied()
}

/// The folder in which a scenario's programs start: that of its file, or of the file of that name which a
/// run's own copy was made of.
///
/// # Errors
/// There is no such file here.
pub fn folder<'a>(scenario: &'a Scenario, copied_from: Option<&'a str>) -> anyhow::Result<&'a Path> {
    let file = Path::new(copied_from.unwrap_or(&scenario.sources.main().name));
    if copied_from.is_some() && !file.is_file() {
        let file = file.display();
        bail!(
            "programs start in the folder of {file}, which was not found: change to the folder that contains \
             it"
        );
    }
    Ok(file.parent().unwrap_or(Path::new("")))
}

/// A result as it is read and recorded: of one that is longer, the first characters and an ellipsis, `most`
/// in all (at least 1).
pub fn bounded(result: &str, most: usize) -> String {
    if result.chars().count() <= most {
        return result.to_string();
    }
    let kept: String = result.chars().take(most.saturating_sub(2)).collect();
    format!("{} …", kept.trim_end()).trim_start().to_string()
}

/// What a call of a tool that is built in gives; `None`: it is not.
pub fn builtin_result(kind: &ToolKind, arguments: &Value, seed: u64) -> Option<CallOutcome> {
    let ToolKind::BuiltIn(tool, spec) = kind else { return None };
    Some(fitting(spec, arguments).and_then(|arguments| built_in::work_out(tool, &arguments, seed)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_call_is_said_as_json_or_argument_by_argument() {
        let arguments = json!({ "what": "3 + 4", "n": 7.5, "all": true, "of": [1, 2] });
        let call = Call { tool: "sums".to_string(), arguments };
        for text in [
            r#"{"tool": "sums", "arguments": {"what": "3 + 4", "n": 7.50, "all": true, "of": [1, 2]}}"#,
            "<tool_call>\n<function=sums>\n<parameter=what>\n3 + 4\n</parameter>\n<parameter=n>\n7.5\n</parameter>\n\
             <parameter=all>\nTrue\n</parameter>\n<parameter=of>\n[1,2]\n</parameter>\n</function>",
            r#"[sums(what="3 + 4", n=7.5, all=True, of=[1, 2])]"#,
        ] {
            assert!(says_call(text, &call), "{text}");
            let other = Call { tool: "roll".to_string(), ..call.clone() };
            assert!(!says_call(text, &other), "{text}");
            for (name, value) in
                [("n", json!(8)), ("what", json!("3 + 5")), ("all", json!(false)), ("of", json!([1]))]
            {
                let mut other = call.clone();
                other.arguments[name] = value;
                assert!(!says_call(text, &other), "{text} says no {name}");
            }
        }
    }
}
