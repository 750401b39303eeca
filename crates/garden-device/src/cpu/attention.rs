//! Attention over segments of variable length, a block of queries at a time, so that scores of a whole segment never exist.
//!
//! A piece of work is one key head of one segment with all query heads that read it: gradients of keys and values then have one owner.
//! With p = softmax(s q k^T): y = p v; backward dv = p^T dy, dp = dy v^T, ds = p (dp - sum(dy y)), dq = s ds k, dk = s ds^T q.

use crate::buffer::Buffer;
use crate::device::{Attention, Heads, Write};

use super::exponential::exp;
use super::matmul::{Matrix, Shared, multiply, turned};
use super::sums::{dot, highest, sum};
use super::{Cpu, QUERY_BLOCK};
use crate::wide::widest;

/// One key head of one segment.
struct Piece {
    begin: usize,
    end: usize,
    key_head: usize,
}

impl Piece {
    fn of(number: usize, attention: &Attention, starts: &[i32]) -> Piece {
        let (segment, key_head) = (number / attention.key.heads, number % attention.key.heads);
        Piece { begin: starts[segment] as usize, end: starts[segment + 1] as usize, key_head }
    }
}

/// Rows of a head in memory.
fn rows(base: *const f32, heads: Heads, head: usize, first: usize, head_size: usize) -> Matrix {
    // SAFETY: the caller has checked that all tokens and heads lie inside the buffer.
    let start = unsafe { base.add(heads.offset + first * heads.stride + head * head_size) };
    Matrix { start, row: heads.stride as isize, column: 1 }
}

fn check(heads: Heads, tokens: usize, head_size: usize) {
    let last = heads.offset + tokens.saturating_sub(1) * heads.stride + heads.heads * head_size;
    assert!(
        tokens == 0 || last <= heads.buffer.length(),
        "heads of {tokens} tokens end at {last} of {}",
        heads.buffer.length()
    );
}

/// Keys that a block of queries sees: all of the segment, or those up to its last query.
fn seen(attention: &Attention, piece: &Piece, last_query: usize) -> usize {
    if attention.is_causal { last_query - piece.begin } else { piece.end - piece.begin }
}

pub(super) fn forward(cpu: &Cpu, attention: &Attention, y: Buffer, sums: Buffer) {
    let (size, heads) = (attention.head_size, attention.query.heads);
    let starts = &cpu.arena.read_whole(attention.starts)[..=attention.segments];
    let tokens = starts[attention.segments] as usize;
    for given in [attention.query, attention.key, attention.value] {
        check(given, tokens, size);
    }
    cpu.arena.apart(&[attention.query.buffer, attention.key.buffer, attention.value.buffer], &[y, sums]);
    let group = heads / attention.key.heads;
    let scale = 1.0 / (size as f32).sqrt();
    let [q, k, v] =
        [attention.query, attention.key, attention.value].map(|given| cpu.arena.read(given.buffer).as_ptr());
    let (to, logs) = (cpu.arena.write(y), cpu.arena.write(sums));
    assert_eq!((to.len(), logs.len()), (tokens * heads * size, tokens * heads));
    let shared = Shared::of((q, k, v, to.as_mut_ptr(), logs.as_mut_ptr()));
    cpu.threads.each(attention.segments * attention.key.heads, |thread, number| {
        let (q, k, v, to, logs) = shared.get();
        let piece = Piece::of(number, attention, starts);
        let scores = cpu.scores(thread);
        for head in piece.key_head * group..(piece.key_head + 1) * group {
            for first in (piece.begin..piece.end).step_by(QUERY_BLOCK) {
                let last = (first + QUERY_BLOCK).min(piece.end);
                let (queries, keys) = (last - first, seen(attention, &piece, last));
                let scores = &mut scores[..queries * keys];
                let key = rows(k, attention.key, piece.key_head, piece.begin, size);
                let value = rows(v, attention.value, piece.key_head, piece.begin, size);
                // SAFETY: all matrices lie inside their buffers, the scores belong to this thread.
                unsafe {
                    multiply(
                        scores.as_mut_ptr(),
                        keys as isize,
                        queries,
                        keys,
                        size,
                        rows(q, attention.query, head, first, size),
                        turned(key),
                        scale,
                        Write::Set,
                    );
                }
                for (row, scores) in scores.chunks_exact_mut(keys).enumerate() {
                    let log = softmax(scores, if attention.is_causal { first + row + 1 - piece.begin } else { keys });
                    // SAFETY: this token's place of this head, which nobody else writes.
                    unsafe { *logs.add((first + row) * heads + head) = log };
                }
                let scores = Matrix { start: scores.as_ptr(), row: keys as isize, column: 1 };
                // SAFETY: these rows of this head belong to this piece of work.
                unsafe {
                    multiply(
                        to.add(first * heads * size + head * size),
                        (heads * size) as isize,
                        queries,
                        size,
                        keys,
                        scores,
                        value,
                        1.0,
                        Write::Set,
                    );
                }
            }
        }
    });
}

widest! {
    /// Makes probabilities of the first scores and zeros of the others; returns the logarithm of the sum.
    fn softmax(scores: &mut [f32], seen: usize) -> f32 {
        let (scores, hidden) = scores.split_at_mut(seen);
        hidden.fill(0.0);
        let highest = highest(scores);
        for score in scores.iter_mut() {
            *score = exp(*score - highest);
        }
        let sum = sum(scores);
        let share = 1.0 / sum;
        scores.iter_mut().for_each(|score| *score *= share);
        highest + sum.ln()
    }
}

widest! {
    /// Turns scores and what came back to them into probabilities and gradients of scores: ds = s p (dp - sum(dy y)).
    fn softmax_backward(scores: &mut [f32], back: &mut [f32], log: f32, y: &[f32], dy: &[f32], scale: f32) {
        let along = dot(y, dy);
        for (p, dp) in scores.iter_mut().zip(back) {
            *p = exp(*p - log);
            *dp = *p * (*dp - along) * scale;
        }
    }
}

pub(super) fn backward(
    cpu: &Cpu,
    attention: &Attention,
    y: Buffer,
    sums: Buffer,
    dy: Buffer,
    dq: Heads,
    dk: Heads,
    dv: Heads,
) {
    let (size, heads) = (attention.head_size, attention.query.heads);
    let starts = &cpu.arena.read_whole(attention.starts)[..=attention.segments];
    let tokens = starts[attention.segments] as usize;
    for given in [attention.query, attention.key, attention.value, dq, dk, dv] {
        check(given, tokens, size);
    }
    for gradient in [dq, dk, dv] {
        cpu.arena.apart(
            &[attention.query.buffer, attention.key.buffer, attention.value.buffer, y, sums, dy],
            &[gradient.buffer],
        );
    }
    let group = heads / attention.key.heads;
    let scale = 1.0 / (size as f32).sqrt();
    let [q, k, v] =
        [attention.query, attention.key, attention.value].map(|given| cpu.arena.read(given.buffer).as_ptr());
    let (made, logs, dy) = (cpu.arena.read(y), cpu.arena.read(sums), cpu.arena.read(dy));
    let [to_q, to_k, to_v] = [dq, dk, dv].map(|given| cpu.arena.write(given.buffer).as_mut_ptr());
    let shared = Shared::of((q, k, v, to_q, to_k, to_v));
    let width = heads * size;
    cpu.threads.each(attention.segments * attention.key.heads, |thread, number| {
        let (q, k, v, to_q, to_k, to_v) = shared.get();
        let piece = Piece::of(number, attention, starts);
        let length = piece.end - piece.begin;
        let scratch = cpu.scores(thread);
        let key = rows(k, attention.key, piece.key_head, piece.begin, size);
        let value = rows(v, attention.value, piece.key_head, piece.begin, size);
        // Gradients of keys and values are summed over queries and heads.
        for (to, heads) in [(to_k, dk), (to_v, dv)] {
            for token in piece.begin..piece.end {
                // SAFETY: these rows of this key head belong to this piece of work.
                unsafe { to.add(heads.offset + token * heads.stride + piece.key_head * size).write_bytes(0, size) };
            }
        }
        for head in piece.key_head * group..(piece.key_head + 1) * group {
            for first in (piece.begin..piece.end).step_by(QUERY_BLOCK) {
                let last = (first + QUERY_BLOCK).min(piece.end);
                let (queries, keys) = (last - first, seen(attention, &piece, last));
                debug_assert!(keys <= length);
                let (p, rest) = scratch.split_at_mut(queries * keys);
                let dp = &mut rest[..queries * keys];
                let query = rows(q, attention.query, head, first, size);
                let given =
                    Matrix { start: dy[first * width + head * size..].as_ptr(), row: width as isize, column: 1 };
                // SAFETY: all matrices lie inside their buffers; scratch belongs to this thread; dq, dk and dv rows to this piece of work.
                unsafe {
                    multiply(p.as_mut_ptr(), keys as isize, queries, keys, size, query, turned(key), scale, Write::Set);
                    multiply(
                        dp.as_mut_ptr(),
                        keys as isize,
                        queries,
                        keys,
                        size,
                        given,
                        turned(value),
                        1.0,
                        Write::Set,
                    );
                }
                for (row, (p, dp)) in p.chunks_exact_mut(keys).zip(dp.chunks_exact_mut(keys)).enumerate() {
                    let token = first + row;
                    let log = logs[token * heads + head];
                    let place = token * width + head * size..token * width + (head + 1) * size;
                    let seen = if attention.is_causal { token + 1 - piece.begin } else { keys };
                    softmax_backward(&mut p[..seen], &mut dp[..seen], log, &made[place.clone()], &dy[place], scale);
                    p[seen..].fill(0.0);
                    dp[seen..].fill(0.0);
                }
                let p = Matrix { start: p.as_ptr(), row: keys as isize, column: 1 };
                let dp = Matrix { start: dp.as_ptr(), row: keys as isize, column: 1 };
                // SAFETY: as above.
                unsafe {
                    let to_q = to_q.add(dq.offset + first * dq.stride + head * size);
                    multiply(to_q, dq.stride as isize, queries, size, keys, dp, key, 1.0, Write::Set);
                    let to_k = to_k.add(dk.offset + piece.begin * dk.stride + piece.key_head * size);
                    multiply(to_k, dk.stride as isize, keys, size, queries, turned(dp), query, 1.0, Write::Add);
                    let to_v = to_v.add(dv.offset + piece.begin * dv.stride + piece.key_head * size);
                    multiply(to_v, dv.stride as isize, keys, size, queries, turned(p), given, 1.0, Write::Add);
                }
            }
        }
    });
}

impl Cpu {
    /// The scratch of a thread.
    #[allow(clippy::mut_from_ref)]
    fn scores(&self, thread: usize) -> &mut [f32] {
        let all = self.scores.unwrap_or_else(|| panic!("no room was reserved for attention"));
        let each = all.length() / self.threads.number();
        self.arena.write(all.part(thread * each, each))
    }
}
