//! A micro-batch of rows that are known by their shapes alone.

use garden_data::{BatchSize, ImageSettings};
use garden_input::{Grid, Limits};

use crate::recipe::Recipe;

/// What decides the size of a row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowShape {
    /// Tokens that stand for no picture.
    pub text_tokens: usize,
    /// Those of them that are trained.
    pub trained: usize,
    /// Width and height of each picture, before it is resized.
    pub pictures: Vec<(usize, usize)>,
}

impl RowShape {
    /// Its pictures in patches under a recipe and a model's settings. An error says which picture cannot be.
    pub fn grids(&self, recipe: &Recipe, images: &ImageSettings) -> Result<Vec<Grid>, String> {
        let images = bounded(recipe, images);
        self.pictures.iter().map(|(width, height)| images.grid(*width, *height)).collect()
    }

    /// What a micro-batch of such rows needs.
    pub fn limits(&self, recipe: &Recipe, images: &ImageSettings) -> Result<Limits, String> {
        let grids = self.grids(recipe, images)?;
        let tokens = self.text_tokens + grids.iter().map(|grid| images.tokens(*grid)).sum::<usize>();
        if let Some(most) = recipe.max_length.filter(|most| tokens > *most) {
            return Err(format!("a row of {tokens} tokens is longer than `max-length` ({most})"));
        }
        let row = Limits::of_row(tokens, self.trained, &grids);
        let rows = match recipe.batch() {
            BatchSize::Rows(rows) => rows,
            BatchSize::Tokens(most) if tokens > most => {
                return Err(format!("a row of {tokens} tokens is longer than `batch-tokens` ({most})"));
            }
            BatchSize::Tokens(most) => most / tokens.max(1),
        };
        Ok((1..rows).fold(row, |all, _| all.plus(row)))
    }

    /// Pixels of the largest picture as it is stored.
    pub fn stored_pixels(&self) -> u64 {
        self.pictures.iter().map(|(width, height)| (width * height) as u64).max().unwrap_or(0)
    }
}

/// A model's settings with the recipe's bounds on pixels, as a processor gets them.
fn bounded(recipe: &Recipe, images: &ImageSettings) -> ImageSettings {
    let max_pixels = recipe.max_pixels.unwrap_or(images.max_pixels);
    let min_pixels = recipe.min_pixels.unwrap_or(images.min_pixels.min(max_pixels));
    ImageSettings { max_pixels, min_pixels, ..images.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use garden_input::FAMILIES;

    #[test]
    fn rows_make_a_micro_batch() {
        let shape = RowShape { text_tokens: 60, trained: 10, pictures: vec![(280, 280), (56, 56)] };
        let recipe = Recipe { batch_size: 3, ..Recipe::default() };
        let limits = shape.limits(&recipe, &ImageSettings::of(&FAMILIES[0].images)).unwrap();
        let expected = Limits {
            tokens: 3 * (60 + 100 + 4),
            rows: 3,
            targets: 30,
            patches: 3 * (400 + 16),
            images: 6,
            longest: 400,
        };
        assert_eq!(limits, expected);
        // As many as fit into a budget of tokens.
        let budget = Recipe { batch_tokens: Some(3 * 164 + 163), ..recipe.clone() };
        assert_eq!(shape.limits(&budget, &ImageSettings::of(&FAMILIES[0].images)), Ok(expected));
        let small = Recipe { batch_tokens: Some(163), ..recipe.clone() };
        assert!(
            shape.limits(&small, &ImageSettings::of(&FAMILIES[0].images)).unwrap_err().contains("`batch-tokens` (163)")
        );
        let short = Recipe { max_length: Some(100), ..recipe };
        assert!(shape.limits(&short, &ImageSettings::of(&FAMILIES[0].images)).unwrap_err().contains("164 tokens"));
    }
}
