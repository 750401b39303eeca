//! A job: what is asked for, what became of it, and the folder by which the server and the process that does the work know of each other.
//!
//! ```text
//! jobs/ID/order.json          what is to be done; written before the job is known to anybody
//! jobs/ID/rows/               the rows, second names of the uploaded files: deleting those does not take them away; pictures that rows name are looked for here only.
//!                             Gone when the job is over
//! jobs/ID/adapter/            the result that it starts from, second names as well
//! jobs/ID/models/             links to the base model, and to the folders of datasets: what works on a job does so in its folder, by places from there on, so that nothing
//! jobs/ID/datasets/           that it writes says where the server has its things. Made anew for each start
//! jobs/ID/findings.json       what a look at model, rows and memory found
//! jobs/ID/supervisor/         lock and process id of whoever works on it
//! jobs/ID/job.log             what that prints
//! jobs/ID/out/                the run's own folder, as `train-vision` writes it
//! jobs/ID/outcome.json        how the last start ended; not there while one works
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use garden_train::Recipe;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Where a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Its files are looked at.
    ValidatingFiles,
    /// It waits for its turn.
    Queued,
    /// It is worked on.
    Running,
    /// Somebody has stopped it, and may let it go on.
    Paused,
    /// It has a result.
    Succeeded,
    /// It cannot have one.
    Failed,
    /// Somebody has ended it.
    Cancelled,
}

impl Status {
    /// All of them.
    pub const ALL: [Status; 7] = [
        Status::ValidatingFiles,
        Status::Queued,
        Status::Running,
        Status::Paused,
        Status::Succeeded,
        Status::Failed,
        Status::Cancelled,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Status::ValidatingFiles => "validating_files",
            Status::Queued => "queued",
            Status::Running => "running",
            Status::Paused => "paused",
            Status::Succeeded => "succeeded",
            Status::Failed => "failed",
            Status::Cancelled => "cancelled",
        }
    }

    /// Whether nothing follows.
    pub fn is_final(self) -> bool {
        matches!(self, Status::Succeeded | Status::Failed | Status::Cancelled)
    }
}

/// What somebody wants of a job that is worked on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Wish {
    /// That it goes on.
    #[default]
    GoOn,
    /// That it saves and waits.
    Pause,
    /// That it saves and ends.
    Cancel,
    /// That it ends where it is, and what it has learnt is the result.
    Finish,
}

/// What a queued job waits for, besides its turn: free memory, which other programs use; space on the server's disk; room in the quota; or its base model or
/// dataset, which is not among the server's.
#[allow(
    missing_docs,
    reason = "the type's own comment describes them: it is in the API's description, where each would be a schema of its own"
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Hold {
    Memory,
    Disk,
    Quota,
    Files,
}

/// What is to be done.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Work {
    /// A model is fine-tuned.
    Training {
        /// All settings. In the store, where things are is told by names and from the job's folder on; each start has the places of that moment.
        recipe: Box<Recipe>,
    },
    /// Any program runs under the guard.
    Command {
        /// The program and its arguments.
        command: Vec<String>,
        /// Memory that it may use.
        memory_limit: Option<u64>,
        /// Where its checkpoints are, as the program says it.
        checkpoint_dir: Option<PathBuf>,
    },
}

/// What is to be done, for whom.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JobOrder {
    /// The job's name.
    pub id: String,
    /// The work.
    pub work: Work,
    /// Memory that all jobs together may use: what does not fit into that will never run.
    #[serde(default)]
    pub memory: Option<u64>,
    /// Whether pictures that rows name by address are fetched, and from which addresses of a private network.
    #[serde(default)]
    pub fetch: Option<Vec<IpAddr>>,
}

/// What is wrong with a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JobError {
    /// What a program can tell it by.
    pub code: String,
    /// What is wrong, in words.
    pub message: String,
    /// The parameter that is wrong, where it is one.
    pub param: Option<String>,
}

/// A row that cannot be used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RowProblem {
    /// `training_file` or `validation_file`.
    #[schemars(extend("enum" = ["training_file", "validation_file"]))]
    pub param: String,
    /// The row, from 1.
    pub row: usize,
    /// The line and file.
    pub place: String,
    /// The field; empty: the whole row.
    pub field: String,
    /// What is wrong.
    pub problem: String,
    /// What would help, if that is known.
    pub hint: Option<String>,
}

/// The memory that a job will need.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlannedMemory {
    /// Whether it fits into what this server may use.
    pub fits: bool,
    /// Bytes of host memory.
    pub host_bytes: u64,
    /// Bytes of a GPU's memory, where one computes.
    pub gpu_bytes: Option<u64>,
    /// Bytes of the disk for its checkpoints and its result, where that was planned.
    #[serde(default)]
    pub disk_bytes: Option<u64>,
    /// The answer in a sentence.
    pub headline: String,
    /// The plan with everything that is said about it, as `plan --format json` has it.
    pub told: Value,
}

/// What a look at a job found before it starts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Findings {
    /// Why it cannot run.
    pub error: Option<JobError>,
    /// Rows that cannot be used.
    pub problems: Vec<RowProblem>,
    /// What a person should know.
    pub notes: Vec<String>,
    /// Memory.
    pub plan: Option<PlannedMemory>,
    /// Rows that are trained on.
    pub rows: Option<usize>,
    /// Optimizer steps.
    pub steps: Option<usize>,
}

/// How one start of the work ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "end", rename_all = "snake_case")]
pub enum JobOutcome {
    /// There is a result.
    Done {
        /// Tokens that were trained on.
        tokens: Option<u64>,
        /// In a sentence.
        words: String,
    },
    /// Somebody asked for the end; it can go on.
    Stopped {
        /// The step of the newest checkpoint.
        step: Option<u64>,
        /// In a sentence.
        words: String,
    },
    /// There is less free memory now than the plan needs.
    NoRoom {
        /// In a sentence.
        words: String,
    },
    /// The disk is full; everything up to the newest checkpoint is intact.
    NoSpace {
        /// In a sentence.
        words: String,
    },
    /// The quota is used up; everything up to the newest checkpoint is intact.
    NoQuota {
        /// In a sentence.
        words: String,
    },
    /// It cannot go on.
    Failed {
        /// Why.
        error: JobError,
    },
}

impl JobOutcome {
    /// Whether there is nothing more to do.
    pub fn is_final(&self) -> bool {
        matches!(self, JobOutcome::Done { .. } | JobOutcome::Failed { .. })
    }
}

/// A hyper-parameter as it was asked for: nothing or `auto` leaves it to us.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Hyperparameters {
    /// Passes over the rows.
    pub n_epochs: Option<u32>,
    /// Rows per optimizer step.
    pub batch_size: Option<u32>,
    /// Times our usual learning rate.
    pub learning_rate_multiplier: Option<f64>,
}

/// That the process of a job was asked to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopRequest {
    /// The process.
    pub pid: u32,
    /// What the server lacked, if that was why. Otherwise somebody wished for it.
    pub hold: Option<Hold>,
}

/// A job as the store has it. Records of earlier versions lack what those did not know: every field but the first two has a default.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JobRecord {
    /// The work, and the job's name.
    pub order: JobOrder,
    /// Where it is.
    pub status: Status,
    /// When it was made, in seconds since 1970.
    #[serde(default)]
    pub created_at: i64,
    /// What somebody wants of it.
    #[serde(default)]
    pub wish: Wish,
    /// Whether it is ended without waiting for it: somebody asked twice.
    #[serde(default)]
    pub is_forced: bool,
    /// The client that it belongs to: clients take turns.
    #[serde(default)]
    pub owner: String,
    /// Those with more come first.
    #[serde(default)]
    pub priority: i64,
    /// The model, as it was asked for.
    #[serde(default)]
    pub model: String,
    /// The name of that model here.
    #[serde(default)]
    pub base: String,
    /// A part of the result's name.
    #[serde(default)]
    pub suffix: Option<String>,
    /// What the order of rows comes from.
    #[serde(default)]
    pub seed: u64,
    /// As asked for.
    #[serde(default)]
    pub asked: Hyperparameters,
    /// The file of rows.
    #[serde(default)]
    pub training_file: String,
    /// The file of rows for evaluations.
    #[serde(default)]
    pub validation_file: Option<String>,
    /// What the client has attached to it.
    #[serde(default)]
    pub metadata: Option<BTreeMap<String, String>>,
    /// What was found before its start.
    #[serde(default)]
    pub findings: Option<Findings>,
    /// When it first ran.
    #[serde(default)]
    pub started_at: Option<i64>,
    /// When it ended.
    #[serde(default)]
    pub finished_at: Option<i64>,
    /// Why it failed.
    #[serde(default)]
    pub error: Option<JobError>,
    /// Tokens that were trained on.
    #[serde(default)]
    pub trained_tokens: Option<u64>,
    /// The name of its result.
    #[serde(default)]
    pub result_model: Option<String>,
    /// Whether the result was deleted.
    #[serde(default)]
    pub is_result_deleted: bool,
    /// Whether all but the result was deleted, since its time was over.
    #[serde(default)]
    pub is_trimmed: bool,
    /// The file with the metrics of each step.
    #[serde(default)]
    pub result_file: Option<String>,
    /// Starts since the last one that brought a newer checkpoint, and that checkpoint.
    #[serde(default)]
    pub starts: u32,
    /// See `starts`.
    #[serde(default)]
    pub newest_step: Option<u64>,
    /// Not before this moment it is started again.
    #[serde(default)]
    pub not_before: i64,
    /// What it waits for.
    #[serde(default)]
    pub hold: Option<Hold>,
    /// Whether its process was asked to end: a server that is started meanwhile neither asks again, which would be an order to end at once, nor takes the end for
    /// somebody else's doing.
    #[serde(default)]
    pub stop: Option<StopRequest>,
}

impl JobRecord {
    /// A job that nothing has happened to.
    pub fn new(order: JobOrder, created_at: i64, status: Status, model: String) -> JobRecord {
        JobRecord {
            order,
            status,
            created_at,
            wish: Wish::GoOn,
            is_forced: false,
            owner: String::new(),
            priority: 0,
            model,
            base: String::new(),
            suffix: None,
            seed: 0,
            asked: Hyperparameters::default(),
            training_file: String::new(),
            validation_file: None,
            metadata: None,
            findings: None,
            started_at: None,
            finished_at: None,
            error: None,
            trained_tokens: None,
            result_model: None,
            is_result_deleted: false,
            is_trimmed: false,
            result_file: None,
            starts: 0,
            newest_step: None,
            not_before: 0,
            hold: None,
            stop: None,
        }
    }

    /// The job's name.
    pub fn id(&self) -> &str {
        &self.order.id
    }

    /// The recipe, where a model is trained.
    pub fn recipe(&self) -> Option<&Recipe> {
        match &self.order.work {
            Work::Training { recipe } => Some(recipe),
            Work::Command { .. } => None,
        }
    }
}

/// The rows in the folder of a job, as its order names them.
pub const ROWS: &str = "rows";
/// What it starts from.
pub const ADAPTER: &str = "adapter";
/// The run's own folder.
pub const OUTPUT: &str = "out";
/// Links to base models.
pub const MODELS: &str = "models";
/// Links to folders of datasets.
pub const DATASETS: &str = "datasets";

/// The folder of a job.
#[derive(Clone, Debug)]
pub struct JobFolder(pub PathBuf);

impl JobFolder {
    /// The rows, by the parameter that names them.
    pub fn rows(&self, param: &str, extension: &str) -> PathBuf {
        self.all_rows().join(format!("{param}.{extension}"))
    }

    /// The rows of both files, and pictures that they name.
    pub fn all_rows(&self) -> PathBuf {
        self.0.join(ROWS)
    }

    /// What it starts from, if that is a result.
    pub fn adapter(&self) -> PathBuf {
        self.0.join(ADAPTER)
    }

    /// The run's own folder.
    pub fn output(&self) -> PathBuf {
        self.0.join(OUTPUT)
    }

    /// Whoever works on it has this folder.
    pub fn supervisor(&self) -> PathBuf {
        self.0.join("supervisor")
    }

    /// What that prints.
    pub fn log(&self) -> PathBuf {
        self.0.join("job.log")
    }

    /// What the work itself prints: a command has a log of its own.
    pub fn work_log(&self) -> PathBuf {
        let own = self.output().join(garden_run::GUARD).join("output.log");
        if own.exists() { own } else { self.log() }
    }

    /// The trace of its memory.
    pub fn trace(&self) -> PathBuf {
        self.output().join(garden_run::TRACE)
    }

    /// What is to be done.
    pub fn read_order(&self) -> io::Result<JobOrder> {
        read(&self.0.join("order.json"))
    }

    /// Says what is to be done.
    pub fn write_order(&self, order: &JobOrder) -> io::Result<()> {
        write(&self.0.join("order.json"), order)
    }

    /// What a look at it found, if that is done.
    pub fn read_findings(&self) -> Option<Findings> {
        read(&self.0.join("findings.json")).ok()
    }

    /// Says what a look found.
    pub fn write_findings(&self, findings: &Findings) -> io::Result<()> {
        write(&self.0.join("findings.json"), findings)
    }

    /// How the last start ended.
    pub fn read_outcome(&self) -> Option<JobOutcome> {
        read(&self.0.join("outcome.json")).ok()
    }

    /// Says how a start ended.
    pub fn write_outcome(&self, outcome: &JobOutcome) -> io::Result<()> {
        write(&self.0.join("outcome.json"), outcome)
    }

    /// Forgets how the last start ended, before the next one.
    pub fn forget_outcome(&self) -> io::Result<()> {
        match fs::remove_file(self.0.join("outcome.json")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> io::Result<T> {
    // A command may have put anything into its job's folder.
    Ok(serde_json::from_slice(&garden_files::read(path, garden_files::LARGEST_SETTINGS)?)?)
}

fn write(path: &Path, value: &impl Serialize) -> io::Result<()> {
    garden_files::replace(path, format!("{:#}\n", serde_json::to_value(value)?))
}
