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
use crate::network::swiglu::{Swiglu, SwigluBuffers, SwigluWorkspace};
use garden_input::{NormSpec, TextConfig};

/// One layer: x += o(attention(q, k, v of norm1(x))); x += mlp(norm2(x)).
#[derive(Clone, Debug)]
pub(crate) struct Layer {
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
    /// Allocates activations for `tokens` tokens.
    pub fn build(
        device: &mut dyn Device,
        purpose: Purpose,
        label: &str,
        text: &TextConfig,
        tokens: usize,
        adapters: AdapterSizes,
        mode: Mode,
    ) -> Result<LayerActivations, OutOfMemory> {
        let (queries, keys) = (text.query_width(), text.key_width());
        let inner = Width::inner(device.profile(), text.intermediate).padded;
        let lse = format!("{label} log-sum-exp");
        let lse = device.buffer(purpose, &lse, Dtype::F32, mode.back(tokens).saturating_mul(text.heads))?;
        let (room, kept) = (adapters.room(device.profile()), mode.back(adapters.of_layer));
        let named = [("queries", queries), ("keys", keys), ("values", keys)];
        let qkv = side_by_side(device, purpose, &format!("{label} "), named, tokens, 0)?;
        let attended = roomy(device, purpose, &format!("{label} attended"), tokens, queries, room)?;
        let middle = activations(device, purpose, &format!("{label} middle"), tokens, text.hidden)?;
        let named = [("gate", inner), ("up", inner)];
        let gate_up = side_by_side(device, purpose, &format!("{label} "), named, tokens, 0)?;
        let kept = match kept {
            0 => None,
            kept => Some(activations(device, purpose, &format!("{label} adapters"), tokens, kept)?),
        };
        Ok(LayerActivations { qkv, attended, lse, middle, gate_up, kept, is_whole: true })
    }
}

/// Buffers shared by all layers, in turn.
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
    pub fn build(
        device: &mut dyn Device,
        text: &TextConfig,
        tokens: usize,
        adapters: AdapterSizes,
        mode: Mode,
    ) -> Result<DecoderWorkspace, OutOfMemory> {
        let (queries, keys) = (text.query_width(), text.key_width());
        let inner = Width::inner(device.profile(), text.intermediate).padded;
        let (back, room, purpose) = (mode.back(tokens), adapters.room(device.profile()), Purpose::Workspace);
        let normed = roomy(device, purpose, "decoder normed", tokens, text.hidden, room)?;
        let normed_gradient = activations(device, purpose, "decoder normed gradient", back, text.hidden)?;
        let attended_gradient = activations(device, purpose, "decoder attended gradient", back, queries)?;
        let named = [("queries gradient", queries), ("keys gradient", keys), ("values gradient", keys)];
        let qkv_gradient = side_by_side(device, purpose, "decoder ", named, back, room)?;
        let mlp = SwigluWorkspace::build(device, "decoder", inner, tokens, back, room)?;
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
    /// f32 `[tokens, half a head]`.
    pub cosines: Buffer,
    pub sines: Buffer,
}

/// Context of a pass through the decoder's layers.
#[derive(Clone, Copy)]
pub(crate) struct DecoderContext<'a> {
    pub text: &'a TextConfig,
    pub workspace: &'a DecoderWorkspace,
    pub sequence: &'a Sequence,
}

impl Layer {
    pub fn build(builder: &mut Builder, name: &str, text: &TextConfig) -> Result<Layer, Error> {
        let [hidden, queries, keys] = [text.hidden, text.query_width(), text.key_width()].map(Width::exact);
        builder.narrow_of_layer = 0;
        let qkv = [("q", queries), ("k", keys), ("v", keys)];
        let qkv = qkv.map(|(linear, outputs)| (format!("{name}.self_attn.{linear}_proj"), outputs));
        Ok(Layer {
            norm1: Norm::build(builder, &format!("{name}.input_layernorm"), text.hidden, text.norm)?,
            qkv: builder.linears(&qkv, hidden, text.has_qkv_bias)?,
            o: builder.linear(&format!("{name}.self_attn.o_proj"), queries, hidden, text.has_output_bias)?,
            norm2: Norm::build(builder, &format!("{name}.post_attention_layernorm"), text.hidden, text.norm)?,
            mlp: Swiglu::build(builder, &format!("{name}.mlp"), text.hidden, text.intermediate, false)?,
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
        let saved = saved.of(context);
        self.project(pass, context, x, &saved);
        pass.device.attend(&attention(context, &saved), saved.attended, saved.lse);
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
        let (text, tokens) = (context.text, context.sequence.tokens);
        let saved = saved.of(context);
        self.project(pass, context, x, &saved);
        let [_, k, v] = saved.qkv;
        let [cached_k, cached_v] = [kv_cache.keys, kv_cache.values].map(|cached| Rows::dense(cached, k.width));
        pass.device.scatter(k, step.places, cached_k, tokens);
        pass.device.scatter(v, step.places, cached_v, tokens);
        let attention = Attention {
            key: heads(cached_k, text.kv_heads),
            value: heads(cached_v, text.kv_heads),
            ..attention(context, &saved)
        };
        pass.device.attend_kv_cache(&attention, step.firsts, step.lengths, step.workspace, saved.attended);
        self.finish(pass, context, x, Some(x), &saved);
    }

    /// Queries, keys and values of x, with rotary embedding.
    fn project(&self, pass: &mut Pass, context: DecoderContext, x: Buffer, saved: &LayerActivations) {
        let (text, &Sequence { tokens, cosines, sines, .. }) = (context.text, context.sequence);
        let normed = context.workspace.normed.first(tokens);
        self.norm1.forward(pass.device, x, normed, tokens);
        self.qkv.forward(pass, normed, &saved.qkv, tokens, None, saved.kept);
        for heads in queries_and_keys(saved.qkv, text) {
            pass.device.rotate(heads, text.head_dim, cosines, sines, tokens);
        }
    }

    /// From the attention output to y, which may be x.
    fn finish(&self, pass: &mut Pass, context: DecoderContext, x: Buffer, y: Option<Buffer>, saved: &LayerActivations) {
        let (workspace, tokens) = (context.workspace, context.sequence.tokens);
        let normed = workspace.normed.first(tokens);
        let middle = Rows::dense(saved.middle, context.text.hidden);
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
        let DecoderContext { text, workspace, sequence: &Sequence { tokens, cosines, sines, .. } } = context;
        let saved = saved.of(context);
        let dnormed = workspace.normed_gradient.first(tokens * text.hidden);
        let normed = workspace.normed.first(tokens);
        let dnormed_rows = Rows::dense(dnormed, text.hidden);
        // The MLP: its gradient is added to the residual's.
        self.norm2.forward(pass.device, saved.middle, normed, tokens);
        self.mlp.backward(pass, normed, dx, dnormed_rows, tokens, &saved.of_mlp(workspace));
        self.norm2.backward(pass.device, dnormed, saved.middle, dx, tokens, Write::Add);
        // Attention.
        let dattended = workspace.attended_gradient.first(tokens * text.query_width());
        let to = Rows::dense(dattended, text.query_width());
        self.o.backward(pass, saved.attended, &[dx], Some(to), tokens, saved.kept);
        let dqkv = workspace.qkv_gradient.map(|part| part.first(tokens));
        let [dq, dk, dv] = qkv_heads(dqkv, text);
        let attention = attention(context, &saved);
        pass.device.attend_backward(&attention, saved.attended, saved.lse, dattended, dq, dk, dv);
        for heads in queries_and_keys(dqkv, text) {
            pass.device.rotate_backward(heads, text.head_dim, cosines, sines, tokens);
        }
        self.norm1.forward(pass.device, x, normed, tokens);
        self.qkv.backward(pass, normed, &dqkv, wants_dx.then_some(dnormed_rows), tokens, saved.kept);
        if wants_dx {
            self.norm1.backward(pass.device, dnormed, x, dx, tokens, Write::Add);
        }
    }
}

impl LayerActivations {
    /// These activations, marked as recomputed without the layer's output.
    pub fn made_again(&self) -> LayerActivations {
        LayerActivations { is_whole: false, ..*self }
    }

    /// The part of the buffers that a batch uses.
    fn of(&self, context: DecoderContext) -> LayerActivations {
        let (text, tokens) = (context.text, context.sequence.tokens);
        LayerActivations {
            qkv: self.qkv.map(|part| part.first(tokens)),
            attended: self.attended.first(tokens),
            // Empty without a backward pass.
            lse: self.lse.first((tokens * text.heads).min(self.lse.length())),
            middle: self.middle.first(tokens * text.hidden),
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

fn qkv_heads([q, k, v]: [Rows; 3], text: &TextConfig) -> [Heads; 3] {
    [heads(q, text.heads), heads(k, text.kv_heads), heads(v, text.kv_heads)]
}

/// Queries and keys, which get the same rotary embedding: at once, where they lie side by side.
fn queries_and_keys(qkv: [Rows; 3], text: &TextConfig) -> impl Iterator<Item = Heads> + use<> {
    let [q, k, _] = qkv_heads(qkv, text);
    let turned = match qkv[0].stride > qkv[0].width {
        true => [Some(Heads { heads: q.heads + k.heads, ..q }), None],
        false => [Some(q), Some(k)],
    };
    turned.into_iter().flatten()
}

fn attention(context: DecoderContext, saved: &LayerActivations) -> Attention {
    let (text, sequence) = (context.text, context.sequence);
    let [query, key, value] = qkv_heads(saved.qkv, text);
    Attention {
        query,
        key,
        value,
        head_size: text.head_dim,
        cu_seqlens: sequence.cu_seqlens,
        segments: sequence.rows,
        longest: sequence.longest,
        is_causal: true,
    }
}
