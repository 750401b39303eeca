//! The raw numbers of a trace as a table: all of a short trace, the extremes of each stretch of a long one.

use garden_memory::{Activity, MIB, Quantity, Trace};

use crate::chart::Table;
use crate::format::{ClockWords, whole};
use crate::thin::keep_extremes;

/// Most rows of the table.
const MOST_ROWS: usize = 240;

/// The table of a trace's samples, given as index and place.
pub(crate) fn samples_table(trace: &Trace, samples: &[(usize, f64)], words: ClockWords) -> Table {
    let quantities: Vec<Quantity> = Quantity::ALL.into_iter().filter(|&quantity| trace.has(quantity)).collect();
    let kept = kept_rows(trace, samples);
    let has_times = kept.iter().any(|&at| trace.time_s(samples[at].0).is_some());
    let has_activities = samples.iter().any(|sample| trace.activity(sample.0) != Activity::Train);
    let mut header = vec![words.name().to_string()];
    // On a time clock the first column is the time already.
    let shows_time = has_times && words.name() != "time";
    header.extend(shows_time.then(|| "time (s)".to_string()));
    header.extend(quantities.iter().map(|&quantity| heading(trace, quantity)));
    header.extend(has_activities.then(|| "activity".to_string()));
    let row = |&at: &usize| {
        let (index, place) = samples[at];
        let mut cells = vec![words.number(place + words.zero)];
        cells.extend(shows_time.then(|| trace.time_s(index).map_or(String::new(), |time| format!("{time:.2}"))));
        cells.extend(quantities.iter().map(|&quantity| cell(trace.value(index, quantity), quantity)));
        cells.extend(has_activities.then(|| activity_name(trace.activity(index)).to_string()));
        cells
    };
    let note = match kept.len() == samples.len() {
        true => format!("All {} samples; memory in MiB.", samples.len()),
        false => format!(
            "{} of {} samples: the lowest and the highest of each stretch; memory in MiB. The trace itself has them all.",
            kept.len(),
            samples.len()
        ),
    };
    Table { note, header, rows: kept.iter().map(row).collect() }
}

fn kept_rows(trace: &Trace, samples: &[(usize, f64)]) -> Vec<usize> {
    if samples.len() <= MOST_ROWS {
        return (0..samples.len()).collect();
    }
    let total = if trace.has(Quantity::Rss) { Quantity::Rss } else { Quantity::Pss };
    let value = |sample: &(usize, f64)| trace.value(sample.0, total).map_or(f64::NAN, |value| value as f64);
    let values: Vec<f64> = samples.iter().map(value).collect();
    let mut kept = vec![0, samples.len() - 1];
    keep_extremes(&mut kept, &values, MOST_ROWS - 2);
    kept.sort_unstable();
    kept.dedup();
    kept
}

fn heading(trace: &Trace, quantity: Quantity) -> String {
    let name = trace.name_of(quantity);
    if quantity == Quantity::Pressure { format!("{name} (%)") } else { name.to_string() }
}

fn cell(value: Option<u64>, quantity: Quantity) -> String {
    let Some(value) = value else { return String::new() };
    match quantity {
        Quantity::Pressure => format!("{:.2}", value as f64 / 100.0),
        quantity if quantity.is_count() => whole(value as f64),
        _ => format!("{:.1}", value as f64 / MIB as f64),
    }
}

fn activity_name(activity: Activity) -> &'static str {
    match activity {
        Activity::Train => "train",
        Activity::Eval => "eval",
        Activity::Checkpoint => "checkpoint",
    }
}
