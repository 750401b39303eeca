//! The live picture of a process tree's memory in a terminal: data in, cells and wishes out.
//!
//! Nothing here samples, judges, starts or stops anything. The caller brings a [`Picture`] with each sample, draws it
//! with [`View::draw`] on a [`Screen`], and acts on what [`View::press`] answers. Colour only repeats what characters
//! and words say already, and is taken from the sixteen colours that the terminal's own theme defines.

mod canvas;
mod chart;
mod help;
mod keys;
mod layout;
mod numbers;
mod outlook;
mod palette;
mod reasons;
mod screen;
mod table;
mod text;
mod window;

#[cfg(test)]
mod tests;

use std::path::Path;
use std::time::Duration;

use garden_memory::Diagnosis;
use garden_report::Style as Colours;
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::KeyEvent;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, BorderType, Borders, Widget};

pub use keys::{Asked, Key};
pub use screen::Screen;

use layout::{Areas, Wants};
use palette::Palette;
use window::Window;

/// Everything that one drawing shows.
#[derive(Clone, Copy, Debug)]
pub struct Picture<'a> {
    /// What is watched, for example `python3 train.py`; may hold anything.
    pub title: &'a str,
    /// How long it has been watched.
    pub elapsed: Duration,
    /// The training step, if known.
    pub step: Option<f64>,
    /// Steps of the whole run, if known.
    pub total_steps: Option<u64>,
    /// The memory so far, thinned out, oldest first.
    pub history: &'a [Point],
    /// The most that was held at one moment, in bytes.
    pub peak: u64,
    /// What may be held before something is killed, in bytes.
    pub limit: Option<u64>,
    /// The latest diagnosis; `None` before the first.
    pub diagnosis: Option<&'a Diagnosis>,
    /// The processes of the tree, parents before their children.
    pub processes: &'a [ProcessRow],
    /// The machine around the tree.
    pub machine: Machine,
    /// What the guard does or will do, in one sentence.
    pub guard: Option<&'a str>,
    /// The last lines that the program printed, oldest first.
    pub output: &'a [String],
    /// What the key `q` does, in two or three words.
    pub quit: &'a str,
    /// Readings that failed so far.
    pub failed: u64,
    /// Samples that came late so far.
    pub late: u64,
    /// Where the trace is written.
    pub trace: &'a Path,
    /// The time between samples.
    pub interval: Duration,
}

/// One moment of the tree's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    /// Seconds on the trace's clock.
    pub time_s: f64,
    /// Resident anonymous memory, in bytes.
    pub anon: u64,
    /// Resident pages of mapped files, in bytes.
    pub file: u64,
    /// Resident shared memory, in bytes.
    pub shmem: u64,
    /// Swapped-out memory, in bytes.
    pub swap: u64,
    /// The training step, if known.
    pub step: Option<f64>,
    /// The least that the anonymous memory can be, in bytes, where that above is what it can be at most.
    pub anon_least: Option<u64>,
}

impl Point {
    /// Everything that is resident, in bytes.
    pub fn resident(&self) -> u64 {
        self.anon.saturating_add(self.shmem).saturating_add(self.file)
    }
}

/// One process of the tree.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProcessRow {
    /// Process id.
    pub pid: u32,
    /// The parent's process id.
    pub parent: u32,
    /// How far it stands below the root of the tree.
    pub depth: usize,
    /// The short name.
    pub name: String,
    /// Its part in the run, for example `training` or `worker`.
    pub role: String,
    /// The command line.
    pub command: String,
    /// What it holds without what it shares with the process it was forked from, in bytes.
    pub own: u64,
    /// What is resident, in bytes.
    pub rss: u64,
    /// How `own` changed since the process was first seen, in bytes.
    pub growth: i64,
    /// Its GPU memory, in bytes.
    pub gpu: Option<u64>,
}

/// The machine around the tree; what is not known is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Machine {
    /// What the machine could still give out without swapping, in bytes.
    pub available: Option<u64>,
    /// What the control group uses, in bytes.
    pub group_used: Option<u64>,
    /// What the control group may use, in bytes.
    pub group_limit: Option<u64>,
    /// Share of the last ten seconds in which some process waited for memory, in hundredths of a percent.
    pub pressure: Option<u64>,
    /// What the files in `/dev/shm` take up, in bytes.
    pub dev_shm: Option<u64>,
    /// GPU memory in use by everybody, in bytes.
    pub gpu_used: Option<u64>,
}

/// Whether a pane is on the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::view) enum Pane {
    Shown,
    Hidden,
}

impl Pane {
    fn toggle(&mut self) {
        *self = if self.is_shown() { Pane::Hidden } else { Pane::Shown };
    }

    fn is_shown(self) -> bool {
        self == Pane::Shown
    }
}

/// What the chart's area is divided into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::view) enum Layers {
    Components,
    Total,
}

/// What the person at the keyboard chose to see.
#[derive(Clone, Debug)]
pub struct View {
    palette: Palette,
    processes: Pane,
    output: Pane,
    help: Pane,
    layers: Layers,
    window: Window,
    /// Length of the history at the last drawing: a window longer than that is not worth a key press.
    seconds: f64,
}

impl View {
    /// A view with everything in it.
    pub fn new(colours: Colours) -> View {
        View {
            palette: Palette::new(colours),
            processes: Pane::Shown,
            output: Pane::Shown,
            help: Pane::Hidden,
            layers: Layers::Components,
            window: Window::All,
            seconds: 0.0,
        }
    }

    /// Takes a key; what it means for the view is seen at the next drawing, what it means for the caller is answered.
    pub fn press(&mut self, event: KeyEvent) -> Option<Asked> {
        match Key::of(event)? {
            Key::Interrupt => return Some(Asked::Interrupt),
            Key::Back if self.help.is_shown() => self.help = Pane::Hidden,
            Key::Quit | Key::Back => return Some(Asked::Quit),
            Key::Output => self.output.toggle(),
            Key::Processes => self.processes.toggle(),
            Key::Help => self.help.toggle(),
            Key::Layers => {
                self.layers = if self.layers == Layers::Total { Layers::Components } else { Layers::Total };
            }
            Key::Closer => self.window = self.window.closer(self.seconds),
            Key::Further => self.window = self.window.further(self.seconds),
        }
        None
    }

    /// Draws a picture over the whole frame.
    pub fn draw(&mut self, frame: &mut Frame, picture: &Picture) {
        self.seconds = match picture.history {
            [first, .., last] => last.time_s - first.time_s,
            _ => 0.0,
        };
        let area = frame.area();
        self.paint(frame.buffer_mut(), area, picture);
    }

    fn paint(&self, buffer: &mut Buffer, area: Rect, picture: &Picture) {
        let verdict = self.verdict(picture, area);
        let items = numbers::items(picture);
        let flow = numbers::flow(&items, area.width.into(), self.palette);
        let beside = usize::from(layout::beside_columns(area.width)).saturating_sub(2);
        let reasons = reasons::lines(picture, beside, self.palette);
        let wants = Wants {
            verdict: verdict.len(),
            guard: picture.guard.is_some(),
            number_lines: flow.len(),
            number_rows: items.len().div_ceil(2),
            processes: self.processes.is_shown().then_some(picture.processes.len()),
            output: (self.output.is_shown() && !picture.output.is_empty()).then_some(picture.output.len()),
            reasons: reasons.len(),
        };
        let areas = Areas::plan(area, &wants);
        self.title(buffer, areas.title, picture);
        lines(buffer, areas.verdict, &verdict);
        if let Some(guard) = picture.guard {
            let room = usize::from(area.width).saturating_sub("guard ".len());
            let sentence = format!(" {}", text::cut(&text::clean(guard), room));
            let line = Line::from(vec![Span::styled("guard", self.palette.strong()), Span::raw(sentence)]);
            lines(buffer, areas.guard, &[line]);
        }
        self.chart(buffer, &areas, picture);
        if areas.side_by_side {
            let inner = self.pane(buffer, areas.numbers, self.heading("numbers"), areas.boxed);
            lines(buffer, inner, &numbers::grid(&items, inner.width.into(), self.palette));
        } else {
            lines(buffer, areas.numbers, &flow);
        }
        if self.processes.is_shown() {
            self.table(buffer, &areas, picture);
        }
        if !areas.reasons.is_empty() {
            let inner = self.pane(buffer, areas.reasons, self.heading("why, and what to do"), areas.boxed);
            lines(buffer, inner, &reasons);
        }
        if self.output.is_shown() {
            self.output(buffer, &areas, picture);
        }
        lines(buffer, areas.keys, &[help::key_line(picture, self.layers, areas.keys.width.into(), self.palette)]);
        if self.help.is_shown() {
            help::draw(buffer, area, picture, self.palette);
        }
    }

    /// What is watched on the left; how long, and how far it is, on the right.
    fn title(&self, buffer: &mut Buffer, area: Rect, picture: &Picture) {
        let progress = numbers::progress(picture, area.width.into(), self.palette);
        let room = usize::from(area.width).saturating_sub(progress.width() + 2);
        let title = text::cut(&text::clean(picture.title), room);
        lines(buffer, area, &[Line::styled(title, self.palette.strong())]);
        lines(buffer, area, &[progress.right_aligned()]);
    }

    /// The verdict as a badge with its sentence behind it.
    fn verdict(&self, picture: &Picture, area: Rect) -> Vec<Line<'static>> {
        let most = if area.height >= 30 { 3 } else { 2 };
        let Some(diagnosis) = picture.diagnosis else {
            return vec![Line::styled("watching; a verdict needs a few more samples", self.palette.quiet())];
        };
        let badge = format!(" {} ", diagnosis.verdict.name().to_uppercase());
        let sentence = text::clean(&diagnosis.summary);
        let mut wrapped =
            text::wrap(&sentence, text::width(&badge) + 1, usize::from(area.width), most).into_iter().map(Span::raw);
        let badge = Span::styled(badge, self.palette.verdict(diagnosis.verdict));
        let first = Line::from(vec![badge, Span::raw(" "), wrapped.next().unwrap_or_default()]);
        std::iter::once(first).chain(wrapped.map(Line::from)).collect()
    }

    fn chart(&self, buffer: &mut Buffer, areas: &Areas, picture: &Picture) {
        let legend = chart::legend(picture, self.layers, self.window, self.palette);
        let inner = self.pane(buffer, areas.chart, legend, areas.boxed);
        chart::draw(buffer, inner, picture, self.layers, self.window, self.palette);
    }

    fn table(&self, buffer: &mut Buffer, areas: &Areas, picture: &Picture) {
        let count = match picture.processes.len() {
            1 => "1 process".to_string(),
            count => format!("{count} processes"),
        };
        let inner = self.pane(buffer, areas.processes, self.heading(&count), areas.boxed);
        table::draw(buffer, inner, picture.processes, self.palette);
    }

    /// The last lines that fit, the newest at the bottom.
    fn output(&self, buffer: &mut Buffer, areas: &Areas, picture: &Picture) {
        let inner = self.pane(buffer, areas.output, self.heading("output"), areas.boxed);
        let hidden = picture.output.len().saturating_sub(inner.height.into());
        let shown = picture.output[hidden..].iter();
        let cut: Vec<Line> = shown.map(|line| text::cut(&text::clean(line), inner.width.into()).into()).collect();
        lines(buffer, inner, &cut);
    }

    fn heading(&self, name: &str) -> Line<'static> {
        Line::styled(name.to_string(), self.palette.strong())
    }

    /// Draws the border of a pane, a whole box where there is room and a rule above it otherwise.
    fn pane(&self, buffer: &mut Buffer, area: Rect, mut heading: Line<'static>, boxed: bool) -> Rect {
        let borders = if boxed { Borders::ALL } else { Borders::TOP };
        let rule = Span::styled("─ ", self.palette.quiet());
        heading.spans.insert(0, if boxed { Span::raw(" ") } else { rule });
        heading.spans.push(Span::raw(" "));
        let block = Block::new().borders(borders).border_type(BorderType::Rounded).border_style(self.palette.quiet());
        let block = block.title_style(Style::new().not_dim()).title_top(heading);
        let inner = block.inner(area);
        block.render(area, buffer);
        inner
    }
}

/// Writes lines from the top of an area on, as many as fit.
fn lines(buffer: &mut Buffer, area: Rect, lines: &[Line]) {
    for (line, row) in lines.iter().zip(area.rows()) {
        line.render(row.intersection(buffer.area), buffer);
    }
}
