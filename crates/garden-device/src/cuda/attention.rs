//! Attention over packed rows and over the KV cache, its backward pass, and rotary position embedding.

use super::driver::{Argument, Arguments, Card};
use super::kernels::HOPPER;
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

/// A kernel on tensor cores with the rows of its tiles, its threads and the bytes of shared memory of a block.
#[derive(Clone, Copy)]
struct Tiled {
    name: &'static str,
    tile: usize,
    threads: usize,
    shared: usize,
}

/// Tensor-core kernels of one head size.
struct TiledNames {
    /// For long segments, and for short ones (windows), which would leave half of a larger tile empty.
    forward: [&'static str; 2],
    backward_queries: [&'static str; 2],
    backward_keys: &'static str,
    /// For long segments on Hopper: forward, backward for queries, backward for keys.
    hopper: [&'static str; 3],
}

const HEADS_OF_64: TiledNames = TiledNames {
    forward: ["attend_64_128", "attend_64_64"],
    backward_queries: ["attend_backward_queries_64_128", "attend_backward_queries_64_64"],
    backward_keys: "attend_backward_keys_64_64",
    hopper: ["attend_hopper_64", "attend_backward_queries_hopper_64", "attend_backward_keys_hopper_64"],
};
const HEADS_OF_80: TiledNames = TiledNames {
    forward: ["attend_80_128", "attend_80_64"],
    backward_queries: ["attend_backward_queries_80_128", "attend_backward_queries_80_64"],
    backward_keys: "attend_backward_keys_80_64",
    hopper: ["attend_hopper_80", "attend_backward_queries_hopper_80", "attend_backward_keys_hopper_80"],
};
const HEADS_OF_128: TiledNames = TiledNames {
    forward: ["attend_128_128", "attend_128_64"],
    backward_queries: ["attend_backward_queries_128_128", "attend_backward_queries_128_64"],
    backward_keys: "attend_backward_keys_128_64",
    hopper: ["attend_hopper_128", "attend_backward_queries_hopper_128", "attend_backward_keys_hopper_128"],
};
/// Where two blocks of `HEADS_OF_128`'s do not fit into a multiprocessor, stages of 32 queries instead of 64.
const KEYS_IN_LITTLE_SHARED: &str = "attend_backward_keys_128_32";
/// Shared memory of a block from which on two such blocks fit.
const MUCH_SHARED: usize = 200 << 10;

impl Tiled {
    fn names(head_size: usize) -> Option<TiledNames> {
        match head_size {
            64 => Some(HEADS_OF_64),
            80 => Some(HEADS_OF_80),
            128 => Some(HEADS_OF_128),
            _ => None,
        }
    }

    fn forward(card: &Card, attention: &Attention) -> Option<Tiled> {
        let (names, d) = (Tiled::names(attention.head_size)?, attention.head_size);
        Some(match (attention.longest > TILE, card.capability == HOPPER) {
            (true, true) => Tiled { name: names.hopper[0], tile: TILE, threads: 128, shared: 320 * d * 2 },
            (true, false) => Tiled { name: names.forward[0], tile: 2 * TILE, threads: 128, shared: 256 * (d + 8) * 2 },
            (false, _) => Tiled { name: names.forward[1], tile: TILE, threads: 128, shared: 192 * (d + 8) * 2 },
        })
    }

    fn backward_queries(card: &Card, attention: &Attention) -> Option<Tiled> {
        let (names, d) = (Tiled::names(attention.head_size)?, attention.head_size);
        let [long, short] = names.backward_queries;
        Some(match (attention.longest > TILE, card.capability == HOPPER) {
            (true, true) => Tiled { name: names.hopper[1], tile: TILE, threads: 128, shared: 384 * d * 2 },
            (true, false) => Tiled { name: long, tile: 2 * TILE, threads: 256, shared: 256 * (d + 8) * 2 },
            (false, _) => Tiled { name: short, tile: TILE, threads: 128, shared: 256 * (d + 8) * 2 },
        })
    }

    fn backward_keys(card: &Card, attention: &Attention) -> Option<Tiled> {
        let (names, d) = (Tiled::names(attention.head_size)?, attention.head_size);
        if attention.longest > TILE && card.capability == HOPPER {
            return Some(Tiled { name: names.hopper[2], tile: TILE, threads: 128, shared: 384 * d * 2 + 256 * 4 });
        }
        let (name, queries) = match d > 80 && card.shared_bytes < MUCH_SHARED {
            true => (KEYS_IN_LITTLE_SHARED, 32),
            false => (names.backward_keys, 64),
        };
        let shared = (128 + 4 * queries) * (d + 8) * 2 + 4 * queries * 4;
        Some(Tiled { name, tile: TILE, threads: 128, shared })
    }
}

/// What a list of tiles is made from.
#[derive(Clone, Copy, Debug, PartialEq)]
struct TileList {
    cu_seqlens: Buffer,
    segments: usize,
    tokens: usize,
    tile: usize,
    is_causal: bool,
}

impl TileList {
    /// Enough for all of its tiles.
    fn capacity(&self) -> usize {
        self.tokens / self.tile + self.segments
    }
}

/// The lists of tiles in the workspace, for queries and for keys: layers of a step share them. Whatever may change them or what they are made from clears them.
#[derive(Debug, Default)]
pub(super) struct TileLists([Option<TileList>; 2]);

impl TileLists {
    pub(super) fn clear(&mut self) {
        self.0 = [None; 2];
    }
}

/// Whether tensor-core kernels can read these heads: addresses and strides are multiples of 16 bytes.
fn are_aligned(heads: &[Heads]) -> bool {
    heads.iter().all(|given| [given.offset, given.buffer.offset, given.stride].iter().all(|at| at.is_multiple_of(8)))
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
    fn tiles(&mut self, attention: &Attention, tokens: usize, tile: usize, is_of_keys: bool) -> (Argument, usize) {
        let Attention { cu_seqlens, segments, is_causal, .. } = *attention;
        let list = TileList { cu_seqlens, segments, tokens, tile, is_causal };
        let capacity = list.capacity();
        let (lists, number) = (self.scratch().tiles, usize::from(is_of_keys));
        let to = self.of(lists.part(number * lists.length() / 2, 2 * capacity), Dtype::I32);
        if self.tile_lists.0[number] != Some(list) {
            let [segments, tile, most] = [segments, tile, capacity].map(|size| Argument::I32(size as i32));
            let [causal, of_keys] = [is_causal, is_of_keys].map(|is| Argument::I32(is.into()));
            let starts = self.of(cu_seqlens, Dtype::I32);
            let arguments = [starts, segments, tile, causal, of_keys, most, to];
            self.launch("attend_tiles", [capacity.div_ceil(128), 1, 1], [128, 1, 1], 0, &arguments);
            self.tile_lists.0[number] = Some(list);
        }
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
        if !is_single || heads > MOST_GROUPED * kv_heads || !are_aligned(&[query, key, value]) {
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
        let heads = query.heads;
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
        let y_is_aligned = y.stride.is_multiple_of(8) && y.buffer.offset.is_multiple_of(8);
        let (y, y_stride) = (Argument::Address(self.rows(y, tokens)), y.stride);
        // One new token per row: nothing to gain from tensor cores.
        let is_single = cache.is_some() && attention.longest <= 1;
        if !is_single
            && y_is_aligned
            && are_aligned(&[query, key, value])
            && let Some(tiled) = Tiled::forward(&self.driver.card, attention)
        {
            let (tiles, capacity) = self.tiles(attention, tokens, tiled.tile, false);
            let y = [y, Argument::I32(y_stride as i32), lse];
            let inputs = self.inputs(attention, |stride| Argument::I32(stride as i32));
            let arguments = Arguments::of(inputs).and([starts, firsts, lengths, tiles, causal, scale]).and(y);
            return self.launch(tiled.name, [heads, capacity, 1], [tiled.threads, 1, 1], tiled.shared, &arguments);
        }
        let threads = if is_single { 512 } else { 128 };
        let (size, count) = (Argument::I32(head_size as i32), Argument::I32(segments as i32));
        let inputs = self.inputs(attention, |stride| Argument::I64(stride as i64));
        let around = [size, starts, count, firsts, lengths, causal, scale];
        let arguments = Arguments::of(inputs).and(around).and([y, Argument::I64(y_stride as i64), lse]);
        let shared = threads / 32 * (head_size + 2) * 4;
        self.launch("attend_bf16", [tokens * heads, 1, 1], [threads, 1, 1], shared, &arguments);
    }

    /// The first arguments of every attention kernel: queries, keys and values, each with its stride, and the numbers of heads.
    fn inputs(&self, attention: &Attention, stride: fn(usize) -> Argument) -> [Argument; 8] {
        let Attention { query, key, value, .. } = *attention;
        let [q, k, v] = [query, key, value].map(|given| self.heads(given));
        let [qs, ks, vs] = [query, key, value].map(|given| stride(given.stride));
        [q, qs, k, ks, v, vs, Argument::I32(query.heads as i32), Argument::I32(key.heads as i32)]
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

/// Three launches: dy y summed along each head, the gradient of queries, and those of keys and values.
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
    let Attention { query, key, value, head_size, .. } = *attention;
    let heads = query.heads;
    let tokens = tokens_of(y, heads * head_size);
    for given in [query, key, value, dq, dk, dv] {
        check_heads(given, tokens, head_size);
    }
    for gradient in [dq, dk, dv] {
        cuda.apart(&[query.buffer, key.buffer, value.buffer, y.buffer, lse, dy], &[gradient.buffer]);
    }
    assert_eq!((dy.length(), lse.length()), (tokens * heads * head_size, tokens * heads));
    let along = cuda.sum_along(attention, y, dy, tokens);
    let back = Backward { attention, tokens, given: [cuda.activation(dy), cuda.of(lse, Dtype::F32), along] };
    let card = &cuda.driver.card;
    let kernels = Tiled::backward_queries(card, attention).zip(Tiled::backward_keys(card, attention));
    match kernels.filter(|_| are_aligned(&[query, key, value, dq, dk, dv])) {
        Some((queries, keys)) => {
            back.tiled_queries(cuda, queries, dq);
            back.tiled_keys(cuda, keys, dk, dv);
        }
        None => back.plain(cuda, dq, dk, dv),
    }
}

/// What the launches of a backward pass share.
struct Backward<'a> {
    attention: &'a Attention,
    tokens: usize,
    /// dy, the log-sum-exp, and dy y summed along each head.
    given: [Argument; 3],
}

impl Backward<'_> {
    fn scale(&self) -> [Argument; 2] {
        let scale = 1.0 / (self.attention.head_size as f32).sqrt();
        [Argument::I32(self.attention.is_causal.into()), Argument::F32(scale)]
    }

    fn tiled_queries(&self, cuda: &mut Cuda, kernel: Tiled, dq: Heads) {
        let starts = cuda.of(self.attention.cu_seqlens, Dtype::I32);
        let (tiles, capacity) = cuda.tiles(self.attention, self.tokens, kernel.tile, false);
        let narrow = |stride: usize| Argument::I32(stride as i32);
        let inputs = Arguments::of(cuda.inputs(self.attention, narrow)).and([starts, tiles]).and(self.scale());
        let arguments = inputs.and(self.given).and([cuda.heads(dq), narrow(dq.stride)]);
        let grid = [self.attention.query.heads, capacity, 1];
        cuda.launch(kernel.name, grid, [kernel.threads, 1, 1], kernel.shared, &arguments);
    }

    /// Blocks for several query heads of one key head write sums apart, which are added in order.
    fn tiled_keys(&self, cuda: &mut Cuda, kernel: Tiled, dk: Heads, dv: Heads) {
        let Attention { query, key, head_size, .. } = *self.attention;
        let (heads, kv_heads, tokens) = (query.heads, key.heads, self.tokens);
        let starts = cuda.of(self.attention.cu_seqlens, Dtype::I32);
        let (tiles, capacity) = cuda.tiles(self.attention, tokens, kernel.tile, true);
        let splits = splits(heads / kv_heads, kv_heads * capacity);
        let partial = match splits {
            1 => Argument::Address(0),
            _ => cuda.of(cuda.scratch().splits.first(2 * tokens * heads * head_size), Dtype::F32),
        };
        let narrow = |size: usize| Argument::I32(size as i32);
        let (to_k, to_v) = (cuda.heads(dk), cuda.heads(dv));
        let inputs = Arguments::of(cuda.inputs(self.attention, narrow)).and([starts, tiles]).and(self.scale());
        let gradients = [to_k, narrow(dk.stride), to_v, narrow(dv.stride)];
        let arguments = inputs.and(self.given).and(gradients).and([partial, narrow(splits), narrow(tokens)]);
        let grid = [kv_heads * splits, capacity, 1];
        cuda.launch(kernel.name, grid, [kernel.threads, 1, 1], kernel.shared, &arguments);
        if splits > 1 {
            let width = kv_heads * head_size;
            let [dks, dvs] = [dk, dv].map(|given| Argument::I64(given.stride as i64));
            let arguments = [partial, narrow(splits), narrow(tokens), narrow(width), to_k, dks, to_v, dvs];
            let grid = [width.div_ceil(VALUES), tokens.min(65535), 2];
            cuda.launch("attend_add_splits", grid, [256, 1, 1], 0, &arguments);
        }
    }

    /// For every head size, without tensor cores.
    fn plain(&self, cuda: &mut Cuda, dq: Heads, dk: Heads, dv: Heads) {
        let Attention { query, key, head_size, segments, .. } = *self.attention;
        let starts = cuda.of(self.attention.cu_seqlens, Dtype::I32);
        let wide = |stride: usize| Argument::I64(stride as i64);
        let sizes = [Argument::I32(head_size as i32), starts, Argument::I32(segments as i32)];
        let inputs = Arguments::of(cuda.inputs(self.attention, wide)).and(sizes).and(self.scale()).and(self.given);
        let [to_q, to_k, to_v] = [dq, dk, dv].map(|given| [cuda.heads(given), wide(given.stride)]);
        let (shared, threads) = (4 * head_size * 4, [128, 1, 1]);
        let grid = [self.tokens * query.heads, 1, 1];
        cuda.launch("attend_backward_queries_bf16", grid, threads, shared, &inputs.and(to_q));
        let grid = [self.tokens * key.heads, 1, 1];
        cuda.launch("attend_backward_keys_bf16", grid, threads, 2 * shared, &inputs.and(to_k).and(to_v));
    }
}

impl Cuda {
    /// dy y summed along each head, f32 `[tokens, heads]`.
    fn sum_along(&mut self, attention: &Attention, y: Rows, dy: Buffer, tokens: usize) -> Argument {
        let heads = attention.query.heads;
        let along = self.of(self.scratch().along.first(tokens * heads), Dtype::F32);
        let [y, y_stride] = self.with_stride(y, tokens);
        let count = Argument::I64((tokens * heads) as i64);
        let [heads_argument, size] = [heads, attention.head_size].map(|size| Argument::I32(size as i32));
        let arguments = [y, y_stride, self.activation(dy), along, count, heads_argument, size];
        self.launch("attend_along_bf16", [(tokens * heads).div_ceil(16), 1, 1], [128, 1, 1], 0, &arguments);
        along
    }
}
