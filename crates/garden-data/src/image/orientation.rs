//! Exif orientation: cameras store the sensor's image and how to rotate it.

use super::rgb::Picture;

/// The Exif tag of the orientation.
pub(super) const TAG: u16 = 0x0112;

/// Rotation of a picture: 1 to 8 as in Exif.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Orientation(u8);

impl Default for Orientation {
    fn default() -> Orientation {
        Orientation(1)
    }
}

impl Orientation {
    /// The orientation of this number; upright if there is none.
    pub fn new(number: u64) -> Orientation {
        if (1..=8).contains(&number) { Orientation(number as u8) } else { Orientation::default() }
    }

    /// Finds the orientation in Exif data, with or without the `Exif` prefix. Unreadable data means upright.
    pub fn of_exif(exif: &[u8]) -> Orientation {
        let exif = exif.strip_prefix(b"Exif\0\0").unwrap_or(exif);
        find(exif).map_or_else(Orientation::default, |number| Orientation::new(u64::from(number)))
    }

    pub fn is_upright(self) -> bool {
        self.0 == 1
    }

    pub fn swaps_sides(self) -> bool {
        self.0 >= 5
    }

    pub fn apply(self, picture: &mut Picture) {
        if self.0 == 1 {
            return;
        }
        let (width, height) = (picture.width, picture.height);
        let (new_width, new_height) = if self.swaps_sides() { (height, width) } else { (width, height) };
        let mut turned = Vec::with_capacity(picture.pixels.len());
        for row in 0..new_height {
            for column in 0..new_width {
                let (from_row, from_column) = match self.0 {
                    2 => (row, width - 1 - column),
                    3 => (height - 1 - row, width - 1 - column),
                    4 => (height - 1 - row, column),
                    5 => (column, row),
                    6 => (height - 1 - column, row),
                    7 => (height - 1 - column, width - 1 - row),
                    _ => (column, width - 1 - row),
                };
                let start = 3 * (from_row * width + from_column);
                turned.extend_from_slice(&picture.pixels[start..start + 3]);
            }
        }
        *picture = Picture { width: new_width, height: new_height, pixels: turned };
    }
}

/// The value of the tag in the first directory of a TIFF structure.
fn find(data: &[u8]) -> Option<u16> {
    let is_little = match data.get(..4)? {
        [b'I', b'I', 42, 0] => true,
        [b'M', b'M', 0, 42] => false,
        _ => return None,
    };
    let short = |at: usize| {
        let bytes = data.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(if is_little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) })
    };
    let bytes = data.get(4..8)?.try_into().ok()?;
    let directory = if is_little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) } as usize;
    let count = usize::from(short(directory)?);
    let entry = (0..count).map(|entry| directory + 2 + 12 * entry).find(|entry| short(*entry) == Some(TAG))?;
    short(entry + 8)
}
