//! Random JSON Schemas, played on a model: every reply that ends is valid by another validator (boon), and
//! the same seed says the same under a narrower schema. Shared by the tests without a model (a random one
//! plays) and those on trained models.

use greenroom_engine::{
    Completion, Constraint, Conversation, Engine, Event, Grammar, Request, Sampling, SessionKey, StopReason,
    Turn,
};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Numbers drawn one after the other (splitmix64).
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % n
    }

    fn value(&mut self) -> Value {
        match self.below(5) {
            0 => json!(["red", "green", "dark blue", "\"quoted\"", "ä ☃"][self.below(5) as usize]),
            1 => json!(self.below(2_000) as i64 - 1_000),
            2 => json!(self.below(2) == 0),
            3 => json!(null),
            _ => json!([self.below(9), "x"]),
        }
    }

    /// A schema: nested objects, arrays with bounds, bounded numbers, patterns, enumerations, constants,
    /// alternatives.
    pub(crate) fn schema(&mut self, depth: u64) -> Value {
        match self.below(if depth == 0 { 8 } else { 12 }) {
            0 => {
                let least = self.below(400) as i64 - 200;
                json!({ "type": "integer", "minimum": least, "maximum": least + self.below(300) as i64 })
            }
            1 => json!({ "type": "integer", "exclusiveMinimum": self.below(50) }),
            2 => {
                let least = self.below(100) as f64 / 4.0 - 12.5;
                json!({
                    "type": "number", "minimum": least,
                    "exclusiveMaximum": least + 0.25 + self.below(90) as f64
                })
            }
            3 => {
                let least = self.below(4);
                json!({ "type": "string", "minLength": least, "maxLength": least + 1 + self.below(12) })
            }
            4 => {
                let patterns = [
                    "^[A-Z][a-z]{2,8}$",
                    "^\\d{4}-\\d{2}$",
                    "^(yes|no|perhaps)$",
                    "^a+b?c{0,3}$",
                    "^[^x]{3}$",
                ];
                json!({ "type": "string", "pattern": patterns[self.below(5) as usize] })
            }
            5 => {
                let n = 1 + self.below(4);
                json!({ "enum": (0..n).map(|_| self.value()).collect::<Vec<_>>() })
            }
            6 => json!({ "const": self.value() }),
            7 if self.below(2) == 0 => json!({ "type": "null" }),
            7 => json!({ "type": "boolean" }),
            8 => {
                let least = self.below(3);
                let items = self.schema(depth - 1);
                json!({
                    "type": "array", "items": items, "minItems": least, "maxItems": least + self.below(3)
                })
            }
            9 => json!({ "anyOf": [self.schema(depth - 1), self.schema(depth - 1)] }),
            _ => self.object(depth - 1),
        }
    }

    /// The schema of an object, with fields that may be left out.
    pub(crate) fn object(&mut self, depth: u64) -> Value {
        let n = 1 + self.below(4);
        let fields: Map<String, Value> = (0..n)
            .map(|i| (format!("{}{i}", ["price", "über", "a b"][self.below(3) as usize]), self.schema(depth)))
            .collect();
        let required: Vec<String> = fields.keys().filter(|_| self.below(3) > 0).cloned().collect();
        json!({ "type": "object", "properties": fields, "required": required, "additionalProperties": false })
    }
}

/// Says if a value is valid, by a validator of its own.
pub(crate) fn is_valid(schema: &Value, value: &Value) -> Result<(), String> {
    let (mut schemas, mut compiler) = (boon::Schemas::new(), boon::Compiler::new());
    compiler.add_resource("schema.json", schema.clone()).unwrap();
    let compiled = compiler.compile("schema.json", &mut schemas).unwrap();
    schemas.validate(value, compiled).map_err(|error| error.to_string())
}

/// A request for a reply under a grammar.
pub(crate) fn request(agent: &str, seed: u64, temperature: f32, grammar: Option<Grammar>) -> Request {
    let next = "Name a price, a colour and a day. Reply in JSON.".to_string();
    Request {
        sampling: Sampling { temperature, seed, ..Sampling::default() },
        max_tokens: 160,
        stop: vec!["\"".into()],
        whole_sentences: true,
        grammar: grammar.map(Arc::new),
        ..Request::new(SessionKey::new("r", agent), Conversation { next, ..Conversation::default() })
    }
}

pub(crate) fn finished(mut turn: Turn) -> Completion {
    while let Some(event) = turn.blocking_next() {
        match event {
            Event::Done(done) => return *done,
            Event::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
    panic!("the turn did not end");
}

pub(crate) fn said(engine: &Engine, request: Request) -> Completion {
    finished(engine.submit(request).unwrap())
}

/// Plays this many random schemas, in parallel; returns how many replies ended, and how many were repeated
/// under a narrower schema.
pub(crate) fn play(engine: &Engine, n: u64, temperature: f32) -> (usize, usize) {
    let (mut n_ended, mut n_narrowed) = (0, 0);
    let schemas: Vec<Value> = (0..n).map(|seed| Dice(seed).object(2)).collect();
    for (chunk, part) in schemas.chunks(20).enumerate() {
        let asked = |(at, schema): (usize, &Value)| {
            let seed = (chunk * 20 + at) as u64;
            engine
                .submit(request(&format!("a{seed}"), seed, temperature, Some(Grammar::json_schema(schema))))
                .unwrap()
        };
        let turns: Vec<Turn> = part.iter().enumerate().map(asked).collect();
        for (at, (turn, schema)) in turns.into_iter().zip(part).enumerate() {
            let (seed, reply) = ((chunk * 20 + at) as u64, finished(turn));
            if reply.stop == StopReason::Length {
                continue;
            }
            assert_eq!(reply.stop, StopReason::EndOfTurn, "{schema}: {}", reply.text);
            n_ended += 1;
            let value: Value =
                serde_json::from_str(&reply.text).unwrap_or_else(|e| panic!("{schema}: {}: {e}", reply.text));
            is_valid(schema, &value).unwrap_or_else(|e| panic!("{schema}: {}: {e}", reply.text));
            Grammar::json_schema(schema).accepts(&reply.text).unwrap();
            if let Some(narrow) = narrowed(schema, &value, &reply.text) {
                let again =
                    request(&format!("b{seed}"), seed, temperature, Some(Grammar::json_schema(&narrow)));
                assert_eq!(said(engine, again).text, reply.text, "{schema} and {narrow}");
                n_narrowed += 1;
            }
            if seed % 10 == 0 {
                let follow = Some(Constraint::Follow(reply.ids.clone()));
                let asked =
                    request(&format!("c{seed}"), seed, temperature, Some(Grammar::json_schema(schema)));
                let followed = said(engine, Request { constraint: follow, ..asked });
                let drawn: Vec<u32> = followed.followed.iter().map(|token| token.drawn).collect();
                assert_eq!(
                    (drawn, &followed.text, followed.stop),
                    (reply.ids.clone(), &reply.text, reply.stop)
                );
            }
        }
    }
    (n_ended, n_narrowed)
}

/// A schema that allows less, the reply still: its last field is what it was.
fn narrowed(schema: &Value, value: &Value, reply: &str) -> Option<Value> {
    let (field, said) = value.as_object()?.iter().next_back()?;
    let mut narrow = schema.clone();
    narrow["properties"][field] = json!({ "const": said });
    // Spelled in another way (`1.50`, `\u0041`) it is not what a constant allows.
    Grammar::json_schema(&narrow).accepts(reply).ok().map(|()| narrow)
}
