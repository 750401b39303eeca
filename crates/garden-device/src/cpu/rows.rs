//! Rows by number: embeddings, image rows in their places, windows.

use crate::buffer::{Dtype, Weight};

use super::arena::Arena;
use super::threads::Threads;
use super::widen::widen;

pub(super) fn embed(arena: &Arena, threads: &Threads, weight: &Weight, tokens: &[i32], y: &mut [f32], rows: usize) {
    let width = weight.columns;
    assert_eq!((tokens.len(), y.len()), (rows, rows * width));
    threads.by_rows(y, width, |first, y| {
        for (token, y) in tokens[first..].iter().zip(y.chunks_exact_mut(width)) {
            let row = weight.buffer.part(*token as usize * width, width);
            match row.dtype() {
                Dtype::F32 => y.copy_from_slice(arena.read(row)),
                dtype => widen(dtype, arena.read_half(row), y),
            }
        }
    });
}

/// In the order of the tokens: several may name the same row.
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

pub(super) fn scatter(x: &[f32], places: &[i32], y: &mut [f32], rows: usize, width: usize) {
    assert_eq!((places.len(), x.len()), (rows, rows * width));
    for (place, x) in places.iter().zip(x.chunks_exact(width)) {
        let start = *place as usize * width;
        y[start..start + width].copy_from_slice(x);
    }
}
