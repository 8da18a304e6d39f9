//! References of a relaxed schema. A keyword that masks can't enforce is moved or left out, and schemas in it
//! may be referred to: these move to `$defs`, and the references with them.

use super::Relaxation;
use crate::bounds::MAX_BYTES;
use crate::error::{Error, Result};
use crate::schema::{pointer_to, redirect, references, target};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet, HashMap};

impl Relaxation {
    /// Makes each `$ref` of a relaxed schema lead to the relaxed form of the schema that it led to before.
    /// One that leads out of the schema stays, and is refused where it is followed.
    ///
    /// # Errors
    /// The schema becomes too large.
    pub(super) fn keep_references(&mut self, schema: &Value, relaxed: &mut Value) -> Result<()> {
        let (mut moved, mut definitions) = (BTreeMap::new(), Map::new());
        let (mut open, mut known, mut n_bytes) = (references_in(relaxed), BTreeSet::new(), 0);
        // New references of schemas by their places, however they were referred to; none where they stay.
        let mut places: HashMap<String, Option<String>> = HashMap::new();
        while let Some(reference) = open.pop() {
            if !known.insert(reference.clone()) {
                continue;
            }
            let Ok(target_before) = target(schema, &reference) else { continue };
            let place = pointer_to(schema, target_before).unwrap_or_default();
            if let Some(known) = places.get(&place) {
                moved.extend(known.clone().map(|now| (reference, now)));
                continue;
            }
            let wanted = self.schema(target_before, &place);
            if target(relaxed, &reference).is_ok_and(|found| *found == wanted) {
                places.insert(place, None);
                continue;
            }
            n_bytes += wanted.to_string().len();
            if n_bytes > MAX_BYTES {
                let found = "its `$ref`s lead to keywords that can't be enforced while a text is written";
                return Err(Error(format!("{found}, and are too many to be followed: move them to `$defs`")));
            }
            open.extend(references_in(&wanted));
            let is_free = |name: &String| {
                !definitions.contains_key(name)
                    && schema.get("$defs").is_none_or(|defs| defs.get(name).is_none())
            };
            let Some(name) = (0..).map(|n| format!("moved-{n}")).find(is_free) else { continue };
            let now = format!("#/$defs/{name}");
            places.insert(place, Some(now.clone()));
            moved.insert(reference, now);
            definitions.insert(name, wanted);
        }
        if let Value::Object(fields) = &mut *relaxed
            && !moved.is_empty()
        {
            let all = fields.entry("$defs").or_insert_with(|| json!({}));
            let all = all.as_object_mut().ok_or_else(|| Error("`$defs` must be a mapping".into()))?;
            all.extend(definitions);
            redirect(relaxed, &moved);
        }
        Ok(())
    }
}

fn references_in(schema: &Value) -> Vec<String> {
    let mut found = BTreeSet::new();
    references(schema, &mut found);
    found.into_iter().map(str::to_owned).collect()
}
