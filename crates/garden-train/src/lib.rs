//! Fine-tuning: a recipe becomes a plan, steps, evaluations, checkpoints and an adapter.
//!
//! Nothing here knows that it is watched, prints, or starts processes: whoever trains is told through an [`Observer`].

mod plan;
mod recipe;

pub use plan::{
    Advice, Combination, Exactness, Fit, LargestRows, LoaderChange, MemoryPlan, Need, Place, PlanInput, PlanLine,
    Requirements, RowShape, RowShapes, Saving, advise, loader_changes,
};
pub use recipe::{DeviceChoice, FIELDS, Field, Optim, Recipe, RecipeError, Recompute, Scheduler};
