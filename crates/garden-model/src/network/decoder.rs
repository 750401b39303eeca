//! The decoder: layers of attention and MLP, forward and backward side by side.

use garden_device::{Attention, Buffer, Device, Dtype, Heads, OutOfMemory, Purpose, Rows, Write};

use crate::checkpoint::layout::Width;
use crate::error::Error;
use crate::network::activations::{activations, roomy, side_by_side};
use crate::network::kv_cache::{LayerKvCache, Step};
use crate::network::linear::{AdapterSizes, Linears};
use crate::network::mode::Mode;
use crate::network::parameters::Builder;
use crate::network::pass::Pass;
use crate::network::role::Kind;
use crate::network::rotary::{Angles, MOST};
use crate::network::swiglu::{Swiglu, SwigluBuffers, SwigluWorkspace};
use garden_input::{AttentionSpec, LayerNames, LayerSpec, NormSpec, TensorNames, TextConfig};

/// One layer: x += o(attention(q, k, v of norm1(x))); x += mlp(norm2(x)).
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    spec: LayerSpec,
    /// Index among the kinds of layers, which have buffers of their own.
    pub kind: usize,
    /// Index among the rotary embeddings.
    rotary: usize,
    norm1: Norm,
    qkv: Linears,
    o: Linears,
    norm2: Norm,
    mlp: Swiglu,
}

/// A norm's weight `[hidden]`, with its gradient if it is trained.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Norm {
    pub weight: Buffer,
    pub gradient: Option<Buffer>,
    pub epsilon: f32,
}

impl Norm {
    pub fn build(builder: &mut Builder, name: &str, size: usize, spec: NormSpec) -> Result<Norm, Error> {
        let kind = Kind::Norm { is_decayed: spec.is_decayed };
        let (weight, gradient) = builder.vector(&format!("{name}.weight"), Width::exact(size), kind)?;
        Ok(Norm { weight, gradient, epsilon: spec.epsilon })
    }

    /// y `[rows, size]` from x `[rows, size]`.
    pub fn forward(&self, device: &mut dyn Device, x: Buffer, y: Rows, rows: usize) {
        device.rms_norm(x, self.weight, y, rows, self.epsilon);
    }

    /// dx `[rows, size]` from dy and x.
    pub fn backward(&self, device: &mut dyn Device, dy: Buffer, x: Buffer, dx: Rows, rows: usize, write: Write) {
        device.rms_norm_backward(dy, x, self.weight, dx, self.gradient, rows, self.epsilon, write);
    }
}

/// What the buffers of layers are sized for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerSizes {
    pub hidden: usize,
    pub tokens: usize,
    pub adapters: AdapterSizes,
    pub mode: Mode,
}

/// Activations of a layer that its backward pass needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerActivations {
    /// Queries `[tokens, heads * head]`, keys and values `[tokens, kv heads * head]`; queries and keys after rotary embedding.
    qkv: [Rows; 3],
    /// `[tokens, heads * head]`.
    attended: Rows,
    /// Log-sum-exp, f32 `[tokens, heads]`.
    lse: Buffer,
    /// x between attention and MLP `[tokens, hidden]`.
    middle: Buffer,
    /// Gate and up `[tokens, inner]`.
    gate_up: [Rows; 2],
    /// Low-rank products of adapters `[tokens, rank of all of them]`.
    kept: Option<Buffer>,
    /// Whether the whole layer was computed, or recomputed only as far as its backward pass needs.
    is_whole: bool,
}

impl LayerActivations {
    /// Allocates activations of a layer.
    pub fn build(
        device: &mut dyn Device,
        purpose: Purpose,
        label: &str,
        spec: &LayerSpec,
        sizes: LayerSizes,
    ) -> Result<LayerActivations, OutOfMemory> {
        let LayerSizes { hidden, tokens, adapters, mode } = sizes;
        let attention = spec.attention();
        let (queries, keys) = (attention.query_width(), attention.key_width());
        let inner = Width::inner(device.profile(), spec.mlp.intermediate).padded;
        let lse = format!("{label} log-sum-exp");
        let lse = device.buffer(purpose, &lse, Dtype::F32, mode.back(tokens).saturating_mul(attention.heads))?;
        let (room, kept) = (adapters.room(device.profile()), mode.back(adapters.of_layer));
        let named = [("queries", queries), ("keys", keys), ("values", keys)];
        let qkv = side_by_side(device, purpose, &format!("{label} "), named, tokens, 0)?;
        let attended = roomy(device, purpose, &format!("{label} attended"), tokens, queries, room)?;
        let middle = activations(device, purpose, &format!("{label} middle"), tokens, hidden)?;
        let named = [("gate", inner), ("up", inner)];
        let gate_up = side_by_side(device, purpose, &format!("{label} "), named, tokens, 0)?;
        let kept = match kept {
            0 => None,
            kept => Some(activations(device, purpose, &format!("{label} adapters"), tokens, kept)?),
        };
        Ok(LayerActivations { qkv, attended, lse, middle, gate_up, kept, is_whole: true })
    }

    /// Those of each kind of layer, for a pass that keeps none.
    pub fn of_kinds(
        device: &mut dyn Device,
        text: &TextConfig,
        sizes: LayerSizes,
    ) -> Result<Vec<LayerActivations>, OutOfMemory> {
        let of_kind = |(kind, spec): (usize, &LayerSpec)| {
            LayerActivations::build(device, Purpose::Workspace, &label_of_kind(kind), spec, sizes)
        };
        text.kinds().iter().enumerate().map(of_kind).collect()
    }
}

/// The name of buffers that all layers of a kind share.
fn label_of_kind(kind: usize) -> String {
    if kind == 0 { "decoder".to_string() } else { format!("decoder, kind {kind},") }
}

/// Buffers shared by all layers of a kind, in turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DecoderWorkspace {
    /// A norm's output `[tokens, hidden]`.
    normed: Rows,
    /// Its gradient `[tokens, hidden]`.
    normed_gradient: Buffer,
    /// Gradient of the attention output `[tokens, heads * head]`.
    attended_gradient: Buffer,
    qkv_gradient: [Rows; 3],
    mlp: SwigluWorkspace,
}

impl DecoderWorkspace {
    /// Those of each kind of layer.
    pub fn of_kinds(
        device: &mut dyn Device,
        text: &TextConfig,
        sizes: LayerSizes,
    ) -> Result<Vec<DecoderWorkspace>, OutOfMemory> {
        let of_kind =
            |(kind, spec): (usize, &LayerSpec)| DecoderWorkspace::build(device, &label_of_kind(kind), spec, sizes);
        text.kinds().iter().enumerate().map(of_kind).collect()
    }

    fn build(
        device: &mut dyn Device,
        label: &str,
        spec: &LayerSpec,
        sizes: LayerSizes,
    ) -> Result<DecoderWorkspace, OutOfMemory> {
        let LayerSizes { hidden, tokens, adapters, mode } = sizes;
        let (queries, keys) = (spec.attention().query_width(), spec.attention().key_width());
        let inner = Width::inner(device.profile(), spec.mlp.intermediate).padded;
        let (back, room, purpose) = (mode.back(tokens), adapters.room(device.profile()), Purpose::Workspace);
        let normed = roomy(device, purpose, &format!("{label} normed"), tokens, hidden, room)?;
        let normed_gradient = activations(device, purpose, &format!("{label} normed gradient"), back, hidden)?;
        let attended_gradient = activations(device, purpose, &format!("{label} attended gradient"), back, queries)?;
        let named = [("queries gradient", queries), ("keys gradient", keys), ("values gradient", keys)];
        let qkv_gradient = side_by_side(device, purpose, &format!("{label} "), named, back, room)?;
        let mlp = SwigluWorkspace::build(device, label, inner, tokens, back, room)?;
        Ok(DecoderWorkspace { normed, normed_gradient, attended_gradient, qkv_gradient, mlp })
    }
}

/// The batch's sequences, shared by all layers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sequence {
    pub tokens: usize,
    pub rows: usize,
    /// Tokens of the longest row.
    pub longest: usize,
    pub cu_seqlens: Buffer,
    /// Of each rotary embedding.
    pub angles: [Angles; MOST],
}

/// Context of a pass through the decoder's layers.
#[derive(Clone, Copy)]
pub(crate) struct DecoderContext<'a> {
    pub hidden: usize,
    /// Of each kind of layer.
    pub workspaces: &'a [DecoderWorkspace],
    pub sequence: &'a Sequence,
}

impl Layer {
    pub fn build(builder: &mut Builder, names: &TensorNames, text: &TextConfig, index: usize) -> Result<Layer, Error> {
        let spec = text.layers[index];
        let named = |name: &str| format!("{}.{index}.{name}", names.layer);
        let LayerNames { norms: [norm1, norm2], qkv, output, mlp } = names.layers;
        let attention = spec.attention();
        let [hidden, queries, keys] = [text.hidden, attention.query_width(), attention.key_width()].map(Width::exact);
        let place = |found: Option<usize>| found.unwrap_or_default();
        builder.narrow_of_layer = 0;
        let [q, k, v] = qkv.map(named);
        let qkv = [(q, queries), (k, keys), (v, keys)];
        Ok(Layer {
            spec,
            kind: place(text.kinds().iter().position(|kind| *kind == spec)),
            rotary: place(text.rotaries().iter().position(|rotary| *rotary == attention.rotary)),
            norm1: Norm::build(builder, &named(norm1), text.hidden, spec.norm)?,
            qkv: builder.linears(&qkv, hidden, attention.has_qkv_bias)?,
            o: builder.linear(&named(output), queries, hidden, attention.has_output_bias)?,
            norm2: Norm::build(builder, &named(norm2), text.hidden, spec.norm)?,
            mlp: Swiglu::build(builder, mlp.map(named), text.hidden, spec.mlp.intermediate, spec.mlp.has_bias)?,
        })
    }

    /// y `[tokens, hidden]` from x `[tokens, hidden]`; without `y` only the backward pass's needs are computed.
    pub fn forward(
        &self,
        pass: &mut Pass,
        context: DecoderContext,
        x: Buffer,
        y: Option<Buffer>,
        saved: &LayerActivations,
    ) {
        let saved = saved.of(context, &self.spec);
        self.project(pass, context, x, &saved);
        pass.device.attend(&self.attention(context, &saved), saved.attended, saved.lse);
        self.finish(pass, context, x, y, &saved);
    }

    /// Inference in place: x `[tokens, hidden]` of new tokens, which attend to their rows in the KV cache and are added to it.
    pub fn forward_with_kv_cache(
        &self,
        pass: &mut Pass,
        context: DecoderContext,
        x: Buffer,
        saved: &LayerActivations,
        kv_cache: &LayerKvCache,
        step: &Step,
    ) {
        let (kv_heads, tokens) = (self.spec.attention().kv_heads, context.sequence.tokens);
        let saved = saved.of(context, &self.spec);
        self.project(pass, context, x, &saved);
        let [_, k, v] = saved.qkv;
        let [cached_k, cached_v] = [kv_cache.keys, kv_cache.values].map(|cached| Rows::dense(cached, k.width));
        pass.device.scatter(k, step.places, cached_k, tokens);
        pass.device.scatter(v, step.places, cached_v, tokens);
        let attention = Attention {
            key: heads(cached_k, kv_heads),
            value: heads(cached_v, kv_heads),
            ..self.attention(context, &saved)
        };
        pass.device.attend_kv_cache(&attention, step.firsts, step.lengths, step.workspace, saved.attended);
        self.finish(pass, context, x, Some(x), &saved);
    }

    /// Queries, keys and values of x, with rotary embedding.
    fn project(&self, pass: &mut Pass, context: DecoderContext, x: Buffer, saved: &LayerActivations) {
        let (tokens, Angles { cosines, sines }) = (context.sequence.tokens, context.sequence.angles[self.rotary]);
        let normed = self.workspace(context).normed.first(tokens);
        self.norm1.forward(pass.device, x, normed, tokens);
        self.qkv.forward(pass, normed, &saved.qkv, tokens, None, saved.kept);
        for heads in queries_and_keys(saved.qkv, self.spec.attention()) {
            pass.device.rotate(heads, self.spec.attention().head_dim, cosines, sines, tokens);
        }
    }

    /// From the attention output to y, which may be x.
    fn finish(&self, pass: &mut Pass, context: DecoderContext, x: Buffer, y: Option<Buffer>, saved: &LayerActivations) {
        let (workspace, tokens) = (self.workspace(context), context.sequence.tokens);
        let normed = workspace.normed.first(tokens);
        let middle = Rows::dense(saved.middle, context.hidden);
        self.o.forward(pass, saved.attended, &[middle], tokens, Some(x), saved.kept);
        self.norm2.forward(pass.device, saved.middle, normed, tokens);
        match y {
            Some(y) => {
                self.mlp.forward(pass, normed, saved.middle, y, tokens, &saved.of_mlp(workspace));
            }
            None => self.mlp.forward_inner(pass, normed, tokens, &saved.of_mlp(workspace)),
        }
    }

    /// Turns the gradient of y in `dx` `[tokens, hidden]` into that of x, if wanted.
    pub fn backward(
        &self,
        pass: &mut Pass,
        context: DecoderContext,
        x: Buffer,
        dx: Rows,
        wants_dx: bool,
        saved: &LayerActivations,
    ) {
        let DecoderContext { hidden, sequence, .. } = context;
        let (tokens, Angles { cosines, sines }) = (sequence.tokens, sequence.angles[self.rotary]);
        let (workspace, queries) = (self.workspace(context), self.spec.attention().query_width());
        let saved = saved.of(context, &self.spec);
        let dnormed = workspace.normed_gradient.first(tokens * hidden);
        let normed = workspace.normed.first(tokens);
        let dnormed_rows = Rows::dense(dnormed, hidden);
        // The MLP: its gradient is added to the residual's.
        self.norm2.forward(pass.device, saved.middle, normed, tokens);
        self.mlp.backward(pass, normed, dx, dnormed_rows, tokens, &saved.of_mlp(workspace));
        self.norm2.backward(pass.device, dnormed, saved.middle, dx, tokens, Write::Add);
        // Attention.
        let dattended = workspace.attended_gradient.first(tokens * queries);
        let to = Rows::dense(dattended, queries);
        self.o.backward(pass, saved.attended, &[dx], Some(to), tokens, saved.kept);
        let dqkv = workspace.qkv_gradient.map(|part| part.first(tokens));
        let [dq, dk, dv] = qkv_heads(dqkv, self.spec.attention());
        let attention = self.attention(context, &saved);
        pass.device.attend_backward(&attention, saved.attended, saved.lse, dattended, dq, dk, dv);
        for heads in queries_and_keys(dqkv, self.spec.attention()) {
            pass.device.rotate_backward(heads, self.spec.attention().head_dim, cosines, sines, tokens);
        }
        self.norm1.forward(pass.device, x, normed, tokens);
        self.qkv.backward(pass, normed, &dqkv, wants_dx.then_some(dnormed_rows), tokens, saved.kept);
        if wants_dx {
            self.norm1.backward(pass.device, dnormed, x, dx, tokens, Write::Add);
        }
    }

    fn workspace<'a>(&self, context: DecoderContext<'a>) -> &'a DecoderWorkspace {
        &context.workspaces[self.kind]
    }

    fn attention(&self, context: DecoderContext, saved: &LayerActivations) -> Attention {
        let (spec, sequence) = (self.spec.attention(), context.sequence);
        let [query, key, value] = qkv_heads(saved.qkv, spec);
        Attention {
            query,
            key,
            value,
            head_size: spec.head_dim,
            cu_seqlens: sequence.cu_seqlens,
            segments: sequence.rows,
            longest: sequence.longest,
            is_causal: true,
        }
    }
}

impl LayerActivations {
    /// These activations, marked as recomputed without the layer's output.
    pub fn made_again(&self) -> LayerActivations {
        LayerActivations { is_whole: false, ..*self }
    }

    /// The part of the buffers that a batch uses.
    fn of(&self, context: DecoderContext, spec: &LayerSpec) -> LayerActivations {
        let (heads, tokens) = (spec.attention().heads, context.sequence.tokens);
        LayerActivations {
            qkv: self.qkv.map(|part| part.first(tokens)),
            attended: self.attended.first(tokens),
            // Empty without a backward pass.
            lse: self.lse.first((tokens * heads).min(self.lse.length())),
            middle: self.middle.first(tokens * context.hidden),
            ..*self
        }
    }

    fn of_mlp(&self, workspace: &DecoderWorkspace) -> SwigluBuffers {
        SwigluBuffers { gate_up: self.gate_up, kept: self.kept, keeps_down: self.is_whole, workspace: workspace.mlp }
    }
}

/// Heads in rows.
fn heads(rows: Rows, heads: usize) -> Heads {
    Heads { buffer: rows.buffer, offset: 0, stride: rows.stride, heads }
}

fn qkv_heads([q, k, v]: [Rows; 3], spec: &AttentionSpec) -> [Heads; 3] {
    [heads(q, spec.heads), heads(k, spec.kv_heads), heads(v, spec.kv_heads)]
}

/// Queries and keys, which get the same rotary embedding: at once, where they lie side by side.
fn queries_and_keys(qkv: [Rows; 3], spec: &AttentionSpec) -> impl Iterator<Item = Heads> + use<> {
    let [q, k, _] = qkv_heads(qkv, spec);
    let turned = match qkv[0].stride > qkv[0].width {
        true => [Some(Heads { heads: q.heads + k.heads, ..q }), None],
        false => [Some(q), Some(k)],
    };
    turned.into_iter().flatten()
}
