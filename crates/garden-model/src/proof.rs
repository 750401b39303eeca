//! Checks that an adapter has an effect and that a merged checkpoint equals the base with that adapter: logits on fixed prompts, and weights value by value.

use std::path::Path;

use garden_device::{Cpu, Device, Dtype, Plan, Planner};

use crate::checkpoint::Checkpoint;
use crate::checkpoint::adapter::{Adapter, Pair, read_adapter};
use crate::checkpoint::merge::Merge;
use crate::checkpoint::nf4_checkpoint::FourBit;
use crate::engine::{Engine, EngineLimits};
use crate::error::Error;
use crate::network::parameters::RowFactors;
use garden_input::{Config, Images, Prompt};

/// Relative norm by which logits of the same weights differ when summed in another order; see testdata/reference.
const NOISE: f64 = 1e-4;
/// Rows of each tensor that are recomputed in f64.
const ROWS: usize = 8;
/// Lengths of the text prompts in tokens.
const TEXT: [usize; 2] = [24, 9];

/// The difference of two sets of logits.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Difference {
    /// Number of tokens compared.
    pub places: usize,
    /// Tokens for which both have the same best next token.
    pub same_best: usize,
    /// The largest difference of two logits.
    pub largest: f64,
    /// The largest absolute logit of the second.
    pub scale: f64,
    /// The norm of the difference over the norm of the second.
    pub relative: f64,
}

impl Difference {
    /// The largest difference relative to the largest logit.
    pub fn largest_relative(&self) -> f64 {
        if self.scale > 0.0 { self.largest / self.scale } else { self.largest }
    }
}

/// Compares logits `[tokens, vocabulary]` with reference logits.
pub fn compare_logits(one: &[f32], other: &[f32], vocabulary: usize) -> Difference {
    assert_eq!(one.len(), other.len(), "logits of the same tokens are needed");
    let mut difference = Difference::default();
    let (mut apart, mut size) = (0.0, 0.0);
    for (one, other) in one.chunks_exact(vocabulary).zip(other.chunks_exact(vocabulary)) {
        difference.places += 1;
        difference.same_best += usize::from(best(one) == best(other));
        for (one, other) in one.iter().zip(other).map(|(one, other)| (f64::from(*one), f64::from(*other))) {
            let off = (one - other).abs();
            // NaN sticks, as nothing exceeds it, and fails every comparison.
            difference.largest = if off > difference.largest || off.is_nan() { off } else { difference.largest };
            difference.scale = difference.scale.max(other.abs());
            apart += off * off;
            size += other * other;
        }
    }
    difference.relative = if size > 0.0 { (apart / size).sqrt() } else { apart.sqrt() };
    difference
}

fn best(logits: &[f32]) -> Option<usize> {
    (0..logits.len()).max_by(|one, other| logits[*one].total_cmp(&logits[*other]))
}

/// Fixed prompts, the same for every model of a configuration: two of text and one with a small image of noise.
pub fn proof_prompts(config: &Config) -> Vec<Prompt> {
    let mut random = Noise(0x9e37_79b9_7f4a_7c15);
    let mut text = |count: usize| -> Vec<i32> {
        let draws = std::iter::repeat_with(|| (random.next() % config.text.vocabulary as u64) as i32);
        draws.filter(|token| *token != config.image_token).take(count).collect()
    };
    let mut prompts: Vec<Prompt> =
        TEXT.iter().map(|count| Prompt { tokens: text(*count), images: Images::default() }).collect();
    let (rows, columns) = (2 * config.vision.merge, 3 * config.vision.merge);
    let mut tokens = text(3);
    tokens.extend(vec![config.image_token; rows * columns / config.vision.merged()]);
    tokens.extend(text(8));
    // The usual range of normalised pixels.
    let pixels =
        (0..rows * columns * config.vision.patch_values()).map(|_| random.next() as f32 / u64::MAX as f32 * 3.0 - 1.5);
    prompts.push(Prompt { tokens, images: Images { pixels: pixels.collect(), grids: vec![[1, rows, columns]] } });
    prompts
}

/// A small random number engine (xorshift) whose sequence never changes.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        // The upper bits are better.
        self.0 >> 11 << 11
    }
}

/// The effect of an adapter on a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdapterProof {
    /// Number of linears that it changes.
    pub changed: usize,
    /// Number of linears whose A or B is zero.
    pub idle: usize,
    /// Logits with the adapter, compared to those without it.
    pub change: Difference,
}

impl AdapterProof {
    /// Whether the adapter changes nothing.
    pub fn is_no_op(&self) -> bool {
        self.change.largest == 0.0
    }

    /// The largest change of a logit.
    pub fn largest_change(&self) -> f64 {
        self.change.largest
    }
}

/// Loads a saved adapter and compares logits with and without it. `four_bit` quantises the base on load, as in training.
pub fn prove_adapter(
    checkpoint: &Checkpoint,
    config: &Config,
    adapter: &Path,
    four_bit: Option<&FourBit>,
    threads: usize,
) -> Result<AdapterProof, Error> {
    let adapter = read_adapter(adapter, config.family)?;
    let logits = both(checkpoint, config, &adapter, four_bit, threads)?;
    let (changed, idle) = adapter.effect()?;
    Ok(AdapterProof { changed, idle, change: compare_logits(&logits.adapted, &logits.base, config.text.vocabulary) })
}

/// Logits for all tokens of the fixed prompts.
struct Logits {
    base: Vec<f32>,
    adapted: Vec<f32>,
}

fn both(
    checkpoint: &Checkpoint,
    config: &Config,
    adapter: &Adapter,
    four_bit: Option<&FourBit>,
    threads: usize,
) -> Result<Logits, Error> {
    let mut cpu = Cpu::new(threads);
    let (lora, limits, none) = (Some(&adapter.config), limits(config), RowFactors::new());
    if adapter.is_dora {
        let mut engine = Engine::build(&mut cpu, config, checkpoint, None, four_bit, limits)?;
        let base = logits(&mut engine, &mut cpu)?;
        let mut cpu = Cpu::new(threads);
        let mut engine = Engine::build(&mut cpu, config, checkpoint, Some(adapter), four_bit, limits)?;
        return Ok(Logits { base, adapted: logits(&mut engine, &mut cpu)? });
    }
    // One model is enough: its adapter has no effect until it is filled.
    let (mut engine, places) = Engine::with_idle_adapter(&mut cpu, config, checkpoint, lora, &none, four_bit, limits)?;
    let base = logits(&mut engine, &mut cpu)?;
    adapter.fill_frozen(&mut cpu, &places, &none)?;
    Ok(Logits { base, adapted: logits(&mut engine, &mut cpu)? })
}

fn logits(engine: &mut Engine, device: &mut dyn Device) -> Result<Vec<f32>, Error> {
    let mut all = Vec::new();
    for prompt in proof_prompts(&engine.config().clone()) {
        all.extend(engine.logits(device, prompt)?);
    }
    Ok(all)
}

fn limits(config: &Config) -> EngineLimits {
    EngineLimits { rows: 1, ..EngineLimits::of(&proof_prompts(config), 0) }
}

/// The memory plan for checking an adapter, or the base of a merge.
pub fn plan_proof(checkpoint: &Checkpoint, config: &Config, adapter: &Adapter, threads: usize) -> Result<Plan, Error> {
    let mut planner = Planner::for_cpu(Cpu::new(threads).threads());
    Engine::build(&mut planner, config, checkpoint, Some(adapter), None, limits(config))?;
    Ok(planner.plan().clone())
}

/// Comparison of a merged checkpoint with the base and its adapter.
#[derive(Clone, Debug, PartialEq)]
pub struct MergeProof {
    /// Logits with the adapter, compared to the base's.
    pub change: Difference,
    /// Logits of the merged checkpoint, compared to those of the base with the adapter.
    pub difference: Difference,
    /// The relative difference of logits explained by rounding the weights.
    pub explained: f64,
    /// Number of weights recomputed in f64.
    pub checked: usize,
    /// The largest error of a weight, in units of the spacing of its dtype; half a unit is rounding.
    pub rounding: f64,
    /// The tensor with that error.
    pub roughest: String,
}

/// Half a unit, and the effect of sums in f32.
const MOST_ROUNDING: f64 = 0.51;

impl MergeProof {
    /// Whether the merged checkpoint differs from the base with its adapter by rounding only.
    pub fn is_proven(&self) -> bool {
        // Written so that NaN fails.
        self.difference.relative <= self.explained && self.rounding <= MOST_ROUNDING
    }

    /// Whether rounding is more than a quarter of the adapter's change: the dtype has too few bits for so small a change.
    pub fn is_drowned(&self) -> bool {
        self.difference.relative > self.change.relative / 4.0
    }
}

/// Compares a written merge with its base and adapter.
pub fn prove_merge(
    merge: &Merge<'_>,
    base: &Checkpoint,
    adapter: &Adapter,
    merged: &Path,
    threads: usize,
) -> Result<MergeProof, Error> {
    let config = Config::read(&merged.join("config.json"))?;
    let merged = Checkpoint::open(merged)?;
    let (checked, rounding, roughest) = check_weights(merge, &merged)?;
    let known = both(base, &config, adapter, None, threads)?;
    let mut cpu = Cpu::new(threads);
    let mut engine = Engine::build(&mut cpu, &config, &merged, None, None, limits(&config))?;
    let got = logits(&mut engine, &mut cpu)?;
    let vocabulary = config.text.vocabulary;
    Ok(MergeProof {
        change: compare_logits(&known.adapted, &known.base, vocabulary),
        difference: compare_logits(&got, &known.adapted, vocabulary),
        explained: explained(merge),
        checked,
        rounding,
        roughest,
    })
}

/// The difference explained by rounding: each rounded matrix has an independent error, and the errors add up in quadrature.
fn explained(merge: &Merge<'_>) -> f64 {
    let roundoff = match merge.coarsest() {
        Dtype::Bf16 => 2.0_f64.powi(-8),
        Dtype::F16 => 2.0_f64.powi(-11),
        _ => 2.0_f64.powi(-24),
    };
    NOISE + roundoff * (merge.rounded() as f64).sqrt()
}

/// The matrices of an adapter, for sums in f64.
struct ExactPair {
    scale: f64,
    rank: usize,
    down: Vec<f32>,
    up: Vec<f32>,
    lengths: Option<Vec<f32>>,
}

impl ExactPair {
    fn of(pair: &Pair<'_>) -> ExactPair {
        let (scale, rank) = (f64::from(pair.scale), pair.down.shape[0]);
        let lengths = pair.lengths.map(|lengths| lengths.values());
        ExactPair { scale, rank, down: pair.down.values(), up: pair.up.values(), lengths }
    }

    /// A row of the merged weight, and the sums of its terms' sizes.
    fn row(&self, row: usize, before: &[f32]) -> Vec<(f64, f64)> {
        let sum = |(column, value): (usize, &f32)| {
            let terms = (0..self.rank).map(|index| {
                let down = f64::from(self.down[index * before.len() + column]);
                self.scale * f64::from(self.up[row * self.rank + index]) * down
            });
            let value = f64::from(*value);
            terms.fold((value, value.abs()), |(exact, sizes), term| (exact + term, sizes + term.abs()))
        };
        let mut sums: Vec<(f64, f64)> = before.iter().enumerate().map(sum).collect();
        if let Some(lengths) = &self.lengths {
            let length = sums.iter().map(|(exact, _)| exact * exact).sum::<f64>().sqrt();
            let factor = f64::from(lengths[row]) / length;
            sums.iter_mut().for_each(|(exact, sizes)| (*exact, *sizes) = (*exact * factor, *sizes * factor.abs()));
        }
        sums
    }
}

/// Recomputes some rows of every tensor in f64, and finds the largest error.
fn check_weights(merge: &Merge<'_>, merged: &Checkpoint) -> Result<(usize, f64, String), Error> {
    let (mut checked, mut largest, mut roughest) = (0, 0.0, String::new());
    for item in &merge.items {
        let tensor = merged.tensor(item.newer)?;
        if tensor.dtype != item.dtype || tensor.shape != item.shape {
            let problem =
                format!("is {:?} {:?}; {:?} {:?} was written", tensor.dtype, tensor.shape, item.dtype, item.shape);
            return Err(Error::tensor(tensor.path, item.name, problem));
        }
        let (columns, reader) = (item.columns(), item.reader());
        let rows = item.length() / columns.max(1);
        let pair = item.pair.map(|pair| ExactPair::of(&pair));
        let (mut before, mut after) = (vec![0.0; columns], vec![0.0; columns]);
        for row in (0..rows).step_by(rows.div_ceil(ROWS).max(1)) {
            reader.read(row * columns, &mut before);
            tensor.widen(row * columns, &mut after);
            let same = || before.iter().map(|value| (f64::from(*value), f64::from(value.abs()))).collect();
            let expected: Vec<(f64, f64)> = pair.as_ref().map_or_else(same, |pair| pair.row(row, &before));
            for (column, (exact, sizes)) in expected.into_iter().enumerate() {
                // Rounding of sums in f32 is not an error of the merge.
                let off = ((f64::from(after[column]) - exact).abs() - sizes * 2.0_f64.powi(-21)).max(0.0);
                let error = off / distance(item.dtype, exact);
                // NaN sticks, as nothing exceeds it.
                if error > largest || error.is_nan() {
                    (largest, roughest) = (error, item.name.to_string());
                }
                checked += 1;
            }
        }
        reader.forget(0..item.length());
        tensor.forget();
    }
    Ok((checked, largest, roughest))
}

/// The spacing of a dtype's values at a value.
fn distance(dtype: Dtype, value: f64) -> f64 {
    let (digits, smallest) = match dtype {
        Dtype::Bf16 => (7, -126),
        Dtype::F16 => (10, -14),
        _ => (23, -126),
    };
    let exponent = if value == 0.0 { smallest } else { (value.abs().log2().floor() as i32).max(smallest) };
    2.0_f64.powi(exponent - digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logits_are_compared_place_by_place() {
        let same = compare_logits(&[1.0, -2.0, 0.5, 0.0], &[1.0, -2.0, 0.5, 0.0], 2);
        assert_eq!(same, Difference { places: 2, same_best: 2, largest: 0.0, scale: 2.0, relative: 0.0 });
        let other = compare_logits(&[1.0, 3.0, 4.0, 0.0], &[3.0, 1.0, 4.0, 0.0], 2);
        assert_eq!((other.same_best, other.largest, other.scale), (1, 2.0, 4.0));
        assert!((other.relative - (8.0_f64 / 26.0).sqrt()).abs() < 1e-12);
        assert!(compare_logits(&[f32::NAN, 0.0], &[1.0, 0.0], 2).largest.is_nan());
    }

    #[test]
    fn distances_are_those_of_the_kind() {
        assert_eq!(distance(Dtype::Bf16, 1.5), 2.0_f64.powi(-7));
        assert_eq!(distance(Dtype::F16, -0.75), 2.0_f64.powi(-11));
        assert_eq!(distance(Dtype::F16, 0.0), 2.0_f64.powi(-24));
    }
}
