//! Checkpoints with weights of 4 bits: saved, read again, taken by transformers, and refused when something is wrong with them.
//!
//! With GARDEN_PYTHON (an interpreter with the packages of testdata/reference/requirements.txt) transformers and bitsandbytes load what was saved.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test ends where something is not as it should be, and tells what it measured"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::case::{Case, Make, find, is_f32, on_every_device, planner};
use garden_device::{Cpu, Device, Planner, Purpose, nf4};
use garden_model::{
    Checkpoint, Error, FourBit, GradientCheckpointing, Model, Optimizer, Storage, Training, pack_checkpoint,
};

on_every_device! {
    a_saved_checkpoint_is_the_model_that_is_packed_on_load,
    narrow_moments_train,
}

fn folder(name: &str) -> PathBuf {
    let folder = crate::case::temporary().join(format!("packing-{name}-{}", std::process::id()));
    let _gone = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// A case whose checkpoint was packed and saved, and what it should give.
fn saved(case: &Case, to: &Path) -> Case {
    let four_bit = case.storage().four_bit.unwrap();
    let report = pack_checkpoint(&case.folder, to, &four_bit, &mut |_, _| ()).unwrap();
    assert!(report.packed > 0 && report.bytes_after < report.bytes_before, "{report:?}");
    let mut case = Case::read(&case.folder);
    case.checkpoint = Checkpoint::open(to).unwrap();
    case.about["quantisation"]["stored"] = true.into();
    case
}

fn a_saved_checkpoint_is_the_model_that_is_packed_on_load(make: Make) {
    for name in ["nf4_on_load", "nf4_odd_blocks"] {
        let (case, to) = (find(name), folder(&format!("{name}-{:?}", make().profile().activations)));
        let stored = saved(&case, &to);
        let [one, other] = [&case, &stored].map(|case| {
            let mut device = make();
            let mut model = case.build(&mut *device, GradientCheckpointing::PerLayer);
            let logits = model.logits(&mut *device, &case.batches[0]).unwrap();
            (logits, device.plan().bytes(Purpose::Weights))
        });
        assert_eq!(one, other, "{name}");
        // What transformers computes is compared as f32.
        if is_f32(make) {
            transformers_agrees(&case, &to, &one.0);
        }
        fs::remove_dir_all(&to).unwrap();
    }
}

fn transformers_agrees(case: &Case, model: &Path, logits: &[f32]) {
    let Some(python) = std::env::var_os("GARDEN_PYTHON") else {
        garden_testing::skip("GARDEN_PYTHON names no interpreter with transformers and bitsandbytes");
        return;
    };
    // Ours are f32; transformers would compute in the type that the weights had.
    let config = fs::read_to_string(model.join("config.json")).unwrap();
    let dtype = "\"bnb_4bit_compute_dtype\": ";
    assert!(config.contains(dtype));
    let config = config.replace(&format!("{dtype}\"bfloat16\""), &format!("{dtype}\"float32\""));
    fs::write(model.join("config.json"), config).unwrap();
    let bytes: Vec<u8> = logits.iter().flat_map(|value| value.to_le_bytes()).collect();
    let shape = vec![logits.len() / case.config.text.vocabulary, case.config.text.vocabulary];
    let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape, &bytes).unwrap();
    let file = model.join("logits.safetensors");
    safetensors::serialize_to_file([("logits", view)], None, &file).unwrap();
    let script = crate::case::testdata().join("reference/check_saved_quantised.py");
    let mut command = Command::new(python);
    command.arg(script).arg(model).arg("--batch").arg(case.folder.join("batch.safetensors")).arg("--logits").arg(&file);
    let done = command.arg("--adapter").arg(case.folder.join("adapter")).output().unwrap();
    let text = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{}: {text}", case.name());
    println!("{}: {text}", case.name());
}

#[test]
fn packed_weights_take_4_bits_and_their_scales_an_eighth() {
    let case = find("nf4_on_load");
    let mut planner = Planner::for_cpu(1);
    case.build(&mut planner, GradientCheckpointing::PerLayer);
    let text = &case.config.text;
    let (keys, intermediate) = (text.layers[0].attention().key_width(), text.layers[0].mlp.intermediate);
    let values = [(text.hidden, text.hidden), (keys, text.hidden), (keys, text.hidden), (text.hidden, text.hidden)];
    let inner = [(intermediate, text.hidden), (intermediate, text.hidden), (text.hidden, intermediate)];
    let mut expected = 0;
    for (rows, columns) in values.iter().chain(&inner) {
        let blocks = nf4::blocks(rows * columns);
        let parts = [nf4::packed_length(rows * columns), blocks, blocks.div_ceil(256) * 4];
        expected += text.layers.len() * parts.iter().map(|bytes| bytes.next_multiple_of(64)).sum::<usize>();
    }
    let is_packed = |label: &str| label.contains(".layers.") && label.contains("_proj.weight");
    let packed =
        planner.plan().buffers.iter().filter(|buffer| is_packed(&buffer.label) && buffer.purpose == Purpose::Weights);
    assert_eq!(packed.map(|buffer| buffer.bytes).sum::<usize>(), expected);
    // Where alignment does not weigh, as in the 3B model: 4 + 8/64 + 32/(64 * 256) bits. `bench/loading.py` has it of a whole plan.
    let values = 2048 * 11008;
    let blocks = nf4::blocks(values);
    let bits = 8.0 * (nf4::packed_length(values) + blocks + 4 * blocks.div_ceil(256)) as f64 / values as f64;
    assert!((bits - 4.127).abs() < 5e-4, "{bits}");
}

/// Moments of 8 bits learn as those of 32 do, nearly, and take a little more than a byte for each value.
fn narrow_moments_train(make: Make) {
    let case = find("full_untied");
    let rate = case.numbers("training", "learning_rates")[0] as f32;
    let run = |has_8bit_moments: bool| {
        let storage = Storage { has_8bit_moments, ..Storage::default() };
        let (device, mut planner) = (&mut *make(), planner(make));
        let build = |device: &mut dyn Device| {
            let training = Training::Full;
            Model::build(
                device,
                &case.config,
                &case.checkpoint,
                &training,
                GradientCheckpointing::PerLayer,
                &storage,
                case.limits(),
            )
            .unwrap()
        };
        let mut model = build(device);
        build(&mut planner);
        assert_eq!(planner.plan(), device.plan());
        let mut losses = Vec::new();
        for _ in 0..20 {
            let batch = &case.batches[0];
            model.begin_step(device);
            model.learn(device, batch, 1.0 / batch.targets() as f32, 0).unwrap();
            let all = model.losses(device, batch).unwrap();
            losses.push(all.iter().sum::<f32>() / all.len() as f32);
            model.update(device, &Optimizer::default(), rate, 1.0, true);
        }
        let alignment = device.profile().alignment;
        let bytes = model.parameters().iter().map(|parameter| match parameter.shape.iter().product::<usize>() {
            length if has_8bit_moments && length >= 4096 => {
                length.next_multiple_of(alignment) + (4 * length.div_ceil(256)).next_multiple_of(alignment)
            }
            length => (4 * length).next_multiple_of(alignment),
        });
        assert_eq!(device.plan().bytes(Purpose::Optimizer), 2 * bytes.sum::<usize>());
        losses
    };
    let (wide, narrow) = (run(false), run(true));
    let learnt = wide[0] - wide[19];
    assert!(learnt > 0.1, "{wide:?}");
    assert!((wide[19] - narrow[19]).abs() < 0.05 * learnt, "{wide:?}\n{narrow:?}");
    assert_ne!(wide, narrow);
}

/// A file of a packed checkpoint with one text in it replaced by another of the same length.
fn changed(from: &Path, to: &Path, what: &str, by: &str) {
    assert_eq!(what.len(), by.len());
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
        }
    }
    let file = to.join("model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let mut found = 0;
    for at in 0..bytes.len() - what.len() {
        if bytes[at..].starts_with(what.as_bytes()) {
            bytes[at..at + what.len()].copy_from_slice(by.as_bytes());
            found += 1;
        }
    }
    assert!(found > 0, "{what} is not in the file");
    fs::write(&file, bytes).unwrap();
}

#[test]
fn what_cannot_be_read_is_find() {
    let case = find("nf4_saved");
    for (what, by, told) in [
        ("\"blocksize\": 64", "\"blocksize\": 32", vec!["blocksize", "32", "64"]),
        ("\"quant_type\": \"nf4\"", "\"quant_type\": \"af4\"", vec!["quant_type", "af4", "nf4"]),
        ("bitsandbytes__nf4", "bitsandbytes__fp4", vec!["fp4", "nf4"]),
        ("\"dtype\": \"float32\", \"shape\"", "\"dtype\": \"float64\", \"shape\"", vec!["float64", "bfloat16"]),
        ("q_proj.weight.absmax", "q_proj.weight.absmix", vec!["q_proj.weight.absmax", "is missing"]),
        ("\"nested_offset\"", "\"nested_offzet\"", vec!["nested_offset"]),
        ("\"shape\": [64, 64]", "\"shape\": [32, 64]", vec!["shape", "[32,64]", "[64,64]"]),
    ] {
        let to = folder("refused");
        changed(&case.folder, &to, what, by);
        let checkpoint = Checkpoint::open(&to).unwrap();
        let build = |training: &Training| {
            let storage = Storage::default();
            let mut cpu = Cpu::new(1);
            Model::build(
                &mut cpu,
                &case.config,
                &checkpoint,
                training,
                GradientCheckpointing::PerLayer,
                &storage,
                case.limits(),
            )
        };
        let error = build(&case.training()).unwrap_err().to_string();
        for word in told {
            assert!(error.contains(word), "`{what}` changed to `{by}`: {error}");
        }
        assert!(error.contains("model.safetensors") || error.contains("refused"), "{error}");
        fs::remove_dir_all(&to).unwrap();
    }
    // All weights cannot be trained where some have 4 bits.
    let storage = Storage::default();
    let built = Model::build(
        &mut Cpu::new(1),
        &case.config,
        &case.checkpoint,
        &Training::Full,
        GradientCheckpointing::PerLayer,
        &storage,
        case.batches[0].limits(),
    );
    let error = built.unwrap_err().to_string();
    assert!(error.contains("4 bits") && error.contains("adapter"), "{error}");
}

#[test]
fn what_cannot_be_packed_is_left_alone() {
    let (case, settings) = (find("nf4_saved"), FourBit::default());
    let to = folder("again");
    let error = pack_checkpoint(&case.folder, &to, &settings, &mut |_, _| ()).unwrap_err();
    assert!(matches!(error, Error::Field { .. }), "{error}");
    let case = find("nf4_on_load");
    fs::write(to.join("something"), "of somebody").unwrap();
    let error = pack_checkpoint(&case.folder, &to, &settings, &mut |_, _| ()).unwrap_err().to_string();
    assert!(error.contains("not empty"), "{error}");
    assert_eq!(fs::read_dir(&to).unwrap().count(), 1);
    fs::remove_dir_all(&to).unwrap();
}
