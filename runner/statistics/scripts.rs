//! Scripts beside the tables that compute the first figure from them, for statsmodels (Python) and lme4 (R):
//! other models are their business.

use super::subject::{AgentQuestion, Subject};
use super::summary::Summary;
use crate::files;
use anyhow::Context as _;
use std::path::{Path, PathBuf};

/// Names of the files, with their texts; what is between `@`s is replaced.
const SCRIPTS: [(&str, &str, Language); 2] = [
    ("analysis.py", include_str!("../../templates/analysis/analysis.py"), Language::Python),
    ("analysis.R", include_str!("../../templates/analysis/analysis.R"), Language::R),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Language {
    Python,
    R,
}

/// Where a figure's observations are in the tables.
struct Source {
    table: &'static str,
    /// Columns and the values that they must have.
    rows: Vec<(&'static str, String)>,
    column: String,
    /// The text whose rate this is; `None`: the column is a number, true or false.
    is: Option<String>,
}

/// Writes the scripts into the folder of the tables, and returns their paths. A script that is there already
/// stays as it is, since it may have been changed. None is written if no figure has its observations in one
/// column.
///
/// # Errors
/// A file can't be written.
pub fn scripts(summary: &Summary, folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let shown = summary.shown();
    let main = shown.main_figures();
    let Some((figure, source)) = main.iter().find_map(|figure| Some((*figure, Source::of(&figure.subject)?)))
    else {
        return Ok(Vec::new());
    };
    let cluster = if shown.pools_cases() { super::CASE } else { "seed" };
    let mut written = Vec::new();
    for (name, text, language) in SCRIPTS {
        let path = folder.join(name);
        if !path.exists() {
            let text = text
                .replace("@SELECT@", &source.select(language))
                .replace("@VALUE@", &source.value(language))
                .replace("@TABLE@", &literal(source.table))
                .replace("@CLUSTER@", &literal(cluster))
                .replace("= @FIGURE@\n", &format!("= {}\n", literal(&figure.name)))
                .replace("cat(@FIGURE@", &format!("cat({}", literal(&figure.name)));
            files::write(&path, text).with_context(|| format!("can't write {}", path.display()))?;
        }
        written.push(path);
    }
    Ok(written)
}

/// A text as either language writes it.
fn literal(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

impl Source {
    fn of(subject: &Subject) -> Option<Self> {
        let of_runs =
            |column: String, is: Option<String>| Self { table: "runs", rows: Vec::new(), column, is };
        match subject {
            Subject::Outcome { outcome, value } => Some(of_runs(format!("outcome.{outcome}"), value.clone())),
            Subject::Payoff { agent: Some(agent), .. } => Some(of_runs(format!("payoff.{agent}"), None)),
            Subject::Decision { phase, option: Some(option) } => {
                Some(of_runs(format!("decision.{phase}"), Some(option.clone())))
            }
            Subject::Choice(asked) => Some(Self::of_choices(&asked.question, Some(asked.option.clone()))),
            Subject::Number(question) => Some(Self::of_choices(question, None)),
            _ => None,
        }
    }

    fn of_choices(question: &AgentQuestion, is: Option<String>) -> Self {
        let mut rows = vec![("phase", question.phase.clone()), ("purpose", question.purpose.to_string())];
        rows.extend(question.agent.as_ref().map(|agent| ("agent", agent.clone())));
        Self { table: "choices", rows, column: "option".to_string(), is }
    }

    /// Lines that leave out the rows of other figures.
    fn select(&self, language: Language) -> String {
        let line = |(column, value): &(&str, String)| {
            let (column, value) = (literal(column), literal(value));
            match language {
                Language::Python => format!("data = data[data[{column}] == {value}].copy()\n"),
                Language::R => format!("data <- data[data[[{column}]] == {value}, ]\n"),
            }
        };
        self.rows.iter().map(line).collect()
    }

    /// The observations. An invalid choice is none of the options; a result that is missing has no value.
    fn value(&self, language: Language) -> String {
        let column = literal(&self.column);
        let (of_choice, is) = (self.table == "choices", self.is.as_ref().map(|text| literal(text)));
        match (language, is) {
            (Language::Python, None) if of_choice => format!("pd.to_numeric(data[{column}])"),
            (Language::Python, None) => format!("data[{column}]"),
            (Language::Python, Some(is)) if of_choice => format!("data[{column}] == {is}"),
            (Language::Python, Some(is)) => {
                format!("(data[{column}] == {is}).astype(float).where(data[{column}].notna())")
            }
            (Language::R, None) => format!("data[[{column}]]"),
            (Language::R, Some(is)) if of_choice => format!("data[[{column}]] %in% {is}"),
            (Language::R, Some(is)) => format!("data[[{column}]] == {is}"),
        }
    }
}
