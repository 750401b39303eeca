//! Attention over segments of variable length, a block of queries at a time, so that scores of a whole segment never exist.
//!
//! In the forward pass, and for gradients of queries, a work item is one query head of one segment; for gradients of keys and values it is one key head
//! with all query heads that read it, so that those gradients have one owner. If there are fewer of these than threads, keys are cut into blocks, and
//! scores are computed once per pass: the same values are added in the same order either way.
//! With p = softmax(s q k^T): y = p v; backward dv = p^T dy, dp = dy v^T, ds = p (dp - sum(dy y)), dq = s ds k, dk = s ds^T q.

use std::ops::Range;
use std::slice;

use crate::buffer::Buffer;
use crate::device::{Attention, Heads, Write};

use super::exponential::exp;
use super::gemm::{Matrix, multiply};
use super::matmul::{Shared, turned};
use super::sums::{dot, highest, sum};
use super::{Cpu, QUERY_BLOCK};
use crate::wide::widest;

/// Keys per work item of the backward pass, if there are too few key heads.
const KEY_BLOCK: usize = 32;

/// One key head of one segment.
struct Piece {
    /// Range of its queries.
    begin: usize,
    end: usize,
    /// The first key they see, and the number of keys before the first query's own.
    first_key: usize,
    before: usize,
    key_head: usize,
}

impl Piece {
    /// A work item whose keys belong to its own tokens.
    fn of(number: usize, attention: &Attention, cu_seqlens: &[i32]) -> Piece {
        let (segment, key_head) = (number / attention.key.heads, number % attention.key.heads);
        let (begin, end) = (cu_seqlens[segment] as usize, cu_seqlens[segment + 1] as usize);
        Piece { begin, end, first_key: begin, before: 0, key_head }
    }

    /// A work item whose keys are in the KV cache.
    fn cached(number: usize, attention: &Attention, cu_seqlens: &[i32], firsts: &[i32], lengths: &[i32]) -> Piece {
        let (segment, own) = (number / attention.key.heads, Piece::of(number, attention, cu_seqlens));
        let before = lengths[segment] as usize - (own.end - own.begin);
        Piece { first_key: firsts[segment] as usize, before, ..own }
    }

    /// Number of keys visible to the queries before `end`: the whole segment, or up to the last query's own if causal.
    fn seen(&self, is_causal: bool, end: usize) -> usize {
        self.before + if is_causal { end } else { self.end } - self.begin
    }
}

/// A head's rows in memory.
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

/// Inputs of attention; all tokens and heads are known to lie inside.
#[derive(Clone, Copy)]
struct Given<'a> {
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
}

/// The scratch memory of all threads.
fn scores(cpu: &Cpu) -> Buffer {
    cpu.scores.unwrap_or_else(|| panic!("no room was reserved for attention"))
}

pub(super) fn forward(cpu: &mut Cpu, attention: &Attention, y: Buffer, lse: Buffer) {
    let (size, heads) = (attention.head_size, attention.query.heads);
    let Attention { query, key, value, cu_seqlens, segments, .. } = *attention;
    let (scores, packed) = (scores(cpu), cpu.packed());
    let ([q, k, v, cu_seqlens], [to, logs, scores, packed]) =
        cpu.arena.views([query.buffer, key.buffer, value.buffer, cu_seqlens], [y, lse, scores, packed]);
    let given = Given { q: q.f32(), k: k.f32(), v: v.f32() };
    let cu_seqlens = &cu_seqlens.i32()[..=segments];
    let tokens = cu_seqlens[segments] as usize;
    [query, key, value].into_iter().for_each(|given| check(given, tokens, size));
    let (to, logs) = (to.f32(), logs.f32());
    assert_eq!((to.len(), logs.len()), (tokens * heads * size, tokens * heads));
    let shared = Shared::of((to.as_mut_ptr(), logs.as_mut_ptr()));
    // By query heads: there are more of them, so more threads have work.
    cpu.threads.each_with_two(scores.f32(), packed.f32(), segments * heads, |scores, workspace, number| {
        let (segment, head) = (number / heads, number % heads);
        let group = heads / key.heads;
        let piece = Piece::of(segment * key.heads + head / group, attention, cu_seqlens);
        let (to, logs) = shared.get();
        // SAFETY: all tokens and heads lie inside their buffers, and what this piece writes belongs to it alone.
        unsafe { mix(given, scores, workspace, attention, &piece, head..head + 1, to, Some(logs)) };
    });
}

pub(super) fn forward_kv_cache(cpu: &mut Cpu, attention: &Attention, firsts: Buffer, lengths: Buffer, y: Buffer) {
    let (size, heads) = (attention.head_size, attention.query.heads);
    let Attention { query, key, value, cu_seqlens, segments, .. } = *attention;
    assert!(attention.is_causal, "a cache has nothing of what comes later");
    let (scores, packed) = (scores(cpu), cpu.packed());
    let ([q, k, v, cu_seqlens, firsts, lengths], [to, scores, packed]) =
        cpu.arena.views([query.buffer, key.buffer, value.buffer, cu_seqlens, firsts, lengths], [y, scores, packed]);
    let given = Given { q: q.f32(), k: k.f32(), v: v.f32() };
    let cu_seqlens = &cu_seqlens.i32()[..=segments];
    let (firsts, lengths) = (&firsts.i32()[..segments], &lengths.i32()[..segments]);
    let tokens = cu_seqlens[segments] as usize;
    check(query, tokens, size);
    for ((first, length), queries) in firsts.iter().zip(lengths).zip(cu_seqlens.windows(2)) {
        assert!(*length >= queries[1] - queries[0], "queries are among the tokens that the cache holds");
        check(key, (first + length) as usize, size);
        check(value, (first + length) as usize, size);
    }
    let to = to.f32();
    assert_eq!(to.len(), tokens * heads * size);
    let shared = Shared::of(to.as_mut_ptr());
    cpu.threads.each_with_two(scores.f32(), packed.f32(), segments * key.heads, |scores, workspace, number| {
        let piece = Piece::cached(number, attention, cu_seqlens, firsts, lengths);
        match piece.end - piece.begin {
            // SAFETY: what this piece writes belongs to it alone, and lies inside y.
            1 => unsafe { mix_one(given, scores, attention, &piece, shared.get()) },
            // SAFETY: all tokens and heads lie inside their buffers, and what this piece writes belongs to it alone.
            _ => unsafe {
                let group = heads / key.heads;
                let heads = piece.key_head * group..(piece.key_head + 1) * group;
                mix(given, scores, workspace, attention, &piece, heads, shared.get(), None);
            },
        }
    });
}

/// Attention of all queries of a work item, a block of them at a time.
///
/// # Safety
/// Queries, keys and values lie inside their buffers; `to` `[tokens, heads * size]` and `logs` `[tokens, heads]` are large enough, and nobody else
/// uses what belongs to this work item.
unsafe fn mix(
    given: Given<'_>,
    scores: &mut [f32],
    workspace: &mut [f32],
    attention: &Attention,
    piece: &Piece,
    query_heads: Range<usize>,
    to: *mut f32,
    logs: Option<*mut f32>,
) {
    let (size, heads) = (attention.head_size, attention.query.heads);
    let scale = 1.0 / (size as f32).sqrt();
    let q = given.q.as_ptr();
    let key = rows(given.k.as_ptr(), attention.key, piece.key_head, piece.first_key, size);
    let value = rows(given.v.as_ptr(), attention.value, piece.key_head, piece.first_key, size);
    for head in query_heads {
        for first in (piece.begin..piece.end).step_by(QUERY_BLOCK) {
            let last = (first + QUERY_BLOCK).min(piece.end);
            let (queries, keys) = (last - first, piece.seen(attention.is_causal, last));
            let scores = &mut scores[..queries * keys];
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
                    workspace,
                );
            }
            for (row, scores) in scores.chunks_exact_mut(keys).enumerate() {
                let log = softmax(scores, piece.seen(attention.is_causal, first + row + 1));
                if let Some(logs) = logs {
                    // SAFETY: this token's element of this head, which nobody else writes.
                    unsafe { *logs.add((first + row) * heads + head) = log };
                }
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
                    workspace,
                );
            }
        }
    }
}

/// Attention of a single query: no matrix product, which would pack keys and values first and use them once.
///
/// # Safety
/// `to` `[tokens, heads * size]` is large enough, and nobody else uses what belongs to this work item.
unsafe fn mix_one(given: Given<'_>, scores: &mut [f32], attention: &Attention, piece: &Piece, to: *mut f32) {
    let (size, heads) = (attention.head_size, attention.query.heads);
    let (group, keys) = (heads / attention.key.heads, piece.before + 1);
    let place = |heads: Heads, token: usize, head: usize| heads.offset + token * heads.stride + head * size;
    let query = &given.q[place(attention.query, piece.begin, piece.key_head * group)..][..group * size];
    let key = &given.k[place(attention.key, piece.first_key, piece.key_head)..];
    let value = &given.v[place(attention.value, piece.first_key, piece.key_head)..];
    let scores = &mut scores[..group * keys];
    score(query, key, attention.key.stride, size, scores);
    for scores in scores.chunks_exact_mut(keys) {
        softmax(scores, keys);
    }
    // SAFETY: the heads of this piece, which nobody else writes.
    let to = unsafe {
        slice::from_raw_parts_mut(to.add((piece.begin * heads + piece.key_head * group) * size), group * size)
    };
    gather(scores, value, attention.value.stride, size, to);
}

widest! {
    /// Scores `[group, keys]` of the queries `[group, size]` that share a key head, key by key.
    fn score(queries: &[f32], keys: &[f32], stride: usize, size: usize, scores: &mut [f32]) {
        let scale = 1.0 / (size as f32).sqrt();
        let count = scores.len() / (queries.len() / size);
        for (index, key) in keys.chunks(stride).take(count).enumerate() {
            for (head, query) in queries.chunks_exact(size).enumerate() {
                scores[head * count + index] = dot(query, &key[..size]) * scale;
            }
        }
    }
}

widest! {
    /// y `[group, size]` = probabilities `[group, keys]` times values, value by value.
    fn gather(probabilities: &[f32], values: &[f32], stride: usize, size: usize, y: &mut [f32]) {
        let count = probabilities.len() / (y.len() / size);
        y.fill(0.0);
        for (index, value) in values.chunks(stride).take(count).enumerate() {
            for (head, y) in y.chunks_exact_mut(size).enumerate() {
                let share = probabilities[head * count + index];
                y.iter_mut().zip(&value[..size]).for_each(|(y, value)| *y += share * value);
            }
        }
    }
}

widest! {
    /// Softmax of the first `seen` scores, and zeros for the others; returns the log-sum-exp.
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
    /// Turns scores and their incoming gradients into probabilities and gradients of scores: ds = s p (dp - sum(dy y)).
    fn softmax_backward(scores: &mut [f32], back: &mut [f32], log: f32, y: &[f32], dy: &[f32], scale: f32) {
        let along = dot(y, dy);
        for (p, dp) in scores.iter_mut().zip(back) {
            *p = exp(*p - log);
            *dp = *p * (*dp - along) * scale;
        }
    }
}

pub(super) fn backward(
    cpu: &mut Cpu,
    attention: &Attention,
    y: Buffer,
    lse: Buffer,
    dy: Buffer,
    dq: Heads,
    dk: Heads,
    dv: Heads,
) {
    let (size, heads) = (attention.head_size, attention.query.heads);
    let Attention { query, key, value, cu_seqlens, segments, .. } = *attention;
    // Gradients in one buffer, interleaved by head, are written through one pointer.
    let (same, none) = (dq.buffer == dk.buffer && dq.buffer == dv.buffer, dq.buffer.first(0));
    let [k_apart, v_apart] = [dk, dv].map(|given| if same { none } else { given.buffer });
    let (scores, packed) = (scores(cpu), cpu.packed());
    let ([q, k, v, cu_seqlens, made, logs, dy], [to_q, to_k, to_v, scores, packed]) = cpu.arena.views(
        [query.buffer, key.buffer, value.buffer, cu_seqlens, y, lse, dy],
        [dq.buffer, k_apart, v_apart, scores, packed],
    );
    let [q, k, v, made, logs, dy] = [q, k, v, made, logs, dy].map(|view| view.f32());
    let cu_seqlens = &cu_seqlens.i32()[..=segments];
    let tokens = cu_seqlens[segments] as usize;
    [query, key, value, dq, dk, dv].into_iter().for_each(|given| check(given, tokens, size));
    let [to_q, to_k, to_v] = [to_q, to_k, to_v].map(|view| view.f32().as_mut_ptr());
    let shared = Shared::of(if same { (to_q, to_q, to_q) } else { (to_q, to_k, to_v) });
    let group = heads / key.heads;
    let from = Back { attention, q, k, v, made, logs, dy };
    let (scores, packed) = (scores.f32(), packed.f32());
    if segments * key.heads >= cpu.threads.number() {
        cpu.threads.each_with_two(scores, packed, segments * key.heads, |scratch, workspace, number| {
            let (to_q, to_k, to_v) = shared.get();
            let piece = Piece::of(number, attention, cu_seqlens);
            let keys = 0..piece.end - piece.begin;
            // SAFETY: these rows of these heads belong to this piece of work.
            unsafe {
                clear(to_k, dk, &piece, &keys, size);
                clear(to_v, dv, &piece, &keys, size);
                for head in piece.key_head * group..(piece.key_head + 1) * group {
                    from.gradients(
                        scratch,
                        workspace,
                        &piece,
                        head,
                        &keys,
                        Some((to_q, dq)),
                        Some([(to_k, dk), (to_v, dv)]),
                    );
                }
            }
        });
        return;
    }
    cpu.threads.each_with_two(scores, packed, segments * heads, |scratch, workspace, number| {
        let (segment, head) = (number / heads, number % heads);
        let piece = Piece::of(segment * key.heads + head / group, attention, cu_seqlens);
        let keys = 0..piece.end - piece.begin;
        // SAFETY: these rows of this query head belong to this piece of work.
        unsafe { from.gradients(scratch, workspace, &piece, head, &keys, Some((shared.get().0, dq)), None) };
    });
    let blocks = attention.longest.div_ceil(KEY_BLOCK);
    cpu.threads.each_with_two(scores, packed, segments * key.heads * blocks, |scratch, workspace, number| {
        let (_, to_k, to_v) = shared.get();
        let piece = Piece::of(number / blocks, attention, cu_seqlens);
        let (first, all) = (number % blocks * KEY_BLOCK, piece.end - piece.begin);
        let keys = first.min(all)..(first + KEY_BLOCK).min(all);
        // SAFETY: these rows of this key head belong to this piece of work.
        unsafe {
            clear(to_k, dk, &piece, &keys, size);
            clear(to_v, dv, &piece, &keys, size);
            for head in piece.key_head * group..(piece.key_head + 1) * group {
                from.gradients(scratch, workspace, &piece, head, &keys, None, Some([(to_k, dk), (to_v, dv)]));
            }
        }
    });
}

/// Zeroes gradients of some keys of a work item, to be summed over queries and heads.
///
/// # Safety
/// Nobody else uses those rows of this key head.
unsafe fn clear(to: *mut f32, heads: Heads, piece: &Piece, keys: &Range<usize>, size: usize) {
    for token in piece.begin + keys.start..piece.begin + keys.end {
        // SAFETY: the caller's.
        unsafe { to.add(heads.offset + token * heads.stride + piece.key_head * size).write_bytes(0, size) };
    }
}

/// Inputs of the backward pass.
struct Back<'a> {
    attention: &'a Attention,
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    made: &'a [f32],
    logs: &'a [f32],
    dy: &'a [f32],
}

impl Back<'_> {
    /// Gradients of one query head and of some of the keys that it sees: sets those of queries, which is only right for all keys at once, and adds to those
    /// of keys and values, if wanted.
    ///
    /// # Safety
    /// All heads lie inside their buffers, and nobody else uses what is written.
    unsafe fn gradients(
        &self,
        scratch: &mut [f32],
        workspace: &mut [f32],
        piece: &Piece,
        head: usize,
        keys: &Range<usize>,
        of_queries: Option<(*mut f32, Heads)>,
        of_keys: Option<[(*mut f32, Heads); 2]>,
    ) {
        let (size, heads, is_causal) = (self.attention.head_size, self.attention.query.heads, self.attention.is_causal);
        let (scale, width) = (1.0 / (size as f32).sqrt(), heads * size);
        let begin = piece.begin + keys.start;
        let key = rows(self.k.as_ptr(), self.attention.key, piece.key_head, begin, size);
        let value = rows(self.v.as_ptr(), self.attention.value, piece.key_head, begin, size);
        for first in (piece.begin..piece.end).step_by(QUERY_BLOCK) {
            let last = (first + QUERY_BLOCK).min(piece.end);
            // The number of these keys that the last query sees.
            let count = piece.seen(is_causal, last).min(keys.end).saturating_sub(keys.start);
            if count == 0 {
                continue;
            }
            let queries = last - first;
            let (p, rest) = scratch.split_at_mut(queries * count);
            let dp = &mut rest[..queries * count];
            let query = rows(self.q.as_ptr(), self.attention.query, head, first, size);
            let given =
                Matrix { start: self.dy[first * width + head * size..].as_ptr(), row: width as isize, column: 1 };
            let row = count as isize;
            // SAFETY: all matrices lie inside their buffers, and scratch belongs to this thread.
            unsafe {
                multiply(p.as_mut_ptr(), row, queries, count, size, query, turned(key), scale, Write::Set, workspace);
                multiply(dp.as_mut_ptr(), row, queries, count, size, given, turned(value), 1.0, Write::Set, workspace);
            }
            for (row, (p, dp)) in p.chunks_exact_mut(count).zip(dp.chunks_exact_mut(count)).enumerate() {
                let token = first + row;
                let log = self.logs[token * heads + head];
                let place = token * width + head * size..token * width + (head + 1) * size;
                let seen = piece.seen(is_causal, token + 1).saturating_sub(keys.start).min(count);
                let (y, dy) = (&self.made[place.clone()], &self.dy[place]);
                softmax_backward(&mut p[..seen], &mut dp[..seen], log, y, dy, scale);
                p[seen..].fill(0.0);
                dp[seen..].fill(0.0);
            }
            let p = Matrix { start: p.as_ptr(), row, column: 1 };
            let dp = Matrix { start: dp.as_ptr(), row, column: 1 };
            // SAFETY: the caller's.
            unsafe {
                if let Some((to, dq)) = of_queries {
                    let to = to.add(dq.offset + first * dq.stride + head * size);
                    multiply(to, dq.stride as isize, queries, size, count, dp, key, 1.0, Write::Set, workspace);
                }
                if let Some([(to_k, dk), (to_v, dv)]) = of_keys {
                    let to_k = to_k.add(dk.offset + begin * dk.stride + piece.key_head * size);
                    multiply(
                        to_k,
                        dk.stride as isize,
                        count,
                        size,
                        queries,
                        turned(dp),
                        query,
                        1.0,
                        Write::Add,
                        workspace,
                    );
                    let to_v = to_v.add(dv.offset + begin * dv.stride + piece.key_head * size);
                    multiply(
                        to_v,
                        dv.stride as isize,
                        count,
                        size,
                        queries,
                        turned(p),
                        given,
                        1.0,
                        Write::Add,
                        workspace,
                    );
                }
            }
        }
    }
}
