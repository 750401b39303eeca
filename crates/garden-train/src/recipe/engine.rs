//! What a recipe means to the engine.

use garden_data::{ImageSettings, LengthLimit};
use garden_model::{FourBit, LoraConfig, Storage, Targets, Training};

use super::{Optim, Recipe, Recompute};

/// Signs that a list of names does not have and a regular expression does.
const PATTERN_SIGNS: &[char] = &['*', '+', '?', '(', ')', '[', ']', '{', '}', '|', '\\', '^', '$'];

impl Recipe {
    /// What is trained.
    pub fn training(&self) -> Training {
        if self.full {
            return Training::Full;
        }
        let targets = match &self.lora_targets {
            None if self.finetune_vision => Targets::all(),
            None => Targets::decoder(),
            Some(text) if text.contains(PATTERN_SIGNS) => Targets::Pattern(text.clone()),
            Some(text) => Targets::Names(text.split(',').map(|name| name.trim().to_string()).collect()),
        };
        Training::Lora(LoraConfig {
            rank: self.lora_r,
            alpha: self.lora_alpha,
            is_rank_stabilised: self.use_rslora,
            dropout: self.lora_dropout,
            targets,
        })
    }

    /// How weights and moments are stored.
    pub fn storage(&self) -> Storage {
        Storage {
            four_bit: self.load_in_4bit.then(FourBit::default),
            has_narrow_moments: self.optim == Optim::Adamw8Bit,
        }
    }

    /// What is kept from the forward to the backward pass.
    pub fn kept(&self) -> garden_model::Recompute {
        match self.recompute {
            Recompute::Layer => garden_model::Recompute::Layers,
            Recompute::None => garden_model::Recompute::Nothing,
        }
    }

    /// A model's settings for pictures, with the recipe's own bounds.
    pub fn images(&self, settings: &ImageSettings) -> ImageSettings {
        let max_pixels = self.max_pixels.unwrap_or(settings.max_pixels);
        let min_pixels = self.min_pixels.unwrap_or(settings.min_pixels);
        // A smaller bound from above wins over the model's own bound from below.
        let min_pixels = if self.min_pixels.is_none() { min_pixels.min(max_pixels) } else { min_pixels };
        ImageSettings { max_pixels: max_pixels.max(min_pixels), min_pixels, ..settings.clone() }
    }

    /// How long a row may be.
    pub fn length(&self) -> Option<LengthLimit> {
        self.max_length.map(|tokens| LengthLimit { tokens, too_long: self.on_long_row })
    }
}
