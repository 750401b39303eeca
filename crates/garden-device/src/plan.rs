//! A memory plan: a device's buffers and their addresses, in the one layout that planning and computing devices share.

use crate::buffer::{Buffer, Dtype, Purpose};
use crate::device::OutOfMemory;

/// One buffer of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedBuffer {
    /// Its purpose.
    pub purpose: Purpose,
    /// What it holds, such as `layer 3 gate`.
    pub label: String,
    /// Its dtype.
    pub dtype: Dtype,
    /// Number of values.
    pub length: usize,
    /// The memory that it adds, including alignment: 0 if it overlaps others that are never in use at the same time.
    pub bytes: usize,
}

/// Memory shared by several buffers; see [`crate::Device::open_block`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block(u32);

/// One allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Memory {
    bytes: usize,
    /// Offset of the next buffer of a block.
    next: usize,
    /// The buffers of a block, by branch: each branch starts at the beginning of the block.
    branches: Vec<Vec<usize>>,
}

/// All buffers of a device, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The buffers.
    pub buffers: Vec<PlannedBuffer>,
    alignment: usize,
    memories: Vec<Memory>,
    entered: Option<Block>,
}

impl Plan {
    pub(crate) fn new(alignment: usize) -> Plan {
        Plan { buffers: Vec::new(), alignment, memories: Vec::new(), entered: None }
    }

    /// Adds a buffer: in the block that was entered, or with separate memory.
    pub(crate) fn add(
        &mut self,
        purpose: Purpose,
        label: &str,
        dtype: Dtype,
        length: usize,
    ) -> Result<Buffer, OutOfMemory> {
        let refused = || OutOfMemory { label: label.to_string(), bytes: usize::MAX };
        let bytes = length.checked_mul(dtype.size()).and_then(|bytes| bytes.checked_next_multiple_of(self.alignment));
        let bytes = bytes.filter(|bytes| *bytes <= isize::MAX as usize).ok_or_else(refused)?;
        let index = self.buffers.len();
        self.buffers.push(PlannedBuffer { purpose, label: label.to_string(), dtype, length, bytes });
        let (id, begin) = match self.entered {
            None => {
                self.memories.push(Memory { bytes, ..Memory::default() });
                (self.memories.len() as u32 - 1, 0)
            }
            Some(Block(id)) => {
                let memory = &mut self.memories[id as usize];
                let begin = memory.next;
                memory.next = begin.checked_add(bytes).ok_or_else(refused)?;
                memory.bytes = memory.bytes.max(memory.next);
                if let Some(branch) = memory.branches.last_mut() {
                    branch.push(index);
                }
                (id, begin)
            }
        };
        Ok(Buffer { id, dtype, offset: begin / dtype.size(), length })
    }

    pub(crate) fn open(&mut self) -> Block {
        self.memories.push(Memory { branches: vec![Vec::new()], ..Memory::default() });
        Block(self.memories.len() as u32 - 1)
    }

    pub(crate) fn enter(&mut self, block: Option<Block>) {
        self.entered = block;
    }

    pub(crate) fn branch(&mut self, block: Block) {
        let memory = &mut self.memories[block.0 as usize];
        memory.next = 0;
        memory.branches.push(Vec::new());
    }

    /// Closes a block. Its largest branch counts; the others overlap it and add nothing.
    pub(crate) fn close(&mut self, block: Block, dtype: Dtype) -> Buffer {
        let memory = &mut self.memories[block.0 as usize];
        let branches = std::mem::take(&mut memory.branches);
        let bytes = |branch: &[usize], buffers: &[PlannedBuffer]| -> usize {
            branch.iter().map(|index| buffers[*index].bytes).sum()
        };
        // Of equal branches the first counts.
        let sizes = branches.iter().map(|branch| bytes(branch, &self.buffers));
        let largest = sizes.enumerate().max_by_key(|(index, size)| (*size, usize::MAX - index)).map(|(index, _)| index);
        for (index, branch) in branches.iter().enumerate().filter(|(index, _)| Some(*index) != largest) {
            debug_assert!(Some(index) != largest);
            branch.iter().for_each(|index| self.buffers[*index].bytes = 0);
        }
        Buffer { id: block.0, dtype, offset: 0, length: memory.bytes / dtype.size() }
    }

    /// Size in bytes of the allocation that a buffer is part of.
    pub(crate) fn memory_bytes(&self, buffer: Buffer) -> usize {
        self.memories[buffer.id as usize].bytes
    }

    /// Whether new buffers get separate memory.
    pub(crate) fn is_outside(&self) -> bool {
        self.entered.is_none()
    }

    /// Bytes of one purpose.
    pub fn bytes(&self, purpose: Purpose) -> usize {
        self.buffers.iter().filter(|buffer| buffer.purpose == purpose).map(|buffer| buffer.bytes).sum()
    }

    /// Total bytes.
    pub fn total(&self) -> usize {
        self.buffers.iter().map(|buffer| buffer.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn branches_of_a_block_lie_over_each_other() {
        let mut plan = Plan::new(64);
        let alone = plan.add(Purpose::Batch, "alone", Dtype::F32, 3).unwrap();
        let block = plan.open();
        plan.enter(Some(block));
        let a = plan.add(Purpose::Workspace, "a", Dtype::Bf16, 100).unwrap();
        let b = plan.add(Purpose::Workspace, "b", Dtype::F32, 5).unwrap();
        plan.branch(block);
        let c = plan.add(Purpose::RecomputedActivations, "c", Dtype::F32, 10).unwrap();
        plan.enter(None);
        let whole = plan.close(block, Dtype::U8);
        assert_eq!((alone.offset, a.offset, b.offset * 4, c.offset, whole.length), (0, 0, 256, 0, 320));
        assert_eq!(a.id, c.id);
        assert_eq!((plan.total(), plan.bytes(Purpose::Workspace)), (64 + 320, 320));
        assert_eq!(plan.bytes(Purpose::RecomputedActivations), 0);
    }

    #[test]
    fn lengths_that_no_machine_has_are_refused() {
        let mut plan = Plan::new(64);
        assert!(plan.add(Purpose::Batch, "large", Dtype::F32, usize::MAX / 2).is_err());
        assert!(plan.add(Purpose::Batch, "large", Dtype::U8, usize::MAX).is_err());
    }
}
