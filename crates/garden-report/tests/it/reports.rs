//! Whole reports of diagnoses made by hand.

use crate::common::{Case, empty, leak, run1, run2, series};
use expect_test::{ExpectFile, expect_file};
use garden_memory::{Knee, Verdict};
use garden_report::{Block, News, Page, Section, Style, json, markdown, text};

fn check(actual: String, expected: ExpectFile) {
    expected.assert_eq(&actual);
}

#[test]
fn a_settled_run_as_text() {
    check(text(&run2().report(), Style::Plain, 100), expect_file!["expected/run2.txt"]);
}

#[test]
fn a_settled_run_as_markdown() {
    check(markdown(&run2().report()), expect_file!["expected/run2.md"]);
}

#[test]
fn a_growing_run_as_text() {
    check(text(&run1().report(), Style::Plain, 100), expect_file!["expected/run1.txt"]);
}

#[test]
fn a_leak_over_time_with_a_restart_as_text() {
    check(text(&leak().report(), Style::Plain, 100), expect_file!["expected/leak.txt"]);
}

#[test]
fn a_leak_over_time_with_a_restart_as_markdown() {
    check(markdown(&leak().report()), expect_file!["expected/leak.md"]);
}

/// After a last start of a few samples an earlier one decides: times count from its beginning, and the heading says so.
#[test]
fn an_earlier_start_may_decide() {
    let told = |first: bool| {
        let mut case = leak();
        let start = case.diagnosis.parts[0].from;
        case.diagnosis.knee = Some(Knee { step: None, low: start + 500.0, high: start + 700.0, time_s: Some(600.0) });
        case.diagnosis.parts[0].decides = first;
        case.diagnosis.parts[1].decides = !first;
        text(&case.report(), Style::Plain, 100)
    };
    let line = |text: &str| text.lines().find(|line| line.contains("knee  ")).map(ToString::to_string);
    assert!(told(true).contains("Attempts (the last one is too short to decide)"));
    assert!(line(&told(true)).unwrap().contains(" 0:10 "), "{:?}", line(&told(true)));
    assert!(told(false).contains("Attempts (the last one decides)"));
    assert!(line(&told(false)).unwrap().contains(" 1:17 "), "{:?}", line(&told(false)));
}

/// A floor that rose while the program started, under a verdict that says flat.
#[test]
fn a_run_that_is_flat_has_no_phase_of_growth() {
    let phase = |case: &Case, name: &str| {
        let row = format!("  {name} ");
        text(&case.report(), Style::Plain, 100).lines().any(|line| line.starts_with(&row) && line.contains('→'))
    };
    let mut case = run2();
    assert!(phase(&case, "growth") && !phase(&case, "rise"));
    case.diagnosis.verdict = Verdict::Flat;
    assert!(phase(&case, "rise") && !phase(&case, "growth"));
}

#[test]
fn an_empty_trace_as_text_and_markdown() {
    let case = empty();
    let both = format!("{}\n{}", text(&case.report(), Style::Plain, 100), markdown(&case.report()));
    check(both, expect_file!["expected/empty.txt"]);
}

#[test]
fn json_is_the_diagnosis_with_the_memory_at_both_ends() {
    let case = run2();
    let mut told: serde_json::Value = serde_json::from_str(&json(&case.report())).unwrap();
    let memory = told.as_object_mut().unwrap().remove("memory").unwrap();
    assert_eq!(told, serde_json::to_value(&case.diagnosis).unwrap());
    let [first, last] = [case.memory.points.first(), case.memory.points.last()].map(|point| point.unwrap().1 as u64);
    assert_eq!((memory["first_bytes"].as_u64(), memory["last_bytes"].as_u64()), (Some(first), Some(last)));
}

#[test]
fn colour_adds_escape_sequences_and_nothing_else() {
    let case = run2();
    let coloured = text(&case.report(), Style::Colour, 100);
    assert!(coloured.starts_with("\u{1b}[1;32mSETTLED\u{1b}[0m  Memory grew"), "{coloured}");
    let stripped = ["1;32", "1", "0"].iter().fold(coloured, |text, code| text.replace(&format!("\u{1b}[{code}m"), ""));
    assert_eq!(stripped, text(&case.report(), Style::Plain, 100));
}

#[test]
fn a_narrow_terminal_gets_narrow_lines() {
    for columns in [0, 60, 72, 80, 100, 300] {
        for case in [run1(), run2(), leak()] {
            let shown = text(&case.report(), Style::Plain, columns);
            let widest = shown.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(widest <= columns.clamp(60, 100), "{widest} columns of {columns}:\n{shown}");
        }
    }
}

/// What other commands report: an answer with numbers, sections and notes of their own.
#[test]
fn a_page_as_text_and_markdown() {
    let table = Block::Table(
        ["", "before", "after"].map(Into::into).to_vec(),
        vec![["growth", "+2.00 MiB per step", "+2.01 MiB per step"].map(String::from).to_vec()],
    );
    let page = Page {
        subject: "Comparison".into(),
        title: "before.jsonl and after.jsonl".into(),
        word: "same".into(),
        news: News::Open,
        summary: "No effect on growth, and 3.1 % of the step time.".into(),
        numbers: vec![("step time".into(), "+3.1 % (95 %: 2.5 to 3.7)".into())],
        sections: vec![
            Section { title: "Both".into(), body: vec![table] },
            Section { title: "Nothing".into(), body: Vec::new() },
        ],
        environment: vec![("host".into(), "desk".into()), ("unknown".into(), String::new())],
        notes: vec!["one line of `after.jsonl` was skipped".into()],
        command: Some("model-garden compare before.jsonl after.jsonl".into()),
        version: "0.1.0".into(),
        ..Page::default()
    };
    check(format!("{}\n{}", page.text(Style::Plain, 100), page.markdown()), expect_file!["expected/page.txt"]);
}

/// Two counts are told in a sentence: a line between them would claim a course that nobody saw.
#[test]
fn no_line_is_drawn_through_two_counts() {
    let told = |counts: &[(f64, f64)]| {
        let mut case = run1();
        case.counts = vec![series("tensors", counts.iter().copied())];
        text(&case.report(), Style::Plain, 100)
    };
    let two = told(&[(10.0, 500.0), (60.0, 900.0)]);
    assert!(!two.contains("tensors by step") && two.contains("tensors: 500 at first, 900 at the end"), "{two}");
    let three = told(&[(10.0, 500.0), (30.0, 700.0), (60.0, 900.0)]);
    assert!(three.contains("tensors by step"), "{three}");
}
