//! Rotary position embedding: the pairs (i, i + half) of a head are rotated by an angle that depends on the token and on i.

use crate::device::Heads;

use super::threads::Threads;

/// Rotates forward (sign 1) or back (sign -1), in place. Both tables are `[rows, half]`.
pub(super) fn rotate(
    threads: &Threads,
    x: &mut [f32],
    heads: Heads,
    head_size: usize,
    cosines: &[f32],
    sines: &[f32],
    rows: usize,
    sign: f32,
) {
    let half = head_size / 2;
    assert_eq!((cosines.len(), sines.len()), (rows * half, rows * half), "tables [{rows}, {half}] are needed");
    assert!(heads.offset + heads.heads * head_size <= heads.stride, "heads lie within a row");
    threads.by_rows(&mut x[..rows * heads.stride], heads.stride, |first, x| {
        for (row, x) in x.chunks_exact_mut(heads.stride).enumerate() {
            let table = (first + row) * half..(first + row + 1) * half;
            let (cosines, sines) = (&cosines[table.clone()], &sines[table]);
            for head in x[heads.offset..heads.offset + heads.heads * head_size].chunks_exact_mut(head_size) {
                let (low, high) = head.split_at_mut(half);
                for (((low, high), cos), sin) in low.iter_mut().zip(high).zip(cosines).zip(sines) {
                    let (a, b, sin) = (*low, *high, sign * sin);
                    *low = a * cos - b * sin;
                    *high = b * cos + a * sin;
                }
            }
        }
    });
}
