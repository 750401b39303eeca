//! The largest micro-batch that rows can make, from their shapes alone.
//!
//! An epoch has an order of its own, so the largest micro-batch is taken to be made of the largest rows: each limit is the sum of its
//! largest values.

use std::collections::BTreeMap;

use garden_data::{Grid, ImageSettings, TooLong};
use garden_model::{Config, Limits};

use crate::Recipe;

/// What decides the size of a row.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RowShape {
    /// Tokens that stand for no picture.
    pub text_tokens: usize,
    /// Tokens that are trained.
    pub trained: usize,
    /// Width and height of each picture, before it is resized.
    pub pictures: Vec<(usize, usize)>,
}

/// The shapes of all rows, with how many have each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowShapes {
    shapes: BTreeMap<RowShape, usize>,
}

/// The largest that rows make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LargestRows {
    /// The largest micro-batch.
    pub limits: Limits,
    /// Tokens of the longest row.
    pub longest_row: usize,
    /// Tokens of pictures in the row that has most.
    pub picture_tokens: usize,
    /// Pixels of the largest picture, after it was resized.
    pub resized_pixels: u64,
    /// Pixels of the largest picture as it is stored.
    pub stored_pixels: u64,
    /// Rows that are too long, and are left out.
    pub dropped: usize,
}

impl RowShapes {
    /// Adds rows of one shape.
    pub fn add(&mut self, shape: RowShape, rows: usize) {
        *self.shapes.entry(shape).or_default() += rows;
    }

    /// All rows.
    pub fn rows(&self) -> usize {
        self.shapes.values().sum()
    }

    /// The largest that they make under a recipe. An error says which picture or row cannot be.
    pub fn largest(&self, config: &Config, recipe: &Recipe, settings: &ImageSettings) -> Result<LargestRows, String> {
        let images = recipe.images(settings);
        let mut largest = LargestRows::default();
        // The largest values of each limit, as many as a micro-batch has rows.
        let mut most: [Vec<usize>; 5] = Default::default();
        let mut rows = 0;
        for (shape, count) in &self.shapes {
            for (width, height) in &shape.pictures {
                largest.stored_pixels = largest.stored_pixels.max((width * height) as u64);
            }
            let Some((grids, tokens)) = fitted(shape, recipe, &images)? else {
                largest.dropped += count;
                continue;
            };
            rows += count;
            let limits = Limits::of_row(config, tokens, shape.trained, &grids);
            let fields = [limits.tokens, limits.targets, limits.patches, limits.windows, limits.images];
            for (most, value) in most.iter_mut().zip(fields) {
                let room = most.partition_point(|other| *other >= value);
                most.splice(room..room, std::iter::repeat_n(value, (*count).min(recipe.batch_size)));
                most.truncate(recipe.batch_size);
            }
            largest.limits.longest = largest.limits.longest.max(limits.longest);
            largest.longest_row = largest.longest_row.max(tokens);
            largest.picture_tokens = largest.picture_tokens.max(tokens - shape.text_tokens);
            let pixels = |grid: &Grid| (grid[1] * grid[2] * images.patch * images.patch) as u64;
            largest.resized_pixels = largest.resized_pixels.max(grids.iter().map(pixels).max().unwrap_or(0));
        }
        let [tokens, targets, patches, windows, of_images] = most.map(|values| values.iter().sum());
        let longest = largest.limits.longest;
        let rows = rows.min(recipe.batch_size);
        largest.limits = Limits { tokens, rows, targets, patches, windows, images: of_images, longest };
        Ok(largest)
    }
}

/// The pictures of a row in patches, and all its tokens; nothing if the row is left out.
fn fitted(shape: &RowShape, recipe: &Recipe, images: &ImageSettings) -> Result<Option<(Vec<Grid>, usize)>, String> {
    let under = |max_pixels: u64| -> Result<(Vec<Grid>, usize), String> {
        let settings = ImageSettings { max_pixels, ..images.clone() };
        let grids = shape.pictures.iter().map(|(width, height)| settings.grid(*width, *height));
        let grids = grids.collect::<Result<Vec<Grid>, String>>()?;
        let tokens = shape.text_tokens + grids.iter().map(|grid| settings.tokens(*grid)).sum::<usize>();
        Ok((grids, tokens))
    };
    let (grids, tokens) = under(images.max_pixels)?;
    let Some(limit) = recipe.length().filter(|limit| tokens > limit.tokens) else {
        return Ok(Some((grids, tokens)));
    };
    match limit.too_long {
        TooLong::Drop => Ok(None),
        TooLong::Refuse => Err(format!("a row has {tokens} tokens; `max-length` is {}", limit.tokens)),
        TooLong::Shrink => {
            let (grids, least) = under(images.min_pixels)?;
            match least <= limit.tokens {
                // Shrunk to just fit: at most so many tokens of pictures.
                true => Ok(Some((at_most(grids, limit.tokens - shape.text_tokens, images), limit.tokens))),
                false => Err(format!(
                    "a row has {least} tokens with its pictures at their smallest; `max-length` is {}",
                    limit.tokens
                )),
            }
        }
    }
}

/// Grids that stand for pictures shrunk to so many tokens: as many patches, in the shape that has the longest stretch of attention.
fn at_most(smallest: Vec<Grid>, tokens: usize, images: &ImageSettings) -> Vec<Grid> {
    let others = smallest.len().saturating_sub(1);
    let one = (tokens.saturating_sub(others)) * images.merge;
    let single = [1, images.merge, images.merge];
    std::iter::once([1, images.merge, one]).chain(std::iter::repeat_n(single, others)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use garden_model::Preset;

    fn shape(text_tokens: usize, trained: usize, pictures: &[(usize, usize)]) -> RowShape {
        RowShape { text_tokens, trained, pictures: pictures.to_vec() }
    }

    #[test]
    fn the_largest_rows_make_the_largest_batch() {
        let config = Preset::find("qwen2.5-vl-3b").unwrap().config();
        let mut rows = RowShapes::default();
        rows.add(shape(100, 50, &[]), 5);
        rows.add(shape(60, 10, &[(280, 280)]), 1);
        rows.add(shape(70, 20, &[(56, 56), (28, 56)]), 1);
        let recipe = Recipe { batch_size: 2, ..Recipe::default() };
        let settings = ImageSettings { min_pixels: 28 * 28, ..ImageSettings::default() };
        let largest = rows.largest(&config, &recipe, &settings).unwrap();
        let limits = largest.limits;
        assert_eq!((limits.rows, limits.tokens, limits.targets), (2, 160 + 100, 100));
        assert_eq!((limits.patches, limits.images, limits.windows), (400 + 24, 3, 9 + 2));
        assert_eq!((limits.longest, largest.longest_row, largest.picture_tokens), (400, 160, 100));
        assert_eq!((largest.resized_pixels, rows.rows()), (280 * 280, 7));
        let one = rows.largest(&config, &Recipe { batch_size: 1, ..recipe }, &settings).unwrap();
        assert_eq!((one.limits.tokens, one.limits.patches), (160, 400));
    }

    #[test]
    fn long_rows_are_refused_dropped_or_shrunk() {
        let config = Preset::find("qwen2.5-vl-3b").unwrap().config();
        let mut rows = RowShapes::default();
        rows.add(shape(60, 10, &[(280, 280)]), 3);
        let under = |on_long_row| {
            let recipe = Recipe { max_length: Some(100), on_long_row, ..Recipe::default() };
            rows.largest(&config, &recipe, &ImageSettings::default())
        };
        assert!(under(TooLong::Refuse).unwrap_err().contains("160 tokens"));
        assert_eq!(under(TooLong::Drop).unwrap().dropped, 3);
        let shrunk = under(TooLong::Shrink).unwrap();
        assert_eq!((shrunk.longest_row, shrunk.limits.tokens, shrunk.limits.patches), (100, 200, 320));
    }
}
