//! Configurations of the released models, so that planning needs no model files.
//!
//! They match `config.json` on the hub; tests check the parameter count of each against the published one.

use crate::config::{
    AttentionSpec, Config, LayerSpec, Mixer, MlpSpec, NormSpec, RotarySpec, TextConfig, VISION_NORM, VisionConfig,
    WindowSpec,
};

/// A released model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preset {
    /// Its name here, such as `qwen2.5-vl-3b`.
    pub name: &'static str,
    /// Its name on the hub.
    pub hub_name: &'static str,
    /// Parameters, as published.
    pub parameters: usize,
    sizes: Sizes,
}

/// Sizes in which the released models differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sizes {
    hidden: usize,
    intermediate: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    vocabulary: usize,
    is_tied: bool,
    vision_intermediate: usize,
}

/// The released models, smallest first.
pub const PRESETS: [Preset; 4] = [
    Preset {
        name: "qwen2.5-vl-3b",
        hub_name: "Qwen/Qwen2.5-VL-3B-Instruct",
        parameters: 3_754_622_976,
        sizes: Sizes {
            hidden: 2048,
            intermediate: 11008,
            layers: 36,
            heads: 16,
            kv_heads: 2,
            vocabulary: 151_936,
            is_tied: true,
            vision_intermediate: 3420,
        },
    },
    Preset {
        name: "qwen2.5-vl-7b",
        hub_name: "Qwen/Qwen2.5-VL-7B-Instruct",
        parameters: 8_292_166_656,
        sizes: Sizes {
            hidden: 3584,
            intermediate: 18944,
            layers: 28,
            heads: 28,
            kv_heads: 4,
            vocabulary: 152_064,
            is_tied: false,
            vision_intermediate: 3420,
        },
    },
    Preset {
        name: "qwen2.5-vl-32b",
        hub_name: "Qwen/Qwen2.5-VL-32B-Instruct",
        parameters: 33_452_718_336,
        sizes: Sizes {
            hidden: 5120,
            intermediate: 27648,
            layers: 64,
            heads: 40,
            kv_heads: 8,
            vocabulary: 152_064,
            is_tied: false,
            vision_intermediate: 3456,
        },
    },
    Preset {
        name: "qwen2.5-vl-72b",
        hub_name: "Qwen/Qwen2.5-VL-72B-Instruct",
        parameters: 73_410_777_344,
        sizes: Sizes {
            hidden: 8192,
            intermediate: 29568,
            layers: 80,
            heads: 64,
            kv_heads: 8,
            vocabulary: 152_064,
            is_tied: false,
            vision_intermediate: 3456,
        },
    },
];

impl Config {
    /// A model small enough to train on a CPU in moments; `model-garden demo` uses it.
    pub fn tiny() -> Config {
        Config {
            text: decoder(
                Sizes {
                    hidden: 128,
                    intermediate: 256,
                    layers: 3,
                    heads: 4,
                    kv_heads: 2,
                    vocabulary: 544,
                    is_tied: true,
                    vision_intermediate: 192,
                },
                1e4,
                [4, 6, 6],
            ),
            vision: VisionConfig {
                depth: 3,
                hidden: 96,
                intermediate: 192,
                heads: 3,
                patch: 14,
                frames: 2,
                merge: 2,
                windows: Some(WindowSpec { side: 4, full_blocks: vec![2] }),
                rotary_theta: 1e4,
                out: 128,
                norm: VISION_NORM,
            },
            is_tied: true,
            image_token: 536,
            padding_token: None,
            is_quantised: false,
        }
    }
}

impl Preset {
    /// Finds a preset by name, case-insensitively, with or without `Qwen/` and `-Instruct`.
    pub fn find(name: &str) -> Option<Preset> {
        let plain = name.to_ascii_lowercase();
        let plain = plain.strip_prefix("qwen/").unwrap_or(&plain);
        let plain = plain.strip_suffix("-instruct").unwrap_or(plain);
        PRESETS.into_iter().find(|preset| preset.name == plain)
    }

    /// The preset's configuration.
    pub fn config(self) -> Config {
        let sizes = self.sizes;
        Config {
            text: decoder(sizes, 1e6, [16, 24, 24]),
            vision: VisionConfig {
                depth: 32,
                hidden: 1280,
                intermediate: sizes.vision_intermediate,
                heads: 16,
                patch: 14,
                frames: 2,
                merge: 2,
                // 112 pixels; a merged token has 28.
                windows: Some(WindowSpec { side: 4, full_blocks: vec![7, 15, 23, 31] }),
                rotary_theta: 1e4,
                out: sizes.hidden,
                norm: VISION_NORM,
            },
            is_tied: sizes.is_tied,
            image_token: 151_655,
            padding_token: None,
            is_quantised: false,
        }
    }
}

fn decoder(sizes: Sizes, theta: f32, sections: [usize; 3]) -> TextConfig {
    let Sizes { hidden, intermediate, layers, heads, kv_heads, vocabulary, .. } = sizes;
    let norm = NormSpec { epsilon: 1e-6, is_decayed: false };
    let rotary = RotarySpec { theta, sections };
    let (head_dim, has_qkv_bias, has_output_bias) = (hidden / heads, true, false);
    let attention = AttentionSpec { heads, kv_heads, head_dim, has_qkv_bias, has_output_bias, rotary };
    let mlp = MlpSpec { intermediate, has_bias: false };
    let layers = vec![LayerSpec { norm, mixer: Mixer::Attention(attention), mlp }; layers];
    TextConfig { hidden, vocabulary, layers, norm, attention_dropout: 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tiny_one_is_that_of_the_demo() {
        let path =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../model-garden/assets/demo-base/config.json");
        assert_eq!(Config::read(&path).unwrap(), Config::tiny());
    }

    #[test]
    fn names_are_found_as_people_write_them() {
        for name in ["qwen2.5-vl-7b", "Qwen2.5-VL-7B", "Qwen/Qwen2.5-VL-7B-Instruct"] {
            assert_eq!(Preset::find(name).map(|preset| preset.name), Some("qwen2.5-vl-7b"));
        }
        assert_eq!(Preset::find("qwen3-vl"), None);
    }
}
