//! What would make a plan smaller: each change is planned again, so its figure is no guess.
//!
//! Changes are ordered by how little they change what is learnt. The ones that are enough are the first so many of that order, without those
//! that turn out not to be needed.

use garden_memory::Bytes;
use serde::Serialize;

use super::{AvailableMemory, MemoryPlan};
use crate::job::RANK;
use crate::recipe::{Optim, Recipe, Recompute};

/// Ranks below this are not advised.
const SMALLEST_RANK: usize = 4;
/// Pictures are not made smaller than this: 256 tokens.
const FEWEST_PIXELS: u64 = 256 * 28 * 28;
/// A prefetch that leaves one micro-batch waiting, whatever its size.
const SMALLEST_PREFETCH: Bytes = Bytes(1 << 20);
/// A change that saves less is not worth a line: one part in so many.
const WORTH: u64 = 1000;

/// A change that makes a plan smaller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Saving {
    /// Settings of the recipe, by name, with what they would be.
    pub settings: Vec<(String, String)>,
    /// What it does to the run.
    pub effect: &'static str,
    /// What it saves when nothing else is changed: of the GPU's memory where that is too small, else of the host's.
    pub saves_bytes: u64,
}

/// Changes that are enough together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Combination {
    /// Settings of the recipe, by name, with what they would be.
    pub settings: Vec<(String, String)>,
    /// How many changes that is.
    pub changes: usize,
    /// What is needed with them, of the same memory.
    pub total_bytes: u64,
    /// Whether everything fits then.
    pub fits: bool,
}

/// What would help where a plan does not fit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// Changes one by one, those first that change least of what is learnt.
    pub savings: Vec<Saving>,
    /// The cheapest that are enough together; where none are, all of them.
    pub combination: Option<Combination>,
}

/// What a change of the loader costs and gains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LoaderChange {
    /// The setting, with what it would be.
    pub setting: (String, String),
    /// Memory that it costs.
    pub costs_bytes: u64,
    /// What it gains.
    pub gains: &'static str,
}

/// One change, as what it makes of a recipe.
struct Change {
    effect: &'static str,
    settings: Vec<(&'static str, String)>,
    apply: Box<dyn Fn(&mut Recipe)>,
}

impl Change {
    fn new(
        effect: &'static str,
        settings: Vec<(&'static str, String)>,
        apply: impl Fn(&mut Recipe) + 'static,
    ) -> Change {
        Change { effect, settings, apply: Box::new(apply) }
    }

    fn named(&self) -> Vec<(String, String)> {
        self.settings.iter().map(|(name, value)| (name.to_string(), value.clone())).collect()
    }
}

/// What makes a plan smaller where it does not fit, and which of it is enough. `plan` plans another recipe for the same rows; `largest_picture` has
/// the pixels of the largest picture after it was resized, where pictures are most of a row.
pub fn advise<E>(
    recipe: &Recipe,
    largest_picture: Option<u64>,
    available: AvailableMemory,
    mut plan: impl FnMut(&Recipe) -> Result<MemoryPlan, E>,
) -> Result<Advice, E> {
    let first = plan(recipe)?;
    let is_of_gpu = first.fits(available).gpu.is_some_and(|gpu| !gpu.fits);
    let size = move |plan: &MemoryPlan| if is_of_gpu { plan.device_bytes } else { plan.total_bytes };
    let now = size(&first);
    let mut savings = Vec::new();
    let mut changes = Vec::new();
    for change in changes_of(recipe, largest_picture) {
        let mut other = recipe.clone();
        (change.apply)(&mut other);
        // What cannot be planned, such as a budget of tokens below the longest row, is no way out.
        let Ok(changed) = plan(&other) else { continue };
        let saves_bytes = now.saturating_sub(size(&changed));
        if saves_bytes > now / WORTH {
            savings.push(Saving { settings: change.named(), effect: change.effect, saves_bytes });
            changes.push(change);
        }
    }
    // What is needed with some of them, and whether that fits.
    let mut total = |chosen: &[&Change]| -> Result<(u64, bool), E> {
        let mut other = recipe.clone();
        chosen.iter().for_each(|change| (change.apply)(&mut other));
        let plan = plan(&other)?;
        Ok((size(&plan), plan.fits(available).all()))
    };
    let mut chosen: Vec<&Change> = Vec::new();
    let (mut total_bytes, mut fits) = (now, false);
    for change in &changes {
        chosen.push(change);
        (total_bytes, fits) = total(&chosen)?;
        if fits {
            break;
        }
    }
    if fits {
        // Those that save least are tried first, so that few and telling ones stay.
        let mut order: Vec<usize> = (0..chosen.len()).collect();
        order.sort_by_key(|index| savings[*index].saves_bytes);
        let all = chosen.clone();
        let mut is_kept = vec![true; all.len()];
        for index in order {
            is_kept[index] = false;
            let fewer: Vec<&Change> = (0..all.len()).filter(|index| is_kept[*index]).map(|index| all[index]).collect();
            let (needed, is_enough) = total(&fewer)?;
            if is_enough {
                (chosen, total_bytes) = (fewer, needed);
            } else {
                is_kept[index] = true;
            }
        }
    }
    let settings = chosen.iter().flat_map(|change| change.named()).collect();
    let combination =
        (!chosen.is_empty()).then_some(Combination { settings, changes: chosen.len(), total_bytes, fits });
    Ok(Advice { savings, combination })
}

/// Everything that could be changed, the least harmful first.
fn changes_of(recipe: &Recipe, largest_picture: Option<u64>) -> Vec<Change> {
    let mut changes = Vec::new();
    if recipe.recompute == Recompute::None {
        let effect = "same result; a third more work in each step";
        let settings = vec![("recompute", "layer".to_string())];
        changes.push(Change::new(effect, settings, |recipe| recipe.recompute = Recompute::Layer));
    }
    if recipe.prefetch > SMALLEST_PREFETCH {
        let effect = "same result; steps wait for rows that are slow to read";
        let settings = vec![("prefetch", "1MB".to_string())];
        changes.push(Change::new(effect, settings, |recipe| recipe.prefetch = SMALLEST_PREFETCH));
    }
    if recipe.loader_threads > 1 {
        let effect = "same result; steps wait if images take longer to decode than to train on";
        let settings = vec![("loader-threads", "1".to_string())];
        changes.push(Change::new(effect, settings, |recipe| recipe.loader_threads = 1));
    }
    if let Some(tokens) = recipe.batch_tokens {
        let accumulation = recipe.gradient_accumulation * 2;
        let effect = "about the same rows in each step; the loss is averaged over fewer rows at a time";
        let settings =
            vec![("batch-tokens", (tokens / 2).to_string()), ("gradient-accumulation", accumulation.to_string())];
        changes.push(Change::new(effect, settings, move |recipe| {
            (recipe.batch_tokens, recipe.gradient_accumulation) = (Some(tokens / 2), accumulation);
        }));
    } else if recipe.batch_size > 1 {
        let accumulation = recipe.gradient_accumulation * recipe.batch_size;
        let effect = "the same rows in each step; the loss is averaged row by row instead of over several rows";
        let settings = vec![("batch-size", "1".to_string()), ("gradient-accumulation", accumulation.to_string())];
        changes.push(Change::new(effect, settings, move |recipe| {
            (recipe.batch_size, recipe.gradient_accumulation) = (1, accumulation);
        }));
    }
    if recipe.optim == Optim::Adamw {
        let effect = "moments are rounded to 8 bits";
        let settings = vec![("optim", "adamw-8bit".to_string())];
        changes.push(Change::new(effect, settings, |recipe| recipe.optim = Optim::Adamw8Bit));
    }
    if !recipe.full && !recipe.load_in_4bit {
        let effect = "the decoder's weights are rounded to 4 bits";
        let settings = vec![("load-in-4bit", "true".to_string())];
        changes.push(Change::new(effect, settings, |recipe| recipe.load_in_4bit = true));
    }
    if let Some(half) = largest_picture.map(|pixels| pixels / 2).filter(|half| *half >= FEWEST_PIXELS) {
        let effect = "the model sees less of large pictures";
        let settings = vec![("max-pixels", half.to_string())];
        changes.push(Change::new(effect, settings, move |recipe| recipe.max_pixels = Some(half)));
    }
    let rank = recipe.lora_r.unwrap_or(RANK) / 2;
    if !recipe.full && recipe.adapter.is_none() && rank >= SMALLEST_RANK {
        let effect = "the adapter can learn less";
        let settings = vec![("lora-r", rank.to_string())];
        changes.push(Change::new(effect, settings, move |recipe| recipe.lora_r = Some(rank)));
    }
    if recipe.full {
        let effect = "trains an adapter instead of all weights";
        let settings = vec![("full", "false".to_string())];
        changes.push(Change::new(effect, settings, |recipe| recipe.full = false));
        let effect = "and the decoder's weights are rounded to 4 bits";
        let settings = vec![("full", "false".to_string()), ("load-in-4bit", "true".to_string())];
        changes.push(Change::new(effect, settings, |recipe| (recipe.full, recipe.load_in_4bit) = (false, true)));
    }
    changes
}

/// What one more loader thread and twice the prefetch cost and gain.
pub fn loader_changes<E>(
    recipe: &Recipe,
    mut plan: impl FnMut(&Recipe) -> Result<MemoryPlan, E>,
) -> Result<Vec<LoaderChange>, E> {
    let now = plan(recipe)?.total_bytes;
    let threads = recipe.loader_threads + 1;
    let prefetch = Bytes(recipe.prefetch.0 * 2);
    let with_thread = plan(&Recipe { loader_threads: threads, ..recipe.clone() })?.total_bytes;
    let with_prefetch = plan(&Recipe { prefetch, ..recipe.clone() })?.total_bytes;
    Ok(vec![
        LoaderChange {
            setting: ("loader-threads".to_string(), threads.to_string()),
            costs_bytes: with_thread.saturating_sub(now),
            gains: "reads and decodes one more row at a time: shorter steps, but only if they wait for rows",
        },
        LoaderChange {
            setting: ("prefetch".to_string(), crate::recipe::written(prefetch)),
            costs_bytes: with_prefetch.saturating_sub(now),
            gains: "keeps more micro-batches ready: evens out slow rows, but does not help if rows are slower than steps on average",
        },
    ])
}
