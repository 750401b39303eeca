//! The first values of an adapter: A as PEFT draws it, B zero, so that the first step begins with the base model.

use garden_data::Fingerprint;
use garden_device::Device;
use garden_model::Model;
use garden_random::{SplitMix64, spread};

/// Draws A uniformly within 1 / sqrt(inputs) (PEFT's Kaiming with a = sqrt(5)), from the seed and its name alone; B stays zero.
pub(crate) fn draw_adapter(device: &mut dyn Device, model: &Model, seed: u64) {
    for parameter in model.parameters().iter().filter(|parameter| parameter.name.contains(".lora_A.")) {
        let inputs = parameter.shape.last().copied().unwrap_or(1);
        let bound = 1.0 / (inputs as f64).sqrt();
        let mut random = random_of(seed, &parameter.name);
        let length = parameter.shape.iter().product();
        let values: Vec<f32> = (0..length).map(|_| ((2.0 * random.unit() - 1.0) * bound) as f32).collect();
        model.set(device, parameter, &values);
    }
}

/// The random numbers of a matrix: its own, however many others there are.
fn random_of(seed: u64, name: &str) -> SplitMix64 {
    let mut hash = Fingerprint::default();
    hash.bytes(name.as_bytes());
    SplitMix64(hash.value() ^ spread(seed))
}
