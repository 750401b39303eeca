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
const RADII: [f32; 2] = [9.5, 13.5];
/// A picture is cut into square cells of this side, each with one figure at most: what one token of a picture covers.
pub const CELL: usize = 28;
/// The most that a figure is turned, in radians (15 degrees): a square stays a square, and does not become a diamond.
const LARGEST_TURN: f32 = 0.26;
/// How much each part of a colour varies.
const COLOUR_SPREAD: f32 = 24.0;

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
    /// The figures, which touch at a point at most.
    pub figures: Vec<Figure>,
}

impl Drawing {
    /// Figures of an outline and a colour, with everything else left to chance.
    pub fn random(random: &mut Random, size: [usize; 2], outline: Outline, colour: Colour, count: usize) -> Drawing {
        let colour = colour.map(|part| (part + random.between(-COLOUR_SPREAD, COLOUR_SPREAD)).clamp(0.0, 255.0));
        let background = background(random);
        let figures = figures(random, size, count);
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

/// Something dark and nearly grey that changes from top to bottom: nothing that could be taken for the colour of a figure.
fn background(random: &mut Random) -> [Colour; 2] {
    let mut end = || {
        let level = random.between(15.0, 60.0);
        [0; 3].map(|_| level + random.between(-12.0, 12.0))
    };
    [end(), end()]
}

/// Figures in as many different cells, anywhere in theirs.
fn figures(random: &mut Random, [width, height]: [usize; 2], count: usize) -> Vec<Figure> {
    let (columns, rows) = (width / CELL, height / CELL);
    let mut cells: Vec<[usize; 2]> = (0..columns).flat_map(|x| (0..rows).map(move |y| [x, y])).collect();
    random.shuffle(&mut cells);
    let figure = |cell: &[usize; 2]| {
        let radius = random.between(RADII[0], RADII[1]);
        let turn = random.between(-LARGEST_TURN, LARGEST_TURN);
        let centre = cell.map(|place| (place * CELL) as f32 + random.between(radius, CELL as f32 - radius));
        Figure { centre, radius, turn }
    };
    cells.iter().take(count).map(figure).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disc(x: f32, y: f32) -> bool {
        x * x + y * y < 1.0
    }

    fn drawn(seed: u64, count: usize) -> Drawing {
        Drawing::random(&mut Random::new(seed, 0), [84, 84], disc, [215.0, 40.0, 40.0], count)
    }

    /// Pixels nearer to the figures' colour than to what is behind them.
    fn coloured(drawing: &Drawing) -> Vec<bool> {
        let far = |pixel: &[u8], colour: &Colour| -> f32 {
            pixel.iter().zip(colour).map(|(part, wanted)| (f32::from(*part) - wanted).powi(2)).sum()
        };
        let pixels = drawing.pixels();
        let nearer = |pixel: &[u8]| {
            let behind = drawing.background.iter().map(|colour| far(pixel, colour)).fold(f32::MAX, f32::min);
            far(pixel, &drawing.colour) < behind
        };
        pixels.chunks_exact(3).map(nearer).collect()
    }

    /// Areas of pixels that hang together.
    fn areas(is_coloured: &[bool], width: usize) -> Vec<usize> {
        let mut waiting = is_coloured.to_vec();
        let mut areas = Vec::new();
        while let Some(first) = waiting.iter().position(|is_left| *is_left) {
            let (mut area, mut border) = (0, vec![first]);
            waiting[first] = false;
            while let Some(place) = border.pop() {
                area += 1;
                for next in [place.wrapping_sub(1), place + 1, place.wrapping_sub(width), place + width] {
                    if waiting.get(next) == Some(&true) {
                        waiting[next] = false;
                        border.push(next);
                    }
                }
            }
            areas.push(area);
        }
        areas
    }

    #[test]
    fn discs_have_the_area_of_their_radius() {
        for seed in 0..20 {
            let drawing = drawn(seed, 1);
            let area = coloured(&drawing).iter().filter(|inside| **inside).count() as f32;
            let wanted = std::f32::consts::PI * drawing.figures[0].radius.powi(2);
            assert!((area / wanted - 1.0).abs() < 0.05, "seed {seed}: {area} pixels, {wanted} wanted");
        }
    }

    /// The least distance between the circles around two figures.
    fn smallest_gap(figures: &[Figure]) -> f32 {
        let gap = |one: &Figure, other: &Figure| {
            let [x, y] = [0, 1].map(|axis| one.centre[axis] - other.centre[axis]);
            x.hypot(y) - one.radius - other.radius
        };
        let pairs = figures
            .iter()
            .enumerate()
            .flat_map(|(index, one)| figures[..index].iter().map(move |other| gap(one, other)));
        pairs.fold(f32::MAX, f32::min)
    }

    #[test]
    fn figures_lie_apart_and_are_as_many_as_wanted() {
        let mut counted = 0;
        for seed in 0..40 {
            for count in 1..=4 {
                let drawing = drawn(seed, count);
                let gap = smallest_gap(&drawing.figures);
                assert!(gap > -1e-3, "seed {seed}: figures overlap by {gap}");
                // Figures that are less than a pixel apart share one.
                if gap > 1.5 {
                    assert_eq!(areas(&coloured(&drawing), 84).len(), count, "seed {seed}");
                    counted += 1;
                }
            }
        }
        assert!(counted > 80, "only {counted} pictures could be counted");
    }

    #[test]
    fn what_is_written_is_what_was_drawn() {
        let drawing = drawn(7, 3);
        let file = drawing.png().unwrap();
        let mut reader = png::Decoder::new(std::io::Cursor::new(file)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        reader.next_frame(&mut pixels).unwrap();
        assert_eq!(pixels, drawing.pixels());
    }

    #[test]
    fn pictures_depend_on_the_seed_alone() {
        assert_eq!(drawn(3, 2).pixels(), drawn(3, 2).pixels());
        assert_ne!(drawn(3, 2).pixels(), drawn(4, 2).pixels());
    }
}
