//! Upsamples colour planes to the size of the picture: libjpeg's "fancy" upsampling, which weights the nearer sample three to one.

use super::Component;
use crate::image::wide::widest;

/// Below this width libjpeg repeats samples instead.
const NARROW: usize = 2;

/// Writes row `row` of the picture, which is `across` times as wide and `down` times as high as the component.
pub(super) fn row(component: &Component, across: usize, down: usize, row: usize, sums: &mut Vec<u16>, out: &mut [u8]) {
    let width = component.width;
    let at = |row: usize| {
        let row = row.min(component.height - 1) % (component.blocks_held * super::SIDE);
        let start = row * component.blocks_across * super::SIDE;
        &component.samples[start..start + width]
    };
    let near = at(row / down);
    // The second nearest row; at the edges, the nearest one itself.
    let far = || if row.is_multiple_of(2) { at((row / 2).saturating_sub(1)) } else { at(row / 2 + 1) };
    match (across, down) {
        (1, 1) => out.copy_from_slice(&near[..out.len()]),
        (2, 1) if width > NARROW => twice_as_wide(near, out),
        (2, 2) if width > NARROW => {
            sums.resize(width, 0);
            add_rows(near, far(), sums);
            twice_as_wide_and_high(sums, out);
        }
        (1, 2) => twice_as_high(near, far(), if row.is_multiple_of(2) { 1 } else { 2 }, out),
        _ => out.iter_mut().enumerate().for_each(|(place, value)| *value = near[place / across]),
    }
}

widest! {
    fn twice_as_high(near: &[u8], far: &[u8], bias: u16, out: &mut [u8]) {
        for ((value, near), far) in out.iter_mut().zip(near).zip(far) {
            *value = ((3 * u16::from(*near) + u16::from(*far) + bias) >> 2) as u8;
        }
    }
}

widest! {
    fn twice_as_wide(samples: &[u8], out: &mut [u8]) {
        let weighed = |near: u8, far: u8, bias: u16| (3 * u16::from(near) + u16::from(far) + bias) >> 2;
        // Outputs are paired between two samples, so that the loop is independent of the edges.
        let inner = (out.len() - 1) / 2;
        let pairs = out[1..].as_chunks_mut::<2>().0;
        for ((pair, left), right) in pairs[..inner].iter_mut().zip(samples).zip(&samples[1..]) {
            *pair = (weighed(*left, *right, 2) | weighed(*right, *left, 1) << 8).to_le_bytes();
        }
        out[0] = samples[0];
        if out.len() == 2 * samples.len() {
            out[2 * samples.len() - 1] = samples[samples.len() - 1];
        }
    }
}

widest! {
    fn add_rows(near: &[u8], far: &[u8], sums: &mut [u16]) {
        for ((sum, near), far) in sums.iter_mut().zip(near).zip(far) {
            *sum = 3 * u16::from(*near) + u16::from(*far);
        }
    }
}

widest! {
    fn twice_as_wide_and_high(sums: &[u16], out: &mut [u8]) {
        let inner = (out.len() - 1) / 2;
        let pairs = out[1..].as_chunks_mut::<2>().0;
        for ((pair, left), right) in pairs[..inner].iter_mut().zip(sums).zip(&sums[1..]) {
            // Both fit a byte, and are stored together.
            *pair = ((3 * left + right + 7) >> 4 | ((3 * right + left + 8) >> 4) << 8).to_le_bytes();
        }
        out[0] = ((4 * sums[0] + 8) >> 4) as u8;
        if out.len() == 2 * sums.len() {
            out[2 * sums.len() - 1] = ((4 * sums[sums.len() - 1] + 7) >> 4) as u8;
        }
    }
}
