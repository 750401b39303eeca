//! Buffers of an engine's steps.

use garden_device::{Buffer, Device, Dtype, Purpose, Reserve};
use garden_input::{Config, Limits};

use crate::engine::{CHUNK, EngineLimits};
use crate::error::Error;
use crate::network::activations::{GradientCheckpointing, activations};
use crate::network::decoder::{DecoderWorkspace, LayerActivations, LayerSizes};
use crate::network::head::HeadWorkspace;
use crate::network::kv_cache::StepInputs;
use crate::network::linear::{AdapterSizes, LinearWorkspace};
use crate::network::mode::Mode;
use crate::network::patches::PatchInputs;
use crate::network::vision::{Vision, VisionWorkspace};

/// Buffers reused in every step.
#[derive(Debug)]
pub(super) struct Workspace {
    pub tokens: Buffer,
    pub images: PatchInputs,
    pub step: StepInputs,
    /// Hidden states of the prompt that is being read, updated in place by the layers `[context, hidden]`.
    pub x: Buffer,
    /// Hidden states of newest tokens, likewise `[rows, hidden]`.
    pub newest: Buffer,
    /// Of each kind of layer.
    pub layers: Vec<LayerActivations>,
    pub decoder: Vec<DecoderWorkspace>,
    pub vision: VisionWorkspace,
    pub linear: LinearWorkspace,
    pub head: HeadWorkspace,
    /// The best token of each row `[rows]`.
    pub best: Buffer,
}

/// Workspace of operations for answers within the limits, beside the weights' needs.
pub(super) fn answering(reserve: Reserve, config: &Config, limits: EngineLimits) -> Reserve {
    Reserve {
        longest: limits.context.max(limits.patches),
        head_size: config.largest_head(),
        attention_tokens: limits.context.max(limits.patches).max(limits.rows),
        // A window has at least one merged token.
        segments: limits.rows.max(config.vision.most_segments(limits.patches)),
        ..reserve
    }
}

impl Workspace {
    pub fn build(
        device: &mut dyn Device,
        config: &Config,
        adapters: AdapterSizes,
        tower: &Vision,
        limits: EngineLimits,
    ) -> Result<Workspace, Error> {
        // A window has at least one merged token, and so has an image.
        let most = config.vision.most_segments(limits.patches);
        let of_images = Limits { patches: limits.patches, images: most, ..Limits::default() };
        let images = PatchInputs::build(device, &config.vision, of_images)?;
        let vision = VisionWorkspace::build(
            device,
            &config.vision,
            limits.patches,
            tower.adapter_sizes(adapters),
            tower.adapts_merger(),
            Mode::Inference,
            GradientCheckpointing::PerLayer,
        )?;
        Workspace::beside(device, config, adapters, limits, images, vision)
    }

    /// Builds the workspace around existing image buffers.
    pub fn beside(
        device: &mut dyn Device,
        config: &Config,
        adapters: AdapterSizes,
        limits: EngineLimits,
        images: PatchInputs,
        vision: VisionWorkspace,
    ) -> Result<Workspace, Error> {
        let (text, mode) = (&config.text, Mode::Inference);
        let all = limits.context.max(limits.rows);
        let at_once = CHUNK.min(limits.context).max(limits.rows);
        let sizes = LayerSizes { hidden: text.hidden, tokens: at_once, adapters, mode };
        Ok(Workspace {
            tokens: device.buffer(Purpose::Batch, "tokens", Dtype::I32, all)?,
            images,
            step: StepInputs::build(device, text, limits.rows, at_once)?,
            x: activations(device, Purpose::Workspace, "decoder x", limits.context, text.hidden)?,
            newest: activations(device, Purpose::Workspace, "decoder x of newest tokens", limits.rows, text.hidden)?,
            layers: LayerActivations::of_kinds(device, text, sizes)?,
            decoder: DecoderWorkspace::of_kinds(device, text, sizes)?,
            vision,
            linear: LinearWorkspace::build(device, adapters, at_once.max(limits.patches), mode)?,
            head: HeadWorkspace::build(device, text, limits.rows, mode)?,
            best: device.buffer(Purpose::Workspace, "best tokens", Dtype::I32, limits.rows)?,
        })
    }
}
