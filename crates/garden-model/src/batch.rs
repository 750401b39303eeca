//! A batch: packed rows of tokens, their images, and the tensors derived from them.

use garden_device::Dtype;
use garden_input::{Config, Grid, IGNORED, Images, Limits, Row};

use crate::checkpoint::not_finite;
use crate::error::Error;
use crate::model::bytes_of;
use crate::network::patches::PackedImages;
use crate::network::rotary::{self, Table};

/// A batch validated against a model's configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    pub(crate) tokens: Vec<i32>,
    pub(crate) cu_seqlens: Vec<i32>,
    /// The position after each row.
    pub(crate) next: Vec<i32>,
    /// Positions that count in the loss, and their target tokens.
    pub(crate) loss_positions: Vec<i32>,
    pub(crate) targets: Vec<i32>,
    positions: Vec<[i32; 3]>,
    /// Of each rotary embedding of the decoder.
    pub(crate) angles: Vec<Table>,
    pub(crate) images: PackedImages,
}

impl Batch {
    /// Packs rows and images, and rejects invalid ones.
    pub fn new(config: &Config, rows: &[Row], images: Images) -> Result<Batch, Error> {
        Batch::numbered(config, 0, rows, images)
    }

    /// The prompt of one row; errors mention its number.
    pub(crate) fn of_prompt(config: &Config, number: usize, tokens: Vec<i32>, images: Images) -> Result<Batch, Error> {
        let labels = vec![IGNORED; tokens.len()];
        Batch::numbered(config, number, &[Row { tokens, labels }], images)
    }

    /// Packs rows, the first of which has this number.
    fn numbered(config: &Config, number: usize, rows: &[Row], images: Images) -> Result<Batch, Error> {
        check_images(config, &images)?;
        let mut batch = Batch { cu_seqlens: vec![0], ..Batch::default() };
        let mut grids = images.grids.iter();
        let mut positions = Vec::new();
        for (number, row) in (number..).zip(rows) {
            check_row(config, number, row)?;
            let first = batch.tokens.len();
            batch.tokens.extend(&row.tokens);
            batch.cu_seqlens.push(batch.tokens.len() as i32);
            batch.next.push(positions_of(config, number, row, &mut grids, &mut positions)?);
            for (place, label) in row.labels.iter().enumerate().skip(1).filter(|(_, label)| **label != IGNORED) {
                batch.loss_positions.push((first + place - 1) as i32);
                batch.targets.push(*label);
            }
        }
        if let Some(grid) = grids.next() {
            return Err(Error::Batch(format!(
                "there are more images than image tokens: an image of {grid:?} patches has none"
            )));
        }
        batch.angles = rotary::of_tokens(&positions, &config.text);
        batch.positions = positions;
        let places = (0_i32..).zip(&batch.tokens).filter(|(_, token)| **token == config.image_token);
        let places: Vec<i32> = places.map(|(place, _)| place).collect();
        batch.images = PackedImages::of(images, &places, &config.vision);
        Ok(batch)
    }

    /// The limits of this batch.
    pub fn limits(&self) -> Limits {
        Limits {
            tokens: self.tokens(),
            rows: self.cu_seqlens.len() - 1,
            targets: self.targets(),
            patches: self.patches(),
            images: self.images.frames(),
            longest: self.longest(),
        }
    }

    /// Number of tokens in all rows.
    pub fn tokens(&self) -> usize {
        self.tokens.len()
    }

    /// Number of positions that count in the loss.
    pub fn targets(&self) -> usize {
        self.targets.len()
    }

    /// Time, row and column of each token in all rows (M-RoPE positions).
    pub fn positions(&self) -> &[[i32; 3]] {
        &self.positions
    }

    /// Returns the pixels, so that the next batch can reuse their memory.
    pub fn into_pixels(self) -> Vec<f32> {
        self.images.pixels
    }

    /// Number of patches in all images.
    pub fn patches(&self) -> usize {
        self.images.patches()
    }

    /// The longest sequence of any attention, in the decoder and in the vision tower.
    pub fn longest(&self) -> usize {
        longest(&self.cu_seqlens).max(self.images.longest())
    }
}

/// The longest of these sequences, given as `cu_seqlens`.
pub(crate) fn longest(starts: &[i32]) -> usize {
    starts.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0) as usize
}

fn check_images(config: &Config, images: &Images) -> Result<(), Error> {
    let (merge, values) = (config.vision.merge, config.vision.patch_values());
    for (number, [frames, rows, columns]) in images.grids.iter().enumerate() {
        if frames * rows * columns == 0 || !rows.is_multiple_of(merge) || !columns.is_multiple_of(merge) {
            let problem = format!(
                "image {number} has {frames} x {rows} x {columns} patches; rows and columns must be multiples of {merge}"
            );
            return Err(Error::Batch(problem));
        }
    }
    let patches: usize = images.grids.iter().map(|grid| grid.iter().product::<usize>()).sum();
    if images.pixels.len() != patches * values {
        return Err(Error::Batch(format!(
            "expected {patches} patches of {values} values; got {} values",
            images.pixels.len()
        )));
    }
    match not_finite(Dtype::F32, bytes_of(&images.pixels)) {
        Some(place) => Err(Error::Batch(format!("patch {} has a value that is not finite", place / values))),
        None => Ok(()),
    }
}

fn check_row(config: &Config, number: usize, row: &Row) -> Result<(), Error> {
    let vocabulary = config.text.vocabulary as i32;
    if row.tokens.is_empty() || row.labels.len() != row.tokens.len() {
        let problem = format!(
            "row {number} has {} tokens and {} labels; expected as many labels as tokens, and at least one",
            row.tokens.len(),
            row.labels.len()
        );
        return Err(Error::Batch(problem));
    }
    if let Some(token) = row.tokens.iter().find(|token| !(0..vocabulary).contains(*token)) {
        return Err(Error::Batch(format!("row {number} has token {token}; the model knows 0 to {}", vocabulary - 1)));
    }
    match row.labels.iter().find(|label| **label != IGNORED && !(0..vocabulary).contains(*label)) {
        Some(label) => Err(Error::Batch(format!(
            "row {number} has label {label}; the model knows 0 to {} and {IGNORED}",
            vocabulary - 1
        ))),
        None => Ok(()),
    }
}

/// Time, row and column of each token: text advances on all axes, an image as the family says. Returns the next position.
fn positions_of<'a>(
    config: &Config,
    number: usize,
    row: &Row,
    grids: &mut impl Iterator<Item = &'a Grid>,
    positions: &mut Vec<[i32; 3]>,
) -> Result<i32, Error> {
    let merge = config.vision.merge;
    let (mut index, mut next) = (0, 0_i32);
    while index < row.tokens.len() {
        if row.tokens[index] != config.image_token {
            positions.push([next; 3]);
            (index, next) = (index + 1, next + 1);
            continue;
        }
        let run = row.tokens[index..].iter().take_while(|token| **token == config.image_token).count();
        let Some([frames, height, width]) = grids.next() else {
            return Err(Error::Batch(format!(
                "row {number} has image tokens at {index} and no image is left for them"
            )));
        };
        let (rows, columns) = (height / merge, width / merge);
        let wanted = frames * rows * columns;
        if run != wanted {
            let problem = format!(
                "row {number} has {run} image tokens at {index}; its image of {frames} x {height} x {width} patches needs {wanted}"
            );
            return Err(Error::Batch(problem));
        }
        index += run;
        next = (config.family.positions)([*frames, rows, columns], next, positions);
    }
    Ok(next)
}
