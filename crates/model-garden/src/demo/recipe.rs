//! How the demo is trained, as flags of `train-vision`; the seed is the user's.
//!
//! docs/demo.md has what it gives with several seeds, and what was tried.

/// Settings by name.
pub const RECIPE: [(&str, &str); 16] = [
    ("epochs", "2"),
    ("batch-size", "16"),
    ("gradient-accumulation", "1"),
    ("learning-rate", "3e-3"),
    ("lr-scheduler", "cosine"),
    ("warmup-steps", "18"),
    ("lora-r", "16"),
    ("lora-alpha", "32"),
    // Decoder, vision tower and merger: the base knows other shapes than the demo's, so what it sees has to change too.
    ("finetune-vision", "true"),
    ("recompute", "none"),
    ("prefetch", "32MB"),
    ("logging-steps", "20"),
    ("eval-steps", "90"),
    ("eval-answers", "144"),
    ("max-new-tokens", "24"),
    ("save-steps", "180"),
];
