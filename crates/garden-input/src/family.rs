//! What sets a model family apart from others, as a value: its configuration, names, positions, images, tokens, boxes, adapters and words.
//!
//! The rest of the program asks the family of a model and names none. A new family is a file in `families` and a line in [`FAMILIES`]; what it needs of the
//! engine beyond the blocks that exist is a new kind of block there (`LayerSpec`, `VisionConfig`).

use std::fmt;
use std::path::Path;
use std::sync::LazyLock;

use garden_files::read_settings;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::config::Config;
use crate::error::Error;
use crate::families;
use crate::fields::Fields;
use crate::presets::Preset;

/// The supported families. The first is that of folders which do not say what they are.
pub static FAMILIES: [&Family; 1] = [&families::qwen2_5_vl::FAMILY];

/// A model family.
pub struct Family {
    /// Its name, as people write it.
    pub name: &'static str,
    /// `model_type` in `config.json`.
    pub model_type: &'static str,
    /// Reads a configuration of this type.
    pub parse: fn(Fields<'_>) -> Result<Config, Error>,
    /// The released models, smallest first.
    pub presets: &'static [Preset],
    /// Names of tensors.
    pub names: TensorNames,
    /// Adds the positions of an image of so many frames, rows and columns of tokens, given the position before which it comes; returns the position after it.
    pub positions: fn([usize; 3], i32, &mut Vec<[i32; 3]>) -> i32,
    /// How images become patches.
    pub images: ImageRules,
    /// Tokens with a meaning.
    pub tokens: TokenRules,
    /// How it writes boxes.
    pub boxes: BoxRules,
    /// Linears that get adapters.
    pub targets: TargetRules,
    /// What a model card says.
    pub card: CardRules,
}

/// Names of tensors in checkpoints.
#[derive(Clone, Copy, Debug)]
pub struct TensorNames {
    /// The name that this program uses for a tensor, whichever of its names a file has.
    pub newer: fn(&str) -> String,
    /// The token embedding.
    pub embedding: &'static str,
    /// The LM head, unless tied to the embedding.
    pub head: &'static str,
    /// The norm before the head.
    pub norm: &'static str,
    /// What the names of layers begin with; a number follows.
    pub layer: &'static str,
    /// Names in a layer.
    pub layers: LayerNames,
    /// Names in the vision tower.
    pub tower: TowerNames,
}

/// Names in a layer of the decoder.
#[derive(Clone, Copy, Debug)]
pub struct LayerNames {
    /// The norms before attention and before the MLP.
    pub norms: [&'static str; 2],
    /// The projections to queries, keys and values.
    pub qkv: [&'static str; 3],
    /// The projection back.
    pub output: &'static str,
    /// Gate, up and down of the MLP.
    pub mlp: [&'static str; 3],
}

/// Names in a vision tower and what merges its outputs.
#[derive(Clone, Copy, Debug)]
pub struct TowerNames {
    /// The convolution over patches.
    pub patches: &'static str,
    /// What the names of blocks begin with; a number follows.
    pub block: &'static str,
    /// The norms before attention and before the MLP of a block.
    pub norms: [&'static str; 2],
    /// The projection to queries, keys and values.
    pub qkv: &'static str,
    /// The projection back.
    pub output: &'static str,
    /// Gate, up and down of the MLP.
    pub mlp: [&'static str; 3],
    /// The merger's norm.
    pub merger_norm: &'static str,
    /// The merger's two linears.
    pub merger: [&'static str; 2],
}

/// How images become patches, where a model's files do not say it.
#[derive(Clone, Copy, Debug)]
pub struct ImageRules {
    /// Image processors that work so, by how their names begin.
    pub processors: &'static [&'static str],
    /// Side of a patch in pixels.
    pub patch: usize,
    /// Frames per patch.
    pub frames: usize,
    /// Side of a merged token in patches.
    pub merge: usize,
    /// Bounds of an image's pixels, as transformers has them.
    pub pixels: [u64; 2],
    /// The upper bound of released models.
    pub released_max_pixels: u64,
    /// Mean of each channel, on a scale from 0 to 1.
    pub mean: [f64; 3],
    /// Standard deviation of each channel.
    pub deviation: [f64; 3],
}

/// Tokens with a meaning.
#[derive(Clone, Copy, Debug)]
pub struct TokenRules {
    /// Classes of tokenizers that make the tokens that `tokenizer.json` says.
    pub tokenizers: &'static [&'static str],
    /// Special tokens that transformers takes for granted where no file says anything.
    pub end_of_text: &'static str,
    /// The placeholder of an image, unless a file names another.
    pub image: &'static str,
    /// Tokens around and in place of images and videos: only input, never generated.
    pub vision: &'static [&'static str],
}

/// How boxes of objects are written: in pixels of the image as the model sees it.
#[derive(Clone, Copy, Debug)]
pub struct BoxRules {
    /// JSON keys of a box and of a point in texts.
    pub keys: [&'static str; 2],
    /// Tokens before and after a box, and before and after a name.
    pub tokens: [&'static str; 4],
}

/// Linears that get adapters: regular expressions of PEFT's `target_modules`.
#[derive(Clone, Copy, Debug)]
pub struct TargetRules {
    /// The decoder's.
    pub decoder: &'static str,
    /// Those of decoder, vision tower and merger.
    pub all: &'static str,
    /// The short names of all linears, for whoever has typed another one.
    pub linears: &'static str,
    /// Modules that can be saved with an adapter, as examples.
    pub saved: [&'static str; 3],
}

/// What a model card says.
#[derive(Clone, Copy, Debug)]
pub struct CardRules {
    /// The class of transformers that loads a model.
    pub class: &'static str,
    /// A tag on the hub.
    pub tag: &'static str,
}

impl Family {
    /// The family of a `model_type`, if it is supported.
    pub fn find(model_type: &str) -> Option<&'static Family> {
        FAMILIES.into_iter().find(|family| family.model_type == model_type)
    }

    /// The family of a model's folder; the first one if its `config.json` does not say it, which whoever reads that file reports.
    pub fn of_folder(folder: &Path) -> &'static Family {
        let text = read_settings(&folder.join("config.json")).unwrap_or_default();
        let value: Value = serde_json::from_str(&text).unwrap_or_default();
        value["model_type"].as_str().and_then(Family::find).unwrap_or(FAMILIES[0])
    }

    /// The family whose name is part of a model's name on the hub.
    pub fn of_name(name: &str) -> Option<&'static Family> {
        let name = name.to_ascii_lowercase();
        FAMILIES.into_iter().find(|family| name.contains(&family.name.to_ascii_lowercase()))
    }
}

impl PartialEq for Family {
    fn eq(&self, other: &Family) -> bool {
        self.model_type == other.model_type
    }
}

impl fmt::Debug for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.model_type)
    }
}

impl Serialize for Family {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.model_type)
    }
}

impl<'de> Deserialize<'de> for &'static Family {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<&'static Family, D::Error> {
        let model_type = String::deserialize(deserializer)?;
        Family::find(&model_type)
            .ok_or_else(|| D::Error::custom(format!("models of the type `{model_type}` are not known")))
    }
}

/// What files of earlier versions are of.
impl Default for &'static Family {
    fn default() -> &'static Family {
        FAMILIES[0]
    }
}

/// What is supported, for whoever has brought something else.
pub fn supported() -> &'static str {
    static SUPPORTED: LazyLock<String> = LazyLock::new(|| {
        let families: Vec<&str> = FAMILIES.iter().map(|family| family.name).collect();
        let released: Vec<&str> = Preset::all().map(|preset| preset.hub_name).collect();
        let fine_tunes = if families.len() == 1 { "it" } else { "them" };
        format!("supported models are {} and fine-tunes of {fine_tunes}: {}", listed(&families), listed(&released))
    });
    &SUPPORTED
}

/// How to get a supported model.
pub fn download_hint() -> &'static str {
    static HINT: LazyLock<String> = LazyLock::new(|| {
        let example = Preset::all().next().map_or(FAMILIES[0].name, |preset| preset.hub_name);
        format!("download a supported model, for example `hf download {example}`")
    });
    &HINT
}

/// `a, b and c`.
fn listed(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => one.to_string(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test ends where a file cannot be read")]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;

    /// Where families are named: their facts, the list of them, and examples in the help of commands.
    const NAMING: [&str; 4] = ["families", "families.rs", "family.rs", "cli"];

    fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if NAMING.contains(&name.as_str()) || name == "tests" || name == "tests.rs" {
                continue;
            }
            match path.is_dir() {
                true => sources(&path, found),
                false if name.ends_with(".rs") => found.push(path),
                false => {}
            }
        }
    }

    /// The lines of a source that are compiled into the program, without comments.
    fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
        let program = text.split("#[cfg(test)]").next().unwrap_or_default();
        program.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//"))
    }

    #[test]
    fn one_file_names_a_family() {
        let mut found = Vec::new();
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for entry in fs::read_dir(crates).unwrap() {
            let folder = entry.unwrap().path().join("src");
            if folder.is_dir() {
                sources(&folder, &mut found);
            }
        }
        assert!(found.len() > 300, "only {} files were looked at", found.len());
        let words = FAMILIES.iter().flat_map(|family| {
            let name = family.name.to_lowercase();
            [family.model_type.to_string(), name.replace(['-', '.'], "_"), name, family.card.class.to_lowercase()]
        });
        let words: Vec<String> = words.collect();
        for path in found {
            let text = fs::read_to_string(&path).unwrap();
            for (line, code) in code(&text) {
                let code = code.to_lowercase();
                let named = words.iter().find(|word| code.contains(word.as_str()));
                assert_eq!(named, None, "{}:{}", path.display(), line + 1);
            }
        }
    }

    #[test]
    fn what_is_supported_is_listed() {
        let text = supported();
        for preset in Preset::all() {
            assert!(text.contains(preset.hub_name), "{text}");
        }
        assert_eq!(listed(&["a", "b", "c"]), "a, b and c");
        assert!(Family::find("llama").is_none());
    }
}
