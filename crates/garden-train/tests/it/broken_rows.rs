//! Rows that turn out broken after all rows were looked at: the run keeps what it has made, or goes on without them, and says so.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

use std::fs;
use std::path::{Path, PathBuf};

use garden_data::{BadRow, Normalisation};
use garden_device::{Cpu, Plan};
use garden_train::{
    DeviceKind, Error, EvalReport, Finish, Job, LogLine, Observer, Prepared, Recipe, StepReport, newest, read_log,
    train,
};

/// Keeps what it is told.
#[derive(Default)]
struct Told {
    /// Step, loss as bits, and trained tokens.
    steps: Vec<(usize, u64, usize)>,
    said: Vec<String>,
}

impl Observer for Told {
    fn began(&mut self, _: usize, _: &Plan) {}
    fn stepped(&mut self, report: &StepReport) {
        self.steps.push((report.step, report.loss.to_bits(), report.trained));
    }
    fn evaluating(&mut self) {}
    fn evaluated(&mut self, _: &EvalReport) {}
    fn saved(&mut self, _: &Path) {}
    fn say(&mut self, line: &str) {
        self.said.push(line.to_string());
    }
    fn wants_end(&mut self) -> bool {
        false
    }
}

fn testdata(name: &str) -> PathBuf {
    let own = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata");
    std::env::var_os("GARDEN_TESTDATA").map_or_else(own, PathBuf::from).join(name)
}

/// A folder of rows, each with a picture of its own.
struct Scene {
    folder: PathBuf,
}

impl Scene {
    /// So many rows, of which some have pictures that are broken behind their headers.
    fn new(name: &str, rows: usize, broken: &[usize]) -> Scene {
        let folder = std::env::temp_dir().join(format!("garden-broken-rows-{name}-{}", std::process::id()));
        drop(fs::remove_dir_all(&folder));
        fs::create_dir_all(&folder).unwrap();
        let scene = Scene { folder };
        let line = |row: usize| {
            let picture = scene.picture(row);
            fs::copy(testdata("tiny-model/sign.png"), &picture).unwrap();
            let words = serde_json::json!({"prompt": format!("Number {row}?"), "image": picture, "response": format!("{}", row * 7)});
            words.to_string() + "\n"
        };
        fs::write(scene.rows(), (0..rows).map(line).collect::<String>()).unwrap();
        broken.iter().for_each(|row| scene.break_picture(*row));
        scene
    }

    fn rows(&self) -> PathBuf {
        self.folder.join("train.jsonl")
    }

    fn picture(&self, row: usize) -> PathBuf {
        self.folder.join(format!("{row}.png"))
    }

    /// Zeros in the middle of the compressed pixels: the header stays as it is.
    fn break_picture(&self, row: usize) {
        let mut bytes = fs::read(self.picture(row)).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle..middle + 64].fill(0);
        fs::write(self.picture(row), bytes).unwrap();
    }

    fn job(&self, output: &str, change: impl FnOnce(&mut Recipe)) -> Job {
        let mut recipe = Recipe {
            base_model: testdata("tiny-model").to_str().unwrap().into(),
            datasets: vec![self.rows()],
            output_dir: self.folder.join(output),
            epochs: 2.0,
            batch_size: 1,
            gradient_accumulation: 2,
            save_steps: 100,
            logging_steps: 1,
            warmup_steps: 0,
            learning_rate: 2e-2,
            lora_r: Some(3),
            lora_dropout: 0.1,
            threads: 1,
            loader_threads: 1,
            ..Recipe::default()
        };
        change(&mut recipe);
        Prepared::of(recipe, DeviceKind::Cpu, &mut |_, _| ()).unwrap().job
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.folder));
    }
}

fn run(job: &Job, resume: Option<&Path>) -> (Result<Finish, Error>, Told) {
    let mut told = Told::default();
    let ended = train(job, resume, &mut Cpu::new(1), &mut told);
    (ended, told)
}

fn left_out(output: &Path) -> Vec<(usize, usize)> {
    let lines = read_log(output).into_iter();
    lines
        .filter_map(|line| if let LogLine::LeftOut(line) = line { Some((line.step, line.row)) } else { None })
        .collect()
}

fn result(job: &Job) -> Vec<u8> {
    fs::read(job.recipe.output_dir.join("adapter_model.safetensors")).unwrap()
}

fn skip(recipe: &mut Recipe) {
    recipe.on_bad_image = Some(BadRow::Skip);
}

#[test]
fn a_broken_picture_costs_no_step_and_the_run_goes_on_without_it() {
    let scene = Scene::new("stop", 8, &[5]);
    // Undisturbed, and told to skip it: in each epoch the row is left out and named.
    let whole = scene.job("whole", skip);
    let (finish, expected) = run(&whole, None);
    let finish = finish.unwrap();
    assert_eq!((expected.steps.len(), finish.progress.skipped), (8, 2));
    assert_eq!(finish.progress.skipped_rows.len(), 1, "{:?}", finish.progress.skipped_rows);
    let named = &finish.progress.skipped_rows[0];
    assert!(named.contains("train.jsonl:6") && named.contains("5.png"), "{named}");
    assert_eq!(expected.said.iter().filter(|line| line.starts_with("left out: ")).count(), 2, "{:?}", expected.said);
    let rows = left_out(&whole.recipe.output_dir);
    assert!(rows.len() == 2 && rows.iter().all(|(_, row)| *row == 5) && rows[0].0 <= 4 && rows[1].0 > 4, "{rows:?}");

    // Told to stop, as by itself: all steps before that row are there.
    let stopping = scene.job("stopped", |_| ());
    let (ended, before) = run(&stopping, None);
    let error = ended.unwrap_err();
    let made = before.steps.len();
    assert!(made == rows[0].0 - 1, "{made} steps, {rows:?}");
    assert_eq!(before.steps, expected.steps[..made]);
    let Error::BrokenRow { saved, .. } = &error else { panic!("{error}") };
    let (found, torn) = newest(&stopping.recipe.output_dir);
    assert_eq!((saved.clone(), torn.len()), ((made > 0).then(|| found.clone().unwrap()), 0));
    assert!(error.to_string().contains("train.jsonl:6"), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("--on-bad-image skip")), "{error:?}");

    // From there, told to skip it, it comes to the same bits.
    let resumed = scene.job("stopped", skip);
    let (finish, rest) = run(&resumed, found.as_deref());
    assert_eq!(finish.unwrap().progress.skipped, 2);
    assert_eq!(rest.steps, expected.steps[made..]);
    assert_eq!(left_out(&resumed.recipe.output_dir), rows);
    assert!(result(&resumed) == result(&whole), "the result has other bits");
}

#[test]
fn a_file_that_is_gone_or_a_row_that_was_changed_keeps_the_steps_too() {
    let scene = Scene::new("gone", 8, &[]);
    let whole = scene.job("whole", |_| ());
    let (_, expected) = run(&whole, None);
    let (job, order) = (scene.job("out", |_| ()), expected.steps.len());
    assert_eq!(order, 8);
    // It disappears after all rows were looked at.
    let away = scene.folder.join("away");
    fs::rename(scene.picture(3), &away).unwrap();
    let (ended, before) = run(&job, None);
    let error = ended.unwrap_err();
    assert!(matches!(&error, Error::BrokenRow { .. }) && error.to_string().contains("train.jsonl:4"), "{error}");
    assert_eq!(before.steps, expected.steps[..before.steps.len()]);
    // Put back, it goes on with the same bits.
    fs::rename(&away, scene.picture(3)).unwrap();
    let from = newest(&job.recipe.output_dir).0;
    assert_eq!(from.is_some(), !before.steps.is_empty());
    let (finish, rest) = run(&job, from.as_deref());
    finish.unwrap();
    assert_eq!(rest.steps, expected.steps[before.steps.len()..]);
    assert!(result(&job) == result(&whole), "the result has other bits");

    // A line that became longer is longer than any that was planned for.
    let text = fs::read_to_string(scene.rows()).unwrap();
    let job = scene.job("longer", |_| ());
    fs::write(scene.rows(), text.replace("Number", &"Number ".repeat(200))).unwrap();
    let (ended, _) = run(&job, None);
    let error = ended.unwrap_err();
    assert!(
        matches!(&error, Error::BrokenRow { .. }) && error.to_string().contains("planned before step 1"),
        "{error}"
    );
}

#[test]
fn a_step_is_made_of_the_rows_that_are_left() {
    for normalisation in [Normalisation::MicroBatch, Normalisation::Token] {
        let first_step = |name: &str, rows: usize, broken: &[usize]| {
            let scene = Scene::new(&format!("left-{name}-{normalisation:?}"), rows, broken);
            let job = scene.job("out", |recipe| {
                skip(recipe);
                (recipe.shuffle, recipe.batch_size, recipe.loss_normalisation) = (false, 2, normalisation);
                (recipe.max_steps, recipe.lora_dropout) = (Some(1), 0.0);
            });
            let (finish, told) = run(&job, None);
            finish.unwrap();
            (told.steps[0], result(&job))
        };
        // A micro-batch of one row instead of two.
        assert_eq!(first_step("one", 4, &[3]), first_step("short", 3, &[]), "{normalisation:?}");
        // A micro-batch without any row counts for nothing.
        assert_eq!(first_step("both", 4, &[2, 3]), first_step("shorter", 2, &[]), "{normalisation:?}");
    }
}

#[test]
fn a_step_without_any_row_changes_nothing_and_has_no_loss() {
    let scene = Scene::new("none", 4, &[1]);
    let job = scene.job("out", |recipe| {
        skip(recipe);
        (recipe.shuffle, recipe.gradient_accumulation, recipe.epochs) = (false, 1, 1.0);
        (recipe.save_steps, recipe.save_total_limit) = (1, 10);
    });
    let (finish, told) = run(&job, None);
    assert_eq!(finish.unwrap().progress.step, 4);
    let trained: Vec<bool> = told.steps.iter().map(|(_, _, trained)| *trained > 0).collect();
    assert_eq!(trained, [true, false, true, true]);
    let values = |step: usize| {
        let folder = job.recipe.output_dir.join(format!("checkpoint-{step}"));
        ["adapter_model.safetensors", "optimizer.safetensors"].map(|name| fs::read(folder.join(name)).unwrap())
    };
    assert!(values(2) == values(1) && values(3) != values(2), "the step without rows has changed something");
    let lines = read_log(&job.recipe.output_dir).into_iter();
    let logged: Vec<usize> =
        lines.filter_map(|line| if let LogLine::Step(step) = line { Some(step.step) } else { None }).collect();
    assert_eq!(logged, [1, 3, 4], "a step without rows has no loss that could be logged");
}

#[test]
fn a_broken_row_of_an_evaluation_is_kept_out_of_it_or_ends_the_run_with_its_steps() {
    let scene = Scene::new("evaluation", 6, &[]);
    let other = Scene::new("evaluation-rows", 3, &[1]);
    let with = |recipe: &mut Recipe| {
        (recipe.eval_dataset, recipe.eval_steps, recipe.eval_answers) = (Some(other.rows()), Some(2), 2);
        recipe.max_new_tokens = 2;
    };
    let (ended, told) = run(&scene.job("stop", with), None);
    assert!(matches!(ended, Err(Error::BrokenRow { saved: None, .. })) && told.steps.is_empty());
    let job = scene.job("skip", |recipe| {
        with(recipe);
        skip(recipe);
    });
    let (finish, _) = run(&job, None);
    let finish = finish.unwrap();
    assert_eq!(finish.evaluation.map(|report| report.rows), Some(2));
    // Before the first step, and after every second of six.
    assert_eq!((finish.progress.skipped, left_out(&job.recipe.output_dir)), (4, vec![(0, 1), (2, 1), (4, 1), (6, 1)]));
}
