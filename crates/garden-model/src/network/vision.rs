//! The vision tower: patches in window order through blocks of attention and MLP, and the merger that turns them into tokens.

use garden_device::{Attention, Buffer, Device, Dtype, Heads, OutOfMemory, Plus, Purpose, Weight, Write};

use crate::checkpoint::layout::Width;
use crate::error::Error;
use crate::network::activations::{GradientCheckpointing, Saved, activations};
use crate::network::decoder::Norm;
use crate::network::linear::Linear;
use crate::network::mode::Mode;
use crate::network::parameters::Builder;
use crate::network::pass::Pass;
use crate::network::patches::Patches;
use crate::network::swiglu::{Swiglu, SwigluWorkspace};
use garden_input::VisionConfig;

/// Epsilon of the vision tower's norms; set in the model's code, not in its configuration.
const VISION_EPSILON: f32 = 1e-6;

/// The vision tower's weights.
#[derive(Clone, Debug)]
pub(crate) struct Vision {
    /// The patch embedding `[hidden, values per patch]`.
    patch: Weight,
    patch_gradient: Option<Weight>,
    pub blocks: Vec<Block>,
    merger: Merger,
    is_trained: bool,
}

/// One block: x += proj(attention(qkv(norm1 x))); x += mlp(norm2 x).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    norm1: Norm,
    qkv: Linear,
    proj: Linear,
    norm2: Norm,
    mlp: Swiglu,
    sees_all: bool,
}

/// ln_q, then `merged` adjacent patches through linear, GELU, linear.
#[derive(Clone, Copy, Debug)]
struct Merger {
    norm: Norm,
    first: Linear,
    second: Linear,
}

/// Activations of a block that its backward pass needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockActivations {
    /// `[patches, 3 hidden]`, queries and keys after rotary embedding.
    qkv: Buffer,
    attended: Buffer,
    /// Log-sum-exp, f32 `[patches, heads]`.
    lse: Buffer,
    middle: Buffer,
    /// `[patches, inner]`.
    gate: Buffer,
    up: Buffer,
    /// Low-rank products of adapters `[adapters, patches, rank]`.
    kept: Option<Buffer>,
    /// Whether the whole block was computed, or recomputed only as far as its backward pass needs.
    is_whole: bool,
}

/// Buffers shared by all blocks, in turn, and the merger's.
#[derive(Clone, Debug)]
pub(crate) struct VisionWorkspace {
    /// The input of each block, and the output of the last `[patches, hidden]`; without a backward pass, two in turn.
    inputs: Vec<Buffer>,
    saved: Saved<BlockActivations>,
    /// Patch embeddings before reordering by window `[patches, hidden]`.
    embedded: Buffer,
    normed: Buffer,
    normed_gradient: Buffer,
    attended_gradient: Buffer,
    /// `[patches, 3 hidden]`.
    qkv_gradient: Buffer,
    /// `[patches, inner]`.
    mixed: Buffer,
    mixed_gradient: Buffer,
    gate_gradient: Buffer,
    /// Gradient of x `[patches, hidden]`.
    dx: Buffer,
    /// The merger's first linear, and GELU of it `[tokens, merged * hidden]`.
    merged: Buffer,
    active: Buffer,
    /// Merged tokens in window order, then their gradient `[tokens, out]`.
    out: Buffer,
}

/// Context of a pass through the tower.
#[derive(Clone, Copy)]
pub(crate) struct VisionContext<'a> {
    pub vision: &'a VisionConfig,
    pub workspace: &'a VisionWorkspace,
    pub images: &'a Patches,
}

impl VisionContext<'_> {
    /// The part of a buffer `[patches, width]` that the images use.
    fn part(&self, buffer: Buffer, width: usize) -> Buffer {
        buffer.first(self.images.patches * width)
    }

    /// The part of a buffer `[patches, hidden]` that the images use.
    fn hidden(&self, buffer: Buffer) -> Buffer {
        self.part(buffer, self.vision.hidden)
    }
}

impl BlockActivations {
    fn build(
        device: &mut dyn Device,
        purpose: Purpose,
        label: &str,
        vision: &VisionConfig,
        patches: usize,
        kept: usize,
    ) -> Result<BlockActivations, OutOfMemory> {
        let inner = Width::inner(device.profile(), vision.intermediate).padded;
        let lse = format!("{label} log-sum-exp");
        let lse = device.buffer(purpose, &lse, Dtype::F32, patches.saturating_mul(vision.heads))?;
        let mut make =
            |name: &str, width: usize| activations(device, purpose, &format!("{label} {name}"), patches, width);
        Ok(BlockActivations {
            qkv: make("queries, keys, values", 3 * vision.hidden)?,
            attended: make("attended", vision.hidden)?,
            lse,
            middle: make("middle", vision.hidden)?,
            gate: make("gate", inner)?,
            up: make("up", inner)?,
            kept: if kept > 0 { Some(make("adapters", kept)?) } else { None },
            is_whole: true,
        })
    }

    fn of(&self, context: VisionContext) -> BlockActivations {
        BlockActivations {
            qkv: context.part(self.qkv, 3 * context.vision.hidden),
            attended: context.hidden(self.attended),
            lse: context.part(self.lse, context.vision.heads),
            middle: context.hidden(self.middle),
            // The MLP takes the parts it needs.
            gate: self.gate,
            up: self.up,
            kept: self.kept,
            is_whole: self.is_whole,
        }
    }
}

impl VisionWorkspace {
    /// Allocates buffers for `patches` patches, with `kept` values per patch for adapters if there is a backward pass.
    pub fn build(
        device: &mut dyn Device,
        vision: &VisionConfig,
        patches: usize,
        kept: usize,
        mode: Mode,
        checkpointing: GradientCheckpointing,
    ) -> Result<VisionWorkspace, OutOfMemory> {
        // A frozen tower has no backward pass, and saves nothing.
        let (inputs_purpose, buffers) = match mode {
            Mode::Inference => (Purpose::Workspace, 2),
            Mode::Training => (Purpose::Activations, vision.depth + 1),
        };
        let label = |index: usize| format!("vision block {index}");
        let inputs = (0..buffers).map(|index| {
            let label = format!("{} input", label(index));
            activations(device, inputs_purpose, &label, patches, vision.hidden)
        });
        let inputs = inputs.collect::<Result<Vec<Buffer>, OutOfMemory>>()?;
        let kept = if mode == Mode::Training { kept } else { 0 };
        let mut save = |purpose, index| BlockActivations::build(device, purpose, &label(index), vision, patches, kept);
        let saved = match mode {
            Mode::Inference => Saved::OneLayer(save(Purpose::Workspace, 0)?),
            Mode::Training => Saved::build(checkpointing, vision.depth, save)?,
        };
        let (back, inner) = (mode.back(patches), Width::inner(device.profile(), vision.intermediate).padded);
        let mut make = |name: &str, rows: usize, width: usize| {
            activations(device, Purpose::Workspace, &format!("vision {name}"), rows, width)
        };
        Ok(VisionWorkspace {
            inputs,
            saved,
            embedded: make("embedded", patches, vision.hidden)?,
            normed: make("normed", patches, vision.hidden)?,
            normed_gradient: make("normed gradient", back, vision.hidden)?,
            attended_gradient: make("attended gradient", back, vision.hidden)?,
            qkv_gradient: make("queries, keys, values gradient", back, 3 * vision.hidden)?,
            mixed: make("mixed", patches, inner)?,
            mixed_gradient: make("mixed gradient", back, inner)?,
            gate_gradient: make("gate gradient", back, inner)?,
            dx: make("gradient", back, vision.hidden)?,
            // Merged tokens have as many values as their patches together.
            merged: make("merged", patches, vision.hidden)?,
            active: make("merged, active", patches, vision.hidden)?,
            out: make("tokens", patches / vision.merged(), vision.out)?,
        })
    }
}

impl Vision {
    pub fn build(builder: &mut Builder, vision: &VisionConfig) -> Result<Vision, Error> {
        let (name, hidden) = ("model.visual", vision.hidden);
        let before = builder.trained.len();
        let (patch, patch_gradient) =
            builder.weight(&format!("{name}.patch_embed.proj.weight"), hidden, vision.patch_values())?;
        let blocks =
            (0..vision.depth).map(|index| Block::build(builder, &format!("{name}.blocks.{index}"), vision, index));
        let blocks = blocks.collect::<Result<Vec<Block>, Error>>()?;
        let (wide, out) = (Width::exact(vision.merged() * hidden), Width::exact(vision.out));
        let merger = Merger {
            norm: Norm::build(builder, &format!("{name}.merger.ln_q"), hidden, VISION_EPSILON)?,
            first: builder.linear(&format!("{name}.merger.mlp.0"), wide, wide, true)?,
            second: builder.linear(&format!("{name}.merger.mlp.2"), wide, out, true)?,
        };
        let is_trained = builder.trained.len() > before;
        Ok(Vision { patch, patch_gradient, blocks, merger, is_trained })
    }

    /// Whether gradients must reach the vision tower.
    pub fn is_trained(&self) -> bool {
        self.is_trained
    }

    /// The mode that it has buffers for.
    pub fn mode(&self) -> Mode {
        if self.is_trained { Mode::Training } else { Mode::Inference }
    }

    /// Turns pixels into tokens, and scatters them into x `[tokens, out]`.
    pub fn forward(&self, pass: &mut Pass, context: VisionContext, x: Buffer) {
        let VisionContext { vision, workspace, images } = context;
        let patches = images.patches;
        let embedded = context.hidden(workspace.embedded);
        pass.device.matmul(images.pixels, &self.patch, embedded, patches, 1.0, Write::Set);
        let at = |index: usize| context.hidden(workspace.inputs[index % workspace.inputs.len()]);
        pass.device.gather(embedded, images.order, at(0), patches, vision.hidden);
        for (index, block) in self.blocks.iter().enumerate() {
            block.forward(pass, context, at(index), Some(at(index + 1)), workspace.saved.of(index));
        }
        self.merge(pass, context, at(vision.depth));
        let tokens = patches / vision.merged();
        let out = workspace.out.first(tokens * vision.out);
        self.merger.second.forward(pass, context.hidden(workspace.active), out, tokens, Plus::Nothing, None);
        pass.device.scatter(out, images.places, x, tokens, vision.out);
    }

    /// The merger up to its second linear.
    fn merge(&self, pass: &mut Pass, context: VisionContext, x: Buffer) {
        let (workspace, patches) = (context.workspace, context.images.patches);
        let [normed, merged] = [workspace.normed, workspace.merged].map(|buffer| context.hidden(buffer));
        self.merger.norm.forward(pass.device, x, normed, patches);
        // `[patches, hidden]` is also `[tokens, merged * hidden]`: patches of a token are adjacent.
        self.merger.first.forward(pass, normed, merged, patches / context.vision.merged(), Plus::Nothing, None);
        pass.device.gelu(merged, context.hidden(workspace.active));
    }

    /// Computes gradients from the gradient of all tokens, `dy` `[tokens, out]`.
    pub fn backward(&self, pass: &mut Pass, context: VisionContext, dy: Buffer) {
        let VisionContext { vision, workspace, images } = context;
        let (patches, tokens) = (images.patches, images.patches / vision.merged());
        let out = workspace.out.first(tokens * vision.out);
        pass.device.gather(dy, images.places, out, tokens, vision.out);
        let at = |index: usize| context.hidden(workspace.inputs[index]);
        let (dx, dnormed) = (context.hidden(workspace.dx), context.hidden(workspace.normed_gradient));
        let x = at(vision.depth);
        self.merge(pass, context, x);
        let dactive = context.hidden(workspace.attended_gradient);
        let active = context.hidden(workspace.active);
        self.merger.second.backward(pass, active, out, Some((dactive, Write::Set)), tokens, None);
        pass.device.gelu_backward(dactive, context.hidden(workspace.merged), dactive);
        let normed = context.hidden(workspace.normed);
        self.merger.first.backward(pass, normed, dactive, Some((dnormed, Write::Set)), tokens, None);
        self.merger.norm.backward(pass.device, dnormed, x, dx, patches, Write::Set);
        for (index, block) in self.blocks.iter().enumerate().rev() {
            let mut saved = *workspace.saved.of(index);
            if workspace.saved.is_gone(index, self.blocks.len()) {
                block.forward(pass, context, at(index), None, &saved);
                saved.is_whole = false;
            }
            block.backward(pass, context, at(index), dx, &saved);
        }
        if let Some(gradient) = &self.patch_gradient {
            let embedded = context.hidden(workspace.embedded);
            pass.device.scatter(dx, images.order, embedded, patches, vision.hidden);
            pass.device.weight_gradient(embedded, images.pixels, gradient, patches, 1.0);
        }
    }
}

impl Block {
    fn build(builder: &mut Builder, name: &str, vision: &VisionConfig, index: usize) -> Result<Block, Error> {
        let (hidden, three) = (Width::exact(vision.hidden), Width::exact(3 * vision.hidden));
        builder.adapters_of_layer = 0;
        Ok(Block {
            norm1: Norm::build(builder, &format!("{name}.norm1"), vision.hidden, VISION_EPSILON)?,
            qkv: builder.linear(&format!("{name}.attn.qkv"), hidden, three, true)?,
            proj: builder.linear(&format!("{name}.attn.proj"), hidden, hidden, true)?,
            norm2: Norm::build(builder, &format!("{name}.norm2"), vision.hidden, VISION_EPSILON)?,
            mlp: Swiglu::build(builder, &format!("{name}.mlp"), vision.hidden, vision.intermediate, true)?,
            sees_all: vision.full_blocks.contains(&index),
        })
    }

    /// y `[patches, hidden]` from x `[patches, hidden]`; without `y` only the backward pass's needs are computed.
    fn forward(&self, pass: &mut Pass, context: VisionContext, x: Buffer, y: Option<Buffer>, saved: &BlockActivations) {
        let VisionContext { vision, workspace, images } = context;
        let (patches, saved) = (images.patches, saved.of(context));
        let normed = context.hidden(workspace.normed);
        self.norm1.forward(pass.device, x, normed, patches);
        self.qkv.forward(pass, normed, saved.qkv, patches, Plus::Nothing, saved.kept);
        let turned = queries_and_keys(saved.qkv, vision);
        pass.device.rotate(turned, vision.head_size(), images.cosines, images.sines, patches);
        pass.device.attend(&self.attention(context, saved.qkv), saved.attended, saved.lse);
        self.proj.forward(pass, saved.attended, saved.middle, patches, Plus::Other(x), saved.kept);
        self.norm2.forward(pass.device, saved.middle, normed, patches);
        match y {
            Some(y) => self.mlp.forward(pass, normed, saved.middle, y, patches, &swiglu_workspace(&saved, workspace)),
            None => self.mlp.forward_inner(pass, normed, patches, &swiglu_workspace(&saved, workspace)),
        }
    }

    /// Turns the gradient of y in `dx` `[patches, hidden]` into that of x.
    fn backward(&self, pass: &mut Pass, context: VisionContext, x: Buffer, dx: Buffer, saved: &BlockActivations) {
        let VisionContext { vision, workspace, images } = context;
        let (patches, saved) = (images.patches, saved.of(context));
        let (normed, dnormed) = (context.hidden(workspace.normed), context.hidden(workspace.normed_gradient));
        self.norm2.forward(pass.device, saved.middle, normed, patches);
        self.mlp.backward(pass, normed, dx, dnormed, patches, &swiglu_workspace(&saved, workspace));
        self.norm2.backward(pass.device, dnormed, saved.middle, dx, patches, Write::Add);
        let dattended = context.hidden(workspace.attended_gradient);
        self.proj.backward(pass, saved.attended, dx, Some((dattended, Write::Set)), patches, saved.kept);
        let dqkv = context.part(workspace.qkv_gradient, 3 * vision.hidden);
        let [dq, dk, dv] = [0, 1, 2].map(|which| heads(dqkv, which, vision));
        let attention = self.attention(context, saved.qkv);
        pass.device.attend_backward(&attention, saved.attended, saved.lse, dattended, dq, dk, dv);
        let turned = queries_and_keys(dqkv, vision);
        pass.device.rotate_backward(turned, vision.head_size(), images.cosines, images.sines, patches);
        self.norm1.forward(pass.device, x, normed, patches);
        self.qkv.backward(pass, normed, dqkv, Some((dnormed, Write::Set)), patches, saved.kept);
        self.norm1.backward(pass.device, dnormed, x, dx, patches, Write::Add);
    }

    fn attention(&self, context: VisionContext, qkv: Buffer) -> Attention {
        let VisionContext { vision, images, .. } = context;
        let [query, key, value] = [0, 1, 2].map(|which| heads(qkv, which, vision));
        let (cu_seqlens, segments, longest) = match self.sees_all {
            true => (images.cu_image_seqlens, images.images, images.longest_image),
            false => (images.cu_window_seqlens, images.windows, images.longest_window),
        };
        let head_size = vision.head_size();
        Attention { query, key, value, head_size, cu_seqlens, segments, longest, is_causal: false }
    }
}

/// Queries, keys or values in the fused qkv.
fn heads(qkv: Buffer, which: usize, vision: &VisionConfig) -> Heads {
    Heads { buffer: qkv, offset: which * vision.hidden, stride: 3 * vision.hidden, heads: vision.heads }
}

/// Queries and keys together, which get the same rotary embedding.
fn queries_and_keys(qkv: Buffer, vision: &VisionConfig) -> Heads {
    Heads { heads: 2 * vision.heads, ..heads(qkv, 0, vision) }
}

fn swiglu_workspace(saved: &BlockActivations, workspace: &VisionWorkspace) -> SwigluWorkspace {
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
