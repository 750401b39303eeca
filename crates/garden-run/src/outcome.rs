//! What came of a run, for the terminal and for scripts: the numbers, the judge's verdict, and where the result is.

use std::fmt::Write as _;

use garden_memory::Diagnosis;
use garden_train::{DeviceKind, EvalReport, MemoryPlan, Prepared, first_and_best, has_checkpoints};
use serde_json::{Value, json};

use crate::files::RECIPE;
use crate::record::RunRecord;

/// Predictions that are printed.
const SHOWN: usize = 3;

/// Rows that a look at all of them left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// They cannot be used.
    pub bad: usize,
    /// They are too long.
    pub long: usize,
}

impl LeftOut {
    /// Those of a run.
    pub fn of(prepared: &Prepared) -> LeftOut {
        let surveys = std::iter::once(&prepared.train).chain(&prepared.eval);
        surveys.fold(LeftOut::default(), |sum, survey| LeftOut {
            bad: sum.bad + survey.problem_count,
            long: sum.long + survey.tally.dropped,
        })
    }
}

/// Rows that were left out and are named.
const SHOWN_ROWS: usize = 5;

/// What came of a run.
#[derive(Clone, Copy, Debug)]
pub struct RunOutcome<'a> {
    /// What the run has left.
    pub record: &'a RunRecord,
    /// Its plan.
    pub plan: &'a MemoryPlan,
    /// Rows that it went without.
    pub left_out: LeftOut,
}

impl RunOutcome<'_> {
    fn diagnosis(&self) -> Option<&Diagnosis> {
        self.record.judged.as_ref().map(|judged| &judged.diagnosis)
    }

    fn first_and_best(&self) -> Option<(&EvalReport, &EvalReport)> {
        first_and_best(&self.record.evaluations, self.record.job.recipe.best_by())
    }

    /// Rows that were left out, in words.
    fn left_out_words(&self) -> Option<String> {
        let later = self.record.left_out.len();
        let words = [
            (self.left_out.bad, "rows that cannot be used"),
            (self.left_out.long, "rows that are too long"),
            (later, "times a row that turned out broken while training"),
        ];
        let words: Vec<String> =
            words.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
        (!words.is_empty()).then(|| format!("left out: {}", words.join(", ")))
    }

    /// The first rows that turned out broken, each once.
    fn broken_rows(&self) -> Vec<String> {
        let (mut rows, mut more) = (Vec::new(), 0);
        for line in self.record.left_out_rows() {
            match rows.len() < SHOWN_ROWS {
                true => rows.push(format!("  {line}")),
                false => more += 1,
            }
        }
        rows.extend((more > 0).then(|| format!("  and {more} more: `left_out` in log.jsonl")));
        rows
    }

    /// Where the result is, and what it was proven by.
    fn result_words(&self) -> Option<String> {
        let (record, end) = (self.record, self.record.end.as_ref()?);
        let folder = record.job.recipe.output_dir.display();
        if end.is_no_op() {
            return Some(format!(
                "adapter: {folder} changes nothing: the loss on a row equals the base model's. Try more steps, or a shorter warm-up"
            ));
        }
        let proof = end.proof?;
        let with = proof.with;
        if let Some(without) = proof.without {
            return Some(format!("adapter: {folder} (read back: loss {with:.4} on a row; without it {without:.4})"));
        }
        let rounded = proof.unrounded.map_or_else(String::new, |loss| format!("; {loss:.4} before rounding"));
        let what = if record.job.recipe.full { "weights" } else { "adapter" };
        Some(format!("{what}: {folder} (read back: loss {with:.4} on a row{rounded})"))
    }

    /// What it all came to, the answer first.
    pub fn text(&self) -> String {
        let record = self.record;
        let mut text = String::new();
        let _ = writeln!(text, "{}", record.answer());
        if record.end.is_none() && has_checkpoints(&record.job.recipe.output_dir) {
            let recipe = record.job.recipe.output_dir.join(RECIPE);
            let _ =
                writeln!(text, "resume with: model-garden train-vision --config {} --resume auto", recipe.display());
        }
        for prediction in record.predictions.iter().take(SHOWN) {
            let mark = if prediction.is_right { "right" } else { "wrong" };
            let _ = writeln!(
                text,
                "  {}: {}  ({mark}{})",
                prediction.place,
                prediction.answer,
                if prediction.is_right { String::new() } else { format!("; expected {}", prediction.expected) }
            );
        }
        if let Some(found) = self.diagnosis() {
            let _ = writeln!(text, "memory: {}  {}", found.verdict.name().to_uppercase(), found.summary);
        }
        for row in &record.planned.rows {
            let off = 100.0 * (row.measured.as_f64() / row.planned.0.max(1) as f64 - 1.0);
            let (purpose, planned, measured) = (&row.purpose, row.planned.to_string(), row.measured.to_string());
            let _ = writeln!(text, "  {purpose:<22}  planned {planned:>9}  measured {measured:>9}  {off:>+6.1} %");
        }
        let idle = record.end.as_ref().and_then(|end| end.idle_share);
        if let Some(share) = idle.filter(|_| self.plan.device == DeviceKind::Cuda) {
            let _ = writeln!(text, "the GPU was idle for {:.1} % of the step time", 100.0 * share);
        }
        for words in self.left_out_words().into_iter().chain(self.broken_rows()).chain(self.result_words()) {
            let _ = writeln!(text, "{words}");
        }
        text
    }

    /// The same as JSON.
    pub fn json(&self) -> Value {
        let record = self.record;
        let memory = record.planned.rows.iter().map(
            |row| json!({"purpose": row.purpose, "planned_bytes": row.planned.0, "measured_bytes": row.measured.0}),
        );
        json!({
            "done": record.end.is_some(),
            "output_dir": record.job.recipe.output_dir,
            "seconds": record.seconds(),
            "steps": record.job.steps(),
            "rows": record.job.train.used(),
            "datasets": record.job.datasets(),
            "result": record.end,
            "evaluations": self.first_and_best().map(|(first, last)| json!({"first": first, "last": last})),
            "is_worse_than_before": record.better_start().is_some(),
            "left_out": record.left_out,
            "predictions": record.predictions,
            "verdict": self.diagnosis().map(|found| found.verdict.name()),
            "summary": self.diagnosis().map(|found| found.summary.clone()),
            "memory": memory.collect::<Vec<_>>(),
            "plan": self.plan,
            "guard": record.guard,
        })
    }
}
