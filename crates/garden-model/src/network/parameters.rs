//! Loads a model's weights, and allocates gradients and optimizer state for trainable parameters.

mod linears;

use garden_input::Family;
use std::collections::{BTreeMap, BTreeSet};

use garden_device::{
    Block, Buffer, Device, Dtype, Moments, Nf4Blocks, Nf4Scales, Purpose, Reserve, Rows, Shadow, Weight, dynamic_8bit,
    nf4,
};

use crate::checkpoint::layout::{Layout, Width};
use crate::checkpoint::nf4_checkpoint::{self, FourBit, Packed, PackedScales};
use crate::checkpoint::sum::scale_rows;
use crate::checkpoint::{Checkpoint, Tensor};
use crate::error::Error;
use crate::model::bytes_of;
use crate::network::linear::AdapterSizes;
use crate::network::lora::{LoraConfig, Modules};
use crate::network::mode::Mode;
use crate::network::role::{Declared, Kind, Part, Role};

/// A trainable parameter.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// Its newer name in the checkpoint, or its name in an adapter file.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    pub(crate) layout: Layout,
    /// The master copy, f32.
    pub(crate) value: Buffer,
    /// A copy in the activation dtype, for matrix products.
    pub(crate) shadow: Option<Shadow>,
    pub(crate) gradient: Buffer,
    pub(crate) moments: Moments,
    pub(crate) role: Role,
}

impl Parameter {
    /// Sets its values.
    pub(crate) fn set(&self, device: &mut dyn Device, values: &[f32]) {
        device.upload(self.value, bytes_of(&self.layout.pad(values, 1)));
        self.refresh(device);
    }

    /// Updates the copy for matrix products after the values were set.
    pub(crate) fn refresh(&self, device: &mut dyn Device) {
        if let Some(shadow) = self.shadow {
            device.cast_shadow(self.value, shadow);
        }
    }
}

/// How weights and moments are stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Storage {
    /// Quantises linears on load, unless the checkpoint has them in 4 bits already.
    pub four_bit: Option<FourBit>,
    /// 8-bit moments, for parameters with at least 4096 values.
    pub has_8bit_moments: bool,
}

/// Factors of rows, by the linear's name.
pub(crate) type RowFactors = BTreeMap<String, Vec<f32>>;

const DORA_IN_4_BITS: &str = "would have 4 bits, and a DoRA adapter scales its rows: use the adapter with the original checkpoint in 16 bits, or export it \
                              onto that first";

/// Prefix of names in an adapter file.
pub(crate) const ADAPTER_PREFIX: &str = "base_model.model.";
/// Smaller parameters keep 32-bit moments, as in bitsandbytes.
const SMALLEST_NARROW: usize = 4096;

/// A matrix of an adapter that is applied but not trained.
#[derive(Clone, Debug)]
pub(crate) struct FrozenAdapter {
    pub name: String,
    pub shape: Vec<usize>,
    pub layout: Layout,
    /// Where it lies, and the factor that its values get there.
    pub place: Shadow,
}

impl FrozenAdapter {
    /// Sets its values.
    pub fn set(&self, device: &mut dyn Device, values: &[f32]) {
        self.set_part(device, self.place.rows, self.layout, values);
    }

    /// Sets the values of some of its rows or columns.
    pub fn set_part(&self, device: &mut dyn Device, rows: Rows, layout: Layout, values: &[f32]) {
        let (values, dtype) = (layout.pad(values, 1), rows.buffer.dtype());
        let scaled: Vec<f32> = values.iter().map(|value| value * self.place.scale).collect();
        let mut bytes = vec![0; scaled.len() * dtype.size()];
        dtype.narrow(&scaled, &mut bytes);
        device.upload_rows(rows, &bytes);
    }
}

/// Builds a model's buffers from a checkpoint.
pub(crate) struct Builder<'a> {
    pub device: &'a mut dyn Device,
    pub checkpoint: &'a Checkpoint,
    pub lora: Option<(LoraConfig, Modules)>,
    /// Factors of the rows of some linears, by name: DoRA's.
    pub row_factors: RowFactors,
    pub is_full: bool,
    pub storage: Storage,
    pub mode: Mode,
    /// The part that is being built.
    pub part: Part,
    /// All tensors of the checkpoint that have been asked for.
    pub declared: Vec<Declared>,
    pub trained: Vec<Parameter>,
    /// Adapters for inference only.
    pub frozen: Vec<FrozenAdapter>,
    /// The block of all gradients.
    pub gradients: Option<Block>,
    /// Workspace needs of operations with these weights.
    pub reserve: Reserve,
    /// The `modules_to_save` found in the model.
    pub saved: BTreeSet<String>,
    /// The number of adapters, and their sizes.
    pub adapters: u64,
    pub adapter_sizes: AdapterSizes,
    /// Columns of low-rank products of the layer being built.
    pub narrow_of_layer: usize,
}

impl<'a> Builder<'a> {
    /// A builder that trains adapters, all weights, or, for inference, nothing.
    pub fn new(
        device: &'a mut dyn Device,
        checkpoint: &'a Checkpoint,
        lora: Option<&LoraConfig>,
        mode: Mode,
        storage: &Storage,
    ) -> Result<Builder<'a>, Error> {
        let lora = match lora {
            Some(lora) => Some((lora.clone(), lora.modules().map_err(Error::Adapter)?)),
            None => None,
        };
        Ok(Builder {
            device,
            checkpoint,
            is_full: lora.is_none() && mode == Mode::Training,
            row_factors: RowFactors::new(),
            lora,
            mode,
            storage: storage.clone(),
            part: Part::Tower,
            declared: Vec::new(),
            trained: Vec::new(),
            frozen: Vec::new(),
            gradients: None,
            reserve: Reserve::default(),
            saved: BTreeSet::new(),
            adapters: 0,
            adapter_sizes: AdapterSizes::default(),
            narrow_of_layer: 0,
        })
    }

    /// Refuses a tensor among those of `modules_to_save`: one that cannot be saved in an adapter so that others load the same model.
    pub fn refuse_saved(&self, tensor: &str, why: &str) -> Result<(), Error> {
        match self.lora.as_ref().and_then(|(lora, _)| lora.saved_module(tensor)) {
            Some(module) => Err(Error::Adapter(format!("`{module}` cannot be among the modules to save: {why}"))),
            None => Ok(()),
        }
    }

    /// Refuses `modules_to_save` that the model does not have.
    pub fn check_found(&self, family: &Family) -> Result<(), Error> {
        let [one, two, three] = family.targets.saved;
        let Some((lora, _)) = &self.lora else { return Ok(()) };
        match lora.modules_to_save.iter().find(|module| !self.saved.contains(*module)) {
            Some(module) => Err(Error::Adapter(format!(
                "the model has no module `{module}` to save; it has, for example, `{one}`, `{two}` and `{three}`"
            ))),
            None => Ok(()),
        }
    }

    /// Whether a tensor belongs to `modules_to_save`.
    fn is_saved(&mut self, name: &str) -> bool {
        let Some(module) = self.lora.as_ref().and_then(|(lora, _)| lora.saved_module(name)) else { return false };
        self.saved.insert(module.to_string());
        true
    }

    /// Whether a tensor of the checkpoint is trained itself.
    fn is_trained(&mut self, name: &str) -> bool {
        self.is_full || self.is_saved(name) && self.mode == Mode::Training
    }

    /// The name of a tensor in the file of trainable parameters.
    fn saved_name(&self, name: &str) -> String {
        if self.is_full { name.to_string() } else { format!("{ADAPTER_PREFIX}{name}") }
    }

    /// Registers a tensor whose values the adapter will provide.
    fn remember_saved(&mut self, name: &str, shape: &[usize], layout: Layout, rows: Rows) {
        if self.mode == Mode::Inference && self.is_saved(name) {
            let name = self.saved_name(name);
            let place = Shadow { rows, scale: 1.0 };
            self.frozen.push(FrozenAdapter { name, shape: shape.to_vec(), layout, place });
        }
    }

    /// A vector of the checkpoint, with its gradient if it is trained.
    ///
    /// Biases and norms are small and used elementwise, so they are converted to f32 once instead of at each use.
    pub fn vector(&mut self, name: &str, length: Width, kind: Kind) -> Result<(Buffer, Option<Buffer>), Error> {
        let (shape, role) = (vec![length.stored], self.role(kind));
        let tensor = self.checked(name, &shape, role)?;
        let layout = Layout::vector(length);
        let value = self.load(name, tensor, layout, Dtype::F32)?;
        if !self.is_trained(name) {
            self.remember_saved(name, &shape, layout, Rows::dense(value, length.padded));
            return Ok((value, None));
        }
        self.reserve.longest_vector = self.reserve.longest_vector.max(length.padded);
        let gradient = self.train(self.saved_name(name), shape, layout, value, None, role)?;
        Ok((value, Some(gradient)))
    }

    /// The role of a parameter of the part that is being built.
    fn role(&self, kind: Kind) -> Role {
        Role { part: self.part, kind }
    }

    /// Loads a tensor onto the device.
    fn load(&mut self, name: &str, tensor: Tensor<'_>, layout: Layout, dtype: Dtype) -> Result<Buffer, Error> {
        let value = self.device.buffer(Purpose::Weights, name, dtype, layout.length())?;
        self.load_into(name, tensor, layout, Rows::dense(value, layout.columns.padded));
        Ok(value)
    }

    /// The factors of a matrix's rows, if it has them.
    fn row_factors_of(&self, name: &str) -> Option<&Vec<f32>> {
        self.row_factors.get(name.strip_suffix(".weight")?)
    }

    /// Loads a tensor into rows on the device.
    fn load_into(&mut self, name: &str, tensor: Tensor<'_>, layout: Layout, to: Rows) {
        let dtype = to.buffer.dtype();
        let factors = self.row_factors_of(name);
        if self.device.computes() {
            match tensor.dtype == dtype && factors.is_none() {
                true => self.device.upload_rows(to, &layout.pad(tensor.bytes, dtype.size())),
                false if to.width == to.stride && factors.is_none() => {
                    self.device.upload_f32(to.buffer.first(layout.length()), &layout.pad(&tensor.values(), 1));
                }
                false => {
                    let mut values = tensor.values();
                    scale_rows(&mut values, factors.map_or(&[], Vec::as_slice));
                    let values = layout.pad(&values, 1);
                    let mut bytes = vec![0; values.len() * dtype.size()];
                    dtype.narrow(&values, &mut bytes);
                    self.device.upload_rows(to, &bytes);
                }
            }
        }
        // It is on the device now, so the pages of the file can be dropped.
        tensor.forget();
    }

    /// A tensor of the checkpoint, checked for its shape and finite values.
    fn checked(&mut self, name: &str, shape: &[usize], role: Role) -> Result<Tensor<'a>, Error> {
        self.declared.push(Declared { name: name.into(), shape: shape.to_vec(), role });
        let tensor = self.checkpoint.shaped(name, shape)?;
        // A plan needs no values, so it is quick.
        if !self.device.computes() {
            return Ok(tensor);
        }
        if !tensor.has_values() {
            return Err(Error::tensor(tensor.path, name, "has a shape but no values, which is only enough for a plan"));
        }
        match tensor.not_finite() {
            Some(place) => Err(Error::tensor(tensor.path, name, format!("has a value that is not finite at {place}"))),
            None => Ok(tensor),
        }
    }

    fn train(
        &mut self,
        name: String,
        shape: Vec<usize>,
        layout: Layout,
        value: Buffer,
        shadow: Option<Shadow>,
        role: Role,
    ) -> Result<Buffer, Error> {
        let length = value.length();
        self.device.enter_block(self.gradients);
        let gradient = self.device.buffer(Purpose::Gradients, &name, Dtype::F32, length);
        self.device.enter_block(None);
        let gradient = gradient?;
        let mut make = |what: &str, dtype, length| {
            self.device.buffer(Purpose::Optimizer, &format!("{name} {what}"), dtype, length)
        };
        let moments = match self.storage.has_8bit_moments && length >= SMALLEST_NARROW {
            false => Moments::F32 {
                first: make("first moment", Dtype::F32, length)?,
                second: make("second moment", Dtype::F32, length)?,
            },
            true => {
                let blocks = length.div_ceil(dynamic_8bit::BLOCK);
                Moments::Int8 {
                    codes: [make("first moment", Dtype::U8, length)?, make("second moment", Dtype::U8, length)?],
                    scales: [make("first scales", Dtype::F32, blocks)?, make("second scales", Dtype::F32, blocks)?],
                }
            }
        };
        self.trained.push(Parameter { name, shape, layout, value, shadow, gradient, moments, role });
        Ok(gradient)
    }

    /// The copy of a master for matrix products, if its dtype differs.
    fn shadow(&mut self, name: &str, layout: Layout) -> Result<Option<Shadow>, Error> {
        let Some(dtype) = self.device.profile().shadow() else { return Ok(None) };
        let buffer = self.device.buffer(Purpose::Weights, &format!("{name} rounded"), dtype, layout.length())?;
        Ok(Some(Shadow { rows: Rows::dense(buffer, layout.columns.padded), scale: 1.0 }))
    }

    /// A matrix that is not a linear. Files have it in this shape, whose trailing dimensions are one here.
    pub fn weight(&mut self, name: &str, shape: &[usize], kind: Kind) -> Result<(Weight, Option<Weight>), Error> {
        let [rows, columns] = [shape[0], shape[1..].iter().product()].map(Width::exact);
        self.matrix(name, shape.to_vec(), Layout { rows, columns }, self.role(kind))
    }

    /// A matrix of the checkpoint, with its gradient if it is trained.
    fn matrix(
        &mut self,
        name: &str,
        shape: Vec<usize>,
        layout: Layout,
        role: Role,
    ) -> Result<(Weight, Option<Weight>), Error> {
        let tensor = self.checked(name, &shape, role)?;
        let (rows, columns) = (layout.rows.padded, layout.columns.padded);
        let of = |buffer| Weight::plain(buffer, rows, columns);
        if !self.is_trained(name) {
            // A tensor from an adapter is filled later, with the precision of the adapter's file, not of the base.
            // Rows with factors have all digits too, where the device takes them.
            let has_digits = self.is_saved(name) || self.row_factors_of(name).is_some();
            let stored = if has_digits { Dtype::F32 } else { tensor.dtype };
            let dtype = self.device.profile().frozen(stored);
            let value = self.load(name, tensor, layout, dtype)?;
            self.remember_saved(name, &shape, layout, Rows::dense(value, columns));
            if dtype != Dtype::F32 {
                self.reserve.widest = self.reserve.widest.max(columns);
            }
            return Ok((of(value), None));
        }
        let value = self.load(name, tensor, layout, Dtype::F32)?;
        let shadow = self.shadow(name, layout)?;
        if let Some(shadow) = shadow {
            self.device.cast_shadow(value, shadow);
            self.reserve.widest = self.reserve.widest.max(columns);
        }
        let gradient = self.train(self.saved_name(name), shape, layout, value, shadow, role)?;
        Ok((of(shadow.map_or(value, |shadow| shadow.rows.buffer)), Some(of(gradient))))
    }

    /// The matrix of a linear, which may be NF4.
    pub fn linear_weight(
        &mut self,
        name: &str,
        outputs: Width,
        inputs: Width,
        kind: Kind,
    ) -> Result<(Weight, Option<Weight>), Error> {
        match self.packed_weight(name, outputs, inputs, kind)? {
            Some(weight) => {
                let values = weight.rows.saturating_mul(weight.columns);
                self.reserve.largest_packed = self.reserve.largest_packed.max(values);
                Ok((weight, None))
            }
            None => {
                let (shape, role) = (vec![outputs.stored, inputs.stored], self.role(kind));
                self.matrix(&format!("{name}.weight"), shape, Layout { rows: outputs, columns: inputs }, role)
            }
        }
    }

    /// The matrix of a linear if it is NF4.
    fn packed_weight(
        &mut self,
        name: &str,
        outputs: Width,
        inputs: Width,
        kind: Kind,
    ) -> Result<Option<Weight>, Error> {
        let (full, role) = (format!("{name}.weight"), self.role(kind));
        let (rows, columns) = (outputs.stored, inputs.stored);
        let stays_whole = self.is_full || self.is_saved(&full);
        let (buffer, scales, packed_from) = match Packed::read(self.checkpoint, &full, rows, columns)? {
            Some(packed) if stays_whole => {
                let problem = "has 4 bits, which cannot be trained: train an adapter, or use a 16-bit checkpoint";
                return Err(Error::tensor(packed.codes.path, full, problem));
            }
            Some(packed) if self.row_factors.contains_key(name) => {
                return Err(Error::tensor(packed.codes.path, full, DORA_IN_4_BITS));
            }
            Some(packed) => self.packed(&full, &packed)?,
            None => match &self.storage.four_bit {
                Some(four_bit) if four_bit.packs(name, role) && self.row_factors.contains_key(name) => {
                    return Err(Error::tensor(self.checkpoint.path(), full, DORA_IN_4_BITS));
                }
                Some(four_bit) if four_bit.packs(name, role) && !stays_whole => {
                    let is_double = four_bit.is_double;
                    self.pack(&full, [rows, columns], role, is_double)?
                }
                _ => return Ok(None),
            },
        };
        let blocks = Some(Nf4Blocks { rows, columns, scales, packed_from });
        let weight = Weight { blocks, ..Weight::plain(buffer, outputs.padded, inputs.padded) };
        self.reserve.widest = self.reserve.widest.max(weight.columns);
        Ok(Some(weight))
    }

    /// A weight that is NF4 in the checkpoint.
    fn packed(&mut self, name: &str, packed: &Packed<'_>) -> Result<(Buffer, Nf4Scales, Dtype), Error> {
        let mut put = |what: &str, tensor: &Tensor<'_>| -> Result<Buffer, Error> {
            let length = tensor.bytes.len() / tensor.dtype.size();
            let buffer = self.device.buffer(Purpose::Weights, &format!("{name}{what}"), tensor.dtype, length)?;
            self.device.upload(buffer, tensor.bytes);
            Ok(buffer)
        };
        let buffer = put("", &packed.codes)?;
        let scales = match &packed.scales {
            PackedScales::Plain(scales) => Nf4Scales::Plain(put(" scales", scales)?),
            PackedScales::Double { codes, scales, offset } => Nf4Scales::Double {
                codes: put(" scale codes", codes)?,
                scales: put(" scales of scales", scales)?,
                offset: *offset,
            },
        };
        packed.forget();
        Ok((buffer, scales, packed.packed_from))
    }

    /// Quantises a weight of the checkpoint piece by piece: it never exists whole beside the file.
    fn pack(
        &mut self,
        name: &str,
        shape: [usize; 2],
        role: Role,
        is_double: bool,
    ) -> Result<(Buffer, Nf4Scales, Dtype), Error> {
        let tensor = self.checked(name, &shape, role)?;
        let (length, device) = (shape[0] * shape[1], &mut *self.device);
        let packed = device.buffer(Purpose::Weights, name, Dtype::U8, nf4::packed_length(length))?;
        let blocks = nf4::blocks(length);
        let mut filled = 0;
        let scales = match device.computes() {
            true => nf4_checkpoint::pack(&tensor, |bytes| {
                device.upload(packed.part(filled, bytes.len()), bytes);
                filled += bytes.len();
                Ok::<(), Error>(())
            })?,
            // Planning a large model should not compute scales that nobody reads.
            false => return Ok((packed, unfilled(device, name, blocks, is_double)?, Dtype::F32)),
        };
        tensor.forget();
        let mut make = |what: &str, dtype: Dtype, length: usize, bytes: &[u8]| -> Result<Buffer, Error> {
            let buffer = device.buffer(Purpose::Weights, &format!("{name} {what}"), dtype, length)?;
            device.upload(buffer, bytes);
            Ok(buffer)
        };
        let scales = match is_double {
            false => Nf4Scales::Plain(make("scales", Dtype::F32, blocks, bytes_of(&scales))?),
            true => {
                let double = nf4::DoubleScales::of(&scales);
                Nf4Scales::Double {
                    codes: make("scale codes", Dtype::U8, blocks, &double.codes)?,
                    scales: make("scales of scales", Dtype::F32, double.scales.len(), bytes_of(&double.scales))?,
                    offset: double.offset,
                }
            }
        };
        // If everything is computed in f32, backward passes have nothing to round to.
        Ok((packed, scales, Dtype::F32))
    }
}

/// Scales as in [`Builder::pack`], without values.
fn unfilled(device: &mut dyn Device, name: &str, blocks: usize, is_double: bool) -> Result<Nf4Scales, Error> {
    let mut make = |what: &str, dtype: Dtype, length: usize| {
        device.buffer(Purpose::Weights, &format!("{name} {what}"), dtype, length)
    };
    Ok(match is_double {
        false => Nf4Scales::Plain(make("scales", Dtype::F32, blocks)?),
        true => Nf4Scales::Double {
            codes: make("scale codes", Dtype::U8, blocks)?,
            scales: make("scales of scales", Dtype::F32, blocks.div_ceil(dynamic_8bit::BLOCK))?,
            offset: 0.0,
        },
    })
}
