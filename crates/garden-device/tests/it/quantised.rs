//! Weights of 4 bits and moments of 8 bits against what bitsandbytes computed (testdata/reference/recorded_quantised), bit for bit where it can be.
//!
//! GARDEN_REFERENCE_QUANTISED names a folder with other recordings, made with `quantisation.py --out FOLDER --seed N` and `optimizer8.py`; on a GPU
//! also with `optimizer8_cuda.py`.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test ends where something is not as it should be, and tells what it measured"
)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::bench::LARGEST;
use crate::devices::{cpu, cpu_bf16, cuda, on_every_device};
use garden_device::{
    AdamW, Buffer, Cpu, Device, Dtype, Moments, Nf4Blocks, Nf4Scales, ParameterGroup, Purpose, Reserve, StepScalars,
    Weight, Write, dynamic_8bit, nf4,
};
use safetensors::{Dtype as FileDtype, SafeTensors};
use serde_json::Value;

/// A recorded file.
struct Recording {
    about: Value,
    tensors: BTreeMap<String, (FileDtype, Vec<u8>)>,
}

impl Recording {
    fn read(folder: &Path, name: &str) -> Recording {
        let about = std::fs::read_to_string(folder.join(format!("{name}.json"))).unwrap();
        let bytes = std::fs::read(folder.join(format!("{name}.safetensors"))).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap().tensors();
        let tensors = tensors.into_iter().map(|(name, view)| (name, (view.dtype(), view.data().to_vec()))).collect();
        Recording { about: serde_json::from_str(&about).unwrap(), tensors }
    }

    fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    fn bytes(&self, name: &str) -> &[u8] {
        &self.tensors[name].1
    }

    fn values(&self, name: &str) -> Vec<f32> {
        let (dtype, bytes) = &self.tensors[name];
        let halves = || bytes.chunks_exact(2).map(|two| u16::from_le_bytes([two[0], two[1]]));
        match dtype {
            FileDtype::F32 => bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect(),
            FileDtype::BF16 => halves().map(|half| Dtype::Bf16.widened(half)).collect(),
            FileDtype::F16 => halves().map(|half| Dtype::F16.widened(half)).collect(),
            other => panic!("{name} is {other:?}"),
        }
    }
}

/// Folders with recordings: our own, and another that is named.
fn folders() -> Vec<PathBuf> {
    // GARDEN_TESTDATA is the folder `testdata`, where a test runs on another machine than it was built on.
    let here = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata");
    let own = std::env::var_os("GARDEN_TESTDATA").map_or_else(here, PathBuf::from).join("reference/recorded_quantised");
    [Some(own), std::env::var_os("GARDEN_REFERENCE_QUANTISED").map(PathBuf::from)].into_iter().flatten().collect()
}

fn recordings(name: &str) -> Vec<Recording> {
    folders().iter().map(|folder| Recording::read(folder, name)).collect()
}

/// Those that are there: what takes a GPU to record is not in every folder.
fn found_recordings(name: &str) -> Vec<Recording> {
    let is_there = |folder: &&PathBuf| folder.join(format!("{name}.json")).exists();
    folders().iter().filter(is_there).map(|folder| Recording::read(folder, name)).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn maps_are_the_same() {
    for recording in recordings("nf4") {
        assert_eq!(bits(&recording.values("quant_map")), bits(&nf4::CODES));
        assert_eq!(bits(&recording.values("nested_quant_map")), bits(&dynamic_8bit::Map::signed().values));
        assert_eq!(bits(&recording.values("unsigned_quant_map")), bits(&dynamic_8bit::Map::unsigned().values));
        let (codes, scales) = dynamic_8bit::quantise(&recording.values("blockwise.signed.values"));
        assert_eq!(codes, recording.bytes("blockwise.signed.codes"));
        assert_eq!(bits(&scales), bits(&recording.values("blockwise.signed.absmax")));
    }
}

#[test]
fn packed_and_unpacked_bit_for_bit() {
    for recording in recordings("nf4") {
        let tensors = recording.about["tensors"].as_array().unwrap();
        assert!(tensors.len() >= 10);
        for tensor in tensors {
            let name = tensor["name"].as_str().unwrap();
            let of = |part: &str| recording.values(&format!("{name}.{part}"));
            let input = of("input");
            let (mut packed, mut scales) = (Vec::new(), Vec::new());
            // In pieces, as a large tensor is.
            for piece in input.chunks(3 * nf4::BLOCK) {
                nf4::pack(piece, &mut packed, &mut scales);
            }
            assert_eq!(packed, recording.bytes(&format!("{name}.packed")), "{name}");
            assert_eq!(bits(&scales), bits(&of("absmax")), "{name}");
            let offset = of("offset")[0];
            let own = nf4::DoubleScales::of(&scales);
            assert!((own.offset - offset).abs() <= f32::EPSILON * offset.abs(), "{name}: {} and {offset}", own.offset);
            let double = nf4::DoubleScales::around(&scales, offset);
            assert_eq!(double.codes, recording.bytes(&format!("{name}.absmax_codes")), "{name}");
            assert_eq!(bits(&double.scales), bits(&of("nested_absmax")), "{name}");
            let nested = nf4::Scales::Double(&double.codes, &double.scales, offset);
            assert_eq!(bits(&nested.all(scales.len())), bits(&of("nested_scales")), "{name}");
            for (given, part) in [(nf4::Scales::Plain(&scales), "plain"), (nested, "nested")] {
                if !recording.has(&format!("{name}.{part}.float32")) {
                    continue;
                }
                let mut values = vec![0.0; input.len()];
                nf4::unpack(&packed, given, 0, &mut values);
                assert_eq!(bits(&values), bits(&of(&format!("{part}.float32"))), "{name} {part}");
                // From any place on, to any.
                for (first, last) in [(1, 2), (3, 70), (64, 65), (5, 6), (63, 200)] {
                    let (first, last) = (input.len().min(first), input.len().min(last));
                    let mut some = vec![0.0; last - first];
                    nf4::unpack(&packed, given, first, &mut some);
                    assert_eq!(bits(&some), bits(&values[first..last]), "{name} {first}..{last}");
                }
            }
        }
    }
}

/// Products with a weight of 4 bits are those with its values, forward; backward with its values rounded to what they were.
#[test]
fn products_unpack_by_tiles() {
    for (rows, n, k, is_double, packed_from) in [
        (5, 70, 100, true, Dtype::Bf16),
        (300, 513, 129, false, Dtype::F32),
        (2, 3, 2500, true, Dtype::F16),
        (40, 600, 192, true, Dtype::Bf16),
    ] {
        let mut cpu = Cpu::new(2);
        let number = |index: usize| ((index * 7919 + 13) % 1009) as f32 / 504.5 - 1.0;
        let values: Vec<f32> = (0..n * k).map(|index| number(index) * number(index + 77)).collect();
        let (mut packed, mut scales) = (Vec::new(), Vec::new());
        nf4::pack(&values, &mut packed, &mut scales);
        let double = nf4::DoubleScales::of(&scales);
        let view = nf4::Scales::Double(&double.codes, &double.scales, double.offset);
        let view = if is_double { view } else { nf4::Scales::Plain(&scales) };
        let mut plain = vec![0.0; n * k];
        nf4::unpack(&packed, view, 0, &mut plain);
        let mut put = |dtype: Dtype, bytes: &[u8]| {
            let buffer = cpu.buffer(Purpose::Weights, "test", dtype, bytes.len() / dtype.size()).unwrap();
            cpu.upload(buffer, bytes);
            buffer
        };
        let wide = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        let scales = match is_double {
            true => Nf4Scales::Double {
                codes: put(Dtype::U8, &double.codes),
                scales: put(Dtype::F32, &wide(&double.scales)),
                offset: double.offset,
            },
            false => Nf4Scales::Plain(put(Dtype::F32, &wide(&scales))),
        };
        let blocks = Some(Nf4Blocks { rows: n, columns: k, scales, packed_from });
        let narrow = Weight { blocks, ..Weight::plain(put(Dtype::U8, &packed), n, k) };
        let all = all(packed_from);
        let rounded: Vec<f32> = plain.iter().map(|value| round(&all, *value)).collect();
        let [forward, backward] = [&plain, &rounded].map(|values| Weight::plain(put(Dtype::F32, &wide(values)), n, k));
        let x = put(Dtype::F32, &wide(&(0..rows * k).map(number).collect::<Vec<f32>>()));
        let dy = put(Dtype::F32, &wide(&(0..rows * n).map(number).collect::<Vec<f32>>()));
        let [y, y2] = [0, 1].map(|_| put(Dtype::F32, &wide(&vec![0.0; rows * n])));
        let [dx, dx2] = [0, 1].map(|_| put(Dtype::F32, &wide(&vec![0.0; rows * k])));
        cpu.reserve(Reserve { widest: k, longest: 1, ..Reserve::default() }).unwrap();
        let of = garden_device::Rows::dense;
        cpu.matmul(of(x, k), &narrow, of(y, n), rows, 0.5, Write::Set);
        cpu.matmul(of(x, k), &forward, of(y2, n), rows, 0.5, Write::Set);
        cpu.matmul_backward(of(dy, n), &narrow, of(dx, k), rows, 0.5, Write::Set);
        cpu.matmul_backward(of(dy, n), &backward, of(dx2, k), rows, 0.5, Write::Set);
        for (one, other, length) in [(y, y2, rows * n), (dx, dx2, rows * k)] {
            let [mut got, mut expected] = [0, 1].map(|_| vec![0.0; length]);
            cpu.download(one, &mut got).unwrap();
            cpu.download(other, &mut expected).unwrap();
            let size = expected.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
            for (got, expected) in got.iter().zip(&expected) {
                assert!((got - expected).abs() < 1e-5 * size, "[{n}, {k}]: {got} instead of {expected}");
            }
        }
    }
}

/// To the nearest that a dtype can hold: of all its values, those beside this one.
fn round(all: &[f32], value: f32) -> f32 {
    let above = all.partition_point(|one| *one < value);
    let beside = all[above.saturating_sub(1)..].iter().take(2).copied();
    let away = |one: &f32| (f64::from(*one) - f64::from(value)).abs();
    beside.min_by(|a, b| away(a).total_cmp(&away(b))).unwrap_or(value)
}

/// All finite values of a dtype of 16 bits, rising; none of another.
fn all(dtype: Dtype) -> Vec<f32> {
    let bits = if dtype == Dtype::F32 { 0..0 } else { 0..0x1_0000 };
    let mut all: Vec<f32> = bits.map(|bits| dtype.widened(bits as u16)).filter(|wide| wide.is_finite()).collect();
    all.sort_by(f32::total_cmp);
    all
}

/// How far parameters may be, relative to what training changed, and which share of codes may differ.
const NEAREST: (f64, f64) = (1e-2, 1e-2);
/// The library's CPU code finds codes in a coarser table and decays first; that is how far the two are apart.
const ON_A_CPU: f64 = 5e-2;

on_every_device! {
    twenty_steps_of_8_bit_adamw,
    thirty_steps_of_8_bit_adamw_on_a_gpu,
}

fn check(device: Option<Box<dyn Device>>, case: fn(&mut dyn Device)) {
    let Some(mut device) = device else { return };
    device.reserve(LARGEST).unwrap();
    case(&mut *device);
}

/// A recorded tensor that a device trains with moments of 8 bits.
struct Trained<'a> {
    recording: &'a Recording,
    about: &'a Value,
    name: &'a str,
    start: Vec<f32>,
    value: Buffer,
    codes: [Buffer; 2],
    scales: [Buffer; 2],
}

impl<'a> Trained<'a> {
    fn new(device: &mut dyn Device, recording: &'a Recording, about: &'a Value) -> Trained<'a> {
        let name = about["name"].as_str().unwrap();
        let start = recording.values(&format!("{name}.start"));
        let blocks = start.len().div_ceil(dynamic_8bit::BLOCK);
        let mut make = |dtype, length| device.buffer(Purpose::Optimizer, "test", dtype, length).unwrap();
        let value = make(Dtype::F32, start.len());
        let codes = [0, 1].map(|_| make(Dtype::U8, start.len()));
        let scales = [0, 1].map(|_| make(Dtype::F32, blocks));
        device.upload_f32(value, &start);
        Trained { recording, about, name, start, value, codes, scales }
    }

    /// All recorded steps; `compare` is called after each of them.
    fn train(&self, device: &mut dyn Device, mut compare: impl FnMut(&mut dyn Device, usize)) {
        let about = &self.recording.about;
        let numbers = |about: &Value, name: &str| -> Vec<f64> {
            about[name].as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
        };
        let [rates, factors, which] =
            ["learning_rates", "gradient_factors", "gradient_of_step"].map(|name| numbers(about, name));
        let left_out = numbers(self.about, "steps_without_gradient");
        let gradients = self.recording.values(&format!("{}.gradients", self.name));
        let length = self.start.len();
        let mut make = |dtype, length| device.buffer(Purpose::Optimizer, "test", dtype, length).unwrap();
        let (gradient, scalars) = (make(Dtype::F32, length), make(Dtype::I32, StepScalars::LENGTH));
        let [beta1, beta2, epsilon] = ["beta1", "beta2", "epsilon"].map(|name| about[name].as_f64().unwrap() as f32);
        let update = AdamW {
            value: self.value,
            gradient,
            shadow: None,
            moments: Moments::Int8 { codes: self.codes, scales: self.scales },
            beta1,
            beta2,
            epsilon,
            decay: self.about["weight_decay"].as_f64().unwrap() as f32,
            scalars,
            group: ParameterGroup(0),
        };
        let mut updates = 0;
        for index in 0..rates.len() {
            if left_out.contains(&(index as f64 + 1.0)) {
                continue;
            }
            updates += 1;
            let now = &gradients[which[index] as usize * length..][..length];
            let scaled: Vec<f32> = now.iter().map(|value| value * factors[index] as f32).collect();
            device.upload_f32(gradient, &scaled);
            let now = StepScalars { rate: rates[index] as f32, updates: [updates, 0], ..StepScalars::default() };
            device.upload(scalars, &now.words().map(i32::to_le_bytes).concat());
            device.adamw(&[update], None);
            compare(device, index + 1);
        }
    }

    /// How far parameters are from those of a run after this step, relative to what training changed there; nothing if it was not recorded.
    fn distance(&self, device: &mut dyn Device, run: &str, step: usize) -> Option<f64> {
        let recorded = format!("{run}.{}.step_{step}.parameter", self.name);
        let expected = self.recording.has(&recorded).then(|| self.recording.values(&recorded))?;
        let mut got = vec![0.0; self.start.len()];
        device.download(self.value, &mut got).unwrap();
        let (mut off, mut moved) = (0.0, 0.0);
        for ((got, expected), start) in got.iter().zip(&expected).zip(&self.start) {
            off += f64::from(got - expected).powi(2);
            moved += f64::from(expected - start).powi(2);
        }
        let off = (off / moved).sqrt();
        println!("{recorded}: {off:.1e} of what training changed");
        Some(off)
    }

    /// Codes of each moment that differ from those of a run after this step, of how many; nothing if they were not recorded.
    fn other_codes(&self, device: &mut dyn Device, run: &str, step: usize) -> Vec<(usize, usize)> {
        let place = format!("{run}.{}.step_{step}", self.name);
        let moments = (1..=2).filter(|which| self.recording.has(&format!("{place}.state{which}")));
        let mut count = |which: usize| {
            let expected = self.recording.bytes(&format!("{place}.state{which}"));
            let scales = self.recording.values(&format!("{place}.absmax{which}"));
            let got = device.download_bytes(self.codes[which - 1]).unwrap();
            // In a block whose largest value is zero every code stands for zero.
            let places = || (0..got.len()).filter(|index| scales[index / dynamic_8bit::BLOCK] > 0.0);
            let differ = places().filter(|index| got[*index] != expected[*index]).count();
            println!("{place}.state{which}: {differ} of {} codes differ", places().count());
            (differ, places().count())
        };
        moments.map(&mut count).collect()
    }
}

fn twenty_steps_of_8_bit_adamw(device: &mut dyn Device) {
    for recording in recordings("optimizer8") {
        let smallest = recording.about["smallest_8bit"].as_u64().unwrap() as usize;
        let mut compared = 0;
        for tensor in recording.about["tensors"].as_array().unwrap() {
            let trained = Trained::new(device, &recording, tensor);
            if trained.start.len() < smallest {
                continue;
            }
            trained.train(device, |device, step| {
                let name = trained.name;
                for (run, tolerance) in [("nearest", NEAREST.0), ("cpu", ON_A_CPU)] {
                    if let Some(off) = trained.distance(device, run, step) {
                        assert!(off < tolerance, "{run} {name} step {step}: off by {off:.1e}");
                        compared += 1;
                    }
                }
                for (differ, count) in trained.other_codes(device, "nearest", step) {
                    assert!((differ as f64) < NEAREST.1 * count as f64, "{name}: {differ} of {count} codes differ");
                }
            });
        }
        assert!(compared >= 6, "only {compared} comparisons");
    }
}

/// Against bitsandbytes' own kernels, as `optimizer8_cuda.py` recorded them on a GPU.
fn thirty_steps_of_8_bit_adamw_on_a_gpu(device: &mut dyn Device) {
    let recordings = found_recordings("optimizer8_cuda");
    if recordings.is_empty() {
        garden_testing::skip("there is no recording of bitsandbytes' GPU kernels (optimizer8_cuda.py)");
    }
    for recording in recordings {
        let (mut worst, mut differ, mut count) = (0.0_f64, 0, 0);
        for tensor in recording.about["tensors"].as_array().unwrap() {
            let trained = Trained::new(device, &recording, tensor);
            let mut compared = 0;
            trained.train(device, |device, step| {
                if let Some(off) = trained.distance(device, "cuda", step) {
                    worst = worst.max(off);
                    compared += 1;
                }
                for codes in trained.other_codes(device, "cuda", step) {
                    (differ, count) = (differ + codes.0, count + codes.1);
                }
            });
            assert_eq!(compared, tensor["recorded_after_steps"].as_array().unwrap().len(), "{}", trained.name);
        }
        println!("{}", recording.about["made_with"]);
        println!("at most {worst:.1e} of what training changed, {differ} of {count} codes differ");
        assert!(worst < NEAREST.0, "off by {worst:.1e}");
        assert!(count > 0 && (differ as f64) < NEAREST.1 * count as f64, "{differ} of {count} codes differ");
    }
}

/// What is no number in one place of a block harms nothing else.
#[test]
fn a_gradient_that_is_no_number() {
    let mut cpu = Cpu::new(1);
    let mut make = |dtype, length| cpu.buffer(Purpose::Optimizer, "test", dtype, length).unwrap();
    let (value, gradient) = (make(Dtype::F32, 300), make(Dtype::F32, 300));
    let codes = [make(Dtype::U8, 300), make(Dtype::U8, 300)];
    let scales = [make(Dtype::F32, 2), make(Dtype::F32, 2)];
    let scalars = make(Dtype::I32, StepScalars::LENGTH);
    let gradients: Vec<u8> =
        (0..300).flat_map(|index| if index == 7 { f32::NAN } else { 1.0_f32 }.to_le_bytes()).collect();
    cpu.upload(gradient, &gradients);
    let moments = Moments::Int8 { codes, scales };
    let (beta1, beta2, epsilon) = (0.9, 0.999, 1e-8);
    let now = StepScalars { rate: 0.1, updates: [0, 1], ..StepScalars::default() };
    cpu.upload(scalars, &now.words().map(i32::to_le_bytes).concat());
    let (shadow, decay, group) = (None, 0.0, ParameterGroup(1));
    cpu.adamw(&[AdamW { value, shadow, gradient, moments, beta1, beta2, epsilon, decay, scalars, group }], None);
    let mut values = vec![0.0; 300];
    cpu.download(value, &mut values).unwrap();
    for (index, value) in values.iter().enumerate() {
        let expected = if index == 7 { 0.0 } else { -0.1 };
        assert!((value - expected).abs() < 1e-5, "value {index} is {value}");
    }
}
