//! A template compiled so that it cannot exhaust the machine: each expensive operation is preceded or replaced by one that charges the budget.
//!
//! The interpreter counts steps, but one step may read and produce any number of bytes, so steps alone bound nothing. Its operators cannot be
//! replaced from outside; its instructions can. Filters, tests and methods are wrapped at registration, since some call others.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use minijinja::machinery::{self, CompiledTemplate, Instruction, Instructions, Span, TemplateConfig};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Rest, ValueKind, ValueOrKwargs};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, Value, filters};

use super::budget::{self, LONGEST_TEXT};
use super::python::text_of;

/// The template's name in errors.
const NAME: &str = "chat_template";
/// Maximum tokens of a template's source. The nesting depth of an expression is at most its number of tokens; templates in use have a few thousand.
const LONGEST_TEMPLATE: usize = 32_768;
/// Stack for compiling, which recurses into expressions: about 8 KiB per token. Unused stack is never touched.
const STACK: usize = 256 << 20;
/// Maximum nesting of macro calls and loops.
const DEEPEST_CALL: usize = 100;
/// Maximum width of a `format` field: wider ones are padding that no conversation needs.
const WIDEST_FIELD: u64 = 9_999;

/// Filters that look at the value but not into its elements.
const SHALLOW: [&str; 15] = [
    "abs", "attr", "bool", "chain", "count", "d", "default", "first", "float", "int", "items", "last", "length",
    "round", "zip",
];
/// Filters that list the elements of a value; a string's elements are its characters.
const OF_ELEMENTS: [&str; 5] = ["batch", "list", "reverse", "slice", "sum"];
/// Filters that compare the elements of a value with each other.
const COMPARING: [&str; 6] = ["dictsort", "groupby", "max", "min", "sort", "unique"];
/// Filters of a string, or of a value converted to a string.
const OF_TEXT: [&str; 15] = [
    "capitalize",
    "e",
    "escape",
    "format",
    "indent",
    "join",
    "lines",
    "lower",
    "replace",
    "safe",
    "split",
    "title",
    "trim",
    "upper",
    "urlencode",
];
/// Filters that apply other filters or tests to each element.
const OF_OTHERS: [&str; 5] = ["map", "reject", "rejectattr", "select", "selectattr"];
/// Tests that look into values. The others take constant time.
const TESTS: [&str; 20] = [
    "eq",
    "equalto",
    "==",
    "ne",
    "!=",
    "lt",
    "lessthan",
    "<",
    "le",
    "<=",
    "gt",
    "greaterthan",
    ">",
    "ge",
    ">=",
    "in",
    "lower",
    "upper",
    "startingwith",
    "endingwith",
];

/// A template's instructions.
#[derive(Debug)]
pub(super) struct Compiled {
    instructions: Instructions<'static>,
    blocks: BTreeMap<&'static str, Instructions<'static>>,
    /// The source that the instructions borrow from. Fields are dropped in order, so it outlives them.
    _source: Arc<str>,
}

impl Compiled {
    /// Compiles a template, or returns the error in it.
    pub(super) fn new(source: &str, syntax: &SyntaxConfig) -> Result<Compiled, Error> {
        let count = machinery::tokenize(source, false, syntax.clone()).take(LONGEST_TEMPLATE + 1).count();
        if count > LONGEST_TEMPLATE {
            return Err(invalid(format!("it has more than {LONGEST_TEMPLATE} words and symbols")));
        }
        let source: Arc<str> = Arc::from(source);
        // SAFETY: the text is behind the `Arc`, which does not move it and is kept beside everything that borrows it, private to this file; nothing
        // that lives longer is handed out.
        let text: &'static str = unsafe { &*Arc::as_ptr(&source) };
        let config =
            TemplateConfig { syntax_config: syntax.clone(), default_auto_escape: Arc::new(|_| AutoEscape::None) };
        let compile = || {
            let CompiledTemplate { instructions, blocks, .. } = CompiledTemplate::new(NAME, text, &config)?;
            let blocks =
                blocks.iter().map(|(name, block)| Ok((*name, bounded(block)?))).collect::<Result<_, Error>>()?;
            Ok::<_, Error>((bounded(&instructions)?, blocks))
        };
        let (instructions, blocks) = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, compile);
            let thread = thread.map_err(|error| invalid(format!("cannot start a thread to compile it: {error}")))?;
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        Ok(Compiled { instructions, blocks, _source: source })
    }

    /// Renders the template.
    pub(super) fn render(&self, environment: &Environment<'static>, values: Value) -> Result<String, Error> {
        budget::begin();
        let mut text = String::new();
        let mut output = machinery::make_string_output(&mut text);
        machinery::eval(environment, &self.instructions, values, &self.blocks, &mut output, AutoEscape::None)?;
        if text.len() > LONGEST_TEXT {
            return Err(invalid(format!("it writes {} bytes; the maximum is {LONGEST_TEXT}", text.len())));
        }
        Ok(text)
    }
}

fn invalid(problem: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, problem)
}

/// The same instructions, with charging ones inserted.
fn bounded<'source>(given: &Instructions<'source>) -> Result<Instructions<'source>, Error> {
    let mut made = Instructions::new(given.name(), given.source());
    let mut places = Vec::new();
    let mut last: Option<&Instruction> = None;
    for (number, instruction) in (0..).map_while(|number| Some((number, given.get(number)?))) {
        places.push(0);
        let (span, line) = (given.get_span(number), given.get_line(number));
        let mut next: Option<u32> = None;
        for one in replaced(instruction, last)? {
            let place = add(&mut made, one, span, line);
            next = next.or(Some(place));
        }
        if let (Some(place), Some(next)) = (places.last_mut(), next) {
            *place = next;
        }
        last = Some(instruction);
    }
    let end = (0..).take_while(|number| made.get(*number).is_some()).count() as u32;
    for number in 0..end {
        let Some(instruction) = made.get_mut(number) else { break };
        match instruction {
            Instruction::Jump(to)
            | Instruction::JumpIfFalse(to)
            | Instruction::JumpIfFalseOrPop(to)
            | Instruction::JumpIfTrueOrPop(to)
            | Instruction::Iterate(to)
            | Instruction::BuildMacro(_, to, _) => *to = places.get(*to as usize).copied().unwrap_or(end),
            _ => {}
        }
    }
    Ok(made)
}

fn add<'source>(
    to: &mut Instructions<'source>,
    instruction: Instruction<'source>,
    span: Option<Span>,
    line: Option<usize>,
) -> u32 {
    match (span, line) {
        (Some(span), _) => to.add_with_span(instruction, span),
        (None, Some(line)) => to.add_with_line(instruction, line as u16),
        (None, None) => to.add(instruction),
    }
}

/// The replacement of an instruction. Our functions have names that no template can write.
fn replaced<'source>(
    instruction: &Instruction<'source>,
    last: Option<&Instruction>,
) -> Result<Vec<Instruction<'source>>, Error> {
    let call = |name, count| Instruction::CallFunction(name, Some(count));
    let same = instruction.clone();
    Ok(match instruction {
        // Printed like a value, so charged like one.
        Instruction::EmitRaw(text) => vec![Instruction::LoadConst(Value::from(*text)), Instruction::Emit],
        Instruction::StringConcat => vec![call("~", 2)],
        Instruction::Eq => vec![call("==", 2)],
        Instruction::Ne => vec![call("!=", 2)],
        Instruction::Gt => vec![call(">", 2)],
        Instruction::Gte => vec![call(">=", 2)],
        Instruction::Lt => vec![call("<", 2)],
        Instruction::Lte => vec![call("<=", 2)],
        Instruction::Slice => vec![call("[:]", 4)],
        Instruction::In | Instruction::CompareAndPreserve(_) => {
            vec![call(" weighed", 1), Instruction::Swap, call(" weighed", 1), Instruction::Swap, same]
        }
        // Both operands are bounded; the interpreter bounds products.
        Instruction::Add
        | Instruction::Mul
        | Instruction::BuildList(_)
        | Instruction::BuildTuple(_)
        | Instruction::BuildMap(_)
        | Instruction::CallFunction(..)
        | Instruction::CallObject(_) => vec![same, call(" held", 1)],
        // The namespace is on top of the value assigned to it.
        Instruction::SetAttr(_) => vec![Instruction::Swap, call(" kept", 1), Instruction::Swap, same],
        Instruction::GetItem if matches!(last, Some(Instruction::LoadConst(key)) if key.as_str().is_some()) => {
            vec![same]
        }
        Instruction::GetItem => vec![Instruction::Swap, call(" walked", 1), Instruction::Swap, same],
        Instruction::PushLoop(_) => vec![call(" walked", 1), same],
        Instruction::UnpackLists(_) | Instruction::MergeKwargs(_) => {
            return Err(invalid("arguments with `*` or `**` are not supported".to_string()));
        }
        _ => vec![same],
    })
}

/// Registers everything that charges the budget.
pub(super) fn set_up(environment: &mut Environment<'static>) {
    environment.set_fuel(Some(budget::STEPS));
    environment.set_recursion_limit(DEEPEST_CALL);
    // Functions and filters of the interpreter, not of Jinja, that print everything.
    environment.remove_global("debug");
    environment.remove_filter("pprint");
    environment.set_unknown_method_callback(method);
    environment.add_function(" held", budget::held);
    environment.add_function(" kept", budget::kept);
    environment.add_function(" weighed", |value: Value| budget::weigh(&value).map(|_| value));
    environment.add_function(" walked", |value: Value| budget::walked(&value).map(|()| value));
    environment.add_function("[:]", slice);
    environment.add_function("~", |left: Value, right: Value| {
        let mut text = budget::Text::default();
        text.push(&text_of(&left)?)?;
        text.push(&text_of(&right)?)?;
        Ok::<String, Error>(text.finish())
    });
    let mut compare = |name, holds: fn(&Value, &Value) -> bool| {
        environment.add_function(name, move |left: Value, right: Value| {
            budget::weigh(&left)?;
            budget::weigh(&right)?;
            Ok::<bool, Error>(holds(&left, &right))
        });
    };
    compare("==", |left, right| left == right);
    compare("!=", |left, right| left != right);
    compare(">", |left, right| left > right);
    compare(">=", |left, right| left >= right);
    compare("<", |left, right| left < right);
    compare("<=", |left, right| left <= right);
    for name in SHALLOW.into_iter().chain(OF_ELEMENTS).chain(COMPARING).chain(OF_TEXT) {
        environment.add_filter(name, move |args: Rest<ValueOrKwargs>| filter(name, &args.into_values()));
    }
    environment.add_filter(" map", filters::map);
    environment.add_filter(" reject", filters::reject);
    environment.add_filter(" rejectattr", filters::rejectattr);
    environment.add_filter(" select", filters::select);
    environment.add_filter(" selectattr", filters::selectattr);
    for name in OF_OTHERS {
        environment.add_filter(name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            for value in &args {
                budget::weigh(value)?;
                budget::listed(value.len().unwrap_or(0) as u64)?;
            }
            budget::held(state.apply_filter(&format!(" {name}"), &args)?)
        });
    }
    for name in TESTS {
        environment.add_test(name, move |args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            for value in &args {
                budget::weigh(value)?;
            }
            plain().empty_state().perform_test(name, &args)
        });
    }
}

/// The interpreter's original filters and tests.
fn plain() -> &'static Environment<'static> {
    static PLAIN: OnceLock<Environment<'static>> = OnceLock::new();
    PLAIN.get_or_init(Environment::new)
}

fn filter(name: &str, args: &[Value]) -> Result<Value, Error> {
    let Some((value, others)) = args.split_first() else {
        return plain().empty_state().apply_filter(name, args);
    };
    if SHALLOW.contains(&name) {
        budget::walked(value)?;
    } else if OF_ELEMENTS.contains(&name) {
        budget::walked(value)?;
        budget::listed(value.len().unwrap_or(0) as u64)?;
        // `batch` and `slice` make as many elements as requested.
        budget::listed(largest_number(others)?)?;
    } else {
        let mut bytes = 0;
        for arg in args {
            bytes += budget::weigh(arg)?;
        }
        match COMPARING.contains(&name) {
            // Each element as often as a sort compares it.
            true => budget::read(bytes.saturating_mul(u64::from(bytes.max(1).ilog2()) + 1))?,
            false => pay_for_text(name, value, others, bytes)?,
        }
    }
    let made = plain().empty_state().apply_filter(name, args)?;
    match name {
        // A view of its arguments that does not look like one.
        "chain" => budget::listed_now(&made),
        _ => budget::held(made),
    }
}

/// Charges for a text filter. `bytes` is the size of all arguments as text; some filters produce more.
fn pay_for_text(name: &str, value: &Value, others: &[Value], bytes: u64) -> Result<(), Error> {
    budget::made(bytes)?;
    let text = value.as_str();
    // Values that are not text are converted to it.
    let mut longest = 0;
    for other in others {
        longest = longest.max(budget::weigh(other)?);
    }
    match (name, text, others) {
        ("replace", Some(text), [from, to]) if from.as_str().is_some() && to.as_str().is_some() => {
            replaced_bytes(text, from.as_str().unwrap_or(""), to.as_str().unwrap_or(""))
        }
        // Text may be inserted between any two bytes.
        ("replace", ..) => budget::made((bytes + 1).saturating_mul(1 + longest)),
        ("join", ..) => budget::made((value.len().unwrap_or(0) as u64).saturating_mul(longest)),
        ("indent", ..) => {
            let lines = text.map_or(bytes, |text| text.lines().count() as u64) + 1;
            budget::made(lines.saturating_mul(largest_number(others)?.max(longest)))
        }
        ("format", ..) => formatted_bytes(text.unwrap_or(""), others),
        ("split", Some(text), []) => split_elements(text, None),
        ("split", Some(text), [at]) if at.as_str().is_some() => split_elements(text, at.as_str()),
        ("split", ..) => budget::listed(bytes),
        ("lines", ..) => budget::listed(text.map_or(bytes, |text| text.lines().count() as u64)),
        _ => Ok(()),
    }
}

/// The largest number among positional and keyword arguments.
fn largest_number(args: &[Value]) -> Result<u64, Error> {
    let number = |value: &Value| value.as_usize().unwrap_or(0) as u64;
    let mut largest = 0;
    for arg in args {
        largest = largest.max(number(arg));
        if arg.kind() == ValueKind::Map {
            for name in arg.try_iter()? {
                largest = largest.max(number(&arg.get_item(&name)?));
            }
        }
    }
    Ok(largest)
}

fn replaced_bytes(text: &str, from: &str, to: &str) -> Result<(), Error> {
    let count = if from.is_empty() { text.chars().count() + 1 } else { text.matches(from).count() };
    budget::made((text.len() as u64).saturating_add((count as u64).saturating_mul(to.len() as u64)))
}

fn split_elements(text: &str, at: Option<&str>) -> Result<(), Error> {
    let count = match at {
        Some("") => text.chars().count(),
        Some(at) => text.matches(at).count(),
        None => text.split_whitespace().count(),
    };
    budget::listed(count as u64 + 1)
}

/// Charges for `format`: each field may be as wide as it says and as long as the longest argument.
fn formatted_bytes(format: &str, args: &[Value]) -> Result<(), Error> {
    let digits = format.split(|character: char| !character.is_ascii_digit());
    let widest = digits.filter(|digits| !digits.is_empty()).map(|digits| digits.parse().unwrap_or(u64::MAX)).max();
    // Widths can be arguments, too.
    let taken = largest_number(args)?;
    let asks = format.contains('*') || format.contains(":{");
    if widest.unwrap_or(0).max(if asks { taken } else { 0 }) > WIDEST_FIELD {
        return Err(invalid(format!("a field of `format` is wider than {WIDEST_FIELD}")));
    }
    let fields = format.bytes().filter(|byte| matches!(byte, b'%' | b'{')).count() as u64;
    let mut longest = 0;
    for arg in args {
        longest = longest.max(budget::weigh(arg)?);
    }
    budget::made((format.len() as u64).saturating_add(fields.saturating_mul(longest + widest.unwrap_or(0))))
}

/// Methods of Python's strings, lists and dictionaries.
fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    match value.as_str() {
        Some(text) => budget::read(text.len() as u64)?,
        None => budget::walked(value)?,
    }
    let other = |place: usize| args.get(place).and_then(Value::as_str);
    match (name, value.as_str()) {
        ("replace", Some(text)) => replaced_bytes(text, other(0).unwrap_or(""), other(1).unwrap_or(""))?,
        ("join", Some(between)) => {
            if let Some(values) = args.first() {
                budget::made(budget::weigh(values)?)?;
                budget::made((values.len().unwrap_or(0) as u64).saturating_mul(between.len() as u64))?;
            }
        }
        ("format", Some(text)) => formatted_bytes(text, args)?,
        ("split", Some(text)) => split_elements(text, other(0))?,
        ("splitlines", Some(text)) => budget::listed(text.lines().count() as u64 + 1)?,
        ("count", None) => {
            for value in args.iter().chain([value]) {
                budget::weigh(value)?;
            }
        }
        _ => {}
    }
    budget::held(minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)?)
}

/// `value[start:stop:step]` as in Python.
fn slice(value: Value, start: Value, stop: Value, step: Value) -> Result<Value, Error> {
    let number = |value: &Value| match value.is_none() || value.is_undefined() {
        true => Ok(None),
        false => value.as_i64().map(Some).ok_or_else(|| invalid("slices need whole numbers".to_string())),
    };
    let step = number(&step)?.unwrap_or(1);
    if step == 0 {
        return Err(invalid("cannot slice by a step of 0".to_string()));
    }
    budget::walked(&value)?;
    let items: Vec<Value> = match value.kind() {
        ValueKind::Undefined | ValueKind::None => return Ok(Value::from(Vec::<Value>::new())),
        ValueKind::String | ValueKind::Seq | ValueKind::Iterable => {
            budget::listed(value.len().unwrap_or(0) as u64)?;
            value.try_iter()?.collect()
        }
        kind => return Err(invalid(format!("value of type {kind} cannot be sliced"))),
    };
    let length = items.len() as i64;
    let (lowest, highest) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let place = |given: Option<i64>, usual: i64| match given {
        None => usual,
        Some(place) if place < 0 => place.saturating_add(length).clamp(lowest, highest),
        Some(place) => place.clamp(lowest, highest),
    };
    let (first, end) = if step > 0 { (lowest, highest) } else { (highest, lowest) };
    let (mut at, end) = (place(number(&start)?, first), place(number(&stop)?, end));
    let mut taken = Vec::new();
    while (step > 0 && at < end) || (step < 0 && at > end) {
        taken.extend(items.get(at as usize).cloned());
        at = at.saturating_add(step);
    }
    match value.kind() {
        ValueKind::String => Ok(Value::from(taken.iter().filter_map(Value::as_str).collect::<String>())),
        _ => budget::held(Value::from(taken)),
    }
}
