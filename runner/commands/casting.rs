//! `--model`: the file for the scenario's own model, and for each model that it names.

use crate::backend::{is_downloaded, locate};
use crate::replay::transcript_file;
use crate::scenario::{EngineAddress, Scenario};
use crate::trace::{self, Trace};
use anyhow::{Context as _, bail};
use std::collections::BTreeMap;
use std::path::Path;

/// A model of the command line: `MODEL`, or `NAME=MODEL`.
pub(super) type ModelArg = (Option<String>, String);

/// Parses `MODEL` or `NAME=MODEL`. (A path with `=` in it begins with `./` or `/`, or is there.)
pub(super) fn parse(text: &str) -> Result<ModelArg, String> {
    let is_name = |name: &str| {
        let is_path = name.starts_with(['.', '/', '~'])
            || is_downloaded(name)
            || name.contains("://")
            || Path::new(text).exists();
        !name.trim().is_empty() && !is_path
    };
    let given = match text.split_once('=').filter(|(name, _)| is_name(name)) {
        Some((name, model)) => (Some(name.to_string()), model.to_string()),
        None => (None, text.to_string()),
    };
    if given.1.trim().is_empty() { Err("expected MODEL or NAME=MODEL".into()) } else { Ok(given) }
}

/// The models of the command line, by name; the empty name is the scenario's own.
///
/// # Errors
/// One is given twice.
pub(super) fn by_name(given: &[ModelArg]) -> anyhow::Result<BTreeMap<String, String>> {
    let mut models = BTreeMap::new();
    for (name, model) in given {
        let name = name.clone().unwrap_or_default();
        if let Some(other) = models.insert(name.clone(), model.clone()) {
            let of = if name.is_empty() { String::new() } else { format!("{name}=") };
            bail!("--model {of}{other} and --model {of}{model} exclude each other; give one of them");
        }
    }
    Ok(models)
}

/// Replacements for a scenario's models, by name: those given, those that `runs` were played with (the first
/// one counts), files next to the scenario, and always one for the scenario's own (the empty name).
///
/// # Errors
/// One is given twice, or for a name that the scenario has no model of.
pub(super) fn models(
    given: &[ModelArg],
    scenario: &Scenario,
    runs: &[&Path],
) -> anyhow::Result<BTreeMap<String, String>> {
    let given = by_name(given)?;
    let is_unknown = |name: &&String| !name.is_empty() && !scenario.models.contains_key(*name);
    if let Some(name) = given.keys().find(is_unknown) {
        let known: Vec<&str> = scenario.models.keys().map(String::as_str).collect();
        let help = crate::diagnostic::suggest(name, known.iter().copied());
        let help = help.unwrap_or_else(|| "it has no models (`models:`)".to_string());
        bail!("--model {name}=…: the scenario has no model `{name}`; {help}");
    }
    let played =
        runs.iter().find_map(|run| Trace::models_of(&transcript_file(run).with_file_name(trace::FILE)));
    let mut models: BTreeMap<String, String> = beside(scenario).collect();
    models.extend(played.unwrap_or_default());
    models.retain(|name, _| name.is_empty() || scenario.models.contains_key(name));
    let is_file = |model: &str| !model.is_empty() && !EngineAddress::is_meant(model);
    let gone = models.iter().filter(|(name, model)| !given.contains_key(*name) && is_file(model));
    for (name, model) in gone {
        locate(model).with_context(|| {
            let option =
                if name.is_empty() { "--model MODEL".to_string() } else { format!("--model {name}=MODEL") };
            format!(
                "the run was played with `{model}`, according to its trace; use {option} to say where it is \
                 now, or to name another model"
            )
        })?;
    }
    models.extend(given);
    let own = models.entry(String::new()).or_insert_with(|| own(scenario));
    if own.is_empty() {
        *own = self::own(scenario);
    }
    models.values_mut().for_each(absolute);
    Ok(models)
}

/// The model of agents without their own: the scenario's; if no agent needs it, one that is used anyway.
fn own(scenario: &Scenario) -> String {
    scenario.usual_model().unwrap_or_else(|| "understudy".to_string())
}

/// The models of a scenario that are files next to it. The copies in runs' folders have no such files, so a
/// run records where they are.
fn beside(scenario: &Scenario) -> impl Iterator<Item = (String, String)> + '_ {
    let found = scenario.models.keys().filter_map(|name| Some((name.clone(), scenario.model(name)?)));
    found.filter(|(_, model)| Path::new(model).is_file())
}

/// A path to the file that works wherever the run is continued.
fn absolute(model: &mut String) {
    if Path::new(model.as_str()).is_file()
        && let Ok(path) = std::path::absolute(model.as_str())
    {
        *model = path.display().to_string();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_precedes_the_model() {
        let read = |text| parse(text).map(|(name, model)| (name.unwrap_or_default(), model));
        assert_eq!(read("big=a b.gguf").unwrap(), ("big".into(), "a b.gguf".into()));
        assert_eq!(read("org/gpt-3.5:8b=x.gguf").unwrap(), ("org/gpt-3.5:8b".into(), "x.gguf".into()));
        assert_eq!(read("https://h/v1?a=b").unwrap(), (String::new(), "https://h/v1?a=b".into()));
        assert_eq!(read("hf:org/repo/x=1.gguf").unwrap(), (String::new(), "hf:org/repo/x=1.gguf".into()));
        assert_eq!(read("lmstudio:org/x=1.gguf").unwrap(), (String::new(), "lmstudio:org/x=1.gguf".into()));
        assert_eq!(read("big=ollama:qwen3:8b").unwrap(), ("big".into(), "ollama:qwen3:8b".into()));
        assert_eq!(read("./x=1.gguf").unwrap(), (String::new(), "./x=1.gguf".into()));
        assert!(read("big=").is_err() && read(" ").is_err());
        let twice = by_name(&[parse("a=x").unwrap(), parse("a=y").unwrap()]).unwrap_err();
        assert_eq!(twice.to_string(), "--model a=x and --model a=y exclude each other; give one of them");
    }
}
