//! A checkpoint whose values are drawn: the same for the same seed, trained like any other; and the stages of a step.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

use crate::case::{Make, on_every_device};
use garden_device::{Device, Dtype, Planner, Stage};
use garden_input::FAMILIES;
use garden_model::{
    Batch, Checkpoint, Config, FourBit, GradientCheckpointing, Images, LoraConfig, Model, Optimizer, Preset, Row,
    StepResult, Storage, Targets, Training,
};

on_every_device! {
    it_is_trained_like_any_other,
    stages_of_a_step_are_timed_where_that_is_wanted,
    a_device_that_waits_for_rows_is_idle,
}

/// A row of an image of 4 x 4 merged tokens and some text, of which the second half is asked for.
fn batch(config: &Config) -> Batch {
    let (image, text) = (16, 24);
    let mut tokens = vec![config.image_token; image];
    tokens.extend((0..text).map(|place| place * 7 % 500));
    let labels = tokens.iter().enumerate().map(|(place, token)| if place >= 28 { *token } else { -100 }).collect();
    let patches = image * config.vision.merged();
    let pixels = (0..patches * config.vision.patch_values()).map(|place| (place as f32).sin()).collect();
    let images = Images { pixels, grids: vec![[1, 8, 8]] };
    Batch::new(config, &[Row { tokens, labels }], images).unwrap()
}

fn training(targets: Targets) -> Training {
    Training::Lora(LoraConfig { rank: 4, alpha: 8.0, targets, ..LoraConfig::default() })
}

/// A step of the tiny model; where A and B begin does not matter here.
fn step(device: &mut dyn Device, checkpoint: &Checkpoint, storage: &Storage, targets: Targets) -> StepResult {
    let config = Config::tiny();
    let batch = batch(&config);
    let (training, recompute, limits) = (training(targets), GradientCheckpointing::PerLayer, batch.limits());
    let mut planner = Planner::like(device.profile());
    let shapes = Checkpoint::of_shapes(&config, Dtype::Bf16).unwrap();
    Model::build(&mut planner, &config, &shapes, &training, recompute, storage, limits).unwrap();
    let mut model = Model::build(device, &config, checkpoint, &training, recompute, storage, limits).unwrap();
    assert_eq!(device.plan(), planner.plan(), "a plan from shapes is the one from drawn values");
    for parameter in model.parameters() {
        let values = vec![0.01; parameter.shape.iter().product()];
        model.set(device, parameter, &values);
    }
    model.begin_step(device);
    model.learn(device, &batch, 1.0 / batch.targets() as f32, 0).unwrap();
    model.update(device, &Optimizer::default(), 1e-4, 1.0, true);
    model.step_result(device).unwrap()
}

#[test]
fn the_same_seed_draws_the_same_values() {
    let config = Config::tiny();
    let [one, same, other] = [3, 3, 4].map(|seed| Checkpoint::random(&config, seed).unwrap());
    let mut matrices = 0;
    for name in one.names() {
        let [one, same, other] = [&one, &same, &other].map(|checkpoint| checkpoint.tensor(name).unwrap().values());
        assert_eq!(one, same, "{name}");
        match name {
            _ if name.ends_with(".bias") => assert!(one.iter().all(|value| *value == 0.0), "{name}"),
            _ if name.contains("norm") || name.contains("ln_q") => assert!(one.iter().all(|value| *value == 1.0)),
            _ => {
                assert_ne!(one, other, "{name}");
                matrices += 1;
            }
        }
    }
    // Seven linears of each decoder layer, five of each block of the tower, patches, two of the merger, and the embedding.
    assert_eq!(matrices, 3 * 7 + 3 * 5 + 1 + 2 + 1);
    let values = |name: &str| one.tensor(&format!("model.language_model.layers.0.{name}.weight")).unwrap().values();
    assert_ne!(values("mlp.gate_proj"), values("mlp.up_proj"), "tensors differ from each other");
}

fn it_is_trained_like_any_other(make: Make) {
    let checkpoint = Checkpoint::random(&Config::tiny(), 1).unwrap();
    let plain = step(&mut *make(), &checkpoint, &Storage::default(), Targets::decoder(FAMILIES[0]));
    assert!(plain.loss.is_finite() && plain.gradient_norm > 0.0, "{plain:?}");
    // A fresh model knows nothing: its loss is near that of an even guess.
    assert!((plain.loss - 544_f32.ln()).abs() < 1.0, "{plain:?}");
    let storage = Storage { four_bit: Some(FourBit::default()), ..Storage::default() };
    let packed = step(&mut *make(), &checkpoint, &storage, Targets::decoder(FAMILIES[0]));
    assert!(packed.loss.is_finite() && packed.loss != plain.loss, "{packed:?}");
    let again =
        step(&mut *make(), &Checkpoint::random(&Config::tiny(), 1).unwrap(), &storage, Targets::decoder(FAMILIES[0]));
    assert_eq!(again, packed);
}

#[test]
fn a_large_one_has_all_its_values() {
    // 16 GB, were they files; one that is longer than the sheet, up to its last byte.
    let config = Preset::find("qwen2.5-vl-7b").unwrap().config();
    let checkpoint = Checkpoint::random(&config, 1).unwrap();
    let head = checkpoint.tensor("lm_head.weight").unwrap();
    assert_eq!(head.bytes.len(), 152_064 * 3584 * 2);
    assert!(head.bytes[head.bytes.len() - 4096..].iter().any(|byte| *byte != 0));
    head.forget();
}

fn stages_of_a_step_are_timed_where_that_is_wanted(make: Make) {
    let checkpoint = Checkpoint::random(&Config::tiny(), 1).unwrap();
    let device = &mut *make();
    step(device, &checkpoint, &Storage::default(), Targets::all(FAMILIES[0]));
    assert_eq!(device.stage_times().unwrap().total(), 0.0, "nobody asked");
    let device = &mut *make();
    device.time_stages();
    let begin = std::time::Instant::now();
    step(device, &checkpoint, &Storage::default(), Targets::all(FAMILIES[0]));
    let (times, around) = (device.stage_times().unwrap(), begin.elapsed().as_secs_f64());
    for stage in Stage::ALL {
        assert!(times.seconds(stage) > 0.0, "{}: {times:?}", stage.name());
    }
    assert!(times.total() <= around);
    assert_eq!(device.stage_times().unwrap().total(), 0.0, "what was read is gone");
}

/// Rows that are late, before the first batch of a step or between two, are time in which the device has nothing to do.
fn a_device_that_waits_for_rows_is_idle(make: Make) {
    let config = Config::tiny();
    let (checkpoint, batch, device) = (Checkpoint::random(&config, 1).unwrap(), batch(&config), &mut *make());
    let (training, recompute, limits) =
        (training(Targets::decoder(FAMILIES[0])), GradientCheckpointing::Off, batch.limits());
    let storage = Storage::default();
    let mut model = Model::build(device, &config, &checkpoint, &training, recompute, &storage, limits).unwrap();
    device.time_stages();
    let late = std::time::Duration::from_millis(40);
    model.begin_step(device);
    for _ in 0..2 {
        device.finish().unwrap();
        std::thread::sleep(late);
        model.learn(device, &batch, 1.0, 0).unwrap();
    }
    model.update(device, &Optimizer::default(), 1e-4, 1.0, true);
    model.step_result(device).unwrap();
    let idle = device.stage_times().unwrap().seconds(Stage::Idle);
    assert!(idle >= 2.0 * 0.95 * late.as_secs_f64(), "{idle} s of 80 ms");
}
