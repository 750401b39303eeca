//! A device that fails in the middle of training: whatever reads from it returns the error, nothing that looks whole is written, and what was written
//! before is as it was.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

use garden_input::FAMILIES;
use std::fs;
use std::path::{Path, PathBuf};

use crate::case::{Case, find, step};
use garden_device::{CpuBf16, Device, Dtype};
use garden_model::{
    Engine, EngineLimits, Error, GradientCheckpointing, Images, Model, Optimizer, Prompt, Sampling, Training,
    read_adapter, write_adapter,
};

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("garden-failing-{name}-{}", std::process::id()));
    let _gone = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// All files of a folder, with their bytes.
fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => all.extend(files(&path)),
            false => all.push((path.clone(), fs::read(&path).unwrap())),
        }
    }
    all.sort();
    all
}

fn assert_lost<T>(result: Result<T, Error>, what: &str) {
    match result {
        Err(Error::Device(error)) => assert!(error.problem.contains("lost"), "{what}: {error}"),
        Err(other) => panic!("{what}: {other}"),
        Ok(_) => panic!("{what} works on a device that failed"),
    }
}

/// Saves everything that a checkpoint has.
fn save(case: &Case, device: &mut dyn Device, model: &Model, folder: &Path) -> [Result<(), Error>; 3] {
    let Training::Lora(config) = case.training() else { panic!("adapters are trained there") };
    [
        model.write_values(device, Dtype::F32, &str::to_string, &folder.join("values.safetensors")),
        model.write_optimizer(device, &folder.join("optimizer.safetensors")),
        write_adapter(device, model, &config, None, &folder.join("adapter")),
    ]
}

/// In the first operation of a step, within it, and in its update.
#[test]
fn a_step_that_fails_leaves_what_was_saved() {
    let case = find("vision_lora");
    let whole = folder("whole");
    let (mut device, recompute) = (CpuBf16::new(1), GradientCheckpointing::PerLayer);
    let mut model = case.build(&mut device, recompute);
    for number in 0..2 {
        step(&case, &mut device, &mut model, number);
    }
    save(&case, &mut device, &model, &whole).into_iter().for_each(|saved| saved.unwrap());
    let (before, expected) = (files(&whole), step(&case, &mut device, &mut model, 2));
    let batch = &case.batches[0];
    let mut failed = 0;
    for operations in [0, 1, 10, 100, 300, 500, 700, 1000] {
        let mut device = CpuBf16::new(1);
        let mut model = case.build(&mut device, recompute);
        model.read_values(&mut device, &whole.join("values.safetensors")).unwrap();
        model.read_optimizer(&mut device, &whole.join("optimizer.safetensors")).unwrap();
        device.fail_after(operations);
        model.begin_step(&mut device);
        model.learn(&mut device, batch, 1.0, 1).unwrap();
        model.update(&mut device, &Optimizer::default(), 1e-4, 1.0, true);
        if model.step_result(&mut device).is_ok() {
            // It has made the step before it would fail.
            continue;
        }
        failed += 1;
        let what = format!("after {operations} operations");
        assert_lost(model.step_result(&mut device), &what);
        assert_lost(model.losses(&mut device, batch), &what);
        assert_lost(model.hits(&mut device, batch), &what);
        assert_lost(model.logits(&mut device, batch), &what);
        assert_lost(model.evaluate(&mut device, batch), &what);
        let parameter = &model.parameters()[0];
        assert_lost(model.value(&mut device, parameter), &what);
        assert_lost(model.gradient(&mut device, parameter), &what);
        // Into a new folder: nothing that could be taken for a file of a checkpoint.
        let new = folder("new");
        for saved in save(&case, &mut device, &model, &new) {
            assert_lost(saved, &what);
        }
        assert_eq!(files(&new), [], "{what}");
        assert!(read_adapter(&new.join("adapter"), FAMILIES[0]).is_err());
        fs::remove_dir_all(&new).unwrap();
        // Over what is there: that stays.
        for saved in save(&case, &mut device, &model, &whole) {
            assert_lost(saved, &what);
        }
        assert!(files(&whole) == before, "{what}: a file that was whole was changed");
    }
    assert!(failed >= 4, "only {failed} times something failed");
    // Another device goes on from there, to the bits that it would have had.
    let mut device = CpuBf16::new(1);
    let mut model = case.build(&mut device, recompute);
    read_adapter(&whole.join("adapter"), FAMILIES[0]).unwrap().put(&mut device, &model).unwrap();
    model.read_optimizer(&mut device, &whole.join("optimizer.safetensors")).unwrap();
    assert_eq!(step(&case, &mut device, &mut model, 2).to_bits(), expected.to_bits());
    fs::remove_dir_all(&whole).unwrap();
}

#[test]
fn answers_of_a_failed_device_are_not_given() {
    let case = find("vision_lora");
    let mut device = CpuBf16::new(1);
    let limits = EngineLimits { rows: 1, context: 20, patches: 0 };
    let mut engine = Engine::build(&mut device, &case.config, &case.checkpoint, None, None, limits).unwrap();
    let sampling = Sampling { max_new_tokens: 10, ..Sampling::default() };
    let prompt = || vec![Prompt { tokens: vec![5, 6, 7], images: Images::default() }];
    engine.generate(&mut device, prompt(), &sampling, &mut |_| ()).unwrap();
    // Some tokens come before it fails.
    device.fail_after(150);
    let mut tokens = 0;
    assert_lost(engine.generate(&mut device, prompt(), &sampling, &mut |_| tokens += 1), "generation");
    assert!(tokens < 10, "{tokens}");
    assert_lost(engine.generate(&mut device, prompt(), &sampling, &mut |_| ()), "generation");
}
