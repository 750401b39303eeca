//! Handles rows that are too long. Tokens are never truncated: an image without some of its tokens is broken, and
//! an answer without its end teaches the model not to stop.

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::image::ImageSettings;
use garden_input::Grid;

/// How to handle a row that is too long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TooLong {
    /// Report an error.
    #[default]
    Refuse,
    /// Shrink its images until it fits; an error if even their minimum size is too large.
    Shrink,
    /// Leave it out and count it.
    Drop,
}

/// Length limit of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LengthLimit {
    /// Maximum tokens per row, including image tokens.
    pub tokens: usize,
    /// How to handle longer rows.
    pub too_long: TooLong,
}

/// Pixel bounds of one picture, as qwen-vl-utils reads them from its part (`min_pixels`, `max_pixels`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PixelBounds {
    /// Minimum pixels; smaller pictures are enlarged.
    pub least: Option<u64>,
    /// Maximum pixels; larger pictures are shrunk.
    pub most: Option<u64>,
}

impl PixelBounds {
    /// The grid of a picture: resized within its own bounds first and then within the model's, one after the other as in qwen-vl-utils
    /// and the model's processor.
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

/// A picture's name and size, from its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizedPicture<'a> {
    /// Its name in error messages.
    pub name: &'a str,
    /// Width in pixels, as displayed.
    pub width: usize,
    /// Height in pixels, as displayed.
    pub height: usize,
    /// Pixel bounds requested by the row.
    pub bounds: PixelBounds,
}

/// The pictures of a row, with the model's image settings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pictures<'a> {
    pub settings: &'a ImageSettings,
    pub pictures: &'a [SizedPicture<'a>],
}

/// Shrunk pictures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shrunk {
    pub grids: Vec<Grid>,
    /// The bound used instead of `max_pixels`.
    pub max_pixels: u64,
}

impl Pictures<'_> {
    /// The grids of the pictures under a pixel bound.
    pub fn grids(&self, max_pixels: u64) -> Result<Vec<Grid>, Error> {
        let settings = ImageSettings { max_pixels, ..self.settings.clone() };
        let grid = |picture: &SizedPicture| {
            let grid = picture.bounds.grid(&settings, picture.width, picture.height);
            grid.map_err(|problem| Error::picture(picture.name, problem))
        };
        self.pictures.iter().map(grid).collect()
    }

    /// Number of image tokens.
    pub fn tokens(&self, grids: &[Grid]) -> usize {
        grids.iter().map(|grid| self.settings.tokens(*grid)).sum()
    }

    /// The largest common pixel bound under which the pictures have at most `tokens` tokens. Large pictures shrink first. The
    /// error is the minimum number of tokens.
    pub fn shrunk(&self, grids: &[Grid], tokens: usize) -> Result<Shrunk, usize> {
        let pixels = (self.settings.patch * self.settings.merge).pow(2) as u64;
        let under = |max_pixels: u64| {
            // Pictures of an unsupported shape were refused before.
            let grids = self.grids(max_pixels).unwrap_or_default();
            Shrunk { grids, max_pixels }
        };
        let smallest = under(self.settings.min_pixels);
        let least = self.tokens(&smallest.grids);
        if least > tokens {
            return Err(least);
        }
        // In tokens per picture. The low bound always fits, so the result does, too.
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
    use garden_input::FAMILIES;

    fn picture(width: usize, height: usize) -> SizedPicture<'static> {
        SizedPicture { name: "x", width, height, bounds: PixelBounds::default() }
    }

    #[test]
    fn large_pictures_give_way_first() {
        let settings = ImageSettings::of(&FAMILIES[0].images);
        let pictures = Pictures { settings: &settings, pictures: &[picture(1400, 1400), picture(140, 140)] };
        let grids = pictures.grids(settings.max_pixels).unwrap();
        assert_eq!(pictures.tokens(&grids), 35 * 35 + 25);
        let shrunk = pictures.shrunk(&grids, 425).unwrap();
        assert_eq!(shrunk, Shrunk { grids: vec![[1, 40, 40], [1, 10, 10]], max_pixels: 440 * 784 });
        assert_eq!(pictures.shrunk(&grids, 7), Err(8));
    }

    #[test]
    fn what_was_shrunk_fits_and_has_no_fewer_tokens_with_more_room() {
        let settings = ImageSettings { max_pixels: 12_845_056, ..ImageSettings::of(&FAMILIES[0].images) };
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
