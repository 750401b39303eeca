//! Fine-tuning: a recipe becomes a plan, steps, evaluations, checkpoints and an adapter.
//!
//! Nothing here knows that it is watched, prints, or starts processes: whoever trains is told through an [`Observer`].

mod recipe;

pub use recipe::{DeviceChoice, FIELDS, Field, Optim, Recipe, RecipeError, Recompute, Scheduler};
