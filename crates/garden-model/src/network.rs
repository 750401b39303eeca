//! The network: the weights of vision tower, decoder and head, for training or inference.

pub(crate) mod activations;
pub(crate) mod decoder;
pub(crate) mod head;
pub(crate) mod kv_cache;
pub(crate) mod linear;
pub(crate) mod lora;
pub(crate) mod mode;
pub(crate) mod parameters;
pub(crate) mod pass;
pub(crate) mod patches;
pub(crate) mod role;
pub(crate) mod rotary;
pub(crate) mod swiglu;
pub(crate) mod targets;
pub(crate) mod vision;
pub(crate) mod windows;

use garden_device::{Buffer, Planner, Stage, Weight};

use crate::checkpoint::Checkpoint;
use crate::checkpoint::layout::Width;
use crate::error::Error;
use crate::network::decoder::{Layer, Norm};
use crate::network::head::Head;
use crate::network::mode::Mode;
use crate::network::parameters::{Builder, Storage};
use crate::network::pass::Pass;
use crate::network::patches::Patches;
use crate::network::role::{Declared, Kind, Part};
use crate::network::vision::{Vision, VisionContext, VisionWorkspace};
use garden_input::{Config, VisionConfig};

/// All weights.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    pub vision: Vision,
    /// `[vocabulary, hidden]`.
    pub embedding: Weight,
    pub embedding_gradient: Option<Weight>,
    pub layers: Vec<Layer>,
    pub head: Head,
}

/// All tensors of a model as its checkpoints have them: what its network asks for when it is built.
pub(crate) fn declared(config: &Config) -> Result<Vec<Declared>, Error> {
    let (mut planner, checkpoint) = (Planner::for_cpu(1), Checkpoint::declaring());
    let mut builder = Builder::new(&mut planner, &checkpoint, None, Mode::Inference, &Storage::default())?;
    Network::build(&mut builder, config)?;
    Ok(builder.declared)
}

impl Network {
    pub fn build(builder: &mut Builder, config: &Config) -> Result<Network, Error> {
        let (text, names) = (&config.text, &config.family.names);
        builder.checkpoint.check(config)?;
        let vision = Vision::build(builder, &config.vision, &names.tower)?;
        builder.part = Part::Decoder;
        if config.is_tied {
            for (tensor, other) in [(names.head, "embedding"), (names.embedding, "head")] {
                let why = format!("it is the same as the {other} in this model, and an adapter would untie the two");
                builder.refuse_saved(tensor, &why)?;
            }
        }
        let (embedding, embedding_gradient) =
            builder.weight(names.embedding, &[text.vocabulary, text.hidden], Kind::Embedding)?;
        let layers = (0..text.layers.len()).map(|index| Layer::build(builder, names, text, index));
        let layers = layers.collect::<Result<Vec<Layer>, Error>>()?;
        let norm = Norm::build(builder, names.norm, text.hidden, text.norm)?;
        let (weight, gradient) = match config.is_tied {
            true => (embedding, embedding_gradient),
            false => {
                let [outputs, inputs] = [text.vocabulary, text.hidden].map(Width::exact);
                builder.linear_weight(names.head.trim_end_matches(".weight"), outputs, inputs, Kind::Head)?
            }
        };
        builder.check_found(config.family)?;
        Ok(Network { vision, embedding, embedding_gradient, layers, head: Head { norm, weight, gradient } })
    }

    /// x `[tokens, hidden]` = token embeddings, with image tokens replaced by image embeddings.
    pub fn embed(
        &self,
        pass: &mut Pass,
        vision: &VisionConfig,
        workspace: &VisionWorkspace,
        tokens: Buffer,
        images: &Patches,
        x: Buffer,
    ) {
        pass.device.mark(Stage::Forward);
        pass.device.embed(&self.embedding, tokens, x, tokens.length());
        if images.patches > 0 {
            pass.device.mark(Stage::Encode);
            self.vision.forward(pass, VisionContext { vision, workspace, images }, x);
            pass.device.mark(Stage::Forward);
        }
    }
}
