//! One file for each family: its facts, and all that names it.

pub(crate) mod qwen2_5_vl;
