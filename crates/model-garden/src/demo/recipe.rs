//! How the demo is trained, as flags of `train-vision`; the seed is the user's.
//!
//! docs/demo.md has what it gives with several seeds, and what was tried.

/// Flags without their dashes, and their values.
pub const RECIPE: [(&str, &str); 13] = [
    ("epochs", "2"),
    ("batch-size", "16"),
    ("gradient-accumulation", "1"),
    ("learning-rate", "3e-3"),
    ("lr-scheduler", "cosine"),
    ("warmup-steps", "18"),
    ("weight-decay", "0"),
    ("max-grad-norm", "1"),
    ("lora-r", "16"),
    ("lora-alpha", "32"),
    // Decoder, vision tower and merger: the base knows other shapes than the demo's, so what it sees has to change too.
    ("lora-targets", "all"),
    ("finetune-vision", "true"),
    ("max-length", "128"),
];
