//! Recorded cases: a checkpoint, an adapter, batches, and what others computed from them; and the devices that they run on.

// Not every program that reads cases needs all of this; a broken case should end it.
#![allow(dead_code, clippy::unwrap_used, clippy::print_stdout)]

use std::fs;
use std::path::{Path, PathBuf};

use garden_device::{Cpu, CpuBf16, Cuda, Device, Dtype, Planner};
use garden_input::Fields;
use garden_model::{
    Adapter, Batch, Checkpoint, Config, FourBit, GradientCheckpointing, Images, Limits, Model, Optimizer, Row, Storage,
    Training, read_adapter,
};
use serde_json::Value;

use self::toy::TOY;

pub mod toy;

/// Makes devices of one kind.
pub type Make = fn() -> Box<dyn Device>;

pub fn cpu() -> Option<Make> {
    Some(|| Box::new(Cpu::new(2)))
}

pub fn cpu_bf16() -> Option<Make> {
    Some(|| Box::new(CpuBf16::new(1)))
}

pub fn cuda() -> Option<Make> {
    match Cuda::open(0) {
        Ok(_) => Some(|| Box::new(Cuda::open(0).unwrap())),
        Err(unavailable) => {
            garden_testing::skip_all("models on a GPU", &unavailable.to_string());
            None
        }
    }
}

/// Each case becomes a test of each device.
#[allow(unused_macros, reason = "some programs run on a processor only")]
macro_rules! on_every_device {
    ($($case:ident),* $(,)?) => { on_every_device! { @ [cpu, cpu_bf16, cuda] ($($case),*) } };
    (@ [$($device:ident),*] $cases:tt) => { $(on_every_device! { @ $device $cases })* };
    (@ $device:ident ($($case:ident),*)) => {
        mod $device {
            $(
                #[test]
                fn $case() {
                    if let Some(make) = crate::case::$device() {
                        super::$case(make);
                    }
                }
            )*
        }
    };
}
#[allow(unused_imports, reason = "some programs run on a processor only")]
pub(crate) use on_every_device;

/// Whether results of a device can be compared with recorded ones as f32.
pub fn is_f32(make: Make) -> bool {
    make().profile().activations == Dtype::F32
}

/// A planner for the same kind of device.
pub fn planner(make: Make) -> Planner {
    Planner::like(make().profile())
}

/// The folder `testdata`: GARDEN_TESTDATA, where a test runs on another machine than it was built on.
pub fn testdata() -> PathBuf {
    let own = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata");
    std::env::var_os("GARDEN_TESTDATA").map_or_else(own, PathBuf::from)
}

/// Where files of tests go: beside what was built, or on another machine where all temporary files go.
pub fn temporary() -> PathBuf {
    let own = option_env!("CARGO_TARGET_TMPDIR").map(PathBuf::from).filter(|folder| folder.is_dir());
    own.unwrap_or_else(std::env::temp_dir)
}

/// A recorded case.
pub struct Case {
    pub folder: PathBuf,
    pub about: Value,
    pub config: Config,
    pub checkpoint: Checkpoint,
    pub batches: Vec<Batch>,
}

impl Case {
    pub fn read(folder: &Path) -> Case {
        let about: Value = serde_json::from_str(&fs::read_to_string(folder.join("case.json")).unwrap()).unwrap();
        let config = config(&folder.join("config.json"));
        let files = about["batches"].as_array().unwrap().iter().map(|name| folder.join(name.as_str().unwrap()));
        let batches = files.map(|file| batch(&config, &file)).collect();
        Case { folder: folder.to_path_buf(), about, checkpoint: Checkpoint::open(folder).unwrap(), config, batches }
    }

    /// Whether it is a toy, whose folder is not read as a model's.
    pub fn is_toy(&self) -> bool {
        *self.config.family == TOY
    }

    pub fn name(&self) -> String {
        self.folder.file_name().unwrap().to_string_lossy().into_owned()
    }

    pub fn adapter(&self) -> Option<Adapter> {
        let folder = self.about["lora"].get("folder")?.as_str()?;
        Some(read_adapter(&self.folder.join(folder), self.config.family).unwrap())
    }

    pub fn training(&self) -> Training {
        self.adapter().map_or(Training::Full, |adapter| Training::Lora(adapter.config))
    }

    /// As the case says; what the checkpoint has packed needs no word.
    pub fn storage(&self) -> Storage {
        let quantisation = &self.about["quantisation"];
        if quantisation.is_null() || quantisation["stored"].as_bool().unwrap() {
            return Storage::default();
        }
        let kept =
            quantisation["skip_modules"].as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_string());
        let is_double = quantisation["double"].as_bool().unwrap();
        Storage { four_bit: Some(FourBit { is_double, kept: Some(kept.collect()) }), ..Storage::default() }
    }

    pub fn limits(&self) -> Limits {
        self.batches.iter().map(Batch::limits).fold(Limits::default(), Limits::max)
    }

    pub fn build(&self, device: &mut dyn Device, recompute: GradientCheckpointing) -> Model {
        let model = self.build_for(device, &self.training(), recompute);
        if let Some(adapter) = self.adapter() {
            adapter.put(device, &model).unwrap();
        }
        model
    }

    /// The same weights, trained in another way; adapters are zeros.
    pub fn build_for(&self, device: &mut dyn Device, training: &Training, recompute: GradientCheckpointing) -> Model {
        let storage = self.storage();
        Model::build(device, &self.config, &self.checkpoint, training, recompute, &storage, self.limits()).unwrap()
    }

    pub fn tensors(&self, file: &str) -> Checkpoint {
        Checkpoint::open_file(&self.folder.join(file)).unwrap()
    }

    pub fn optimizer(&self) -> Optimizer {
        let number = |name: &str| self.about["training"][name].as_f64().unwrap() as f32;
        Optimizer {
            beta1: number("beta1"),
            beta2: number("beta2"),
            epsilon: number("epsilon"),
            decay: number("weight_decay"),
            clip: Some(number("clip_norm")),
            ..Optimizer::default()
        }
    }

    pub fn numbers(&self, of: &str, name: &str) -> Vec<f64> {
        self.about[of][name].as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
    }
}

/// The configuration of a model, or of a toy.
fn config(path: &Path) -> Config {
    let value: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    match value["model_type"] == TOY.model_type {
        true => (TOY.parse)(Fields::of(path, &value)).unwrap(),
        false => Config::read(path).unwrap(),
    }
}

fn batch(config: &Config, file: &Path) -> Batch {
    let (rows, images) = rows_and_images(file);
    Batch::new(config, &rows, images).unwrap()
}

/// Rows and images of a recorded batch.
pub fn rows_and_images(file: &Path) -> (Vec<Row>, Images) {
    let tensors = Checkpoint::open_file(file).unwrap();
    let whole = |name: &str| tensors.whole_numbers(name).unwrap();
    let (tokens, labels, starts) = (whole("packed.input_ids"), whole("packed.labels"), whole("packed.row_starts"));
    let rows: Vec<Row> = starts
        .windows(2)
        .map(|pair| {
            let range = pair[0] as usize..pair[1] as usize;
            let small = |values: &[i64]| values[range.clone()].iter().map(|value| *value as i32).collect();
            Row { tokens: small(&tokens), labels: small(&labels) }
        })
        .collect();
    let images = match tensors.has("pixel_values") {
        true => Images {
            pixels: tensors.tensor("pixel_values").unwrap().values(),
            grids: whole("image_grid_thw")
                .chunks_exact(3)
                .map(|grid| [grid[0] as usize, grid[1] as usize, grid[2] as usize])
                .collect(),
        },
        false => Images::default(),
    };
    (rows, images)
}

/// The recorded cases, and those of the folder GARDEN_REFERENCE.
pub fn cases() -> Vec<Case> {
    let own = testdata().join("reference");
    let mut folders = ["recorded", "recorded_quantised", "recorded_mixed"].map(|name| own.join(name)).to_vec();
    folders.extend(std::env::var_os("GARDEN_REFERENCE").map(PathBuf::from));
    let inside = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap()).map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> = inside.filter(|path| path.join("case.json").exists()).collect();
    found.sort();
    assert!(found.len() >= 15, "only {} cases were found", found.len());
    found.iter().map(|folder| Case::read(folder)).collect()
}

/// A recorded case by its name.
pub fn find(name: &str) -> Case {
    cases().into_iter().find(|case| case.name() == name).unwrap()
}

/// One step of training, with dropout where the case has it; returns the loss before the update.
pub fn step(case: &Case, device: &mut dyn Device, model: &mut Model, number: usize) -> f32 {
    let batch = &case.batches[number % case.batches.len()];
    model.begin_step(device);
    model.learn(device, batch, 1.0 / batch.targets() as f32, 1 + number as u64).unwrap();
    model.update(device, &Optimizer::default(), 1e-4, 1.0, batch.patches() > 0);
    let losses = model.losses(device, batch).unwrap();
    losses.iter().sum::<f32>() / losses.len() as f32
}
