//! The charts of a training run: loss, accuracy of tokens and of answers, learning rate, gradients, time, and the memory that the judge drew with the plan in it.

use std::collections::BTreeSet;

use garden_report::{Axis, Chart, ChartKind, Curve, Level, LevelKind, Mark, Role, Scale, Shape, Size, Tone, Unit};
use garden_train::{EvalReport, Metric, StepLine};

use crate::format::capital;
use crate::record::RunRecord;

/// A curve of training steps with more values than this is drawn smoothed, with the values themselves behind it.
const NOISY: usize = 120;
/// How many values a smoothed one weighs, as a share of all.
const SMOOTHED: f64 = 0.03;
/// Fields that get a curve of their own: as many as there are colours.
const MOST_FIELDS: usize = 8;
/// Half of all values below this share of the highest leave a linear axis empty.
const AT_THE_FOOT: f64 = 0.05;
/// Ends of epochs that are drawn; more would be a hatching.
const MOST_EPOCHS: usize = 20;

/// All charts, in the order of the page.
pub fn charts(record: &RunRecord) -> Vec<Chart> {
    let own = [
        loss(record),
        token_accuracy(record),
        accuracy(record),
        fields(record),
        rate(record),
        norm(record),
        time(record),
    ];
    let own =
        own.into_iter().filter(|chart| chart.curves.iter().any(|curve| curve.values.iter().any(|v| v.is_finite())));
    own.chain(memory(record)).collect()
}

/// A chart over steps, with what both the log's steps and its evaluations have to say.
struct Draft<'a> {
    record: &'a RunRecord,
    places: Vec<usize>,
}

impl<'a> Draft<'a> {
    fn new(record: &'a RunRecord) -> Draft<'a> {
        let places: BTreeSet<usize> = record
            .steps
            .iter()
            .map(|step| step.step)
            .chain(record.evaluations.iter().map(|report| report.step))
            .collect();
        Draft { record, places: places.into_iter().collect() }
    }

    fn chart(&self, title: &str, note: &str, unit: Unit, curves: Vec<Curve>) -> Chart {
        let to = self.places.last().copied().unwrap_or(0).max(1) as f64;
        Chart {
            title: title.into(),
            note: note.into(),
            unit,
            axis: Axis { name: "step".into(), from: 0.0, to, ..Axis::default() },
            places: self.places.iter().map(|place| *place as f64).collect(),
            curves,
            ..Chart::default()
        }
    }

    /// A curve through values at some of the places.
    fn curve(&self, name: &str, role: Role, tone: Tone, values: impl Iterator<Item = (usize, f64)>) -> Curve {
        let mut all = vec![f64::NAN; self.places.len()];
        for (step, value) in values {
            if let Ok(place) = self.places.binary_search(&step) {
                all[place] = value;
            }
        }
        Curve { name: name.into(), role, tone, values: all }
    }

    fn of_steps(&self, name: &str, role: Role, value: impl Fn(&StepLine) -> f64) -> Curve {
        self.curve(name, role, Tone::Next, self.record.steps.iter().map(|step| (step.step, value(step))))
    }

    fn of_evaluations(&self, name: &str, value: impl Fn(&EvalReport) -> Option<f64>) -> Curve {
        let values = self.record.evaluations.iter().filter_map(|report| Some((report.step, value(report)?)));
        self.curve(name, Role::Dotted, Tone::Next, values)
    }

    /// What both training rows and held-out rows have, and the words for which rows there were.
    fn of_both(
        &self,
        of_step: impl Fn(&StepLine) -> Option<f64>,
        of_evaluation: impl Fn(&EvalReport) -> Option<f64>,
    ) -> (Vec<Curve>, &'static str) {
        let steps = self.record.steps.iter().filter_map(|step| Some((step.step, of_step(step)?)));
        let values: Vec<(usize, f64)> = steps.collect();
        let mut curves = Vec::new();
        if values.len() > NOISY {
            curves.push(self.curve("training, smoothed", Role::Line, Tone::Next, smoothed(&values).into_iter()));
            curves.push(self.curve("training", Role::Line, Tone::Muted, values.into_iter()));
        } else {
            curves.push(self.curve("training", Role::Line, Tone::Next, values.into_iter()));
        }
        if self.record.evaluations.is_empty() {
            return (curves, "on training rows");
        }
        curves.push(self.of_evaluations("held-out rows", of_evaluation));
        (curves, "on training rows and on held-out rows")
    }
}

fn loss(record: &RunRecord) -> Chart {
    let draft = Draft::new(record);
    let (curves, rows) = draft.of_both(|step| Some(step.loss), |report| Some(report.loss));
    let note = format!("{}; a value of training is the mean of the steps since the one before.", capital(rows));
    let mut chart = draft.chart("Loss", &note, Unit::Number, curves);
    chart.size = Size::Large;
    chart.marks = marks(record);
    chart.scale = scale(&chart.curves);
    chart
}

/// A linear axis, unless it would be empty: most values lie at its foot.
fn scale(curves: &[Curve]) -> Scale {
    let mut values: Vec<f64> =
        curves.iter().flat_map(|curve| &curve.values).copied().filter(|v| v.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    let (Some(lowest), Some(highest)) = (values.first(), values.last()) else { return Scale::Linear };
    let is_squeezed = values[values.len() / 2] < AT_THE_FOOT * highest;
    if *lowest > 0.0 && is_squeezed { Scale::Logarithmic } else { Scale::Linear }
}

/// A mean in which a value weighs less the longer ago it was.
fn smoothed(values: &[(usize, f64)]) -> Vec<(usize, f64)> {
    let share = 1.0 / (SMOOTHED * values.len() as f64).max(3.0);
    let mut mean = None;
    values
        .iter()
        .map(|&(step, value)| {
            let next = mean.map_or(value, |mean: f64| mean + share * (value - mean));
            mean = Some(next);
            (step, next)
        })
        .collect()
}

/// The best evaluation, starts after the first, and ends of epochs.
fn marks(record: &RunRecord) -> Vec<Mark> {
    let mark = |name: &str, label: String, at: f64, shape| Mark { name: name.into(), label, at, stretch: None, shape };
    let best = record.best().filter(|_| record.evaluations.len() > 2);
    let label = |best: &EvalReport| match record.job.recipe.metric_for_best_model {
        Metric::Loss => format!("best loss {:.3}", best.loss),
        metric => format!("best by {}", metric.name()),
    };
    let best = best.map(|best| mark("best", label(best), best.step as f64, Shape::Pin));
    let attempts = record.guard.iter().flat_map(|summary| summary.attempts.iter().skip(1));
    let starts =
        attempts.filter_map(|attempt| Some(mark("restart", String::new(), attempt.first_step?, Shape::Diamond)));
    let (each, last) = (record.job.steps_per_epoch().max(1), record.last_step());
    let epochs = last / each;
    let epoch = |number: usize| mark("epoch", format!("epoch {number}"), (number * each) as f64, Shape::Line);
    let epochs = (1..=epochs).filter(|number| epochs <= MOST_EPOCHS && number * each < last).map(epoch);
    best.into_iter().chain(starts).chain(epochs).collect()
}

fn token_accuracy(record: &RunRecord) -> Chart {
    let draft = Draft::new(record);
    let (curves, rows) = draft.of_both(|step| step.mean_token_accuracy, |report| report.mean_token_accuracy);
    let note = format!("Share of tokens that the model ranks first, given the right ones before them, {rows}.");
    shares(&draft, "Token accuracy", &note, curves)
}

fn accuracy(record: &RunRecord) -> Chart {
    let draft = Draft::new(record);
    let curves = vec![
        draft.of_evaluations("fully correct answers", |report| report.exact_match),
        draft.of_evaluations("correct fields", |report| report.field_accuracy),
        draft.of_evaluations("box overlap", |report| report.mean_iou),
        draft.of_evaluations("boxes found", |report| report.iou_50),
    ];
    shares(&draft, "Accuracy", "On answers to held-out rows.", curves)
}

fn fields(record: &RunRecord) -> Chart {
    let draft = Draft::new(record);
    let mut names: Vec<(&String, f64)> = record
        .evaluations
        .last()
        .into_iter()
        .flat_map(|last| last.fields.iter().map(|(name, share)| (name, *share)))
        .collect();
    let note = match names.len() > MOST_FIELDS {
        true => format!("The {MOST_FIELDS} of {} fields that are wrong most often.", names.len()),
        false => "On answers in JSON, field by field.".to_string(),
    };
    names.sort_by(|one, other| one.1.total_cmp(&other.1));
    names.truncate(MOST_FIELDS);
    names.sort_by_key(|(name, _)| *name);
    let curve = |(name, _): (&String, f64)| draft.of_evaluations(name, |report| report.fields.get(name).copied());
    // A single field is the same as all fields together.
    let curves = if names.len() > 1 { names.into_iter().map(curve).collect() } else { Vec::new() };
    shares(&draft, "Accuracy by field", &note, curves)
}

/// A chart of shares of one, without curves that have nothing to show.
fn shares(draft: &Draft, title: &str, note: &str, mut curves: Vec<Curve>) -> Chart {
    curves.retain(|curve| curve.values.iter().any(|value| value.is_finite()));
    let mut chart = draft.chart(title, note, Unit::Percent, curves);
    chart.levels = vec![Level { name: "all correct".into(), value: 1.0, kind: LevelKind::Plan }];
    chart
}

fn rate(record: &RunRecord) -> Chart {
    let draft = Draft::new(record);
    let curves = vec![draft.of_steps("learning rate", Role::Line, |step| step.learning_rate)];
    draft.chart("Learning rate", "", Unit::Number, curves)
}

fn norm(record: &RunRecord) -> Chart {
    let draft = Draft::new(record);
    let curves = vec![draft.of_steps("norm", Role::Line, |step| step.grad_norm)];
    let mut chart = draft.chart("Gradients", "Gradient norm before clipping.", Unit::Number, curves);
    let clip = f64::from(record.job.recipe.max_grad_norm);
    if clip > 0.0 {
        chart.levels = vec![Level { name: "clipped at".into(), value: clip, kind: LevelKind::Plan }];
    }
    chart
}

fn time(record: &RunRecord) -> Chart {
    let draft = Draft::new(record);
    let curves = vec![
        draft.of_steps("computing", Role::Stacked, |step| (step.step_seconds - step.waited_seconds).max(0.0)),
        draft.of_steps("waiting for rows", Role::Stacked, |step| step.waited_seconds),
    ];
    draft.chart("Step time", "Logged steps, without evaluations and checkpoints.", Unit::Seconds, curves)
}

/// The memory as the judge draws it, with the plan.
fn memory(record: &RunRecord) -> Vec<Chart> {
    let drawn = record.judged.as_ref().map(|judged| judged.page("memory").charts).unwrap_or_default();
    // `diagnose` draws the others too.
    let is_ours = |chart: &Chart| matches!(chart.kind, ChartKind::Memory | ChartKind::Attempts | ChartKind::GpuMemory);
    let mut charts: Vec<Chart> = drawn.into_iter().filter(is_ours).collect();
    if let (Some(planned), Some(chart)) = (record.planned.total, charts.first_mut()) {
        chart.levels.push(Level { name: "planned".into(), value: planned.as_f64(), kind: LevelKind::Plan });
    }
    charts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scale_of(loss: impl Fn(f64) -> f64) -> Scale {
        let values = (0..300).map(|step| loss(f64::from(step))).collect();
        scale(&[Curve { values, ..Curve::default() }, Curve { values: vec![f64::NAN; 3], ..Curve::default() }])
    }

    #[test]
    fn only_a_loss_that_a_linear_axis_would_hide_is_drawn_by_ratios() {
        assert_eq!(scale_of(|step| 3.0 * (-step / 30.0).exp() + 0.002), Scale::Logarithmic);
        assert_eq!(scale_of(|step| 2.5 - step / 300.0), Scale::Linear);
        assert_eq!(scale_of(|step| 3.0 * (-step / 200.0).exp()), Scale::Linear);
        // Zero has no logarithm.
        assert_eq!(scale_of(|step| (3.0 - step).max(0.0)), Scale::Linear);
        assert_eq!(scale(&[]), Scale::Linear);
    }
}
