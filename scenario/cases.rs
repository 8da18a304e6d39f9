//! Cases: rows of a file, each of which gives variables of a scenario other values. A run of a case is one
//! with these overrides, and one more that names it; so a replay needs no file, and where there is one, it
//! tells whether the row has changed since.
//!
//! A case has its own random numbers: they are derived from the run's seed and from what is in the row
//! ([`CaseId`]), so they do not depend on other rows, on the order of rows and columns, or on variables that
//! are set otherwise.

use super::Scenario;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The override that names a case; a scenario with cases has no variable of this name.
pub const CASE: &str = "cases";

/// A row of a file of cases.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// Its name: what is under `case`, else the row's number, from 1.
    pub name: String,
    /// The variables that it gives, or parts of them, in the order of the file.
    pub values: Vec<(String, Value)>,
    /// The content of the row.
    pub id: CaseId,
}

/// The content of a row, from which, with a run's seed, the random numbers of its case are derived.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaseId {
    /// blake3 (hex) of the row's columns with their values in JSON, by name.
    pub blake3: String,
    /// The number of earlier rows with the same content.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub copy: u64,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

impl CaseId {
    /// The id of a row with these columns, the one that names the case included, after `copy` rows with the
    /// same content.
    pub fn of(columns: &[(&str, &Value)], copy: u64) -> Self {
        let mut row: Value =
            columns.iter().map(|(name, value)| ((*name).to_string(), (*value).clone())).collect();
        row.sort_all_objects();
        Self { blake3: blake3::hash(row.to_string().as_bytes()).to_hex().to_string(), copy }
    }

    /// The root of the turns' seeds in a run of the case with this seed.
    pub fn root(&self, seed: u64) -> u64 {
        let material = [&seed.to_le_bytes(), self.blake3.as_bytes(), &self.copy.to_le_bytes()].concat();
        let key = blake3::derive_key("greenroom 2026 case", &material);
        let mut first = [0u8; 8];
        first.copy_from_slice(&key[..8]);
        u64::from_le_bytes(first)
    }
}

impl Case {
    /// What a run of it overrides: its name, then its values.
    pub fn overrides(&self) -> Vec<(String, Value)> {
        let name = (CASE.to_string(), self.name.clone().into());
        std::iter::once(name).chain(self.values.iter().cloned()).collect()
    }
}

impl Scenario {
    /// The name of the case that it is played with.
    pub fn case(&self) -> Option<&str> {
        // A scenario without cases may have a variable of this name.
        named(&self.overrides).filter(|_| !self.variables.contains_key(CASE))
    }

    /// The row that it is played with, where the file of cases is known.
    pub fn row(&self) -> Option<&Case> {
        let name = self.case()?;
        self.cases.as_ref()?.iter().find(|case| case.name == name)
    }

    /// The case of a name, or of a row's number.
    ///
    /// # Errors
    /// As text: there is none.
    pub fn case_of(&self, wanted: &str) -> Result<&Case, String> {
        let Some(cases) = &self.cases else { return Err("the scenario has no `cases`".into()) };
        let row = || wanted.parse::<usize>().ok()?.checked_sub(1).and_then(|at| cases.get(at));
        let found = cases.iter().find(|case| case.name == wanted).or_else(row);
        found.ok_or_else(|| {
            let names = cases.iter().map(|case| case.name.as_str());
            let help = greenroom_yaml::diagnostic::suggest(wanted, names);
            let help = help.unwrap_or_else(|| format!("the scenario has {}", cases.len()));
            format!("there is no case `{wanted}`; {help}")
        })
    }

    /// The values of a recorded case as they were and as the file has them now, where they differ. Nothing is
    /// known where there is no file.
    pub fn case_differs(&self, recorded: &[(String, Value)]) -> Option<(String, String)> {
        let (name, cases) = (named(recorded)?, self.cases.as_ref()?);
        let now = cases.iter().find(|case| case.name == name).map(|case| &case.values);
        let values = recorded.iter().skip_while(|(name, _)| name != CASE).skip(1);
        let was: Vec<_> = values.take(now.map_or(0, Vec::len)).cloned().collect();
        let same = now.is_some_and(|now| is_same(&was, now));
        (!same)
            .then(|| (values_text(&was), now.map_or_else(|| "no such case".into(), |now| values_text(now))))
    }
}

fn named(overrides: &[(String, Value)]) -> Option<&str> {
    overrides.iter().find(|(name, _)| name == CASE)?.1.as_str()
}

/// True of equal values; line ends within texts may differ, since git may change them.
fn is_same(one: &[(String, Value)], other: &[(String, Value)]) -> bool {
    let plain = |value: &Value| match value {
        Value::String(text) => text.replace("\r\n", "\n").into(),
        other => other.clone(),
    };
    let same = |((name, one), (other_name, other)): (&(String, Value), &(String, Value))| {
        name == other_name && plain(one) == plain(other)
    };
    one.len() == other.len() && one.iter().zip(other).all(same)
}

fn values_text(values: &[(String, Value)]) -> String {
    Value::Object(values.iter().cloned().collect::<Map<_, _>>()).to_string()
}
