//! Draws pictures: figures of one outline and one colour on a background, with smooth edges, and writes them as PNG.
//!
//! Where figures lie, how large and how turned they are, and what is behind them is drawn by chance, so that none of it tells the answer: a larger
//! coloured area may be one large figure or three small ones.

use super::random::Random;

/// Red, green and blue, from 0 to 255.
pub type Colour = [f32; 3];

/// Whether a point is inside an outline. Outlines lie within the circle of radius 1 around 0; y points down.
pub type Outline = fn(x: f32, y: f32) -> bool;

/// Points of a pixel's side at which it is looked whether it is inside: 16 shades of an edge.
const SAMPLES: usize = 4;
/// Radii of figures in pixels, from and to.
const RADII: [f32; 2] = [11.0, 17.0];
/// Pixels between two figures, and between a figure and the border, at least.
const GAP: f32 = 2.0;
/// The most that a figure is turned, in radians (20 degrees): a square stays a square, and does not become a diamond.
const LARGEST_TURN: f32 = 0.35;
/// How much each part of a colour varies.
const COLOUR_SPREAD: f32 = 24.0;
/// A place is looked for so often before all figures are placed anew.
const ATTEMPTS: usize = 40;

/// One figure of a picture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// Its centre in pixels.
    pub centre: [f32; 2],
    /// The radius of the circle around it, in pixels.
    pub radius: f32,
    /// How far it is turned, in radians.
    pub turn: f32,
}

/// Everything that is to be seen in a picture.
#[derive(Clone, Debug)]
pub struct Drawing {
    /// Width and height in pixels.
    pub size: [usize; 2],
    /// Colours of the background at the top and at the bottom.
    pub background: [Colour; 2],
    /// What all figures look like.
    pub outline: Outline,
    /// The colour of all figures.
    pub colour: Colour,
    /// The figures, which do not touch each other.
    pub figures: Vec<Figure>,
}

impl Drawing {
    /// Figures of an outline and a colour, with everything else left to chance.
    pub fn random(random: &mut Random, size: [usize; 2], outline: Outline, colour: Colour, count: usize) -> Drawing {
        let colour = colour.map(|part| (part + random.between(-COLOUR_SPREAD, COLOUR_SPREAD)).clamp(0.0, 255.0));
        let background = background(random);
        let figures = loop {
            if let Some(figures) = figures(random, size, count) {
                break figures;
            }
        };
        Drawing { size, background, outline, colour, figures }
    }

    /// The pixels, row by row, three bytes each.
    pub fn pixels(&self) -> Vec<u8> {
        let [width, height] = self.size;
        let mut pixels = Vec::with_capacity(width * height * 3);
        for row in 0..height {
            let down = row as f32 / (height - 1).max(1) as f32;
            for column in 0..width {
                let inside = self.inside(column, row);
                for part in 0..3 {
                    let behind = self.background[0][part] * (1.0 - down) + self.background[1][part] * down;
                    pixels.push((behind + (self.colour[part] - behind) * inside).round() as u8);
                }
            }
        }
        pixels
    }

    /// The share of a pixel that is inside a figure.
    fn inside(&self, column: usize, row: usize) -> f32 {
        let (column, row) = (column as f32, row as f32);
        let near = self.figures.iter().find(|figure| {
            let (x, y) = (column + 0.5 - figure.centre[0], row + 0.5 - figure.centre[1]);
            x * x + y * y < (figure.radius + 1.0) * (figure.radius + 1.0)
        });
        let Some(figure) = near else { return 0.0 };
        let place = |sample: usize| (sample as f32 + 0.5) / SAMPLES as f32;
        let points = (0..SAMPLES).flat_map(|x| (0..SAMPLES).map(move |y| [column + place(x), row + place(y)]));
        let hits = points.filter(|point| figure.contains(self.outline, *point)).count();
        hits as f32 / (SAMPLES * SAMPLES) as f32
    }

    /// The picture as a PNG file.
    pub fn png(&self) -> Result<Vec<u8>, png::EncodingError> {
        let [width, height] = self.size;
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, width as u32, height as u32);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&self.pixels())?;
        writer.finish()?;
        Ok(file)
    }
}

impl Figure {
    fn contains(&self, outline: Outline, [x, y]: [f32; 2]) -> bool {
        let (x, y) = ((x - self.centre[0]) / self.radius, (y - self.centre[1]) / self.radius);
        let (sine, cosine) = self.turn.sin_cos();
        outline(x * cosine + y * sine, y * cosine - x * sine)
    }
}

/// Something grey, light or dark, that changes from top to bottom: nothing that could be taken for the colour of a figure.
fn background(random: &mut Random) -> [Colour; 2] {
    let is_light = random.below(2) == 0;
    let level = if is_light { random.between(190.0, 245.0) } else { random.between(15.0, 70.0) };
    let mut end = || {
        let own = level + random.between(-25.0, 25.0);
        [0; 3].map(|_| (own + random.between(-10.0, 10.0)).clamp(0.0, 255.0))
    };
    [end(), end()]
}

/// Places for figures that do not touch; none if no place was found for one of them.
fn figures(random: &mut Random, [width, height]: [usize; 2], count: usize) -> Option<Vec<Figure>> {
    let mut figures: Vec<Figure> = Vec::with_capacity(count);
    for _ in 0..count {
        let radius = random.between(RADII[0], RADII[1]);
        let margin = radius + GAP;
        let turn = random.between(-LARGEST_TURN, LARGEST_TURN);
        let place = (0..ATTEMPTS).find_map(|_| {
            let centre =
                [random.between(margin, width as f32 - margin), random.between(margin, height as f32 - margin)];
            let is_free = figures.iter().all(|other| {
                let (x, y) = (centre[0] - other.centre[0], centre[1] - other.centre[1]);
                (x * x + y * y).sqrt() > radius + other.radius + GAP
            });
            is_free.then_some(centre)
        });
        figures.push(Figure { centre: place?, radius, turn });
    }
    Some(figures)
}
