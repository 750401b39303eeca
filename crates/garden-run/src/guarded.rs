//! What a guard did, as a section of a report.

use std::path::Path;

use garden_guard::{Attempt, Summary};
use garden_memory::Bytes;
use garden_report::{Block, Section};

/// All starts of a program, and how it ended.
pub fn guarded(summary: &Summary) -> Section {
    let header = ["start", "steps", "time", "most held", "checkpoint", "steps lost", "stopped because", "ending"];
    let number = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.0}"));
    let row = |attempt: &Attempt| {
        let steps = attempt.first_step.zip(attempt.last_step).map(|(first, last)| format!("{first:.0} to {last:.0}"));
        vec![
            attempt.number.to_string(),
            steps.unwrap_or_default(),
            format!("{:.1} s", attempt.seconds),
            Bytes(attempt.highest_bytes).to_string(),
            attempt.checkpoint.as_deref().map(name_of).unwrap_or_default(),
            number(attempt.lost_steps),
            attempt.stopped_because.clone().unwrap_or_default(),
            attempt.ending.clone(),
        ]
    };
    let rows = summary.attempts.iter().map(row).collect();
    let end = format!("Outcome: {} (exit code {}).", summary.words, summary.code);
    let body = vec![Block::Table(header.map(Into::into).to_vec(), rows), Block::Paragraph(end)];
    Section { title: "What the guard did".into(), body }
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
