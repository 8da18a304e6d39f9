//! serde's way into the tree. A mismatch is an error of a kind, which a message can explain to the author.
//!
//! A union (an enum whose variants begin with capitals, such as `List` and `Texts`) is chosen by the shape of
//! the value, any other enum by its word. A value that was set aside reads as null, which every field
//! accepts.

use super::scalar::Leaf;
use super::tree::{Data, MapEntry, Tree};
use serde::Deserialize as _;
use serde::de::value::StrDeserializer;
use serde::de::{self, DeserializeSeed, IntoDeserializer, Visitor};
use std::collections::BTreeSet;

/// One value of a tree.
#[derive(Clone, Copy)]
pub struct NodeReader<'a> {
    tree: &'a Tree,
    data: &'a Data,
    /// Values that read as null.
    aside: &'a BTreeSet<usize>,
}

/// A value that does not fit.
#[derive(Debug)]
pub enum Wrong {
    /// It has another shape.
    Shape {
        /// The value's shape.
        found: FoundValue,
        /// The shape that the field has.
        expected: ExpectedValue,
    },
    /// It is not a word of an enum.
    Word {
        /// The value.
        found: String,
        /// Name of the enum.
        of: &'static str,
        /// Its words.
        known: &'static [&'static str],
    },
    /// Anything else, in serde's words.
    Other(String),
}

/// A value that was found.
#[derive(Clone, Debug, PartialEq)]
pub enum FoundValue {
    /// No value, or null.
    Nothing,
    /// A string.
    Text(String),
    /// A number, as it is written.
    Number(String),
    /// True or false.
    Truth(bool),
    /// A list.
    List,
    /// A mapping.
    Mapping,
}

/// A value that was expected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ExpectedValue {
    /// A string.
    Text,
    /// A whole number.
    Whole,
    /// A number.
    Number,
    /// True or false.
    Truth,
    /// A list.
    List,
    /// A mapping.
    Mapping,
    /// The fields of a type, or a union, or an enum of this name.
    Named(&'static str),
}

impl Tree {
    /// All of it as JSON; null where there is nothing, keys as texts.
    pub(super) fn json(&self) -> serde_json::Value {
        let aside = BTreeSet::new();
        let json =
            NodeReader::new(self, &aside).and_then(|reader| serde_json::Value::deserialize(reader).ok());
        json.unwrap_or_default()
    }
}

impl<'a> NodeReader<'a> {
    /// The whole file.
    pub fn new(tree: &'a Tree, aside: &'a BTreeSet<usize>) -> Option<Self> {
        let reader = Self { tree, data: &Data::Leaf(Leaf::Null), aside };
        Some(reader.at(tree.root()?))
    }

    /// One value.
    pub(super) fn of(tree: &'a Tree, node: usize, aside: &'a BTreeSet<usize>) -> Self {
        Self { tree, data: tree.data(node), aside }
    }

    fn at(self, node: usize) -> Self {
        let data = if self.aside.contains(&node) { &Data::Leaf(Leaf::Null) } else { self.tree.data(node) };
        Self { data, ..self }
    }

    fn found(self) -> FoundValue {
        match self.data {
            Data::Leaf(Leaf::Null) => FoundValue::Nothing,
            Data::Leaf(Leaf::Bool(truth)) => FoundValue::Truth(*truth),
            Data::Leaf(Leaf::Number(number)) => FoundValue::Number(number.to_string()),
            Data::Leaf(Leaf::Text(text)) => FoundValue::Text(text.clone()),
            Data::Seq(_) => FoundValue::List,
            Data::Map(_) => FoundValue::Mapping,
        }
    }

    fn wrong<T>(self, expected: ExpectedValue) -> Result<T, Wrong> {
        Err(Wrong::Shape { found: self.found(), expected })
    }

    fn items(self, items: &'a [usize]) -> Items<'a> {
        Items { of: self, items: items.iter() }
    }

    fn entries(self, entries: &'a [MapEntry]) -> MapEntries<'a> {
        MapEntries { of: self, entries: entries.iter(), value: None }
    }

    /// The variant of a union that has the shape of this value.
    fn variant(self, variants: &'static [&'static str]) -> Option<&'static str> {
        let fitting: &[&str] = match self.data {
            Data::Leaf(Leaf::Null) => &[],
            Data::Leaf(Leaf::Text(_)) => &["Text", "One", "That"],
            Data::Leaf(Leaf::Number(_)) => &["Number", "That"],
            Data::Leaf(Leaf::Bool(_)) => &["Truth", "That"],
            Data::Seq(_) => &["List", "Many"],
            Data::Map(entries) if entries.iter().any(|entry| entry.is("phases") || entry.is("repeat")) => {
                &["Block", "Texts", "Long"]
            }
            Data::Map(_) => &["Texts", "Long", "Phase"],
        };
        fitting.iter().find_map(|fitting| variants.iter().find(|variant| *variant == fitting)).copied()
    }
}

impl<'de> de::Deserializer<'de> for NodeReader<'de> {
    type Error = Wrong;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        match self.data {
            Data::Leaf(Leaf::Null) => visitor.visit_unit(),
            Data::Leaf(Leaf::Bool(truth)) => visitor.visit_bool(*truth),
            Data::Leaf(Leaf::Number(number)) => match (number.as_u64(), number.as_i64()) {
                (Some(whole), _) => visitor.visit_u64(whole),
                (None, Some(whole)) => visitor.visit_i64(whole),
                (None, None) => visitor.visit_f64(number.as_f64().unwrap_or(f64::NAN)),
            },
            Data::Leaf(Leaf::Text(text)) => visitor.visit_borrowed_str(text),
            Data::Seq(items) => visitor.visit_seq(self.items(items)),
            Data::Map(entries) => visitor.visit_map(self.entries(entries)),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        if matches!(self.data, Data::Leaf(Leaf::Null)) {
            visitor.visit_none()
        } else {
            visitor.visit_some(self)
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        match self.data {
            Data::Leaf(Leaf::Bool(truth)) => visitor.visit_bool(*truth),
            _ => self.wrong(ExpectedValue::Truth),
        }
    }

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        match self.data {
            Data::Leaf(Leaf::Number(number)) if number.is_u64() => self.deserialize_any(visitor),
            _ => self.wrong(ExpectedValue::Whole),
        }
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        match self.data {
            Data::Leaf(Leaf::Number(_)) => self.deserialize_any(visitor),
            _ => self.wrong(ExpectedValue::Number),
        }
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        self.deserialize_f64(visitor)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        match self.data {
            Data::Leaf(Leaf::Text(text)) => visitor.visit_borrowed_str(text),
            _ => self.wrong(ExpectedValue::Text),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        self.deserialize_str(visitor)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        match self.data {
            Data::Seq(items) => visitor.visit_seq(self.items(items)),
            _ => self.wrong(ExpectedValue::List),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        match self.data {
            Data::Map(entries) => visitor.visit_map(self.entries(entries)),
            _ => self.wrong(ExpectedValue::Mapping),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        match self.data {
            Data::Map(entries) => visitor.visit_map(self.entries(entries)),
            _ => self.wrong(ExpectedValue::Named(name)),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        if variants.iter().all(|variant| variant.starts_with(char::is_uppercase)) {
            return match self.variant(variants) {
                Some(variant) => {
                    visitor.visit_enum(EnumVariant { of: self, name, variant, value: Some(self) })
                }
                None => self.wrong(ExpectedValue::Named(name)),
            };
        }
        let (word, value) = match self.data {
            Data::Leaf(Leaf::Text(word)) => (word.trim(), None),
            Data::Map(entries) if entries.len() == 1 => {
                (entries[0].key.as_str(), Some(self.at(entries[0].node)))
            }
            _ => return self.wrong(ExpectedValue::Named(name)),
        };
        match variants.iter().find(|variant| **variant == word) {
            Some(variant) => visitor.visit_enum(EnumVariant { of: self, name, variant, value }),
            None => Err(Wrong::Word { found: word.to_string(), of: name, known: variants }),
        }
    }

    serde::forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u8 u16 u32 u128 char bytes byte_buf unit unit_struct tuple tuple_struct identifier ignored_any
    }
}

struct Items<'a> {
    of: NodeReader<'a>,
    items: std::slice::Iter<'a, usize>,
}

impl<'de> de::SeqAccess<'de> for Items<'de> {
    type Error = Wrong;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Wrong> {
        self.items.next().map(|node| seed.deserialize(self.of.at(*node))).transpose()
    }
}

struct MapEntries<'a> {
    of: NodeReader<'a>,
    entries: std::slice::Iter<'a, MapEntry>,
    value: Option<usize>,
}

impl<'de> de::MapAccess<'de> for MapEntries<'de> {
    type Error = Wrong;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Wrong> {
        let Some(entry) = self.entries.next() else { return Ok(None) };
        self.value = Some(entry.node);
        seed.deserialize(MapKey(NodeReader { data: &entry.kind, ..self.of }, &entry.key)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Wrong> {
        let Some(node) = self.value.take() else { return Err(de::Error::custom("a value without a key")) };
        seed.deserialize(self.of.at(node))
    }
}

/// A key: its text, unless a union asks for its shape.
struct MapKey<'a>(NodeReader<'a>, &'a str);

impl<'de> de::Deserializer<'de> for MapKey<'de> {
    type Error = Wrong;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        visitor.visit_borrowed_str(self.1)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        self.0.deserialize_enum(name, variants, visitor)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct newtype_struct
        seq tuple tuple_struct map struct identifier ignored_any
    }
}

/// A variant of an enum, and what it holds.
struct EnumVariant<'a> {
    of: NodeReader<'a>,
    name: &'static str,
    variant: &'static str,
    value: Option<NodeReader<'a>>,
}

impl<'de> de::EnumAccess<'de> for EnumVariant<'de> {
    type Error = Wrong;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Wrong> {
        let variant: StrDeserializer<'_, Wrong> = self.variant.into_deserializer();
        Ok((seed.deserialize(variant)?, self))
    }
}

impl<'de> de::VariantAccess<'de> for EnumVariant<'de> {
    type Error = Wrong;

    fn unit_variant(self) -> Result<(), Wrong> {
        if self.value.is_none() { Ok(()) } else { self.of.wrong(ExpectedValue::Named(self.name)) }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Wrong> {
        match self.value {
            Some(value) => seed.deserialize(value),
            None => self.of.wrong(ExpectedValue::Named(self.name)),
        }
    }

    fn tuple_variant<V: Visitor<'de>>(self, _len: usize, _visitor: V) -> Result<V::Value, Wrong> {
        self.of.wrong(ExpectedValue::Named(self.name))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, Wrong> {
        self.of.wrong(ExpectedValue::Named(self.name))
    }
}

impl std::fmt::Display for Wrong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Shape { found, expected } => write!(f, "expected {expected:?}, found {found:?}"),
            Self::Word { found, of, .. } => write!(f, "`{found}` is not a valid {of}"),
            Self::Other(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for Wrong {}

impl de::Error for Wrong {
    fn custom<T: std::fmt::Display>(message: T) -> Self {
        Self::Other(message.to_string())
    }
}
