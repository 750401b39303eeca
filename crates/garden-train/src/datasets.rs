//! The datasets of a job: which rows of each there are, and how many of them come in an epoch.

use std::path::PathBuf;

use garden_data::{Mixture, Portion, SurveyedPortion};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::job::{Job, Rows};
use crate::recipe::{Recipe, RecipeError};

/// Rows of one of the datasets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowsOf {
    /// Rows of its files.
    pub stored: usize,
    /// Rows taken of these: fewer where `max-samples` draws some.
    pub rows: usize,
    /// What these say and show, in one number.
    pub contents: u64,
}

/// What a dataset contributes to training.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DatasetRows {
    /// As it was given.
    pub dataset: String,
    /// Rows of its files.
    pub stored: usize,
    /// Rows drawn of these, or all.
    pub rows: usize,
    /// Those of them that are trained on: neither bad, nor dropped, nor held out.
    pub used: usize,
    /// Rows of it in an epoch. With weights they may come again, or in a later epoch.
    pub per_epoch: usize,
    /// Its share of an epoch.
    pub share: f64,
}

impl RowsOf {
    /// Rows of a dataset and what a look at them has found.
    pub fn of(portion: &Portion, surveyed: &SurveyedPortion) -> RowsOf {
        RowsOf { stored: portion.stored, rows: portion.rows, contents: surveyed.fingerprint }
    }
}

impl DatasetRows {
    /// Those of each dataset: its rows, those of them in use, and their mixture where there are weights.
    pub fn of(paths: &[PathBuf], rows: &[RowsOf], used: &[usize], mixture: Option<&Mixture>) -> Vec<DatasetRows> {
        let quotas = mixture.map_or_else(|| used.to_vec(), Mixture::quotas);
        let all = used.iter().sum::<usize>().max(1) as f64;
        let found = paths.iter().zip(rows).zip(used.iter().zip(quotas));
        let one = |((path, rows), (used, per_epoch)): ((&PathBuf, &RowsOf), (&usize, usize))| DatasetRows {
            dataset: path.display().to_string(),
            stored: rows.stored,
            rows: rows.rows,
            used: *used,
            per_epoch,
            share: per_epoch as f64 / all,
        };
        found.map(one).collect()
    }

    /// Whether there is more to say about datasets than the number of their rows: there are several, or some of their rows were drawn.
    pub fn are_mixed(datasets: &[DatasetRows]) -> bool {
        datasets.len() > 1 || datasets.iter().any(|rows| rows.rows < rows.stored)
    }

    /// The error where weights mean that a dataset never comes.
    pub fn refuse_never(datasets: &[DatasetRows]) -> Result<(), RecipeError> {
        let never = datasets.iter().find(|rows| rows.used == 0 || rows.per_epoch == 0);
        let Some(DatasetRows { dataset, used, .. }) = never else { return Ok(()) };
        let epoch: usize = datasets.iter().map(|rows| rows.per_epoch).sum();
        let problem = match used {
            0 => format!("has a weight for `{dataset}`, none of whose rows is left to train on"),
            _ => format!("leaves `{dataset}` no row in an epoch of {epoch} rows"),
        };
        let hint = Some(format!("raise its weight, or omit `{dataset}`"));
        Err(RecipeError { name: "dataset-weights".to_string(), problem, hint })
    }

    /// What of it comes in an epoch, in words.
    pub fn words(&self) -> String {
        let plural = |count: usize| if count == 1 { "row" } else { "rows" };
        let mut words =
            format!("{} {} per epoch ({:.1} %)", self.per_epoch, plural(self.per_epoch), 100.0 * self.share);
        if self.rows < self.stored {
            words += &format!(", drawn {} of {}", self.rows, self.stored);
        }
        if self.used < self.rows {
            words += &format!(", {} not trained on", self.rows - self.used);
        }
        if self.per_epoch != self.used {
            let times = self.per_epoch as f64 / self.used.max(1) as f64;
            words += &format!(", {} different {}: each comes {times:.2} times per epoch", self.used, plural(self.used));
        }
        words
    }
}

impl Rows {
    /// Rows in use of each dataset.
    pub(crate) fn used_of_each(&self) -> Vec<usize> {
        let mut first = 0;
        let used = |rows: usize| {
            let before = |end: usize| self.left_out.partition_point(|row| (*row as usize) < end);
            let left_out = before(first + rows) - before(first);
            first += rows;
            rows - left_out
        };
        self.rows_of_each().iter().map(|portion| portion.rows).map(used).collect()
    }

    /// Rows of each dataset. Earlier versions had one, whose rows were all taken.
    fn rows_of_each(&self) -> Vec<RowsOf> {
        match self.portions.is_empty() {
            true => vec![RowsOf { stored: self.rows, rows: self.rows, contents: self.fingerprint }],
            false => self.portions.clone(),
        }
    }
}

impl Job {
    /// The mixture of the datasets, where they have weights.
    pub fn mixture(&self) -> Option<Mixture> {
        let weights = self.recipe.dataset_weights.as_ref()?;
        let seed = self.recipe.shuffle.then_some(self.recipe.seed);
        Some(Mixture::new(&self.train.used_of_each(), weights, seed))
    }

    /// What each dataset contributes to training.
    pub fn datasets(&self) -> Vec<DatasetRows> {
        let (rows, used) = (self.train.rows_of_each(), self.train.used_of_each());
        DatasetRows::of(&self.recipe.datasets, &rows, &used, self.mixture().as_ref())
    }

    /// Refuses weights by which a dataset would never come.
    pub(crate) fn check_mixture(&self) -> Result<(), Error> {
        match self.recipe.dataset_weights {
            Some(_) => DatasetRows::refuse_never(&self.datasets()).map_err(Error::Recipe),
            None => Ok(()),
        }
    }
}

/// Whether the rows of a job are divided among datasets as they were: without weights it does not matter which of them a row is of.
pub(crate) fn is_same_division(before: &[RowsOf], job: &Job) -> bool {
    let rows = |portions: &[RowsOf]| portions.iter().map(|portion| portion.rows).collect::<Vec<usize>>();
    job.recipe.dataset_weights.is_none() || rows(before) == rows(&job.train.portions)
}

/// Which of several datasets are others than when a checkpoint was made, in words that follow a sentence about all rows.
pub(crate) fn changed(recipe: &Recipe, before: &[RowsOf], job: &Job) -> String {
    let now = &job.train.portions;
    if recipe.datasets.len().max(job.recipe.datasets.len()) < 2 {
        return String::new();
    }
    if recipe.datasets != job.recipe.datasets || before.len() != now.len() {
        return format!("; they were of {}, now they are of {}", recipe.dataset_words(), job.recipe.dataset_words());
    }
    let pairs = before.iter().zip(now).zip(&job.recipe.datasets).filter(|((before, now), _)| before != now);
    let words = pairs.map(|((before, now), path)| match before.rows == now.rows {
        true => format!("; changed: `{}`", path.display()),
        false => format!("; changed: `{}`, {} rows before and {} now", path.display(), before.rows, now.rows),
    });
    words.collect()
}
