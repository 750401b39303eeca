//! The training state in a file: values, optimizer moments and update counts, so that another run can continue exactly.
//!
//! Tensors are `NAME` for values if requested, `NAME.first` and `NAME.second` for moments (with `.scales` beside 8-bit codes), and
//! `updates` for the number of updates of each parameter, in parameter order. They are written one at a time.

use std::path::Path;

use garden_device::{Buffer, Device, Dtype, GROUPS, Moments, ParameterGroup};

use crate::checkpoint::safetensors_writer::{Place, Shard};
use crate::checkpoint::{Checkpoint, not_finite};
use crate::error::Error;
use crate::model::{Model, bytes_of, downloaded};
use crate::network::parameters::Parameter;

const UPDATES: &str = "updates";
/// Values written at a time: 4 MiB as f32.
const PIECE: usize = 1 << 20;

/// The buffers of a parameter's moments, by name suffix.
fn moments(parameter: &Parameter) -> Vec<(&'static str, Buffer)> {
    match parameter.moments {
        Moments::F32 { first, second } => vec![("first", first), ("second", second)],
        Moments::Int8 { codes: [first, second], scales: [first_scales, second_scales] } => {
            vec![("first", first), ("second", second), ("first.scales", first_scales), ("second.scales", second_scales)]
        }
    }
}

/// A moment as stored: without padding, except for 8-bit codes, whose blocks follow the layout on the device.
fn stored(device: &mut dyn Device, parameter: &Parameter, buffer: Buffer) -> Result<Vec<u8>, Error> {
    if buffer.dtype() == Dtype::U8 {
        return Ok(device.download_bytes(buffer)?);
    }
    let values = downloaded(device, buffer)?;
    Ok(bytes_of(&if is_padded_alike(parameter, buffer) { parameter.layout.unpad(values) } else { values }).to_vec())
}

/// Whether a moment has one value per parameter value, including padding; scales have not.
fn is_padded_alike(parameter: &Parameter, buffer: Buffer) -> bool {
    matches!(parameter.moments, Moments::F32 { .. }) && buffer.length() == parameter.value.length()
}

/// Number of stored values of a moment.
fn stored_length(parameter: &Parameter, buffer: Buffer) -> usize {
    if is_padded_alike(parameter, buffer) { parameter.shape.iter().product() } else { buffer.length() }
}

impl Model {
    /// Writes moments and update counts.
    pub fn write_optimizer(&self, device: &mut dyn Device, path: &Path) -> Result<(), Error> {
        // Results of a failed device must not be saved.
        device.finish()?;
        let parameters = self.parameters();
        let mut places = vec![Place::new(UPDATES.into(), Dtype::I32, vec![parameters.len()])];
        for parameter in parameters {
            let place = |(what, buffer): (&str, Buffer)| {
                let length = stored_length(parameter, buffer);
                Place::new(format!("{}.{what}", parameter.name), buffer.dtype(), vec![length])
            };
            places.extend(moments(parameter).into_iter().map(place));
        }
        let shard = Shard::create(path, places)?;
        let updates: Vec<i32> =
            parameters.iter().map(|parameter| self.updates_of(parameter.role.group()) as i32).collect();
        shard.write(UPDATES, bytes_of(&updates))?;
        for parameter in parameters {
            for (what, buffer) in moments(parameter) {
                shard.write(&format!("{}.{what}", parameter.name), &stored(device, parameter, buffer)?)?;
            }
        }
        shard.finish()
    }

    /// Reads a file written by [`Model::write_optimizer`]; everything must be there and match.
    pub fn read_optimizer(&mut self, device: &mut dyn Device, path: &Path) -> Result<(), Error> {
        let file = Checkpoint::open_file(path)?;
        let counts = file.whole_numbers(UPDATES)?;
        if counts.len() != self.parameters().len() {
            let problem = format!("has {} numbers; expected {}", counts.len(), self.parameters().len());
            return Err(Error::tensor(path, UPDATES, problem));
        }
        // All parameters of a group have the same number of updates.
        let mut updates = [0; GROUPS];
        for group in (0..GROUPS as u8).map(ParameterGroup) {
            let is_in_group = |(parameter, _): &(&Parameter, &i64)| parameter.role.group() == group;
            let mut of_group = self.parameters().iter().zip(&counts).filter(is_in_group);
            let Some((_, first)) = of_group.next() else { continue };
            if let Some((parameter, count)) = of_group.find(|(_, count)| *count != first) {
                let problem = format!("has {count} for `{}` and {first} for others like it", parameter.name);
                return Err(Error::tensor(path, UPDATES, problem));
            }
            updates[usize::from(group.0)] = u32::try_from(*first)
                .map_err(|_| Error::tensor(path, UPDATES, format!("has {first}, which is not a number of updates")))?;
        }
        for parameter in self.parameters() {
            for (what, buffer) in moments(parameter) {
                let name = format!("{}.{what}", parameter.name);
                let (tensor, length) = (file.any(&name)?, stored_length(parameter, buffer));
                if tensor.dtype != buffer.dtype() || tensor.shape != [length] {
                    let found = format!("is {:?} {:?}", tensor.dtype, tensor.shape);
                    let problem = format!("{found}, but this run keeps it as {:?} [{length}]", buffer.dtype());
                    return Err(Error::tensor(path, name, problem));
                }
                match is_padded_alike(parameter, buffer) {
                    true => device.upload(buffer, &parameter.layout.pad(tensor.bytes, buffer.dtype().size())),
                    false => device.upload(buffer, tensor.bytes),
                }
                tensor.forget();
            }
        }
        self.set_updates(updates);
        Ok(())
    }

    /// Writes the values of all trainable parameters, rounded to a dtype; `named` gives the name under which each is saved.
    pub fn write_values(
        &self,
        device: &mut dyn Device,
        dtype: Dtype,
        named: &dyn Fn(&str) -> String,
        path: &Path,
    ) -> Result<(), Error> {
        // Results of a failed device must not be saved.
        device.finish()?;
        let place = |parameter: &Parameter| Place::new(named(&parameter.name), dtype, parameter.shape.clone());
        let shard = Shard::create(path, self.parameters().iter().map(place).collect())?;
        let mut bytes = Vec::new();
        for parameter in self.parameters() {
            let name = named(&parameter.name);
            let mut first = 0;
            for part in parameter.layout.pieces(parameter.value, PIECE) {
                let values = parameter.layout.unpad_rows(downloaded(device, part)?);
                bytes.resize(values.len() * dtype.size(), 0);
                dtype.narrow(&values, &mut bytes);
                if let Some(place) = not_finite(dtype, &bytes) {
                    return Err(Error::not_written(path, &name, dtype, first + place, values[place]));
                }
                shard.write_at(&name, first * dtype.size(), &bytes)?;
                first += values.len();
            }
        }
        shard.finish()
    }

    /// Rounds the values of all trainable parameters to a dtype, as in [`Model::write_values`].
    pub fn round_values(&self, device: &mut dyn Device, dtype: Dtype) -> Result<(), Error> {
        let mut bytes = Vec::new();
        for parameter in self.parameters() {
            for part in parameter.layout.pieces(parameter.value, PIECE) {
                let mut values = downloaded(device, part)?;
                bytes.resize(values.len() * dtype.size(), 0);
                dtype.narrow(&values, &mut bytes);
                dtype.widen(&bytes, &mut values);
                device.upload(part, bytes_of(&values));
            }
            parameter.refresh(device);
        }
        Ok(())
    }

    /// Reads a file written by [`Model::write_values`].
    pub fn read_values(&self, device: &mut dyn Device, path: &Path) -> Result<(), Error> {
        self.take_values(device, &Checkpoint::open_file(path)?)
    }

    /// Takes the values of all trainable parameters from tensors of the same names.
    pub(crate) fn take_values(&self, device: &mut dyn Device, file: &Checkpoint) -> Result<(), Error> {
        for parameter in self.parameters() {
            let tensor = file.shaped(&parameter.name, &parameter.shape)?;
            if let Some(place) = tensor.not_finite() {
                return Err(Error::tensor(
                    tensor.path,
                    parameter.name.as_str(),
                    format!("has a value that is not finite at {place}"),
                ));
            }
            parameter.set(device, &tensor.values());
            tensor.forget();
        }
        Ok(())
    }
}
