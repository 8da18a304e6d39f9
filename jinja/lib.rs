//! minijinja within bounds: a template from outside gives its text or an error, whatever it says.
//!
//! minijinja's fuel counts instructions, but one of them may double a text or compare lists of lists. So
//! guards (`operands`) are put between the compiled instructions (`instructions`; minijinja's
//! `unstable_machinery`, so the version is exact), filters, tests and functions are weighed before they run
//! (`guards`, `foresee`), lists lie in memory instead of being lazy (`values`), and all of it is counted
//! against [`bounds`]. A template within bounds gives what minijinja gives, to the byte.
//!
//! Fuel, guarded filters and a bounded formatter alone are not enough, because operators are instructions
//! that no environment can replace: of the templates in `tests/bounds/hostile.rs`, `n.a ~ n.a` and
//! `n.l + n.l` in a loop exhaust memory, `(n.l, [n.l]|first)|list` overflows the stack, and `a == a`,
//! `2 in a`, `long[-i]` and `n.d + [i]` run for minutes. An evaluator of our own would be a second Jinja to
//! keep true.
//!
//! ```
//! use greenroom_jinja::{Bound, Jinja};
//! use minijinja::{UndefinedBehavior, context};
//!
//! let jinja = Jinja::new(UndefinedBehavior::Strict);
//! let text = jinja.template("greeting", "Hello, {{ name }}!")?.render(context! { name => "Ann" })?;
//! assert_eq!(text, "Hello, Ann!");
//! let doubled = "{% set n = namespace(a='a') %}{% for i in range(99) %}{% set n.a = n.a ~ n.a %}{% endfor %}";
//! let error = jinja.template("doubled", doubled)?.render(()).unwrap_err();
//! assert_eq!(Bound::of(&error), Some(Bound::Made));
//! # Ok::<(), minijinja::Error>(())
//! ```
#![forbid(unsafe_code)]

pub mod bounds;
mod code;
mod foresee;
mod guards;
mod instructions;
mod mentions;
mod operands;
mod values;

pub use bounds::{Bound, line, taken};
pub use instructions::Use;
pub use mentions::{Mention, Word};

use bounds::{MAX_STEPS, Meter, take};
use minijinja::functions::Function;
use minijinja::machinery::{CodeGenerator, Instructions, eval, make_string_output, parse, parse_expr};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{FunctionArgs, FunctionResult, Value};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State, UndefinedBehavior};
use std::collections::{BTreeMap, BTreeSet};

/// Parses, compiles and runs templates and expressions.
#[derive(Clone)]
pub struct Jinja {
    env: Environment<'static>,
}

impl Jinja {
    /// minijinja's own filters, tests and functions, but `debug()`. As Hugging Face and scenarios have it,
    /// blocks leave no empty lines.
    pub fn new(undefined: UndefinedBehavior) -> Self {
        let mut env = guards::environment();
        operands::add_to(&mut env);
        env.set_undefined_behavior(undefined);
        // Two flags can't contradict the default delimiters.
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        env.set_syntax(syntax.unwrap_or_default());
        Self { env }
    }

    /// Errors have the source that they are about, and the position.
    pub fn with_ranges(mut self) -> Self {
        self.env.set_debug(true);
        self
    }

    /// Adds a filter, or replaces one. Its result may take memory in proportion to its arguments, no more.
    pub fn with_filter<F, Rv, Args>(mut self, name: &'static str, filter: F) -> Self
    where
        F: Function<Rv, Args>,
        Rv: FunctionResult,
        Args: for<'a> FunctionArgs<'a>,
    {
        guards::add_filter(&mut self.env, name, Value::from_function(filter));
        self
    }

    /// Adds a function, likewise.
    pub fn with_function<F, Rv, Args>(mut self, name: &'static str, function: F) -> Self
    where
        F: Function<Rv, Args>,
        Rv: FunctionResult,
        Args: for<'a> FunctionArgs<'a>,
    {
        guards::add_function(&mut self.env, name, Value::from_function(function));
        self
    }

    /// Adds a test, or replaces one.
    pub fn with_test<F, Rv, Args>(mut self, name: &'static str, test: F) -> Self
    where
        F: Function<Rv, Args>,
        Rv: FunctionResult,
        Args: for<'a> FunctionArgs<'a>,
    {
        guards::add_test(&mut self.env, name, Value::from_function(test));
        self
    }

    /// Adds methods, likewise: what is called when a value has none of the name.
    pub fn with_methods<F>(mut self, methods: F) -> Self
    where
        F: Fn(&mut State, &Value, &str, &[Value]) -> Result<Value, Error> + Send + Sync + 'static,
    {
        self.env.set_unknown_method_callback(methods);
        self
    }

    /// The first filter or test that programs use and that there is none of, with its line.
    fn unknown<'s>(&self, programs: &[&Instructions<'s>]) -> Option<(Use<'s>, usize)> {
        let is_there = |test: &str, name: &str| {
            let found =
                self.env.compile_expression(test).and_then(|test| test.eval(minijinja::context! { name }));
            found.is_ok_and(|found| found.is_true())
        };
        let used = programs.iter().flat_map(|program| instructions::used(program));
        let unknown = used.filter(|(used, _)| match used {
            Use::Filter(name) => !is_there("name is filter", name),
            Use::Test(name) => !is_there("name is test", name),
        });
        unknown.min_by_key(|(_, line)| *line)
    }

    /// Compiles a template.
    ///
    /// # Errors
    /// A syntax error, or the bound that it met.
    pub fn template<'a>(&'a self, name: &'a str, source: &'a str) -> Result<Template<'a>, Error> {
        bounds::caught(|| {
            let syntax = self.env.syntax().clone();
            code::is_short(source, false, &syntax)?;
            let Ok(ast) = parse(source, name, syntax) else {
                // The same error once more, with the source attached.
                return self.env.template_from_named_str(name, source).map(|_| unreachable!());
            };
            code::is_sound(&ast, code::Place::default(), &mut Meter::default())?;
            let mut generator = CodeGenerator::new(name, source);
            generator.compile_stmt(&ast);
            let (program, blocks) = generator.finish();
            let program = instructions::guarded(&program)?;
            let blocks = blocks.iter().map(|(name, block)| Ok((*name, instructions::guarded(block)?)));
            Ok(Template { jinja: self, program, blocks: blocks.collect::<Result<_, Error>>()? })
        })
    }

    /// Compiles an expression.
    ///
    /// # Errors
    /// A syntax error, or the bound that it met.
    pub fn expression<'a>(&'a self, source: &'a str) -> Result<Expression<'a>, Error> {
        bounds::caught(|| {
            code::is_short(source, true, self.env.syntax())?;
            let Ok(ast) = parse_expr(source) else {
                return self.env.compile_expression(source).map(|_| unreachable!());
            };
            code::fold(&ast, &mut Meter::default())?;
            let mut generator = CodeGenerator::new("<expression>", source);
            generator.compile_expr(&ast);
            Ok(Expression { jinja: self, program: instructions::guarded(&generator.finish().0)? })
        })
    }
}

/// Names that minijinja itself defines in loops, blocks and macros.
const IMPLICIT: &[&str] = &["loop", "self", "super", "caller"];

/// A compiled template.
pub struct Template<'a> {
    jinja: &'a Jinja,
    program: Instructions<'a>,
    blocks: BTreeMap<&'a str, Instructions<'a>>,
}

impl Template<'_> {
    /// The text that it gives.
    ///
    /// # Errors
    /// Something undefined or impossible, or the bound that it met.
    pub fn render(&self, context: impl Into<Value>) -> Result<String, Error> {
        let mut text = String::new();
        let mut out = make_string_output(&mut text);
        let root = context.into();
        run(&self.jinja.env, &self.program, &self.blocks, root, &mut out)?;
        drop(out);
        Ok(text)
    }

    /// The first filter or test that it uses and that there is none of, with its line.
    pub fn unknown(&self) -> Option<(Use<'_>, usize)> {
        let programs: Vec<_> = self.blocks.values().chain([&self.program]).collect();
        self.jinja.unknown(&programs)
    }

    /// Names that it uses and neither defines itself nor finds among the functions.
    pub fn names(&self) -> Vec<String> {
        let template = self.jinja.env.template_from_named_str(self.program.name(), self.program.source());
        let names = template.map(|template| template.undeclared_variables(false)).unwrap_or_default();
        // minijinja passes over what is sliced. A name that is defined anywhere in the template is its own
        // there.
        let programs: Vec<_> = self.blocks.values().chain([&self.program]).collect();
        let own: BTreeSet<&str> = programs.iter().flat_map(|program| instructions::stored(program)).collect();
        let looked_up = programs.iter().flat_map(|program| instructions::looked_up(program));
        let more = looked_up.filter(|name| !own.contains(name) && !IMPLICIT.contains(name));
        let names: BTreeSet<String> = names.into_iter().chain(more.map(str::to_string)).collect();
        names.into_iter().filter(|name| !is_function(&self.jinja.env, name)).collect()
    }
}

/// A compiled expression.
pub struct Expression<'a> {
    jinja: &'a Jinja,
    program: Instructions<'a>,
}

impl Expression<'_> {
    /// The value that it has.
    ///
    /// # Errors
    /// Something undefined or impossible, or the bound that it met.
    pub fn value(&self, context: impl Into<Value>) -> Result<Value, Error> {
        let mut text = String::new();
        let mut out = make_string_output(&mut text);
        let root = context.into();
        let value = run(&self.jinja.env, &self.program, &BTreeMap::new(), root, &mut out)?;
        bounds::caught(|| {
            // The caller will write it out.
            let size = values::weigh(&value, &mut Meter::default())?;
            if size.made() > bounds::MAX_TEXT { Err(Bound::Text.into()) } else { Ok(value) }
        })
    }

    /// The first filter or test that it uses and that there is none of.
    pub fn unknown(&self) -> Option<(Use<'_>, usize)> {
        self.jinja.unknown(&[&self.program])
    }

    /// Names that it uses.
    pub fn names(&self) -> Vec<String> {
        let expression = self.jinja.env.compile_expression(self.program.source());
        let names = expression.map(|expression| expression.undeclared_variables(false)).unwrap_or_default();
        // minijinja passes over what is sliced; an expression defines nothing itself.
        let more = instructions::looked_up(&self.program).map(str::to_string);
        let names: BTreeSet<String> = names.into_iter().chain(more).collect();
        names.into_iter().filter(|name| !is_function(&self.jinja.env, name)).collect()
    }
}

/// True of a function of the environment.
fn is_function(env: &Environment<'_>, name: &str) -> bool {
    env.globals().any(|(function, _)| function == name)
}

/// Runs a program, and counts what it takes.
fn run(
    env: &Environment<'_>,
    program: &Instructions<'_>,
    blocks: &BTreeMap<&str, Instructions<'_>>,
    root: Value,
    out: &mut Output<'_>,
) -> Result<Value, Error> {
    let before = taken();
    let value = bounds::caught(|| {
        let (value, mut state) = eval(env, program, root, blocks, out, AutoEscape::None)?;
        Meter::of(&mut state);
        Ok(value.unwrap_or_default())
    });
    if let Err(error) = &value {
        // Steps since the last guard: there is one in each loop and macro.
        let n_instructions = || (0..).take_while(|at| program.get(*at).is_some()).count() as u64;
        take(match error.kind() {
            ErrorKind::OutOfFuel => MAX_STEPS.saturating_sub(taken() - before),
            _ => n_instructions(),
        });
    }
    value
}

/// A message, cut where it continues for long: minijinja quotes names and values whole.
pub fn shortened(mut message: String) -> String {
    const MAX_CHARACTERS: usize = 1_000;
    if message.len() > MAX_CHARACTERS {
        message.truncate(message.floor_char_boundary(MAX_CHARACTERS));
        message.push('…');
    }
    message
}
