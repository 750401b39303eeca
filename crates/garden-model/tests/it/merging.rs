//! Adapters merged into checkpoints: against what peft merged (testdata/reference/recorded_merged), proven, in several files, and refused.
//!
//! With GARDEN_PYTHON (an interpreter with the packages of testdata/reference/requirements.txt) transformers loads what was written.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test ends where something is not as it should be, and tells what it measured"
)]

use garden_input::FAMILIES;
use std::collections::HashMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::case::{Case, cases, find};
use garden_device::{Cpu, Dtype};
use garden_model::{
    Adapter, Checkpoint, Config, Engine, EngineLimits, Error, GradientCheckpointing, Images, LoraConfig, Merge,
    MergeProof, MergeReport, MergeSettings, Model, PackedBase, Prompt, Sampling, Storage, Training, prove_adapter,
    prove_merge, read_adapter, write_adapter,
};
use safetensors::{Dtype as FileDtype, tensor::TensorView};
use serde_json::Value;

const PLAIN: MergeSettings =
    MergeSettings { dtype: None, shard_bytes: 5 << 30, packed: PackedBase::Refuse, threads: 2 };

fn folder(name: &str) -> PathBuf {
    let folder = crate::case::temporary().join(format!("merging-{name}-{}", std::process::id()));
    let _gone = fs::remove_dir_all(&folder);
    folder
}

fn merge(base: &Checkpoint, adapter: &Adapter, settings: MergeSettings, to: &Path) -> Result<MergeReport, Error> {
    Merge::plan(base, adapter, settings)?.write(to, &mut |_, _| ControlFlow::Continue(()))
}

fn proven(case: &Case, adapter: &Adapter, settings: MergeSettings, name: &str) -> MergeProof {
    let to = folder(name);
    let merge = Merge::plan(&case.checkpoint, adapter, settings).unwrap();
    let report = merge.write(&to, &mut |_, _| ControlFlow::Continue(())).unwrap();
    assert_eq!(report.bytes, merge.bytes());
    let proof = prove_merge(&merge, &case.checkpoint, adapter, &to, 2).unwrap();
    fs::remove_dir_all(&to).unwrap();
    proof
}

#[test]
fn merged_weights_are_those_of_peft() {
    let recorded = crate::case::testdata().join("reference/recorded_merged");
    for name in ["bfloat16", "two_images_rslora", "vision_lora"] {
        let (case, to) = (find(name), folder(name));
        let report = merge(&case.checkpoint, &case.adapter().unwrap(), PLAIN, &to).unwrap();
        let expected = Checkpoint::open_file(&recorded.join(format!("{name}.safetensors"))).unwrap();
        let got = Checkpoint::open(&to).unwrap();
        assert_eq!(report.merged, expected.names().count());
        let (mut same, mut all) = (0, 0);
        for weight in expected.names() {
            let (expected, got) = (expected.tensor(weight).unwrap(), got.tensor(weight).unwrap());
            assert_eq!((expected.dtype, expected.shape), (got.dtype, got.shape), "{weight}");
            let (expected_values, values) = (expected.values(), got.values());
            // f32 sums may end in another last bit, which rarely is the one that decides the rounding to 16 bits.
            let close = if got.dtype == Dtype::F32 { 1e-6 } else { 2.0_f32.powi(-7) };
            for (expected, got) in expected_values.iter().zip(&values) {
                assert!(
                    (expected - got).abs() <= close * expected.abs().max(0.05),
                    "{weight}: {got}, {expected} expected"
                );
                same += usize::from(expected == got);
                all += 1;
            }
        }
        println!("{name}: {same} of {all} values are the same bits");
        assert!(same as f64 > 0.999 * all as f64 || name != "bfloat16");
        // Everything else is as it was.
        for weight in case.checkpoint.names().filter(|weight| !expected.has(weight)) {
            let (before, after) = (case.checkpoint.tensor(weight).unwrap(), got.tensor(weight).unwrap());
            assert_eq!((before.dtype, before.shape, before.bytes), (after.dtype, after.shape, after.bytes), "{weight}");
        }
        fs::remove_dir_all(&to).unwrap();
    }
}

/// DoRA, with ranks and scales that differ between modules: what the model says, and what it is merged into (testdata/reference/recorded_dora).
#[test]
fn dora_answers_and_merges_as_in_peft() {
    let (case, to) = (find("decoder_lora"), folder("dora"));
    let recorded = crate::case::testdata().join("reference/recorded_dora");
    let adapter = read_adapter(&recorded.join("adapter"), FAMILIES[0]).unwrap();
    let expected = Checkpoint::open_file(&recorded.join("dora.safetensors")).unwrap();
    let whole =
        |name: &str| -> Vec<i32> { expected.whole_numbers(name).unwrap().iter().map(|token| *token as i32).collect() };
    let prompts = vec![Prompt { tokens: whole("prompt"), images: Images::default() }];
    let answer = whole("answer");
    let says = |checkpoint: &Checkpoint, adapter: Option<&Adapter>| {
        let (cpu, mut first) = (&mut Cpu::new(1), Vec::new());
        let limits = EngineLimits::of(&prompts, answer.len());
        let mut engine = Engine::build(cpu, &case.config, checkpoint, adapter, None, limits).unwrap();
        let sampling = Sampling { max_new_tokens: answer.len(), has_logits: true, ..Sampling::default() };
        let mut seen = |new: garden_model::NewToken<'_>| {
            if first.is_empty() {
                first = new.logits.to_vec();
            }
        };
        let answers = engine.generate(cpu, prompts.clone(), &sampling, &mut seen).unwrap();
        (answers[0].tokens.clone(), first)
    };
    let logits = expected.tensor("logits").unwrap().values();
    let largest = logits.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
    let is_close = |found: &[f32]| logits.iter().zip(found).all(|(one, other)| (one - other).abs() < 1e-5 * largest);
    let (tokens, first) = says(&case.checkpoint, Some(&adapter));
    assert_eq!(tokens, answer);
    assert!(is_close(&first));
    merge(&case.checkpoint, &adapter, PLAIN, &to).unwrap();
    let got = Checkpoint::open(&to).unwrap();
    let weights: Vec<&str> = expected.names().filter(|name| name.ends_with(".weight")).collect();
    assert_eq!(weights.len(), 8);
    for weight in weights {
        let (expected, got) = (expected.tensor(weight).unwrap().values(), got.tensor(weight).unwrap().values());
        let is_same = |(one, other): (&f32, &f32)| (one - other).abs() <= 1e-6 * one.abs().max(0.05);
        assert!(expected.iter().zip(&got).all(is_same), "{weight}");
    }
    let (tokens, first) = says(&got, None);
    assert_eq!(tokens, answer);
    assert!(is_close(&first));
    fs::remove_dir_all(&to).unwrap();
}

/// Modules that an adapter has as a whole take the place of the base's, and the result is proven like any other.
#[test]
fn saved_modules_take_the_place_of_the_base_s() {
    for (name, modules) in [("two_images_rslora", &["visual.merger", "lm_head"][..]), ("bfloat16", &["visual.merger"])]
    {
        check_saved_modules(&find(name), modules);
    }
}

/// In a base of 16 bits too, they have all the digits that the adapter has.
fn check_saved_modules(case: &Case, modules: &[&str]) {
    let Training::Lora(config) = case.training() else { panic!("adapters are trained there") };
    let config = LoraConfig { modules_to_save: modules.iter().map(ToString::to_string).collect(), ..config };
    let (cpu, from, to) = (&mut Cpu::new(1), folder("modules-adapter"), folder("modules"));
    let mut model = case.build_for(cpu, &Training::Lora(config.clone()), GradientCheckpointing::PerLayer);
    for parameter in model.parameters() {
        let values: Vec<f32> = model
            .value(cpu, parameter)
            .unwrap()
            .iter()
            .enumerate()
            .map(|(place, value)| value + ((place % 5) as f32 - 2.0) / 40.0)
            .collect();
        model.set(cpu, parameter, &values);
    }
    write_adapter(cpu, &model, &config, None, &from).unwrap();
    let expected = model.logits(cpu, &case.batches[0]).unwrap();
    let adapter = read_adapter(&from, FAMILIES[0]).unwrap();
    let proof = proven(case, &adapter, MergeSettings { dtype: Some(Dtype::F32), ..PLAIN }, "modules-proof");
    assert!(proof.is_proven(), "{proof:?}");
    merge(&case.checkpoint, &adapter, MergeSettings { dtype: Some(Dtype::F32), ..PLAIN }, &to).unwrap();
    let merged = Checkpoint::open(&to).unwrap();
    for trained in model.parameters().iter().filter(|parameter| !parameter.name.contains(".lora_")) {
        let written = trained.name.strip_prefix("base_model.model.").unwrap();
        assert_eq!(merged.tensor(written).unwrap().values(), model.value(cpu, trained).unwrap());
    }
    // The merged checkpoint, with nothing beside it, answers as the model that was trained.
    let other = &mut Cpu::new(1);
    let limits = case.limits();
    let mut whole = Model::build(
        other,
        &case.config,
        &merged,
        &Training::Full,
        GradientCheckpointing::PerLayer,
        &Storage::default(),
        limits,
    )
    .unwrap();
    let found = whole.logits(other, &case.batches[0]).unwrap();
    let largest = expected.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
    assert!(expected.iter().zip(&found).all(|(one, other)| (one - other).abs() < 1e-4 * largest));
    fs::remove_dir_all(&from).unwrap();
    fs::remove_dir_all(&to).unwrap();
}

#[test]
fn every_merge_is_proven_in_every_type() {
    for case in cases().into_iter().filter(|case| !case.is_toy()) {
        let Some(adapter) = case.adapter() else { continue };
        for dtype in [None, Some(Dtype::F32), Some(Dtype::Bf16), Some(Dtype::F16)] {
            let settings = MergeSettings { dtype, packed: PackedBase::Unpack, ..PLAIN };
            let proof = proven(&case, &adapter, settings, &format!("{}-{dtype:?}", case.name()));
            println!(
                "{} {dtype:?}: adapter {:.1e}, merged {:.1e}, explained {:.1e}, rounding {:.3}, best {} of {}",
                case.name(),
                proof.change.relative,
                proof.difference.relative,
                proof.explained,
                proof.rounding,
                proof.difference.same_best,
                proof.difference.places
            );
            assert!(proof.is_proven() && proof.checked > 1000, "{} {dtype:?}: {proof:?}", case.name());
            assert!(proof.difference.relative < 0.1 * proof.change.relative, "{} {dtype:?}: {proof:?}", case.name());
        }
    }
}

#[test]
fn another_adapter_is_not_proven() {
    let (case, to) = (find("vision_lora"), folder("another"));
    let adapter = case.adapter().unwrap();
    let mut other = case.adapter().unwrap();
    other.config.alpha *= 1.5;
    let merge = Merge::plan(&case.checkpoint, &adapter, PLAIN).unwrap();
    merge.write(&to, &mut |_, _| ControlFlow::Continue(())).unwrap();
    // The logits tell.
    let proof = prove_merge(&merge, &case.checkpoint, &other, &to, 1).unwrap();
    assert!(!proof.is_proven() && proof.rounding <= 0.51 && proof.difference.relative > proof.explained, "{proof:?}");
    // The weights tell.
    let expected = Merge::plan(&case.checkpoint, &other, PLAIN).unwrap();
    let proof = prove_merge(&expected, &case.checkpoint, &adapter, &to, 1).unwrap();
    assert!(!proof.is_proven() && proof.rounding > 1.0 && proof.roughest.contains("weight"), "{proof:?}");
    fs::remove_dir_all(&to).unwrap();
}

#[test]
fn several_files_are_the_same_model() {
    let case = find("bfloat16");
    let (adapter, one, several) = (case.adapter().unwrap(), folder("one"), folder("several"));
    assert_eq!(merge(&case.checkpoint, &adapter, PLAIN, &one).unwrap().shards, 1);
    let report = merge(&case.checkpoint, &adapter, MergeSettings { shard_bytes: 20_000, ..PLAIN }, &several).unwrap();
    assert!(report.shards >= 4 && !one.join("model.safetensors.index.json").exists(), "{report:?}");
    let index = fs::read_to_string(several.join("model.safetensors.index.json")).unwrap();
    let index: Value = serde_json::from_str(&index).unwrap();
    assert_eq!(index["metadata"]["total_size"].as_u64(), Some(report.bytes));
    assert_eq!(index["weight_map"].as_object().unwrap().len(), report.tensors);
    let first = several.join(format!("model-00001-of-{:05}.safetensors", report.shards));
    assert!(fs::metadata(first).unwrap().len() < 30_000);
    let [left, right] = [&one, &several].map(|folder| Checkpoint::open(folder).unwrap());
    assert!(left.names().eq(right.names()));
    for name in left.names() {
        assert_eq!(left.tensor(name).unwrap().bytes, right.tensor(name).unwrap().bytes, "{name}");
    }
    // What lies beside the weights of a case is no part of a checkpoint, but a file like any other.
    assert!(several.join("case.json").exists() && !several.join("batch.safetensors").exists());
    transformers_agrees(&case, &several);
    for folder in [one, several] {
        fs::remove_dir_all(folder).unwrap();
    }
}

fn transformers_agrees(case: &Case, exported: &Path) {
    let Some(python) = std::env::var_os("GARDEN_PYTHON") else {
        garden_testing::skip("GARDEN_PYTHON names no interpreter with transformers and peft");
        return;
    };
    let script = crate::case::testdata().join("reference/check_merged.py");
    let mut command = Command::new(python);
    command.arg(script).arg(exported).arg("--base").arg(&case.folder).arg("--adapter").arg(case.folder.join("adapter"));
    let done = command.arg("--batch").arg(case.folder.join("batch.safetensors")).output().unwrap();
    let text = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{}: {text}", case.name());
    println!("{}: {text}", case.name());
}

/// A copy of an adapter with other names and values.
fn changed(from: &Path, to: &Path, change: impl Fn(&str, &mut Vec<f32>) -> String) {
    fs::create_dir_all(to).unwrap();
    fs::copy(from.join("adapter_config.json"), to.join("adapter_config.json")).unwrap();
    let weights = Checkpoint::open_file(&from.join("adapter_model.safetensors")).unwrap();
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = weights
        .names()
        .map(|name| {
            let tensor = weights.tensor(name).unwrap();
            let mut values = tensor.values();
            let name = change(name, &mut values);
            (name, tensor.shape.to_vec(), values.iter().flat_map(|value| value.to_le_bytes()).collect())
        })
        .collect();
    let views: HashMap<&str, TensorView<'_>> = tensors
        .iter()
        .map(|(name, shape, bytes)| (name.as_str(), TensorView::new(FileDtype::F32, shape.clone(), bytes).unwrap()))
        .collect();
    safetensors::serialize_to_file(views, None, &to.join("adapter_model.safetensors")).unwrap();
}

#[test]
fn older_names_of_an_adapter_are_merged_too() {
    let (case, older) = (find("vision_lora"), folder("older"));
    changed(&case.folder.join("adapter"), &older, |name, _| {
        name.replace("model.model.language_model.", "model.model.").replace("model.model.visual.", "model.visual.")
    });
    let (one, other) = (folder("newer-merged"), folder("older-merged"));
    merge(&case.checkpoint, &case.adapter().unwrap(), PLAIN, &one).unwrap();
    merge(&case.checkpoint, &read_adapter(&older, FAMILIES[0]).unwrap(), PLAIN, &other).unwrap();
    let [one_bytes, other_bytes] = [&one, &other].map(|folder| fs::read(folder.join("model.safetensors")).unwrap());
    assert!(one_bytes == other_bytes);
    for folder in [older, one, other] {
        fs::remove_dir_all(folder).unwrap();
    }
}

#[test]
fn an_adapter_is_proven_to_do_something() {
    for name in ["bfloat16", "vision_lora_only", "nf4_saved"] {
        let case = find(name);
        let proof = prove_adapter(&case.checkpoint, &case.config, &case.folder.join("adapter"), None, 2).unwrap();
        println!("{name}: {proof:?}");
        assert!(!proof.is_no_op() && proof.idle == 0 && proof.change.relative > 1e-3, "{name}: {proof:?}");
        let idle = folder(&format!("idle-{name}"));
        changed(&case.folder.join("adapter"), &idle, |name, values| {
            values.iter_mut().filter(|_| name.contains("lora_B")).for_each(|value| *value = 0.0);
            name.to_string()
        });
        let proof = prove_adapter(&case.checkpoint, &case.config, &idle, None, 2).unwrap();
        assert!(proof.is_no_op() && proof.changed == 0 && proof.idle > 0, "{name}: {proof:?}");
        fs::remove_dir_all(idle).unwrap();
    }
}

#[test]
fn unpacked_weights_are_those_that_the_engine_uses() {
    let (case, to) = (find("nf4_saved_bfloat16"), folder("unpacked"));
    let adapter = case.adapter().unwrap();
    let settings = MergeSettings { packed: PackedBase::Unpack, dtype: Some(Dtype::F32), ..PLAIN };
    let report = merge(&case.checkpoint, &adapter, settings, &to).unwrap();
    assert!(report.unpacked > 0);
    let config: Value = serde_json::from_str(&fs::read_to_string(to.join("config.json")).unwrap()).unwrap();
    assert!(config.get("quantization_config").is_none());
    assert_eq!(config["torch_dtype"].as_str().or(config["dtype"].as_str()), Some("float32"));
    let mut cpu = Cpu::new(2);
    let batch = &case.batches[0];
    let expected = case.build(&mut cpu, GradientCheckpointing::PerLayer).logits(&mut cpu, batch).unwrap();
    let mut plain = Case::read(&case.folder);
    (plain.checkpoint, plain.config) = (Checkpoint::open(&to).unwrap(), Config::read(&to.join("config.json")).unwrap());
    plain.about["lora"] = Value::Null;
    let mut cpu = Cpu::new(2);
    let got = plain.build(&mut cpu, GradientCheckpointing::PerLayer).logits(&mut cpu, batch).unwrap();
    let difference = garden_model::compare_logits(&got, &expected, case.config.text.vocabulary);
    assert!(difference.relative < 1e-5, "{difference:?}");
    fs::remove_dir_all(&to).unwrap();
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_is_left() {
    let to = folder("refused");
    let packed = find("nf4_saved");
    let error = merge(&packed.checkpoint, &packed.adapter().unwrap(), PLAIN, &to).unwrap_err().to_string();
    assert!(error.contains("4 bits") && error.contains("weight"), "{error}");
    // An adapter of another model.
    let (case, other) = (find("vision_lora"), find("bfloat16"));
    let error = merge(&case.checkpoint, &other.adapter().unwrap(), PLAIN, &to).unwrap_err().to_string();
    assert!(error.contains("adapter_model.safetensors") && error.contains("tensor `"), "{error}");
    // Half an adapter, and values that float16 does not have.
    let broken = folder("broken");
    let of = |change: &dyn Fn(&str, &mut Vec<f32>) -> String, dtype: Option<Dtype>| {
        changed(&case.folder.join("adapter"), &broken, change);
        let adapter = read_adapter(&broken, FAMILIES[0]).unwrap();
        merge(&case.checkpoint, &adapter, MergeSettings { dtype, ..PLAIN }, &to).unwrap_err().to_string()
    };
    let error = of(&|name, _| name.replace("layers.0.mlp.up_proj.lora_B", "layers.0.mlp.up_proj.lora_C"), None);
    assert!(error.contains("up_proj.lora_"), "{error}");
    let large = |name: &str, values: &mut Vec<f32>| {
        values.iter_mut().for_each(|value| *value *= 1e4);
        name.to_string()
    };
    let error = of(&large, Some(Dtype::F16));
    assert!(error.contains("too large for float16"), "{error}");
    let nan = |name: &str, values: &mut Vec<f32>| {
        values[0] = f32::NAN;
        name.to_string()
    };
    let error = of(&nan, None);
    assert!(error.contains("not finite"), "{error}");
    assert!(!to.exists());
    // Somebody asks to stop.
    let adapter = case.adapter().unwrap();
    let plan = Merge::plan(&case.checkpoint, &adapter, PLAIN).unwrap();
    let stopped =
        plan.write(&to, &mut |done, _| if done == 5 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) });
    assert!(matches!(stopped, Err(Error::Stopped)) && !to.exists());
    // What is there is left alone.
    fs::create_dir_all(&to).unwrap();
    fs::write(to.join("something"), "of somebody").unwrap();
    let error = plan.write(&to, &mut |_, _| ControlFlow::Continue(())).unwrap_err();
    assert!(matches!(error, Error::File { .. }) && to.join("something").exists(), "{error}");
    for folder in [to, broken] {
        fs::remove_dir_all(folder).unwrap();
    }
}
