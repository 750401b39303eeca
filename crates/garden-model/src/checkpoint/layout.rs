//! Matrices as files have them, and as a device holds them: with padding of zeros, where it wants row widths to be multiples of something.
//!
//! Padding is invisible to a model. It begins as zeros and stays so: what is multiplied with it is zero too, so its gradients are, and an update of
//! zero moments and a zero value is zero.

use std::borrow::Cow;

use garden_device::{Buffer, Profile};

/// A width inside a layer: of an MLP, or an adapter's rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Width {
    /// As files have it.
    pub stored: usize,
    /// On the device.
    pub padded: usize,
}

impl Width {
    /// One that is the same everywhere: what others see of a layer.
    pub fn exact(width: usize) -> Width {
        Width { stored: width, padded: width }
    }

    /// One that only the layer itself sees.
    pub fn inner(profile: &Profile, width: usize) -> Width {
        Width { stored: width, padded: profile.padded(width) }
    }
}

/// A matrix, or a vector as a matrix of one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub rows: Width,
    pub columns: Width,
}

impl Layout {
    pub fn vector(length: Width) -> Layout {
        Layout { rows: Width::exact(1), columns: length }
    }

    /// Values that the device holds.
    pub fn length(&self) -> usize {
        self.rows.padded.saturating_mul(self.columns.padded)
    }

    fn is_padded(&self) -> bool {
        self.rows.stored != self.rows.padded || self.columns.stored != self.columns.padded
    }

    /// Values of a file, with zeros where the padding is; values take `size` places each.
    pub fn pad<'a, T: Copy + Default>(&self, values: &'a [T], size: usize) -> Cow<'a, [T]> {
        if !self.is_padded() {
            return Cow::Borrowed(values);
        }
        let (from, to) = (self.columns.stored * size, self.columns.padded * size);
        let mut padded = vec![T::default(); self.length() * size];
        for (row, to) in values.chunks_exact(from).zip(padded.chunks_exact_mut(to)) {
            to[..from].copy_from_slice(row);
        }
        Cow::Owned(padded)
    }

    /// Values of the device without the padding.
    pub fn unpad(&self, mut values: Vec<f32>) -> Vec<f32> {
        values.truncate(self.rows.stored * self.columns.padded);
        self.unpad_rows(values)
    }

    /// The same for some whole rows of them.
    pub fn unpad_rows(&self, values: Vec<f32>) -> Vec<f32> {
        if self.columns.stored == self.columns.padded {
            return values;
        }
        let rows = values.chunks_exact(self.columns.padded);
        rows.flat_map(|row| &row[..self.columns.stored]).copied().collect()
    }

    /// Parts of a buffer that has this layout, of whole rows that files have, and of about so many values each.
    pub fn pieces(&self, buffer: Buffer, values: usize) -> impl Iterator<Item = Buffer> + use<> {
        let (rows, width) = (self.rows.stored, self.columns.padded);
        let step = (values / width.max(1)).max(1);
        (0..rows).step_by(step).map(move |first| buffer.part(first * width, step.min(rows - first) * width))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_comes_and_goes() {
        let layout = Layout { rows: Width { stored: 2, padded: 3 }, columns: Width { stored: 3, padded: 4 } };
        let values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let padded = layout.pad(&values, 1).into_owned();
        assert_eq!(padded, [1.0, 2.0, 3.0, 0.0, 4.0, 5.0, 6.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(layout.unpad(padded), values);
        let bytes: Vec<u8> = (1..=12).collect();
        assert_eq!(layout.pad(&bytes, 2)[..10], [1, 2, 3, 4, 5, 6, 0, 0, 7, 8]);
    }
}
