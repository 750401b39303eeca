//! What is left in the cache of rows that are gone, for prompts that begin as theirs did: the next turn of a conversation, another question about a picture.
//!
//! Only whole pieces that were read as a prompt are used again: the same tokens in the same pieces have the same bits, whoever read them. What an answer
//! added was computed token by token, so it is read again.

use std::hash::{BuildHasher, RandomState};
use std::ops::Range;

use garden_input::{Config, Images};

use crate::engine::CHUNK;
use crate::model::bytes_of;

/// A prompt as a later one is compared with it.
#[derive(Clone, Debug, Default)]
pub(super) struct Prefix {
    tokens: Vec<i32>,
    pictures: Vec<Picture>,
    adapter: Option<usize>,
}

/// A picture of a prompt.
#[derive(Clone, Debug)]
struct Picture {
    /// Its tokens.
    tokens: Range<usize>,
    /// Of its patches. The key is drawn anew for each engine, so that nobody can make two pictures of the same.
    digest: u64,
}

impl Prefix {
    /// What a prompt is known by.
    pub fn of(tokens: &[i32], images: &Images, adapter: Option<usize>, config: &Config, keys: &RandomState) -> Prefix {
        let (values, merged) = (config.vision.patch_values(), config.vision.merged());
        let mut places = (0..tokens.len()).filter(|place| tokens[*place] == config.image_token);
        let mut pixels = &images.pixels[..];
        let picture = |grid: &[usize; 3]| {
            let patches: usize = grid.iter().product();
            let (own, rest) = pixels.split_at((patches * values).min(pixels.len()));
            pixels = rest;
            let first = places.next().unwrap_or(tokens.len());
            // An image's tokens follow one another.
            let end = (0..(patches / merged).saturating_sub(1)).fold(first, |_, _| places.next().unwrap_or(first)) + 1;
            Picture { tokens: first..end, digest: keys.hash_one((grid, bytes_of(own))) }
        };
        let pictures = images.grids.iter().map(picture).collect();
        Prefix { tokens: tokens.to_vec(), pictures, adapter }
    }

    /// Only what is in the cache as whole pieces.
    pub fn whole_pieces(mut self, read: usize) -> Prefix {
        self.tokens.truncate(read / CHUNK * CHUNK);
        self
    }

    /// How many of this prompt's tokens another one has left in the cache, in whole pieces; the last token is always read, for its logits.
    pub fn shared_with(&self, left: &Prefix) -> usize {
        if self.adapter != left.adapter {
            return 0;
        }
        let mut same = self.tokens.iter().zip(&left.tokens).take_while(|(a, b)| a == b).count();
        for (number, picture) in self.pictures.iter().enumerate() {
            let other = left.pictures.get(number);
            if other.is_none_or(|other| (other.digest, &other.tokens) != (picture.digest, &picture.tokens)) {
                same = same.min(picture.tokens.start);
            }
        }
        same.min(self.tokens.len().saturating_sub(1)) / CHUNK * CHUNK
    }

    /// Nothing is left of a prompt that was read with an adapter.
    pub fn forget(&mut self, adapter: usize) {
        if self.adapter == Some(adapter) {
            *self = Prefix::default();
        }
    }

    /// Tokens that are left.
    pub fn length(&self) -> usize {
        self.tokens.len()
    }
}
