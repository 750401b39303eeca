//! The vision tower: patches in window order through blocks of attention and MLP, and the merger that turns them into tokens.

use garden_device::{Attention, Buffer, Device, Dtype, Heads, OutOfMemory, Purpose, Rows, Weight, Write};

use crate::checkpoint::layout::Width;
use crate::error::Error;
use crate::network::activations::{GradientCheckpointing, Saved, activations, roomy, side_by_side};
use crate::network::decoder::Norm;
use crate::network::linear::{AdapterSizes, Linears};
use crate::network::mode::Mode;
use crate::network::parameters::Builder;
use crate::network::pass::Pass;
use crate::network::patches::{Patches, Segments};
use crate::network::role::{Kind, Part};
use crate::network::swiglu::{Swiglu, SwigluBuffers, SwigluWorkspace};
use garden_input::{TowerNames, VisionConfig};

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
#[derive(Clone, Debug)]
pub(crate) struct Block {
    norm1: Norm,
    qkv: Linears,
    proj: Linears,
    norm2: Norm,
    mlp: Swiglu,
    sees_all: bool,
}

/// ln_q, then `merged` adjacent patches through linear, GELU, linear.
#[derive(Clone, Debug)]
struct Merger {
    norm: Norm,
    first: Linears,
    second: Linears,
}

/// Activations of a block that its backward pass needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockActivations {
    /// `[patches, 3 hidden]`, queries and keys after rotary embedding.
    qkv: Buffer,
    attended: Rows,
    /// Log-sum-exp, f32 `[patches, heads]`.
    lse: Buffer,
    middle: Buffer,
    /// Gate and up `[patches, inner]`.
    gate_up: [Rows; 2],
    /// Low-rank products of adapters `[patches, rank of all of them]`.
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
    /// Patch embeddings before reordering by window, later the merger's normed inputs `[patches, hidden]`.
    embedded: Buffer,
    normed: Rows,
    normed_gradient: Buffer,
    attended_gradient: Buffer,
    /// `[patches, 3 hidden]`.
    qkv_gradient: Rows,
    mlp: SwigluWorkspace,
    /// Gradient of x `[patches, hidden]`.
    dx: Rows,
    /// The merger's first linear, and GELU of it `[tokens, merged * hidden]`.
    merged: Buffer,
    active: Buffer,
    /// Merged tokens in window order, then their gradient `[tokens, out]`.
    out: Rows,
    /// Inputs of the merger's linears, and the gradient of the first one's outputs, with room behind each row `[tokens, merged * hidden]`: only for adapters
    /// that are joined with them.
    merger: Option<[Rows; 2]>,
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

    /// `[patches, hidden]` as inputs `[tokens, merged * hidden]` of one of the merger's linears: patches of a token are adjacent. They are copied if they need
    /// room behind each row.
    fn merger_inputs(&self, pass: &mut Pass, x: Buffer) -> Rows {
        let (tokens, wide) = (self.images.patches / self.vision.merged(), self.vision.merged() * self.vision.hidden);
        let x = Rows::dense(x, wide);
        match self.workspace.merger {
            Some([inputs, _]) => {
                pass.device.copy_rows(x, inputs.first(tokens), tokens);
                inputs.first(tokens)
            }
            None => x,
        }
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
        room: usize,
    ) -> Result<BlockActivations, OutOfMemory> {
        let inner = Width::inner(device.profile(), vision.intermediate).padded;
        let lse = format!("{label} log-sum-exp");
        let lse = device.buffer(purpose, &lse, Dtype::F32, patches.saturating_mul(vision.heads))?;
        let label = |name: &str| format!("{label} {name}");
        let qkv = activations(device, purpose, &label("queries, keys, values"), patches, 3 * vision.hidden)?;
        let attended = roomy(device, purpose, &label("attended"), patches, vision.hidden, room)?;
        let middle = activations(device, purpose, &label("middle"), patches, vision.hidden)?;
        let gate_up = side_by_side(device, purpose, &label(""), [("gate", inner), ("up", inner)], patches, 0)?;
        let kept = match kept {
            0 => None,
            kept => Some(activations(device, purpose, &label("adapters"), patches, kept)?),
        };
        Ok(BlockActivations { qkv, attended, lse, middle, gate_up, kept, is_whole: true })
    }

    fn of(&self, context: VisionContext) -> BlockActivations {
        BlockActivations {
            qkv: context.part(self.qkv, 3 * context.vision.hidden),
            attended: self.attended.first(context.images.patches),
            lse: context.part(self.lse, context.vision.heads),
            middle: context.hidden(self.middle),
            ..*self
        }
    }

    fn of_mlp(&self, workspace: &VisionWorkspace) -> SwigluBuffers {
        SwigluBuffers { gate_up: self.gate_up, kept: self.kept, keeps_down: self.is_whole, workspace: workspace.mlp }
    }
}

impl VisionWorkspace {
    /// Allocates buffers for `patches` patches.
    pub fn build(
        device: &mut dyn Device,
        vision: &VisionConfig,
        patches: usize,
        adapters: AdapterSizes,
        adapts_merger: bool,
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
        let (kept, room) = (mode.back(adapters.of_layer), adapters.room(device.profile()));
        let mut save =
            |purpose, index| BlockActivations::build(device, purpose, &label(index), vision, patches, kept, room);
        let saved = match mode {
            Mode::Inference => {
                Saved::EachKind { of_kinds: vec![save(Purpose::Workspace, 0)?], kinds: vec![0; vision.depth] }
            }
            Mode::Training => Saved::build(checkpointing, vec![0; vision.depth], save)?,
        };
        let (back, inner) = (mode.back(patches), Width::inner(device.profile(), vision.intermediate).padded);
        let purpose = Purpose::Workspace;
        let mut make = |name: &str, rows: usize, width: usize, room: usize| {
            roomy(device, purpose, &format!("vision {name}"), rows, width, room)
        };
        let (tokens, wide) = (patches / vision.merged(), vision.merged() * vision.hidden);
        let embedded = make("embedded", patches, vision.hidden, 0)?.buffer;
        let normed = make("normed", patches, vision.hidden, room)?;
        let normed_gradient = make("normed gradient", back, vision.hidden, 0)?.buffer;
        let attended_gradient = make("attended gradient", back, vision.hidden, 0)?.buffer;
        let qkv_gradient = make("queries, keys, values gradient", back, 3 * vision.hidden, room)?;
        let dx = make("gradient", back, vision.hidden, room)?;
        // Merged tokens have as many values as their patches together.
        let merged = make("merged", patches, vision.hidden, 0)?.buffer;
        let active = make("merged, active", patches, vision.hidden, 0)?.buffer;
        let out = make("tokens", tokens, vision.out, room)?;
        let merger = match adapts_merger && room > 0 {
            true => Some([
                make("merger inputs", tokens, wide, room)?,
                make("merger gradient", mode.back(tokens), wide, room)?,
            ]),
            false => None,
        };
        let mlp = SwigluWorkspace::build(device, "vision", inner, patches, back, room)?;
        Ok(VisionWorkspace {
            inputs,
            saved,
            embedded,
            normed,
            normed_gradient,
            attended_gradient,
            qkv_gradient,
            mlp,
            dx,
            merged,
            active,
            out,
            merger,
        })
    }
}

impl Vision {
    pub fn build(builder: &mut Builder, vision: &VisionConfig, names: &TowerNames) -> Result<Vision, Error> {
        let before = builder.trained.len();
        builder.part = Part::Tower;
        builder.refuse_saved(names.patches, "the patch convolution is not supported")?;
        let (patch, patch_gradient) = builder.weight(names.patches, &vision.kernel(), Kind::Convolution)?;
        let blocks = (0..vision.depth).map(|index| Block::build(builder, names, vision, index));
        let blocks = blocks.collect::<Result<Vec<Block>, Error>>()?;
        let (wide, out) = (Width::exact(vision.merged() * vision.hidden), Width::exact(vision.out));
        builder.part = Part::Merger;
        let merger = Merger {
            norm: Norm::build(builder, names.merger_norm, vision.hidden, vision.norm)?,
            first: builder.linear(names.merger[0], wide, wide, true)?,
            second: builder.linear(names.merger[1], wide, out, true)?,
        };
        let is_trained = builder.trained.len() > before;
        Ok(Vision { patch, patch_gradient, blocks, merger, is_trained })
    }

    /// Whether gradients must reach the vision tower.
    pub fn is_trained(&self) -> bool {
        self.is_trained
    }

    /// Whether linears of the merger have adapters.
    pub fn adapts_merger(&self) -> bool {
        [&self.merger.first, &self.merger.second].iter().any(|linear| !linear.adapters.is_empty())
    }

    /// The sizes of adapters that its buffers are for: none where it has no adapters.
    pub fn adapter_sizes(&self, all: AdapterSizes) -> AdapterSizes {
        let in_blocks =
            self.blocks.iter().flat_map(|block| [&block.qkv, &block.proj, &block.mlp.gate_up, &block.mlp.down]);
        let has_adapters = self.adapts_merger() || in_blocks.into_iter().any(|linear| !linear.adapters.is_empty());
        if has_adapters { all } else { AdapterSizes::default() }
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
        let [pixels, to] = [(images.pixels, vision.patch_values()), (embedded, vision.hidden)]
            .map(|(buffer, width)| Rows::dense(buffer, width));
        pass.device.matmul(pixels, &self.patch, to, patches, 1.0, Write::Set);
        let at = |index: usize| context.hidden(workspace.inputs[index % workspace.inputs.len()]);
        pass.device.gather(to, images.order, Rows::dense(at(0), vision.hidden), patches);
        for (index, block) in self.blocks.iter().enumerate() {
            block.forward(pass, context, at(index), Some(at(index + 1)), workspace.saved.of(index));
        }
        self.merge(pass, context, at(vision.depth));
        let tokens = patches / vision.merged();
        let out = workspace.out.first(tokens);
        let active = context.merger_inputs(pass, context.hidden(workspace.active));
        self.merger.second.forward(pass, active, &[out], tokens, None, None);
        pass.device.scatter(out, images.places, Rows::dense(x, vision.out), tokens);
    }

    /// The merger up to its second linear.
    fn merge(&self, pass: &mut Pass, context: VisionContext, x: Buffer) {
        let (workspace, vision, patches) = (context.workspace, context.vision, context.images.patches);
        let [normed, merged] = [workspace.embedded, workspace.merged].map(|buffer| context.hidden(buffer));
        self.merger.norm.forward(pass.device, x, Rows::dense(normed, vision.hidden), patches);
        let inputs = context.merger_inputs(pass, normed);
        let to = Rows::dense(merged, inputs.width);
        self.merger.first.forward(pass, inputs, &[to], patches / vision.merged(), None, None);
        pass.device.gelu(merged, context.hidden(workspace.active));
    }

    /// Computes gradients from the gradient of all tokens, `dy` `[tokens, out]`.
    pub fn backward(&self, pass: &mut Pass, context: VisionContext, dy: Rows) {
        let VisionContext { vision, workspace, images } = context;
        let (patches, tokens) = (images.patches, images.patches / vision.merged());
        let out = workspace.out.first(tokens);
        pass.device.gather(dy, images.places, out, tokens);
        let at = |index: usize| context.hidden(workspace.inputs[index]);
        let (dx, dnormed) = (workspace.dx.first(patches), context.hidden(workspace.normed_gradient));
        let x = at(vision.depth);
        self.merge(pass, context, x);
        let wide = vision.merged() * vision.hidden;
        let dactive = context.hidden(workspace.attended_gradient);
        let active = context.merger_inputs(pass, context.hidden(workspace.active));
        self.merger.second.backward(pass, active, &[out], Some(Rows::dense(dactive, wide)), tokens, None);
        pass.device.gelu_backward(dactive, context.hidden(workspace.merged), dactive);
        let inputs = context.merger_inputs(pass, context.hidden(workspace.embedded));
        let dmerged = match workspace.merger {
            Some([_, gradient]) => {
                pass.device.copy_rows(Rows::dense(dactive, wide), gradient.first(tokens), tokens);
                gradient.first(tokens)
            }
            None => Rows::dense(dactive, wide),
        };
        self.merger.first.backward(pass, inputs, &[dmerged], Some(Rows::dense(dnormed, wide)), tokens, None);
        self.merger.norm.backward(pass.device, dnormed, x, dx, patches, Write::Set);
        for (index, block) in self.blocks.iter().enumerate().rev() {
            let mut saved = *workspace.saved.of(index);
            if workspace.saved.is_gone(index) {
                block.forward(pass, context, at(index), None, &saved);
                saved.is_whole = false;
            }
            block.backward(pass, context, at(index), dx, &saved);
        }
        if let Some(gradient) = &self.patch_gradient {
            let embedded = Rows::dense(context.hidden(workspace.embedded), vision.hidden);
            pass.device.scatter(dx, images.order, embedded, patches);
            let pixels = Rows::dense(images.pixels, vision.patch_values());
            pass.device.weight_gradient(embedded, pixels, gradient, patches, 1.0);
        }
    }
}

impl Block {
    fn build(builder: &mut Builder, names: &TowerNames, vision: &VisionConfig, index: usize) -> Result<Block, Error> {
        let named = |name: &str| format!("{}.{index}.{name}", names.block);
        let (hidden, three) = (Width::exact(vision.hidden), Width::exact(3 * vision.hidden));
        builder.narrow_of_layer = 0;
        Ok(Block {
            norm1: Norm::build(builder, &named(names.norms[0]), vision.hidden, vision.norm)?,
            qkv: builder.linear(&named(names.qkv), hidden, three, true)?,
            proj: builder.linear(&named(names.output), hidden, hidden, true)?,
            norm2: Norm::build(builder, &named(names.norms[1]), vision.hidden, vision.norm)?,
            mlp: Swiglu::build(builder, names.mlp.map(named), vision.hidden, vision.intermediate, true)?,
            sees_all: vision.sees_all(index),
        })
    }

    /// y `[patches, hidden]` from x `[patches, hidden]`; without `y` only the backward pass's needs are computed.
    fn forward(&self, pass: &mut Pass, context: VisionContext, x: Buffer, y: Option<Buffer>, saved: &BlockActivations) {
        let VisionContext { vision, workspace, images } = context;
        let (patches, saved) = (images.patches, saved.of(context));
        let normed = workspace.normed.first(patches);
        self.norm1.forward(pass.device, x, normed, patches);
        let qkv = Rows::dense(saved.qkv, 3 * vision.hidden);
        self.qkv.forward(pass, normed, &[qkv], patches, None, saved.kept);
        let turned = queries_and_keys(qkv, vision);
        pass.device.rotate(turned, vision.head_size(), images.cosines, images.sines, patches);
        pass.device.attend(&self.attention(context, qkv), saved.attended, saved.lse);
        let middle = Rows::dense(saved.middle, vision.hidden);
        self.proj.forward(pass, saved.attended, &[middle], patches, Some(x), saved.kept);
        self.norm2.forward(pass.device, saved.middle, normed, patches);
        match y {
            Some(y) => {
                self.mlp.forward(pass, normed, saved.middle, y, patches, &saved.of_mlp(workspace));
            }
            None => self.mlp.forward_inner(pass, normed, patches, &saved.of_mlp(workspace)),
        }
    }

    /// Turns the gradient of y in `dx` `[patches, hidden]` into that of x.
    fn backward(&self, pass: &mut Pass, context: VisionContext, x: Buffer, dx: Rows, saved: &BlockActivations) {
        let VisionContext { vision, workspace, images } = context;
        let (patches, saved) = (images.patches, saved.of(context));
        let (normed, dnormed) = (workspace.normed.first(patches), context.hidden(workspace.normed_gradient));
        let dnormed_rows = Rows::dense(dnormed, vision.hidden);
        self.norm2.forward(pass.device, saved.middle, normed, patches);
        self.mlp.backward(pass, normed, dx, dnormed_rows, patches, &saved.of_mlp(workspace));
        self.norm2.backward(pass.device, dnormed, saved.middle, dx, patches, Write::Add);
        let dattended = context.hidden(workspace.attended_gradient);
        let to = Rows::dense(dattended, vision.hidden);
        self.proj.backward(pass, saved.attended, &[dx], Some(to), patches, saved.kept);
        let dqkv = workspace.qkv_gradient.first(patches);
        let [dq, dk, dv] = [0, 1, 2].map(|which| heads(dqkv, which, vision));
        let attention = self.attention(context, Rows::dense(saved.qkv, 3 * vision.hidden));
        pass.device.attend_backward(&attention, saved.attended, saved.lse, dattended, dq, dk, dv);
        let turned = queries_and_keys(dqkv, vision);
        pass.device.rotate_backward(turned, vision.head_size(), images.cosines, images.sines, patches);
        self.norm1.forward(pass.device, x, normed, patches);
        self.qkv.backward(pass, normed, &[dqkv], Some(dnormed_rows), patches, saved.kept);
        self.norm1.backward(pass.device, dnormed, x, dx, patches, Write::Add);
    }

    fn attention(&self, context: VisionContext, qkv: Rows) -> Attention {
        let VisionContext { vision, images, .. } = context;
        let [query, key, value] = [0, 1, 2].map(|which| heads(qkv, which, vision));
        let Segments { starts: cu_seqlens, count: segments, longest } =
            if self.sees_all { images.frames } else { images.windows };
        let head_size = vision.head_size();
        Attention { query, key, value, head_size, cu_seqlens, segments, longest, is_causal: false }
    }
}

/// Queries, keys or values in the fused qkv.
fn heads(qkv: Rows, which: usize, vision: &VisionConfig) -> Heads {
    Heads { buffer: qkv.buffer, offset: which * vision.hidden, stride: qkv.stride, heads: vision.heads }
}

/// Queries and keys together, which get the same rotary embedding.
fn queries_and_keys(qkv: Rows, vision: &VisionConfig) -> Heads {
    Heads { heads: 2 * vision.heads, ..heads(qkv, 0, vision) }
}
