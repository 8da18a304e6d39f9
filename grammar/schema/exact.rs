//! Bounds of integers that masks would round, followed while a JSON text is written: a digit after which no
//! integer within the bounds could come is not allowed.
//!
//! `relaxed` widens such bounds to what a float can represent, and adds the exact ones ([`KEYWORD`]). They
//! are found again by the path through properties and items; bounds in alternatives of objects are left to
//! the check of the complete text ([`Exact::followed`] determines which are not).

use super::number::integer;
use super::{escaped, target};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

/// The exact bounds of a schema, as `minimum` and `maximum`.
pub(crate) const KEYWORD: &str = "x-bounds";
/// Besides, while a schema is relaxed: numbers of their keywords.
pub(crate) const SOURCES: &str = "sources";
/// Values for no bound; every integer that is written is compared only up to [`MAX_DIGITS`].
const NONE: Range = (i128::MIN / 2, i128::MAX / 2);
/// Digits of an integer that are compared.
const MAX_DIGITS: usize = 30;
/// Ranges in which one integer may be; more are not distinguished.
const MAX_RANGES: usize = 256;
/// Steps in which bounds that are not followed are looked for; beyond them none counts as followed.
const MAX_STEPS: usize = 100_000;

/// Follows a text through the bounds of its schema.
#[derive(Clone, Debug)]
pub(crate) struct Exact {
    root: Arc<Value>,
    /// Objects and lists that are open.
    open: Vec<Frame>,
    state: State,
    /// Pointers to the schemas of the value that comes next.
    next: Vec<Arc<str>>,
    /// Where an integer may be that comes next, once it is known.
    ranges: OnceLock<Arc<[Range]>>,
}

/// The least and the greatest integer of a range.
type Range = (i128, i128);

#[derive(Clone, Debug)]
struct Frame {
    schemas: Vec<Arc<str>>,
    /// The item's index; none in an object.
    item: Option<usize>,
}

#[derive(Clone, Debug)]
enum State {
    Value,
    Key,
    Colon,
    /// A text, as it is written; `key`: it names a property.
    Text {
        key: Option<Vec<u8>>,
        is_escaped: bool,
    },
    /// An integer so far, and where it may be.
    Number {
        text: String,
        ranges: Arc<[Range]>,
    },
    /// The rest of a number that is not an integer, or of a word.
    Word,
    /// After a value.
    After,
}

/// Effect of a byte beyond the state that it leads to.
enum Step {
    /// None: the text stays within the bounds.
    Within,
    /// The text leaves the bounds.
    Beyond,
    /// A number begins with it.
    Number,
    /// It ends the name of a property.
    Name(Vec<u8>),
    /// It opens or closes an object or a list, or separates two parts of one.
    Structure,
}

impl Exact {
    /// At the beginning of a text; `None`: the schema has no such bounds.
    pub(crate) fn new(schema: &Value) -> Option<Self> {
        let has_bounds = schema.to_string().contains(KEYWORD);
        let root = has_bounds.then(|| Arc::new(schema.clone()))?;
        let ranges = OnceLock::new();
        Some(Self { root, open: Vec::new(), state: State::Value, next: vec!["".into()], ranges })
    }

    /// True if the bounds allow these bytes next. It is called for most tokens of a vocabulary, so nothing is
    /// copied unless a number may begin within an object or a list that the token opens, closes or continues.
    pub(crate) fn allows(&self, bytes: &[u8]) -> bool {
        // In a text no number can begin before its end.
        let stays_in_text = matches!(self.state, State::Text { .. }) && !bytes.contains(&b'"');
        let is_in_number = matches!(self.state, State::Number { .. });
        if stays_in_text || !is_in_number && !may_begin_number(bytes) {
            return true;
        }
        let mut state = self.state.clone();
        for (at, byte) in bytes.iter().enumerate() {
            match state.take(*byte) {
                Step::Within => {}
                Step::Beyond => return false,
                Step::Number => match self.number(*byte) {
                    Some(number) => state = number,
                    None => return false,
                },
                Step::Name(_) | Step::Structure => {
                    return !may_begin_number(&bytes[at + 1..]) || self.allows_by_copy(bytes);
                }
            }
        }
        true
    }

    /// [`Exact::allows`] by its definition.
    fn allows_by_copy(&self, bytes: &[u8]) -> bool {
        #[cfg(test)]
        tests::N_COPIED.set(tests::N_COPIED.get() + 1);
        let mut ahead = self.clone();
        bytes.iter().all(|byte| ahead.take(*byte))
    }

    /// Takes bytes that may come.
    pub(crate) fn follow(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| _ = self.take(*byte));
    }

    /// True if the text may end here.
    pub(crate) fn may_end(&self) -> bool {
        match &self.state {
            State::Number { text, ranges } => is_within(text, ranges),
            _ => true,
        }
    }

    /// Takes one byte; false: it leaves the bounds.
    fn take(&mut self, byte: u8) -> bool {
        match self.state.take(byte) {
            Step::Within => {}
            Step::Beyond => return false,
            Step::Number => match self.number(byte) {
                Some(number) => self.state = number,
                None => return false,
            },
            Step::Name(name) => self.named(&name),
            Step::Structure => self.structure(byte),
        }
        true
    }

    /// The state after the first byte of a number; `None`: it leaves the bounds.
    fn number(&self, byte: u8) -> Option<State> {
        let known = || self.known_ranges(&self.next).unwrap_or_else(|| vec![NONE]).into();
        let ranges: &Arc<[Range]> = self.ranges.get_or_init(known);
        let text = char::from(byte).to_string();
        may_become(&text, ranges).then(|| State::Number { text, ranges: ranges.clone() })
    }

    fn structure(&mut self, byte: u8) {
        match byte {
            b'{' | b'[' => {
                let schemas = std::mem::take(&mut self.next);
                let item = (byte == b'[').then_some(0);
                self.open.push(Frame { schemas, item });
                self.expect(Vec::new());
                self.state = State::Key;
            }
            b',' => {
                self.state = State::Key;
                if let Some(Frame { item: Some(index), .. }) = self.open.last_mut() {
                    *index += 1;
                }
            }
            _ => {
                self.open.pop();
                self.state = State::After;
                return;
            }
        }
        if let Some(Frame { schemas, item: Some(index) }) = self.open.last() {
            self.expect(self.item(schemas, *index));
            self.state = State::Value;
        }
    }

    /// A value of these schemas comes next.
    fn expect(&mut self, schemas: Vec<Arc<str>>) {
        self.next = schemas;
        self.ranges = OnceLock::new();
    }

    /// A value comes next whose name was written.
    fn named(&mut self, raw: &[u8]) {
        let quoted = [b"\"", raw, b"\""].concat();
        let schemas = self.open.last().map_or(&[][..], |frame| &frame.schemas);
        let name = serde_json::from_slice::<String>(&quoted);
        self.expect(name.map_or_else(|_| Vec::new(), |name| self.property(schemas, &name)));
    }

    /// The schemas of an item of a list.
    fn item(&self, schemas: &[Arc<str>], index: usize) -> Vec<Arc<str>> {
        self.inner(schemas, |fields, at| {
            let items = fields.get("items");
            let list = fields.get("prefixItems").map(|list| (list, "prefixItems"));
            let list = list.or(items.filter(|items| items.is_array()).map(|list| (list, "items")));
            match list.filter(|(list, _)| list.get(index).is_some()) {
                Some((_, keyword)) => Some(format!("{at}/{keyword}/{index}")),
                None => items.filter(|items| items.is_object()).map(|_| format!("{at}/items")),
            }
        })
    }

    /// The schemas of a property of an object.
    fn property(&self, schemas: &[Arc<str>], name: &str) -> Vec<Arc<str>> {
        self.inner(schemas, |fields, at| {
            let known = fields.get("properties").and_then(|known| known.get(name));
            let additional = fields.get("additionalProperties").filter(|more| more.is_object());
            let additional = additional.filter(|_| !fields.contains_key("patternProperties"));
            match known {
                Some(_) => Some(format!("{at}/properties/{}", escaped(name))),
                None => additional.map(|_| format!("{at}/additionalProperties")),
            }
        })
    }

    /// Numbers of the keywords whose bounds are followed wherever they apply ([`SOURCES`]).
    pub(crate) fn followed(&self) -> BTreeSet<u64> {
        let (mut followed, mut lost) = (BTreeSet::new(), Lost::default());
        let (mut open, mut known, mut n_steps) = (vec![self.next.clone()], BTreeSet::new(), 0);
        while let Some(schemas) = open.pop() {
            if schemas.is_empty() || !known.insert(schemas.clone()) {
                continue;
            }
            let has_ranges = self.known_ranges(&schemas).is_some();
            let (mut names, mut n_items) = (BTreeSet::new(), 0);
            let together = self.together(&schemas);
            let n_together = together.len();
            for (at, fields) in together {
                let own = fields.get(KEYWORD).into_iter().flat_map(sources);
                if has_ranges {
                    followed.extend(own)
                } else {
                    lost.numbers.extend(own)
                }
                for (keyword, value) in fields {
                    match keyword.as_str() {
                        "properties" => names
                            .extend(value.as_object().into_iter().flatten().map(|(name, _)| name.clone())),
                        "prefixItems" => n_items = value.as_array().map_or(0, Vec::len).max(n_items),
                        "items" if value.is_array() && !fields.contains_key("prefixItems") => {
                            n_items = value.as_array().map_or(0, Vec::len).max(n_items);
                        }
                        "items" if value.is_object() => {}
                        "additionalProperties" if !fields.contains_key("patternProperties") => {}
                        "$ref" if value.as_str().and_then(|to| self.pointer(to)).is_some() => {}
                        // Those of integers; all others are not followed.
                        "anyOf" if has_ranges => numbers_in(value, &mut followed),
                        "allOf" | "$defs" | "definitions" | KEYWORD => {}
                        _ => lost.add(&self.root, &format!("{at}/{}", escaped(keyword)), value),
                    }
                }
            }
            // One that is none of the others is additional.
            names.extend((0..).map(|n| "_".repeat(n)).find(|name| !names.contains(name)));
            n_steps += n_together * (names.len() + n_items + 2);
            if n_steps > MAX_STEPS {
                return BTreeSet::new();
            }
            open.extend(names.iter().map(|name| self.property(&schemas, name)));
            open.extend((0..=n_items).map(|index| self.item(&schemas, index)));
        }
        followed.difference(&lost.numbers).copied().collect()
    }

    /// Schemas in these, and in all that must hold together with them.
    fn inner(
        &self,
        schemas: &[Arc<str>],
        inner: impl Fn(&Map<String, Value>, &str) -> Option<String>,
    ) -> Vec<Arc<str>> {
        let mut found = BTreeSet::new();
        for (at, fields) in self.together(schemas) {
            found.extend(inner(fields, &at));
        }
        found.into_iter().map(Arc::from).collect()
    }

    /// These schemas, and those that must hold together with them.
    fn together(&self, schemas: &[Arc<str>]) -> BTreeMap<String, &Map<String, Value>> {
        let mut found = BTreeMap::new();
        let mut open: Vec<String> = schemas.iter().map(ToString::to_string).collect();
        while let Some(at) = open.pop() {
            let Some(fields) = self.root.pointer(&at).and_then(Value::as_object) else { continue };
            if found.insert(at.clone(), fields).is_some() {
                continue;
            }
            open.extend(fields.get("$ref").and_then(Value::as_str).and_then(|to| self.pointer(to)));
            let all = fields.get("allOf").and_then(Value::as_array).map_or(0, Vec::len);
            open.extend((0..all).map(|index| format!("{at}/allOf/{index}")));
        }
        found
    }

    /// The pointer of a reference, if it is one.
    fn pointer(&self, reference: &str) -> Option<String> {
        target(&self.root, reference).ok()?;
        let pointer = reference.split_once('#').map_or("", |(_, pointer)| pointer);
        (pointer.is_empty() || pointer.starts_with('/')).then(|| super::decoded(pointer))
    }

    /// Where an integer of these schemas may be; `None`: it is not known, or need not be an integer.
    fn known_ranges(&self, schemas: &[Arc<str>]) -> Option<Vec<Range>> {
        let mut ranges = vec![NONE];
        let mut is_integer = false;
        for (at, fields) in self.together(schemas) {
            is_integer |= fields.get("type").and_then(Value::as_str) == Some("integer");
            // Which multiples are left within a bound is not known here.
            if fields.contains_key("multipleOf") {
                return None;
            }
            ranges = few(common(&ranges, &own(fields)))?;
            let any = fields.get("anyOf").and_then(Value::as_array).map_or(0, Vec::len);
            if any > 0 {
                let options = (0..any).map(|index| self.option(&format!("{at}/anyOf/{index}")));
                ranges = few(common(&ranges, &options.collect::<Option<Vec<_>>>()?.concat()))?;
                is_integer = true;
            }
        }
        is_integer.then_some(ranges)
    }

    /// Where an integer may be by one of several alternatives; `None`: it is not known, or need not be an
    /// integer.
    fn option(&self, at: &str) -> Option<Vec<Range>> {
        let fields = self.root.pointer(at)?.as_object()?;
        let is_plain = |keyword: &String| {
            ["type", "const", "minimum", "maximum", "title", "description", KEYWORD, "allOf"]
                .contains(&keyword.as_str())
        };
        if !fields.keys().all(is_plain) {
            return None;
        }
        match (fields.get("type").and_then(Value::as_str), fields.get("const")) {
            (Some("integer"), None) => {}
            (Some("number") | None, None) => return None,
            (_, Some(Value::Number(number))) => {
                let value = integer(number)?;
                return Some(vec![(value, value)]);
            }
            // No number is in it.
            _ => return Some(Vec::new()),
        }
        let mut ranges = own(fields);
        for index in 0..fields.get("allOf").and_then(Value::as_array).map_or(0, Vec::len) {
            // Those are the same bounds, rounded.
            let fields = self.root.pointer(&format!("{at}/allOf/{index}"))?.as_object()?;
            ranges = common(&ranges, &own(fields));
        }
        Some(ranges)
    }
}

impl State {
    /// Takes one byte where no schema is needed.
    fn take(&mut self, byte: u8) -> Step {
        #[cfg(test)]
        tests::N_TAKEN.set(tests::N_TAKEN.get() + 1);
        match self {
            Self::Number { text, ranges } => {
                if byte.is_ascii_digit() {
                    text.push(char::from(byte));
                    return if may_become(text, ranges) { Step::Within } else { Step::Beyond };
                }
                if b".eE".contains(&byte) {
                    *self = Self::Word;
                    return Step::Within;
                }
                let is_within = is_within(text, ranges);
                *self = Self::After;
                if !is_within {
                    return Step::Beyond;
                }
            }
            Self::Text { key, is_escaped } => {
                let ends = byte == b'"' && !*is_escaped;
                *is_escaped = byte == b'\\' && !*is_escaped;
                if !ends {
                    key.iter_mut().for_each(|key| key.push(byte));
                    return Step::Within;
                }
                let key = key.take();
                *self = if key.is_some() { Self::Colon } else { Self::After };
                return key.map_or(Step::Within, Step::Name);
            }
            _ => {}
        }
        *self = match (byte, &*self) {
            (b' ' | b'\t' | b'\n' | b'\r', _) => return Step::Within,
            (b'{' | b'[' | b',' | b'}' | b']', _) => return Step::Structure,
            (b'-' | b'0'..=b'9', Self::Value) => return Step::Number,
            (b':', Self::Colon) => Self::Value,
            (b'"', Self::Key) => Self::Text { key: Some(Vec::new()), is_escaped: false },
            (b'"', _) => Self::Text { key: None, is_escaped: false },
            _ => Self::Word,
        };
        Step::Within
    }
}

/// True if a number may begin in these bytes.
fn may_begin_number(bytes: &[u8]) -> bool {
    bytes.iter().any(|byte| byte.is_ascii_digit() || *byte == b'-')
}

/// Numbers of the keywords of exact bounds.
fn sources(bounds: &Value) -> impl Iterator<Item = u64> {
    bounds.get(SOURCES).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_u64)
}

/// All of these in a schema, but for those that a `$ref` leads to.
fn numbers_in(schema: &Value, found: &mut BTreeSet<u64>) {
    match schema {
        Value::Array(items) => items.iter().for_each(|inner| numbers_in(inner, found)),
        Value::Object(fields) => {
            found.extend(fields.get(KEYWORD).into_iter().flat_map(sources));
            fields.values().for_each(|inner| numbers_in(inner, found));
        }
        _ => {}
    }
}

/// Bounds of schemas that apply where they are not followed.
#[derive(Default)]
struct Lost {
    numbers: BTreeSet<u64>,
    /// Pointers and references to schemas that were examined.
    known: BTreeSet<String>,
}

impl Lost {
    /// Adds those of a schema at a pointer, or of one that a reference leads to.
    fn add(&mut self, root: &Value, at: &str, schema: &Value) {
        let mut open = vec![(at.to_string(), schema)];
        while let Some((at, schema)) = open.pop() {
            if !self.known.insert(at) {
                continue;
            }
            numbers_in(schema, &mut self.numbers);
            let mut inner = BTreeSet::new();
            strings_of_references(schema, &mut inner);
            open.extend(inner.iter().filter_map(|to| Some((to.to_string(), target(root, to).ok()?))));
        }
    }
}

fn strings_of_references<'s>(schema: &'s Value, found: &mut BTreeSet<&'s str>) {
    match schema {
        Value::Array(items) => items.iter().for_each(|inner| strings_of_references(inner, found)),
        Value::Object(fields) => {
            found.extend(fields.get("$ref").and_then(Value::as_str));
            fields.values().for_each(|inner| strings_of_references(inner, found));
        }
        _ => {}
    }
}

/// The bounds of a schema itself.
fn own(fields: &Map<String, Value>) -> Vec<Range> {
    let exact = fields.get(KEYWORD).and_then(Value::as_object);
    let bound = |keyword: &str| exact?.get(keyword)?.as_number().and_then(integer);
    let range = (bound("minimum").unwrap_or(NONE.0), bound("maximum").unwrap_or(NONE.1));
    if range.0 <= range.1 { vec![range] } else { Vec::new() }
}

/// What is in ranges of both.
fn common(one: &[Range], other: &[Range]) -> Vec<Range> {
    let both =
        one.iter().flat_map(|one| other.iter().map(move |other| (one.0.max(other.0), one.1.min(other.1))));
    both.filter(|(least, most)| least <= most).take(MAX_RANGES + 1).collect()
}

/// Ranges of which none was left out.
fn few(ranges: Vec<Range>) -> Option<Vec<Range>> {
    (ranges.len() <= MAX_RANGES).then_some(ranges)
}

/// An integer as it is written: its sign and its digits; `None`: it is longer than what is compared.
fn parse_integer(text: &str) -> Option<(bool, i128, usize)> {
    let digits = text.trim_start_matches('-');
    let value = if digits.is_empty() { 0 } else { digits.parse().ok()? };
    (digits.len() <= MAX_DIGITS).then_some((text.starts_with('-'), value, digits.len()))
}

/// True if more digits can bring an integer into one of the ranges, or it is there.
fn may_become(text: &str, ranges: &[Range]) -> bool {
    let Some((is_negative, value, n)) = parse_integer(text) else {
        // Beyond every bound that there is.
        let is_open =
            |range: &Range| if text.starts_with('-') { range.0 == NONE.0 } else { range.1 == NONE.1 };
        return ranges.iter().any(is_open);
    };
    // Nothing follows a leading zero; after a sign everything may.
    let longest = if n > 0 && value == 0 { 0 } else { MAX_DIGITS - n };
    let reaches = |more: usize| {
        let times = 10i128.pow(more as u32);
        let (least, most) = (value * times, value * times + times - 1);
        let (least, most) = if is_negative { (-most, -least) } else { (least, most) };
        ranges.iter().any(|range| least <= range.1 && range.0 <= most)
    };
    (0..=longest).any(reaches)
}

fn is_within(text: &str, ranges: &[Range]) -> bool {
    let Some((is_negative, value, n)) = parse_integer(text) else { return may_become(text, ranges) };
    let value = if is_negative { -value } else { value };
    n > 0 && ranges.iter().any(|range| (range.0..=range.1).contains(&value))
}

#[cfg(test)]
mod tests;
