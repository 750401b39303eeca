//! The tiny base model of the demo, which is a part of the program; assets/demo-base/README.md says what it was taught.

use std::io;
use std::path::Path;

/// Its files.
const FILES: [(&str, &[u8]); 7] = [
    ("config.json", include_bytes!("../../assets/demo-base/config.json")),
    ("generation_config.json", include_bytes!("../../assets/demo-base/generation_config.json")),
    ("preprocessor_config.json", include_bytes!("../../assets/demo-base/preprocessor_config.json")),
    ("tokenizer.json", include_bytes!("../../assets/demo-base/tokenizer.json")),
    ("tokenizer_config.json", include_bytes!("../../assets/demo-base/tokenizer_config.json")),
    ("chat_template.jinja", include_bytes!("../../assets/demo-base/chat_template.jinja")),
    ("model.safetensors", include_bytes!("../../assets/demo-base/model.safetensors")),
];

/// Writes the model into a folder.
pub fn write(folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    FILES.iter().try_for_each(|(name, bytes)| std::fs::write(folder.join(name), bytes))
}
