//! The line of keys at the bottom, and the explanations that `?` lays over the view.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, BorderType, Clear, Widget};

use super::palette::Palette;
use super::text::{clean, cut};
use super::{Layers, Picture, lines};

/// Between two keys of the bottom line.
const SEPARATOR: &str = " · ";

/// What the explanations say: a key or a word, and what it means.
const EXPLANATIONS: [(&str, &str); 16] = [
    ("o  p", "show or hide output, processes"),
    ("c", "components or total in the chart"),
    ("+  -", "shorter or longer time span in the chart"),
    ("?", "close this"),
    ("", ""),
    ("anon", "heap and stacks: cannot be reclaimed"),
    ("shared", "/dev/shm, pinned buffers: not reclaimed either"),
    ("swap", "swapped out: still held, but not resident"),
    ("file", "pages of mapped files: reclaimed when needed"),
    ("own", "a process's memory, except what it shares with its parent"),
    ("growth", "change since first seen; ▲ marks the fastest"),
    ("avail", "memory the machine can still provide"),
    ("group", "control group usage, including caches"),
    ("pressure", "share of time spent waiting for memory"),
    ("dotted", "forecast: if it never ends, and if it is bounded"),
    ("", ""),
];

/// The keys, and how many readings failed or came late.
pub(super) fn key_line(picture: &Picture, layers: Layers, columns: usize, palette: Palette) -> Line<'static> {
    let other = if layers == Layers::Total { "components" } else { "total" };
    let long =
        [("q", picture.quit), ("o", "output"), ("p", "processes"), ("c", other), ("+/-", "window"), ("?", "help")];
    let short = [("q", "stop"), ("o", "output"), ("c", other), ("?", "help")];
    let medium = [("q", "stop"), ("o", "output"), ("p", "processes"), ("c", other), ("+/-", "window"), ("?", "help")];
    let least = [("q", "stop"), ("?", "help")];
    let counts = [(picture.failed, "failed"), (picture.late, "late")];
    let counts = counts.into_iter().filter(|count| count.0 > 0).map(|(count, name)| format!("{count} {name}"));
    let counts = counts.collect::<Vec<_>>().join(", ");
    let room = columns.saturating_sub(if counts.is_empty() { 0 } else { counts.len() + 3 });
    let candidates: [&[(&str, &str)]; 4] = [&long, &medium, &short, &least];
    let fitting = candidates.into_iter().map(|keys| key_spans(keys, palette)).find(|line| line.width() <= room);
    let mut line = fitting.unwrap_or_else(|| key_spans(&least, palette));
    if !counts.is_empty() {
        let gap = columns.saturating_sub(line.width() + counts.len());
        line.spans.push(Span::raw(" ".repeat(gap)));
        line.spans.push(Span::styled(counts, palette.alarm()));
    }
    line
}

fn key_spans(keys: &[(&str, &str)], palette: Palette) -> Line<'static> {
    let spans = keys.iter().enumerate().flat_map(|(index, (key, meaning))| {
        let separator = if index == 0 { "" } else { SEPARATOR };
        [
            Span::styled(separator, palette.quiet()),
            Span::styled(key.to_string(), palette.strong()),
            Span::styled(format!(" {meaning}"), palette.quiet()),
        ]
    });
    Line::from(spans.collect::<Vec<_>>())
}

/// Lays the explanations over the middle of the view.
pub(super) fn draw(buffer: &mut Buffer, area: Rect, picture: &Picture, palette: Palette) {
    let quit = format!("{}; Ctrl-C interrupts the program", picture.quit);
    let mut text: Vec<Line> = [("q", quit.as_str())]
        .iter()
        .chain(&EXPLANATIONS)
        .map(|(word, meaning)| {
            let word = Span::styled(format!(" {word:<10}"), palette.strong());
            Line::from(vec![word, Span::raw(meaning.to_string())])
        })
        .collect();
    let every = format!(" a sample every {:?}, trace: {}", picture.interval, picture.trace.display());
    text.push(Line::raw(cut(&clean(&every), 72)));
    let widest = text.iter().map(Line::width).max().unwrap_or(0) as u16;
    let size = (area.width.min(widest + 3), area.height.min(text.len() as u16 + 2));
    let place = Rect {
        x: area.x + (area.width - size.0) / 2,
        y: area.y + (area.height - size.1) / 2,
        width: size.0,
        height: size.1,
    };
    Clear.render(place, buffer);
    let block = Block::bordered().border_type(BorderType::Rounded).title_top(Line::styled(" help ", palette.strong()));
    let inner = block.inner(place);
    block.render(place, buffer);
    lines(buffer, inner, &text);
}
