//! Pictures of made-up runs, as text.

mod made_up;

use expect_test::{Expect, expect, expect_file};
use garden_memory::{Bytes, Verdict};
use garden_report::Style as Colours;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Color;

use super::*;
use made_up::{MadeUp, empty, growing, leaking, settled};

fn drawn(view: &mut View, run: &MadeUp, columns: u16, rows: u16) -> TestBackend {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    terminal.draw(|frame| view.draw(frame, &run.picture())).unwrap();
    terminal.backend().clone()
}

/// The screen as text, without the quotes that the backend puts around each line.
fn text_of(backend: &TestBackend) -> String {
    let shown = backend.to_string();
    // Behind wide characters it also lists the cells that they cover.
    let lines = shown.lines().map(|line| line.split("\" Hidden by").next().unwrap_or_default());
    let lines = lines.map(|line| line.trim_matches('"').trim_end());
    lines.collect::<Vec<_>>().join("\n") + "\n"
}

fn text(run: &MadeUp, columns: u16, rows: u16) -> String {
    text_of(&drawn(&mut View::new(Colours::Colour), run, columns, rows))
}

fn press(view: &mut View, keys: &str) -> Option<Asked> {
    keys.chars().filter_map(|key| view.press(KeyEvent::new(KeyCode::Char(key), KeyModifiers::NONE))).last()
}

fn check(actual: &str, expected: &Expect) {
    expected.assert_eq(actual);
}

#[test]
fn a_growing_run_with_its_forecast() {
    let run = growing();
    assert_eq!(run.diagnosis.as_ref().unwrap().verdict, Verdict::Growing);
    expect_file!["growing-80x24.txt"].assert_eq(&text(&run, 80, 24));
    expect_file!["growing-120x40.txt"].assert_eq(&text(&run, 120, 40));
    expect_file!["growing-200x50.txt"].assert_eq(&text(&run, 200, 50));
}

/// Beside the chart each pane is as tall as it needs to be; a large tree takes that room, and the output goes beneath the chart.
#[test]
fn a_large_terminal_is_used() {
    let mut run = growing();
    let column = |text: &str, heading: &str| {
        let line = text.lines().find(|line| line.contains(heading)).unwrap_or_else(|| panic!("{heading}: {text}"));
        line.split(heading).next().unwrap().chars().count()
    };
    let few = text(&run, 200, 60);
    assert!(column(&few, "╭ output ") > 100 && column(&few, "╭ why, and what to do ") > 100, "{few}");
    run.processes = run.processes.iter().cycle().take(60).cloned().collect();
    let many = text(&run, 200, 60);
    assert!(column(&many, "╭ output ") < 100 && !many.contains("what to do"), "{many}");
    // Without output the reasons have the rest.
    run.processes.truncate(4);
    run.output.clear();
    let quiet = text(&run, 200, 60);
    assert!(column(&quiet, "╭ why, and what to do ") > 100 && !quiet.contains("╭ output "), "{quiet}");
}

#[test]
fn memory_that_is_known_by_bounds_is_marked() {
    let mut run = settled();
    assert!(!text(&run, 120, 40).contains("at most "));
    if let Some(last) = run.history.last_mut() {
        last.anon_least = Some(last.anon / 2);
    }
    let resident = Bytes(run.history.last().unwrap().resident());
    assert!(text(&run, 120, 40).contains(&format!("at most {resident}")), "{}", text(&run, 120, 40));
}

#[test]
fn a_settled_run_without_a_limit() {
    let run = settled();
    assert_eq!(run.diagnosis.as_ref().unwrap().verdict, Verdict::Settled);
    expect_file!["settled-80x24.txt"].assert_eq(&text(&run, 80, 24));
    expect_file!["settled-120x40.txt"].assert_eq(&text(&run, 120, 40));
}

#[test]
fn a_leak_close_to_the_limit() {
    let run = leaking();
    assert_eq!(run.diagnosis.as_ref().unwrap().verdict, Verdict::Leak);
    expect_file!["leaking-80x24.txt"].assert_eq(&text(&run, 80, 24));
}

#[test]
fn nothing_sampled_yet() {
    let expected = expect![[r#"
        sleep 1000                                                               0:00:00
        watching; a verdict needs a few more samples
        ─ memory ───────────────────────────────────────────────────────────────────────




                                         no samples yet



        q stop watching · o output · p processes · c total · +/- window · ? help
    "#]];
    check(&text(&empty(), 80, 12), &expected);
}

#[test]
fn names_from_outside_are_harmless() {
    let mut run = settled();
    run.title = "\u{1b}]0;owned\u{7}\u{1b}[31m模型花园\u{1b}[0m\ttrain\r\n --lr 1e-4 \u{202e}evil".into();
    run.guard = Some("stops\u{1b}[2J the run".into());
    run.processes[0].command = "\u{9b}31m训练 🌱\u{7} ".repeat(9);
    run.output = vec!["\u{1b}[32m损失\u{1b}[0m 0.5\u{8}\u{8}".into(), "é e\u{301} 漢".repeat(30)];
    let shown = text(&run, 60, 20);
    assert!(!shown.chars().any(|c| c.is_control() && c != '\n'), "{shown:?}");
    let expected = expect![[r#"
        模型花园        train --lr 1e-4 evil                 0:13:18
         SETTLED  Memory grew 362 MiB per minute until 4 min 1 s,
        and not since: bounded, not a leak; the level since then is…
        guard stops the run
        ─ memory  ⣿⣿ anon 2.27 GiB  ⡪⡪ shared 181 MiB  ⠌⠌ file 321 M
          3 GiB ┤               ┊ grew until 4:01
                │            ⢀⡠⠖⠍⠖⠖⠖⠖⠖⠖⠖⠖⠖⠖⠖⠖⠖⠖⠖⠖⠖⠖⠖⠖⠖⠎⠍⠍⠍⠍⠍⠍⠍⠍⠍⠍⠍⠍⠕
                │         ⡠⠔⠎⢍⡬⣺⣫⣯⣫⣯⣫⣯⣯⣫⣫⣫⣫⣫⣫⣫⣫⣫⣯⣯⣯⣫⣫⣫⣫⣫⣯⣫⣫⣫⣫⣫⣯⣫⣫⣫⣫⣯
          2 GiB ┤     ⣀⠤⠖⠍⡬⡼⣪⣿⣾⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿
                │ ⢀⡠⠔⠎⣌⡬⣪⣯⣾⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿
                │⠔⢍⡬⣼⣫⣾⣾⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿
          1 GiB ┤⣺⣯⣾⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿
                │⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿
                │⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿
              0 └ 0:00 ─────────── 5:00 ──────────── 10:00 ──── min
        now 2.76 GiB   peak 2.83 GiB   growth none   avail 54.0 GiB
        GPU 14.2 GiB
        ─ 1 process ────────────────────── own ──── growth ───── GPU
        ▲     912 training  训练 🌱…  2.29 GiB   +1.41 GiB  14.2 GiB
        q stop · o output · c total · ? help                3 failed
    "#]];
    check(&shown, &expected);
}

#[test]
fn a_limit_out_of_sight_is_pointed_at() {
    let mut run = settled();
    run.facts.memory_limit = Some(Bytes(64 << 30));
    let shown = text(&run.judged(), 80, 24);
    assert!(shown.contains("↑ limit 64.0 GiB above"), "{shown}");
}

#[test]
fn no_size_is_too_small() {
    let mut odd = growing();
    odd.history.truncate(1);
    for run in [growing(), settled(), leaking(), empty(), odd] {
        for keys in ["", "?", "oc", "p"] {
            let mut view = View::new(Colours::Plain);
            press(&mut view, keys);
            for (columns, rows) in (1..=60).flat_map(|columns| (1..=20).map(move |rows| (columns, rows))) {
                drawn(&mut view, &run, columns, rows);
            }
            for (columns, rows) in [(1, 60), (300, 3), (100, 34), (150, 34), (151, 35), (400, 120)] {
                drawn(&mut view, &run, columns, rows);
            }
        }
    }
}

#[test]
fn numbers_beyond_reason_are_drawn_without_harm() {
    let mut run = leaking();
    for (n, point) in run.history.iter_mut().enumerate() {
        match n % 5 {
            0 => (point.anon, point.swap) = (u64::MAX, u64::MAX),
            1 => point.time_s = f64::NAN,
            2 => point.step = Some(f64::INFINITY),
            3 => point.time_s = -1e300,
            _ => {}
        }
    }
    run.processes[1].growth = i64::MIN;
    run.processes[0].depth = usize::MAX;
    text(&run, 80, 24);
    run.diagnosis = None;
    text(&run, 200, 50);
}

#[test]
fn keys_change_the_view_or_ask_for_something() {
    let run = growing();
    let mut view = View::new(Colours::Colour);
    let shows = |view: &mut View, what: &str| text_of(&drawn(view, &run, 80, 24)).contains(what);
    assert!(shows(&mut view, "─ output") && shows(&mut view, "7 processes") && shows(&mut view, "anon 11.8 GiB"));
    assert_eq!(press(&mut view, "opc"), None);
    assert!(!shows(&mut view, "─ output") && !shows(&mut view, "7 processes") && shows(&mut view, "resident 13.1 GiB"));
    assert_eq!(press(&mut view, "+"), None);
    assert!(shows(&mut view, "last 5 min"));
    assert_eq!(press(&mut view, "-?"), None);
    assert!(!shows(&mut view, "last 5 min") && shows(&mut view, "╭ help"));
    assert_eq!(view.press(KeyEvent::from(KeyCode::Esc)), None);
    assert!(!shows(&mut view, "╭ help"));
    assert_eq!(press(&mut view, "q"), Some(Asked::Quit));
    let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(view.press(interrupt), Some(Asked::Interrupt));
}

#[test]
fn without_colours_there_are_none() {
    let run = leaking();
    let plain = drawn(&mut View::new(Colours::Plain), &run, 120, 40);
    let is_bare = |cell: &ratatui::buffer::Cell| cell.fg == Color::Reset && cell.bg == Color::Reset;
    assert!(plain.buffer().content().iter().all(is_bare));
    let coloured = drawn(&mut View::new(Colours::Colour), &run, 120, 40);
    assert_eq!(text_of(&plain), text_of(&coloured));
}
