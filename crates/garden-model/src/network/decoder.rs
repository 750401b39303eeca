//! The decoder: layers of attention and MLP, forward and backward side by side.

use garden_device::{Attention, Buffer, Device, Dtype, Heads, OutOfMemory, Plus, Purpose, Write};

use crate::checkpoint::layout::Width;
use crate::error::Error;
use crate::network::activations::activations;
use crate::network::kv_cache::{LayerKvCache, Step};
use crate::network::linear::Linear;
use crate::network::mode::Mode;
use crate::network::parameters::Builder;
use crate::network::pass::Pass;
use crate::network::swiglu::{Swiglu, SwigluWorkspace};
use garden_input::TextConfig;

/// One layer: x += o(attention(q, k, v of norm1(x))); x += mlp(norm2(x)).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layer {
    norm1: Norm,
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
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
    pub fn build(builder: &mut Builder, name: &str, size: usize, epsilon: f32) -> Result<Norm, Error> {
        let (weight, gradient) = builder.vector(&format!("{name}.weight"), Width::exact(size))?;
        Ok(Norm { weight, gradient, epsilon })
    }

    /// y `[rows, size]` from x `[rows, size]`.
    pub fn forward(&self, device: &mut dyn Device, x: Buffer, y: Buffer, rows: usize) {
        device.rms_norm(x, self.weight, y, rows, self.epsilon);
    }

    /// dx `[rows, size]` from dy and x.
    pub fn backward(&self, device: &mut dyn Device, dy: Buffer, x: Buffer, dx: Buffer, rows: usize, write: Write) {
        device.rms_norm_backward(dy, x, self.weight, dx, self.gradient, rows, self.epsilon, write);
    }
}

/// Activations of a layer that its backward pass needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerActivations {
    /// `[tokens, heads * head]`, after rotary embedding.
    q: Buffer,
    /// `[tokens, kv heads * head]`, after rotary embedding.
    k: Buffer,
    v: Buffer,
    /// `[tokens, heads * head]`.
    attended: Buffer,
    /// Log-sum-exp, f32 `[tokens, heads]`.
    lse: Buffer,
    /// x between attention and MLP `[tokens, hidden]`.
    middle: Buffer,
    /// `[tokens, inner]`.
    gate: Buffer,
    up: Buffer,
    /// Low-rank products of adapters `[adapters, tokens, rank]`.
    kept: Option<Buffer>,
    /// Whether the whole layer was computed, or recomputed only as far as its backward pass needs.
    is_whole: bool,
}

impl LayerActivations {
    /// Allocates activations for `tokens` tokens, with `kept` values per token for adapters.
    pub fn build(
        device: &mut dyn Device,
        purpose: Purpose,
        label: &str,
        text: &TextConfig,
        tokens: usize,
        kept: usize,
        mode: Mode,
    ) -> Result<LayerActivations, OutOfMemory> {
        let (keys, inner) =
            (text.kv_heads * text.head_size(), Width::inner(device.profile(), text.intermediate).padded);
        let lse = format!("{label} log-sum-exp");
        let lse = device.buffer(purpose, &lse, Dtype::F32, mode.back(tokens).saturating_mul(text.heads))?;
        let mut make =
            |name: &str, width: usize| activations(device, purpose, &format!("{label} {name}"), tokens, width);
        Ok(LayerActivations {
            q: make("queries", text.hidden)?,
            k: make("keys", keys)?,
            v: make("values", keys)?,
            attended: make("attended", text.hidden)?,
            lse,
            middle: make("middle", text.hidden)?,
            gate: make("gate", inner)?,
            up: make("up", inner)?,
            kept: if kept > 0 { Some(make("adapters", kept)?) } else { None },
            is_whole: true,
        })
    }
}

/// Buffers shared by all layers, in turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DecoderWorkspace {
    /// A norm's output `[tokens, hidden]`.
    normed: Buffer,
    /// Its gradient `[tokens, hidden]`.
    normed_gradient: Buffer,
    /// Gradient of the attention output `[tokens, hidden]`.
    attended_gradient: Buffer,
    q_gradient: Buffer,
    k_gradient: Buffer,
    v_gradient: Buffer,
    /// MLP buffers, `[tokens, inner]` each.
    mixed: Buffer,
    mixed_gradient: Buffer,
    gate_gradient: Buffer,
}

impl DecoderWorkspace {
    pub fn build(
        device: &mut dyn Device,
        text: &TextConfig,
        tokens: usize,
        mode: Mode,
    ) -> Result<DecoderWorkspace, OutOfMemory> {
        let (keys, inner) =
            (text.kv_heads * text.head_size(), Width::inner(device.profile(), text.intermediate).padded);
        let back = mode.back(tokens);
        let mut make = |name: &str, rows: usize, width: usize| {
            activations(device, Purpose::Workspace, &format!("decoder {name}"), rows, width)
        };
        Ok(DecoderWorkspace {
            normed: make("normed", tokens, text.hidden)?,
            normed_gradient: make("normed gradient", back, text.hidden)?,
            attended_gradient: make("attended gradient", back, text.hidden)?,
            q_gradient: make("queries gradient", back, text.hidden)?,
            k_gradient: make("keys gradient", back, keys)?,
            v_gradient: make("values gradient", back, keys)?,
            mixed: make("mixed", tokens, inner)?,
            mixed_gradient: make("mixed gradient", back, inner)?,
            gate_gradient: make("gate gradient", back, inner)?,
        })
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
        let (hidden, keys) = (Width::exact(text.hidden), Width::exact(text.kv_heads * text.head_size()));
        builder.adapters_of_layer = 0;
        Ok(Layer {
            norm1: Norm::build(builder, &format!("{name}.input_layernorm"), text.hidden, text.epsilon)?,
            q: builder.linear(&format!("{name}.self_attn.q_proj"), hidden, hidden, true)?,
            k: builder.linear(&format!("{name}.self_attn.k_proj"), hidden, keys, true)?,
            v: builder.linear(&format!("{name}.self_attn.v_proj"), hidden, keys, true)?,
            o: builder.linear(&format!("{name}.self_attn.o_proj"), hidden, hidden, false)?,
            norm2: Norm::build(builder, &format!("{name}.post_attention_layernorm"), text.hidden, text.epsilon)?,
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
        let keys = text.kv_heads * text.head_size();
        let saved = saved.of(context);
        self.project(pass, context, x, &saved);
        pass.device.scatter(saved.k, step.places, kv_cache.keys, tokens, keys);
        pass.device.scatter(saved.v, step.places, kv_cache.values, tokens, keys);
        let attention = Attention {
            key: heads(kv_cache.keys, text.kv_heads, text),
            value: heads(kv_cache.values, text.kv_heads, text),
            ..attention(context, &saved)
        };
        pass.device.attend_kv_cache(&attention, step.firsts, step.lengths, step.workspace, saved.attended);
        self.finish(pass, context, x, Some(x), &saved);
    }

    /// Queries, keys and values of x, with rotary embedding.
    fn project(&self, pass: &mut Pass, context: DecoderContext, x: Buffer, saved: &LayerActivations) {
        let (text, &Sequence { tokens, cosines, sines, .. }) = (context.text, context.sequence);
        let normed = context.workspace.normed.first(tokens * text.hidden);
        self.norm1.forward(pass.device, x, normed, tokens);
        for (linear, y) in [(&self.q, saved.q), (&self.k, saved.k), (&self.v, saved.v)] {
            linear.forward(pass, normed, y, tokens, Plus::Nothing, saved.kept);
        }
        pass.device.rotate(heads(saved.q, text.heads, text), text.head_size(), cosines, sines, tokens);
        pass.device.rotate(heads(saved.k, text.kv_heads, text), text.head_size(), cosines, sines, tokens);
    }

    /// From the attention output to y, which may be x.
    fn finish(&self, pass: &mut Pass, context: DecoderContext, x: Buffer, y: Option<Buffer>, saved: &LayerActivations) {
        let (workspace, tokens) = (context.workspace, context.sequence.tokens);
        let normed = workspace.normed.first(tokens * context.text.hidden);
        self.o.forward(pass, saved.attended, saved.middle, tokens, Plus::Other(x), saved.kept);
        self.norm2.forward(pass.device, saved.middle, normed, tokens);
        match y {
            Some(y) => self.mlp.forward(pass, normed, saved.middle, y, tokens, &swiglu_workspace(saved, workspace)),
            None => self.mlp.forward_inner(pass, normed, tokens, &swiglu_workspace(saved, workspace)),
        }
    }

    /// Turns the gradient of y in `dx` `[tokens, hidden]` into that of x, if wanted.
    pub fn backward(
        &self,
        pass: &mut Pass,
        context: DecoderContext,
        x: Buffer,
        dx: Buffer,
        wants_dx: bool,
        saved: &LayerActivations,
    ) {
        let DecoderContext { text, workspace, sequence: &Sequence { tokens, cosines, sines, .. } } = context;
        let saved = saved.of(context);
        let part = |buffer: Buffer, width: usize| buffer.first(tokens * width);
        let (normed, dnormed) = (part(workspace.normed, text.hidden), part(workspace.normed_gradient, text.hidden));
        // The MLP: its gradient is added to the residual's.
        self.norm2.forward(pass.device, saved.middle, normed, tokens);
        self.mlp.backward(pass, normed, dx, dnormed, tokens, &swiglu_workspace(&saved, workspace));
        self.norm2.backward(pass.device, dnormed, saved.middle, dx, tokens, Write::Add);
        // Attention.
        let dattended = part(workspace.attended_gradient, text.hidden);
        self.o.backward(pass, saved.attended, dx, Some((dattended, Write::Set)), tokens, saved.kept);
        let keys = text.kv_heads * text.head_size();
        let (dq, dk, dv) = (
            part(workspace.q_gradient, text.hidden),
            part(workspace.k_gradient, keys),
            part(workspace.v_gradient, keys),
        );
        let [q_heads, k_heads, v_heads] =
            [heads(dq, text.heads, text), heads(dk, text.kv_heads, text), heads(dv, text.kv_heads, text)];
        let attention = attention(context, &saved);
        pass.device.attend_backward(&attention, saved.attended, saved.lse, dattended, q_heads, k_heads, v_heads);
        pass.device.rotate_backward(q_heads, text.head_size(), cosines, sines, tokens);
        pass.device.rotate_backward(k_heads, text.head_size(), cosines, sines, tokens);
        self.norm1.forward(pass.device, x, normed, tokens);
        let back = |write| wants_dx.then_some((dnormed, write));
        self.q.backward(pass, normed, dq, back(Write::Set), tokens, saved.kept);
        self.k.backward(pass, normed, dk, back(Write::Add), tokens, saved.kept);
        self.v.backward(pass, normed, dv, back(Write::Add), tokens, saved.kept);
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
        let keys = text.kv_heads * text.head_size();
        LayerActivations {
            q: self.q.first(tokens * text.hidden),
            k: self.k.first(tokens * keys),
            v: self.v.first(tokens * keys),
            attended: self.attended.first(tokens * text.hidden),
            // Empty without a backward pass.
            lse: self.lse.first((tokens * text.heads).min(self.lse.length())),
            middle: self.middle.first(tokens * text.hidden),
            // The MLP takes the parts it needs.
            gate: self.gate,
            up: self.up,
            kept: self.kept,
            is_whole: self.is_whole,
        }
    }
}

fn heads(buffer: Buffer, heads: usize, text: &TextConfig) -> Heads {
    Heads { buffer, offset: 0, stride: heads * text.head_size(), heads }
}

fn attention(context: DecoderContext, saved: &LayerActivations) -> Attention {
    let (text, sequence) = (context.text, context.sequence);
    Attention {
        query: heads(saved.q, text.heads, text),
        key: heads(saved.k, text.kv_heads, text),
        value: heads(saved.v, text.kv_heads, text),
        head_size: text.head_size(),
        cu_seqlens: sequence.cu_seqlens,
        segments: sequence.rows,
        longest: sequence.longest,
        is_causal: true,
    }
}

fn swiglu_workspace(saved: &LayerActivations, workspace: &DecoderWorkspace) -> SwigluWorkspace {
    SwigluWorkspace {
        gate: saved.gate,
        up: saved.up,
        mixed: workspace.mixed,
        mixed_gradient: workspace.mixed_gradient,
        gate_gradient: workspace.gate_gradient,
        kept: saved.kept,
        keeps_down: saved.is_whole,
    }
}
