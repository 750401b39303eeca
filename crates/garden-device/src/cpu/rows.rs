//! Gathering and scattering of rows by index: embeddings, image tokens, windows.

use super::arena::View;
use super::threads::Threads;

pub(super) fn embed(threads: &Threads, weight: View<'_>, width: usize, tokens: &[i32], y: &mut [f32], rows: usize) {
    assert_eq!((tokens.len(), y.len()), (rows, rows * width));
    let bytes = width * weight.dtype.size();
    threads.by_rows(y, width, |first, y| {
        for (token, y) in tokens[first..].iter().zip(y.chunks_exact_mut(width)) {
            let start = *token as usize * bytes;
            weight.dtype.widen(&weight.bytes[start..start + bytes], y);
        }
    });
}

/// In token order: several may use the same row.
pub(super) fn embed_backward(
    dy: &[f32],
    tokens: &[i32],
    gradient: &mut [f32],
    rows: usize,
    width: usize,
    skipped: &[i32],
) {
    assert_eq!((tokens.len(), dy.len()), (rows, rows * width));
    for (token, dy) in tokens.iter().zip(dy.chunks_exact(width)).filter(|(token, _)| !skipped.contains(token)) {
        let start = *token as usize * width;
        gradient[start..start + width].iter_mut().zip(dy).for_each(|(sum, dy)| *sum += dy);
    }
}

pub(super) fn gather(threads: &Threads, x: &[f32], places: &[i32], y: &mut [f32], rows: usize, width: usize) {
    assert_eq!((places.len(), y.len()), (rows, rows * width));
    threads.by_rows(y, width, |first, y| {
        for (place, y) in places[first..].iter().zip(y.chunks_exact_mut(width)) {
            let start = *place as usize * width;
            y.copy_from_slice(&x[start..start + width]);
        }
    });
}

/// Columns that are not of the row's owner become zero.
pub(super) fn keep_own(x: &mut [f32], width: usize, owners: &[i32], each: usize, of: usize) {
    assert_eq!(x.len(), owners.len() * width);
    for (owner, row) in owners.iter().zip(x.chunks_exact_mut(width)) {
        for (group, columns) in row.chunks_mut(each).enumerate() {
            if (group % of) as i32 != *owner {
                columns.fill(0.0);
            }
        }
    }
}

pub(super) fn scatter(x: &[f32], places: &[i32], y: &mut [f32], rows: usize, width: usize) {
    assert_eq!((places.len(), x.len()), (rows, rows * width));
    for (place, x) in places.iter().zip(x.chunks_exact(width)) {
        let start = *place as usize * width;
        y[start..start + width].copy_from_slice(x);
    }
}
