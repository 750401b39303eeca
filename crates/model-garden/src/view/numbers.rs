//! The numbers beside the chart: memory, growth, what is left, and the machine around.

use garden_memory::{Bytes, Diagnosis, Verdict, elapsed, format_change};
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::palette::Palette;
use super::text::{clock, cut, width};
use super::{Picture, Point};

/// Columns of a label in the grid.
const LABEL_COLUMNS: usize = 11;
/// From this share of the limit on, what cannot be reclaimed is alarming.
const NEAR_LIMIT: f64 = 0.9;
/// Columns of the bar that shows how far the run is, on terminals that are wide enough.
const BAR_COLUMNS: usize = 20;
const BAR_FROM: usize = 100;

/// One number with its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Item {
    label: &'static str,
    value: String,
    /// What is only said where there is room.
    detail: String,
    is_alarming: bool,
}

fn item(label: &'static str, value: impl ToString) -> Item {
    Item { label, value: value.to_string(), detail: String::new(), is_alarming: false }
}

/// What is known, the most important first.
pub(super) fn items(picture: &Picture) -> Vec<Item> {
    let around = picture.machine;
    let last = picture.history.last();
    let bytes = |label: &'static str, value: Option<u64>| value.map(|value| item(label, Bytes(value)));
    let group = around.group_used.map(|used| Item {
        detail: around.group_limit.map_or(String::new(), |limit| format!(" of {}", Bytes(limit))),
        ..item("group", Bytes(used))
    });
    // The pressure is told in percent because that is how the kernel shows it.
    let pressure = around.pressure.map(|pressure| item("pressure", format!("{:.1} %", pressure as f64 / 100.0)));
    [
        last.map(|last| now(last, picture.limit)),
        last.map(|_| item("peak", Bytes(picture.peak))),
        picture.diagnosis.and_then(growth),
        picture.diagnosis.and_then(time_to_limit),
        bytes("avail", around.available),
        group,
        pressure,
        bytes("swap", last.map(|last| last.swap).filter(|&swap| swap > 0)),
        bytes("/dev/shm", around.dev_shm),
        gpu(picture),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn now(last: &Point, limit: Option<u64>) -> Item {
    let resident = last.resident();
    let limit = limit.filter(|&limit| limit > 0);
    let share = |bytes: u64, limit: u64| bytes as f64 / limit as f64;
    let detail =
        limit.map_or(String::new(), |limit| format!(" of {} ({:.0} %)", Bytes(limit), 100.0 * share(resident, limit)));
    // Pages of files are reclaimed before anything is killed, so they alarm nobody.
    let held = last.anon_least.unwrap_or(last.anon).saturating_add(last.shmem);
    let is_alarming = limit.is_some_and(|limit| share(held, limit) > NEAR_LIMIT);
    let at_most = if last.anon_least.is_some() { "at most " } else { "" };
    Item { detail, is_alarming, ..item("now", format!("{at_most}{}", Bytes(resident))) }
}

/// The growth at present; a growth that has ended is told as none.
fn growth(diagnosis: &Diagnosis) -> Option<Item> {
    let rate = |rate: Option<f64>, unit: &str| {
        let rate = rate.filter(|rate| rate.is_finite())?;
        Some(format!("{}/{unit}", format_change(rate)))
    };
    match diagnosis.verdict {
        Verdict::Insufficient => None,
        Verdict::Growing | Verdict::Leak => {
            let per_step = rate(diagnosis.growth.bytes_per_step, "step");
            let per_minute = rate(diagnosis.growth.bytes_per_second.map(|rate| 60.0 * rate), "min");
            let value = [per_step, per_minute].into_iter().flatten().collect::<Vec<_>>().join(" ");
            (!value.is_empty()).then(|| item("growth", value))
        }
        _ => Some(item("growth", "none")),
    }
}

/// A time ahead, in whole minutes where it has some: the view is drawn anew every moment, and a narrow one has no columns for seconds.
fn ahead(seconds: f64) -> String {
    if seconds < 100.0 { elapsed(seconds) } else { elapsed((seconds / 60.0).round() * 60.0) }
}

fn time_to_limit(diagnosis: &Diagnosis) -> Option<Item> {
    let end = diagnosis.forecast.if_unbounded?;
    let step = end.step.map(|step| format!("step {step:.0}"));
    let (value, detail) = match (end.time_s, step) {
        (Some(seconds), Some(step)) => (ahead(seconds), format!(" ({step})")),
        (Some(seconds), None) => (ahead(seconds), String::new()),
        (None, Some(step)) => (step, String::new()),
        (None, None) => return None,
    };
    // Whether it comes to that is open while the growth may still end by itself.
    let is_alarming = diagnosis.verdict == Verdict::Leak;
    Some(Item { detail, is_alarming, ..item("limit in", value) })
}

fn gpu(picture: &Picture) -> Option<Item> {
    let own: Vec<u64> = picture.processes.iter().filter_map(|process| process.gpu).collect();
    let total = own.iter().fold(0u64, |sum, &bytes| sum.saturating_add(bytes));
    match (own.is_empty(), picture.machine.gpu_used) {
        (false, Some(used)) => Some(Item { detail: format!(", all {}", Bytes(used)), ..item("GPU", Bytes(total)) }),
        (false, None) => Some(item("GPU", Bytes(total))),
        (true, Some(used)) => Some(item("GPU in use", Bytes(used))),
        (true, None) => None,
    }
}

fn style(item: &Item, palette: Palette) -> Style {
    if item.is_alarming { palette.alarm() } else { Style::new() }
}

/// The numbers one after the other in two lines, with details and room between them as far as everything fits.
pub(super) fn flow(items: &[Item], columns: usize, palette: Palette) -> Vec<Line<'static>> {
    let lengths = |with_detail: bool| -> Vec<usize> {
        let detail = |item: &Item| if with_detail { width(&item.detail) } else { 0 };
        items.iter().map(|item| width(item.label) + 1 + width(&item.value) + detail(item)).collect()
    };
    let ways = [(true, 3), (true, 2), (false, 3), (false, 2)];
    let fits = |way: &(bool, usize)| breaks(&lengths(way.0), columns, way.1).len() <= 2;
    let (with_detail, gap) = ways.into_iter().find(fits).unwrap_or((false, 2));
    let mut items = items.iter();
    let line = |count: usize| {
        let spans = items.by_ref().take(count).enumerate().flat_map(|(index, item)| {
            let gap = " ".repeat(if index > 0 { gap } else { 0 });
            let detail = if with_detail { item.detail.as_str() } else { "" };
            [
                Span::styled(format!("{gap}{} ", item.label), palette.quiet()),
                Span::styled(format!("{}{detail}", item.value), style(item, palette)),
            ]
        });
        Line::from(spans.collect::<Vec<_>>())
    };
    breaks(&lengths(with_detail), columns, gap).into_iter().map(line).collect()
}

/// How many items of these lengths go on each line, with a gap between them.
fn breaks(lengths: &[usize], columns: usize, gap: usize) -> Vec<usize> {
    let mut counts: Vec<usize> = Vec::new();
    let mut used = usize::MAX;
    for length in lengths {
        match counts.last_mut() {
            Some(count) if used + gap + length <= columns => (*count, used) = (*count + 1, used + gap + length),
            _ => {
                counts.push(1);
                used = *length;
            }
        }
    }
    counts
}

/// The numbers in two columns, read downwards.
pub(super) fn grid(items: &[Item], columns: usize, palette: Palette) -> Vec<Line<'static>> {
    let rows = items.len().div_ceil(2);
    let half = columns / 2;
    let cell = |item: &Item| {
        let room = half.saturating_sub(LABEL_COLUMNS + 1);
        let value = cut(&format!("{}{}", item.value, item.detail), room);
        let padding = " ".repeat(room.saturating_sub(width(&value)) + 1);
        [
            Span::styled(format!("{:<LABEL_COLUMNS$}", item.label), palette.quiet()),
            Span::styled(value, style(item, palette)),
            Span::raw(padding),
        ]
    };
    let row = |row: usize| [items.get(row), items.get(rows + row)].into_iter().flatten().flat_map(cell);
    (0..rows).map(|index| Line::from(row(index).collect::<Vec<_>>())).collect()
}

/// How long it has been watched and how far it is: `0:04:32  step 41/249`.
pub(super) fn progress(picture: &Picture, columns: usize, palette: Palette) -> Line<'static> {
    let mut spans = vec![Span::styled(clock(picture.elapsed.as_secs()), palette.quiet())];
    if let Some(step) = picture.step.filter(|step| step.is_finite()) {
        let total = picture.total_steps.filter(|&total| total > 0);
        if let (Some(total), true) = (total, columns >= BAR_FROM) {
            let share = (step / total as f64).clamp(0.0, 1.0);
            let done = (share * BAR_COLUMNS as f64).round() as usize;
            spans.push(Span::raw(format!("  {}", "━".repeat(done))));
            spans.push(Span::styled("╌".repeat(BAR_COLUMNS - done), palette.quiet()));
        }
        let total = total.map_or(String::new(), |total| format!("/{total}"));
        spans.push(Span::raw("  step "));
        spans.push(Span::styled(format!("{step:.0}{total}"), palette.strong()));
    }
    Line::from(spans)
}
