//! Attention over packed rows and over the KV cache, its backward pass, and rotary position embedding.

use super::driver::Argument;
use super::{BLOCKS, Cuda, VALUES};
use crate::buffer::{Buffer, Dtype, Rows};
use crate::device::{Attention, Heads};

/// Keys per piece of a KV cache, and the maximum of query heads per key head in its kernel.
pub(crate) const CACHE_PIECE: usize = 128;
const MOST_GROUPED: usize = 8;
/// Keys per tile of the backward pass, and queries per small tile.
pub(super) const TILE: usize = 64;

/// Number of parts that the query heads of a key head are split into, so that there are enough blocks for any card. It depends on the shape alone, as it
/// determines the order of sums.
pub(super) fn splits(group: usize, blocks: usize) -> usize {
    (1..=group).find(|splits| group.is_multiple_of(*splits) && splits * blocks >= BLOCKS).unwrap_or(group)
}

/// The tensor-core kernel for this attention, if there is one.
pub(super) fn tiled_forward(attention: &Attention, strides: &[usize]) -> Option<&'static str> {
    if !is_tiled(attention, strides) {
        return None;
    }
    let is_long = attention.longest > TILE;
    Some(match (attention.head_size, is_long) {
        (64, true) => "attend_64_128",
        (64, false) => "attend_64_64",
        (80, true) => "attend_80_128",
        (80, false) => "attend_80_64",
        (_, true) => "attend_128_128",
        (_, false) => "attend_128_64",
    })
}

/// Whether the tensor-core kernels apply: a supported head size, and addresses aligned to 16 bytes.
pub(super) fn is_tiled(attention: &Attention, strides: &[usize]) -> bool {
    let offsets = [attention.query.offset, attention.key.offset, attention.value.offset];
    let begins = [attention.query.buffer.offset, attention.key.buffer.offset, attention.value.buffer.offset];
    matches!(attention.head_size, 64 | 80 | 128)
        && strides.iter().chain(&offsets).chain(&begins).all(|places| places.is_multiple_of(8))
}

/// Number of tokens of an attention's result.
fn tokens_of(y: Rows, width: usize) -> usize {
    assert_eq!(y.width, width, "rows of all heads are needed");
    y.count()
}

pub(super) fn check_heads(heads: Heads, tokens: usize, head_size: usize) {
    let last = heads.offset + tokens.saturating_sub(1) * heads.stride + heads.heads * head_size;
    assert!(
        tokens == 0 || last <= heads.buffer.length(),
        "heads of {tokens} tokens end at {last} of {}",
        heads.buffer.length()
    );
}

impl Cuda {
    pub(super) fn rotated(
        &mut self,
        x: Heads,
        head_size: usize,
        cosines: Buffer,
        sines: Buffer,
        rows: usize,
        sign: f32,
    ) {
        let half = head_size / 2;
        assert_eq!(
            (cosines.length(), sines.length()),
            (rows * half, rows * half),
            "tables [{rows}, {half}] are needed"
        );
        check_heads(x, rows, head_size);
        let arguments = [
            self.heads(x),
            Argument::I64(x.stride as i64),
            self.of(cosines, Dtype::F32),
            self.of(sines, Dtype::F32),
            Argument::I32(rows as i32),
            Argument::I32(x.heads as i32),
            Argument::I32(half as i32),
            Argument::F32(sign),
        ];
        self.by_values("rotate_bf16", rows * x.heads * half, &arguments);
    }

    /// Lists the tiles of all segments, those with the most work first; returns the list and its maximum length.
    pub(super) fn tiles(
        &mut self,
        attention: &Attention,
        tokens: usize,
        tile: usize,
        is_of_keys: bool,
    ) -> (Argument, usize) {
        let capacity = tokens / tile + attention.segments;
        let to = self.of(self.scratch().tiles.first(2 * capacity), Dtype::I32);
        let arguments = [
            self.of(attention.cu_seqlens, Dtype::I32),
            Argument::I32(attention.segments as i32),
            Argument::I32(tile as i32),
            Argument::I32(attention.is_causal.into()),
            Argument::I32(is_of_keys.into()),
            Argument::I32(capacity as i32),
            to,
        ];
        self.launch("attend_tiles", [capacity.div_ceil(128), 1, 1], [128, 1, 1], 0, &arguments);
        (to, capacity)
    }

    /// Decode attention of one query per row over the KV cache, split into pieces of keys; returns false if that kernel does not apply.
    pub(super) fn attend_pieces(
        &mut self,
        attention: &Attention,
        firsts: Buffer,
        lengths: Buffer,
        scratch: Buffer,
        y: Rows,
        tokens: usize,
    ) -> bool {
        let Attention { query, key, value, head_size, segments: rows, .. } = *attention;
        let (heads, kv_heads) = (query.heads, key.heads);
        let strides = [query, key, value].map(|given| given.stride);
        let is_single = attention.longest == 1 && tokens == rows;
        let names = match head_size {
            64 => ["attend_pieces_64", "attend_add_pieces_64"],
            128 => ["attend_pieces_128", "attend_add_pieces_128"],
            _ => return false,
        };
        if !is_single || heads > MOST_GROUPED * kv_heads || !is_tiled(attention, &strides) {
            return false;
        }
        check_heads(query, rows, head_size);
        self.apart(&[query.buffer, key.buffer, value.buffer], &[y.buffer, scratch]);
        let pieces = scratch.length() / (rows * heads * (head_size + 2)).max(1);
        let [q, k, v] = [query, key, value].map(|given| self.heads(given));
        let [qs, ks, vs] = strides.map(|stride| Argument::I64(stride as i64));
        let [heads_argument, kv_argument, pieces_argument] =
            [heads, kv_heads, pieces].map(|number| Argument::I32(number as i32));
        let (firsts, lengths) = (self.of(firsts, Dtype::I32), self.of(lengths, Dtype::I32));
        let (scratch, scale) = (self.of(scratch, Dtype::F32), Argument::F32(1.0 / (head_size as f32).sqrt()));
        let arguments = [q, qs, k, ks, v, vs, heads_argument, kv_argument, firsts, lengths, scale, scratch];
        self.launch(names[0], [kv_heads, rows, pieces], [CACHE_PIECE, 1, 1], 0, &arguments);
        let (to, stride) = (Argument::Address(self.rows(y, rows)), Argument::I64(y.stride as i64));
        let arguments = [scratch, pieces_argument, heads_argument, lengths, to, stride];
        self.launch(names[1], [rows * heads, 1, 1], [head_size, 1, 1], 0, &arguments);
        true
    }

    /// Attention forward, over segments or a KV cache.
    pub(super) fn mix(&mut self, attention: &Attention, cache: Option<(Buffer, Buffer)>, y: Rows, lse: Option<Buffer>) {
        let Attention { query, key, value, head_size, segments, .. } = *attention;
        let (heads, kv_heads) = (query.heads, key.heads);
        let tokens = tokens_of(y, heads * head_size);
        check_heads(query, tokens, head_size);
        if cache.is_none() {
            [key, value].into_iter().for_each(|given| check_heads(given, tokens, head_size));
        }
        self.apart(&[query.buffer, key.buffer, value.buffer], &[y.buffer]);
        assert!(attention.cu_seqlens.length() > segments);
        let null = Argument::Address(0);
        let starts = self.of(attention.cu_seqlens, Dtype::I32);
        let [firsts, lengths] = match cache {
            Some((firsts, lengths)) => [self.of(firsts, Dtype::I32), self.of(lengths, Dtype::I32)],
            None => [null, null],
        };
        let lse = lse.map_or(null, |lse| self.of(lse, Dtype::F32));
        let scale = Argument::F32(1.0 / (head_size as f32).sqrt());
        let causal = Argument::I32(attention.is_causal.into());
        let strides = [query, key, value].map(|given| given.stride);
        let [q, k, v] = [query, key, value].map(|given| self.heads(given));
        let y_is_aligned = y.stride.is_multiple_of(8) && y.buffer.offset.is_multiple_of(8);
        let (y, y_stride) = (Argument::Address(self.rows(y, tokens)), y.stride);
        let [heads_argument, kv_argument] = [heads, kv_heads].map(|number| Argument::I32(number as i32));
        // One new token per row: nothing to gain from tensor cores.
        let is_single = cache.is_some() && attention.longest <= 1;
        if !is_single
            && y_is_aligned
            && let Some(name) = tiled_forward(attention, &strides)
        {
            let tile = if attention.longest > TILE { 2 * TILE } else { TILE };
            let (tiles, capacity) = self.tiles(attention, tokens, tile, false);
            let [qs, ks, vs] = strides.map(|stride| Argument::I32(stride as i32));
            let shared = (tile + 128) * (head_size + 8) * 2;
            let arguments = [
                q,
                qs,
                k,
                ks,
                v,
                vs,
                heads_argument,
                kv_argument,
                starts,
                firsts,
                lengths,
                tiles,
                causal,
                scale,
                y,
                Argument::I32(y_stride as i32),
                lse,
            ];
            return self.launch(name, [heads, capacity, 1], [128, 1, 1], shared, &arguments);
        }
        let threads = if is_single { 512 } else { 128 };
        let [qs, ks, vs] = strides.map(|stride| Argument::I64(stride as i64));
        let (size, count) = (Argument::I32(head_size as i32), Argument::I32(segments as i32));
        let arguments = [
            q,
            qs,
            k,
            ks,
            v,
            vs,
            heads_argument,
            kv_argument,
            size,
            starts,
            count,
            firsts,
            lengths,
            causal,
            scale,
            y,
            Argument::I64(y_stride as i64),
            lse,
        ];
        let shared = threads / 32 * (head_size + 2) * 4;
        self.launch("attend_bf16", [tokens * heads, 1, 1], [threads, 1, 1], shared, &arguments);
    }
}

pub(super) fn attend_kv_cache(
    cuda: &mut Cuda,
    attention: &Attention,
    firsts: Buffer,
    lengths: Buffer,
    scratch: Option<Buffer>,
    y: Rows,
) {
    assert!(attention.is_causal, "a cache has nothing of what comes later");
    let tokens = tokens_of(y, attention.query.heads * attention.head_size);
    if let Some(scratch) = scratch
        && cuda.attend_pieces(attention, firsts, lengths, scratch, y, tokens)
    {
        return;
    }
    cuda.mix(attention, Some((firsts, lengths)), y, None);
}

pub(super) fn attend_backward(
    cuda: &mut Cuda,
    attention: &Attention,
    y: Rows,
    lse: Buffer,
    dy: Buffer,
    dq: Heads,
    dk: Heads,
    dv: Heads,
) {
    let Attention { query, key, value, head_size, segments, is_causal, .. } = *attention;
    let (heads, kv_heads) = (query.heads, key.heads);
    let tokens = tokens_of(y, heads * head_size);
    for given in [query, key, value, dq, dk, dv] {
        check_heads(given, tokens, head_size);
    }
    for gradient in [dq, dk, dv] {
        cuda.apart(&[query.buffer, key.buffer, value.buffer, y.buffer, lse, dy], &[gradient.buffer]);
    }
    assert_eq!((dy.length(), lse.length()), (tokens * heads * head_size, tokens * heads));
    let along = cuda.of(cuda.scratch().along.first(tokens * heads), Dtype::F32);
    let arguments = [
        Argument::Address(cuda.rows(y, tokens)),
        Argument::I64(y.stride as i64),
        cuda.activation(dy),
        along,
        Argument::I64((tokens * heads) as i64),
        Argument::I32(heads as i32),
        Argument::I32(head_size as i32),
    ];
    cuda.launch("attend_along_bf16", [(tokens * heads).div_ceil(16), 1, 1], [128, 1, 1], 0, &arguments);
    let starts = cuda.of(attention.cu_seqlens, Dtype::I32);
    let scale = Argument::F32(1.0 / (head_size as f32).sqrt());
    let causal = Argument::I32(is_causal.into());
    let [q, k, v, to_q, to_k, to_v] = [query, key, value, dq, dk, dv].map(|given| cuda.heads(given));
    let strides = [query, key, value, dq, dk, dv].map(|given| given.stride);
    let (dy, sums) = (cuda.activation(dy), cuda.of(lse, Dtype::F32));
    let [heads_argument, kv_argument] = [heads, kv_heads].map(|number| Argument::I32(number as i32));
    let gradients_are_aligned =
        [dq, dk, dv].iter().all(|given| given.offset.is_multiple_of(8) && given.buffer.offset.is_multiple_of(8));
    if is_tiled(attention, &strides) && gradients_are_aligned {
        let [qs, ks, vs, dqs, dks, dvs] = strides.map(|stride| Argument::I32(stride as i32));
        let is_long = attention.longest > TILE;
        let tile = if is_long { 2 * TILE } else { TILE };
        let queries_name = match (head_size, is_long) {
            (64, true) => "attend_backward_queries_64_128",
            (64, false) => "attend_backward_queries_64_64",
            (80, true) => "attend_backward_queries_80_128",
            (80, false) => "attend_backward_queries_80_64",
            (_, true) => "attend_backward_queries_128_128",
            (_, false) => "attend_backward_queries_128_64",
        };
        // For large heads, stages of 64 queries are faster if two such blocks fit into a multiprocessor.
        let is_roomy = cuda.driver.card.shared_bytes >= 200 << 10;
        let (keys_name, queries) = match (head_size, is_roomy) {
            (64, _) => ("attend_backward_keys_64_64", 64),
            (80, _) => ("attend_backward_keys_80_64", 64),
            (_, true) => ("attend_backward_keys_128_64", 64),
            (_, false) => ("attend_backward_keys_128_32", 32),
        };
        let (tiles, capacity) = cuda.tiles(attention, tokens, tile, false);
        let shared = 256 * (head_size + 8) * 2;
        let arguments = [
            q,
            qs,
            k,
            ks,
            v,
            vs,
            heads_argument,
            kv_argument,
            starts,
            tiles,
            causal,
            scale,
            dy,
            sums,
            along,
            to_q,
            dqs,
        ];
        cuda.launch(queries_name, [heads, capacity, 1], [2 * tile, 1, 1], shared, &arguments);
        let (tiles, capacity) = cuda.tiles(attention, tokens, TILE, true);
        let splits = splits(heads / kv_heads, kv_heads * capacity);
        let partial = match splits {
            1 => Argument::Address(0),
            _ => cuda.of(cuda.scratch().splits.first(2 * tokens * heads * head_size), Dtype::F32),
        };
        let (splits_argument, tokens_argument) = (Argument::I32(splits as i32), Argument::I32(tokens as i32));
        let arguments = [
            q,
            qs,
            k,
            ks,
            v,
            vs,
            heads_argument,
            kv_argument,
            starts,
            tiles,
            causal,
            scale,
            dy,
            sums,
            along,
            to_k,
            dks,
            to_v,
            dvs,
            partial,
            splits_argument,
            tokens_argument,
        ];
        let shared = (128 + 4 * queries) * (head_size + 8) * 2 + 4 * queries * 4;
        cuda.launch(keys_name, [kv_heads * splits, capacity, 1], [128, 1, 1], shared, &arguments);
        if splits > 1 {
            let width = kv_heads * head_size;
            let arguments = [
                partial,
                splits_argument,
                tokens_argument,
                Argument::I32(width as i32),
                to_k,
                Argument::I64(dk.stride as i64),
                to_v,
                Argument::I64(dv.stride as i64),
            ];
            let grid = [width.div_ceil(VALUES), tokens.min(65535), 2];
            cuda.launch("attend_add_splits", grid, [256, 1, 1], 0, &arguments);
        }
        return;
    }
    let [qs, ks, vs, dqs, dks, dvs] = strides.map(|stride| Argument::I64(stride as i64));
    let (size, count) = (Argument::I32(head_size as i32), Argument::I32(segments as i32));
    let arguments = [
        q,
        qs,
        k,
        ks,
        v,
        vs,
        heads_argument,
        kv_argument,
        size,
        starts,
        count,
        causal,
        scale,
        dy,
        sums,
        along,
        to_q,
        dqs,
    ];
    let shared = 4 * head_size * 4;
    cuda.launch("attend_backward_queries_bf16", [tokens * heads, 1, 1], [128, 1, 1], shared, &arguments);
    let arguments = [
        q,
        qs,
        k,
        ks,
        v,
        vs,
        heads_argument,
        kv_argument,
        size,
        starts,
        count,
        causal,
        scale,
        dy,
        sums,
        along,
        to_k,
        dks,
        to_v,
        dvs,
    ];
    cuda.launch("attend_backward_keys_bf16", [tokens * kv_heads, 1, 1], [128, 1, 1], 2 * shared, &arguments);
}
