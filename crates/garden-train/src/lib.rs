//! Fine-tuning: a recipe becomes steps, evaluations, checkpoints and an adapter.
//!
//! Nothing here knows that it is watched, prints, or starts processes: whoever trains is told through an [`Observer`].

mod base;
mod checkpoint;
mod datasets;
mod error;
mod evaluation;
mod gpu;
mod initial;
mod job;
mod lock;
mod log;
mod metric;
mod observer;
mod plan;
mod prepare;
mod recipe;
mod result;
mod run_end;
mod schedule;
mod scoring;
mod tensorboard;
mod trainer;

pub use checkpoint::{Best, LossWindow, Progress, check_resume, has_checkpoints, newest, recover};
pub use datasets::{DatasetRows, RowsOf};
pub use error::{Error, Split};
pub use evaluation::{PREDICTIONS, Prediction, first_and_best, read_predictions};
pub use gpu::{Gpu, GpuLook};
pub use job::{Job, Rows};
pub use lock::RunLock;
pub use log::{EvalLine, LOG, LeftOutLine, LogLine, StepLine, read_log};
pub use metric::{BestBy, Metric, Score};
pub use observer::{EvalReport, Observer, StepReport};
pub use plan::{
    Advice, AvailableMemory, Combination, DRIVER_BYTES, DiskPlan, Exactness, Fit, Fits, LoaderChange, MemoryPlan, Need,
    Place, PlanInput, PlanItem, PlanLine, Requirements, RowShape, Saving, advise, loader_changes, saving_bytes,
};
pub use prepare::{Prepared, check_output};
pub use recipe::{
    DeviceChoice, DeviceKind, FIELDS, Field, IGNORED, MOST_THREADS, OnResume, Optim, Owner, Recipe, RecipeError,
    Recompute, Scheduler, find_field, ignored, is_near,
};
pub use run_end::{End, Proof, RUN_END, Resident, RunEnd};
pub use schedule::Schedule;
pub use scoring::{ComparedField, compare_fields};
pub use tensorboard::EventFile;
pub use trainer::{Finish, train};
