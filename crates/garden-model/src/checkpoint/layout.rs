//! Layouts of matrices in files and on a device, which may want zero-padded rows of a multiple of some width.
//!
//! Padding is invisible to a model. It starts as zeros and stays zero: its factors are zero too, so its gradients are, and an update with
//! zero moments and a zero value is zero.

use std::borrow::Cow;

use garden_device::{Buffer, Profile};

/// A width inside a layer: the intermediate size of an MLP, or an adapter's rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Width {
    /// In files.
    pub stored: usize,
    /// On the device.
    pub padded: usize,
}

impl Width {
    /// An unpadded width, visible outside the layer.
    pub fn exact(width: usize) -> Width {
        Width { stored: width, padded: width }
    }

    /// A padded width, used only inside the layer.
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

    /// Number of values on the device.
    pub fn length(&self) -> usize {
        self.rows.padded.saturating_mul(self.columns.padded)
    }

    fn is_padded(&self) -> bool {
        self.rows.stored != self.rows.padded || self.columns.stored != self.columns.padded
    }

    /// Values from a file with zero padding; each value has `size` elements.
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

    /// Values from the device without padding.
    pub fn unpad(&self, mut values: Vec<f32>) -> Vec<f32> {
        values.truncate(self.rows.stored * self.columns.padded);
        self.unpad_rows(values)
    }

    /// Whole rows from the device without padding.
    pub fn unpad_rows(&self, values: Vec<f32>) -> Vec<f32> {
        if self.columns.stored == self.columns.padded {
            return values;
        }
        let rows = values.chunks_exact(self.columns.padded);
        rows.flat_map(|row| &row[..self.columns.stored]).copied().collect()
    }

    /// Splits a buffer of this layout into pieces of whole stored rows with about `values` values each.
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
