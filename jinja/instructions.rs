//! Instructions, with guards put between them.
//!
//! minijinja's machine counts steps, and one step may repeat a text, compare two lists or build a value
//! within itself. So its instructions are rewritten before they run: what is dangerous is preceded by a
//! filter of [`crate::operands`] that looks at the operands, and followed by one that looks at the result. Everything
//! else stays as it was compiled, with its lines.

use crate::bounds::Meter;
use crate::operands::{
    BUILT, COMPARED, FACTORS, HELD, INDEXED, ITERATED, MADE, METHOD, NAMED, PASSED, POWER, PRINTED, SLICED,
    TAKEN,
};
use crate::values::settle;
use minijinja::Error;
use minijinja::machinery::{Instruction, Instructions};
use minijinja::value::{Value, ValueKind};
use std::collections::BTreeSet;

/// Bytes that a macro takes each time it is declared, with the names that it encloses.
const MACRO: usize = 1024;
/// The flag of a loop that has a `loop`.
const WITH_LOOP_VAR: u8 = 1;
/// Places of a list that are looked up without a guard.
const NEAR: usize = 64;

/// Marks the instructions that are within a loop of their own program and macro.
///
/// `loop(…)` jumps to where the innermost loop starts. From a macro or block within that loop, this is an
/// address in another program, or one whose frames are gone, so arbitrary instructions would run.
fn in_loops(program: &[&Instruction<'_>]) -> Vec<bool> {
    let macro_start = |instruction: &&Instruction<'_>| match instruction {
        Instruction::BuildMacro(_, start, _) => Some(*start),
        _ => None,
    };
    let macros: BTreeSet<u32> = program.iter().filter_map(macro_start).collect();
    // The open loops of each open macro, and whether they have a `loop`; those that only filter have none.
    let mut open: Vec<Vec<bool>> = vec![vec![]];
    let within = |(at, instruction): (u32, &&Instruction<'_>)| {
        if macros.contains(&at) {
            open.push(vec![]);
        }
        match (instruction, open.last_mut()) {
            (Instruction::PushLoop(flags), Some(loops)) => loops.push(flags & WITH_LOOP_VAR != 0),
            (Instruction::PopLoopFrame, Some(loops)) => drop(loops.pop()),
            (Instruction::Return, _) => drop(open.pop()),
            _ => {}
        }
        open.last().is_some_and(|loops| loops.contains(&true))
    };
    (0..).zip(program).map(within).collect()
}

/// The names that a program looks up.
pub(crate) fn looked_up<'a, 's>(program: &'a Instructions<'s>) -> impl Iterator<Item = &'s str> + 'a {
    (0..).map_while(|at| program.get(at)).filter_map(|instruction| match instruction {
        Instruction::Lookup(name) => Some(*name),
        _ => None,
    })
}

/// The filters and tests that a program uses by name, each with its line.
pub(crate) fn used<'a, 's>(program: &'a Instructions<'s>) -> impl Iterator<Item = (Use<'s>, usize)> + 'a {
    (0..).map_while(|at| Some((at, program.get(at)?))).filter_map(|(at, instruction)| {
        let found = match instruction {
            Instruction::ApplyFilter(name, ..) => Use::Filter(name),
            Instruction::PerformTest(name, ..) => Use::Test(name),
            _ => return None,
        };
        Some((found, program.get_line(at).unwrap_or(1)))
    })
}

/// What a template uses by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use<'s> {
    /// `value | name`
    Filter(&'s str),
    /// `value is name`
    Test(&'s str),
}

/// The names that a program defines.
pub(crate) fn stored<'a, 's>(program: &'a Instructions<'s>) -> impl Iterator<Item = &'s str> + 'a {
    (0..).map_while(|at| program.get(at)).filter_map(|instruction| match instruction {
        Instruction::StoreLocal(name) => Some(*name),
        _ => None,
    })
}

/// The same program with guards.
pub(crate) fn guarded<'s>(plain: &Instructions<'s>) -> Result<Instructions<'s>, Error> {
    let program: Vec<&Instruction<'s>> = (0..).map_while(|at| plain.get(at)).collect();
    let in_loops = in_loops(&program);
    let mut targets = vec![false; program.len() + 1];
    program.iter().filter_map(|instruction| target(instruction)).for_each(|at| targets[at as usize] = true);
    let mut meter = Meter::default();
    let mut pieces = Vec::with_capacity(program.len());
    let mut starts = Vec::with_capacity(program.len() + 1);
    let mut n = 0;
    for (at, instruction) in program.iter().enumerate() {
        let before = at.checked_sub(1).filter(|_| !targets[at]).map(|before| program[before]);
        let constant = before.and_then(|before| match before {
            Instruction::LoadConst(value) => Some(value),
            _ => None,
        });
        let piece = piece(instruction, constant, program.get(at + 1).copied(), in_loops[at], &mut meter)?;
        starts.push(n);
        n += piece.len() as u32;
        pieces.push(piece);
    }
    starts.push(n);
    let mut guarded = Instructions::new(plain.name(), plain.source());
    for (at, piece) in (0..).zip(pieces) {
        for mut instruction in piece {
            aim(&mut instruction, &starts);
            match (plain.get_span(at), plain.get_line(at)) {
                (Some(span), _) => guarded.add_with_span(instruction, span),
                (None, Some(line)) => {
                    guarded.add_with_line(instruction, u16::try_from(line).unwrap_or(u16::MAX))
                }
                (None, None) => guarded.add(instruction),
            };
        }
    }
    Ok(guarded)
}

/// Index of the instruction that an instruction may jump to.
fn target(instruction: &Instruction<'_>) -> Option<u32> {
    match instruction {
        Instruction::Jump(to)
        | Instruction::JumpIfFalse(to)
        | Instruction::JumpIfFalseOrPop(to)
        | Instruction::JumpIfTrueOrPop(to)
        | Instruction::Iterate(to)
        | Instruction::BuildMacro(_, to, _) => Some(*to),
        _ => None,
    }
}

/// Lets a jump go where its target now starts.
fn aim(instruction: &mut Instruction<'_>, starts: &[u32]) {
    match instruction {
        Instruction::Jump(to)
        | Instruction::JumpIfFalse(to)
        | Instruction::JumpIfFalseOrPop(to)
        | Instruction::JumpIfTrueOrPop(to)
        | Instruction::Iterate(to)
        | Instruction::BuildMacro(_, to, _) => *to = starts[*to as usize],
        _ => {}
    }
}

/// Applies one of the filters of [`crate::operands`] to `n` values on the stack.
fn apply(name: &'static str, n_values: u16) -> Instruction<'static> {
    Instruction::ApplyFilter(name, Some(n_values), !0)
}

/// Returns what replaces an instruction. `constant` is the operand on top of the stack, if it is one;
/// `in_loop` is true if `loop` is a loop of this program.
///
/// Every instruction is named, so that one that a newer minijinja adds is not overlooked.
fn piece<'s>(
    instruction: &Instruction<'s>,
    constant: Option<&Value>,
    next: Option<&Instruction<'s>>,
    in_loop: bool,
    meter: &mut Meter,
) -> Result<Vec<Instruction<'s>>, Error> {
    use Instruction as I;
    let plain = instruction.clone();
    let scalar = |value: &Value| value.as_object().is_none();
    Ok(match instruction {
        // Through the formatter, which counts; a safe text is never escaped.
        I::EmitRaw(text) => vec![I::LoadConst(Value::from_safe_string((*text).to_owned())), I::Emit],
        I::LoadConst(value) => vec![I::LoadConst(settle(value.clone(), meter)?)],
        I::SetAttr(_) => vec![I::Swap, apply(HELD, 1), I::Swap, plain],
        // A guard hides from minijinja what the index is of: an error says `(...)[...]`, with the range of
        // all of it.
        I::GetItem if constant.is_some_and(is_near) => vec![plain],
        I::GetItem => vec![I::Swap, apply(INDEXED, 1), I::Swap, plain],
        I::Slice => vec![I::BuildTuple(Some(4)), apply(SLICED, 1), I::UnpackList(4), plain, apply(MADE, 1)],
        I::BuildList(Some(0)) | I::BuildTuple(Some(0)) | I::BuildMap(0) => vec![plain],
        I::BuildList(_) | I::BuildTuple(_) | I::BuildMap(_) => vec![plain, apply(BUILT, 1)],
        // A method called with `*args`: its name comes after them.
        I::UnpackLists(n) => match next {
            Some(I::CallMethod(name, None)) => {
                vec![I::LoadConst(Value::from(*name)), I::BuildList(Some(1)), I::UnpackLists(n + 1)]
            }
            // One list of all, which can be looked at.
            _ => vec![plain, I::BuildList(None), apply(ITERATED, 1), I::UnpackLists(1)],
        },
        I::CallMethod(_, None) => vec![I::ApplyFilter(METHOD, None, !0)],
        I::CallMethod(name, Some(n)) => vec![I::LoadConst(Value::from(*name)), apply(METHOD, n + 1)],
        I::Add => vec![plain, apply(MADE, 1)],
        I::Mul => vec![I::BuildTuple(Some(2)), apply(FACTORS, 1), I::UnpackList(2), plain, apply(MADE, 1)],
        I::Pow => vec![I::BuildTuple(Some(2)), apply(POWER, 1), I::UnpackList(2), plain],
        I::StringConcat => {
            vec![apply(PRINTED, 1), I::Swap, apply(PRINTED, 1), I::Swap, plain, apply(MADE, 1)]
        }
        // Comparing with a short constant takes no longer than the constant is.
        I::Eq | I::Ne | I::Gt | I::Gte | I::Lt | I::Lte if constant.is_some_and(scalar) => vec![plain],
        I::Eq | I::Ne | I::Gt | I::Gte | I::Lt | I::Lte | I::In | I::CompareAndPreserve(_) => {
            vec![apply(COMPARED, 1), I::Swap, apply(COMPARED, 1), I::Swap, plain]
        }
        // `FastRecurse` and calls may begin a loop again, after the guard of `PushLoop`.
        I::FastRecurse if !in_loop => {
            let mut piece = piece(&I::CallFunction("loop", Some(1)), constant, next, in_loop, meter)?;
            piece.push(I::Emit);
            piece
        }
        I::PushLoop(_) | I::FastRecurse => vec![apply(ITERATED, 1), plain],
        I::CallFunction(name, n) => {
            let mut piece = match *name {
                "loop" if in_loop => vec![],
                _ => vec![I::Lookup(name), apply(NAMED, 1), I::DiscardTop],
            };
            match n {
                Some(0) => piece.extend([plain, apply(PASSED, 1)]),
                Some(_) => piece.extend([apply(ITERATED, 1), plain]),
                None => piece.push(plain),
            }
            piece
        }
        // So that the steps of each round are known, though it fails later.
        I::Iterate(_) => vec![plain, apply(PASSED, 1)],
        I::BuildMacro(..) => vec![I::LoadConst(Value::from(MACRO)), apply(TAKEN, 1), I::DiscardTop, plain],
        // Numbers, names, jumps and frames; filters, tests and functions are guarded in the environment,
        // printing in its formatter, and what would load another template finds none.
        I::StoreLocal(_)
        | I::Lookup(_)
        | I::GetAttr(_)
        | I::BuildKwargs(_)
        | I::MergeKwargs(_)
        | I::UnpackList(_)
        | I::Sub
        | I::Div
        | I::IntDiv
        | I::Rem
        | I::Neg
        | I::Not
        | I::ApplyFilter(..)
        | I::PerformTest(..)
        | I::Emit
        | I::PushWith
        | I::PushDidNotIterate
        | I::PopFrame
        | I::PopLoopFrame
        | I::Jump(_)
        | I::JumpIfFalse(_)
        | I::JumpIfFalseOrPop(_)
        | I::JumpIfTrueOrPop(_)
        | I::PushAutoEscape
        | I::PopAutoEscape
        | I::BeginCapture(_)
        | I::EndCapture
        | I::CallObject(_)
        | I::DupTop
        | I::DiscardTop
        | I::FastSuper
        | I::Swap
        | I::CallBlock(_)
        | I::LoadBlocks
        | I::Include(_)
        | I::ExportLocals
        | I::Return
        | I::IsUndefined
        | I::Enclose(_)
        | I::GetClosure => vec![plain],
    })
}

/// Keys that are found without going far: names, and the first places of a list or text.
fn is_near(key: &Value) -> bool {
    key.kind() == ValueKind::String || key.as_usize().is_some_and(|place| place <= NEAR)
}
