//! Several adapters over one base, answered in the same batch.
//!
//! The A of all of them lie one below the other and their B side by side, as one adapter of many times the rank: t = x A^T is one product for all rows.
//! Then each row keeps the columns of its own adapter, everything else becomes zero, and one product adds s B of each row's own. A batch in which no row has an
//! adapter leaves the whole of it out.

use garden_device::{Buffer, Device, Dtype, Purpose, Rows};
use garden_input::Config;

use crate::checkpoint::Checkpoint;
use crate::checkpoint::adapter::Adapter;
use crate::checkpoint::layout::{Layout, Width};
use crate::checkpoint::nf4_checkpoint::FourBit;
use crate::engine::{Engine, EngineLimits};
use crate::error::Error;
use crate::model::upload;
use crate::network::lora::{LoraConfig, Targets};
use crate::network::parameters::{ADAPTER_PREFIX, FrozenAdapter, RowFactors};
use crate::network::pass::Adapters;

/// How many adapters a bank has room for; buffers are sized for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BankLimits {
    /// Adapters at the same time.
    pub slots: usize,
    /// The largest rank of one of their linears.
    pub rank: usize,
    /// The linears that they may have.
    pub targets: Targets,
}

/// Adapters on the device.
#[derive(Debug)]
pub(super) struct Bank {
    slots: usize,
    /// Columns of each.
    rank: usize,
    places: Vec<FrozenAdapter>,
    /// The adapter of each row of a pass, i32.
    owners: Buffer,
    /// Whether a slot has an adapter.
    is_filled: Vec<bool>,
}

impl Engine {
    /// Builds a model with room for several adapters; each row says which one it is answered with.
    pub fn with_bank(
        device: &mut dyn Device,
        config: &Config,
        checkpoint: &Checkpoint,
        bank: &BankLimits,
        four_bit: Option<&FourBit>,
        limits: EngineLimits,
    ) -> Result<Engine, Error> {
        let (slots, rank) = (bank.slots, Width::inner(device.profile(), bank.rank).padded);
        let all = slots * rank;
        // Each adapter's own scale is in its B.
        let lora = LoraConfig { rank: all, alpha: all as f32, targets: bank.targets.clone(), ..LoraConfig::default() };
        let none = RowFactors::new();
        let (mut engine, places) =
            Engine::with_idle_adapter(device, config, checkpoint, Some(&lora), &none, four_bit, limits)?;
        let rows = limits.context.max(limits.rows).max(limits.patches);
        let owners = device.buffer(Purpose::Batch, "adapters of rows", Dtype::I32, rows)?;
        engine.bank = Some(Bank { slots, rank, places, owners, is_filled: vec![false; slots] });
        Ok(engine)
    }

    /// Puts an adapter into a slot of the bank, in place of what was there. No row may be using the slot.
    ///
    /// An adapter that the bank cannot hold is refused before anything is changed: DoRA and `modules_to_save`, which change the base, ranks above the
    /// bank's, and linears that it has no room for.
    pub fn load(&mut self, device: &mut dyn Device, slot: usize, adapter: &Adapter) -> Result<(), Error> {
        let is_used = self.rows.iter().any(|row| row.adapter == Some(slot) && !row.is_finished());
        let Some(bank) = self.bank.as_mut().filter(|bank| slot < bank.slots) else {
            return Err(Error::Adapter(format!("there is no place {slot} for an adapter")));
        };
        if is_used {
            return Err(Error::Adapter(format!("the adapter in place {slot} is in use")));
        }
        bank.check(adapter)?;
        if let Some((_, left)) = &mut self.prefixes {
            let leaving = self.rows.iter_mut().map(|row| &mut row.prefix);
            left.iter_mut().chain(leaving).for_each(|prefix| prefix.forget(slot));
        }
        // Should writing fail, nobody is answered with half an adapter.
        bank.is_filled[slot] = false;
        bank.write(device, slot, adapter)?;
        bank.is_filled[slot] = true;
        Ok(())
    }

    /// Which adapters take part in a pass over rows that all have this one.
    pub(super) fn adapters_of_all(&self, device: &mut dyn Device, adapter: Option<usize>, rows: usize) -> Adapters {
        self.adapters_of(device, &vec![adapter; rows])
    }

    /// Which adapters take part in a pass over these rows.
    pub(super) fn adapters_of(&self, device: &mut dyn Device, rows: &[Option<usize>]) -> Adapters {
        let Some(bank) = &self.bank else { return Adapters::Own };
        if rows.iter().all(Option::is_none) {
            return Adapters::Off;
        }
        let owners: Vec<i32> = rows.iter().map(|adapter| adapter.map_or(-1, |slot| slot as i32)).collect();
        Adapters::OfRows { owners: upload(device, bank.owners, &owners), rank: bank.rank, slots: bank.slots }
    }

    /// Refuses a row whose adapter is not here.
    pub(super) fn check_adapter(&self, number: usize, adapter: Option<usize>) -> Result<(), Error> {
        let Some(slot) = adapter else { return Ok(()) };
        let is_here = self.bank.as_ref().is_some_and(|bank| bank.is_filled.get(slot) == Some(&true));
        match is_here {
            true => Ok(()),
            false => {
                Err(Error::Adapter(format!("row {number} wants the adapter in place {slot}, where there is none")))
            }
        }
    }
}

impl Bank {
    /// The name of the linear that a place belongs to, and whether it is of A.
    fn linear_of(place: &FrozenAdapter) -> (&str, bool) {
        let name = place.name.strip_prefix(ADAPTER_PREFIX).unwrap_or(&place.name);
        match name.strip_suffix(".lora_A.weight") {
            Some(module) => (module, true),
            None => (name.strip_suffix(".lora_B.weight").unwrap_or(name), false),
        }
    }

    /// Refuses an adapter that has no room here.
    fn check(&self, adapter: &Adapter) -> Result<(), Error> {
        let refused = |why: &str| Err(Error::Adapter(format!("`{}` {why}", adapter.path().display())));
        if adapter.is_dora {
            return refused("is a DoRA adapter, which changes the base: it cannot share one with other adapters");
        }
        if !adapter.config.modules_to_save.is_empty() {
            return refused("has weights of the base in `modules_to_save`: it cannot share one with other adapters");
        }
        for (module, pair) in &adapter.pairs()? {
            let width = |is_down: bool| {
                let place = self.places.iter().find(|place| Bank::linear_of(place) == (module.as_str(), is_down));
                place.map(|place| place.shape[usize::from(is_down)])
            };
            let (Some(inputs), Some(outputs)) = (width(true), width(false)) else {
                return refused(&format!("adapts `{module}`, for which there is no room"));
            };
            adapter.check_shapes(module, pair, &[outputs, inputs])?;
            if pair.down.shape[0] > self.rank {
                let rank = pair.down.shape[0];
                return refused(&format!("has the rank {rank} in `{module}`; there is room for {}", self.rank));
            }
        }
        Ok(())
    }

    /// Fills the columns of a slot: with zeros wherever the adapter has nothing.
    fn write(&self, device: &mut dyn Device, slot: usize, adapter: &Adapter) -> Result<(), Error> {
        let (pairs, first) = (adapter.pairs()?, slot * self.rank);
        for place in &self.places {
            let ((module, is_down), of_slot) = (Bank::linear_of(place), Width::exact(self.rank));
            let pair = pairs.get(module);
            let (rows, layout): (Rows, Layout) = match is_down {
                true => (place.place.rows.below(first).first(self.rank), Layout { rows: of_slot, ..place.layout }),
                false => (place.place.rows.columns(first, self.rank), Layout { columns: of_slot, ..place.layout }),
            };
            let mut values = vec![0.0; layout.rows.stored * layout.columns.stored];
            match (pair, is_down) {
                (Some(pair), true) => {
                    let given = pair.down.values();
                    values[..given.len()].copy_from_slice(&given);
                }
                (Some(pair), false) => {
                    let (given, rank) = (pair.up.values(), pair.up.shape[1]);
                    let to = values.chunks_exact_mut(self.rank);
                    for (to, given) in to.zip(given.chunks_exact(rank)) {
                        to.iter_mut().zip(given).for_each(|(to, value)| *to = pair.scale * value);
                    }
                }
                (None, _) => (),
            }
            place.set_part(device, rows, layout, &values);
        }
        pairs.values().for_each(|pair| pair.forget());
        Ok(())
    }
}
