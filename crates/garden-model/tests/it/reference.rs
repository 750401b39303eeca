//! The engine against what transformers and peft computed (testdata/reference): logits, loss, every gradient, ten steps of training.
//!
//! GARDEN_REFERENCE names a folder of other cases, made with `record.py --random`.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

use crate::case::{Case, cases};
use garden_device::{Cpu, Device, Planner};
use garden_model::{GradientCheckpointing, Model, Optimizer};

/// How far f32 may be away, relative to the size of what is compared.
const LOGITS: f64 = 1e-4;
const LOSS: f64 = 1e-5;
const GRADIENT: f64 = 1e-3;
const LOSSES: f64 = 1e-4;
const NORMS: f64 = 1e-3;
/// All trained parameters together, relative to what training changed.
const TRAINED: f64 = 5e-4;

/// The norm of a difference over the norm of what is expected.
fn apart(got: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(got.len(), expected.len());
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let difference = norm(&mut got.iter().zip(expected).map(|(got, expected)| f64::from(*got) - f64::from(*expected)));
    let size = norm(&mut expected.iter().map(|value| f64::from(*value)));
    if size == 0.0 { difference } else { difference / size }
}

fn mean(losses: &[f32]) -> f64 {
    losses.iter().map(|loss| f64::from(*loss)).sum::<f64>() / losses.len() as f64
}

fn both_policies() -> [GradientCheckpointing; 2] {
    [GradientCheckpointing::Off, GradientCheckpointing::PerLayer]
}

#[test]
fn logits_loss_and_every_gradient() {
    let mut worst = [0.0_f64; 3];
    for case in cases() {
        for recompute in both_policies() {
            let mut cpu = Cpu::new(2);
            let mut model = case.build(&mut cpu, recompute);
            let batch = &case.batches[0];
            let logits = model.logits(&mut cpu, batch).unwrap();
            let expected = case.tensors("outputs.safetensors").tensor("logits").unwrap().values();
            let off = apart(&logits, &expected);
            assert!(off < LOGITS, "{} {recompute:?}: logits are off by {off:.1e}", case.name());
            model.learn(&mut cpu, batch, 1.0 / batch.targets() as f32, 0).unwrap();
            let (loss, expected) =
                (mean(&model.losses(&mut cpu, batch).unwrap()), case.about["expected"]["loss"].as_f64().unwrap());
            let loss_off = (loss - expected).abs() / expected;
            assert!(loss_off < LOSS, "{} {recompute:?}: the loss is {loss}, {expected} expected", case.name());
            let gradient_off = gradients(&case, &mut cpu, &model, recompute);
            worst = [worst[0].max(off), worst[1].max(loss_off), worst[2].max(gradient_off)];
        }
    }
    println!("worst: logits {:.1e}, loss {:.1e}, gradient {:.1e}", worst[0], worst[1], worst[2]);
}

fn gradients(case: &Case, cpu: &mut Cpu, model: &Model, recompute: GradientCheckpointing) -> f64 {
    let expected = case.tensors("gradients.safetensors");
    let mut worst = 0.0_f64;
    let mut compared = 0;
    for parameter in model.parameters() {
        let got = model.gradient(cpu, parameter).unwrap();
        if !expected.has(&parameter.name) {
            assert!(
                got.iter().all(|value| *value == 0.0),
                "{}: `{}` should have no gradient",
                case.name(),
                parameter.name
            );
            continue;
        }
        compared += 1;
        let off = apart(&got, &expected.tensor(&parameter.name).unwrap().values());
        assert!(
            off < GRADIENT,
            "{} {recompute:?}: the gradient of `{}` is off by {off:.1e}",
            case.name(),
            parameter.name
        );
        worst = worst.max(off);
    }
    assert_eq!(compared, expected.names().count(), "{}: some gradients were not computed", case.name());
    worst
}

#[test]
fn ten_steps_of_training() {
    for case in cases() {
        for recompute in both_policies() {
            train(&case, recompute);
        }
    }
}

fn train(case: &Case, recompute: GradientCheckpointing) {
    let mut cpu = Cpu::new(2);
    let mut model = case.build(&mut cpu, recompute);
    let before: Vec<Vec<f32>> =
        model.parameters().iter().map(|parameter| model.value(&mut cpu, parameter).unwrap()).collect();
    let optimizer = case.optimizer();
    let rates = case.numbers("training", "learning_rates");
    let (losses, norms) = (case.numbers("expected", "losses"), case.numbers("expected", "gradient_norms"));
    for (step, rate) in rates.iter().enumerate() {
        let batch = &case.batches[step % case.batches.len()];
        model.begin_step(&mut cpu);
        model.learn(&mut cpu, batch, 1.0 / batch.targets() as f32, 0).unwrap();
        let loss = mean(&model.losses(&mut cpu, batch).unwrap());
        model.update(&mut cpu, &optimizer, *rate as f32, 1.0, batch.patches() > 0);
        let norm = f64::from(model.step_result(&mut cpu).unwrap().gradient_norm);
        let place = format!("{} {recompute:?} step {step}", case.name());
        assert!((loss - losses[step]).abs() < LOSSES * losses[step], "{place}: loss {loss}, {} expected", losses[step]);
        assert!((norm - norms[step]).abs() < NORMS * norms[step], "{place}: norm {norm}, {} expected", norms[step]);
    }
    let trained = case.tensors("trained.safetensors");
    let (mut off, mut moved) = (0.0, 0.0);
    for (parameter, before) in model.parameters().iter().zip(&before) {
        let expected = trained.tensor(&parameter.name).unwrap().values();
        for ((got, expected), before) in model.value(&mut cpu, parameter).unwrap().iter().zip(&expected).zip(before) {
            off += f64::from(got - expected).powi(2);
            moved += f64::from(expected - before).powi(2);
        }
    }
    let off = (off / moved).sqrt();
    assert!(
        off < TRAINED,
        "{} {recompute:?}: trained parameters are off by {off:.1e} of what training changed",
        case.name()
    );
}

#[test]
fn the_plan_is_what_is_used() {
    for case in cases() {
        for recompute in both_policies() {
            let (mut cpu, mut planner) = (Cpu::new(2), Planner::for_cpu(2));
            let mut model = case.build(&mut cpu, recompute);
            case.build(&mut planner, recompute);
            assert_eq!(planner.plan(), cpu.plan(), "{} {recompute:?}", case.name());
            let batch = &case.batches[0];
            model.learn(&mut cpu, batch, 1.0, 0).unwrap();
            model.update(&mut cpu, &Optimizer::default(), 1e-3, 1.0, true);
            assert_eq!(planner.plan(), cpu.plan(), "{} {recompute:?} after a step", case.name());
        }
    }
}
