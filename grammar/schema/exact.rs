//! Bounds of integers that masks would round, followed while a JSON text is written: a digit after which no integer within the bounds
//! could come is not allowed.
//!
//! `relaxed` widens such bounds to what a float can say, and leaves the exact ones beside them ([`KEYWORD`]). They are found
//! again by the way through properties and items; what is said in alternatives of objects is left to the check of the complete text.

use super::number::integer;
use super::target;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The exact bounds of a schema, as `minimum` and `maximum`.
pub(crate) const KEYWORD: &str = "x-bounds";
/// Stand-ins for no bound; every integer that is written is compared only up to [`MAX_DIGITS`].
const NONE: (i128, i128) = (i128::MIN / 2, i128::MAX / 2);
/// Digits of an integer that are compared.
const MAX_DIGITS: usize = 30;
/// Ranges in which one integer may be; more are not distinguished.
const MAX_RANGES: usize = 256;

/// Follows a text through the bounds of its schema.
#[derive(Clone, Debug)]
pub(crate) struct Exact {
    root: Arc<Value>,
    /// Objects and lists that are open.
    open: Vec<Frame>,
    state: State,
    /// Pointers to the schemas of the value that comes next.
    next: Vec<Arc<str>>,
}

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
        ranges: Arc<[(i128, i128)]>,
    },
    /// The rest of a number that is no integer, or of a word.
    Word,
    Behind,
}

impl Exact {
    /// At the beginning of a text; `None`: the schema has no such bounds.
    pub(crate) fn new(schema: &Value) -> Option<Self> {
        let has_bounds = schema.to_string().contains(KEYWORD);
        let root = has_bounds.then(|| Arc::new(schema.clone()))?;
        Some(Self { root, open: Vec::new(), state: State::Value, next: vec!["".into()] })
    }

    /// True if bytes may come next, as far as bounds are concerned.
    pub(crate) fn allows(&self, bytes: &[u8]) -> bool {
        let is_number = |byte: &u8| byte.is_ascii_digit() || *byte == b'-';
        let is_in_number = matches!(self.state, State::Number { .. });
        if !is_in_number && !bytes.iter().any(is_number) {
            return true;
        }
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
        if let State::Number { text, ranges } = &mut self.state {
            if byte.is_ascii_digit() {
                text.push(char::from(byte));
                return may_become(text, ranges);
            }
            if b".eE".contains(&byte) {
                self.state = State::Word;
                return true;
            }
            let is_within = is_within(text, ranges);
            self.state = State::Behind;
            return is_within && self.take(byte);
        }
        if let State::Text { key, is_escaped } = &mut self.state {
            let ends = byte == b'"' && !*is_escaped;
            *is_escaped = byte == b'\\' && !*is_escaped;
            if !ends {
                key.iter_mut().for_each(|key| key.push(byte));
            } else if let Some(key) = key.take() {
                self.named(&key);
                self.state = State::Colon;
            } else {
                self.state = State::Behind;
            }
            return true;
        }
        match (byte, &self.state) {
            (b' ' | b'\t' | b'\n' | b'\r', _) => {}
            (b':', State::Colon) => self.state = State::Value,
            (b'"', State::Key) => self.state = State::Text { key: Some(Vec::new()), is_escaped: false },
            (b'"', _) => self.state = State::Text { key: None, is_escaped: false },
            (b'{', _) => {
                let schemas = std::mem::take(&mut self.next);
                self.open.push(Frame { schemas, item: None });
                self.state = State::Key;
            }
            (b'[', _) => {
                let schemas = std::mem::take(&mut self.next);
                self.open.push(Frame { schemas, item: Some(0) });
                self.item();
            }
            (b',', _) => match self.open.last_mut().map(|frame| &mut frame.item) {
                Some(Some(index)) => {
                    *index += 1;
                    self.item();
                }
                _ => self.state = State::Key,
            },
            (b'}' | b']', _) => {
                self.open.pop();
                self.state = State::Behind;
            }
            (b'-' | b'0'..=b'9', State::Value) => {
                let ranges: Arc<[_]> = self.ranges().into();
                let text = char::from(byte).to_string();
                let may_become = may_become(&text, &ranges);
                self.state = State::Number { text, ranges };
                return may_become;
            }
            _ => self.state = State::Word,
        }
        true
    }

    /// The schemas of the next item.
    fn item(&mut self) {
        let Some(Frame { schemas, item: Some(index) }) = self.open.last() else { return };
        let (schemas, index) = (schemas.clone(), *index);
        self.next = self.inner(&schemas, |fields, at| {
            let items = fields.get("items");
            let list = fields.get("prefixItems").map(|list| (list, "prefixItems"));
            let list = list.or(items.filter(|items| items.is_array()).map(|list| (list, "items")));
            match list.filter(|(list, _)| list.get(index).is_some()) {
                Some((_, keyword)) => Some(format!("{at}/{keyword}/{index}")),
                None => items.filter(|items| items.is_object()).map(|_| format!("{at}/items")),
            }
        });
        self.state = State::Value;
    }

    /// The schemas of the property whose name was written.
    fn named(&mut self, raw: &[u8]) {
        let quoted = [b"\"", raw, b"\""].concat();
        let Ok(name) = serde_json::from_slice::<String>(&quoted) else { return self.next.clear() };
        let schemas = self.open.last().map(|frame| frame.schemas.clone()).unwrap_or_default();
        let escaped = name.replace('~', "~0").replace('/', "~1");
        self.next = self.inner(&schemas, |fields, at| {
            let known = fields.get("properties").and_then(|known| known.get(&name));
            let additional = fields.get("additionalProperties").filter(|more| more.is_object());
            let additional = additional.filter(|_| !fields.contains_key("patternProperties"));
            match known {
                Some(_) => Some(format!("{at}/properties/{escaped}")),
                None => additional.map(|_| format!("{at}/additionalProperties")),
            }
        });
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

    /// Where an integer may be that comes next.
    fn ranges(&self) -> Vec<(i128, i128)> {
        let mut ranges = vec![NONE];
        let (mut is_integer, mut is_free) = (false, false);
        for (at, fields) in self.together(&self.next) {
            is_integer |= fields.get("type").and_then(Value::as_str) == Some("integer");
            // Which multiples are left within a bound is not known here.
            is_free |= fields.contains_key("multipleOf");
            ranges = common(&ranges, &own(fields));
            let any = fields.get("anyOf").and_then(Value::as_array).map_or(0, Vec::len);
            if any > 0 {
                let options = (0..any).map(|index| self.option(&format!("{at}/anyOf/{index}")));
                let options: Option<Vec<_>> = options.collect();
                is_integer |= options.is_some();
                match options {
                    Some(options) => ranges = common(&ranges, &options.concat()),
                    None => is_free = true,
                }
            }
        }
        if is_free || !is_integer || ranges.len() > MAX_RANGES { vec![NONE] } else { ranges }
    }

    /// Where an integer may be by one of several alternatives; `None`: it is not known, or need not be an integer.
    fn option(&self, at: &str) -> Option<Vec<(i128, i128)>> {
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

/// The bounds of a schema itself.
fn own(fields: &Map<String, Value>) -> Vec<(i128, i128)> {
    let exact = fields.get(KEYWORD).and_then(Value::as_object);
    let bound = |keyword: &str| exact?.get(keyword)?.as_number().and_then(integer);
    let range = (bound("minimum").unwrap_or(NONE.0), bound("maximum").unwrap_or(NONE.1));
    if range.0 <= range.1 { vec![range] } else { Vec::new() }
}

/// What is in ranges of both.
fn common(one: &[(i128, i128)], other: &[(i128, i128)]) -> Vec<(i128, i128)> {
    let both =
        one.iter().flat_map(|one| other.iter().map(move |other| (one.0.max(other.0), one.1.min(other.1))));
    both.filter(|(least, most)| least <= most).take(MAX_RANGES + 1).collect()
}

/// An integer as it is written: its sign and its digits; `None`: it is longer than what is compared.
fn written(text: &str) -> Option<(bool, i128, usize)> {
    let digits = text.trim_start_matches('-');
    let value = if digits.is_empty() { 0 } else { digits.parse().ok()? };
    (digits.len() <= MAX_DIGITS).then_some((text.starts_with('-'), value, digits.len()))
}

/// True if more digits can bring an integer into one of the ranges, or it is there.
fn may_become(text: &str, ranges: &[(i128, i128)]) -> bool {
    let Some((is_negative, value, n)) = written(text) else {
        // Beyond every bound that there is.
        let is_open =
            |range: &(i128, i128)| if text.starts_with('-') { range.0 == NONE.0 } else { range.1 == NONE.1 };
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

fn is_within(text: &str, ranges: &[(i128, i128)]) -> bool {
    let Some((is_negative, value, n)) = written(text) else { return may_become(text, ranges) };
    let value = if is_negative { -value } else { value };
    n > 0 && ranges.iter().any(|range| (range.0..=range.1).contains(&value))
}
