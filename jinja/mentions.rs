//! Names and texts of code with their places: an editor finds and renames by them.
//!
//! A name that the code defines itself (`for`, `set`, `with`, macros) is not mentioned: it means nothing
//! outside of it.

use crate::code::is_short;
use crate::{IMPLICIT, Jinja};
use minijinja::machinery::ast::{CallArg, Expr, Stmt};
use minijinja::machinery::{parse, parse_expr};
use std::collections::BTreeSet;
use std::ops::Range;

/// A name or a text in code, and its bytes in the source; of a text those between its quotes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    /// The name, or the text.
    pub text: String,
    /// Its place.
    pub at: Range<usize>,
}

/// What code mentions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mention {
    /// A name, and the fields that are looked up in it by name: `talk.choices['ann']`.
    Name(Vec<Word>),
    /// A field of another value: `(a or b).c`.
    Field(Word),
    /// One text, or texts that belong together: the items of a list, the keys of a mapping.
    Texts {
        /// The texts.
        texts: Vec<Word>,
        /// True of items and keys.
        is_list: bool,
        /// Those of a name and its fields with which they are compared, or which a filter applies them to:
        /// `me.key == 'ann'`, `purse | with('ann', 3)`.
        beside: Vec<String>,
    },
    /// A filter.
    Filter(Word),
    /// A test.
    Test(Word),
    /// A name that the code defines itself.
    Own(Word),
}

impl Jinja {
    /// What a template, or an expression, mentions, in the order of its parts; nothing where it can't be
    /// parsed.
    pub fn mentions(&self, source: &str, is_expression: bool) -> Vec<Mention> {
        let syntax = self.env.syntax().clone();
        if is_short(source, is_expression, &syntax).is_err() {
            return Vec::new();
        }
        let mut walk = Walk { source, own: vec![BTreeSet::new()], found: Vec::new() };
        if is_expression {
            parse_expr(source).iter().for_each(|expr| walk.expr(expr, &[]));
        } else {
            parse(source, "", syntax).iter().for_each(|stmt| walk.stmt(stmt));
        }
        walk.found
    }
}

struct Walk<'s> {
    source: &'s str,
    /// Names that the code defines, by scope.
    own: Vec<BTreeSet<String>>,
    found: Vec<Mention>,
}

impl<'s> Walk<'s> {
    /// The place of a part of the source.
    fn word(&self, text: &str) -> Word {
        let start = (text.as_ptr() as usize).saturating_sub(self.source.as_ptr() as usize);
        Word { text: text.to_owned(), at: start..start + text.len() }
    }

    /// A text between quotes; `None` where it is written with escapes.
    fn constant(&self, expr: &Expr<'_>) -> Option<Word> {
        let Expr::Const(constant) = expr else { return None };
        let (text, span) = (constant.value.as_str()?, constant.span());
        let at = span.start_offset as usize + 1..(span.end_offset as usize).saturating_sub(1);
        (self.source.get(at.clone())? == text).then(|| Word { text: text.to_owned(), at })
    }

    /// A name and the fields looked up in it; `None` for what begins with another value.
    fn chain(&self, expr: &Expr<'_>) -> Option<Vec<Word>> {
        let mut fields = Vec::new();
        let mut at = expr;
        loop {
            at = match at {
                Expr::Var(name) => {
                    fields.push(self.word(name.id));
                    fields.reverse();
                    return Some(fields);
                }
                Expr::GetAttr(of) => {
                    fields.push(self.word(of.name));
                    &of.expr
                }
                Expr::GetItem(of) => {
                    fields.push(self.constant(&of.subscript_expr)?);
                    &of.expr
                }
                _ => return None,
            };
        }
    }

    fn is_own(&self, name: &str) -> bool {
        IMPLICIT.contains(&name) || self.own.iter().any(|own| own.contains(name))
    }

    /// The name and fields that a value is, also after filters that take from it or add to it.
    fn base(&self, expr: &Expr<'_>) -> Vec<String> {
        let mut at = expr;
        while let Expr::Filter(filter) = at
            && ["with", "without", "only"].contains(&filter.name)
            && let Some(of) = &filter.expr
        {
            at = of;
        }
        let chain = self.chain(at).filter(|chain| !self.is_own(&chain[0].text));
        chain.into_iter().flatten().map(|word| word.text).collect()
    }

    fn texts(&mut self, items: &[Expr<'_>], beside: &[String]) {
        let texts: Vec<Word> = items.iter().filter_map(|item| self.constant(item)).collect();
        if texts.len() == items.len() && !texts.is_empty() {
            self.found.push(Mention::Texts { texts, is_list: true, beside: beside.to_vec() });
        } else {
            items.iter().for_each(|item| self.expr(item, beside));
        }
    }

    /// Everything in an expression; `beside`: what a text there is compared with.
    fn expr(&mut self, expr: &Expr<'_>, beside: &[String]) {
        if let Some(chain) = self.chain(expr) {
            if self.is_own(&chain[0].text) {
                let mut words = chain.into_iter();
                self.found.extend(words.next().map(Mention::Own));
                self.found.extend(words.map(Mention::Field));
            } else {
                self.found.push(Mention::Name(chain));
            }
            return;
        }
        match expr {
            Expr::Var(_) => {}
            Expr::Const(_) => {
                let texts: Vec<Word> = self.constant(expr).into_iter().collect();
                if !texts.is_empty() {
                    self.found.push(Mention::Texts { texts, is_list: false, beside: beside.to_vec() });
                }
            }
            Expr::List(e) => self.texts(&e.items, beside),
            Expr::Tuple(e) => self.texts(&e.items, beside),
            Expr::Map(e) => {
                self.texts(&e.keys, beside);
                e.values.iter().for_each(|value| self.expr(value, &[]));
            }
            Expr::UnaryOp(e) => self.expr(&e.expr, &[]),
            Expr::BinOp(e) => {
                let (left, right) = (self.base(&e.left), self.base(&e.right));
                self.expr(&e.left, &right);
                self.expr(&e.right, &left);
            }
            Expr::Compare(e) => {
                let left = self.base(&e.expr);
                let right = e.ops.first().map(|op| self.base(&op.expr)).unwrap_or_default();
                self.expr(&e.expr, &right);
                e.ops.iter().for_each(|op| self.expr(&op.expr, &left));
            }
            Expr::Slice(e) => {
                let parts = [Some(&e.expr), e.start.as_ref(), e.stop.as_ref(), e.step.as_ref()];
                parts.into_iter().flatten().for_each(|part| self.expr(part, &[]));
            }
            Expr::IfExpr(e) => {
                self.expr(&e.true_expr, beside);
                self.expr(&e.test_expr, &[]);
                e.false_expr.iter().for_each(|part| self.expr(part, beside));
            }
            Expr::Filter(e) => {
                let base = e.expr.as_ref().map(|of| self.base(of)).unwrap_or_default();
                e.expr.iter().for_each(|of| self.expr(of, beside));
                self.found.push(Mention::Filter(self.word(e.name)));
                let takes = ["with", "without", "only"].contains(&e.name);
                for (n, arg) in e.args.iter().enumerate() {
                    self.argument(arg, if takes && n == 0 { &base } else { &[] });
                }
            }
            Expr::Test(e) => {
                self.expr(&e.expr, &[]);
                self.found.push(Mention::Test(self.word(e.name)));
                e.args.iter().for_each(|arg| self.argument(arg, &[]));
            }
            Expr::GetAttr(e) => {
                self.expr(&e.expr, &[]);
                self.found.push(Mention::Field(self.word(e.name)));
            }
            Expr::GetItem(e) => {
                self.expr(&e.expr, &[]);
                match self.constant(&e.subscript_expr) {
                    Some(word) => self.found.push(Mention::Field(word)),
                    None => self.expr(&e.subscript_expr, &[]),
                }
            }
            Expr::Call(e) => {
                self.expr(&e.expr, &[]);
                e.args.iter().for_each(|arg| self.argument(arg, &[]));
            }
        }
    }

    fn argument(&mut self, arg: &CallArg<'_>, beside: &[String]) {
        match arg {
            CallArg::Pos(expr)
            | CallArg::Kwarg(_, expr)
            | CallArg::PosSplat(expr)
            | CallArg::KwargSplat(expr) => self.expr(expr, beside),
        }
    }

    /// Defines the names that something is assigned to.
    fn define(&mut self, target: &Expr<'_>) {
        match target {
            Expr::Var(name) => {
                let word = self.word(name.id);
                self.own.last_mut().map(|own| own.insert(word.text.clone()));
                self.found.push(Mention::Own(word));
            }
            Expr::List(e) => e.items.iter().for_each(|item| self.define(item)),
            Expr::Tuple(e) => e.items.iter().for_each(|item| self.define(item)),
            // A field of a namespace.
            other => self.expr(other, &[]),
        }
    }

    fn scope(&mut self, inner: impl FnOnce(&mut Self)) {
        self.own.push(BTreeSet::new());
        inner(self);
        self.own.pop();
    }

    fn body(&mut self, body: &[Stmt<'_>]) {
        self.scope(|walk| body.iter().for_each(|stmt| walk.stmt(stmt)));
    }

    fn stmt(&mut self, stmt: &Stmt<'_>) {
        match stmt {
            Stmt::Template(s) => s.children.iter().for_each(|child| self.stmt(child)),
            Stmt::EmitExpr(s) => self.expr(&s.expr, &[]),
            Stmt::EmitRaw(_) | Stmt::Continue(_) | Stmt::Break(_) => {}
            Stmt::ForLoop(s) => {
                self.expr(&s.iter, &[]);
                self.scope(|walk| {
                    walk.define(&s.target);
                    s.filter_expr.iter().for_each(|filter| walk.expr(filter, &[]));
                    walk.body(&s.body);
                });
                self.body(&s.else_body);
            }
            Stmt::IfCond(s) => {
                self.expr(&s.expr, &[]);
                // What one of them sets stays set.
                s.true_body.iter().chain(&s.false_body).for_each(|stmt| self.stmt(stmt));
            }
            Stmt::WithBlock(s) => self.scope(|walk| {
                for (target, value) in &s.assignments {
                    walk.expr(value, &[]);
                    walk.define(target);
                }
                walk.body(&s.body);
            }),
            Stmt::Set(s) => {
                self.expr(&s.expr, &[]);
                self.define(&s.target);
            }
            Stmt::SetBlock(s) => {
                s.filter.iter().for_each(|filter| self.expr(filter, &[]));
                self.body(&s.body);
                self.define(&s.target);
            }
            Stmt::AutoEscape(s) => {
                self.expr(&s.enabled, &[]);
                self.body(&s.body);
            }
            Stmt::FilterBlock(s) => {
                self.expr(&s.filter, &[]);
                self.body(&s.body);
            }
            Stmt::Block(s) => self.body(&s.body),
            // There is no other template that they could name.
            Stmt::Import(_) | Stmt::FromImport(_) | Stmt::Extends(_) | Stmt::Include(_) => {}
            Stmt::Macro(s) => {
                let name = self.word(s.name);
                self.own.last_mut().map(|own| own.insert(name.text.clone()));
                self.found.push(Mention::Own(name));
                self.scope(|walk| walk.called(&s.args, &s.defaults, &s.body));
            }
            Stmt::CallBlock(s) => {
                self.expr(&s.call.expr, &[]);
                s.call.args.iter().for_each(|arg| self.argument(arg, &[]));
                let of = &s.macro_decl;
                self.scope(|walk| walk.called(&of.args, &of.defaults, &of.body));
            }
            Stmt::Do(s) => {
                self.expr(&s.call.expr, &[]);
                s.call.args.iter().for_each(|arg| self.argument(arg, &[]));
            }
        }
    }

    fn called(&mut self, args: &[Expr<'_>], defaults: &[Expr<'_>], body: &[Stmt<'_>]) {
        args.iter().for_each(|arg| self.define(arg));
        defaults.iter().for_each(|default| self.expr(default, &[]));
        self.body(body);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use minijinja::UndefinedBehavior;

    /// The mentions of a source, as text.
    fn mentions(source: &str, is_expression: bool) -> String {
        let joined = |words: &[Word]| {
            let shown = words.iter().map(|word| {
                assert_eq!(source[word.at.clone()], word.text);
                word.text.as_str()
            });
            shown.collect::<Vec<_>>().join(".")
        };
        let found = Jinja::new(UndefinedBehavior::Strict).mentions(source, is_expression);
        let shown = found.iter().map(|mention| match mention {
            Mention::Name(words) => joined(words),
            Mention::Field(word) => format!(".{}", joined(std::slice::from_ref(word))),
            Mention::Texts { texts, beside, .. } if beside.is_empty() => format!("'{}'", joined(texts)),
            Mention::Texts { texts, beside, .. } => {
                format!("'{}' beside {}", joined(texts), beside.join("."))
            }
            Mention::Filter(word) => format!("|{}", joined(std::slice::from_ref(word))),
            Mention::Test(word) => format!("is {}", joined(std::slice::from_ref(word))),
            Mention::Own(word) => format!("own {}", joined(std::slice::from_ref(word))),
        });
        shown.collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn names_of_expressions_have_places() {
        for (source, expected) in [
            ("talk.choices['ann'] == 'über' or x", "talk.choices.ann, 'über' beside talk.choices.ann, x"),
            ("(a or b).c[d].e[0]['f']", "a, b, .c, d, .e, .f"),
            (
                "purse | with('ann', x) | with('ben', 1)",
                "purse, |with, 'ann' beside purse, x, |with, 'ben' beside purse",
            ),
            ("me.key in ['ann', 'ben']", "me.key, 'ann.ben' beside me.key"),
            ("{'ann': a, 'ben': b} | items", "'ann.ben', a, b, |items"),
            ("x is defined and not y", "x, is defined, y"),
            ("'it\\'s' ~ z[1:n]", "z, n"),
            ("f(a, k=b)[0]", "f, a, b"),
            ("a and", ""),
        ] {
            assert_eq!(mentions(source, true), expected, "{source}");
        }
    }

    #[test]
    fn what_a_template_defines_is_its_own() {
        for (source, expected) in [
            ("Ü {{ a.b }}{% if c %}{{ 'd' }}{% endif %}", "a.b, c, 'd'"),
            (
                "{% for x in xs if x.y %}{{ x }}{{ loop.index }}{% endfor %}{{ x }}",
                "xs, own x, own x, .y, own x, own loop, .index, x",
            ),
            ("{% set x = x %}{{ x }}", "x, own x, own x"),
            ("{% with x = y %}{{ x }}{% endwith %}{{ x }}", "y, own x, own x, x"),
            ("{% macro m(p) %}{{ p }}{{ q }}{% endmacro %}{{ m(p) }}", "own m, own p, own p, q, own m, p"),
            ("{% raw %}{{ x }}{% endraw %}{# {{ y }} #}", ""),
        ] {
            assert_eq!(mentions(source, false), expected, "{source}");
        }
    }
}
