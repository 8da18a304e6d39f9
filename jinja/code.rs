//! Source, before it becomes instructions: how long and how nested it is, and what the compiler would work
//! out of constants (`'a' * 90000000` is made when a template is compiled).

use crate::bounds::{Bound, MAX_BRANCHES, MAX_CODE, MAX_FOLDED, MAX_TOKENS, Meter, on_line};
use crate::values::{Size, weigh};
use minijinja::Error;
use minijinja::machinery::ast::{BinOpKind, CallArg, Expr, Stmt};
use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;

/// Rejects source that is too long for a parser that goes down a level at each link and branch. Syntax errors
/// are left to the parser.
pub(crate) fn is_short(source: &str, is_expression: bool, syntax: &SyntaxConfig) -> Result<(), Error> {
    let (mut code, mut piece, mut first) = (0, 0, false);
    let mut branches: Vec<usize> = Vec::new();
    for (token, span) in tokenize(source, is_expression, syntax.clone()).map_while(Result::ok) {
        match token {
            Token::TemplateData(_) => continue,
            Token::VariableStart | Token::BlockStart => {
                (piece, first) = (0, true);
                continue;
            }
            Token::Ident("if") if first => branches.push(0),
            Token::Ident("endif") if first => _ = branches.pop(),
            Token::Ident("elif") if first => {
                let branch = branches.last_mut().map(|branch| {
                    *branch += 1;
                    *branch
                });
                if branch.is_some_and(|branch| branch > MAX_BRANCHES) {
                    return Err(Bound::Branches.on_line(span.start_line));
                }
            }
            _ => {}
        }
        (piece, code, first) = (piece + 1, code + 1, false);
        if piece > MAX_TOKENS {
            return Err(Bound::Tokens.on_line(span.start_line));
        }
        if code > MAX_CODE {
            return Err(Bound::Code.on_line(span.start_line));
        }
    }
    Ok(())
}

/// Place of a statement: what `{% break %}` and `{% continue %}` would leave.
#[derive(Clone, Copy, Default)]
pub(crate) struct Place {
    in_loop: bool,
    /// Construct between the statement and its loop.
    between: Option<&'static str>,
}

impl Place {
    fn within(self, what: &'static str) -> Self {
        Self { between: Some(what), ..self }
    }
}

/// Checks every constant expression of a template, and jumps that would leave minijinja's frames in disorder.
pub(crate) fn is_sound(stmt: &Stmt<'_>, place: Place, meter: &mut Meter) -> Result<(), Error> {
    let jump = |word: &str, line: u16| match place {
        Place { in_loop: true, between: Some(what) } => {
            let detail =
                format!("`{{% {word} %}}` can't leave {what}: put the loop inside it, or use `{{% if %}}`");
            Err(on_line(detail, line))
        }
        _ => Ok((vec![], vec![])),
    };
    let (exprs, bodies): (Vec<&Expr<'_>>, Vec<(&[Stmt<'_>], Place)>) = match stmt {
        Stmt::Template(s) => (vec![], vec![(&s.children, place)]),
        Stmt::EmitExpr(s) => (vec![&s.expr], vec![]),
        Stmt::EmitRaw(_) => return Ok(()),
        Stmt::Continue(s) => jump("continue", s.span().start_line)?,
        Stmt::Break(s) => jump("break", s.span().start_line)?,
        Stmt::ForLoop(s) => {
            let in_loop = Place { in_loop: true, between: None };
            let bodies = vec![(&s.body[..], in_loop), (&s.else_body, place)];
            (s.filter_expr.iter().chain([&s.iter]).collect(), bodies)
        }
        Stmt::IfCond(s) => (vec![&s.expr], vec![(&s.true_body, place), (&s.false_body, place)]),
        Stmt::WithBlock(s) => {
            let exprs = s.assignments.iter().flat_map(|(to, value)| [to, value]).collect();
            (exprs, vec![(&s.body, place.within("`{% with %}`"))])
        }
        Stmt::Set(s) => (vec![&s.target, &s.expr], vec![]),
        Stmt::SetBlock(s) => {
            let exprs = s.filter.iter().chain([&s.target]).collect();
            (exprs, vec![(&s.body, place.within("`{% set %}`"))])
        }
        Stmt::AutoEscape(s) => (vec![&s.enabled], vec![(&s.body, place.within("`{% autoescape %}`"))]),
        Stmt::FilterBlock(s) => (vec![&s.filter], vec![(&s.body, place.within("`{% filter %}`"))]),
        // It would have to come from another template, and there is none.
        Stmt::Block(s) if s.required => {
            return Err(on_line(format!("Required block '{}' not found", s.name), s.span().start_line));
        }
        Stmt::Block(s) => (vec![], vec![(&s.body, Place::default())]),
        Stmt::Import(s) => (vec![&s.expr, &s.name], vec![]),
        Stmt::FromImport(s) => (vec![&s.expr], vec![]),
        Stmt::Extends(s) => (vec![&s.name], vec![]),
        Stmt::Include(s) => (vec![&s.name], vec![]),
        Stmt::Macro(s) => (s.defaults.iter().collect(), vec![(&s.body, place.within("a macro"))]),
        Stmt::CallBlock(s) => {
            let exprs = arguments(&s.call.args).chain(&s.macro_decl.defaults).chain([&s.call.expr]);
            (exprs.collect(), vec![(&s.macro_decl.body, place.within("`{% call %}`"))])
        }
        Stmt::Do(s) => (arguments(&s.call.args).chain([&s.call.expr]).collect(), vec![]),
    };
    exprs.into_iter().try_for_each(|expr| fold(expr, meter))?;
    bodies
        .into_iter()
        .try_for_each(|(body, place)| body.iter().try_for_each(|stmt| is_sound(stmt, place, meter)))
}

fn arguments<'e, 's>(args: &'e [CallArg<'s>]) -> impl Iterator<Item = &'e Expr<'s>> {
    args.iter().map(|arg| match arg {
        CallArg::Pos(expr)
        | CallArg::Kwarg(_, expr)
        | CallArg::PosSplat(expr)
        | CallArg::KwargSplat(expr) => expr,
    })
}

/// The expressions that an expression is made of.
fn parts<'e, 's>(expr: &'e Expr<'s>) -> Vec<&'e Expr<'s>> {
    match expr {
        Expr::Var(_) | Expr::Const(_) => vec![],
        Expr::List(e) => e.items.iter().collect(),
        Expr::Tuple(e) => e.items.iter().collect(),
        Expr::Map(e) => e.keys.iter().chain(&e.values).collect(),
        Expr::UnaryOp(e) => vec![&e.expr],
        Expr::BinOp(e) => vec![&e.left, &e.right],
        Expr::Compare(e) => [&e.expr].into_iter().chain(e.ops.iter().map(|op| &op.expr)).collect(),
        Expr::Slice(e) => [Some(&e.expr), e.start.as_ref(), e.stop.as_ref(), e.step.as_ref()]
            .into_iter()
            .flatten()
            .collect(),
        Expr::IfExpr(e) => [&e.test_expr, &e.true_expr].into_iter().chain(&e.false_expr).collect(),
        Expr::Filter(e) => e.expr.iter().chain(arguments(&e.args)).collect(),
        Expr::Test(e) => [&e.expr].into_iter().chain(arguments(&e.args)).collect(),
        Expr::GetAttr(e) => vec![&e.expr],
        Expr::GetItem(e) => vec![&e.expr, &e.subscript_expr],
        Expr::Call(e) => [&e.expr].into_iter().chain(arguments(&e.args)).collect(),
    }
}

/// A constant expression.
struct Folded {
    value: Value,
    size: Size,
    operations: usize,
}

/// Folds what the compiler folds of an expression, and counts the operations: the compiler works an operation
/// out again for each one around it. A loop instead of recursion: a chain may be as long as [`MAX_TOKENS`].
pub(crate) fn fold(expr: &Expr<'_>, meter: &mut Meter) -> Result<(), Error> {
    let mut folded: Vec<Option<Folded>> = Vec::new();
    let mut open = vec![(expr, None)];
    while let Some((expr, n_parts)) = open.pop() {
        let Some(n_parts) = n_parts else {
            let parts = parts(expr);
            open.push((expr, Some(parts.len())));
            open.extend(parts.into_iter().rev().map(|part| (part, None)));
            continue;
        };
        let parts: Vec<_> = folded.drain(folded.len() - n_parts..).flatten().collect();
        folded.push(folded_of(expr, &parts, n_parts, meter)?);
    }
    Ok(())
}

/// The value of an expression with these constant parts; `None` if the compiler does not fold it.
fn folded_of(
    expr: &Expr<'_>,
    parts: &[Folded],
    n_parts: usize,
    meter: &mut Meter,
) -> Result<Option<Folded>, Error> {
    let made = match (expr, parts) {
        // Constant if its items are constants, not only constant expressions.
        (Expr::Const(_) | Expr::List(_) | Expr::Tuple(_) | Expr::Map(_), _) => {
            return worked_out(expr, 0, meter);
        }
        (Expr::BinOp(e), [left, right]) => operated(&e.op, left, right),
        (Expr::Compare(_), _) => parts.iter().map(|part| part.size.made()).sum(),
        (Expr::UnaryOp(_), [_]) => 0,
        _ => return Ok(None),
    };
    if made > MAX_FOLDED {
        return Err(Bound::Folded.on_line(expr.span().start_line));
    }
    let operations = parts.iter().map(|part| part.operations).sum::<usize>() + parts.len();
    if parts.len() == n_parts { worked_out(expr, operations, meter) } else { Ok(None) }
}

/// Bytes that an operation on constants makes and compares.
fn operated(op: &BinOpKind, left: &Folded, right: &Folded) -> usize {
    let times = |value: &Folded, times: &Folded| match times.value.as_usize() {
        Some(n) if value.value.as_str().is_some() => value.size.bytes.saturating_mul(n),
        Some(n) if value.value.as_object().is_some() => value.size.made().saturating_mul(n),
        _ => 0,
    };
    let repeated = match op {
        BinOpKind::Mul => times(left, right).max(times(right, left)),
        _ => 0,
    };
    repeated.max(left.size.made().saturating_add(right.size.made()))
}

fn worked_out(expr: &Expr<'_>, operations: usize, meter: &mut Meter) -> Result<Option<Folded>, Error> {
    let Some(value) = expr.as_const() else { return Ok(None) };
    let size = weigh(&value, meter)?;
    if operations > 0 {
        let again = size.made().saturating_mul(operations);
        meter.make(again)?;
        meter.look(again / 16)?;
    }
    Ok(Some(Folded { value, size, operations }))
}
