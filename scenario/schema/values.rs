//! Small forms used in many places: names of phases, keys, texts, expressions, tables.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Number, Value};

/// The name of a phase, or a list of names.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(untagged)]
pub enum PhaseNames {
    /// A single one.
    One(String),
    /// Several.
    Many(#[schemars(with = "Vec<String>", extend("minItems" = 1))] Vec<Option<String>>),
}

/// A level of a payoff matrix.
#[derive(Clone, Debug, Deserialize)]
pub enum Matrix {
    /// By the options of the player at this level.
    Texts(IndexMap<String, Option<Matrix>>),
    /// What each player gets.
    List(Vec<Option<WrittenExpression>>),
    /// Neither: a mistake that `check` explains.
    That(Scalar),
}

/// The key of an agent under `agents`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub struct Key(pub String);

/// The key of an agent, or a list of keys.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(untagged)]
pub enum Keys {
    /// A single one.
    One(String),
    /// Several.
    Many(#[schemars(with = "Vec<String>", extend("minItems" = 1))] Vec<Option<String>>),
}

/// Agent keys, or an expression that returns a list of them.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Cast", untagged)]
pub enum WrittenCast {
    /// Keys.
    List(#[schemars(with = "Vec<Key>", extend("minItems" = 1))] Vec<Option<Key>>),
    /// An expression.
    Text(String),
}

/// A text in which `{{ … }}` is replaced by a value.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Template")]
pub struct WrittenTemplate(pub String);

/// A text in which `{{ … }}` is replaced by a value before the run: it can use variables, and nothing that is
/// known only during a run.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Text")]
pub struct WrittenText(pub String);

/// An expression over variables and results, e.g. `vote.decision == 'yes' and payoffs.ann > 3`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Expression", untagged)]
pub enum WrittenExpression {
    /// A text.
    Text(String),
    /// A number.
    Number(#[schemars(with = "f64")] Number),
    /// True or false.
    Truth(bool),
}

/// A whole number, or an expression over variables that returns one.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[schemars(rename = "Count", untagged)]
pub enum WrittenCount {
    /// A number.
    Number(u64),
    /// An expression.
    Text(String),
}

/// A text, a number or a truth value.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(untagged)]
pub enum Scalar {
    /// A text.
    Text(String),
    /// A number.
    Number(#[schemars(with = "f64")] Number),
    /// True or false.
    Truth(bool),
}

/// Results and the texts that are said for them, in the order of the file.
#[derive(Clone, Debug)]
pub struct Texts(pub Vec<(Scalar, Option<Scalar>)>);

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(TextsVisitor)
    }
}

struct TextsVisitor;

impl<'de> Visitor<'de> for TextsVisitor {
    type Value = Texts;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a mapping from results to texts")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Texts, A::Error> {
        let mut texts = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            texts.push(entry);
        }
        Ok(Texts(texts))
    }
}

impl From<Scalar> for Value {
    fn from(scalar: Scalar) -> Self {
        match scalar {
            Scalar::Text(text) => text.into(),
            Scalar::Number(number) => number.into(),
            Scalar::Truth(truth) => truth.into(),
        }
    }
}

impl WrittenExpression {
    /// The expression's text; a number or truth value as itself.
    pub fn text(self) -> String {
        match self {
            Self::Text(text) => text,
            Self::Number(number) => number.to_string(),
            Self::Truth(truth) => truth.to_string(),
        }
    }
}

/// `NAME in LIST`, `NAME, NAME in LIST`.
pub(super) const FOR: &str = r"^\s*[A-Za-z_]\w*(\s*,\s*[A-Za-z_]\w*)*\s+in\s+\S";

/// What a template can name.
pub(super) const NAME: &str = "^[A-Za-z_][A-Za-z0-9_]*$";
