//! From a recipe to a job: what has to be known before the first step is found out, and what cannot work is refused.

use std::path::{Path, PathBuf};

use garden_data::{
    BatchSize, Batches, COMMON_SHARE, Dataset, ExampleSettings, KeyCounter, Level, MAX_PIXELS, Processor,
    SelectiveLoss, Survey, SurveySettings, TemplateFile, model_folder,
};
use garden_model::{Config, EngineLimits, read_adapter, unread_weights};

use crate::base;
use crate::checkpoint;
use crate::error::{Error, Split, words};
use crate::job::{Job, Rows};
use crate::recipe::{DeviceKind, Recipe, RecipeError};

/// Answers that an evaluation generates at once: each weight is read once for all of them.
const ANSWERS_AT_ONCE: usize = 4;
/// What the rows of an evaluation are chosen with, besides the seed: not the order of training.
const HELD_OUT: u64 = 0x6865_6c64_206f_7574;

/// Bytes of a row where micro-batches are cut by tokens: its length, and its place in a group that may be its own.
const TOKEN_INDEX: usize = 12;

/// Fields that nothing reads which are named before a run.
const SHOWN_FIELDS: usize = 10;

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
    /// What a person should know before it begins.
    pub notes: Vec<String>,
}

impl Prepared {
    /// Looks at the model's files and at every row. `progress` is told how many rows of how many are done.
    pub fn of(
        mut recipe: Recipe,
        device: DeviceKind,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Prepared, Error> {
        let base = model_folder(&recipe.base_model)?;
        let config = Config::read(&base.join("config.json"))?;
        check_trainable(&base, &config)?;
        // A run that goes on from a checkpoint does not need it any more.
        let folder = recipe.adapter.clone();
        let first = match &folder {
            Some(folder) if recipe.resume.is_some() && !folder.exists() => {
                checkpoint::first_adapter(&recipe).map(|config| (folder.as_path(), config))
            }
            Some(folder) => {
                let adapter = read_adapter(folder, config.family)?;
                adapter.check_trainable()?;
                Some((folder.as_path(), adapter.config))
            }
            None => None,
        };
        recipe.settle(first, config.family)?;
        let chat_template = recipe.chat_template.as_deref().map(TemplateFile::read).transpose()?;
        let mut processor = Processor::open_with(&base, chat_template.as_ref())?;
        processor.check(&config)?;
        recipe.bound_pixels(&mut processor.images);
        if processor.images.min_pixels > processor.images.max_pixels {
            let (least, most) = (processor.images.min_pixels, processor.images.max_pixels);
            let problem = format!("is {least}, more than `max-pixels` ({most})");
            return Err(Error::Recipe(RecipeError { name: "min-pixels".into(), problem, hint: None }));
        }
        let looker = Looker { recipe: &recipe, processor: &processor };
        recipe.check_model(&config)?;
        let rows = recipe.rows("train");
        let dataset = rows.dataset().map_err(Error::from).map_err(Error::of(Split::Train))?;
        let train = looker.look(&dataset, recipe.batch(), progress).map_err(Error::of(Split::Train))?;
        let mut index_bytes = dataset.index_bytes();
        let mut job = Job {
            family: config.family,
            device,
            base_fingerprint: Some(base::fingerprint(&base, &config)?),
            base,
            chat_template,
            train: rows.surveyed(&dataset, &train),
            eval: None,
            limits: train.limits,
            answers: None,
            common_keys: Vec::new(),
            token_batches: None,
            recipe: recipe.clone(),
        };
        let (mut eval, mut notes) = (None, notes_of(&train, &dataset));
        notes.extend(unread_weights(&job.base));
        if let Some(path) = &recipe.eval_dataset {
            let (rows, dataset) = open_eval(path, &recipe).map_err(Error::of(Split::Eval))?;
            let survey = looker.look(&dataset, recipe.eval_batch(), progress).map_err(Error::of(Split::Eval))?;
            index_bytes += dataset.index_bytes();
            notes.extend(notes_of(&survey, &dataset));
            job.limits = job.limits.max(survey.limits);
            notes.extend(trained_and_evaluated(&recipe, &train, survey.fingerprint));
            job.eval = Some(rows.surveyed(&dataset, &survey));
            eval = Some(survey);
        } else if let Some(share) = recipe.eval_split.filter(|share| *share > 0.0) {
            let held_out = hold_out(&job.train, share, recipe.seed)?;
            (job.train.left_out, job.eval) = parted(&job.train, held_out);
        }
        job.check_mixture().map_err(Error::of(Split::Train))?;
        job.bound_mixture(&train, eval.as_ref());
        if let BatchSize::Tokens(tokens) = recipe.batch() {
            job.cut_by_tokens(tokens, &train, eval.as_ref())?;
            index_bytes +=
                TOKEN_INDEX * (job.train.lengths.len() + job.eval.as_ref().map_or(0, |rows| rows.lengths.len()));
        }
        if job.eval.is_some() && recipe.eval_answers > 0 {
            let longest = eval.as_ref().unwrap_or(&train).tokens.most() as usize;
            job.answers = Some(EngineLimits {
                rows: recipe.eval_answers.min(ANSWERS_AT_ONCE),
                context: longest + recipe.max_new_tokens,
                patches: job.limits.patches,
            });
        }
        if recipe.selective_loss == Level::Aggressive {
            job.common_keys = common_keys(&dataset)?;
        }
        Ok(Prepared { job, config, train, eval, index_bytes, notes })
    }
}

impl Job {
    /// With weights, rows may come again in the same micro-batch, and only so many of a dataset share one. Rows that are held out
    /// are evaluated as they come.
    fn bound_mixture(&mut self, train: &Survey, eval: Option<&Survey>) {
        let Some(mixture) = self.mixture() else { return };
        let mixed = train.limits_of_mixture(&mixture, self.recipe.batch_size);
        self.limits = match self.eval {
            Some(_) => mixed.max(eval.unwrap_or(train).limits),
            None => mixed,
        };
    }

    /// Decides which rows share a micro-batch of so many tokens; the largest of them is known then.
    fn cut_by_tokens(&mut self, tokens: usize, train: &Survey, eval: Option<&Survey>) -> Result<(), Error> {
        let longest = std::iter::once(train).chain(eval).filter_map(|survey| survey.largest.as_ref());
        if let Some(row) = longest.max_by_key(|row| row.tokens).filter(|row| row.tokens > tokens) {
            let (place, length) = (row.place.clone(), row.tokens);
            return Err(Error::LongerThanBatch { place, length, tokens });
        }
        let lengths = |survey: &Survey| survey.sizes.iter().map(|size| size.tokens).collect();
        self.train.lengths = lengths(train);
        let batches = self.batches();
        self.token_batches = Some(batches.per_epoch());
        self.limits = train.limits_of(&batches);
        let size = self.recipe.eval_batch();
        if let Some(rows) = &mut self.eval {
            // Without rows of their own, evaluations hold out some of the training rows.
            let survey = eval.unwrap_or(train);
            rows.lengths = lengths(survey);
            self.limits = self.limits.max(survey.limits_of(&rows.batches(size, None)));
        }
        Ok(())
    }
}

struct Looker<'a> {
    recipe: &'a Recipe,
    processor: &'a Processor,
}

impl Looker<'_> {
    fn look(
        &self,
        dataset: &Dataset,
        size: BatchSize,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Survey, Error> {
        // Evaluations, and epochs before the first one that is selective, ask for all tokens of answers.
        let example = ExampleSettings { selective: SelectiveLoss::default(), ..self.recipe.example(&[]) };
        let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
        let (batch_size, keeps_sizes) = match size {
            BatchSize::Rows(rows) => (rows, false),
            BatchSize::Tokens(_) => (1, true),
        };
        let settings = SurveySettings { example: &example, batch_size, keeps_sizes, decodes: false, threads };
        let rows = dataset.len();
        let survey = Survey::of(dataset, self.processor, settings, |done| progress(done, rows));
        let usable = survey.rows - survey.left_out.len();
        let first = survey.problems.first();
        match first {
            Some(_) if self.recipe.on_bad_row == garden_data::BadRow::Stop => {
                Err(Error::BadRows { count: survey.problem_count, rows, problems: survey.problems })
            }
            _ if usable == 0 => {
                let why = first.map_or_else(|| "all are too long".to_string(), words);
                Err(Error::Empty(format!("none of {rows} rows is usable: {why}")))
            }
            _ => Ok(survey),
        }
    }
}

/// Refuses a model that transformers trains otherwise.
fn check_trainable(base: &Path, config: &Config) -> Result<(), Error> {
    match config.text.attention_dropout {
        0.0 => Ok(()),
        share => Err(Error::Dropout { path: base.join("config.json"), share }),
    }
}

/// What of rows is not used, changed or teaches nothing, in words.
fn notes_of(survey: &Survey, dataset: &Dataset) -> Vec<String> {
    let rows = |count: usize| if count == 1 { "1 row".to_string() } else { format!("{count} rows") };
    let shown = survey.ignored.iter().take(SHOWN_FIELDS);
    let mut notes: Vec<String> =
        shown.map(|one| format!("unused field `{}` in {}, first `{}`", one.field, rows(one.rows), one.first)).collect();
    let more = survey.ignored.len().saturating_sub(SHOWN_FIELDS);
    if more > 0 || survey.more_ignored > 0 {
        let least = if survey.more_ignored > 0 { "at least " } else { "" };
        notes.push(format!("{least}{more} more unused fields; `model-garden check` lists them"));
    }
    notes.extend(survey.tally.box_words());
    notes.extend(survey.picture_words());
    if let Some(first) = survey.empty_answers.first() {
        let place = dataset.place(*first as usize);
        notes.push(format!(
            "{} with an empty answer, first `{place}`: this teaches the model to say nothing",
            rows(survey.empty_answer_count)
        ));
    }
    notes
}

/// The split of a dataset that is meant for evaluation: `validation`, else `test`; a file, or a folder that knows no splits, is taken as it is.
fn open_eval(path: &Path, recipe: &Recipe) -> Result<(Rows, Dataset), Error> {
    let of_split = |split: &str| Rows::of_split(&[path.to_path_buf()], split, recipe);
    for rows in [of_split("validation"), of_split("test")] {
        match rows.dataset() {
            Ok(dataset) => return Ok((rows, dataset)),
            Err(garden_data::Error::NoSplit { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let rows = of_split("train");
    let dataset = rows.dataset()?;
    Ok((rows, dataset))
}

/// Says it where evaluations ask for rows that are trained.
fn trained_and_evaluated(recipe: &Recipe, train: &Survey, evaluated: u64) -> Option<String> {
    let is_same = |fingerprint: u64| fingerprint == evaluated;
    if is_same(train.fingerprint) {
        return Some("evaluation uses the training rows: its figures say nothing about new rows".to_string());
    }
    let (path, _) = recipe.datasets.iter().zip(&train.portions).find(|(_, portion)| is_same(portion.fingerprint))?;
    let path = path.display();
    Some(format!("evaluation uses the rows of `{path}`, which are trained: its figures say nothing about new rows"))
}

/// Rows that are taken out of training, ascending.
fn hold_out(rows: &Rows, share: f64, seed: u64) -> Result<Vec<u32>, Error> {
    let count = ((share * rows.used() as f64).round() as usize).max(1);
    if count >= rows.used() {
        let problem = format!("`eval-split` {share} of {} rows leaves none to train on", rows.used());
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
