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

/// Looks at every constant expression of a template, and at jumps that would leave minijinja's frames in
/// disorder.
pub(crate) fn is_sound(stmt: &Stmt<'_>, place: Place, meter: &mut Meter) -> Result<(), Error> {
    let all = |bodies: &[(&[Stmt<'_>], Place)], exprs: &[&Expr<'_>], meter: &mut Meter| {
        exprs.iter().try_for_each(|expr| fold(expr, meter).map(drop))?;
        let mut statements =
            bodies.iter().flat_map(|(body, place)| body.iter().map(move |stmt| (stmt, *place)));
        statements.try_for_each(|(stmt, place)| is_sound(stmt, place, meter))
    };
    let leaves = |word: &str, line: u16| match place {
        Place { in_loop: true, between: Some(what) } => {
            let detail =
                format!("`{{% {word} %}}` can't leave {what}: put the loop inside it, or use `{{% if %}}`");
            Err(on_line(detail, line))
        }
        _ => Ok(()),
    };
    let in_loop = Place { in_loop: true, between: None };
    match stmt {
        Stmt::Template(s) => all(&[(&s.children, place)], &[], meter),
        Stmt::EmitExpr(s) => all(&[], &[&s.expr], meter),
        Stmt::EmitRaw(_) => Ok(()),
        Stmt::Continue(s) => leaves("continue", s.span().start_line),
        Stmt::Break(s) => leaves("break", s.span().start_line),
        Stmt::ForLoop(s) => {
            let exprs: Vec<&Expr<'_>> = s.filter_expr.iter().chain([&s.iter]).collect();
            all(&[(&s.body, in_loop), (&s.else_body, place)], &exprs, meter)
        }
        Stmt::IfCond(s) => all(&[(&s.true_body, place), (&s.false_body, place)], &[&s.expr], meter),
        Stmt::WithBlock(s) => {
            let exprs: Vec<&Expr<'_>> = s.assignments.iter().flat_map(|(to, value)| [to, value]).collect();
            all(&[(&s.body, place.within("`{% with %}`"))], &exprs, meter)
        }
        Stmt::Set(s) => all(&[], &[&s.target, &s.expr], meter),
        Stmt::SetBlock(s) => {
            let exprs: Vec<&Expr<'_>> = s.filter.iter().chain([&s.target]).collect();
            all(&[(&s.body, place.within("`{% set %}`"))], &exprs, meter)
        }
        Stmt::AutoEscape(s) => all(&[(&s.body, place.within("`{% autoescape %}`"))], &[&s.enabled], meter),
        Stmt::FilterBlock(s) => all(&[(&s.body, place.within("`{% filter %}`"))], &[&s.filter], meter),
        // It would have to come from another template, and there is none.
        Stmt::Block(s) if s.required => {
            Err(on_line(format!("Required block '{}' not found", s.name), s.span().start_line))
        }
        Stmt::Block(s) => all(&[(&s.body, Place::default())], &[], meter),
        Stmt::Import(s) => all(&[], &[&s.expr, &s.name], meter),
        Stmt::FromImport(s) => all(&[], &[&s.expr], meter),
        Stmt::Extends(s) => all(&[], &[&s.name], meter),
        Stmt::Include(s) => all(&[], &[&s.name], meter),
        Stmt::Macro(s) => {
            all(&[(&s.body, place.within("a macro"))], &s.defaults.iter().collect::<Vec<_>>(), meter)
        }
        Stmt::CallBlock(s) => {
            let exprs: Vec<&Expr<'_>> = s.macro_decl.defaults.iter().chain([&s.call.expr]).collect();
            arguments(&s.call.args, meter)?;
            all(&[(&s.macro_decl.body, place.within("`{% call %}`"))], &exprs, meter)
        }
        Stmt::Do(s) => {
            arguments(&s.call.args, meter)?;
            all(&[], &[&s.call.expr], meter)
        }
    }
}

fn arguments(args: &[CallArg<'_>], meter: &mut Meter) -> Result<(), Error> {
    args.iter().try_for_each(|arg| match arg {
        CallArg::Pos(expr)
        | CallArg::Kwarg(_, expr)
        | CallArg::PosSplat(expr)
        | CallArg::KwargSplat(expr) => fold(expr, meter).map(drop),
    })
}

/// Folds an expression as the compiler does, and counts the operations; `None` if the compiler does not fold
/// it. The compiler works an operation out again for each one around it.
pub(crate) fn fold(expr: &Expr<'_>, meter: &mut Meter) -> Result<Option<Folded>, Error> {
    let none = |folded: Result<Option<Folded>, Error>| folded.map(|_| None);
    match expr {
        Expr::Var(_) => Ok(None),
        Expr::Const(_) | Expr::List(_) | Expr::Tuple(_) | Expr::Map(_) => leaf(expr, meter),
        Expr::UnaryOp(e) => {
            let Some(inner) = fold(&e.expr, meter)? else { return Ok(None) };
            worked_out(expr, inner.operations, meter)
        }
        Expr::BinOp(e) => {
            let (left, right) = (fold(&e.left, meter)?, fold(&e.right, meter)?);
            let (Some(left), Some(right)) = (left, right) else { return Ok(None) };
            if !is_small(&e.op, &left, &right) {
                return Err(Bound::Folded.on_line(expr.span().start_line));
            }
            worked_out(expr, left.operations + right.operations, meter)
        }
        Expr::Compare(e) => {
            let (mut operations, mut made, mut constant) = (0, 0, true);
            for part in [&e.expr].into_iter().chain(e.ops.iter().map(|op| &op.expr)) {
                match fold(part, meter)? {
                    Some(folded) => {
                        operations += folded.operations + 1;
                        made += folded.size.made();
                    }
                    None => constant = false,
                }
            }
            if made > MAX_FOLDED {
                return Err(Bound::Folded.on_line(expr.span().start_line));
            }
            if constant { worked_out(expr, operations, meter) } else { Ok(None) }
        }
        Expr::Slice(e) => {
            [&e.start, &e.stop, &e.step].into_iter().flatten().try_for_each(|e| fold(e, meter).map(drop))?;
            none(fold(&e.expr, meter))
        }
        Expr::IfExpr(e) => {
            e.false_expr.iter().try_for_each(|e| fold(e, meter).map(drop))?;
            fold(&e.test_expr, meter)?;
            none(fold(&e.true_expr, meter))
        }
        Expr::Filter(e) => {
            arguments(&e.args, meter)?;
            e.expr.iter().try_for_each(|e| fold(e, meter).map(drop))?;
            Ok(None)
        }
        Expr::Test(e) => {
            arguments(&e.args, meter)?;
            none(fold(&e.expr, meter))
        }
        Expr::GetAttr(e) => none(fold(&e.expr, meter)),
        Expr::GetItem(e) => {
            fold(&e.subscript_expr, meter)?;
            none(fold(&e.expr, meter))
        }
        Expr::Call(e) => {
            arguments(&e.args, meter)?;
            none(fold(&e.expr, meter))
        }
    }
}

/// A constant expression.
pub(crate) struct Folded {
    value: Value,
    size: Size,
    operations: usize,
}

/// A list, tuple or map is constant if its items are constants, not only constant expressions.
fn leaf(expr: &Expr<'_>, meter: &mut Meter) -> Result<Option<Folded>, Error> {
    let items: Vec<&Expr<'_>> = match expr {
        Expr::List(e) => e.items.iter().collect(),
        Expr::Tuple(e) => e.items.iter().collect(),
        Expr::Map(e) => e.keys.iter().chain(&e.values).collect(),
        _ => Vec::new(),
    };
    items.into_iter().try_for_each(|item| fold(item, meter).map(drop))?;
    worked_out(expr, 0, meter)
}

/// Returns whether an operation on constants makes and compares no more than it may.
fn is_small(op: &BinOpKind, left: &Folded, right: &Folded) -> bool {
    let times = |value: &Folded, times: &Folded| match times.value.as_usize() {
        Some(n) if value.value.as_str().is_some() => value.size.bytes.saturating_mul(n),
        Some(n) if value.value.as_object().is_some() => value.size.made().saturating_mul(n),
        _ => 0,
    };
    let repeated = match op {
        BinOpKind::Mul => times(left, right).max(times(right, left)),
        _ => 0,
    };
    repeated.max(left.size.made().saturating_add(right.size.made())) <= MAX_FOLDED
}

fn worked_out(expr: &Expr<'_>, operations: usize, meter: &mut Meter) -> Result<Option<Folded>, Error> {
    let Some(value) = expr.as_const() else { return Ok(None) };
    let size = weigh(&value, meter)?;
    if operations > 0 {
        let again = size.made().saturating_mul(operations + 1);
        meter.make(again)?;
        meter.look(again / 16)?;
    }
    Ok(Some(Folded { value, size, operations: operations + 1 }))
}
