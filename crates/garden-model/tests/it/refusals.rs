//! What is wrong with files and batches is said with the file, the field or tensor, what was expected and what is there.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

use garden_input::FAMILIES;
use std::fs;
use std::path::{Path, PathBuf};

use crate::case::{Case, cases};
use garden_device::{Cpu, Device, Planner};
use garden_model::{
    Batch, Checkpoint, Config, GradientCheckpointing, IGNORED, Images, Model, Row, Storage, Training, read_adapter,
};
use serde_json::{Value, json};

/// A copy of a recorded case in a folder of its own, which is removed afterwards.
struct Copy(PathBuf);

impl Copy {
    fn of(name: &str, test: &str) -> Copy {
        let from = crate::case::testdata().join("reference/recorded").join(name);
        let to = std::env::temp_dir().join(format!("garden-model-{}-{test}", std::process::id()));
        copy(&from, &to);
        Copy(to)
    }

    fn json(&self, file: &str, change: impl FnOnce(&mut Value)) {
        let path = self.0.join(file);
        let mut value: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        change(&mut value);
        fs::write(path, value.to_string()).unwrap();
    }

    /// The error of reading the configuration, opening the checkpoint and building the model.
    fn refusal(&self) -> String {
        let error = || -> Result<(), garden_model::Error> {
            let config = Config::read(&self.0.join("config.json"))?;
            let checkpoint = Checkpoint::open(&self.0)?;
            let limits = garden_model::Limits { tokens: 64, rows: 2, targets: 8, patches: 64, images: 2, longest: 64 };
            Model::build(
                &mut Cpu::new(1),
                &config,
                &checkpoint,
                &Training::Full,
                GradientCheckpointing::PerLayer,
                &Storage::default(),
                limits,
            )?;
            Ok(())
        };
        let text = error().expect_err("it should be refused").to_string();
        // The folder is another one each time.
        text.replace(&self.0.to_string_lossy().into_owned(), "MODEL")
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn configurations() {
    let model = Copy::of("full_tied", "config");
    let check = |change: &dyn Fn(&mut Value), expected: &str| {
        let text = fs::read_to_string(model.0.join("config.json")).unwrap();
        model.json("config.json", |value| change(value));
        assert_eq!(model.refusal(), expected);
        fs::write(model.0.join("config.json"), text).unwrap();
    };
    check(
        &|value| value["model_type"] = json!("llama"),
        "`MODEL/config.json`: field `model_type` is `llama`; this program trains `qwen2_5_vl`",
    );
    check(
        &|value| drop(value["text_config"].as_object_mut().unwrap().remove("hidden_size")),
        "`MODEL/config.json`: field `text_config.hidden_size` is missing",
    );
    check(
        &|value| drop(value["vision_config"].as_object_mut().unwrap().remove("window_size")),
        "`MODEL/config.json`: field `vision_config.window_size` is missing",
    );
    check(
        &|value| value["text_config"]["hidden_act"] = json!("gelu"),
        "`MODEL/config.json`: field `text_config.hidden_act` is `gelu`; only `silu` is supported",
    );
    check(
        &|value| value["text_config"]["rope_parameters"]["mrope_section"] = json!([1, 1, 1]),
        "`MODEL/config.json`: field `mrope_section` is [1, 1, 1]; its sum must be half a head, 4",
    );
    check(
        &|value| value["text_config"]["num_hidden_layers"] = json!(-2),
        "`MODEL/config.json`: field `text_config.num_hidden_layers` is -2; expected a whole number from 1 to 1048576",
    );
    check(
        &|value| value["text_config"]["num_hidden_layers"] = json!(5),
        "`MODEL`: tensor `model.language_model.layers.2.input_layernorm.weight` is missing",
    );
}

#[test]
fn checkpoints() {
    let model = Copy::of("full_tied", "shapes");
    model.json("config.json", |value| value["text_config"]["intermediate_size"] = json!(33));
    assert_eq!(
        model.refusal(),
        "`MODEL/model.safetensors`: tensor `model.language_model.layers.0.mlp.gate_proj.weight` has the shape [32, 32]; the configuration says [33, 32]"
    );

    let cut = Copy::of("two_images_rslora", "cut");
    let mut files = fs::read_dir(&cut.0).unwrap().map(|entry| entry.unwrap().path());
    let shard = files.find(|path| path.to_string_lossy().contains("00002-of")).unwrap();
    let bytes = fs::read(&shard).unwrap();
    fs::write(&shard, &bytes[..bytes.len() - 100]).unwrap();
    let text = cut.refusal();
    assert!(text.contains("00002-of-00002.safetensors`: "), "{text}");
    let told = format!("is cut off: it has {} of {} bytes", bytes.len() - 100, bytes.len());
    assert!(text.contains(&told), "{text}");
    fs::remove_file(&shard).unwrap();
    let told =
        "00002-of-00002.safetensors`: is named by `model.safetensors.index.json`, but missing (1 of 2 files are)";
    assert!(cut.refusal().contains(told), "{}", cut.refusal());

    let sick = Copy::of("full_untied", "sick");
    let path = sick.0.join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(&path, &bytes).unwrap();
    let text = sick.refusal();
    assert!(
        text.starts_with("`MODEL/model.safetensors`: tensor `model.visual.")
            && text.contains("has a value that is not finite at "),
        "{text}"
    );
    fs::write(&path, b"not a checkpoint at all").unwrap();
    assert!(sick.refusal().starts_with("`MODEL/model.safetensors`: not a safetensors file: "), "{}", sick.refusal());
}

#[test]
fn batches() {
    let case = Case::read(&crate::case::testdata().join("reference/recorded/decoder_lora"));
    let (config, image) = (&case.config, case.config.image_token);
    let pixels = |patches: usize| vec![0.0; patches * config.vision.patch_values()];
    let row = |tokens: Vec<i32>| Row { labels: vec![IGNORED; tokens.len()], tokens };
    let refusal =
        |rows: &[Row], images: Images| Batch::new(config, rows, images).expect_err("it should be refused").to_string();
    let four = || Images { pixels: pixels(4 * 4), grids: vec![[1, 4, 4]] };
    assert_eq!(
        refusal(&[row(vec![1, image, image, image, 2])], four()),
        "row 0 has 3 image tokens at 1; its image of 1 x 4 x 4 patches needs 4"
    );
    assert_eq!(
        refusal(&[row(vec![1, 2])], four()),
        "there are more images than image tokens: an image of [1, 4, 4] patches has none"
    );
    assert_eq!(
        refusal(&[row(vec![1, image, 2])], Images::default()),
        "row 0 has image tokens at 1 and no image is left for them"
    );
    assert_eq!(refusal(&[row(vec![1, 160])], Images::default()), "row 0 has token 160; the model knows 0 to 159");
    assert_eq!(
        refusal(&[Row { tokens: vec![1, 2], labels: vec![1] }], Images::default()),
        "row 0 has 2 tokens and 1 labels; expected as many labels as tokens, and at least one"
    );
    assert_eq!(
        refusal(&[row(vec![1])], Images { pixels: pixels(6), grids: vec![[1, 2, 3]] }),
        "image 0 has 1 x 2 x 3 patches; rows and columns must be multiples of 2"
    );
    assert_eq!(
        refusal(&[row(vec![1, image])], Images { pixels: pixels(3), grids: vec![[1, 2, 2]] }),
        "expected 4 patches of 96 values; got 288 values"
    );
    let mut sick = pixels(4);
    sick[200] = f32::NAN;
    assert_eq!(
        refusal(&[row(vec![1, image])], Images { pixels: sick, grids: vec![[1, 2, 2]] }),
        "patch 2 has a value that is not finite"
    );
    // A batch beyond what the model was built for.
    let mut planner = Planner::for_cpu(1);
    let mut model = case.build(&mut planner, GradientCheckpointing::PerLayer);
    let long = Batch::new(config, &[row(vec![1; 500])], Images::default()).unwrap();
    assert!(
        model.logits(&mut planner, &long).unwrap_err().to_string().starts_with("the batch needs Limits { tokens: 500")
    );
}

#[test]
fn adapters() {
    let model = Copy::of("decoder_lora", "adapter");
    let folder = model.0.join("adapter");
    let refusal = || {
        let case = Case::read(&model.0);
        let read = || -> Result<(), garden_model::Error> {
            let adapter = read_adapter(&folder, FAMILIES[0])?;
            let mut cpu = Cpu::new(1);
            let built = Model::build(
                &mut cpu,
                &case.config,
                &case.checkpoint,
                &Training::Lora(adapter.config.clone()),
                GradientCheckpointing::PerLayer,
                &Storage::default(),
                case.limits(),
            )?;
            adapter.put(&mut cpu, &built)
        };
        read().expect_err("it should be refused").to_string().replace(&model.0.to_string_lossy().into_owned(), "MODEL")
    };
    let config = fs::read_to_string(folder.join("adapter_config.json")).unwrap();
    for (field, value, told) in [
        ("use_dora", json!(true), "is true: DoRA adapters answer and are exported, but are not trained here"),
        ("init_lora_weights", json!("MiCA"), "is `mica`: such adapters answer and are exported, but training A alone"),
        (
            "init_lora_weights",
            json!("pissa"),
            "is `pissa`: the adapter belongs to a base from which its first values were taken away",
        ),
        ("lora_bias", json!(true), "is `true`, which means adapters with a bias and is not supported"),
    ] {
        model.json("adapter/adapter_config.json", |config| config[field] = value);
        let expected = format!("`MODEL/adapter/adapter_config.json`: field `{field}` {told}");
        assert!(refusal().starts_with(&expected), "{}", refusal());
        fs::write(folder.join("adapter_config.json"), &config).unwrap();
    }
    fs::write(folder.join("adapter_config.json"), &config).unwrap();
    model.json("adapter/adapter_config.json", |value| value["r"] = json!(5));
    assert_eq!(
        refusal(),
        "`MODEL/adapter/adapter_model.safetensors`: tensor `base_model.model.model.language_model.layers.0.self_attn.q_proj.lora_A.weight` has the shape [4, 32]; the configuration says [5, 32]"
    );
    fs::write(folder.join("adapter_config.json"), &config).unwrap();
    model.json("adapter/adapter_config.json", |value| value["target_modules"] = json!(["q_proj"]));
    assert!(refusal().ends_with("does not belong to this model"), "{}", refusal());
    model.json("adapter/adapter_config.json", |value| value["target_modules"] = json!(["nothing"]));
    assert_eq!(refusal(), "no linear layer of the model matches the adapter's targets: nothing would be trained");
}

#[test]
fn the_recorded_cases_are_not_refused() {
    for case in cases() {
        let mut planner = Planner::for_cpu(1);
        case.build(&mut planner, GradientCheckpointing::PerLayer);
        assert!(planner.plan().total() > 0);
    }
}

/// Pages of a mapping that its file has no more end a program that reads them, so the file is asked first.
#[test]
fn a_file_that_is_cut_off_while_it_is_in_use_is_refused() {
    garden_testing::alone("refusals::a_file_that_is_cut_off_while_it_is_in_use_is_refused", || {
        let copy = Copy::of("bfloat16", "cut");
        let checkpoint = Checkpoint::open(&copy.0).unwrap();
        let file = fs::OpenOptions::new().write(true).open(copy.0.join("model.safetensors")).unwrap();
        file.set_len(8).unwrap();
        let names: Vec<&str> = checkpoint.names().collect();
        for name in names {
            let problem = checkpoint.tensor(name).map(|tensor| tensor.values().len()).unwrap_err().to_string();
            assert!(problem.contains("the file now has 8: it was truncated while in use"), "{problem}");
        }
    });
}

/// What the program that is ended by such a file is told to do.
const VICTIM: &str = "GARDEN_CUT_WITHIN";

/// A file that is cut off between the look at it and the reading of its pages. Nothing can be returned from there, so the program ends, and says why.
#[test]
fn a_file_that_is_cut_off_within_a_tensor_ends_the_program_with_its_name() {
    if let Some(folder) = std::env::var_os(VICTIM) {
        let path = Path::new(&folder).join("model.safetensors");
        // One that is closed again is looked at no more.
        drop(Checkpoint::open(Path::new(&folder)).unwrap());
        let checkpoint = Checkpoint::open(Path::new(&folder)).unwrap();
        let tensor = checkpoint.tensor("large").unwrap();
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(8192).unwrap();
        let sum: f32 = tensor.values().iter().sum();
        panic!("it was read: {sum}");
    }
    let folder = std::env::temp_dir().join(format!("garden-model-{}-within", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let values = vec![0; 1 << 20];
    let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![512, 512], &values).unwrap();
    fs::write(folder.join("model.safetensors"), safetensors::serialize([("large", view)], None).unwrap()).unwrap();
    let test = "refusals::a_file_that_is_cut_off_within_a_tensor_ends_the_program_with_its_name";
    let mut program = std::process::Command::new(std::env::current_exe().unwrap());
    let done = program.args(["--exact", test, "--nocapture"]).env(VICTIM, &folder).output().unwrap();
    fs::remove_dir_all(&folder).unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(2), "{:?}: {said}", done.status);
    assert!(said.contains("model.safetensors` was truncated while it was in use"), "{said}");
}

#[test]
fn numbers_that_no_model_has_are_refused() {
    for field in ["hidden_size", "vocab_size", "num_hidden_layers", "intermediate_size"] {
        let copy = Copy::of("bfloat16", &format!("huge-{field}"));
        copy.json("config.json", |config| {
            let text = if config["text_config"].is_object() { &mut config["text_config"] } else { config };
            text[field] = json!(1_u64 << 40);
        });
        let problem = copy.refusal();
        assert!(problem.contains(field) && problem.contains("from 1 to 1048576"), "{problem}");
    }
}
