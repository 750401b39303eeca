//! The memory of the CPU device: buffers that are made once, aligned, and given back together.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::borrow::Cow;
use std::slice;

use crate::buffer::{Buffer, Dtype, Purpose};
use crate::device::OutOfMemory;
use crate::plan::{ALIGNMENT, Plan};

use super::widen::widen;

/// The smallest page there is.
const PAGE: usize = 4096;

/// All buffers of a device.
#[derive(Debug, Default)]
pub(super) struct Arena {
    plan: Plan,
    memory: Vec<Memory>,
}

#[derive(Debug)]
struct Memory {
    start: *mut u8,
    layout: Layout,
}

// SAFETY: the pointers are to memory that only the arena owns, and it is reached through the arena alone.
unsafe impl Send for Memory {}
// SAFETY: as above; who writes where is decided by the operations, which check that buffers do not overlap.
unsafe impl Sync for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.layout.size() > 0 {
            // SAFETY: it was allocated with this layout and is given back once.
            unsafe { dealloc(self.start, self.layout) };
        }
    }
}

impl Arena {
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    pub fn buffer(
        &mut self,
        purpose: Purpose,
        label: &str,
        dtype: Dtype,
        length: usize,
    ) -> Result<Buffer, OutOfMemory> {
        let bytes = (length * dtype.size()).next_multiple_of(ALIGNMENT);
        let refused = || OutOfMemory { label: label.to_string(), bytes };
        let layout = Layout::from_size_align(bytes, ALIGNMENT).map_err(|_| refused())?;
        let start = match bytes {
            0 => std::ptr::without_provenance_mut(ALIGNMENT),
            // SAFETY: the size is not zero.
            _ => unsafe { alloc_zeroed(layout) },
        };
        if start.is_null() {
            return Err(refused());
        }
        // The kernel gives pages when they are first touched. What was planned is taken now, so that nothing grows later.
        for page in (0..bytes).step_by(PAGE) {
            // SAFETY: inside the memory that was just allocated.
            unsafe { start.add(page).write_volatile(0) };
        }
        let id = self.memory.len() as u32;
        self.memory.push(Memory { start, layout });
        self.plan.add(purpose, label, dtype, length);
        Ok(Buffer { id, dtype, offset: 0, length })
    }

    fn start(&self, buffer: Buffer) -> *mut u8 {
        let memory = &self.memory[buffer.id as usize];
        assert!(
            (buffer.offset + buffer.length) * buffer.dtype.size() <= memory.layout.size(),
            "a buffer ends beyond its memory"
        );
        // SAFETY: just checked.
        unsafe { memory.start.add(buffer.offset * buffer.dtype.size()) }
    }

    /// The values of a buffer of f32.
    pub fn read(&self, buffer: Buffer) -> &[f32] {
        assert_eq!(buffer.dtype, Dtype::F32, "f32 is needed");
        // SAFETY: inside the memory, which lives as long as the arena; aligned, initialised, and any bits are an f32.
        unsafe { slice::from_raw_parts(self.start(buffer).cast(), buffer.length) }
    }

    /// The values of a buffer of whole numbers.
    pub fn read_whole(&self, buffer: Buffer) -> &[i32] {
        assert_eq!(buffer.dtype, Dtype::I32, "i32 is needed");
        // SAFETY: as in `read`.
        unsafe { slice::from_raw_parts(self.start(buffer).cast(), buffer.length) }
    }

    /// The values of a buffer of 16-bit floating point.
    pub fn read_half(&self, buffer: Buffer) -> &[u16] {
        assert!(matches!(buffer.dtype, Dtype::Bf16 | Dtype::F16), "bf16 or f16 is needed");
        // SAFETY: as in `read`.
        unsafe { slice::from_raw_parts(self.start(buffer).cast(), buffer.length) }
    }

    /// A buffer of bytes.
    pub fn read_bytes(&self, buffer: Buffer) -> &[u8] {
        assert_eq!(buffer.dtype, Dtype::U8, "bytes are needed");
        // SAFETY: as in `read`.
        unsafe { slice::from_raw_parts(self.start(buffer), buffer.length) }
    }

    /// A buffer of bytes, to be filled; see `write`.
    #[allow(clippy::mut_from_ref)]
    pub fn write_bytes(&self, buffer: Buffer) -> &mut [u8] {
        assert_eq!(buffer.dtype, Dtype::U8, "bytes are needed");
        // SAFETY: as in `write`.
        unsafe { slice::from_raw_parts_mut(self.start(buffer), buffer.length) }
    }

    /// The values of a buffer of f32, to be filled.
    ///
    /// Operations take the arena by shared reference and hold several slices at once; [`Arena::apart`] checks beforehand that what is
    /// written overlaps with nothing else.
    #[allow(clippy::mut_from_ref)]
    pub fn write(&self, buffer: Buffer) -> &mut [f32] {
        assert_eq!(buffer.dtype, Dtype::F32, "f32 is needed");
        // SAFETY: as in `read`; that no other slice overlaps is checked by `apart` in every operation.
        unsafe { slice::from_raw_parts_mut(self.start(buffer).cast(), buffer.length) }
    }

    /// A small buffer such as a bias as f32, whatever its storage.
    pub fn widened(&self, buffer: Buffer) -> Cow<'_, [f32]> {
        match buffer.dtype {
            Dtype::F32 => Cow::Borrowed(self.read(buffer)),
            dtype => {
                let mut values = vec![0.0; buffer.length];
                widen(dtype, self.read_half(buffer), &mut values);
                Cow::Owned(values)
            }
        }
    }

    pub fn upload(&self, to: Buffer, bytes: &[u8]) {
        assert_eq!(bytes.len(), to.length * to.dtype.size(), "as many bytes as the buffer has are needed");
        // SAFETY: the buffer has as many bytes, and the host's slice is no memory of the arena.
        unsafe { self.start(to).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// Panics if anything that is written overlaps with something else that is read or written.
    pub fn apart(&self, read: &[Buffer], written: &[Buffer]) {
        for (index, one) in written.iter().enumerate() {
            for other in read.iter().chain(&written[index + 1..]) {
                let overlaps = one.id == other.id
                    && one.offset < other.offset + other.length
                    && other.offset < one.offset + one.length;
                assert!(!overlaps, "an operation would read what it writes: {one:?} and {other:?}");
            }
        }
    }
}
