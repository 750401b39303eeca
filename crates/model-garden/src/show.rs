//! Shows a watch while it goes on: a picture on a terminal, or a line at each sample and event.

use std::collections::{BTreeMap, VecDeque};
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::time::{Duration, Instant};

use garden_guard::{Happening, Live, Notice, Observer, OutputMode, Remark, Stop};
use garden_memory::{Bytes, EventKind, Quantity, RunFacts, Sample, Verdict, format_change};
use garden_probe::{ProcessSample, TreeSample};
use garden_report::Style;
use ratatui::crossterm::event::{self, Event};
use ratatui::crossterm::terminal;

use crate::printer::Printer;
use crate::view::{Asked, Machine, Picture, Point, ProcessRow, Screen, View};

/// The picture is not drawn more often than this, except for a key.
const DRAWING_PAUSE: Duration = Duration::from_millis(400);
/// How often the keyboard's thread looks whether it is still needed.
const KEY_PAUSE: Duration = Duration::from_millis(200);
/// Lines of the program's output that are kept for the picture.
const OUTPUT_LINES: usize = 200;
/// Lines of the program's output that are printed again once the picture has gone.
const LAST_LINES: usize = 20;

/// What a person at the keyboard wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Stop watching.
    Leave,
    /// Ctrl-C.
    Interrupt,
}

/// Shows a watch.
pub struct Show<'a> {
    printer: &'a Printer,
    facts: RunFacts,
    interval: Duration,
    title: String,
    picture: Option<Drawing>,
    /// Whether what is shown is guarded, and not only watched.
    is_guard: bool,
    output: Output,
    last: Option<Sample>,
    verdict: Option<Verdict>,
    /// Lines that nobody read in time.
    dropped: u64,
}

/// The picture, the keyboard, and when it was last drawn.
struct Drawing {
    screen: Screen,
    view: View,
    /// Columns and rows at the beginning.
    size: (u16, u16),
    keys: Receiver<Event>,
    is_over: Arc<AtomicBool>,
    drawn: Option<Instant>,
}

impl<'a> Show<'a> {
    /// Shows a picture if both ends are a terminal and it is not refused, else lines.
    pub fn new(printer: &'a Printer, facts: RunFacts, interval: Duration, plain: bool) -> Show<'a> {
        let has_terminal = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
        let picture = (has_terminal && !plain).then(|| Drawing::open(printer)).flatten();
        let (title, output) = (String::new(), Output::default());
        Show {
            printer,
            facts,
            interval,
            title,
            picture,
            is_guard: false,
            output,
            last: None,
            verdict: None,
            dropped: 0,
        }
    }

    /// Where a command's output is to go.
    pub fn output_mode(&self) -> OutputMode {
        let has_terminal = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
        match (&self.picture, has_terminal) {
            (Some(drawing), _) => {
                let (columns, rows) = drawing.size;
                OutputMode::View { columns, rows }
            }
            (None, true) => OutputMode::Terminal,
            (None, false) => OutputMode::Pipes,
        }
    }

    /// Names what is shown.
    pub fn name(&mut self, title: String) {
        self.title = title;
    }

    /// Connects the keyboard; keys wake whoever waits for notices.
    pub fn listen(&mut self, notices: &SyncSender<Notice>) {
        if let Some(drawing) = &mut self.picture {
            drawing.listen(notices.clone());
        }
    }

    /// Shows what happened; says what the person at the keyboard wants.
    pub fn happened(&mut self, happening: &Happening, live: &mut Live, guard: Option<&str>) -> Option<Wish> {
        if let Happening::Printed(output) = happening {
            self.output.take(output);
        }
        if self.picture.is_none() {
            self.lines(happening, live);
            return None;
        }
        live.watch.take_news();
        let mut wish = None;
        let mut is_due = false;
        if let Some(drawing) = &mut self.picture {
            while let Ok(event) = drawing.keys.try_recv() {
                is_due = true;
                wish = drawing.press(&event).or(wish);
            }
            let has_news = matches!(happening, Happening::Sampled | Happening::Printed(_));
            is_due |= has_news && drawing.drawn.is_none_or(|drawn| drawn.elapsed() >= DRAWING_PAUSE);
        }
        if is_due {
            self.draw(live, guard);
        }
        wish
    }

    /// Tells the person something: in the picture if there is one, since anything else would be drawn over it.
    pub fn tell(&mut self, line: &str) {
        match &self.picture {
            Some(_) => self.output.take(format!("\n{line}\n").as_bytes()),
            None => self.say(line.to_string()),
        }
    }

    /// Says a line in plain form. Whoever reads it may have stopped reading, and nobody may wait for that here.
    fn say(&mut self, line: String) {
        if self.dropped > 0 && self.printer.say_soon(format!("({} lines dropped: not read in time)", self.dropped)) {
            self.dropped = 0;
        }
        self.dropped += u64::from(!self.printer.say_soon(line));
    }

    /// Leaves the picture; what the program printed last is printed again, since the picture takes it along.
    pub fn close(&mut self) {
        self.printer.settle();
        let Some(drawing) = self.picture.take() else { return };
        drop(drawing);
        for line in self.output.last(LAST_LINES) {
            self.printer.say(&line);
        }
    }

    fn lines(&mut self, happening: &Happening, live: &mut Live) {
        for kind in live.watch.take_news() {
            let step = live.watch.recorder().step().map_or(String::new(), |step| format!("step {step:.0}  "));
            let time = live.watch.elapsed().as_secs_f64();
            self.say(format!("[{time:>7.1} s]  {step}{}", event_words(kind)));
        }
        let sample = live.watch.last().clone();
        let time = |sample: &Sample| sample.time_s.unwrap_or(0.0);
        // The guard may sample more often than anybody wants to read.
        let is_soon =
            self.last.as_ref().is_some_and(|last| time(&sample) - time(last) < 0.9 * self.interval.as_secs_f64());
        if !matches!(happening, Happening::Sampled) || is_soon {
            return;
        }
        self.say(line(&sample, self.last.as_ref(), live.watch.tree()));
        self.last = Some(sample);
        let diagnosis = live.watch.verdict(&self.facts);
        let news =
            diagnosis.filter(|found| found.verdict != Verdict::Insufficient && Some(found.verdict) != self.verdict);
        if let Some(found) = news {
            self.verdict = Some(found.verdict);
            let line = format!("so far {}: {}", found.verdict.name(), found.summary);
            self.say(line);
        }
    }

    fn draw(&mut self, live: &mut Live, guard: Option<&str>) {
        let Some(drawing) = &mut self.picture else { return };
        drawing.drawn = Some(Instant::now());
        live.watch.verdict(&self.facts);
        let (late, watch) = (live.late(), &live.watch);
        let trace = watch.history().trace();
        let value = |index: usize, quantity| trace.value(index, quantity).unwrap_or(0);
        let history: Vec<Point> = (0..trace.len())
            .map(|index| Point {
                time_s: trace.time_s(index).unwrap_or(0.0),
                anon: value(index, Quantity::Anon),
                file: value(index, Quantity::File),
                shmem: value(index, Quantity::Shmem),
                swap: value(index, Quantity::Swap),
                step: trace.step(index),
                anon_least: trace.value(index, Quantity::AnonLeast),
            })
            .collect();
        let (tree, last) = (watch.tree(), watch.last());
        let growth = |process: &ProcessSample| {
            let first = watch.first_seen(process.identity.pid, process.identity.started).unwrap_or(process.own);
            process.own as i64 - first as i64
        };
        let processes = rows(&tree.processes, growth);
        let output: Vec<String> = self.output.last(OUTPUT_LINES);
        let picture = Picture {
            title: &self.title,
            elapsed: watch.elapsed(),
            step: watch.recorder().step(),
            total_steps: watch.recorder().facts().total_steps,
            history: &history,
            peak: last.get(Quantity::Peak).unwrap_or(0),
            limit: self.facts.memory_limit.map(|limit| limit.0),
            diagnosis: watch.latest_verdict().filter(|found| found.verdict != Verdict::Insufficient),
            processes: &processes,
            machine: Machine {
                available: tree.around.available,
                group_used: tree.around.group_used,
                group_limit: tree.around.group_limit,
                pressure: tree.around.pressure,
                dev_shm: tree.around.dev_shm,
                gpu_used: last.get(Quantity::GpuUsed),
            },
            guard,
            output: &output,
            quit: if self.is_guard { "save and stop" } else { "stop watching" },
            failed: watch.sampler().failed(),
            late,
            trace: watch.path(),
            interval: self.interval,
        };
        // A terminal that cannot be written to is no reason to stop watching.
        drop(drawing.screen.draw(|frame| drawing.view.draw(frame, &picture)));
    }
}

impl Observer for Show<'_> {
    fn begin(&mut self, notices: &SyncSender<Notice>) {
        self.is_guard = true;
        self.listen(notices);
    }

    fn say(&mut self, remark: &Remark) {
        self.tell(&format!("model-garden: {remark}"));
    }

    fn happened(&mut self, happening: &Happening, live: &mut Live, guard: &str) -> Option<Stop> {
        let guard = Some(guard).filter(|guard| !guard.is_empty());
        // A guarded program is not left alone: both keys ask for its end.
        Show::happened(self, happening, live, guard).map(|_| Stop::Interrupt)
    }
}

impl Drawing {
    fn open(printer: &Printer) -> Option<Drawing> {
        let view = View::new(if printer.has_colour() { Style::Colour } else { Style::Plain });
        let size = terminal::size().ok()?;
        let screen = Screen::take().ok()?;
        let (_, keys) = mpsc::channel();
        Some(Drawing { screen, view, size, keys, is_over: Arc::default(), drawn: None })
    }

    fn listen(&mut self, notices: SyncSender<Notice>) {
        let (sender, keys) = mpsc::channel();
        self.keys = keys;
        let is_over = Arc::clone(&self.is_over);
        std::thread::spawn(move || {
            while !is_over.load(Ordering::Acquire) {
                match event::poll(KEY_PAUSE).and_then(|ready| if ready { event::read().map(Some) } else { Ok(None) }) {
                    Ok(None) => {}
                    Ok(Some(event)) => {
                        if sender.send(event).is_err() || notices.send(Notice::Woken).is_err() {
                            return;
                        }
                    }
                    Err(_) => return,
                }
            }
        });
    }

    fn press(&mut self, event: &Event) -> Option<Wish> {
        let Event::Key(key) = event else { return None };
        match self.view.press(*key)? {
            Asked::Quit => Some(Wish::Leave),
            Asked::Interrupt => Some(Wish::Interrupt),
        }
    }
}

impl Drop for Drawing {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
    }
}

/// The processes as a tree: children beneath their parents.
fn rows(processes: &[ProcessSample], growth: impl Fn(&ProcessSample) -> i64) -> Vec<ProcessRow> {
    let mut children: BTreeMap<u32, Vec<&ProcessSample>> = BTreeMap::new();
    let is_member = |pid: u32| processes.iter().any(|process| process.identity.pid == pid);
    let mut waiting: Vec<(&ProcessSample, usize)> = Vec::new();
    for process in processes.iter().rev() {
        if is_member(process.identity.parent) {
            children.entry(process.identity.parent).or_default().push(process);
        } else {
            waiting.push((process, 0));
        }
    }
    let mut rows = Vec::new();
    while let Some((process, depth)) = waiting.pop() {
        rows.push(ProcessRow {
            pid: process.identity.pid,
            parent: process.identity.parent,
            depth,
            name: process.identity.name.clone(),
            role: process.role.to_string(),
            command: short(&process.identity.command),
            own: process.own,
            rss: process.memory.rss,
            growth: growth(process),
            gpu: process.gpu,
        });
        let below = children.remove(&process.identity.pid).unwrap_or_default();
        waiting.extend(below.into_iter().map(|child| (child, depth + 1)));
    }
    rows
}

/// A command line whose program is named without its folder.
fn short(command: &str) -> String {
    let (program, rest) = command.split_once(' ').unwrap_or((command, ""));
    let name = program.rsplit('/').next().unwrap_or(program);
    if rest.is_empty() { name.to_string() } else { format!("{name} {rest}") }
}

fn line(sample: &Sample, last: Option<&Sample>, tree: &TreeSample) -> String {
    let bytes = |quantity| sample.get(quantity).unwrap_or(0);
    let before = last.and_then(|last| last.get(Quantity::Rss));
    let change = before.map_or(0.0, |before| bytes(Quantity::Rss) as f64 - before as f64);
    let step = sample.step.map_or(String::new(), |step| format!("step {step:.0}  "));
    let swap = sample
        .get(Quantity::Swap)
        .filter(|&swap| swap > 0)
        .map_or(String::new(), |swap| format!(", swap {}", Bytes(swap)));
    let gpu = sample.get(Quantity::Gpu).or(sample.get(Quantity::GpuUsed));
    let gpu = gpu.map_or(String::new(), |gpu| format!(", GPU {}", Bytes(gpu)));
    let count = tree.processes.len();
    // A tree whose processes have just forked is known by bounds only.
    let (at_most, at_least) = match sample.get(Quantity::AnonLeast) {
        Some(least) => ("at most ", format!(", at least {}", Bytes(least))),
        None => ("", String::new()),
    };
    format!(
        "[{:>7.1} s]  {step}{at_most}{} ({})  anon {at_most}{}{at_least}, file {}, shared {}{swap}{gpu}  {count} {}",
        sample.time_s.unwrap_or(0.0),
        Bytes(bytes(Quantity::Rss)),
        format_change(change),
        Bytes(bytes(Quantity::Anon)),
        Bytes(bytes(Quantity::File)),
        Bytes(bytes(Quantity::Shmem)),
        if count == 1 { "process" } else { "processes" },
    )
}

fn event_words(kind: EventKind) -> &'static str {
    match kind {
        EventKind::EpochEnd => "an epoch ended",
        EventKind::EvalStart => "an evaluation began",
        EventKind::EvalEnd => "the evaluation ended",
        EventKind::Checkpoint => "a checkpoint was saved",
        EventKind::Gc => "garbage was collected",
        EventKind::Restart => "the program was started again",
        EventKind::Exit => "the program ended",
    }
}

/// The last lines of a program's output, as a terminal would show them: a carriage return begins its line anew.
#[derive(Default)]
struct Output {
    lines: VecDeque<String>,
    line: Vec<u8>,
    returns: bool,
}

impl Output {
    fn take(&mut self, output: &[u8]) {
        for &byte in output {
            match byte {
                b'\n' => {
                    if self.lines.len() == OUTPUT_LINES {
                        self.lines.pop_front();
                    }
                    self.lines.push_back(String::from_utf8_lossy(&self.line).into_owned());
                    self.line.clear();
                    self.returns = false;
                }
                b'\r' => self.returns = true,
                _ => {
                    if std::mem::take(&mut self.returns) {
                        self.line.clear();
                    }
                    // A line without an end must not grow without one.
                    if self.line.len() < 4096 {
                        self.line.push(byte);
                    }
                }
            }
        }
    }

    fn last(&self, count: usize) -> Vec<String> {
        let open = (!self.line.is_empty()).then(|| String::from_utf8_lossy(&self.line).into_owned());
        let whole = self.lines.iter().cloned().chain(open);
        let skipped = (self.lines.len() + usize::from(!self.line.is_empty())).saturating_sub(count);
        whole.skip(skipped).filter(|line| !line.trim().is_empty()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_bars_are_folded() {
        let mut output = Output::default();
        output.take(b"begin\r\n 1/9 |#\r 2/9 |##\r 3/9 |###");
        assert_eq!(output.last(5), ["begin", " 3/9 |###"]);
        output.take(b"\r 4/9 |####\nend\n");
        assert_eq!(output.last(2), [" 4/9 |####", "end"]);
    }
}
