//! Builds linears that share their inputs, and their adapters: each with matrices of its own, or as parts of one.

use garden_device::{Buffer, Dtype, FusedAdapter, FusedPart, FusedWeight, JoinedWeight, Purpose, Rows, Shadow, Weight};

use super::{ADAPTER_PREFIX, Builder, FrozenAdapter};
use crate::checkpoint::layout::{Layout, Width};
use crate::error::Error;
use crate::network::linear::{Linears, Lora, PartGradients};
use crate::network::mode::Mode;
use crate::network::role::Kind;

impl Builder<'_> {
    /// A linear with its adapter, if it has one.
    pub fn linear(&mut self, name: &str, inputs: Width, outputs: Width, has_bias: bool) -> Result<Linears, Error> {
        self.linears(&[(name.to_string(), outputs)], inputs, has_bias)
    }

    /// Linears of the same inputs, by name and outputs, with their adapters.
    pub fn linears(&mut self, named: &[(String, Width)], inputs: Width, has_bias: bool) -> Result<Linears, Error> {
        let linears = match self.device.profile().is_joined {
            true => self.joined(named, inputs, has_bias)?,
            false => self.apart(named, inputs, has_bias)?,
        };
        let (narrow, sizes) = (linears.weight.narrow(), &mut self.adapter_sizes);
        self.narrow_of_layer += narrow;
        sizes.narrow = sizes.narrow.max(narrow);
        sizes.of_layer = sizes.of_layer.max(self.narrow_of_layer);
        if let Some(lora) = linears.adapters.first() {
            sizes.inputs = sizes.inputs.max(inputs.padded);
            sizes.has_dropout = lora.dropout > 0.0;
        }
        Ok(linears)
    }

    /// Linears with matrices of their own.
    fn apart(&mut self, named: &[(String, Width)], inputs: Width, has_bias: bool) -> Result<Linears, Error> {
        let weight = FusedWeight { inputs: inputs.padded, parts: Vec::new(), joined: None };
        let mut linears = self.unfilled(weight);
        for (number, (name, outputs)) in named.iter().enumerate() {
            let (weight, weight_gradient) = self.linear_weight(name, *outputs, inputs, Kind::Linear)?;
            let bias = has_bias.then(|| self.vector(&format!("{name}.bias"), *outputs, Kind::Bias)).transpose()?;
            let adapter = match self.adapter_of(name, number)? {
                Some(lora) => Some(self.adapter(name, inputs, *outputs, lora, &mut linears)?),
                None => None,
            };
            linears.weight.parts.push(FusedPart { weight, bias: bias.map(|bias| bias.0), adapter });
            linears.gradients.push(PartGradients { weight: weight_gradient, bias: bias.and_then(|bias| bias.1) });
        }
        Ok(linears)
    }

    fn unfilled(&self, weight: FusedWeight) -> Linears {
        let place = self.narrow_of_layer;
        Linears { weight, gradients: Vec::new(), adapters: Vec::new(), down_gradients: Vec::new(), place }
    }

    /// The settings of a linear's adapter, if it has one.
    fn adapter_of(&mut self, name: &str, part: usize) -> Result<Option<Lora>, Error> {
        let Some((config, modules)) = &self.lora else { return Ok(None) };
        if !modules.contain(name) {
            return Ok(None);
        }
        if let Some(module) = config.saved_module(&format!("{name}.weight")) {
            return Err(Error::Adapter(format!(
                "`{name}` would be trained as part of `{module}` (modules to save) and get an adapter: list it in only one of the two"
            )));
        }
        self.adapters += 1;
        let (scale, dropout) = (modules.scale(name), config.dropout);
        Ok(Some(Lora { part, up_gradient: None, scale, dropout, number: self.adapters }))
    }

    /// The rank of a linear's adapter. On the device all are as large as the largest, so that those of one product lie side by side.
    fn rank(&self, name: &str) -> Width {
        let (stored, largest) =
            self.lora.as_ref().map_or((0, 0), |(_, modules)| (modules.rank(name), modules.largest_rank()));
        Width { stored, ..Width::inner(self.device.profile(), largest) }
    }

    /// An adapter with f32 matrices of its own, still zero.
    fn adapter(
        &mut self,
        name: &str,
        inputs: Width,
        outputs: Width,
        mut lora: Lora,
        linears: &mut Linears,
    ) -> Result<FusedAdapter, Error> {
        let (prefix, rank) = (format!("{ADAPTER_PREFIX}{name}"), self.rank(name));
        let mut make = |what: &str, rows: Width, columns: Width| {
            self.adapter_matrix(format!("{prefix}.lora_{what}.weight"), Layout { rows, columns }, None)
        };
        let (down, down_gradient) = make("A", rank, inputs)?;
        let (up, up_gradient) = make("B", outputs, rank)?;
        lora.up_gradient = up_gradient;
        let scale = lora.scale;
        linears.adapters.push(lora);
        linears.down_gradients.extend(down_gradient);
        Ok(FusedAdapter { down, up, scale })
    }

    /// A matrix of an adapter, still zero, as products take it; with gradient and moments if it is trained. Products take its rounded copy at `place`, or the f32
    /// values themselves.
    fn adapter_matrix(
        &mut self,
        name: String,
        layout: Layout,
        place: Option<Shadow>,
    ) -> Result<(Weight, Option<Weight>), Error> {
        let (rows, columns) = (layout.rows.padded, layout.columns.padded);
        let shape = vec![layout.rows.stored, layout.columns.stored];
        // Where nothing is trained, a rounded copy is all there is.
        let value = match place {
            Some(_) if self.mode == Mode::Inference => None,
            _ => Some(self.device.buffer(Purpose::Adapters, &name, Dtype::F32, layout.length())?),
        };
        let plain = |buffer| Shadow { rows: Rows::dense(buffer, columns), scale: 1.0 };
        let taken = place.or(value.map(plain)).unwrap_or_else(|| panic!("`{name}` has no place"));
        let weight = Weight::of_rows(taken.rows, rows);
        match (self.mode, value) {
            (Mode::Training, Some(value)) => {
                let gradient = self.train(name, shape, layout, value, place, self.role(Kind::Adapter))?;
                Ok((weight, Some(Weight::plain(gradient, rows, columns))))
            }
            _ => {
                self.frozen.push(FrozenAdapter { name, shape, layout, place: taken });
                Ok((weight, None))
            }
        }
    }

    /// Linears and their adapters as parts of one matrix ([`FusedWeight`]); where one is NF4, the matrix is put together for each product.
    fn joined(&mut self, named: &[(String, Width)], inputs: Width, has_bias: bool) -> Result<Linears, Error> {
        let loras = named.iter().enumerate().map(|(number, (name, _))| self.adapter_of(name, number));
        let loras = loras.collect::<Result<Vec<Option<Lora>>, Error>>()?;
        let (rank, dtype) = (self.rank("").padded, self.device.profile().activations);
        let narrow = rank * loras.iter().flatten().count();
        let outputs: usize = named.iter().map(|(_, outputs)| outputs.padded).sum();
        let label = named.iter().map(|(name, _)| name.as_str()).collect::<Vec<&str>>().join(", ");
        let packed = named.iter().map(|(name, outputs)| self.packed_weight(name, *outputs, inputs, Kind::Linear));
        let packed = packed.collect::<Result<Vec<Option<Weight>>, Error>>()?;
        let (height, stride) = (outputs + narrow, inputs.padded + narrow);
        let is_packed = packed.iter().any(Option::is_some);
        // The matrix, or what lies around the weights in it.
        let mut make = |purpose: Purpose, what: &str, rows: usize, width: usize| -> Result<Option<Rows>, Error> {
            if rows.saturating_mul(width) == 0 {
                return Ok(None);
            }
            let buffer = self.device.buffer(purpose, &format!("{label}{what}"), dtype, rows.saturating_mul(width))?;
            Ok(Some(Rows::dense(buffer, width)))
        };
        let (matrix, down, up) = match is_packed {
            true => (
                None,
                make(Purpose::Adapters, ", all A", narrow, inputs.padded)?,
                make(Purpose::Adapters, ", all B", outputs, narrow)?,
            ),
            false => {
                let matrix = make(Purpose::Weights, "", height, stride)?;
                let down = matrix.filter(|_| narrow > 0).map(|all| all.below(outputs).columns(0, inputs.padded));
                let up = matrix.filter(|_| narrow > 0).map(|all| all.first(outputs).columns(inputs.padded, narrow));
                (matrix, down, up)
            }
        };
        let bias = match has_bias {
            true => {
                let dtype = self.device.profile().bias;
                Some(self.device.buffer(Purpose::Weights, &format!("{label}, biases"), dtype, outputs)?)
            }
            false => None,
        };
        if is_packed {
            self.reserve.largest_packed = self.reserve.largest_packed.max(height.saturating_mul(stride));
        }
        let joined = JoinedWeight {
            matrix: matrix.map(|matrix| matrix.buffer),
            down: down.map(|down| Weight::of_rows(down, narrow)),
            up: up.map(|up| Weight::of_rows(up, outputs)),
            bias,
        };
        let weight = FusedWeight { inputs: inputs.padded, parts: Vec::new(), joined: Some(joined) };
        let mut linears = self.unfilled(weight);
        let mut first = 0;
        for ((name, outputs), packed) in named.iter().zip(&packed) {
            let full = format!("{name}.weight");
            let (weight, gradient) = match (packed, matrix) {
                (Some(weight), _) => (*weight, None),
                // A 16-bit weight beside packed ones.
                (None, None) => {
                    let (shape, role) = (vec![outputs.stored, inputs.stored], self.role(Kind::Linear));
                    self.matrix(&full, shape, Layout { rows: *outputs, columns: inputs }, role)?
                }
                (None, Some(matrix)) => {
                    let place = matrix.below(first).columns(0, inputs.padded).first(outputs.padded);
                    self.matrix_in(&full, Layout { rows: *outputs, columns: inputs }, place)?
                }
            };
            let (part_bias, bias_gradient) = match bias {
                Some(all) => {
                    let place = Rows::dense(all.part(first, outputs.padded), outputs.padded);
                    let gradient = self.bias_in(&format!("{name}.bias"), *outputs, place)?;
                    (Some(place.buffer), gradient)
                }
                None => (None, None),
            };
            linears.weight.parts.push(FusedPart { weight, bias: part_bias, adapter: None });
            linears.gradients.push(PartGradients { weight: gradient, bias: bias_gradient });
            first += outputs.padded;
        }
        self.joined_adapters(named, inputs, loras, (down, up), &mut linears)?;
        Ok(linears)
    }

    /// Adapters as parts of all A and all B. All A come first, so that their gradients lie one behind the other.
    fn joined_adapters(
        &mut self,
        named: &[(String, Width)],
        inputs: Width,
        loras: Vec<Option<Lora>>,
        (down, up): (Option<Rows>, Option<Rows>),
        linears: &mut Linears,
    ) -> Result<(), Error> {
        let (Some(down), Some(up)) = (down, up) else { return Ok(()) };
        let padded = self.rank("").padded;
        let name = |part: usize, what: &str| format!("{ADAPTER_PREFIX}{}.lora_{what}.weight", named[part].0);
        let loras: Vec<Lora> = loras.into_iter().flatten().collect();
        let mut downs = Vec::new();
        for (number, lora) in loras.iter().enumerate() {
            let rows = down.below(number * padded).first(padded);
            let layout = Layout { rows: self.rank(&named[lora.part].0), columns: inputs };
            let place = Some(Shadow { rows, scale: 1.0 });
            let (weight, gradient) = self.adapter_matrix(name(lora.part, "A"), layout, place)?;
            linears.down_gradients.extend(gradient);
            downs.push(weight);
        }
        for (number, (mut lora, down)) in loras.into_iter().zip(downs).enumerate() {
            let first: usize = named[..lora.part].iter().map(|(_, outputs)| outputs.padded).sum();
            let outputs = named[lora.part].1;
            let rows = up.below(first).columns(number * padded, padded).first(outputs.padded);
            let layout = Layout { rows: outputs, columns: self.rank(&named[lora.part].0) };
            let place = Some(Shadow { rows, scale: lora.scale });
            let (up, gradient) = self.adapter_matrix(name(lora.part, "B"), layout, place)?;
            lora.up_gradient = gradient;
            linears.weight.parts[lora.part].adapter = Some(FusedAdapter { down, up, scale: 1.0 });
            linears.adapters.push(lora);
        }
        Ok(())
    }

    /// A matrix of the checkpoint in rows of a larger one, with its gradient if it is trained.
    fn matrix_in(&mut self, name: &str, layout: Layout, place: Rows) -> Result<(Weight, Option<Weight>), Error> {
        let (shape, role) = (vec![layout.rows.stored, layout.columns.stored], self.role(Kind::Linear));
        let tensor = self.checked(name, &shape, role)?;
        let (rows, columns) = (layout.rows.padded, layout.columns.padded);
        self.reserve.widest = self.reserve.widest.max(columns);
        if !self.is_trained(name) {
            self.load_into(name, tensor, layout, place);
            self.remember_saved(name, &shape, layout, place);
            return Ok((Weight::of_rows(place, rows), None));
        }
        let value = self.load(&format!("{name} in f32"), tensor, layout, Dtype::F32)?;
        let shadow = Shadow { rows: place, scale: 1.0 };
        self.device.cast_shadow(value, shadow);
        let gradient = self.train(self.saved_name(name), shape, layout, value, Some(shadow), role)?;
        Ok((Weight::of_rows(place, rows), Some(Weight::plain(gradient, rows, columns))))
    }

    /// A bias of the checkpoint in a part of a longer one, with its gradient if it is trained.
    fn bias_in(&mut self, name: &str, length: Width, place: Rows) -> Result<Option<Buffer>, Error> {
        let (shape, role) = (vec![length.stored], self.role(Kind::Bias));
        let tensor = self.checked(name, &shape, role)?;
        let layout = Layout::vector(length);
        if !self.is_trained(name) {
            self.load_into(name, tensor, layout, place);
            self.remember_saved(name, &shape, layout, place);
            return Ok(None);
        }
        self.reserve.longest_vector = self.reserve.longest_vector.max(length.padded);
        let value = self.load(&format!("{name} in f32"), tensor, layout, Dtype::F32)?;
        let shadow = Shadow { rows: place, scale: 1.0 };
        self.device.cast_shadow(value, shadow);
        Ok(Some(self.train(self.saved_name(name), shape, layout, value, Some(shadow), role)?))
    }
}
