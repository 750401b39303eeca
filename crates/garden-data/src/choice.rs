//! Options by the names used on the command line and in configurations.

use std::str::FromStr;

use crate::dataset::ImagePaths;
use crate::example::Labels;
use crate::example::boxes::{BoxFormat, TextBoxes};
use crate::example::length::TooLong;
use crate::example::selective::Level;
use crate::loader::BadRow;
use crate::loader::normalisation::Normalisation;

/// The value of a name; the error lists all valid names.
fn find<T: Copy>(choices: &[(&str, T)], given: &str) -> Result<T, String> {
    let found = choices.iter().find(|(name, _)| *name == given).map(|(_, value)| *value);
    found.ok_or_else(|| {
        let names: Vec<String> = choices.iter().map(|(name, _)| format!("`{name}`")).collect();
        format!("`{given}` is not one of {}", names.join(", "))
    })
}

impl FromStr for Labels {
    type Err = String;

    fn from_str(given: &str) -> Result<Labels, String> {
        find(&[("assistant", Labels::Assistant), ("completion", Labels::Completion), ("all", Labels::All)], given)
    }
}

impl FromStr for BoxFormat {
    type Err = String;

    fn from_str(given: &str) -> Result<BoxFormat, String> {
        find(&[("plain", BoxFormat::Plain), ("tokens", BoxFormat::Tokens)], given)
    }
}

impl FromStr for TextBoxes {
    type Err = String;

    fn from_str(given: &str) -> Result<TextBoxes, String> {
        find(&[("resized", TextBoxes::Resized), ("original", TextBoxes::Original)], given)
    }
}

impl FromStr for ImagePaths {
    type Err = String;

    fn from_str(given: &str) -> Result<ImagePaths, String> {
        find(&[("inside", ImagePaths::Inside), ("anywhere", ImagePaths::Anywhere)], given)
    }
}

impl FromStr for TooLong {
    type Err = String;

    fn from_str(given: &str) -> Result<TooLong, String> {
        find(&[("refuse", TooLong::Refuse), ("shrink", TooLong::Shrink), ("drop", TooLong::Drop)], given)
    }
}

impl FromStr for Level {
    type Err = String;

    fn from_str(given: &str) -> Result<Level, String> {
        let choices = [
            ("off", Level::Off),
            ("conservative", Level::Conservative),
            ("moderate", Level::Moderate),
            ("aggressive", Level::Aggressive),
        ];
        find(&choices, given)
    }
}

impl FromStr for Normalisation {
    type Err = String;

    fn from_str(given: &str) -> Result<Normalisation, String> {
        find(&[("batch", Normalisation::MicroBatch), ("tokens", Normalisation::Token)], given)
    }
}

impl FromStr for BadRow {
    type Err = String;

    fn from_str(given: &str) -> Result<BadRow, String> {
        find(&[("stop", BadRow::Stop), ("skip", BadRow::Skip)], given)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_have_names() {
        assert_eq!("moderate".parse(), Ok(Level::Moderate));
        assert_eq!("tokens".parse(), Ok(Normalisation::Token));
        assert_eq!("all".parse(), Ok(Labels::All));
        let error = "cut".parse::<TooLong>();
        assert_eq!(error, Err("`cut` is not one of `refuse`, `shrink`, `drop`".to_string()));
    }
}
