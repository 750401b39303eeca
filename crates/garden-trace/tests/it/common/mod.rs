//! What was read, as compact text.

use std::fmt::Write;

use expect_test::Expect;
use garden_memory::{Activity, Bytes, MIB, Quantity, RunFacts, Subject};
use garden_trace::{ReadOptions, ReadTrace, read, read_all};

/// Reads a text without options and renders the outcome.
pub fn shown(text: &str) -> String {
    shown_with(text.as_bytes(), &ReadOptions::default())
}

/// Reads bytes and renders the outcome, errors included.
pub fn shown_with(bytes: &[u8], options: &ReadOptions) -> String {
    match read(bytes, options) {
        Ok(read) => render(&read),
        Err(error) => format!("error: {error}\nhint: {}\n", error.hint().unwrap_or_default()),
    }
}

/// Reads all series of a text without options and renders the outcome.
pub fn all_shown(text: &str) -> String {
    all_shown_with(text.as_bytes(), &ReadOptions::default())
}

/// Reads all series and renders the outcome, errors included.
pub fn all_shown_with(bytes: &[u8], options: &ReadOptions) -> String {
    match read_all(bytes, options) {
        Ok(all) => all.iter().map(render_named).collect(),
        Err(error) => format!("error: {error}\nhint: {}\n", error.hint().unwrap_or_default()),
    }
}

fn render_named(read: &ReadTrace) -> String {
    let name = read.name.as_ref().map_or(String::new(), |name| format!("== {name}\n"));
    let subject = match read.trace.subject {
        Subject::Process => String::new(),
        other => format!("subject {other:?}\n"),
    };
    name + &subject + &render(read)
}

fn render(read: &ReadTrace) -> String {
    let ReadTrace { trace, input, .. } = read;
    let mut out = String::new();
    let known = |text: &Option<String>| text.clone().unwrap_or("-".to_string());
    let (column, unit) = (known(&input.column), known(&input.unit));
    let _ =
        writeln!(out, "{} | {} samples | {column} | {unit} | {} skipped", input.format, input.samples, input.skipped);
    for index in 0..=trace.len() {
        for event in trace.events.iter().filter(|event| event.before_sample == index) {
            let _ = writeln!(out, "  * {:?}{}", event.kind, place(event.step, event.time_s));
        }
        if index < trace.len() {
            let _ = writeln!(out, " {}{}", place(trace.step(index), trace.time_s(index)), values(read, index));
        }
    }
    if trace.facts != RunFacts::default() {
        let _ = writeln!(out, "facts {}", facts(&trace.facts));
    }
    for (name, value) in &trace.origin {
        let _ = writeln!(out, "origin {name}: {value}");
    }
    for note in &input.notes {
        let _ = writeln!(out, "note {note}");
    }
    out
}

fn place(step: Option<f64>, time: Option<f64>) -> String {
    let step = step.map_or(String::new(), |step| format!(" step {step}"));
    step + &time.map_or(String::new(), |time| format!(" t {time}"))
}

fn values(read: &ReadTrace, index: usize) -> String {
    let mut out = String::new();
    for quantity in Quantity::ALL {
        if let Some(value) = read.trace.value(index, quantity) {
            let value = if quantity.is_count() { value.to_string() } else { Bytes(value).to_string() };
            let _ = write!(out, " {}={value}", quantity.name());
        }
    }
    match read.trace.activity(index) {
        Activity::Train => out,
        other => out + &format!(" {other:?}"),
    }
}

fn facts(facts: &RunFacts) -> String {
    let known = [
        ("examples", facts.examples),
        ("batch", facts.batch_size),
        ("accumulation", facts.gradient_accumulation),
        ("steps_per_epoch", facts.steps_per_epoch),
        ("total_steps", facts.total_steps),
        ("memory_limit", facts.memory_limit.map(|limit| limit.0)),
    ];
    known.iter().filter_map(|(name, value)| value.map(|value| format!("{name}={value}"))).collect::<Vec<_>>().join(" ")
}

/// Compares what is read of a text with what is expected.
pub fn check(text: &str, expected: Expect) {
    expected.assert_eq(&all_shown(text));
}

/// All series of a text that is readable.
pub fn all(text: &str) -> Vec<ReadTrace> {
    read_all(text.as_bytes(), &ReadOptions::default()).expect("the text is readable")
}

/// The judged values in MiB.
pub fn mebibytes(read: &ReadTrace) -> Vec<u64> {
    let value = |index| read.trace.value(index, Quantity::Rss).expect("every sample has it") / MIB;
    (0..read.trace.len()).map(value).collect()
}

/// The names of the series of a text, each with its judged values in MiB.
pub fn series(text: &str) -> Vec<(String, Vec<u64>)> {
    all(text).iter().map(|read| (read.name.clone().unwrap_or_default(), mebibytes(read))).collect()
}

/// The error and the hint of a text that is refused.
pub fn refusal(text: &str) -> String {
    let shown = all_shown(text);
    assert!(shown.starts_with("error:"), "{shown}");
    shown
}
