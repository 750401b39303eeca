//! What is seen of a run while it goes on: a line that is drawn over on a terminal, and else a line now and then.

use std::io::IsTerminal;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use garden_guard::{Happening, Live, Message, Notice, Observer, Remark, Stop};
use garden_memory::{Bytes, elapsed, short_time};

use crate::printer::Printer;

/// The line is not drawn more often than this.
const PAUSE: Duration = Duration::from_millis(100);
/// Cells of the bar, where there is room.
const CELLS: usize = 20;
/// A shorter bar says nothing.
const LEAST_CELLS: usize = 5;
/// Told steps that the time of a step is taken from.
const RECENT: usize = 50;

/// Shows a run.
pub struct Progress<'a> {
    printer: &'a Printer,
    is_terminal: bool,
    /// Steps of the run, and between two lines where nothing can be drawn over.
    steps: usize,
    logging_steps: usize,
    planned: Option<Bytes>,
    held: Bytes,
    step: usize,
    loss: Option<f64>,
    rate: Option<f64>,
    /// The last steps that were told, and when; not every step is.
    times: Vec<(usize, Instant)>,
    drawn: Option<Instant>,
    /// Whether there is a line that has to be drawn over.
    is_drawn: bool,
    is_evaluating: bool,
    /// What the guard says is only told where it is about this run's life.
    told: Vec<String>,
}

impl<'a> Progress<'a> {
    pub fn new(printer: &'a Printer, steps: usize, logging_steps: usize, planned: Option<Bytes>) -> Progress<'a> {
        Progress {
            printer,
            is_terminal: std::io::stderr().is_terminal(),
            steps,
            logging_steps,
            planned,
            held: Bytes(0),
            step: 0,
            loss: None,
            rate: None,
            times: Vec::new(),
            drawn: None,
            is_drawn: false,
            is_evaluating: false,
            told: Vec::new(),
        }
    }

    /// Removes the line.
    pub fn close(&mut self) {
        if self.is_drawn {
            self.printer.show("");
            self.is_drawn = false;
        }
        self.printer.settle();
    }

    fn hear(&mut self, message: &Message) {
        if let Some(line) = &message.say {
            self.line(line);
        }
        match message.event {
            Some(garden_memory::EventKind::EvalStart) => self.is_evaluating = true,
            Some(garden_memory::EventKind::EvalEnd) => {
                self.is_evaluating = false;
                self.times.clear();
            }
            _ => {}
        }
        let Some(step) = message.step.map(|step| step as usize) else { return };
        (self.loss, self.rate) = (message.loss.or(self.loss), message.learning_rate.or(self.rate));
        if step < self.step {
            self.times.clear();
        }
        let is_new = step != self.step;
        self.step = step;
        if !is_new || message.loss.is_none() {
            return;
        }
        self.times.push((step, Instant::now()));
        if self.times.len() > RECENT {
            self.times.remove(0);
        }
        if !self.is_terminal && (step.is_multiple_of(self.logging_steps) || step == self.steps) {
            let words = self.words();
            self.printer.say_soon(words);
        }
    }

    /// Seconds of a step, from the last ones.
    fn pace(&self) -> Option<f64> {
        let (first, last) = (self.times.first()?, self.times.last()?);
        let steps = last.0.checked_sub(first.0).filter(|steps| *steps > 0)?;
        Some((last.1 - first.1).as_secs_f64() / steps as f64)
    }

    /// The parts of the line, in the order in which they are read, each with its rank: those of the highest go first where room is short.
    fn parts(&self) -> Vec<(u8, String)> {
        let mut parts = vec![(0, format!("step {}/{}", self.step, self.steps))];
        parts.extend(self.loss.map(|loss| (2, format!("mean loss {loss:.4}"))));
        parts.extend(self.rate.map(|rate| (5, format!("rate {rate:.2e}"))));
        parts.extend(self.pace().map(|pace| (4, format!("{}/step", short_time(pace)))));
        match self.planned {
            Some(planned) if self.held.0 > 0 => {
                parts.push((0, format!("{}", self.held)));
                parts.push((3, format!("of {planned} planned")));
            }
            _ if self.held.0 > 0 => parts.push((0, format!("{}", self.held))),
            _ => {}
        }
        if let Some(pace) = self.pace().filter(|_| self.step < self.steps) {
            parts.push((0, format!("{} left", elapsed(pace * (self.steps - self.step) as f64))));
        }
        if self.is_evaluating {
            parts.push((1, "evaluating".to_string()));
        }
        parts
    }

    fn words(&self) -> String {
        joined(&self.parts())
    }

    /// The line for a terminal of so many columns: with a bar as long as there is room for, then without one, then without what matters least.
    fn fitted(&self, columns: usize) -> String {
        let mut parts = self.parts();
        let width = |parts: &[(u8, String)]| joined(parts).chars().count();
        while width(&parts) > columns {
            match parts.iter().map(|(rank, _)| *rank).max().filter(|rank| *rank > 0) {
                Some(last) => parts.retain(|(rank, _)| *rank != last),
                None => break,
            }
        }
        let cells = columns.saturating_sub(width(&parts) + 1).min(CELLS);
        if cells < LEAST_CELLS {
            return joined(&parts).chars().take(columns).collect();
        }
        let share = self.step as f64 / self.steps.max(1) as f64;
        let filled = ((share * cells as f64).round() as usize).min(cells);
        let bar: String = std::iter::repeat_n('█', filled).chain(std::iter::repeat_n('·', cells - filled)).collect();
        format!("{bar} {}", joined(&parts))
    }

    fn draw(&mut self) {
        if !self.is_terminal || self.drawn.is_some_and(|drawn| drawn.elapsed() < PAUSE) {
            return;
        }
        self.drawn = Some(Instant::now());
        // The last column stays empty: some terminals wrap when it is written to.
        let text = self.fitted(self.printer.talk_columns().saturating_sub(1));
        self.printer.show(&text);
        self.is_drawn = true;
    }

    fn line(&mut self, text: &str) {
        if self.is_drawn {
            self.printer.show("");
            self.is_drawn = false;
        }
        self.printer.say_soon(text.to_string());
        if self.is_terminal {
            // What is drawn next must not come before it.
            self.printer.settle();
        }
    }
}

/// The parts of a line as one text; memory and its plan are one.
fn joined(parts: &[(u8, String)]) -> String {
    let mut text = String::new();
    for (_, part) in parts {
        let gap = if text.is_empty() {
            ""
        } else if part.starts_with("of ") {
            " "
        } else {
            "  "
        };
        text += gap;
        text += part;
    }
    text
}

impl Observer for Progress<'_> {
    fn begin(&mut self, _: &SyncSender<Notice>) {}

    fn say(&mut self, remark: &Remark) {
        // How it will be stopped, and that earlier checkpoints do not count, is no news to somebody who trains with us.
        let Remark::News(line) = remark else { return };
        if !self.told.contains(line) {
            self.told.push(line.clone());
            self.line(line);
        }
    }

    fn happened(&mut self, happening: &Happening, live: &mut Live, _: &str) -> Option<Stop> {
        live.watch.take_news();
        match happening {
            Happening::Told(message) => self.hear(message),
            Happening::Sampled => self.held = Bytes(live.watch.last().get(garden_memory::Quantity::Rss).unwrap_or(0)),
            _ => {}
        }
        self.draw();
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_step_does_not_depend_on_how_many_are_told() {
        let printer = Printer::new();
        let mut progress = Progress::new(&printer, 200, 1000, None);
        let begin = Instant::now();
        // Only every eighth step has a loss to tell.
        for step in [8.0, 16.0, 24.0] {
            progress.hear(&Message { step: Some(step), loss: Some(0.5), ..Message::default() });
            std::thread::sleep(Duration::from_millis(40));
        }
        let most = begin.elapsed().as_secs_f64() / 16.0;
        let pace = progress.pace().unwrap_or_default();
        assert!((0.08 / 16.0..=most).contains(&pace), "{pace} of at most {most} seconds");
    }

    /// In the middle of a long run with large numbers, memory and the time left are there at any width.
    #[test]
    fn the_line_keeps_memory_and_the_time_left() {
        let printer = Printer::new();
        let mut progress = Progress::new(&printer, 12_000, 10, Some(Bytes(11 << 30)));
        (progress.step, progress.loss, progress.rate) = (7_345, Some(0.123_45), Some(1.234_5e-5));
        progress.held = Bytes((10 << 30) + (512 << 20));
        let now = Instant::now();
        progress.times = vec![(7_295, now - Duration::from_secs(70)), (7_345, now)];
        let check = |progress: &Progress, columns: usize, expected: expect_test::Expect| {
            let line = progress.fitted(columns - 1);
            assert!(line.chars().count() < columns, "{columns}: {line}");
            expected.assert_eq(&line);
        };
        check(&progress, 60, expect_test::expect!["██████████······ step 7345/12000  10.5 GiB  1 h 49 min left"]);
        check(
            &progress,
            80,
            expect_test::expect!["███████████······· step 7345/12000  mean loss 0.1235  10.5 GiB  1 h 49 min left"],
        );
        check(
            &progress,
            100,
            expect_test::expect![
                "███·· step 7345/12000  mean loss 0.1235  1.40 s/step  10.5 GiB of 11.0 GiB planned  1 h 49 min left"
            ],
        );
        check(
            &progress,
            120,
            expect_test::expect![
                "███████···· step 7345/12000  mean loss 0.1235  rate 1.23e-5  1.40 s/step  10.5 GiB of 11.0 GiB planned  1 h 49 min left"
            ],
        );
        progress.is_evaluating = true;
        check(
            &progress,
            80,
            expect_test::expect!["████·· step 7345/12000  mean loss 0.1235  10.5 GiB  1 h 49 min left  evaluating"],
        );
    }
}
