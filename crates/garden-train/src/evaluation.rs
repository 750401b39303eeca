//! Evaluation: the loss on rows that are not trained, and answers to some of them beside the right ones.
//!
//! The model that is being trained is the one that answers, so nothing is loaded again. What is held is a micro-batch and a few answers.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use garden_data::{
    Ahead, BatchSize, BoxFormat, Collator, Dataset, Example, ExampleSettings, Labels, Loader, Outcome, Processor,
    Record, SelectiveLoss, SkippedRow, SpecialTokens, WrittenBox,
};
use garden_device::Device;
use garden_model::{Batch, Engine, Model, Prompt, Sampling};
use serde::{Deserialize, Serialize};

use crate::checkpoint::Progress;
use crate::error::Error;
use crate::job::Job;
use crate::metric::BestBy;
use crate::observer::EvalReport;
use crate::scoring::Score;

/// How the file of answers is called.
pub const PREDICTIONS: &str = "predictions.jsonl";

/// An answer beside the right one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prediction {
    /// The step after which it was given.
    pub step: usize,
    /// The row of the evaluation dataset, and where it stands.
    pub row: usize,
    /// Where the row stands, such as `eval.jsonl:17`.
    pub place: String,
    /// What was asked last.
    pub question: String,
    /// The right answer.
    pub expected: String,
    /// The answer.
    pub answer: String,
    /// Whether it is right as a whole.
    pub is_right: bool,
}

/// Rows to evaluate on, and what is needed for that.
#[derive(Debug)]
pub(crate) struct Evaluation {
    dataset: Arc<Dataset>,
    processor: Arc<Processor>,
    engine: Option<Engine>,
    end_tokens: Vec<i32>,
}

/// What the model says to the right answers, token by token.
struct TeacherForced {
    /// The mean loss of a token.
    loss: f64,
    /// The share of tokens whose logit no other one exceeded.
    accuracy: Option<f64>,
    rows: usize,
    skipped: Vec<SkippedRow>,
}

/// A row that an answer is wanted for.
struct Question {
    row: usize,
    record: Record,
    /// The right answer.
    expected: String,
    /// Whether that has boxes.
    has_boxes: bool,
    /// What was asked last.
    asked: String,
    prompt: Prompt,
}

impl Evaluation {
    pub fn new(
        job: &Job,
        dataset: Arc<Dataset>,
        processor: Arc<Processor>,
        engine: Option<Engine>,
    ) -> Result<Evaluation, Error> {
        let end_tokens = garden_input::read_end_tokens(&job.base)?;
        Ok(Evaluation { dataset, processor, engine, end_tokens })
    }

    /// Evaluates, with the rows that were left out; nothing if somebody wants an end meanwhile. Answers wait beside the file of the best ones.
    pub fn run(
        &mut self,
        job: &Job,
        model: &mut Model,
        device: &mut dyn Device,
        step: usize,
        wants_end: &mut dyn FnMut() -> bool,
    ) -> Result<Option<(EvalReport, Vec<SkippedRow>)>, Error> {
        let begin = Instant::now();
        let forced = self.teacher_forced(job, model, device, wants_end)?;
        let Some(TeacherForced { loss, accuracy, rows, skipped }) = forced else { return Ok(None) };
        let (score, answers) = match self.answers(job, device, step, wants_end) {
            Err(Error::Model(garden_model::Error::Stopped)) => return Ok(None),
            answered => answered?,
        };
        let report = EvalReport {
            step,
            loss,
            mean_token_accuracy: accuracy,
            rows,
            answers,
            exact_match: score.exact_match(),
            field_accuracy: score.field_accuracy(),
            fields: score.fields(),
            mean_iou: score.mean_iou(),
            iou_50: score.iou_50(),
            seconds: begin.elapsed().as_secs_f64(),
            is_best: false,
        };
        Ok(Some((report, skipped)))
    }

    /// The answers of the evaluation before are those of the result.
    pub fn keep_predictions(&self, folder: &Path) -> Result<(), Error> {
        match std::fs::rename(folder.join(Predictions::DRAFT), folder.join(PREDICTIONS)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::file(&folder.join(PREDICTIONS), error))
            }
            _ => Ok(()),
        }
    }

    /// Loss and accuracy over the trained tokens of all rows; nothing if somebody wants an end meanwhile.
    fn teacher_forced(
        &self,
        job: &Job,
        model: &mut Model,
        device: &mut dyn Device,
        wants_end: &mut dyn FnMut() -> bool,
    ) -> Result<Option<TeacherForced>, Error> {
        let Some(rows) = &job.eval else { return Ok(None) };
        let batches = rows.batches(job.recipe.eval_batch(), None);
        let numbers = 0..batches.per_epoch();
        let mut settings = job.loader(Ahead { threads: 1, bytes: 0 });
        // Structure counts here even where it is not trained: losses can be compared from run to run.
        settings.example.selective = SelectiveLoss::default();
        let mut loader = Loader::new(self.dataset.clone(), self.processor.clone(), batches, settings, numbers);
        let (mut sum, mut hits, mut trained, mut count) = (0.0, 0.0, 0, 0);
        let mut skipped = Vec::new();
        while let Some(made) = loader.next() {
            if wants_end() {
                return Ok(None);
            }
            let mut made = made?;
            skipped.append(&mut made.skipped);
            if made.trained == 0 {
                loader.give_back(made.images.pixels);
                continue;
            }
            count += made.rows.len();
            let batch = Batch::new(model.config(), &made.rows, made.images)?;
            let losses = model.evaluate(device, &batch)?;
            sum += losses.iter().map(|loss| f64::from(*loss)).sum::<f64>();
            hits += model.hits(device, &batch)?.iter().map(|hit| f64::from(*hit)).sum::<f64>();
            trained += losses.len();
            loader.give_back(batch.into_pixels());
        }
        let accuracy = (trained > 0).then(|| hits / trained as f64);
        Ok(Some(TeacherForced { loss: sum / trained.max(1) as f64, accuracy, rows: count, skipped }))
    }

    /// Answers some rows, spread evenly over all.
    fn answers(
        &mut self,
        job: &Job,
        device: &mut dyn Device,
        step: usize,
        wants_end: &mut dyn FnMut() -> bool,
    ) -> Result<(Score, usize), Error> {
        let mut score = Score::default();
        let (Some(rows), Some(limits), Some(engine)) = (&job.eval, job.answers, &mut self.engine) else {
            return Ok((score, 0));
        };
        let wanted = job.recipe.eval_answers.min(rows.used());
        let batches = rows.batches(BatchSize::Rows(1), None);
        let sampling = Sampling {
            max_new_tokens: job.recipe.max_new_tokens,
            end_tokens: self.end_tokens.clone(),
            ..Sampling::default()
        };
        let mut file = Predictions::create(&job.recipe.output_dir)?;
        let mut collator = Collator::new(&self.processor, job.limits.patches);
        let chosen: Vec<usize> = (0..wanted).flat_map(|number| batches.rows(number * rows.used() / wanted)).collect();
        let mut answered = 0;
        for chunk in chosen.chunks(limits.rows.max(1)) {
            let mut questions = Vec::new();
            for row in chunk {
                questions.extend(question(job, &self.dataset, &self.processor, &mut collator, *row)?);
            }
            let prompts = questions.iter_mut().map(|question| std::mem::take(&mut question.prompt)).collect();
            let answers = engine.generate_until(device, prompts, &sampling, &mut |_| {}, wants_end)?;
            for (question, answer) in questions.into_iter().zip(answers) {
                let text = self.processor.tokenizer.decode(&answer.tokens, SpecialTokens::Skip);
                file.add(&question.scored(step, &text, &mut score))?;
                answered += 1;
            }
        }
        file.finish()?;
        Ok((score, answered))
    }
}

impl Question {
    fn scored(self, step: usize, answer: &str, score: &mut Score) -> Prediction {
        let expected = self.expected;
        let is_right = score.add(&expected, answer);
        if self.has_boxes {
            score.add_boxes(&expected, answer);
        }
        Prediction {
            step,
            row: self.row,
            place: self.record.place,
            question: self.asked,
            expected,
            answer: answer.trim().to_string(),
            is_right,
        }
    }
}

/// A row up to its last answer; nothing for rows that are left out.
fn question(
    job: &Job,
    dataset: &Dataset,
    processor: &Processor,
    collator: &mut Collator,
    row: usize,
) -> Result<Option<Question>, Error> {
    // Where the last answer begins is found whatever is trained.
    let settings =
        ExampleSettings { labels: Labels::Assistant, selective: SelectiveLoss::default(), ..job.recipe.example(&[]) };
    let skip = job.recipe.bad_image() == garden_data::BadRow::Skip;
    let made = dataset.read(row).and_then(|record| Ok((Example::of(processor, &record, &settings)?, record)));
    let (example, record) = match made {
        Ok((Outcome::Kept(example), record)) => (example, record),
        Ok((Outcome::Dropped(_), _)) => return Ok(None),
        Err(_) if skip => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let Some(begin) = example.answers.last().map(|answer| answer.start) else { return Ok(None) };
    // An answer with a picture in it cannot be given.
    if example.tokens[begin..].contains(&processor.image_token()) {
        return Ok(None);
    }
    let messages = example.written.as_deref().unwrap_or(&record.messages);
    let asked = messages.iter().rev().nth(1).map(|message| message.words().into_owned()).unwrap_or_default();
    let is_last = |one: &WrittenBox| one.message + 1 == messages.len() && one.numbers.len() == 4;
    let has_boxes = example.boxes.iter().any(is_last);
    let has_tokens = has_boxes && job.recipe.box_format == BoxFormat::Tokens;
    let expected = match messages.last() {
        Some(last) if last.calls().is_empty() && !has_tokens => last.words().into_owned(),
        // Calls of tools are what the template writes, and tokens around boxes are not part of an answer's text.
        _ => processor.tokenizer.decode(&example.tokens[begin..], SpecialTokens::Skip).trim().to_string(),
    };
    match collator.add(example, &record.pictures) {
        Err(_) if skip => return Ok(None),
        added => added?,
    }
    let (rows, images) = collator.finish();
    let mut tokens = rows.into_iter().next().map(|row| row.tokens).unwrap_or_default();
    tokens.truncate(begin);
    Ok(Some(Question { row, record, expected, has_boxes, asked, prompt: Prompt { tokens, images } }))
}

/// The file of answers of an evaluation, until it is known whether they are the best.
struct Predictions<'a> {
    folder: &'a Path,
    file: BufWriter<File>,
}

impl<'a> Predictions<'a> {
    const DRAFT: &'static str = ".predictions.partial";

    fn create(folder: &'a Path) -> Result<Predictions<'a>, Error> {
        let path = folder.join(Self::DRAFT);
        let file = File::create(&path).map_err(|error| Error::file(&path, error))?;
        Ok(Predictions { folder, file: BufWriter::new(file) })
    }

    fn add(&mut self, prediction: &Prediction) -> Result<(), Error> {
        let line = serde_json::to_string(prediction).unwrap_or_default();
        writeln!(self.file, "{line}").map_err(|error| Error::file(&self.folder.join(PREDICTIONS), error))
    }

    fn finish(mut self) -> Result<(), Error> {
        self.file.flush().map_err(|error| Error::file(&self.folder.join(Self::DRAFT), error))
    }
}

/// Removes answers that a run which goes on from here has not given: they are those of another run, or of steps that it makes again.
pub(crate) fn forget_others_answers(folder: &Path, progress: &Progress) -> Result<(), Error> {
    let own = progress.best.map(|best| best.step).or(progress.evaluated.map(|_| 0));
    let path = folder.join(PREDICTIONS);
    match read_predictions(folder).first() {
        Some(first) if Some(first.step) != own => {
            std::fs::remove_file(&path).map_err(|error| Error::file(&path, error))
        }
        _ => Ok(()),
    }
}

/// The answers of the newest evaluation; none if there was no evaluation.
pub fn read_predictions(folder: &Path) -> Vec<Prediction> {
    let text = std::fs::read_to_string(folder.join(PREDICTIONS)).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// The first of a run's evaluations, and the one of the result: the best after the first step.
pub fn first_and_best(evaluations: &[EvalReport], best_by: BestBy) -> Option<(&EvalReport, &EvalReport)> {
    let first = evaluations.first()?;
    Some((first, best_by.best(evaluations).unwrap_or(first)))
}
