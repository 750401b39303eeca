//! What `generation_config.json` asks for besides its end tokens. Answers here are greedy unless a flag says otherwise, so that is told, not applied.

use std::path::Path;

use garden_files::read_settings;
use serde_json::Value;

/// Fields that change no greedy answer; the first ones do where `do_sample` is true, which is told by its own name.
const WITHOUT_EFFECT: [&str; 25] = [
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "top_h",
    "typical_p",
    "epsilon_cutoff",
    "eta_cutoff",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "max_length",
    "max_new_tokens",
    "use_cache",
    "cache_implementation",
    "cache_config",
    "max_cache_len",
    "return_dict_in_generate",
    "output_scores",
    "output_logits",
    "output_attentions",
    "output_hidden_states",
    "early_stopping",
    "disable_compile",
    "transformers_version",
];

/// Fields that change nothing with the value 1.
const OFF_AT_ONE: [&str; 5] =
    ["repetition_penalty", "encoder_repetition_penalty", "length_penalty", "num_beams", "num_return_sequences"];

/// Settings of `generation_config.json` with which transformers would not answer greedily, such as `repetition_penalty 1.05`.
pub fn read_other_generation(folder: &Path) -> Vec<String> {
    let text = read_settings(&folder.join("generation_config.json")).unwrap_or_default();
    let Ok(Value::Object(fields)) = serde_json::from_str(&text) else { return Vec::new() };
    fields.iter().filter(|(name, value)| changes_answers(name, value)).map(|(name, value)| told(name, value)).collect()
}

fn changes_answers(name: &str, value: &Value) -> bool {
    let is_off = match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(number) => {
            let number = number.as_f64();
            number == Some(0.0) || (number == Some(1.0) && OFF_AT_ONE.contains(&name))
        }
        Value::Array(values) => values.is_empty(),
        _ => false,
    };
    !is_off && !name.starts_with('_') && !WITHOUT_EFFECT.contains(&name)
}

fn told(name: &str, value: &Value) -> String {
    match value {
        Value::Array(_) | Value::Object(_) => name.to_string(),
        value => format!("{name} {value}"),
    }
}
