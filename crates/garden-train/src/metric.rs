//! Which number of an evaluation decides what the best checkpoint is.

use serde::{Deserialize, Serialize};

use crate::observer::EvalReport;
use crate::recipe::Recipe;

/// A number of an evaluation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// The mean loss of a trained token.
    #[default]
    #[serde(alias = "eval_loss")]
    Loss,
    /// The share of answers that are right as a whole.
    #[serde(alias = "eval_exact_match")]
    ExactMatch,
    /// The share of fields of JSON answers that are right.
    #[serde(alias = "eval_field_accuracy")]
    FieldAccuracy,
    /// The mean overlap of boxes.
    #[serde(alias = "eval_mean_iou")]
    MeanIou,
    /// The share of boxes that overlap by half.
    #[serde(rename = "iou_50", alias = "eval_iou_50")]
    Iou50,
}

/// What the best evaluation has most or least of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BestBy {
    /// The number.
    pub metric: Metric,
    /// Whether more is better.
    pub is_greater_better: bool,
}

/// What evaluations are compared by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// The chosen number.
    pub number: f64,
    /// The mean loss of a trained token.
    pub loss: f64,
}

impl Metric {
    /// The number of an evaluation, where that has it.
    pub fn of(self, report: &EvalReport) -> Option<f64> {
        match self {
            Metric::Loss => Some(report.loss),
            Metric::ExactMatch => report.exact_match,
            Metric::FieldAccuracy => report.field_accuracy,
            Metric::MeanIou => report.mean_iou,
            Metric::Iou50 => report.iou_50,
        }
    }

    /// What people call it.
    pub fn name(self) -> &'static str {
        match self {
            Metric::Loss => "loss",
            Metric::ExactMatch => "fully correct answers",
            Metric::FieldAccuracy => "correct fields",
            Metric::MeanIou => "box overlap",
            Metric::Iou50 => "boxes found",
        }
    }

    /// A value of it.
    pub fn shown(self, number: f64) -> String {
        match self {
            Metric::Loss => format!("{number:.4}"),
            Metric::MeanIou => format!("{number:.2}"),
            _ => format!("{:.1} %", 100.0 * number),
        }
    }

    /// Why an evaluation may not have it.
    pub(crate) fn needs(self) -> &'static str {
        match self {
            Metric::Loss => "rows to evaluate on",
            Metric::ExactMatch => "generated answers (`eval-answers`)",
            Metric::FieldAccuracy => "answers in JSON among the rows to evaluate on",
            Metric::MeanIou | Metric::Iou50 => "answers with boxes among the rows to evaluate on",
        }
    }
}

impl BestBy {
    /// Whether an evaluation is better than another one: by its number, and of equal ones by its loss. A share of twenty answers stays the same from one
    /// evaluation to the next, and at the beginning it is zero, while the model learns.
    pub fn is_better(self, score: Score, than: Score) -> bool {
        let (one, other) =
            if self.is_greater_better { (than.number, score.number) } else { (score.number, than.number) };
        one < other || score.number == than.number && self.metric != Metric::Loss && score.loss < than.loss
    }

    /// What an evaluation is compared by, if it has the number.
    pub fn score(self, report: &EvalReport) -> Option<Score> {
        self.metric.of(report).map(|number| Score { number, loss: report.loss })
    }

    /// The best of some evaluations after the first step; of equal ones the first, as the trainer has it.
    pub fn best(self, reports: &[EvalReport]) -> Option<&EvalReport> {
        let known = reports.iter().filter(|report| report.step > 0 && self.metric.of(report).is_some());
        known.reduce(|best, report| match (self.score(report), self.score(best)) {
            (Some(score), Some(than)) if self.is_better(score, than) => report,
            _ => best,
        })
    }

    /// What the best one has, such as "the lowest loss".
    pub fn words(self) -> String {
        let most = match (self.is_greater_better, self.metric) {
            (true, Metric::Loss | Metric::MeanIou) => "the highest",
            (false, Metric::Loss | Metric::MeanIou) => "the lowest",
            (true, _) => "the most",
            (false, _) => "the fewest",
        };
        format!("{most} {}", self.metric.name())
    }
}

impl Recipe {
    /// What the best checkpoint is chosen by: as in Hugging Face's trainer more is better, but of losses.
    pub fn best_by(&self) -> BestBy {
        let metric = self.metric_for_best_model;
        BestBy { metric, is_greater_better: self.greater_is_better.unwrap_or(metric != Metric::Loss) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_is_after_step_0_and_of_equals_has_the_lower_loss() {
        let report = |step, loss, exact| EvalReport { step, loss, exact_match: exact, ..EvalReport::default() };
        let reports = [
            report(0, 0.1, Some(0.9)),
            report(5, 0.5, Some(0.2)),
            report(10, 0.4, Some(0.6)),
            report(15, 0.6, Some(0.6)),
            report(20, 0.4, None),
            report(25, 0.3, Some(0.2)),
            report(30, 0.3, Some(0.2)),
        ];
        let step = |metric, greater: Option<bool>| {
            let recipe = Recipe { metric_for_best_model: metric, greater_is_better: greater, ..Recipe::default() };
            recipe.best_by().best(&reports).map(|best| best.step)
        };
        assert_eq!(step(Metric::Loss, None), Some(25));
        assert_eq!(step(Metric::Loss, Some(true)), Some(15));
        assert_eq!(step(Metric::ExactMatch, None), Some(10));
        assert_eq!(step(Metric::ExactMatch, Some(false)), Some(25));
        assert_eq!(step(Metric::MeanIou, None), None);
    }
}
