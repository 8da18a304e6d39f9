//! GBNF, llama.cpp's notation of grammars, read as one of the kinds here: a regular expression where no rule that
//! is used names itself, else Lark, in which whatever names no such rule is one regular expression.

use crate::bounds::MAX_BYTES;
use crate::error::{Error, Result};
use crate::grammar::Grammar;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// Deepest nesting of parentheses.
const MAX_DEPTH: usize = 64;

/// Most rules.
const MAX_RULES: usize = 1024;
/// Deepest nesting of rules in a regular expression.
const MAX_NESTED: usize = 128;

/// What a rule says.
enum Expression {
    Text(String),
    /// A set of characters, as regular expressions write it.
    Class(String),
    Rule(String),
    /// A token of the vocabulary.
    Token(u32),
    Sequence(Vec<Expression>),
    OneOf(Vec<Expression>),
    Repeated(Box<Expression>, u32, Option<u32>),
}

impl Grammar {
    /// The grammar that a text in GBNF describes; it begins at `root`.
    ///
    /// # Errors
    /// The line and what is wrong there; or it is larger than a grammar may be.
    ///
    /// # Examples
    /// ```
    /// use greenroom_grammar::Grammar;
    ///
    /// let answer = Grammar::gbnf("root ::= \"yes\" | \"no\" [!?]*")?;
    /// assert!(answer.accepts("no!?").is_ok() && answer.accepts("yes!").is_err());
    /// # Ok::<(), greenroom_grammar::Error>(())
    /// ```
    pub fn gbnf(text: &str) -> Result<Self> {
        if text.len() > MAX_BYTES {
            return Err(Error(format!("it has {} bytes; expected at most {MAX_BYTES}", text.len())));
        }
        let rules = Reader { rest: text, line: 1, depth: 0 }.rules()?;
        let writer = Writer { recursive: recursive(&rules), rules: &rules, nested: Cell::new(0) };
        writer.write()
    }
}

/// Reads GBNF.
struct Reader<'t> {
    rest: &'t str,
    line: usize,
    depth: usize,
}

impl<'t> Reader<'t> {
    fn rules(mut self) -> Result<BTreeMap<String, Expression>> {
        let mut rules = BTreeMap::new();
        self.space(true);
        while !self.rest.is_empty() {
            let name = self.name()?.to_owned();
            self.space(false);
            self.expect("::=")?;
            self.space(true);
            let expression = self.one_of(false)?;
            if rules.insert(name.clone(), expression).is_some() {
                return Err(self.error(format!("the rule `{name}` is defined twice")));
            }
            if rules.len() > MAX_RULES {
                return Err(self.error(format!("there are more than {MAX_RULES} rules")));
            }
            self.space(true);
        }
        if !rules.contains_key("root") {
            return Err(Error("it has no rule `root`, at which a grammar begins".into()));
        }
        Ok(rules)
    }

    fn one_of(&mut self, is_nested: bool) -> Result<Expression> {
        let mut all = vec![self.sequence(is_nested)?];
        while self.rest.starts_with('|') {
            self.take('|');
            self.space(true);
            all.push(self.sequence(is_nested)?);
        }
        Ok(if all.len() == 1 { all.remove(0) } else { Expression::OneOf(all) })
    }

    fn sequence(&mut self, is_nested: bool) -> Result<Expression> {
        let mut all = Vec::new();
        loop {
            let item = match self.rest.chars().next() {
                Some('"') => self.literal()?,
                Some('[') => self.class()?,
                Some('.') => {
                    self.take('.');
                    Expression::Class("(?s:.)".into())
                }
                Some('(') => self.group()?,
                Some('<') => self.token()?,
                Some(c) if is_word(c) => Expression::Rule(self.name()?.to_owned()),
                Some('!') => return Err(self.error("a token that must not come (`!<…>`) is not supported")),
                _ => break,
            };
            self.space(is_nested);
            all.push(self.repeated(item, is_nested)?);
        }
        Ok(if all.len() == 1 { all.remove(0) } else { Expression::Sequence(all) })
    }

    fn repeated(&mut self, item: Expression, is_nested: bool) -> Result<Expression> {
        let mut item = item;
        loop {
            let (min, max) = match self.rest.chars().next() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => {
                    let (bounds, rest) = self.rest[1..]
                        .split_once('}')
                        .ok_or_else(|| self.error("`{` has no `}` after it"))?;
                    let number = |text: &str| text.trim().parse::<u32>().ok();
                    let (min, max) = bounds.split_once(',').unwrap_or((bounds, bounds));
                    let is_open = max.trim().is_empty();
                    let read = (number(min), number(max));
                    let fits = read.0.is_some() && (is_open || read.1 >= read.0);
                    let Some(min) = read.0.filter(|_| fits) else {
                        return Err(self.error(format!("`{{{bounds}}}` is no number of repetitions")));
                    };
                    self.rest = rest;
                    item = Expression::Repeated(Box::new(item), min, read.1);
                    self.space(is_nested);
                    continue;
                }
                _ => return Ok(item),
            };
            self.rest = &self.rest[1..];
            item = Expression::Repeated(Box::new(item), min, max);
            self.space(is_nested);
        }
    }

    fn group(&mut self) -> Result<Expression> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.error(format!("parentheses are nested deeper than {MAX_DEPTH}")));
        }
        self.take('(');
        self.space(true);
        let inner = self.one_of(true)?;
        self.expect(")")?;
        self.depth -= 1;
        Ok(inner)
    }

    fn literal(&mut self) -> Result<Expression> {
        self.take('"');
        let mut text = String::new();
        while !self.rest.starts_with('"') {
            text.push(self.character()?);
        }
        self.take('"');
        Ok(Expression::Text(text))
    }

    fn class(&mut self) -> Result<Expression> {
        self.take('[');
        let mut class = String::from("[");
        if self.rest.starts_with('^') {
            self.take('^');
            class.push('^');
        }
        let escaped = |c: char| format!("\\x{{{:X}}}", u32::from(c));
        while !self.rest.starts_with(']') {
            let first = self.character()?;
            class += &escaped(first);
            let is_range = self.rest.starts_with('-') && !self.rest[1..].starts_with(']');
            if is_range {
                self.take('-');
                let last = self.character()?;
                if last < first {
                    return Err(self.error(format!("the range {first:?}-{last:?} is empty")));
                }
                write!(class, "-{}", escaped(last)).map_err(|e| Error(e.to_string()))?;
            }
        }
        self.take(']');
        if class.len() < 3 {
            return Err(self.error("a set of characters is empty"));
        }
        class.push(']');
        Ok(Expression::Class(class))
    }

    fn token(&mut self) -> Result<Expression> {
        let id = self.rest.strip_prefix("<[").and_then(|rest| rest.split_once("]>"));
        let read = id.and_then(|(id, rest)| Some((id.parse().ok()?, rest)));
        let Some((id, rest)) = read else {
            return Err(self.error("a token is written by its id, `<[1000]>`"));
        };
        self.rest = rest;
        Ok(Expression::Token(id))
    }

    /// A character of a literal or a set, escapes read.
    fn character(&mut self) -> Result<char> {
        let mut chars = self.rest.chars();
        let c = chars.next().ok_or_else(|| self.error("the text ends within a literal"))?;
        self.line += usize::from(c == '\n');
        if c != '\\' {
            self.rest = chars.as_str();
            return Ok(c);
        }
        let escape = chars.next().ok_or_else(|| self.error("the text ends after `\\`"))?;
        self.rest = chars.as_str();
        let digits = match escape {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            'n' => return Ok('\n'),
            'r' => return Ok('\r'),
            't' => return Ok('\t'),
            '"' | '\\' | '[' | ']' | '-' | '^' => return Ok(escape),
            other => return Err(self.error(format!("`\\{other}` is no escape"))),
        };
        let code = self.rest.get(..digits).and_then(|code| u32::from_str_radix(code, 16).ok());
        let read = code.and_then(char::from_u32);
        let read =
            read.ok_or_else(|| self.error(format!("`\\{escape}` needs {digits} hexadecimal digits")))?;
        self.rest = &self.rest[digits..];
        Ok(read)
    }

    fn name(&mut self) -> Result<&'t str> {
        let n = self.rest.find(|c| !is_word(c)).unwrap_or(self.rest.len());
        if n == 0 {
            let found = self.rest.chars().next().map_or("the end".to_owned(), |c| format!("`{c}`"));
            return Err(self.error(format!("found {found}; expected the name of a rule")));
        }
        let (name, rest) = self.rest.split_at(n);
        self.rest = rest;
        Ok(name)
    }

    fn expect(&mut self, text: &str) -> Result<()> {
        self.rest = self.rest.strip_prefix(text).ok_or_else(|| {
            let found: String = self.rest.chars().take(12).collect();
            self.error(format!("found {found:?}; expected `{text}`"))
        })?;
        Ok(())
    }

    fn take(&mut self, c: char) {
        self.rest = self.rest.strip_prefix(c).unwrap_or(self.rest);
    }

    /// Skips spaces and comments, and line breaks if these are no end.
    fn space(&mut self, over_lines: bool) {
        loop {
            match self.rest.chars().next() {
                Some('#') => self.rest = &self.rest[self.rest.find('\n').unwrap_or(self.rest.len())..],
                Some(c @ ('\n' | '\r')) if over_lines => {
                    self.line += usize::from(c == '\n');
                    self.take(c);
                }
                Some(c @ (' ' | '\t')) => self.take(c),
                _ => return,
            }
        }
    }

    fn error(&self, found: impl std::fmt::Display) -> Error {
        Error(format!("line {}: {found}", self.line))
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '_'
}

/// Rules that name themselves, or name one that does, or a token: no regular expressions.
fn recursive(rules: &BTreeMap<String, Expression>) -> BTreeSet<&str> {
    let mut named: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut found = BTreeSet::new();
    for (name, expression) in rules {
        let mut names = BTreeSet::new();
        if expression.names(&mut names) {
            found.insert(name.as_str());
        }
        named.insert(name, names);
    }
    // What can be reached from each.
    for name in rules.keys() {
        let (mut reached, mut next) = (BTreeSet::new(), vec![name.as_str()]);
        while let Some(at) = next.pop() {
            for other in named.get(at).into_iter().flatten() {
                if reached.insert(*other) {
                    next.push(other);
                }
            }
        }
        if reached.contains(name.as_str()) {
            found.insert(name);
        }
    }
    loop {
        let more = named.iter().filter(|(name, of)| !found.contains(*name) && !of.is_disjoint(&found));
        let more: Vec<&str> = more.map(|(name, _)| *name).collect();
        if more.is_empty() {
            return found;
        }
        found.extend(more);
    }
}

impl Expression {
    /// Collects the rules that it names; true if it names a token.
    fn names<'e>(&'e self, names: &mut BTreeSet<&'e str>) -> bool {
        match self {
            Self::Text(_) | Self::Class(_) => false,
            Self::Token(_) => true,
            Self::Rule(name) => {
                names.insert(name);
                false
            }
            Self::Sequence(all) | Self::OneOf(all) => all.iter().filter(|item| item.names(names)).count() > 0,
            Self::Repeated(item, ..) => item.names(names),
        }
    }
}

/// Writes a grammar.
struct Writer<'g> {
    rules: &'g BTreeMap<String, Expression>,
    recursive: BTreeSet<&'g str>,
    /// Number of rules around the one that is being written.
    nested: Cell<usize>,
}

impl Writer<'_> {
    fn write(&self) -> Result<Grammar> {
        if !self.recursive.contains("root") {
            let mut regex = String::new();
            self.regex(&Expression::Rule("root".into()), &mut regex)?;
            return Ok(Grammar::Regex(regex));
        }
        let mut lark = format!("start: {}\n", self.name("root"));
        for name in &self.recursive {
            write!(lark, "{}: ", self.name(name)).map_err(|e| Error(e.to_string()))?;
            self.lark(&self.rules[*name], &mut lark)?;
            lark.push('\n');
        }
        Ok(Grammar::Lark(lark))
    }

    fn name(&self, rule: &str) -> String {
        format!("rule_{}", self.recursive.iter().position(|name| *name == rule).unwrap_or_default())
    }

    fn is_regular(&self, expression: &Expression) -> bool {
        let mut names = BTreeSet::new();
        !expression.names(&mut names) && names.is_disjoint(&self.recursive)
    }

    fn lark(&self, expression: &Expression, out: &mut String) -> Result<()> {
        within(out)?;
        match expression {
            _ if self.is_regular(expression) => {
                let mut regex = String::new();
                self.regex(expression, &mut regex)?;
                match regex.as_str() {
                    "" => out.push_str("\"\""),
                    _ => *out += &format!("/{}/", regex.replace('/', r"\/")),
                }
            }
            Expression::Token(id) => *out += &format!("<[{id}]>"),
            Expression::Rule(name) => *out += &self.name(name),
            Expression::Sequence(all) => self.joined(all, " ", out)?,
            Expression::OneOf(all) => self.joined(all, " | ", out)?,
            Expression::Repeated(item, min, max) => {
                self.joined(std::slice::from_ref(item), "", out)?;
                *out += &bounds(*min, *max);
            }
            Expression::Text(_) | Expression::Class(_) => {}
        }
        Ok(())
    }

    fn joined(&self, all: &[Expression], joint: &str, out: &mut String) -> Result<()> {
        out.push('(');
        for (n, item) in all.iter().enumerate() {
            out.push_str(if n > 0 { joint } else { "" });
            self.lark(item, out)?;
        }
        out.push(')');
        Ok(())
    }

    fn regex(&self, expression: &Expression, out: &mut String) -> Result<()> {
        within(out)?;
        match expression {
            Expression::Text(text) => out.push_str(&escaped(text)),
            Expression::Class(class) => out.push_str(class),
            Expression::Rule(name) => {
                let rule = self.rules.get(name);
                let rule = rule.ok_or_else(|| Error(format!("the rule `{name}` is not defined")))?;
                if self.nested.replace(self.nested.get() + 1) >= MAX_NESTED {
                    return Err(Error(format!("rules are nested deeper than {MAX_NESTED} at `{name}`")));
                }
                out.push_str("(?:");
                self.regex(rule, out)?;
                out.push(')');
                self.nested.set(self.nested.get() - 1);
            }
            Expression::Sequence(all) => all.iter().try_for_each(|item| self.regex(item, out))?,
            Expression::OneOf(all) => {
                out.push_str("(?:");
                for (n, item) in all.iter().enumerate() {
                    out.push_str(if n > 0 { "|" } else { "" });
                    self.regex(item, out)?;
                }
                out.push(')');
            }
            Expression::Repeated(item, min, max) => {
                out.push_str("(?:");
                self.regex(item, out)?;
                *out += &format!("){}", bounds(*min, *max));
            }
            Expression::Token(_) => {}
        }
        Ok(())
    }
}

fn bounds(min: u32, max: Option<u32>) -> String {
    match (min, max) {
        (0, None) => "*".into(),
        (1, None) => "+".into(),
        (0, Some(1)) => "?".into(),
        (min, Some(max)) => format!("{{{min},{max}}}"),
        (min, None) => format!("{{{min},}}"),
    }
}

/// A text as a regular expression, whatever the flags.
fn escaped(text: &str) -> String {
    let one = |c: char| match c {
        c if c.is_alphanumeric() || c == ' ' => c.to_string(),
        c => format!("\\x{{{:X}}}", u32::from(c)),
    };
    text.chars().map(one).collect()
}

fn within(out: &str) -> Result<()> {
    if out.len() > MAX_BYTES {
        return Err(Error(format!("written out, it has more than {MAX_BYTES} bytes")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decides(gbnf: &str, texts: &[(&str, bool)]) {
        let grammar = Grammar::gbnf(gbnf).unwrap();
        for (text, expected) in texts {
            assert_eq!(grammar.accepts(text).is_ok(), *expected, "{text:?} in {grammar:?}");
        }
    }

    #[test]
    fn a_grammar_that_names_nothing_twice_is_a_regular_expression() {
        let chess = "# moves\nroot ::= (\n  \"1. \" move \" \" move \"\\n\"\n)+\nmove ::= piece? [a-h] [1-8] [+#]?\npiece ::= [KQRBN]";
        decides(chess, &[("1. e4 e5\n", true), ("1. Nf3 Qd8#\n1. a1 a2\n", true), ("1. e9 e5\n", false)]);
        decides(r#"root ::= [^"\\\x7F]{2,3} "\"" "#, &[("ab\"", true), ("abcd\"", false), ("a\"", false)]);
        decides("root ::= \"x\" | \"\"", &[("", true), ("x", true), ("y", false)]);
        decides("root ::= .{2}", &[("a\n", true), ("é!", true), ("a", false)]);
        decides("root ::= \"a/b\\u00e9\" [\\-a-]", &[("a/bé-", true), ("a/béa", true), ("a/béb", false)]);
    }

    #[test]
    fn a_rule_that_names_itself_is_one_of_lark() {
        let nested =
            "root ::= value\nvalue ::= \"[\" (value (\",\" value)*)? \"]\" | number\nnumber ::= [0-9]+";
        decides(nested, &[("[1,[2,[]],34]", true), ("7", true), ("[1,]", false), ("[", false)]);
        let json = r#"
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"#;
        decides(
            json,
            &[
                (r#"{"a": [1, -2.5, {"b": "c\n\u00e9"}], "d": null}"#, true),
                ("{}", true),
                (r#"{"a": }"#, false),
                (r#"{"a": 1"#, false),
            ],
        );
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (gbnf, expected) in [
            ("", "it has no rule `root`"),
            ("root ::= thing", "the rule `thing` is not defined"),
            ("root ::= \"a\nroot", "line 2: the text ends within a literal"),
            ("root ::= (\"a\"", "line 1: found \"\"; expected `)`"),
            ("root ::= \"a\"\nroot ::= \"b\"", "line 2: the rule `root` is defined twice"),
            ("root ::= [z-a]", "line 1: the range 'z'-'a' is empty"),
            ("root ::= []", "line 1: a set of characters is empty"),
            ("root ::= \"a\"{3,1}", "line 1: `{3,1}` is no number of repetitions"),
            ("root ::= \"\\q\"", "line 1: `\\q` is no escape"),
            ("root ::= \"a\" )", "line 1: found `)`; expected the name of a rule"),
            ("root = \"a\"", "line 1: found \"= \\\"a\\\"\"; expected `::=`"),
            ("root ::= !<[3]>", "line 1: a token that must not come"),
        ] {
            let error = Grammar::gbnf(gbnf).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{gbnf:?}: {error}");
        }
        let doubled: String = (0..40).map(|n| format!("r{n} ::= r{} r{}\n", n + 1, n + 1)).collect();
        let error = Grammar::gbnf(&format!("root ::= r0\n{doubled}r40 ::= \"a\"")).unwrap_err().to_string();
        assert!(error.starts_with("written out"), "{error}");
    }
}
