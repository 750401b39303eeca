//! Adapters that come back, dropout, the same bits again, and what is kept.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test ends where something is not as it should be, and tells what it measured"
)]

use garden_input::FAMILIES;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::case::{Case, Make, cases, find, is_f32, on_every_device, step};
use crate::reference::{BF16, apart};
use garden_device::{Cpu, CpuBf16, Device, Dtype, Purpose};
use garden_model::{
    Engine, EngineLimits, GradientCheckpointing, LoraConfig, Model, Optimizer, Part, Storage, Training, read_adapter,
    write_adapter,
};

on_every_device! {
    an_adapter_comes_back_as_it_was,
    ranks_and_alphas_of_single_modules_are_theirs,
    a_step_changes_every_adapter,
    the_same_seed_gives_the_same_bits,
    recomputing_keeps_one_activation_per_layer,
    what_was_saved_goes_on_bit_for_bit,
    moments_of_8_bits_go_on_bit_for_bit,
    a_state_moves_from_a_processor_and_back,
    vision_tower_and_merger_may_have_rates_of_their_own,
    saved_modules_are_trained_like_all_weights_and_come_back,
}

/// Modules that an adapter has as a whole: what is between vision tower and decoder, the head, the embedding.
const MODULES: [&str; 3] = ["visual.merger", "lm_head", "embed_tokens"];

/// A case whose head is not its embedding, and its adapter with modules to save.
fn with_modules(case: &Case) -> Option<LoraConfig> {
    let Training::Lora(config) = case.training() else { return None };
    let is_whole = case.about["quantisation"].is_null()
        && !case.config.is_tied
        && !config.reaches(Part::Merger, &case.config).unwrap();
    is_whole.then(|| LoraConfig { modules_to_save: MODULES.map(String::from).to_vec(), ..config })
}

fn saved_modules_are_trained_like_all_weights_and_come_back(make: Make) {
    let mut seen = 0;
    for case in cases() {
        let Some(config) = with_modules(&case) else { continue };
        let device = &mut *make();
        let training = Training::Lora(config.clone());
        let mut model = case.build_for(device, &training, GradientCheckpointing::PerLayer);
        let learn = |model: &mut Model, device: &mut dyn Device| {
            model.begin_step(device);
            model.learn(device, &case.batches[0], 0.01, 0).unwrap();
        };
        // While adapters are zero it is the model that all weights are trained of, with the same gradients.
        learn(&mut model, device);
        let other = &mut *make();
        let mut full = case.build_for(other, &Training::Full, GradientCheckpointing::PerLayer);
        learn(&mut full, other);
        let mut modules = 0;
        for parameter in model.parameters().iter().filter(|parameter| !parameter.name.contains(".lora_")) {
            let name = parameter.name.strip_prefix("base_model.model.").unwrap();
            assert!(MODULES.iter().any(|module| name.contains(module)), "{name}");
            let same = full.parameters().iter().find(|other| other.name == name).unwrap();
            let (own, expected) = (model.gradient(device, parameter).unwrap(), full.gradient(other, same).unwrap());
            let largest = expected.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
            // A GPU keeps biases that are not trained in 16 bits, so that activations round otherwise than where all are trained.
            let allowed = if is_f32(make) { 1e-5 } else { BF16.gradient };
            let off = apart(&own, &expected);
            assert!(off <= allowed, "{name}: {off} of the gradient");
            modules += usize::from(largest > 0.0);
        }
        // Norm, two matrices with biases; head and embedding.
        assert!(modules == 7 || case.batches[0].patches() == 0 && modules == 2, "{}: {modules}", case.name());
        case.adapter().unwrap();
        let folder = folder(&format!("modules-{}", case.name()));
        for number in 0..3 {
            step(&case, device, &mut model, number);
        }
        write_adapter(device, &model, &config, None, &folder).unwrap();
        let expected = model.logits(device, &case.batches[0]).unwrap();
        let adapter = read_adapter(&folder, FAMILIES[0]).unwrap();
        assert_eq!(adapter.config, config);
        let mut again = case.build_for(device, &training, GradientCheckpointing::PerLayer);
        assert_ne!(again.logits(device, &case.batches[0]).unwrap(), expected, "{}", case.name());
        adapter.put(device, &again).unwrap();
        assert_eq!(again.logits(device, &case.batches[0]).unwrap(), expected, "{}", case.name());
        std::fs::remove_dir_all(folder).unwrap();
        seen += 1;
    }
    assert!(seen > 0);
}

/// Before transformers 4.52 the decoder was `model` and the vision tower `visual`; adapters of that time have such names.
#[test]
fn adapters_of_both_layouts_are_read() {
    let mut seen = [0, 0];
    for case in cases() {
        let mut configs: Vec<LoraConfig> = with_lora(&case).into_iter().collect();
        configs.extend(with_modules(&case));
        for config in configs {
            let (device, folder) = (&mut Cpu::new(1), folder(&format!("layouts-{}", case.name())));
            let training = Training::Lora(config.clone());
            let mut model = case.build_for(device, &training, GradientCheckpointing::PerLayer);
            for parameter in model.parameters() {
                let length: usize = parameter.shape.iter().product();
                model.set(
                    device,
                    parameter,
                    &(0..length).map(|place| ((place % 9) as f32 - 4.0) / 60.0).collect::<Vec<_>>(),
                );
            }
            write_adapter(device, &model, &config, None, &folder).unwrap();
            let expected = model.logits(device, &case.batches[0]).unwrap();
            let file = folder.join("adapter_model.safetensors");
            let bytes = std::fs::read(&file).unwrap();
            let read = safetensors::SafeTensors::deserialize(&bytes).unwrap();
            let older = |name: &str| {
                let name = name.replace("base_model.model.model.language_model.", "base_model.model.model.");
                name.replace("base_model.model.model.visual.", "base_model.model.visual.")
            };
            let tensors: Vec<(String, safetensors::tensor::TensorView)> =
                read.tensors().into_iter().map(|(name, tensor)| (older(&name), tensor)).collect();
            assert!(
                tensors.iter().all(|(name, _)| !name.contains("language_model") && !name.contains("model.visual.")
                    || name.contains("base_model.model.visual."))
            );
            seen[usize::from(tensors.iter().any(|(name, _)| name.contains(".visual.")))] += 1;
            std::fs::write(&file, safetensors::serialize(tensors, None).unwrap()).unwrap();
            let mut again = case.build_for(device, &training, GradientCheckpointing::PerLayer);
            let adapter = read_adapter(&folder, FAMILIES[0]).unwrap();
            adapter.put(device, &again).unwrap();
            assert_eq!(again.logits(device, &case.batches[0]).unwrap(), expected, "{}", case.name());
            // And where it is only applied: every tensor has its place.
            let limits = EngineLimits { rows: 1, context: 8, patches: 0 };
            Engine::build(&mut Cpu::new(1), &case.config, &case.checkpoint, Some(&adapter), None, limits).unwrap();
            std::fs::remove_dir_all(folder).unwrap();
        }
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
}

/// What an adapter cannot have as a whole is refused by its name, with the reason.
#[test]
fn modules_that_cannot_be_saved_are_refused() {
    let tied = cases().into_iter().find(|case| case.config.is_tied && with_lora(case).is_some()).unwrap();
    let whole = cases().into_iter().find(|case| with_modules(case).is_some()).unwrap();
    let refused = |case: &Case, module: &str| {
        let config = LoraConfig { modules_to_save: vec![module.to_string()], ..with_lora(case).unwrap() };
        let built = Model::build(
            &mut Cpu::new(1),
            &case.config,
            &case.checkpoint,
            &Training::Lora(config),
            GradientCheckpointing::PerLayer,
            &case.storage(),
            case.limits(),
        );
        built.err().map_or_else(String::new, |error| error.to_string())
    };
    assert!(
        refused(&tied, "lm_head")
            .contains("`lm_head` cannot be among the modules to save: it is the same as the embedding")
    );
    assert!(refused(&tied, "embed_tokens").contains("would untie the two"));
    assert!(refused(&whole, "patch_embed").contains("convolution"));
    assert!(refused(&whole, "visual").contains("convolution"));
    assert!(refused(&whole, "classifier").contains("no module `classifier`"));
    assert!(refused(&whole, "q_proj").contains("list it in only one of the two"), "{}", refused(&whole, "q_proj"));
    let packed =
        cases().into_iter().find(|case| !case.about["quantisation"].is_null() && with_lora(case).is_some()).unwrap();
    let told = refused(&packed, "input_layernorm");
    assert!(told.is_empty(), "norms are not packed: {told}");
}

fn with_lora(case: &Case) -> Option<LoraConfig> {
    let Training::Lora(config) = case.training() else { return None };
    Some(config)
}

/// A first step of AdamW changes values in proportion to the rate.
fn vision_tower_and_merger_may_have_rates_of_their_own(make: Make) {
    let case = find("vision_lora");
    let changes = |vision_factor: f32, merger_factor: f32| -> Vec<(String, Vec<f32>)> {
        let device = &mut *make();
        let mut model = case.build(device, GradientCheckpointing::PerLayer);
        let values = |model: &Model, device: &mut dyn Device| -> Vec<Vec<f32>> {
            model.parameters().iter().map(|parameter| model.value(device, parameter).unwrap()).collect()
        };
        let before = values(&model, device);
        let optimizer = Optimizer { decay: 0.0, vision_factor, merger_factor, ..case.optimizer() };
        model.begin_step(device);
        model.learn(device, &case.batches[0], 0.01, 0).unwrap();
        model.update(device, &optimizer, 1e-2, 1.0, true);
        model.step_result(device).unwrap();
        let after = values(&model, device);
        let change = |(before, after): (&Vec<f32>, &Vec<f32>)| {
            before.iter().zip(after).map(|(one, other)| other - one).collect()
        };
        let names = model.parameters().iter().map(|parameter| parameter.name.clone());
        names.zip(before.iter().zip(&after).map(change)).collect()
    };
    let (same, own) = (changes(1.0, 1.0), changes(0.25, 3.0));
    let mut seen = [0.0_f32; 3];
    for ((name, same), (_, own)) in same.iter().zip(&own) {
        let (group, factor) = match name {
            name if name.contains("visual.merger.") => (2, 3.0),
            name if name.contains("visual.") => (1, 0.25),
            _ => (0, 1.0),
        };
        for (one, other) in same.iter().zip(own) {
            assert!((other - factor * one).abs() <= 1e-5 * one.abs().max(1e-3), "{name}: {one} becomes {other}");
            seen[group] = seen[group].max(one.abs());
        }
    }
    assert!(seen.iter().all(|change| *change > 1e-3), "{seen:?}");
}

fn an_adapter_comes_back_as_it_was(make: Make) {
    for case in cases() {
        let Training::Lora(config) = case.training() else { continue };
        let device = &mut *make();
        let folder = folder(&format!("adapter-{}", case.name()));
        let mut model = case.build(device, GradientCheckpointing::PerLayer);
        step(&case, device, &mut model, 0);
        write_adapter(device, &model, &config, None, &folder).unwrap();
        let expected = model.logits(device, &case.batches[0]).unwrap();
        let adapter = read_adapter(&folder, FAMILIES[0]).unwrap();
        assert_eq!(adapter.config, config);
        let mut again = case.build(device, GradientCheckpointing::PerLayer);
        adapter.put(device, &again).unwrap();
        assert_eq!(again.logits(device, &case.batches[0]).unwrap(), expected, "{}", case.name());
        std::fs::remove_dir_all(folder).unwrap();
    }
}

/// An adapter whose linears have ranks and alphas of their own is one of the highest rank whose other rows are zero and whose B has the scale in it. Scales are powers of two, so
/// that this rounds nothing.
fn ranks_and_alphas_of_single_modules_are_theirs(make: Make) {
    const RANK: usize = 16;
    let case = find("vision_lora");
    let Training::Lora(config) = case.training() else { panic!("adapters are trained there") };
    let ranks = [("q_proj", 9), ("k_proj", 1), (r"layers\.1\.mlp\..*", 6), ("attn.qkv", 3), ("merger.mlp.2", 16)];
    let alphas = [
        ("q_proj", 36.0),
        ("v_proj", 2.0),
        (r"layers\.1\.mlp\.up_proj", 24.0),
        (r"layers\.1\.mlp\..*", 12.0),
        ("attn.qkv", 3.0),
        ("k_proj", 0.25),
    ];
    let own = LoraConfig {
        rank: 4,
        alpha: 8.0,
        ranks: ranks.map(|(pattern, rank)| (pattern.into(), rank)).to_vec(),
        alphas: alphas.map(|(pattern, alpha)| (pattern.into(), alpha)).to_vec(),
        ..config.clone()
    };
    let even = LoraConfig { rank: RANK, alpha: RANK as f32, ranks: Vec::new(), alphas: Vec::new(), ..config };
    // By construction, as PEFT has it: the first pattern that matches counts.
    let scale = |name: &str| match name {
        name if name.contains("q_proj") => 4.0,
        name if name.contains("k_proj") => 0.25,
        name if name.contains("layers.1.mlp.up_proj") => 4.0,
        name if name.contains("v_proj") => 0.5,
        name if name.contains("attn.qkv") => 1.0,
        name if name.contains("merger.mlp.2") => 0.5,
        _ => 2.0_f32,
    };
    let (device, other) = (&mut *make(), &mut *make());
    let mut model = case.build_for(device, &Training::Lora(own), GradientCheckpointing::PerLayer);
    let mut reference = case.build_for(other, &Training::Lora(even), GradientCheckpointing::PerLayer);
    let mut random = garden_random::SplitMix64(7);
    let (parameters, wide) = (model.parameters().to_vec(), reference.parameters().to_vec());
    assert_eq!(parameters.len(), wide.len());
    let mut seen = std::collections::BTreeSet::new();
    for (narrow, wide) in parameters.iter().zip(&wide) {
        assert_eq!(narrow.name, wide.name);
        let drawn: Vec<f32> = (0..narrow.shape.iter().product()).map(|_| random.unit() as f32 * 0.2 - 0.1).collect();
        model.set(device, narrow, &drawn);
        reference.set(other, wide, &widened(&narrow.name, &narrow.shape, &wide.shape, &drawn, scale(&narrow.name)));
        if narrow.name.contains("lora_A") {
            seen.insert(narrow.shape[0]);
        }
    }
    assert_eq!(seen.into_iter().collect::<Vec<usize>>(), [1, 3, 4, 6, 9, 16]);
    let (batch, share) = (&case.batches[0], 0.01);
    let allowed = if is_f32(make) { 1e-5 } else { BF16.gradient };
    let logits = [model.logits(device, batch).unwrap(), reference.logits(other, batch).unwrap()];
    let off = apart(&logits[0], &logits[1]);
    assert!(off < if is_f32(make) { 1e-5 } else { BF16.logits }, "logits are off by {off:.1e}");
    model.learn(device, batch, share, 0).unwrap();
    reference.learn(other, batch, share, 0).unwrap();
    let mut worst = (0.0, "");
    for (narrow, wide) in parameters.iter().zip(&wide) {
        let got = model.gradient(device, narrow).unwrap();
        // The gradient of B is that of the wide one's, times the scale that is in it; that of A is the same. What is beyond is zero.
        let back = if narrow.name.contains("lora_B") { 1.0 / scale(&narrow.name) } else { 1.0 };
        let expected = widened(&narrow.name, &narrow.shape, &wide.shape, &got, back);
        let off = apart(&reference.gradient(other, wide).unwrap(), &expected);
        worst = if off > worst.0 { (off, &narrow.name) } else { worst };
    }
    assert!(worst.0 < allowed, "the gradient of `{}` is off by {:.1e}", worst.1, worst.0);
    println!("logits are off by {off:.1e}, gradients by {:.1e} at most, that of `{}`", worst.0, worst.1);
}

/// A or B of a lower rank as one of a higher, with zeros in the rest and B times a factor.
fn widened(name: &str, shape: &[usize], wide: &[usize], values: &[f32], factor: f32) -> Vec<f32> {
    let mut all = vec![0.0; wide.iter().product()];
    let factor = if name.contains("lora_B") { factor } else { 1.0 };
    for (row, values) in values.chunks_exact(shape[1]).enumerate() {
        for (column, value) in values.iter().enumerate() {
            all[row * wide[1] + column] = value * factor;
        }
    }
    all
}

/// PEFT loads what we save and computes the same. GARDEN_PYTHON names a Python with torch, transformers and peft.
#[test]
fn peft_takes_our_adapters() {
    let Some(python) = std::env::var_os("GARDEN_PYTHON") else {
        garden_testing::skip("GARDEN_PYTHON names no Python with torch, transformers and peft");
        return;
    };
    let script = crate::case::testdata().join("reference/check_adapter.py");
    // Bases of 4 bits are loaded in another way there (tests/it/packing.rs), and a toy not at all.
    let plain = cases().into_iter().filter_map(|case| Some((with_lora(&case)?, case)));
    let saved = cases().into_iter().filter_map(|case| Some((with_modules(&case)?, case)));
    let loads = |case: &Case| case.about["quantisation"].is_null() && FAMILIES.contains(&case.config.family);
    for (config, case) in plain.chain(saved).filter(|(_, case)| loads(case)) {
        let folder = std::env::temp_dir().join(format!("garden-peft-{}-{}", std::process::id(), case.name()));
        let mut cpu = Cpu::new(1);
        let mut model = match config.modules_to_save.is_empty() {
            true => case.build(&mut cpu, GradientCheckpointing::PerLayer),
            false => {
                let training = Training::Lora(config.clone());
                let model = case.build_for(&mut cpu, &training, GradientCheckpointing::PerLayer);
                // Anything but zero, so that the adapter's own matrices learn.
                for parameter in model.parameters().iter().filter(|parameter| parameter.name.contains(".lora_")) {
                    let length: usize = parameter.shape.iter().product();
                    let values: Vec<f32> = (0..length).map(|place| ((place % 7) as f32 - 3.0) / 50.0).collect();
                    model.set(&mut cpu, parameter, &values);
                }
                model
            }
        };
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

/// One step through tower and decoder, small enough to be watched by a checker that slows every instruction down.
fn a_step_changes_every_adapter(make: Make) {
    let (case, device) = (find("vision_lora"), &mut *make());
    let mut model = case.build(device, GradientCheckpointing::PerLayer);
    let before = values(device, &model);
    step(&case, device, &mut model, 0);
    for ((parameter, before), after) in model.parameters().to_vec().iter().zip(before).zip(values(device, &model)) {
        assert!(after.iter().all(|bits| f32::from_bits(*bits).is_finite()), "{} is no longer finite", parameter.name);
        assert_ne!(before, after, "{} has not changed", parameter.name);
    }
}

fn the_same_seed_gives_the_same_bits(make: Make) {
    let run = |seed_offset: usize| {
        let case = find("vision_lora");
        let Training::Lora(mut config) = case.training() else { panic!("adapters are trained there") };
        config.dropout = 0.25;
        let device = &mut *make();
        let training = Training::Lora(config);
        let mut model = Model::build(
            device,
            &case.config,
            &case.checkpoint,
            &training,
            GradientCheckpointing::PerLayer,
            &Storage::default(),
            case.limits(),
        )
        .unwrap();
        case.adapter().unwrap().put(device, &model).unwrap();
        (0..4).map(|number| step(&case, device, &mut model, seed_offset + number).to_bits()).collect::<Vec<u32>>()
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

fn recomputing_keeps_one_activation_per_layer(make: Make) {
    let case = find("full_tied");
    let plan = |recompute| {
        let mut device = make();
        case.build(&mut *device, recompute);
        device.plan().clone()
    };
    let (all, few) = (plan(GradientCheckpointing::Off), plan(GradientCheckpointing::PerLayer));
    let (text, vision, limits) = (&case.config.text, &case.config.vision, case.limits());
    let profile = make().profile().clone();
    let aligned = |values: usize| (values * profile.activations.size()).next_multiple_of(profile.alignment);
    let inputs = (text.layers.len() + 1) * aligned(limits.tokens * text.hidden)
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

/// A new folder: tests of several devices run at the same time.
fn folder(name: &str) -> std::path::PathBuf {
    static MADE: AtomicUsize = AtomicUsize::new(0);
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("garden-{name}-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn steps(case: &Case, device: &mut dyn Device, model: &mut Model, numbers: std::ops::Range<usize>) -> Vec<u32> {
    numbers.map(|number| step(case, device, model, number).to_bits()).collect()
}

/// The bits of all trained values.
fn values(device: &mut dyn Device, model: &Model) -> Vec<Vec<u32>> {
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<u32>>();
    model.parameters().iter().map(|parameter| bits(model.value(device, parameter).unwrap())).collect()
}

fn what_was_saved_goes_on_bit_for_bit(make: Make) {
    // Adapters on both halves, with padding on some devices; all weights; over 4 bits.
    for name in ["vision_lora", "full_tied", "nf4_odd_blocks"] {
        let case = find(name);
        goes_on(make, &case, |device| case.build(device, GradientCheckpointing::PerLayer));
    }
}

fn moments_of_8_bits_go_on_bit_for_bit(make: Make) {
    let case = find("full_untied");
    goes_on(make, &case, |device| {
        let (training, recompute) = (Training::Full, GradientCheckpointing::PerLayer);
        let storage = Storage { has_8bit_moments: true, ..Storage::default() };
        Model::build(device, &case.config, &case.checkpoint, &training, recompute, &storage, case.limits()).unwrap()
    });
}

/// Saves after three steps, makes two more, and makes the same two with another model that reads what was saved.
fn goes_on(make: Make, case: &Case, build: impl Fn(&mut dyn Device) -> Model) {
    let device = &mut *make();
    let folder = folder(&format!("resume-{}", case.name()));
    let (trained, moments) = (folder.join("values.safetensors"), folder.join("optimizer.safetensors"));
    let mut model = build(device);
    let before = steps(case, device, &mut model, 0..3);
    model.write_values(device, Dtype::F32, &str::to_string, &trained).unwrap();
    model.write_optimizer(device, &moments).unwrap();
    let expected = (steps(case, device, &mut model, 3..5), values(device, &model));
    let device = &mut *make();
    let mut again = build(device);
    again.read_values(device, &trained).unwrap();
    again.read_optimizer(device, &moments).unwrap();
    let found = (steps(case, device, &mut again, 3..5), values(device, &again));
    assert!(found == expected, "{}: {:?} and {:?} after {before:?}", case.name(), found.0, expected.0);
    // Without the moments it would go another way: they are part of what was compared.
    let device = &mut *make();
    let mut without = build(device);
    without.read_values(device, &trained).unwrap();
    steps(case, device, &mut without, 3..5);
    assert_ne!(values(device, &without), expected.1, "{}", case.name());
    std::fs::remove_dir_all(folder).unwrap();
}

/// What a processor has saved is read by this device and saved again: the same bytes; and the same on the way back.
fn a_state_moves_from_a_processor_and_back(make: Make) {
    let kinds: [Make; 2] = [|| Box::new(Cpu::new(2)), || Box::new(CpuBf16::new(2))];
    for case in cases() {
        for other in kinds {
            moves(&case, other, make);
            moves(&case, make, other);
        }
    }
}

fn moves(case: &Case, from: Make, to: Make) {
    let device = &mut *from();
    let folder = folder(&format!("moves-{}", case.name()));
    let files = |name: &str| [format!("{name}-values.safetensors"), format!("{name}-optimizer.safetensors")];
    let write = |device: &mut dyn Device, model: &Model, name: &str| {
        let [values, moments] = files(name).map(|file| folder.join(file));
        model.write_values(device, Dtype::F32, &str::to_string, &values).unwrap();
        model.write_optimizer(device, &moments).unwrap();
        [values, moments].map(|file| std::fs::read(file).unwrap())
    };
    let mut model = case.build(device, GradientCheckpointing::PerLayer);
    steps(case, device, &mut model, 0..2);
    let expected = write(device, &model, "one");
    let device = &mut *to();
    let mut model = case.build(device, GradientCheckpointing::PerLayer);
    let [values, moments] = files("one").map(|file| folder.join(file));
    model.read_values(device, &values).unwrap();
    model.read_optimizer(device, &moments).unwrap();
    assert!(write(device, &model, "other") == expected, "{}", case.name());
    // And it goes on from there.
    let loss = f32::from_bits(steps(case, device, &mut model, 2..3)[0]);
    assert!(loss.is_finite());
    std::fs::remove_dir_all(&folder).unwrap();
}
