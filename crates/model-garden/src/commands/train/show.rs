//! What is seen of a run while it goes on: a line that is drawn over on a terminal, and else a line now and then.

use std::io::IsTerminal;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use garden_guard::{Happening, Live, Message, Notice, Observer, Remark, Stop};
use garden_memory::{Bytes, elapsed, short_time};

use crate::printer::Printer;

/// The line is not drawn more often than this.
const PAUSE: Duration = Duration::from_millis(100);
/// Cells of the bar.
const CELLS: usize = 20;
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

    fn words(&self) -> String {
        let mut words = format!("step {}/{}", self.step, self.steps);
        if let Some(loss) = self.loss {
            words += &format!("  loss {loss:.4}");
        }
        if let Some(rate) = self.rate {
            words += &format!("  rate {rate:.2e}");
        }
        if let Some(pace) = self.pace() {
            words += &format!("  {}/step", short_time(pace));
        }
        match self.planned {
            Some(planned) if self.held.0 > 0 => words += &format!("  {} of {planned} planned", self.held),
            _ if self.held.0 > 0 => words += &format!("  {}", self.held),
            _ => {}
        }
        if let Some(pace) = self.pace().filter(|_| self.step < self.steps) {
            words += &format!("  {} left", elapsed(pace * (self.steps - self.step) as f64));
        }
        if self.is_evaluating {
            words += "  evaluating";
        }
        words
    }

    fn draw(&mut self) {
        if !self.is_terminal || self.drawn.is_some_and(|drawn| drawn.elapsed() < PAUSE) {
            return;
        }
        self.drawn = Some(Instant::now());
        let share = self.step as f64 / self.steps.max(1) as f64;
        let filled = ((share * CELLS as f64).round() as usize).min(CELLS);
        let bar: String = std::iter::repeat_n('█', filled).chain(std::iter::repeat_n('·', CELLS - filled)).collect();
        let text: String =
            format!("{bar} {}", self.words()).chars().take(self.printer.columns().saturating_sub(1)).collect();
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
}
