//! Jobs.

use garden_train::Recipe;
use schemars::JsonSchema;
use serde::Serialize;

use super::{Local, Metadata, OrAuto, Time, True, constant};
use crate::follow::Progress;
use crate::job::{Hold, JobError, JobRecord, RowProblem, Status, Wish};

constant!(JobObject = "fine_tuning.job");
constant!(SupervisedWord = "supervised");

/// A job in OpenAI's shape, and what that has no room for under `model_garden`.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Job {
    pub id: String,
    object: JobObject,
    created_at: Time,
    /// As it was asked for.
    model: String,
    /// A paused job is `queued` here; see `model_garden.status`.
    status: JobStatus,
    organization_id: Local,
    training_file: String,
    validation_file: Option<String>,
    seed: u64,
    metadata: Option<Metadata>,
    /// None are supported.
    #[schemars(length(max = 0))]
    integrations: Vec<String>,
    hyperparameters: Hyperparameters,
    method: Method,
    /// Why it failed.
    error: Option<JobError>,
    finished_at: Option<Time>,
    /// The name of its result, once it has succeeded.
    fine_tuned_model: Option<String>,
    /// Tokens that were trained on, once it is over.
    trained_tokens: Option<u64>,
    /// The file with the metrics of each step.
    result_files: Vec<String>,
    /// From the time of the last steps, without evaluations.
    estimated_finish: Option<Time>,
    user_provided_suffix: Option<String>,
    model_garden: JobExtension,
}

#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum JobStatus {
    ValidatingFiles,
    Queued,
    Running,
    Succeeded,
    Failed,
    Cancelled,
}

impl From<Status> for JobStatus {
    fn from(status: Status) -> JobStatus {
        match status {
            Status::ValidatingFiles => JobStatus::ValidatingFiles,
            // What their clients know comes closest.
            Status::Queued | Status::Paused => JobStatus::Queued,
            Status::Running => JobStatus::Running,
            Status::Succeeded => JobStatus::Succeeded,
            Status::Failed => JobStatus::Failed,
            Status::Cancelled => JobStatus::Cancelled,
        }
    }
}

/// As they were asked for until the files are checked, then as they are.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
struct Hyperparameters {
    /// Passes over the rows.
    n_epochs: OrAuto<u64>,
    /// Rows per optimizer step.
    batch_size: OrAuto<u64>,
    /// Times our usual learning rate.
    learning_rate_multiplier: OrAuto<f64>,
}

impl Hyperparameters {
    fn of(job: &JobRecord) -> Hyperparameters {
        // What was left to us is shown once it is decided.
        match job.recipe().filter(|_| job.status != Status::ValidatingFiles) {
            Some(recipe) => {
                let rows = recipe.batch_size * recipe.gradient_accumulation;
                Hyperparameters {
                    n_epochs: (recipe.epochs.fract() == 0.0).then_some(recipe.epochs as u64).into(),
                    batch_size: recipe.batch_tokens.is_none().then_some(rows as u64).into(),
                    learning_rate_multiplier: OrAuto::Is(recipe.learning_rate / Recipe::default().learning_rate),
                }
            }
            None => Hyperparameters {
                n_epochs: job.asked.n_epochs.map(u64::from).into(),
                batch_size: job.asked.batch_size.map(u64::from).into(),
                learning_rate_multiplier: job.asked.learning_rate_multiplier.into(),
            },
        }
    }
}

/// How the model is trained.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
struct Method {
    r#type: SupervisedWord,
    supervised: Supervised,
}

/// Settings of the method.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
struct Supervised {
    hyperparameters: Hyperparameters,
}

/// What OpenAI's job has no room for.
#[derive(Clone, Debug, Serialize, JsonSchema)]
struct JobExtension {
    status: Status,
    /// What a job that runs was asked for and has not done yet.
    wish: Wish,
    /// What it waits for besides its turn.
    waits_for: Option<Hold>,
    /// More comes first.
    priority: i64,
    base_model: String,
    /// When it first ran.
    started_at: Option<Time>,
    step: Option<u64>,
    total_steps: Option<u64>,
    /// Host memory now.
    memory_bytes: Option<u64>,
    /// Host memory by plan.
    memory_planned_bytes: Option<u64>,
    /// The judge's word about its memory so far.
    verdict: Option<String>,
    /// The same in a sentence.
    summary: Option<String>,
    /// What a person should know; null until its files are checked.
    notes: Option<Vec<String>>,
    /// Rows that cannot be used, the first of them; null until its files are checked.
    problems: Option<Vec<RowProblem>>,
}

impl Job {
    pub fn of(job: &JobRecord, now: Progress) -> Job {
        let hyperparameters = Hyperparameters::of(job);
        Job {
            id: job.id().to_string(),
            object: JobObject,
            created_at: Time(job.created_at),
            model: job.model.clone(),
            status: job.status.into(),
            organization_id: Local,
            training_file: job.training_file.clone(),
            validation_file: job.validation_file.clone(),
            seed: job.seed,
            metadata: job.metadata.clone().map(Metadata),
            integrations: Vec::new(),
            hyperparameters,
            method: Method { r#type: SupervisedWord, supervised: Supervised { hyperparameters } },
            error: job.error.clone(),
            finished_at: job.finished_at.map(Time),
            fine_tuned_model: job.result_model.clone().filter(|_| job.status == Status::Succeeded),
            trained_tokens: job.trained_tokens.filter(|_| job.status.is_final()),
            result_files: job.result_file.iter().cloned().collect(),
            estimated_finish: now.estimated_finish.map(Time),
            user_provided_suffix: job.suffix.clone(),
            model_garden: JobExtension::of(job, now),
        }
    }
}

impl JobExtension {
    fn of(job: &JobRecord, now: Progress) -> JobExtension {
        let found = job.findings.as_ref();
        JobExtension {
            status: job.status,
            wish: job.wish,
            waits_for: job.hold.filter(|_| job.status == Status::Queued),
            priority: job.priority,
            base_model: job.base.clone(),
            started_at: job.started_at.map(Time),
            step: now.step,
            total_steps: now.total_steps,
            memory_bytes: now.memory_bytes,
            memory_planned_bytes: found.and_then(|found| found.plan.as_ref()).map(|plan| plan.host_bytes),
            verdict: now.verdict,
            summary: now.summary,
            notes: found.map(|found| found.notes.clone()),
            problems: found.map(|found| found.problems.clone()),
        }
    }
}

/// A job that is deleted.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct DeletedJob {
    id: String,
    object: JobObject,
    deleted: True,
}

impl DeletedJob {
    pub fn of(id: String) -> DeletedJob {
        DeletedJob { id, object: JobObject, deleted: True }
    }
}
