//! The decoder: layers of attention and MLP, forward and backward side by side.

use garden_device::{Attention, Buffer, Device, Dtype, Heads, OutOfMemory, Purpose, Write};

use crate::config::TextConfig;
use crate::error::Error;
use crate::kv_cache::{LayerKvCache, Step};
use crate::linear::{Linear, LinearWorkspace};
use crate::mode::Mode;
use crate::parameters::Builder;
use crate::swiglu::{Swiglu, SwigluWorkspace};

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

/// A norm's weight [hidden], with its gradient if it is trained.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Norm {
    pub weight: Buffer,
    pub gradient: Option<Buffer>,
    pub epsilon: f32,
}

impl Norm {
    pub fn build(builder: &mut Builder, name: &str, size: usize, epsilon: f32) -> Result<Norm, Error> {
        let (weight, gradient) = builder.parameter(&format!("{name}.weight"), &[size])?;
        Ok(Norm { weight, gradient, epsilon })
    }

    /// y [rows, size] of x [rows, size].
    pub fn forward(&self, device: &mut dyn Device, x: Buffer, y: Buffer, rows: usize) {
        device.rms_norm(x, self.weight, y, rows, self.epsilon);
    }

    /// dx [rows, size] from dy and x.
    pub fn backward(&self, device: &mut dyn Device, dy: Buffer, x: Buffer, dx: Buffer, rows: usize, write: Write) {
        device.rms_norm_backward(dy, x, self.weight, dx, self.gradient, rows, self.epsilon, write);
    }
}

/// What a layer's backward pass needs of its forward pass: one for each layer, or one for all that is filled again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerActivations {
    /// [tokens, heads * head], turned.
    q: Buffer,
    /// [tokens, key heads * head], turned.
    k: Buffer,
    v: Buffer,
    /// [tokens, heads * head].
    attended: Buffer,
    /// [tokens, heads].
    lse: Buffer,
    /// x between attention and MLP [tokens, hidden].
    middle: Buffer,
    /// [tokens, inner].
    gate: Buffer,
    up: Buffer,
}

impl LayerActivations {
    pub fn build(
        device: &mut dyn Device,
        purpose: Purpose,
        label: &str,
        text: &TextConfig,
        tokens: usize,
        mode: Mode,
    ) -> Result<LayerActivations, OutOfMemory> {
        let keys = text.kv_heads * text.head_size();
        let mut make = |name: &str, rows: usize, width: usize| {
            device.buffer(purpose, &format!("{label} {name}"), Dtype::F32, rows * width)
        };
        Ok(LayerActivations {
            q: make("queries", tokens, text.hidden)?,
            k: make("keys", tokens, keys)?,
            v: make("values", tokens, keys)?,
            attended: make("attended", tokens, text.hidden)?,
            lse: make("log-sum-exp", mode.back(tokens), text.heads)?,
            middle: make("middle", tokens, text.hidden)?,
            gate: make("gate", tokens, text.intermediate)?,
            up: make("up", tokens, text.intermediate)?,
        })
    }
}

/// Room that layers share, one after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DecoderWorkspace {
    /// A norm's output [tokens, hidden].
    pub normed: Buffer,
    /// Its gradient [tokens, hidden].
    pub normed_gradient: Buffer,
    /// Gradient of what attention gave [tokens, hidden].
    pub attended_gradient: Buffer,
    pub q_gradient: Buffer,
    pub k_gradient: Buffer,
    pub v_gradient: Buffer,
    /// Of the MLP, [tokens, inner] each.
    pub mixed: Buffer,
    pub mixed_gradient: Buffer,
    pub gate_gradient: Buffer,
}

impl DecoderWorkspace {
    pub fn build(
        device: &mut dyn Device,
        text: &TextConfig,
        tokens: usize,
        mode: Mode,
    ) -> Result<DecoderWorkspace, OutOfMemory> {
        let keys = text.kv_heads * text.head_size();
        let back = mode.back(tokens);
        let mut make = |name: &str, rows: usize, width: usize| {
            device.buffer(Purpose::Workspace, &format!("decoder {name}"), Dtype::F32, rows * width)
        };
        Ok(DecoderWorkspace {
            normed: make("normed", tokens, text.hidden)?,
            normed_gradient: make("normed gradient", back, text.hidden)?,
            attended_gradient: make("attended gradient", back, text.hidden)?,
            q_gradient: make("queries gradient", back, text.hidden)?,
            k_gradient: make("keys gradient", back, keys)?,
            v_gradient: make("values gradient", back, keys)?,
            mixed: make("mixed", tokens, text.intermediate)?,
            mixed_gradient: make("mixed gradient", back, text.intermediate)?,
            gate_gradient: make("gate gradient", back, text.intermediate)?,
        })
    }
}

/// What all layers are told about the batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sequence {
    pub tokens: usize,
    pub rows: usize,
    pub cu_seqlens: Buffer,
    /// [tokens, half a head].
    pub cosines: Buffer,
    pub sines: Buffer,
}

impl Layer {
    pub fn build(builder: &mut Builder, name: &str, text: &TextConfig) -> Result<Layer, Error> {
        let (hidden, keys) = (text.hidden, text.kv_heads * text.head_size());
        Ok(Layer {
            norm1: Norm::build(builder, &format!("{name}.input_layernorm"), hidden, text.epsilon)?,
            q: builder.linear(&format!("{name}.self_attn.q_proj"), hidden, hidden, true)?,
            k: builder.linear(&format!("{name}.self_attn.k_proj"), hidden, keys, true)?,
            v: builder.linear(&format!("{name}.self_attn.v_proj"), hidden, keys, true)?,
            o: builder.linear(&format!("{name}.self_attn.o_proj"), hidden, hidden, false)?,
            norm2: Norm::build(builder, &format!("{name}.post_attention_layernorm"), hidden, text.epsilon)?,
            mlp: Swiglu::build(builder, &format!("{name}.mlp"), hidden, text.intermediate, false)?,
        })
    }

    /// y [tokens, hidden] = this of x [tokens, hidden]; without `y` only what the backward pass needs is made.
    pub fn forward(
        &self,
        device: &mut dyn Device,
        text: &TextConfig,
        x: Buffer,
        y: Option<Buffer>,
        saved: &LayerActivations,
        workspace: &DecoderWorkspace,
        linear: &LinearWorkspace,
        sequence: &Sequence,
    ) {
        let saved = saved.of(text, sequence.tokens);
        self.project(device, text, x, &saved, workspace, linear, sequence);
        device.attend(&attention(text, &saved, sequence), saved.attended, saved.lse);
        self.finish(device, text, x, y, &saved, workspace, linear, sequence.tokens);
    }

    /// The same, forward only and in place: x [tokens, hidden] of new tokens, which see what the cache has of their rows and are added to it.
    pub fn forward_with_kv_cache(
        &self,
        device: &mut dyn Device,
        text: &TextConfig,
        x: Buffer,
        saved: &LayerActivations,
        workspace: &DecoderWorkspace,
        linear: &LinearWorkspace,
        kv_cache: &LayerKvCache,
        step: &Step,
    ) {
        let (tokens, keys) = (step.sequence.tokens, text.kv_heads * text.head_size());
        let saved = saved.of(text, tokens);
        self.project(device, text, x, &saved, workspace, linear, &step.sequence);
        device.scatter(saved.k, step.places, kv_cache.keys, tokens, keys);
        device.scatter(saved.v, step.places, kv_cache.values, tokens, keys);
        let attention = Attention {
            key: heads(kv_cache.keys, text.kv_heads, text),
            value: heads(kv_cache.values, text.kv_heads, text),
            ..attention(text, &saved, &step.sequence)
        };
        device.attend_kv_cache(&attention, step.firsts, step.lengths, saved.attended);
        self.finish(device, text, x, Some(x), &saved, workspace, linear, tokens);
    }

    /// Queries, keys and values of x, turned to their positions.
    fn project(
        &self,
        device: &mut dyn Device,
        text: &TextConfig,
        x: Buffer,
        saved: &LayerActivations,
        workspace: &DecoderWorkspace,
        linear: &LinearWorkspace,
        sequence: &Sequence,
    ) {
        let tokens = sequence.tokens;
        let normed = workspace.normed.first(tokens * text.hidden);
        self.norm1.forward(device, x, normed, tokens);
        self.q.forward(device, normed, saved.q, tokens, linear, Write::Set);
        self.k.forward(device, normed, saved.k, tokens, linear, Write::Set);
        self.v.forward(device, normed, saved.v, tokens, linear, Write::Set);
        device.rotate(heads(saved.q, text.heads, text), text.head_size(), sequence.cosines, sequence.sines, tokens);
        device.rotate(heads(saved.k, text.kv_heads, text), text.head_size(), sequence.cosines, sequence.sines, tokens);
    }

    /// From what attention gave to y, which may be x.
    fn finish(
        &self,
        device: &mut dyn Device,
        text: &TextConfig,
        x: Buffer,
        y: Option<Buffer>,
        saved: &LayerActivations,
        workspace: &DecoderWorkspace,
        linear: &LinearWorkspace,
        tokens: usize,
    ) {
        let normed = workspace.normed.first(tokens * text.hidden);
        device.copy(x, saved.middle);
        self.o.forward(device, saved.attended, saved.middle, tokens, linear, Write::Add);
        self.norm2.forward(device, saved.middle, normed, tokens);
        match y {
            Some(y) => {
                device.copy(saved.middle, y);
                self.mlp.forward(device, normed, y, tokens, &swiglu_workspace(saved, workspace), linear);
            }
            None => self.mlp.forward_inner(device, normed, tokens, &swiglu_workspace(saved, workspace), linear),
        }
    }

    /// Turns the gradient of y in `dx` [tokens, hidden] into that of x, if anybody wants that.
    pub fn backward(
        &self,
        device: &mut dyn Device,
        text: &TextConfig,
        x: Buffer,
        dx: Buffer,
        wants_dx: bool,
        saved: &LayerActivations,
        workspace: &DecoderWorkspace,
        linear: &LinearWorkspace,
        sequence: &Sequence,
    ) {
        let (tokens, saved) = (sequence.tokens, saved.of(text, sequence.tokens));
        let part = |buffer: Buffer, width: usize| buffer.first(tokens * width);
        let (normed, dnormed) = (part(workspace.normed, text.hidden), part(workspace.normed_gradient, text.hidden));
        // The MLP: its gradient joins the one that goes past it.
        self.norm2.forward(device, saved.middle, normed, tokens);
        self.mlp.backward(device, normed, dx, dnormed, tokens, &swiglu_workspace(&saved, workspace), linear);
        self.norm2.backward(device, dnormed, saved.middle, dx, tokens, Write::Add);
        // Attention.
        let dattended = part(workspace.attended_gradient, text.hidden);
        self.o.backward(device, saved.attended, dx, Some((dattended, Write::Set)), tokens, linear);
        let keys = text.kv_heads * text.head_size();
        let (dq, dk, dv) = (
            part(workspace.q_gradient, text.hidden),
            part(workspace.k_gradient, keys),
            part(workspace.v_gradient, keys),
        );
        let [q_heads, k_heads, v_heads] =
            [heads(dq, text.heads, text), heads(dk, text.kv_heads, text), heads(dv, text.kv_heads, text)];
        device.attend_backward(
            &attention(text, &saved, sequence),
            saved.attended,
            saved.lse,
            dattended,
            q_heads,
            k_heads,
            v_heads,
        );
        device.rotate_backward(q_heads, text.head_size(), sequence.cosines, sequence.sines, tokens);
        device.rotate_backward(k_heads, text.head_size(), sequence.cosines, sequence.sines, tokens);
        self.norm1.forward(device, x, normed, tokens);
        let back = |write| wants_dx.then_some((dnormed, write));
        self.q.backward(device, normed, dq, back(Write::Set), tokens, linear);
        self.k.backward(device, normed, dk, back(Write::Add), tokens, linear);
        self.v.backward(device, normed, dv, back(Write::Add), tokens, linear);
        if wants_dx {
            self.norm1.backward(device, dnormed, x, dx, tokens, Write::Add);
        }
    }
}

impl LayerActivations {
    /// The part of it that a batch of so many tokens uses.
    fn of(&self, text: &TextConfig, tokens: usize) -> LayerActivations {
        let keys = text.kv_heads * text.head_size();
        LayerActivations {
            q: self.q.first(tokens * text.hidden),
            k: self.k.first(tokens * keys),
            v: self.v.first(tokens * keys),
            attended: self.attended.first(tokens * text.hidden),
            // Without a backward pass there are none.
            lse: self.lse.first((tokens * text.heads).min(self.lse.length())),
            middle: self.middle.first(tokens * text.hidden),
            gate: self.gate.first(tokens * text.intermediate),
            up: self.up.first(tokens * text.intermediate),
        }
    }
}

fn heads(buffer: Buffer, heads: usize, text: &TextConfig) -> Heads {
    Heads { buffer, offset: 0, stride: heads * text.head_size(), heads }
}

fn attention(text: &TextConfig, saved: &LayerActivations, sequence: &Sequence) -> Attention {
    Attention {
        query: heads(saved.q, text.heads, text),
        key: heads(saved.k, text.kv_heads, text),
        value: heads(saved.v, text.kv_heads, text),
        head_size: text.head_size(),
        cu_seqlens: sequence.cu_seqlens,
        segments: sequence.rows,
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
    }
}
