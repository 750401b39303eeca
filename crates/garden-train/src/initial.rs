//! The first values of an adapter: A as PEFT draws it, B zero, so that the first step begins with the base model.

use garden_data::Fingerprint;
use garden_device::Device;
use garden_model::Model;

/// Draws A uniformly within 1 / sqrt(inputs) (PEFT's Kaiming with a = sqrt(5)), from the seed and its name alone; B stays zero.
pub(crate) fn draw_adapter(device: &mut dyn Device, model: &Model, seed: u64) {
    for parameter in model.parameters().iter().filter(|parameter| parameter.name.contains(".lora_A.")) {
        let inputs = parameter.shape.last().copied().unwrap_or(1);
        let bound = 1.0 / (inputs as f64).sqrt();
        let mut random = Random::new(seed, &parameter.name);
        let length = parameter.shape.iter().product();
        let values: Vec<f32> = (0..length).map(|_| ((2.0 * random.unit() - 1.0) * bound) as f32).collect();
        model.set(device, parameter, &values);
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn new(seed: u64, name: &str) -> Random {
        // Each matrix has numbers of its own, however many others there are.
        let mut hash = Fingerprint::default();
        hash.bytes(name.as_bytes());
        Random(hash.value() ^ mixed(seed))
    }

    /// A number of at least 0 and below 1.
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (mixed(self.0) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Spreads the bits of a number (the finaliser of SplitMix64).
pub(crate) fn mixed(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}
