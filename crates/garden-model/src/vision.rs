//! The vision tower: patches in window order through blocks of attention and MLP, and the merger that makes tokens of them.

use garden_device::{Attention, Buffer, Device, Dtype, Heads, OutOfMemory, Purpose, Weight, Write};

use crate::config::{VISION_EPSILON, VisionConfig};
use crate::decoder::Norm;
use crate::error::Error;
use crate::linear::{Linear, LinearWorkspace};
use crate::mode::Mode;
use crate::model::GradientCheckpointing;
use crate::parameters::Builder;
use crate::patches::Patches;
use crate::swiglu::{Swiglu, SwigluWorkspace};

/// All of it.
#[derive(Clone, Debug)]
pub(crate) struct Vision {
    /// The patches' linear [hidden, values of a patch].
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

/// ln_q, then `merged` patches side by side through linear, GELU, linear.
#[derive(Clone, Copy, Debug)]
struct Merger {
    norm: Norm,
    first: Linear,
    second: Linear,
}

/// What a block's backward pass needs of its forward pass.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockActivations {
    /// [patches, 3 hidden], queries and keys turned.
    qkv: Buffer,
    attended: Buffer,
    /// [patches, heads].
    lse: Buffer,
    middle: Buffer,
    /// [patches, inner].
    gate: Buffer,
    up: Buffer,
}

/// Room that blocks share, and the merger's.
#[derive(Clone, Debug)]
pub(crate) struct VisionWorkspace {
    /// What each block gets, and what the last one gives [patches, hidden]; without a backward pass two that take turns.
    inputs: Vec<Buffer>,
    /// One for each block, or one for all that is filled again.
    saved: Vec<BlockActivations>,
    /// Patches before they are put in window order [patches, hidden].
    embedded: Buffer,
    normed: Buffer,
    normed_gradient: Buffer,
    attended_gradient: Buffer,
    /// [patches, 3 hidden].
    qkv_gradient: Buffer,
    /// [patches, inner].
    mixed: Buffer,
    mixed_gradient: Buffer,
    gate_gradient: Buffer,
    /// Gradient of x [patches, hidden].
    dx: Buffer,
    /// The merger's first linear and GELU of it [tokens, merged * hidden].
    merged: Buffer,
    active: Buffer,
    /// Merged tokens in window order, then their gradient [tokens, out].
    out: Buffer,
}

impl BlockActivations {
    pub fn build(
        device: &mut dyn Device,
        purpose: Purpose,
        label: &str,
        vision: &VisionConfig,
        patches: usize,
    ) -> Result<BlockActivations, OutOfMemory> {
        let mut make =
            |name: &str, width: usize| device.buffer(purpose, &format!("{label} {name}"), Dtype::F32, patches * width);
        Ok(BlockActivations {
            qkv: make("queries, keys, values", 3 * vision.hidden)?,
            attended: make("attended", vision.hidden)?,
            lse: make("log-sum-exp", vision.heads)?,
            middle: make("middle", vision.hidden)?,
            gate: make("gate", vision.intermediate)?,
            up: make("up", vision.intermediate)?,
        })
    }

    fn of(&self, vision: &VisionConfig, patches: usize) -> BlockActivations {
        BlockActivations {
            qkv: self.qkv.first(patches * 3 * vision.hidden),
            attended: self.attended.first(patches * vision.hidden),
            lse: self.lse.first(patches * vision.heads),
            middle: self.middle.first(patches * vision.hidden),
            gate: self.gate.first(patches * vision.intermediate),
            up: self.up.first(patches * vision.intermediate),
        }
    }
}

impl VisionWorkspace {
    pub fn build(
        device: &mut dyn Device,
        vision: &VisionConfig,
        patches: usize,
        mode: Mode,
        recompute: GradientCheckpointing,
    ) -> Result<VisionWorkspace, OutOfMemory> {
        // A tower that is not trained has no backward pass, and nothing is kept.
        let (purpose, inputs_purpose, blocks, buffers) = match (mode, recompute) {
            (Mode::Inference, _) => (Purpose::Workspace, Purpose::Workspace, 1, 2),
            (Mode::Training, GradientCheckpointing::Off) => {
                (Purpose::Activations, Purpose::Activations, vision.depth, vision.depth + 1)
            }
            (Mode::Training, GradientCheckpointing::PerLayer) => {
                (Purpose::RecomputedActivations, Purpose::Activations, 1, vision.depth + 1)
            }
        };
        let label = |index: usize| format!("vision block {index}");
        let inputs = (0..buffers).map(|index| {
            let label = format!("{} input", label(index));
            device.buffer(inputs_purpose, &label, Dtype::F32, patches * vision.hidden)
        });
        let inputs = inputs.collect::<Result<Vec<Buffer>, OutOfMemory>>()?;
        let saved = (0..blocks).map(|index| BlockActivations::build(device, purpose, &label(index), vision, patches));
        let saved = saved.collect::<Result<Vec<BlockActivations>, OutOfMemory>>()?;
        let back = mode.back(patches);
        let mut make = |name: &str, rows: usize, width: usize| {
            device.buffer(Purpose::Workspace, &format!("vision {name}"), Dtype::F32, rows * width)
        };
        Ok(VisionWorkspace {
            inputs,
            saved,
            embedded: make("embedded", patches, vision.hidden)?,
            normed: make("normed", patches, vision.hidden)?,
            normed_gradient: make("normed gradient", back, vision.hidden)?,
            attended_gradient: make("attended gradient", back, vision.hidden)?,
            qkv_gradient: make("queries, keys, values gradient", back, 3 * vision.hidden)?,
            mixed: make("mixed", patches, vision.intermediate)?,
            mixed_gradient: make("mixed gradient", back, vision.intermediate)?,
            gate_gradient: make("gate gradient", back, vision.intermediate)?,
            dx: make("gradient", back, vision.hidden)?,
            // Merged tokens side by side have as many values as their patches.
            merged: make("merged", patches, vision.hidden)?,
            active: make("merged, active", patches, vision.hidden)?,
            out: device.buffer(
                Purpose::Workspace,
                "vision tokens",
                Dtype::F32,
                patches / vision.merged() * vision.out,
            )?,
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
        let wide = vision.merged() * hidden;
        let merger = Merger {
            norm: Norm::build(builder, &format!("{name}.merger.ln_q"), hidden, VISION_EPSILON)?,
            first: builder.linear(&format!("{name}.merger.mlp.0"), wide, wide, true)?,
            second: builder.linear(&format!("{name}.merger.mlp.2"), wide, vision.out, true)?,
        };
        let is_trained = builder.trained.len() > before;
        Ok(Vision { patch, patch_gradient, blocks, merger, is_trained })
    }

    /// Whether gradients have to come down here at all.
    pub fn is_trained(&self) -> bool {
        self.is_trained
    }

    /// The passes that it has room for.
    pub fn passes(&self) -> Mode {
        if self.is_trained { Mode::Training } else { Mode::Inference }
    }

    /// Pixels to tokens, which take their places in x [tokens, out].
    pub fn forward(
        &self,
        device: &mut dyn Device,
        vision: &VisionConfig,
        x: Buffer,
        workspace: &VisionWorkspace,
        linear: &LinearWorkspace,
        given: &Patches,
    ) {
        let patches = given.patches;
        let part = |buffer: Buffer, width: usize| buffer.first(patches * width);
        let embedded = part(workspace.embedded, vision.hidden);
        device.matmul(given.pixels, &self.patch, embedded, patches, 1.0, Write::Set);
        let (inputs, saved) = (&workspace.inputs, &workspace.saved);
        let at = |index: usize| inputs[index % inputs.len()];
        device.gather(embedded, given.order, part(inputs[0], vision.hidden), patches, vision.hidden);
        for (index, block) in self.blocks.iter().enumerate() {
            let (x, y) = (part(at(index), vision.hidden), part(at(index + 1), vision.hidden));
            block.forward(device, vision, x, Some(y), &saved[index.min(saved.len() - 1)], workspace, linear, given);
        }
        self.merge(device, vision, part(at(vision.depth), vision.hidden), workspace, linear, patches);
        let tokens = patches / vision.merged();
        self.merger.second.forward(
            device,
            part(workspace.active, vision.hidden),
            workspace.out.first(tokens * vision.out),
            tokens,
            linear,
            Write::Set,
        );
        device.scatter(workspace.out.first(tokens * vision.out), given.places, x, tokens, vision.out);
    }

    /// The merger up to its second linear.
    fn merge(
        &self,
        device: &mut dyn Device,
        vision: &VisionConfig,
        x: Buffer,
        workspace: &VisionWorkspace,
        linear: &LinearWorkspace,
        patches: usize,
    ) {
        let part = |buffer: Buffer| buffer.first(patches * vision.hidden);
        self.merger.norm.forward(device, x, part(workspace.normed), patches);
        // [patches, hidden] is [tokens, merged * hidden]: patches of a token lie side by side.
        self.merger.first.forward(
            device,
            part(workspace.normed),
            part(workspace.merged),
            patches / vision.merged(),
            linear,
            Write::Set,
        );
        device.gelu(part(workspace.merged), part(workspace.active));
    }

    /// Gradients from that of all tokens, `dy` [tokens, out].
    pub fn backward(
        &self,
        device: &mut dyn Device,
        vision: &VisionConfig,
        dy: Buffer,
        workspace: &VisionWorkspace,
        linear: &LinearWorkspace,
        given: &Patches,
    ) {
        let (patches, inputs, saved) = (given.patches, &workspace.inputs, &workspace.saved);
        let tokens = patches / vision.merged();
        device.gather(dy, given.places, workspace.out.first(tokens * vision.out), tokens, vision.out);
        let part = |buffer: Buffer, width: usize| buffer.first(patches * width);
        let (dx, dnormed) = (part(workspace.dx, vision.hidden), part(workspace.normed_gradient, vision.hidden));
        let x = part(inputs[vision.depth], vision.hidden);
        self.merge(device, vision, x, workspace, linear, patches);
        let dactive = part(workspace.attended_gradient, vision.hidden);
        self.merger.second.backward(
            device,
            part(workspace.active, vision.hidden),
            workspace.out.first(tokens * vision.out),
            Some((dactive, Write::Set)),
            tokens,
            linear,
        );
        device.gelu_backward(dactive, part(workspace.merged, vision.hidden), dactive);
        self.merger.first.backward(
            device,
            part(workspace.normed, vision.hidden),
            dactive,
            Some((dnormed, Write::Set)),
            tokens,
            linear,
        );
        self.merger.norm.backward(device, dnormed, x, dx, patches, Write::Set);
        for (index, block) in self.blocks.iter().enumerate().rev() {
            let x = part(inputs[index], vision.hidden);
            let saved_here = &saved[index.min(saved.len() - 1)];
            if saved.len() == 1 && self.blocks.len() > 1 {
                block.forward(device, vision, x, None, saved_here, workspace, linear, given);
            }
            block.backward(device, vision, x, dx, saved_here, workspace, linear, given);
        }
        if let Some(gradient) = &self.patch_gradient {
            let embedded = part(workspace.embedded, vision.hidden);
            device.scatter(dx, given.order, embedded, patches, vision.hidden);
            device.weight_gradient(embedded, given.pixels, gradient, patches, 1.0);
        }
    }
}

impl Block {
    fn build(builder: &mut Builder, name: &str, vision: &VisionConfig, index: usize) -> Result<Block, Error> {
        let hidden = vision.hidden;
        Ok(Block {
            norm1: Norm::build(builder, &format!("{name}.norm1"), hidden, VISION_EPSILON)?,
            qkv: builder.linear(&format!("{name}.attn.qkv"), hidden, 3 * hidden, true)?,
            proj: builder.linear(&format!("{name}.attn.proj"), hidden, hidden, true)?,
            norm2: Norm::build(builder, &format!("{name}.norm2"), hidden, VISION_EPSILON)?,
            mlp: Swiglu::build(builder, &format!("{name}.mlp"), hidden, vision.intermediate, true)?,
            sees_all: vision.full_blocks.contains(&index),
        })
    }

    /// y [patches, hidden] = this of x [patches, hidden]; without `y` only what the backward pass needs is made.
    fn forward(
        &self,
        device: &mut dyn Device,
        vision: &VisionConfig,
        x: Buffer,
        y: Option<Buffer>,
        saved: &BlockActivations,
        workspace: &VisionWorkspace,
        linear: &LinearWorkspace,
        given: &Patches,
    ) {
        let (patches, saved) = (given.patches, saved.of(vision, given.patches));
        let normed = workspace.normed.first(patches * vision.hidden);
        self.norm1.forward(device, x, normed, patches);
        self.qkv.forward(device, normed, saved.qkv, patches, linear, Write::Set);
        for which in 0..2 {
            device.rotate(heads(saved.qkv, which, vision), vision.head_size(), given.cosines, given.sines, patches);
        }
        device.attend(&self.attention(saved.qkv, vision, given), saved.attended, saved.lse);
        device.copy(x, saved.middle);
        self.proj.forward(device, saved.attended, saved.middle, patches, linear, Write::Add);
        self.norm2.forward(device, saved.middle, normed, patches);
        match y {
            Some(y) => {
                device.copy(saved.middle, y);
                self.mlp.forward(device, normed, y, patches, &swiglu_workspace(&saved, workspace), linear);
            }
            None => self.mlp.forward_inner(device, normed, patches, &swiglu_workspace(&saved, workspace), linear),
        }
    }

    /// Turns the gradient of y in `dx` [patches, hidden] into that of x.
    fn backward(
        &self,
        device: &mut dyn Device,
        vision: &VisionConfig,
        x: Buffer,
        dx: Buffer,
        saved: &BlockActivations,
        workspace: &VisionWorkspace,
        linear: &LinearWorkspace,
        given: &Patches,
    ) {
        let (patches, saved) = (given.patches, saved.of(vision, given.patches));
        let part = |buffer: Buffer, width: usize| buffer.first(patches * width);
        let (normed, dnormed) = (part(workspace.normed, vision.hidden), part(workspace.normed_gradient, vision.hidden));
        self.norm2.forward(device, saved.middle, normed, patches);
        self.mlp.backward(device, normed, dx, dnormed, patches, &swiglu_workspace(&saved, workspace), linear);
        self.norm2.backward(device, dnormed, saved.middle, dx, patches, Write::Add);
        let dattended = part(workspace.attended_gradient, vision.hidden);
        self.proj.backward(device, saved.attended, dx, Some((dattended, Write::Set)), patches, linear);
        let dqkv = part(workspace.qkv_gradient, 3 * vision.hidden);
        let [dq, dk, dv] = [0, 1, 2].map(|which| heads(dqkv, which, vision));
        device.attend_backward(
            &self.attention(saved.qkv, vision, given),
            saved.attended,
            saved.lse,
            dattended,
            dq,
            dk,
            dv,
        );
        device.rotate_backward(dq, vision.head_size(), given.cosines, given.sines, patches);
        device.rotate_backward(dk, vision.head_size(), given.cosines, given.sines, patches);
        self.norm1.forward(device, x, normed, patches);
        self.qkv.backward(device, normed, dqkv, Some((dnormed, Write::Set)), patches, linear);
        self.norm1.backward(device, dnormed, x, dx, patches, Write::Add);
    }

    fn attention(&self, qkv: Buffer, vision: &VisionConfig, given: &Patches) -> Attention {
        let [query, key, value] = [0, 1, 2].map(|which| heads(qkv, which, vision));
        let (cu_seqlens, segments) = if self.sees_all {
            (given.cu_image_seqlens, given.images)
        } else {
            (given.cu_window_seqlens, given.windows)
        };
        Attention { query, key, value, head_size: vision.head_size(), cu_seqlens, segments, is_causal: false }
    }
}

/// Queries, keys or values among the three that lie side by side.
fn heads(qkv: Buffer, which: usize, vision: &VisionConfig) -> Heads {
    Heads { buffer: qkv, offset: which * vision.hidden, stride: 3 * vision.hidden, heads: vision.heads }
}

fn swiglu_workspace(saved: &BlockActivations, workspace: &VisionWorkspace) -> SwigluWorkspace {
    SwigluWorkspace {
        gate: saved.gate,
        up: saved.up,
        mixed: workspace.mixed,
        mixed_gradient: workspace.mixed_gradient,
        gate_gradient: workspace.gate_gradient,
    }
}
