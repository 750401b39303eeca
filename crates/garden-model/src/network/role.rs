//! What a parameter is in the model, said where it is built: learning rates, weight decay, quantisation, random values and the reach of adapters ask its role,
//! never its name.

use garden_device::ParameterGroup;

use crate::checkpoint::drawn::Drawn;

/// Parameters that are updated by every batch, and those that only images reach.
pub(crate) const EVERY_BATCH: ParameterGroup = ParameterGroup(1);
pub(crate) const WITH_IMAGES: ParameterGroup = ParameterGroup(0);

/// Part of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The vision tower.
    Tower,
    /// What turns its outputs into tokens.
    Merger,
    /// Embedding, layers and head.
    Decoder,
}

/// Kind of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The matrix of a linear, which may get an adapter and may be quantised.
    Linear,
    /// The matrix of an adapter.
    Adapter,
    /// The token embedding.
    Embedding,
    /// The LM head, unless it is the embedding.
    Head,
    /// The patch embedding.
    Convolution,
    /// The weight of a norm.
    Norm {
        /// Whether it gets weight decay.
        is_decayed: bool,
    },
    /// A bias.
    Bias,
}

/// What a parameter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Role {
    /// Where.
    pub part: Part,
    /// And what.
    pub kind: Kind,
}

impl Role {
    /// The group that its updates are counted in.
    pub(crate) fn group(self) -> ParameterGroup {
        match self.part {
            Part::Tower | Part::Merger => WITH_IMAGES,
            Part::Decoder => EVERY_BATCH,
        }
    }

    /// Whether it gets weight decay: biases do not, norms as the model says.
    pub(crate) fn is_decayed(self) -> bool {
        match self.kind {
            Kind::Bias => false,
            Kind::Norm { is_decayed } => is_decayed,
            _ => true,
        }
    }

    /// Whether it is quantised unless somebody says what is not: the decoder's linears.
    pub(crate) fn is_packed(self) -> bool {
        (self.part, self.kind) == (Part::Decoder, Kind::Linear)
    }

    /// How random values of it are drawn.
    pub(crate) fn drawn(self) -> Drawn {
        match self.kind {
            Kind::Norm { .. } => Drawn::Ones,
            Kind::Bias => Drawn::Zeros,
            _ => Drawn::Noise,
        }
    }
}

/// A tensor of a model as its checkpoints have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declared {
    /// Its newer name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// What it is.
    pub role: Role,
}

impl Declared {
    /// The shape in which a tensor with this stored shape is written: trailing dimensions that a file has merged are apart again.
    pub(crate) fn written(&self, stored: &[usize]) -> Vec<usize> {
        let values = |shape: &[usize]| shape.iter().product::<usize>();
        if values(&self.shape) == values(stored) { self.shape.clone() } else { stored.to_vec() }
    }

    /// The name of its linear, if it is the matrix of one that can have an adapter.
    pub fn linear(&self) -> Option<&str> {
        self.name.strip_suffix(".weight").filter(|_| self.role.kind == Kind::Linear)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::declared;
    use garden_input::{Config, Preset};

    /// The rule of transformers' trainers, by names.
    fn is_decayed_by_name(name: &str) -> bool {
        let is_norm = |part: &str| {
            part == "norm" || part.ends_with("_norm") || part.contains("layernorm") || part.contains("rmsnorm")
        };
        !name.contains("bias") && !name.split('.').any(is_norm)
    }

    #[test]
    fn roles_say_what_names_say_to_others() {
        for tensor in declared(&Config::tiny()).unwrap() {
            let (name, role) = (tensor.name.as_str(), tensor.role);
            assert_eq!(role.is_decayed(), is_decayed_by_name(name), "{name}");
            assert_eq!(role.group() == WITH_IMAGES, name.starts_with("model.visual."), "{name}");
            assert_eq!(role.part == Part::Merger, name.contains(".merger."), "{name}");
            assert_eq!(role.is_packed(), name.contains("_proj.weight") && name.contains(".layers."), "{name}");
            let drawn = match name {
                name if name.ends_with(".bias") => Drawn::Zeros,
                name if name.contains("norm") || name.contains("ln_q") => Drawn::Ones,
                _ => Drawn::Noise,
            };
            assert_eq!(role.drawn(), drawn, "{name}");
        }
    }

    #[test]
    fn parameters_are_those_that_were_published() {
        for preset in Preset::all() {
            let tensors = declared(&preset.config()).unwrap();
            let counted: usize = tensors.iter().map(|tensor| tensor.shape.iter().product::<usize>()).sum();
            assert_eq!(counted, preset.parameters, "{}", preset.name);
        }
    }

    #[test]
    fn merged_dimensions_come_apart_where_they_fit() {
        let convolution = |shape: &[usize]| {
            let role = Role { part: Part::Tower, kind: Kind::Convolution };
            Declared { name: "x".into(), shape: vec![8, 3, 2, 4, 4], role }.written(shape)
        };
        assert_eq!(convolution(&[8, 96]), [8, 3, 2, 4, 4]);
        assert_eq!(convolution(&[8, 48]), [8, 48]);
    }
}
