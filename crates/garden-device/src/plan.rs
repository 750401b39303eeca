//! What a device holds, buffer by buffer.

use crate::buffer::{Dtype, Purpose};

/// Buffers begin at multiples of this: a cache line, and what the widest vector instructions like.
pub(crate) const ALIGNMENT: usize = 64;

/// One buffer of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedBuffer {
    /// What it is for.
    pub purpose: Purpose,
    /// What it holds, such as `layer 3 gate`.
    pub label: String,
    /// What its values are.
    pub dtype: Dtype,
    /// How many there are.
    pub length: usize,
    /// What it takes, with what is lost to alignment.
    pub bytes: usize,
}

/// Everything that a device was asked for, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The buffers.
    pub buffers: Vec<PlannedBuffer>,
}

impl Plan {
    pub(crate) fn add(&mut self, purpose: Purpose, label: &str, dtype: Dtype, length: usize) -> usize {
        let bytes = (length * dtype.size()).next_multiple_of(ALIGNMENT);
        self.buffers.push(PlannedBuffer { purpose, label: label.to_string(), dtype, length, bytes });
        bytes
    }

    /// The bytes of one purpose.
    pub fn bytes(&self, purpose: Purpose) -> usize {
        self.buffers.iter().filter(|buffer| buffer.purpose == purpose).map(|buffer| buffer.bytes).sum()
    }

    /// All bytes.
    pub fn total(&self) -> usize {
        self.buffers.iter().map(|buffer| buffer.bytes).sum()
    }
}
