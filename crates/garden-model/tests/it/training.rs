//! Adapters that come back, dropout, the same bits again, and what is kept.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

use crate::case::{cases, find, step};
use garden_device::{Cpu, Device, Purpose};
use garden_model::{GradientCheckpointing, Model, Storage, Training, read_adapter, write_adapter};

#[test]
fn an_adapter_comes_back_as_it_was() {
    for case in cases() {
        let Training::Lora(config) = case.training() else { continue };
        let folder = std::env::temp_dir().join(format!("garden-adapter-{}-{}", std::process::id(), case.name()));
        let mut cpu = Cpu::new(1);
        let mut model = case.build(&mut cpu, GradientCheckpointing::PerLayer);
        step(&case, &mut cpu, &mut model, 0);
        write_adapter(&mut cpu, &model, &config, None, &folder).unwrap();
        let expected = model.logits(&mut cpu, &case.batches[0]).unwrap();
        let adapter = read_adapter(&folder).unwrap();
        assert_eq!(adapter.config, config);
        let mut again = case.build(&mut cpu, GradientCheckpointing::PerLayer);
        adapter.put(&mut cpu, &again).unwrap();
        assert_eq!(again.logits(&mut cpu, &case.batches[0]).unwrap(), expected, "{}", case.name());
        std::fs::remove_dir_all(folder).unwrap();
    }
}

/// PEFT loads what we save and computes the same. GARDEN_PYTHON names a Python with torch, transformers and peft.
#[test]
fn peft_takes_our_adapters() {
    let Some(python) = std::env::var_os("GARDEN_PYTHON") else {
        garden_testing::skip("GARDEN_PYTHON names no Python with torch, transformers and peft");
        return;
    };
    let script = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/reference/check_adapter.py");
    // Bases of 4 bits are loaded in another way there: tests/it/packing.rs.
    for case in cases().into_iter().filter(|case| case.about["quantisation"].is_null()) {
        let Training::Lora(config) = case.training() else { continue };
        let folder = std::env::temp_dir().join(format!("garden-peft-{}-{}", std::process::id(), case.name()));
        let mut cpu = Cpu::new(1);
        let mut model = case.build(&mut cpu, GradientCheckpointing::PerLayer);
        // Another adapter than the recorded one.
        for number in 0..5 {
            step(&case, &mut cpu, &mut model, number);
        }
        write_adapter(&mut cpu, &model, &config, None, &folder).unwrap();
        let logits = model.logits(&mut cpu, &case.batches[0]).unwrap();
        let bytes: Vec<u8> = logits.iter().flat_map(|value| value.to_le_bytes()).collect();
        let shape = vec![case.batches[0].tokens(), case.config.text.vocabulary];
        let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape, &bytes).unwrap();
        let file = folder.join("logits.safetensors");
        std::fs::write(&file, safetensors::serialize([("logits", view)], None).unwrap()).unwrap();
        let mut command = std::process::Command::new(&python);
        command.arg(&script).arg("--model").arg(&case.folder).arg("--adapter").arg(&folder);
        let done = command
            .arg("--batch")
            .arg(case.folder.join("batch.safetensors"))
            .arg("--logits")
            .arg(&file)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
        println!("{}: {}", case.name(), said.trim());
        assert!(done.status.success(), "{}: {said}", case.name());
        std::fs::remove_dir_all(folder).unwrap();
    }
}

#[test]
fn the_same_seed_gives_the_same_bits() {
    let run = |seed_offset: usize| {
        let case = find("vision_lora");
        let Training::Lora(mut config) = case.training() else { panic!("adapters are trained there") };
        config.dropout = 0.25;
        let mut cpu = Cpu::new(2);
        let training = Training::Lora(config);
        let mut model = Model::build(
            &mut cpu,
            &case.config,
            &case.checkpoint,
            &training,
            GradientCheckpointing::PerLayer,
            &Storage::default(),
            case.limits(),
        )
        .unwrap();
        case.adapter().unwrap().put(&mut cpu, &model).unwrap();
        (0..4).map(|number| step(&case, &mut cpu, &mut model, seed_offset + number).to_bits()).collect::<Vec<u32>>()
    };
    assert_eq!(run(0), run(0));
    assert_ne!(run(0), run(100), "another seed drops other inputs");
}

/// With what is dropped fixed by the seed, the loss is a smooth function of the adapters, whose slope the gradient must give.
#[test]
fn gradients_are_right_with_dropout() {
    let case = find("decoder_lora");
    let Training::Lora(mut config) = case.training() else { panic!("adapters are trained there") };
    config.dropout = 0.3;
    for recompute in [GradientCheckpointing::Off, GradientCheckpointing::PerLayer] {
        let mut cpu = Cpu::new(1);
        let training = Training::Lora(config.clone());
        let mut model = Model::build(
            &mut cpu,
            &case.config,
            &case.checkpoint,
            &training,
            recompute,
            &Storage::default(),
            case.limits(),
        )
        .unwrap();
        case.adapter().unwrap().put(&mut cpu, &model).unwrap();
        let batch = &case.batches[0];
        let mut loss = |cpu: &mut Cpu| {
            model.begin_step(cpu);
            model.learn(cpu, batch, 1.0, 7).unwrap();
            model.losses(cpu, batch).unwrap().iter().map(|loss| f64::from(*loss)).sum::<f64>()
        };
        loss(&mut cpu);
        let parameters = model.parameters().to_vec();
        let (mut slope, mut expected) = (0.0, 0.0);
        for (index, parameter) in parameters.iter().enumerate().step_by(5) {
            let start = model.value(&mut cpu, parameter).unwrap();
            model.begin_step(&mut cpu);
            model.learn(&mut cpu, batch, 1.0, 7).unwrap();
            let gradient = model.gradient(&mut cpu, parameter).unwrap();
            let size = gradient.iter().map(|g| g * g).sum::<f32>().sqrt();
            let mut at = |h: f32| {
                let moved: Vec<f32> = start.iter().zip(&gradient).map(|(x, g)| x + h * g / size).collect();
                model.set(&mut cpu, parameter, &moved);
                model.begin_step(&mut cpu);
                model.learn(&mut cpu, batch, 1.0, 7).unwrap();
                model.losses(&mut cpu, batch).unwrap().iter().map(|loss| f64::from(*loss)).sum::<f64>()
            };
            let difference = (at(5e-3) - at(-5e-3)) / 1e-2;
            model.set(&mut cpu, parameter, &start);
            let off = (difference - f64::from(size)).abs() / f64::from(size);
            assert!(off < 1e-2, "{recompute:?} parameter {index}: slope {difference}, gradient {size}");
            (slope, expected) = (slope + difference, expected + f64::from(size));
        }
        assert!((slope - expected).abs() < 3e-3 * expected);
    }
}

#[test]
fn recomputing_keeps_one_activation_per_layer() {
    let case = find("full_tied");
    let plan = |recompute| {
        let mut cpu = Cpu::new(1);
        case.build(&mut cpu, recompute);
        cpu.plan().clone()
    };
    let (all, few) = (plan(GradientCheckpointing::Off), plan(GradientCheckpointing::PerLayer));
    let (text, vision, limits) = (&case.config.text, &case.config.vision, case.limits());
    let aligned = |values: usize| (values * 4).next_multiple_of(64);
    let inputs = (text.layers + 1) * aligned(limits.tokens * text.hidden)
        + (vision.depth + 1) * aligned(limits.patches * vision.hidden);
    assert_eq!(few.bytes(Purpose::Activations), inputs);
    assert!(
        all.bytes(Purpose::Activations) > few.bytes(Purpose::Activations) + few.bytes(Purpose::RecomputedActivations)
    );
    assert_eq!(all.bytes(Purpose::RecomputedActivations), 0);
    for purpose in [Purpose::Weights, Purpose::Gradients, Purpose::Optimizer, Purpose::Batch] {
        assert_eq!(all.bytes(purpose), few.bytes(purpose));
    }
}
