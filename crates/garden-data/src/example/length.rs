//! What is done with a row that is too long. Tokens are never cut off: an image that lost some of its tokens is no image any more, and
//! an answer without its end teaches the model not to end.

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::image::ImageSettings;
use garden_input::Grid;

/// What is done with a row that is too long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TooLong {
    /// It is an error.
    #[default]
    Refuse,
    /// Its images are made smaller until it fits; where their smallest size does not do, it is an error.
    Shrink,
    /// It is left out, and counted.
    Drop,
}

/// How long a row may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LengthLimit {
    /// Tokens of the longest row, those of images among them.
    pub tokens: usize,
    /// What is done with longer ones.
    pub too_long: TooLong,
}

/// Bounds on the pixels of one picture, as qwen-vl-utils reads them beside it (`min_pixels`, `max_pixels`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PixelBounds {
    /// It is enlarged to so many.
    pub least: Option<u64>,
    /// It is shrunk to so many.
    pub most: Option<u64>,
}

impl PixelBounds {
    /// Patches of a picture: it is brought within its own bounds first and then within those of all pictures, as qwen-vl-utils and the model's
    /// processor do it one after the other.
    pub(crate) fn grid(self, settings: &ImageSettings, width: usize, height: usize) -> Result<Grid, String> {
        if self == PixelBounds::default() {
            return settings.grid(width, height);
        }
        let max_pixels = self.most.unwrap_or(settings.max_pixels);
        let min_pixels = self.least.unwrap_or(settings.min_pixels).min(max_pixels);
        let own = ImageSettings { min_pixels, max_pixels, ..settings.clone() };
        let (height, width) = own.smart_resize(height, width)?;
        settings.grid(width, height)
    }
}

/// What the header of a picture says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizedPicture<'a> {
    /// What errors call it.
    pub name: &'a str,
    /// Pixels of a row, as it is shown.
    pub width: usize,
    /// Rows, as it is shown.
    pub height: usize,
    /// Bounds on its pixels that the row asks for.
    pub bounds: PixelBounds,
}

/// The pictures of a row under the settings of a model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pictures<'a> {
    pub settings: &'a ImageSettings,
    pub pictures: &'a [SizedPicture<'a>],
}

/// Pictures that were made smaller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shrunk {
    pub grids: Vec<Grid>,
    /// The bound that took the place of `max_pixels`.
    pub max_pixels: u64,
}

impl Pictures<'_> {
    /// Patches of the pictures under a bound on their pixels.
    pub fn grids(&self, max_pixels: u64) -> Result<Vec<Grid>, Error> {
        let settings = ImageSettings { max_pixels, ..self.settings.clone() };
        let grid = |picture: &SizedPicture| {
            let grid = picture.bounds.grid(&settings, picture.width, picture.height);
            grid.map_err(|problem| Error::picture(picture.name, problem))
        };
        self.pictures.iter().map(grid).collect()
    }

    /// Tokens that stand for the pictures.
    pub fn tokens(&self, grids: &[Grid]) -> usize {
        grids.iter().map(|grid| self.settings.tokens(*grid)).sum()
    }

    /// The same bound for all pictures, as large as possible, under which they have at most so many tokens. Large pictures give way first. An
    /// error is how many tokens they have at the least.
    pub fn shrunk(&self, grids: &[Grid], tokens: usize) -> Result<Shrunk, usize> {
        let pixels = (self.settings.patch * self.settings.merge).pow(2) as u64;
        let under = |max_pixels: u64| {
            // A picture whose shape is refused was refused before.
            let grids = self.grids(max_pixels).unwrap_or_default();
            Shrunk { grids, max_pixels }
        };
        let smallest = under(self.settings.min_pixels);
        let least = self.tokens(&smallest.grids);
        if least > tokens {
            return Err(least);
        }
        // In tokens of one picture: the low bound always fits, so whatever the high one does, the answer does.
        let mut low = self.settings.min_pixels / pixels;
        let mut high = grids.iter().map(|grid| self.settings.tokens(*grid)).max().unwrap_or(0) as u64;
        let mut best = smallest;
        while high > low + 1 {
            let middle = low.midpoint(high);
            let next = under((middle * pixels).max(self.settings.min_pixels));
            if self.tokens(&next.grids) <= tokens {
                (low, best) = (middle, next);
            } else {
                high = middle;
            }
        }
        Ok(best)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(width: usize, height: usize) -> SizedPicture<'static> {
        SizedPicture { name: "x", width, height, bounds: PixelBounds::default() }
    }

    #[test]
    fn large_pictures_give_way_first() {
        let settings = ImageSettings::default();
        let pictures = Pictures { settings: &settings, pictures: &[picture(1400, 1400), picture(140, 140)] };
        let grids = pictures.grids(settings.max_pixels).unwrap();
        assert_eq!(pictures.tokens(&grids), 35 * 35 + 25);
        let shrunk = pictures.shrunk(&grids, 425).unwrap();
        assert_eq!(shrunk, Shrunk { grids: vec![[1, 40, 40], [1, 10, 10]], max_pixels: 440 * 784 });
        assert_eq!(pictures.shrunk(&grids, 7), Err(8));
    }

    #[test]
    fn what_was_shrunk_fits_and_has_no_fewer_tokens_with_more_room() {
        let settings = ImageSettings { max_pixels: 12_845_056, ..ImageSettings::default() };
        for (width, height) in [(2500, 2450), (40, 7000), (15, 3000), (6000, 31), (333, 1777), (28, 28)] {
            let pictures = &[picture(width, height), picture(height, width)];
            let pictures = Pictures { settings: &settings, pictures };
            let grids = pictures.grids(settings.max_pixels).unwrap();
            let all = pictures.tokens(&grids);
            let mut last = 0;
            for limit in [8, 20, 64, 300, 1000, all - 1].into_iter().filter(|limit| *limit < all) {
                match pictures.shrunk(&grids, limit) {
                    Ok(shrunk) => {
                        let tokens = pictures.tokens(&shrunk.grids);
                        assert!(tokens <= limit && tokens >= last, "{width} x {height}: {tokens} of {limit}");
                        last = tokens;
                    }
                    Err(least) => assert!(least > limit),
                }
            }
        }
    }
}
