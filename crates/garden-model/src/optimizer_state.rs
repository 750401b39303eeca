//! What training has made so far, in a file: values, moments and counts of updates, so that another run can go on exactly.
//!
//! Tensors are `NAME` for values where they are asked for, `NAME.first` and `NAME.second` for moments (with `.scales` beside codes of 8 bits), and
//! `updates` for how many updates each parameter has had, in the order of the parameters. They are written one at a time.

use std::path::Path;

use garden_device::{Buffer, Device, Dtype, Moments};

use crate::checkpoint::Checkpoint;
use crate::error::Error;
use crate::model::{Model, bytes_of};
use crate::parameters::Parameter;
use crate::safetensors_writer::{Place, Shard};

const UPDATES: &str = "updates";

/// The buffers of a parameter's moments, by what follows its name.
fn moments(parameter: &Parameter) -> Vec<(&'static str, Buffer)> {
    match parameter.moments {
        Moments::F32 { first, second } => vec![("first", first), ("second", second)],
        Moments::Int8 { codes: [first, second], scales: [first_scales, second_scales] } => {
            vec![("first", first), ("second", second), ("first.scales", first_scales), ("second.scales", second_scales)]
        }
    }
}

/// The bytes of a buffer of numbers or codes.
fn downloaded(device: &mut dyn Device, buffer: Buffer) -> Vec<u8> {
    if buffer.dtype() == Dtype::U8 {
        return device.download_bytes(buffer);
    }
    let mut values = vec![0.0; buffer.length()];
    device.download(buffer, &mut values);
    bytes_of(&values).to_vec()
}

impl Model {
    /// Writes moments and counts of updates.
    pub fn write_optimizer(&self, device: &mut dyn Device, path: &Path) -> Result<(), Error> {
        let parameters = self.parameters();
        let mut places = vec![Place::new(UPDATES.into(), Dtype::I32, vec![parameters.len()])];
        for parameter in parameters {
            let place = |(what, buffer): (&str, Buffer)| {
                Place::new(format!("{}.{what}", parameter.name), buffer.dtype(), vec![buffer.length()])
            };
            places.extend(moments(parameter).into_iter().map(place));
        }
        let shard = Shard::create(path, places)?;
        let updates: Vec<i32> = parameters.iter().map(|parameter| parameter.steps as i32).collect();
        shard.write(UPDATES, bytes_of(&updates))?;
        for parameter in parameters {
            for (what, buffer) in moments(parameter) {
                shard.write(&format!("{}.{what}", parameter.name), &downloaded(device, buffer))?;
            }
        }
        shard.finish()
    }

    /// Reads what [`Model::write_optimizer`] has written; everything must be there and fit.
    pub fn read_optimizer(&mut self, device: &mut dyn Device, path: &Path) -> Result<(), Error> {
        let file = Checkpoint::open_file(path)?;
        let updates = file.whole_numbers(UPDATES)?;
        if updates.len() != self.parameters().len() {
            let problem = format!("has {} numbers; {} are needed", updates.len(), self.parameters().len());
            return Err(Error::tensor(path, UPDATES, problem));
        }
        let updates: Vec<u32> = updates.into_iter().map(|count| count as u32).collect();
        for parameter in self.parameters() {
            for (what, buffer) in moments(parameter) {
                let name = format!("{}.{what}", parameter.name);
                let tensor = file.any(&name)?;
                if tensor.dtype != buffer.dtype() || tensor.shape != [buffer.length()] {
                    let found = format!("is {:?} {:?}", tensor.dtype, tensor.shape);
                    let problem =
                        format!("{found}, and this run keeps it as {:?} [{}]", buffer.dtype(), buffer.length());
                    return Err(Error::tensor(path, name, problem));
                }
                device.upload(buffer, tensor.bytes);
                tensor.forget();
            }
        }
        self.set_updates(&updates);
        Ok(())
    }

    /// Writes all values that are trained, under their own names.
    pub fn write_values(&self, device: &mut dyn Device, path: &Path) -> Result<(), Error> {
        let place = |parameter: &Parameter| Place::new(parameter.name.clone(), Dtype::F32, parameter.shape.clone());
        let shard = Shard::create(path, self.parameters().iter().map(place).collect())?;
        for parameter in self.parameters() {
            shard.write(&parameter.name, &downloaded(device, parameter.value))?;
        }
        shard.finish()
    }

    /// Reads what [`Model::write_values`] has written.
    pub fn read_values(&self, device: &mut dyn Device, path: &Path) -> Result<(), Error> {
        let file = Checkpoint::open_file(path)?;
        for parameter in self.parameters() {
            let tensor = file.shaped(&parameter.name, &parameter.shape)?;
            if let Some(place) = tensor.not_finite() {
                return Err(Error::tensor(path, parameter.name.as_str(), format!("has no finite number at {place}")));
            }
            device.upload(parameter.value, bytes_of(&tensor.values()));
            tensor.forget();
        }
        Ok(())
    }
}
