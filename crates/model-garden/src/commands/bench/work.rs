//! What is measured: rows of one image and some text each, and the arithmetic that a micro-step of them needs.

use garden_model::{Batch, Config, Error, IGNORED, Images, LayerSpec, Limits, Row, WindowSpec};

/// Backward attention makes the scores again and has four products for the two of the forward pass.
const ATTENTION_BACKWARD: f64 = 2.5;

/// A micro-step.
#[derive(Debug)]
pub struct Work {
    pub config: Config,
    pub rows: usize,
    /// Of each row.
    pub image_tokens: usize,
    /// Of each row.
    pub text_tokens: usize,
}

/// Floating-point operations of a micro-step: products and attention of the model itself. A multiplication with its addition counts as two. What the
/// adapters add is not counted (about 1 % at rank 16), nor is anything that is done value by value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flop {
    /// Without gradient checkpointing: a forward pass, and the gradients of everything between the loss and the lowest adapter. Frozen weights have none.
    pub needed: f64,
    /// A second forward pass through all layers that have a backward pass. Ours leaves out the last product of each layer, so this is the usual count and
    /// not ours.
    pub again: f64,
}

impl Work {
    /// The image of a row, in merged tokens: as square as its number of tokens lets it be.
    fn image(&self) -> (usize, usize) {
        let tokens = self.image_tokens;
        let height = (1..=tokens.isqrt()).rev().find(|height| tokens.is_multiple_of(*height)).unwrap_or(0);
        (height, tokens.checked_div(height).unwrap_or(0))
    }

    /// The same in patches.
    fn grids(&self) -> Vec<[usize; 3]> {
        let (height, width) = self.image();
        let merge = self.config.vision.merge;
        if height == 0 { Vec::new() } else { vec![[1, height * merge, width * merge]] }
    }

    /// Width and height of the image in pixels, if there is one.
    pub fn pixels(&self) -> Option<(usize, usize)> {
        let patch = self.config.vision.patch;
        self.grids().first().map(|[_, height, width]| (width * patch, height * patch))
    }

    /// Tokens of a row.
    fn row_tokens(&self) -> usize {
        self.image_tokens + self.text_tokens
    }

    /// Tokens of a micro-step.
    pub fn tokens(&self) -> usize {
        self.rows * self.row_tokens()
    }

    /// Those of them that are trained: of each row the second half of its text.
    pub fn trained(&self) -> usize {
        self.rows * (self.text_tokens - self.first_trained())
    }

    /// The first token of a row's text that is trained.
    fn first_trained(&self) -> usize {
        self.text_tokens / 2 + 1
    }

    /// Patches of a micro-step.
    pub fn patches(&self) -> usize {
        self.rows * self.image_tokens * self.config.vision.merged()
    }

    /// Bytes of its pixels on the host.
    pub fn pixel_bytes(&self) -> u64 {
        (self.patches() * self.config.vision.patch_values() * size_of::<f32>()) as u64
    }

    /// What a model has to have room for.
    pub fn limits(&self) -> Limits {
        let row = Limits::of_row(self.row_tokens(), self.trained() / self.rows, &self.grids());
        (1..self.rows).fold(row, |limits, _| limits.plus(row))
    }

    /// Its rows.
    pub fn make_rows(&self) -> Vec<Row> {
        let text = self.config.text.vocabulary.min(self.config.image_token as usize);
        let row = |row: usize| {
            let mut tokens = vec![self.config.image_token; self.image_tokens];
            tokens.extend((0..self.text_tokens).map(|place| ((place * 31 + row * 7) % text) as i32));
            let first = self.image_tokens + self.first_trained();
            let labels = tokens.iter().enumerate().map(|(place, token)| if place < first { IGNORED } else { *token });
            Row { labels: labels.collect(), tokens }
        };
        (0..self.rows).map(row).collect()
    }

    /// Its pixels.
    pub fn make_pixels(&self) -> Vec<f32> {
        let values = self.patches() * self.config.vision.patch_values();
        (0..values).map(|place| (place as f32 * 0.618_034).sin()).collect()
    }

    /// A batch as the loader gives it to training.
    pub fn batch(&self, rows: &[Row], pixels: Vec<f32>) -> Result<Batch, Error> {
        let grids = self.grids().repeat(self.rows);
        Batch::new(&self.config, rows, Images { pixels, grids })
    }

    /// What a micro-step needs.
    pub fn flop(&self, trains_vision: bool) -> Flop {
        let (text, vision) = (&self.config.text, &self.config.vision);
        let number = |values: usize| values as f64;
        let (tokens, patches, image_tokens) =
            (number(self.tokens()), number(self.patches()), number(self.rows * self.image_tokens));
        let hidden = number(text.hidden);
        let of_all = |of: &dyn Fn(&LayerSpec) -> f64| text.layers.iter().map(of).sum::<f64>();
        let linears = of_all(&|layer| {
            let [queries, keys] = [layer.attention().query_width(), layer.attention().key_width()].map(number);
            2.0 * tokens * (2.0 * hidden * (queries + keys) + 3.0 * hidden * number(layer.mlp.intermediate))
        });
        // A token sees itself and those before it: scores, and values weighed by them.
        let seen = number(self.rows * self.row_tokens() * (self.row_tokens() + 1) / 2);
        let attention = of_all(&|layer| 4.0 * number(layer.attention().query_width()) * seen);
        let head = 2.0 * number(self.trained()) * hidden * number(text.vocabulary);

        let (width, wide) = (number(vision.hidden), number(vision.merged() * vision.hidden));
        let block = 4.0 * width * width + 3.0 * width * number(vision.intermediate);
        let tower =
            2.0 * patches * block * number(vision.depth) + 2.0 * image_tokens * wide * (wide + number(vision.out));
        let embedding = 2.0 * patches * number(vision.patch_values()) * width;
        let full = (0..vision.depth).filter(|block| vision.sees_all(*block)).count();
        let looked = number(full * self.seen_in_image() + (vision.depth - full) * self.seen_in_windows());
        let looking = 4.0 * width * number(self.rows) * looked;

        let forward = linears + attention + head + tower + embedding + looking;
        let (mut back, mut again) = (linears + ATTENTION_BACKWARD * attention + head, linears + attention);
        if trains_vision {
            back += tower + ATTENTION_BACKWARD * looking;
            again += tower + looking;
        }
        Flop { needed: forward + back, again }
    }

    /// Pairs of patches of an image that see each other.
    fn seen_in_image(&self) -> usize {
        (self.image_tokens * self.config.vision.merged()).pow(2)
    }

    /// The same where they see their window only; those at the right and lower edge may be smaller.
    fn seen_in_windows(&self) -> usize {
        let ((height, width), vision) = (self.image(), &self.config.vision);
        let Some(WindowSpec { side: window, .. }) = vision.windows else { return self.seen_in_image() };
        let sides = |side: usize| (0..side).step_by(window).map(move |first| window.min(side - first));
        let windows = sides(height).flat_map(|rows| sides(width).map(move |columns| rows * columns));
        windows.map(|tokens| (tokens * vision.merged()).pow(2)).sum()
    }
}

#[cfg(test)]
mod tests {
    use garden_model::Preset;

    use super::*;

    fn work(image_tokens: usize) -> Work {
        let config = Preset::find("qwen2.5-vl-3b").unwrap().config();
        Work { config, rows: 2, image_tokens, text_tokens: 256 }
    }

    #[test]
    fn arithmetic_is_that_of_the_shapes() {
        let flop = work(1024).flop(false);
        // Counted by hand for this work: 41.1 TFLOP without head, merger and patches, 55.8 with the decoder's forward pass once more.
        for (counted, by_hand) in [(flop.needed, 41.1e12), (flop.needed + flop.again, 55.8e12)] {
            assert!((counted / by_hand - 1.0).abs() < 0.02, "{counted:e} instead of {by_hand:e}");
        }
        let with_vision = work(1024).flop(true);
        // Products of the tower, 10.5 TFLOP, and two and a half times its attention, 0.76.
        assert!(((with_vision.needed - flop.needed) / 12.4e12 - 1.0).abs() < 0.02, "{with_vision:?}");
        let text = work(0).flop(true);
        assert!(text.needed < flop.needed / 5.0 && text.again > 0.0, "{text:?}");
    }

    #[test]
    fn what_is_planned_for_is_what_comes() {
        for image_tokens in [0, 12, 64, 97] {
            let work = Work { config: Config::tiny(), rows: 3, image_tokens, text_tokens: 21 };
            let batch = work.batch(&work.make_rows(), work.make_pixels()).unwrap();
            assert_eq!(batch.limits(), work.limits(), "{image_tokens}");
            assert_eq!((batch.tokens(), batch.targets()), (work.tokens(), work.trained()));
            assert_eq!((batch.patches(), 3 * (21 - 11)), (work.patches(), work.trained()));
        }
        assert_eq!((work(1024).pixels(), work(0).pixels()), (Some((896, 896)), None));
        assert_eq!(work(12).pixels(), Some((4 * 28, 3 * 28)));
    }
}
