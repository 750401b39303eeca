//! Colour planes in the size of the picture: libjpeg's "fancy" upsampling, which weighs the nearer sample three to one.

use super::Component;

/// Below this width libjpeg repeats samples instead.
const NARROW: usize = 2;

/// Writes row `row` of the picture, `across` times as wide and with `down` times as many rows as the component has.
pub(super) fn row(component: &Component, across: usize, down: usize, row: usize, sums: &mut Vec<i32>, out: &mut [u8]) {
    let width = component.width;
    let at = |row: usize| {
        let start = row.min(component.height - 1) * component.blocks_across * super::SIDE;
        &component.samples[start..start + width]
    };
    let near = at(row / down);
    // The row on the other side of the one that is nearest; at the edges it is that one itself.
    let far = || if row.is_multiple_of(2) { at((row / 2).saturating_sub(1)) } else { at(row / 2 + 1) };
    match (across, down) {
        (1, 1) => out.copy_from_slice(&near[..out.len()]),
        (2, 1) if width > NARROW => twice_as_wide(near, out),
        (2, 2) if width > NARROW => {
            sums.clear();
            sums.extend(near.iter().zip(far()).map(|(near, far)| 3 * i32::from(*near) + i32::from(*far)));
            twice_as_wide_and_high(sums, out);
        }
        (1, 2) => {
            let bias = if row.is_multiple_of(2) { 1 } else { 2 };
            for ((value, near), far) in out.iter_mut().zip(near).zip(far()) {
                *value = ((3 * u16::from(*near) + u16::from(*far) + bias) >> 2) as u8;
            }
        }
        _ => out.iter_mut().enumerate().for_each(|(place, value)| *value = near[place / across]),
    }
}

fn twice_as_wide(samples: &[u8], out: &mut [u8]) {
    let last = samples.len() - 1;
    let weighed = |near: usize, far: usize, bias: u16| {
        ((3 * u16::from(samples[near]) + u16::from(samples[far]) + bias) >> 2) as u8
    };
    for (place, pair) in out.chunks_mut(2).enumerate() {
        pair[0] = if place == 0 { samples[0] } else { weighed(place, place - 1, 1) };
        if let Some(second) = pair.get_mut(1) {
            *second = if place == last { samples[last] } else { weighed(place, place + 1, 2) };
        }
    }
}

fn twice_as_wide_and_high(sums: &[i32], out: &mut [u8]) {
    let last = sums.len() - 1;
    for (place, pair) in out.chunks_mut(2).enumerate() {
        let near = 3 * sums[place];
        pair[0] = ((near + sums[place.saturating_sub(1)] + 8) >> 4) as u8;
        if let Some(second) = pair.get_mut(1) {
            *second = ((near + sums[(place + 1).min(last)] + 7) >> 4) as u8;
        }
    }
}
