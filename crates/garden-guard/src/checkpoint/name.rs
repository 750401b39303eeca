//! What the name of a file or folder says: whether it is a checkpoint, of which step, or only a draft of one.
//!
//! A name is split into words and numbers (`epoch=3-step=100.ckpt` is epoch, 3, step, 100, ckpt), so that `checkpoints-2024`
//! or `footsteps7` are not taken for checkpoints.

use std::ffi::OsStr;

/// Words that a number belongs to, the one that says most first.
const WORDS: [&[&str]; 3] = [&["step", "steps"], &["checkpoint", "ckpt"], &["epoch", "epochs"]];

/// How names of files that can be a whole checkpoint end; a log or picture of step 100 is none.
const FILES: [&str; 7] = ["safetensors", "pt", "pth", "bin", "ckpt", "tar", "zip"];

/// What a name belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A file.
    File,
    /// A folder.
    Folder,
}

/// Where in a run a checkpoint is, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// At this step, or at the end of this epoch.
    At(u64),
    /// The name does not say: `last.ckpt`.
    Unknown,
}

impl Step {
    /// The number, if there is one.
    pub fn number(self) -> Option<u64> {
        match self {
            Step::At(step) => Some(step),
            Step::Unknown => None,
        }
    }
}

/// The step of a checkpoint, or nothing if the name is not that of a checkpoint.
///
/// A folder needs a number, since `checkpoint` is as likely to hold the checkpoints as to be one.
pub fn recognise(name: &OsStr, kind: Kind) -> Option<Step> {
    let name = name.to_string_lossy().to_ascii_lowercase();
    if name.starts_with('.') || is_draft(&name) {
        return None;
    }
    if kind == Kind::File && !FILES.contains(&extension(&name)) {
        return None;
    }
    let parts = split(&name);
    for words in WORDS {
        if let Some(step) = number_beside(&parts, words) {
            return Some(Step::At(step));
        }
    }
    let named = parts.iter().any(|part| WORDS.iter().any(|words| words.contains(part)));
    (kind == Kind::File && named).then_some(Step::Unknown)
}

/// The number after one of these words, or else before it: `step_100`, `100_steps`.
fn number_beside(parts: &[&str], words: &[&str]) -> Option<u64> {
    let number = |word: &str, number: &str| words.contains(&word).then(|| number.parse().ok())?;
    let after = parts.windows(2).find_map(|pair| number(pair[0], pair[1]));
    after.or_else(|| parts.windows(2).find_map(|pair| number(pair[1], pair[0])))
}

/// The N of a folder that is named exactly `checkpoint-N`, as Hugging Face's `Trainer` names it.
pub fn trainer_step(name: &OsStr) -> Option<u64> {
    let number = name.to_str()?.strip_prefix("checkpoint-")?;
    number.bytes().all(|byte| byte.is_ascii_digit()).then(|| number.parse().ok())?
}

/// Whether a name is one that programs give to what they have not finished.
pub fn is_draft(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["tmp-", "tmp_"].iter().any(|start| name.starts_with(start))
        || [".tmp", "-tmp-"].iter().any(|middle| name.contains(middle))
        || [".incomplete", ".partial", ".part"].iter().any(|end| name.ends_with(end))
}

/// What follows the last dot; nothing for a name without a dot, or with one at its start only.
pub fn extension(name: &str) -> &str {
    match name.rsplit_once('.') {
        Some((stem, extension)) if !stem.is_empty() => extension,
        _ => "",
    }
}

/// Its runs of letters and of digits.
fn split(name: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let class = |letter: char| (letter.is_ascii_digit(), letter.is_alphabetic());
    let mut rest = name;
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|letter| class(letter) != class(first)).unwrap_or(rest.len());
        let (part, after) = rest.split_at(end);
        if class(first) != (false, false) {
            parts.push(part);
        }
        rest = after;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_their_step() {
        let cases = [
            ("checkpoint-100", Kind::Folder, Some(Step::At(100))),
            ("checkpoint_0", Kind::Folder, Some(Step::At(0))),
            ("global_step1000", Kind::Folder, Some(Step::At(1000))),
            ("step1000-unsharded", Kind::Folder, Some(Step::At(1000))),
            ("Epoch_3", Kind::Folder, Some(Step::At(3))),
            ("checkpoint-99999999999999999999999", Kind::Folder, None),
            ("checkpoint", Kind::Folder, None),
            ("checkpoints-2024", Kind::Folder, None),
            ("footsteps7", Kind::Folder, None),
            ("tmp-checkpoint-100", Kind::Folder, None),
            (".checkpoint-100.tmp", Kind::Folder, None),
            ("checkpoint-100.tmp", Kind::Folder, None),
            ("epoch=3-step=100.ckpt", Kind::File, Some(Step::At(100))),
            ("epoch=3.ckpt", Kind::File, Some(Step::At(3))),
            ("step_100.pt", Kind::File, Some(Step::At(100))),
            ("rl_model_10000_steps.zip", Kind::File, Some(Step::At(10000))),
            ("last.ckpt", Kind::File, Some(Step::Unknown)),
            ("step_100.pt.tmp", Kind::File, None),
            ("step_100.log", Kind::File, None),
            ("checkpoint-100", Kind::File, None),
        ];
        for (name, kind, step) in cases {
            assert_eq!(recognise(OsStr::new(name), kind), step, "{name}");
        }
    }

    #[test]
    fn only_the_trainers_own_names_are_held_to_its_rules() {
        let step = |name: &str| trainer_step(OsStr::new(name));
        assert_eq!((step("checkpoint-7"), step("checkpoint-7-best"), step("checkpoint-")), (Some(7), None, None));
    }
}
