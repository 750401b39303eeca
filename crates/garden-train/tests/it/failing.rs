//! A device that fails in the middle of a run: the run ends with the error, and goes on from its last checkpoint to the same result.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

use std::fs;
use std::path::{Path, PathBuf};

use garden_device::{CpuBf16, Plan};
use garden_train::{DeviceKind, EvalReport, LogLine, Observer, Prepared, Recipe, StepReport, newest, read_log, train};

/// Keeps the losses and hits of steps.
#[derive(Default)]
struct Losses(Vec<(usize, u64, usize)>);

impl Observer for Losses {
    fn began(&mut self, _: usize, _: &Plan) {}
    fn stepped(&mut self, report: &StepReport) {
        self.0.push((report.step, report.loss.to_bits(), report.hits));
    }
    fn evaluating(&mut self) {}
    fn evaluated(&mut self, _: &EvalReport) {}
    fn saved(&mut self, _: &Path) {}
    fn say(&mut self, _: &str) {}
    fn wants_end(&mut self) -> bool {
        false
    }
}

fn testdata(name: &str) -> PathBuf {
    let own = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata");
    std::env::var_os("GARDEN_TESTDATA").map_or_else(own, PathBuf::from).join(name)
}

fn prepared(folder: &Path, output: &str) -> Prepared {
    let picture = testdata("tiny-model/sign.png").canonicalize().unwrap();
    let row = |number: usize| {
        let row = serde_json::json!({"prompt": format!("Number {number}?"), "image": picture, "response": format!("{}", number * 7)});
        row.to_string() + "\n"
    };
    let dataset = folder.join("train.jsonl");
    fs::write(&dataset, (0..8).map(row).collect::<String>()).unwrap();
    let recipe = Recipe {
        base_model: testdata("tiny-model").to_str().unwrap().into(),
        datasets: vec![dataset],
        output_dir: folder.join(output),
        max_steps: Some(5),
        batch_size: 1,
        gradient_accumulation: 2,
        save_steps: 1,
        save_total_limit: 10,
        // Lines of the log are about steps before and after a checkpoint.
        logging_steps: 4,
        warmup_steps: 0,
        // So high that some tokens are learnt at once.
        learning_rate: 2e-2,
        lora_r: Some(3),
        threads: 1,
        loader_threads: 1,
        ..Recipe::default()
    };
    Prepared::of(recipe, DeviceKind::Cpu, &mut |_, _| ()).unwrap()
}

/// Step, mean loss and share of hits of each line of a log.
fn logged(output: &Path) -> Vec<(usize, f64, Option<f64>)> {
    let lines = read_log(output).into_iter();
    let steps = lines.filter_map(|line| if let LogLine::Step(step) = line { Some(step) } else { None });
    steps.map(|step| (step.step, step.loss, step.mean_token_accuracy)).collect()
}

#[test]
fn a_lost_device_ends_a_run_with_its_last_checkpoint_whole() {
    let folder = std::env::temp_dir().join(format!("garden-train-failing-{}", std::process::id()));
    let _gone = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let (job, mut expected) = (prepared(&folder, "whole").job, Losses::default());
    train(&job, None, &mut CpuBf16::new(1), &mut expected).unwrap();
    assert_eq!(expected.0.len(), 5);

    // Later and later, until it has got through two steps and not through three.
    let (mut operations, mut output) = (500, PathBuf::new());
    let mut seen = Losses::default();
    while seen.0.len() < 2 {
        output = folder.join(format!("fails-after-{operations}"));
        let job = prepared(&folder, output.file_name().unwrap().to_str().unwrap()).job;
        let mut device = CpuBf16::new(1);
        device.fail_after(operations);
        seen = Losses::default();
        let error = train(&job, None, &mut device, &mut seen).unwrap_err();
        assert!(error.to_string().contains("the device was lost"), "{error}");
        // There are checkpoints of the steps that were made, and of no other.
        let (found, torn) = newest(&output);
        let expected = (!seen.0.is_empty()).then(|| output.join(format!("checkpoint-{}", seen.0.len())));
        assert_eq!((found, torn.len()), (expected, 0), "{operations} operations");
        assert!(!output.join("adapter_model.safetensors").exists(), "there is no result");
        operations += 250;
    }
    assert_eq!(seen.0, expected.0[..seen.0.len()]);
    assert!(seen.0.len() < 5, "it has failed after the last step");

    let job = prepared(&folder, output.file_name().unwrap().to_str().unwrap()).job;
    let (from, mut rest) = (newest(&output).0.unwrap(), Losses::default());
    train(&job, Some(&from), &mut CpuBf16::new(1), &mut rest).unwrap();
    assert_eq!(rest.0, expected.0[seen.0.len()..]);
    let log = logged(&folder.join("whole"));
    assert!(log.len() == 2 && log.iter().all(|(.., accuracy)| accuracy.is_some_and(|share| share > 0.0)), "{log:?}");
    assert_eq!(logged(&output), log);
    let result = |output: PathBuf| fs::read(output.join("adapter_model.safetensors")).unwrap();
    assert!(result(output) == result(folder.join("whole")), "the result has other bits");
    fs::remove_dir_all(&folder).unwrap();
}
