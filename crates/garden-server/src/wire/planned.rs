//! The answer about a job that is not queued.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::Plan;
use crate::job::{Findings, JobError, RowProblem};

/// What a job would need, or why it cannot run.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct PlanAnswer {
    /// Whether its memory fits; null where the plan could not be made.
    fits: Option<bool>,
    error: Option<JobError>,
    /// Rows that cannot be used.
    problems: Vec<RowProblem>,
    /// What a person should know.
    notes: Vec<String>,
    /// Rows that would be trained on.
    rows: Option<usize>,
    /// Optimizer steps.
    steps: Option<usize>,
    /// The answer in a sentence.
    headline: Option<String>,
    #[schemars(with = "Option<Plan>")]
    plan: Option<Value>,
}

impl From<Findings> for PlanAnswer {
    fn from(found: Findings) -> PlanAnswer {
        let Findings { error, problems, notes, plan, rows, steps } = found;
        let fits = plan.as_ref().map(|plan| plan.fits);
        let (headline, plan) = plan.map(|plan| (plan.headline, plan.told)).unzip();
        PlanAnswer { fits, error, problems, notes, rows, steps, headline, plan }
    }
}
