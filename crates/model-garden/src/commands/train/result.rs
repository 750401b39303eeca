//! What came of a run: the numbers, the judge's verdict, and the files that tell about it.

use std::fmt::Write as _;

use garden_guard::Summary;
use garden_memory::{Bytes, Diagnosis, Question};
use garden_trace::{ReadOptions, read_path};
use garden_train::{DeviceKind, EvalReport, MemoryPlan, Prediction, Prepared};
use serde_json::{Value, json};

use super::files::TRACE;
use super::show::{clock, percent};
use super::story::{Planned, PlannedRow, Story, read_finish};
use crate::commands::Outcome;
use crate::commands::diagnose::Judged;
use crate::failure::Failure;
use crate::printer::Printer;

/// Predictions that are printed.
const SHOWN: usize = 3;

/// What came of a run.
pub struct RunResult<'a> {
    prepared: &'a Prepared,
    plan: &'a MemoryPlan,
    summary: &'a Summary,
    seconds: f64,
    /// What the process that trains wrote at its end; nothing if it did not come there.
    finish: Option<Value>,
    /// The first evaluation and that of the result.
    evaluations: Option<(EvalReport, EvalReport)>,
    predictions: Vec<Prediction>,
    judged: Option<Judged>,
}

impl<'a> RunResult<'a> {
    /// Reads what the run has left.
    pub fn gather(
        prepared: &'a Prepared,
        plan: &'a MemoryPlan,
        summary: &'a Summary,
        seconds: f64,
    ) -> Result<RunResult<'a>, Failure> {
        let folder = &prepared.job.recipe.output_dir;
        let trace = folder.join(TRACE);
        let judged = read_path(&trace, &ReadOptions::default()).ok().map(|read| Judged::of(read, Question::default()));
        let finish = read_finish(folder);
        let seconds = super::story::whole_time(finish.as_ref(), judged.as_ref(), seconds);
        Ok(RunResult {
            prepared,
            plan,
            summary,
            seconds,
            finish,
            evaluations: garden_train::read_evaluations(folder, prepared.job.recipe.best_by()),
            predictions: garden_train::read_predictions(folder),
            judged,
        })
    }

    /// The exit code.
    pub fn outcome(&self) -> Outcome {
        match (&self.finish, self.summary.code) {
            (Some(_), 0) if self.is_no_op() => Outcome::BadNews,
            (Some(_), 0) => Outcome::Fine,
            // It was asked to end and has saved: as a shell tells Ctrl-C.
            (None, 0) => Outcome::Program(130),
            (_, code) => Outcome::Program(code),
        }
    }

    /// Writes the pages about the run.
    pub fn write(&self, printer: &Printer) {
        let job = &self.prepared.job;
        super::write_pages(
            &Story::of(job, Some(self.summary), self.judged.as_ref(), self.seconds, self.planned()),
            printer,
        );
    }

    /// The same for the page.
    fn planned(&self) -> Planned {
        let row =
            |(purpose, planned, measured)| PlannedRow { purpose, planned: Bytes(planned), measured: Bytes(measured) };
        Planned { total: Some(Bytes(self.plan.total_bytes)), rows: self.by_purpose().into_iter().map(row).collect() }
    }

    fn diagnosis(&self) -> Option<&Diagnosis> {
        self.judged.as_ref().map(|judged| &judged.diagnosis)
    }

    /// What was planned for each purpose and what was held at most; the host's own as one, as the system counts it so. None if the run did not end.
    pub fn by_purpose(&self) -> Vec<(String, u64, u64)> {
        let Some(arena) = self.finish.as_ref().and_then(|finish| finish.get("arena")?.as_object()) else {
            return Vec::new();
        };
        // Of all starts: the process that ended has seen its own only.
        let earlier = self.judged.as_ref().map_or(0, |judged| judged.most().1);
        let resident = earlier.max(self.number(&["resident", "peak"]).unwrap_or(0.0) as u64);
        let held: u64 = arena.values().filter_map(Value::as_u64).sum();
        let is_cpu = self.plan.device == DeviceKind::Cpu;
        let on_host = if is_cpu { held } else { 0 };
        let device = arena.iter().filter_map(|(purpose, bytes)| {
            let (planned, bytes) = (self.plan.bytes(purpose), bytes.as_u64()?);
            (planned + bytes > 0).then(|| (purpose.clone(), planned, bytes))
        });
        let host = ("loader and the rest".to_string(), self.plan.host_bytes, resident.saturating_sub(on_host));
        if is_cpu {
            let all = ("all".to_string(), self.plan.total_bytes, resident);
            return device.chain([host, all]).collect();
        }
        // What the driver says, beside what was asked for; its own share was taken before.
        let taken = self.number(&["gpu_bytes"]).unwrap_or(0.0) as u64;
        let gpu = ("all on the GPU".to_string(), self.plan.device_bytes - self.plan.bytes("driver"), taken);
        let host = ("all on the host".to_string(), host.1, host.2);
        device.chain([gpu, host]).collect()
    }

    /// Whether the adapter changes nothing.
    fn is_no_op(&self) -> bool {
        let without = self.number(&["proof", "loss_without_adapter"]);
        without.is_some() && without == self.number(&["proof", "loss"])
    }

    /// Rows that were left out, in words.
    fn left_out(&self) -> Option<String> {
        let surveys = std::iter::once(&self.prepared.train).chain(&self.prepared.eval);
        let (bad, long) =
            surveys.fold((0, 0), |sum, survey| (sum.0 + survey.problem_count, sum.1 + survey.tally.dropped));
        let later = self.number(&["progress", "skipped"]).unwrap_or(0.0);
        let words = [
            (bad as f64, "rows that cannot be used"),
            (long as f64, "rows that are too long"),
            (later, "times a row whose picture could not be decoded"),
        ];
        let words: Vec<String> =
            words.iter().filter(|(count, _)| *count > 0.0).map(|(count, what)| format!("{count} {what}")).collect();
        (!words.is_empty()).then(|| format!("left out: {}", words.join(", ")))
    }

    fn number(&self, path: &[&str]) -> Option<f64> {
        path.iter().try_fold(self.finish.as_ref()?, |value, name| value.get(name))?.as_f64()
    }

    /// What it all came to, the answer first.
    pub fn text(&self) -> String {
        let job = &self.prepared.job;
        let folder = job.recipe.output_dir.display();
        let mut text = String::new();
        let ends = self.evaluations.as_ref().map(|(first, last)| (first, last));
        let _ = writeln!(text, "{}", answer(self.finish.as_ref(), &self.summary.words, self.seconds, ends));
        if self.finish.is_none() && garden_train::has_checkpoints(&job.recipe.output_dir) {
            let _ = writeln!(text, "go on with --resume auto");
        }
        for prediction in self.predictions.iter().take(SHOWN) {
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
        for (purpose, planned, measured) in self.by_purpose() {
            let off = 100.0 * (measured as f64 / planned.max(1) as f64 - 1.0);
            let (planned, measured) = (Bytes(planned).to_string(), Bytes(measured).to_string());
            let _ = writeln!(text, "  {purpose:<22}  planned {planned:>9}  measured {measured:>9}  {off:>+6.1} %");
        }
        if let Some(share) = self.number(&["idle_share"]).filter(|_| self.plan.device == DeviceKind::Cuda) {
            let _ = writeln!(text, "the GPU had nothing to do for {:.1} % of the time of steps", 100.0 * share);
        }
        if let Some(words) = self.left_out() {
            let _ = writeln!(text, "{words}");
        }
        if self.is_no_op() {
            let _ = writeln!(
                text,
                "adapter: {folder} changes nothing: the loss on a row is that of the base model. More steps, or a shorter warm-up, would help"
            );
        } else if let (Some(with), Some(without)) =
            (self.number(&["proof", "loss"]), self.number(&["proof", "loss_without_adapter"]))
        {
            let _ = writeln!(text, "adapter: {folder} (read again: loss {with:.4} on a row; without it {without:.4})");
        } else if let Some(with) = self.number(&["proof", "loss"]) {
            let rounded = self.number(&["proof", "loss_unrounded"]);
            let rounded = rounded.map_or_else(String::new, |loss| format!("; {loss:.4} before values were rounded"));
            let what = if self.prepared.job.recipe.full { "weights" } else { "adapter" };
            let _ = writeln!(text, "{what}: {folder} (read again: loss {with:.4} on a row{rounded})");
        }
        text
    }

    /// The same as JSON.
    pub fn json(&self) -> String {
        let job = &self.prepared.job;
        let evaluation = |report: &EvalReport| serde_json::to_value(report).unwrap_or_default();
        let told = json!({
            "done": self.finish.is_some(),
            "output_dir": job.recipe.output_dir,
            "seconds": self.seconds,
            "steps": job.steps(),
            "rows": job.train.used(),
            "result": self.finish,
            "evaluations": self.evaluations.as_ref().map(|(first, last)| json!({"first": evaluation(first), "last": evaluation(last)})),
            "predictions": self.predictions,
            "verdict": self.diagnosis().map(|found| found.verdict.name()),
            "summary": self.diagnosis().map(|found| found.summary.clone()),
            "memory": self.by_purpose().into_iter().map(|(purpose, planned, measured)| json!({"purpose": purpose, "planned_bytes": planned, "measured_bytes": measured})).collect::<Vec<_>>(),
            "plan": self.plan,
            "guard": self.summary,
        });
        format!("{told:#}\n")
    }
}

/// What a run came to, in a sentence: how it ended, in words, counts where it did not come to its end.
pub fn answer(
    finish: Option<&Value>,
    words: &str,
    seconds: f64,
    evaluations: Option<(&EvalReport, &EvalReport)>,
) -> String {
    let Some(finish) = finish else { return format!("not done: {words}") };
    let number = |value: &Value| value.as_f64();
    let steps = number(&finish["progress"]["step"]).unwrap_or(0.0);
    let is_early = finish["end"] == "early_stopping";
    let early = if is_early { " until it got no better" } else { "" };
    let mut text = format!("trained {steps:.0} steps{early} in {}", clock(seconds));
    if let (Some(first), Some(last)) = (number(&finish["first_loss"]), number(&finish["last_loss"])) {
        let _ = write!(text, ": loss {first:.3} → {last:.3}");
    }
    if let Some((before, after)) = evaluations {
        let _ = write!(text, "; on held-out rows {:.3} → {:.3}", before.loss, after.loss);
        if let Some((before, after)) = before.field_accuracy.zip(after.field_accuracy) {
            let _ = write!(text, ", fields right {} → {}", percent(before), percent(after));
        }
    }
    text
}
