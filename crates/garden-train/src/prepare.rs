//! From a recipe to a job: what has to be known before the first step is found out, and what cannot work is refused.

use std::path::{Path, PathBuf};

use garden_data::{
    Batches, COMMON_SHARE, Dataset, ExampleSettings, KeyCounter, Level, MAX_PIXELS, Problem, Processor, SelectiveLoss,
    Survey, SurveySettings, model_folder,
};
use garden_model::{Config, GeneratorLimits};

use crate::error::Error;
use crate::job::{Job, Rows};
use crate::recipe::Recipe;

/// Answers that an evaluation generates at once: each weight is read once for all of them.
const ANSWERS_AT_ONCE: usize = 4;
/// What the rows of an evaluation are chosen with, besides the seed: not the order of training.
const HELD_OUT: u64 = 0x6865_6c64_206f_7574;

/// A job, and what was found in its datasets.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// The job.
    pub job: Job,
    /// What the model is.
    pub config: Config,
    /// Rows to learn from and, with `eval-split`, to evaluate on.
    pub train: Survey,
    /// Rows of a dataset of its own to evaluate on.
    pub eval: Option<Survey>,
    /// Bytes of the index of rows.
    pub index_bytes: usize,
}

impl Prepared {
    /// Looks at the model's files and at every row. `progress` is told how many rows of how many are done.
    pub fn of(recipe: Recipe, progress: &mut dyn FnMut(usize, usize)) -> Result<Prepared, Error> {
        let base = model_folder(&recipe.base_model)?;
        let config = Config::read(&base.join("config.json"))?;
        let mut processor = Processor::open(&base)?;
        recipe.bound_pixels(&mut processor);
        if processor.images.min_pixels > processor.images.max_pixels {
            let (least, most) = (processor.images.min_pixels, processor.images.max_pixels);
            return Err(Error::Empty(format!("`min-pixels` is {least}, more than `max-pixels` ({most})")));
        }
        let looker = Looker { recipe: &recipe, config: &config, processor: &processor };
        let dataset = Dataset::open_split(&recipe.dataset, "train")?;
        let train = looker.look(&dataset, recipe.batch_size, progress)?;
        let mut index_bytes = dataset.index_bytes();
        let mut job = Job {
            base,
            train: Rows {
                path: recipe.dataset.clone(),
                split: "train".into(),
                rows: train.rows,
                left_out: train.left_out.clone(),
            },
            eval: None,
            limits: train.limits,
            answers: None,
            common_keys: Vec::new(),
            recipe: recipe.clone(),
        };
        let mut eval = None;
        if let Some(path) = &recipe.eval_dataset {
            let (split, dataset) = open_eval(path)?;
            let batch_size = recipe.eval_batch_size.unwrap_or(recipe.batch_size).min(recipe.batch_size);
            let survey = looker.look(&dataset, batch_size, progress)?;
            index_bytes += dataset.index_bytes();
            job.limits = job.limits.max(survey.limits);
            let left_out = survey.left_out.clone();
            job.eval = Some(Rows { path: path.clone(), split, rows: survey.rows, left_out });
            eval = Some(survey);
        } else if let Some(share) = recipe.eval_split.filter(|share| *share > 0.0) {
            let held_out = hold_out(&job.train, share, recipe.seed)?;
            (job.train.left_out, job.eval) = parted(&job.train, held_out);
        }
        if job.eval.is_some() && recipe.eval_answers > 0 {
            let longest = eval.as_ref().unwrap_or(&train).tokens.most() as usize;
            job.answers = Some(GeneratorLimits {
                rows: recipe.eval_answers.min(ANSWERS_AT_ONCE),
                context: longest + recipe.max_new_tokens,
                patches: job.limits.patches,
            });
        }
        if recipe.selective_loss == Level::Aggressive {
            job.common_keys = common_keys(&dataset)?;
        }
        Ok(Prepared { job, config, train, eval, index_bytes })
    }
}

struct Looker<'a> {
    recipe: &'a Recipe,
    config: &'a Config,
    processor: &'a Processor,
}

impl Looker<'_> {
    fn look(
        &self,
        dataset: &Dataset,
        batch_size: usize,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Survey, Error> {
        // Evaluations, and epochs before the first one that is selective, ask for all tokens of answers.
        let example = ExampleSettings { selective: SelectiveLoss::default(), ..self.recipe.example(&[]) };
        let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
        let settings = SurveySettings { example: &example, batch_size, threads };
        let rows = dataset.len();
        let survey = Survey::of(dataset, self.processor, self.config, settings, |done| progress(done, rows));
        let usable = survey.rows - survey.left_out.len();
        let first = survey.problems.first();
        match first {
            Some(problem) if self.recipe.on_bad_row == garden_data::BadRow::Stop => {
                Err(Error::BadRows { count: survey.problem_count, rows, first: words(problem) })
            }
            _ if usable == 0 => {
                let why = first.map_or_else(|| "all are too long".to_string(), words);
                Err(Error::Empty(format!("none of {rows} rows can be trained: {why}")))
            }
            _ => Ok(survey),
        }
    }
}

/// A problem with its place.
fn words(problem: &Problem) -> String {
    let field = if problem.field.is_empty() { String::new() } else { format!("field `{}` ", problem.field) };
    format!("`{}`: {field}{}", problem.place, problem.problem)
}

/// The split of a dataset that is meant for evaluation: `validation`, else `test`, else the only one.
fn open_eval(path: &Path) -> Result<(String, Dataset), Error> {
    for split in ["validation", "test"] {
        if let Ok(dataset) = Dataset::open_split(path, split) {
            return Ok((split.to_string(), dataset));
        }
    }
    Ok(("train".to_string(), Dataset::open_split(path, "train")?))
}

/// Rows that are taken out of training, ascending.
fn hold_out(rows: &Rows, share: f64, seed: u64) -> Result<Vec<u32>, Error> {
    let count = ((share * rows.used() as f64).round() as usize).max(1);
    if count >= rows.used() {
        let problem = format!("`eval-split` {share} of {} rows leaves none to learn from", rows.used());
        return Err(Error::Empty(problem));
    }
    let shuffled = Batches::new(rows.rows, rows.left_out.as_slice().into(), 1, Some(seed ^ HELD_OUT));
    let mut chosen: Vec<u32> = (0..count).flat_map(|number| shuffled.rows(number)).map(|row| row as u32).collect();
    chosen.sort_unstable();
    Ok(chosen)
}

/// What is left out of training, and the rows of an evaluation.
fn parted(rows: &Rows, held_out: Vec<u32>) -> (Vec<u32>, Option<Rows>) {
    let is_held = |row: &u32| held_out.binary_search(row).is_ok();
    let others = (0..rows.rows as u32).filter(|row| !is_held(row)).collect();
    let eval = Rows { left_out: others, ..rows.clone() };
    let mut left_out: Vec<u32> = rows.left_out.iter().chain(&held_out).copied().collect();
    left_out.sort_unstable();
    (left_out, Some(eval))
}

/// Keys that most answers have.
fn common_keys(dataset: &Dataset) -> Result<Vec<String>, Error> {
    let mut keys = KeyCounter::default();
    for row in 0..dataset.len() {
        if let Ok(outline) = dataset.outline(row, MAX_PIXELS) {
            keys.add_answers(&outline.messages);
        }
    }
    let mut common: Vec<String> = keys.common(COMMON_SHARE).into_iter().collect();
    common.sort_unstable();
    Ok(common)
}

/// Whether a run can write its results; the folder is made.
pub fn check_output(folder: &Path) -> Result<(), Error> {
    std::fs::create_dir_all(folder).map_err(|error| Error::file(folder, error))?;
    let probe: PathBuf = folder.join(format!(".write-test-{}", std::process::id()));
    let written = std::fs::write(&probe, b"x");
    drop(std::fs::remove_file(&probe));
    written.map_err(|error| Error::file(folder, error))
}
