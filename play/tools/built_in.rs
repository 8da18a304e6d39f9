//! The tools of the program's own: functions of the scenario, the arguments and the seed of the call.

use super::CallOutcome;
use super::calculator::calculate;
use greenroom_scenario::BuiltIn;
use greenroom_scenario::diagnostic::{Suggestion, suggestion};
use greenroom_scenario::tools::LookupTable;
use serde_json::{Value, json};

/// What a call gives, whose arguments are in their schema.
pub(super) fn work_out(tool: &BuiltIn, arguments: &Value, seed: u64) -> CallOutcome {
    let text = |name: &str| arguments[name].as_str().unwrap_or_default();
    match tool {
        BuiltIn::Calculator => calculate(text("expression")),
        BuiltIn::Dice => {
            let number = |name: &str| arguments[name].as_u64().unwrap_or(1).clamp(1, 1000);
            Ok(roll(seed, number("count"), number("sides")))
        }
        BuiltIn::Lookup(table) => look_up(table, arguments),
        BuiltIn::Notes => Ok(text("note").to_string()),
    }
}

/// Rolls dice: uniform, for what would favour the first sides is drawn again.
fn roll(seed: u64, count: u64, sides: u64) -> String {
    let mut hasher = blake3::Hasher::new();
    let mut stream = hasher.update(b"dice").update(&seed.to_le_bytes()).finalize_xof();
    let fair = u64::MAX - u64::MAX % sides;
    let mut one = || loop {
        let mut bytes = [0; 8];
        stream.fill(&mut bytes);
        let drawn = u64::from_le_bytes(bytes);
        if drawn < fair {
            return drawn % sides + 1;
        }
    };
    let rolls: Vec<u64> = (0..count).map(|_| one()).collect();
    json!({ "rolls": rolls, "sum": rolls.iter().sum::<u64>() }).to_string()
}

fn look_up(table: &LookupTable, arguments: &Value) -> CallOutcome {
    let wanted = greenroom_scenario::text_of(&arguments[&table.key]);
    match table.rows.get(&wanted).map(Vec::as_slice) {
        Some([row]) => Ok(row.to_string()),
        Some(rows) => Ok(json!(rows).to_string()),
        None => {
            // Agents read this, and a replay works it out again: other words would be drift.
            let near = match suggestion(&wanted, table.rows.keys().map(String::as_str)) {
                Some(Suggestion::Any(keys)) => format!("; there is: `{}`", keys.join("`, `")),
                Some(near) => format!("; {near}"),
                None => String::new(),
            };
            Err(format!("there is no {} `{wanted}`{near}", table.key))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    #[test]
    fn dice_fall_by_their_seed_on_all_sides() {
        assert_eq!(roll(7, 3, 6), roll(7, 3, 6));
        let rolled = |seed| serde_json::from_str::<Value>(&roll(seed, 100, 6)).unwrap();
        let sides: BTreeSet<u64> =
            rolled(1)["rolls"].as_array().unwrap().iter().filter_map(Value::as_u64).collect();
        assert_eq!(sides, (1..=6).collect());
        assert_ne!(rolled(1), rolled(2));
        assert_eq!(roll(7, 3, 6), r#"{"rolls":[2,3,2],"sum":7}"#);
    }

    #[test]
    fn a_miss_names_what_is_near() {
        let rows = [("corn", 3), ("wheat", 4)];
        let row =
            |(name, price): (&str, u64)| (name.to_string(), vec![json!({ "item": name, "price": price })]);
        let table = LookupTable { key: "item".into(), rows: BTreeMap::from(rows.map(row)) };
        assert_eq!(look_up(&table, &json!({ "item": "corn" })).unwrap(), r#"{"item":"corn","price":3}"#);
        let missed = look_up(&table, &json!({ "item": "wheet" })).unwrap_err();
        assert!(missed.contains("wheat"), "{missed}");
    }
}
