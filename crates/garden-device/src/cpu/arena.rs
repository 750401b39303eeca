//! The memory of the CPU device: pieces allocated once, aligned, and freed together.
//!
//! All unsafe access to it is here. An operation asks once for everything that it reads and writes; the same call that makes the slices checks
//! that nothing written overlaps with anything else, and the slices borrow the arena, so no others can exist beside them.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::HashMap;
use std::slice;

use crate::buffer::{Buffer, Dtype};

/// The smallest page size.
const PAGE: usize = 4096;

/// All memory of a device, by buffer id.
#[derive(Debug, Default)]
pub(super) struct Arena {
    memory: HashMap<u32, Memory>,
}

#[derive(Debug)]
struct Memory {
    start: *mut u8,
    layout: Layout,
}

// SAFETY: the pointer is to memory that only the arena owns; it may be used from any thread that has the arena.
unsafe impl Send for Memory {}
// SAFETY: through a shared reference to the arena nothing can be reached.
unsafe impl Sync for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.layout.size() > 0 {
            // SAFETY: it was allocated with this layout and is freed once.
            unsafe { dealloc(self.start, self.layout) };
        }
    }
}

impl Arena {
    /// Allocates the memory of buffers with this id, replacing any before; `None` if the system has no more.
    pub fn allocate(&mut self, id: u32, bytes: usize, alignment: usize) -> Option<()> {
        let layout = Layout::from_size_align(bytes, alignment).ok()?;
        let start = match bytes {
            0 => std::ptr::without_provenance_mut(alignment),
            // SAFETY: the size is not zero.
            _ => unsafe { alloc_zeroed(layout) },
        };
        if start.is_null() {
            return None;
        }
        // The kernel provides pages when they are first touched. Planned memory is touched now, so that nothing grows later.
        for page in (0..bytes).step_by(PAGE) {
            // SAFETY: inside the memory just allocated.
            unsafe { start.add(page).write_volatile(0) };
        }
        self.memory.insert(id, Memory { start, layout });
        Some(())
    }

    /// The start of a buffer, after checking that it ends inside its memory.
    fn start(&self, buffer: Buffer) -> *mut u8 {
        let memory =
            self.memory.get(&buffer.id).unwrap_or_else(|| panic!("{buffer:?} is used before its block is closed"));
        let bytes = bytes_of(buffer);
        assert!(bytes.end <= memory.layout.size(), "{buffer:?} ends beyond its memory");
        // SAFETY: just checked.
        unsafe { memory.start.add(bytes.start) }
    }

    /// Views of what an operation reads and writes.
    ///
    /// # Panics
    /// If anything written overlaps with something else.
    pub fn views<const R: usize, const W: usize>(
        &mut self,
        read: [Buffer; R],
        written: [Buffer; W],
    ) -> ([View<'_>; R], [ViewMut<'_>; W]) {
        apart(&read, &written);
        let arena = &*self;
        // SAFETY: inside the memory, initialised, borrowed from the arena; what is written overlaps with nothing else, as just checked.
        let views = read.map(|buffer| unsafe {
            View { dtype: buffer.dtype, bytes: slice::from_raw_parts(arena.start(buffer), bytes_of(buffer).len()) }
        });
        // SAFETY: as above.
        let views_mut = written.map(|buffer| unsafe {
            let bytes = slice::from_raw_parts_mut(arena.start(buffer), bytes_of(buffer).len());
            ViewMut { dtype: buffer.dtype, bytes }
        });
        (views, views_mut)
    }

    pub fn upload(&mut self, to: Buffer, bytes: &[u8]) {
        let (_, [to]) = self.views([], [to]);
        assert_eq!(bytes.len(), to.bytes.len(), "as many bytes as the buffer has are needed");
        to.bytes.copy_from_slice(bytes);
    }
}

/// A buffer's byte range in its memory.
fn bytes_of(buffer: Buffer) -> std::ops::Range<usize> {
    let size = buffer.dtype.size();
    let end = buffer.offset.checked_add(buffer.length).and_then(|end| end.checked_mul(size));
    let end = end.unwrap_or_else(|| panic!("{buffer:?} has no end"));
    buffer.offset * size..end
}

/// Panics if anything written overlaps with anything else read or written.
pub(crate) fn apart(read: &[Buffer], written: &[Buffer]) {
    for (index, one) in written.iter().enumerate() {
        for other in read.iter().chain(&written[index + 1..]) {
            let (a, b) = (bytes_of(*one), bytes_of(*other));
            let overlaps = one.id == other.id && a.start < b.end && b.start < a.end;
            assert!(!overlaps, "an operation would read what it writes: {one:?} and {other:?}");
        }
    }
}

/// Values of a buffer that is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct View<'a> {
    pub dtype: Dtype,
    pub bytes: &'a [u8],
}

/// Values of a buffer that is written.
#[derive(Debug)]
pub(super) struct ViewMut<'a> {
    pub dtype: Dtype,
    pub bytes: &'a mut [u8],
}

impl<'a> View<'a> {
    pub fn f32(self) -> &'a [f32] {
        assert_eq!(self.dtype, Dtype::F32, "f32 is needed");
        bytemuck::cast_slice(self.bytes)
    }

    pub fn i32(self) -> &'a [i32] {
        assert_eq!(self.dtype, Dtype::I32, "i32 is needed");
        bytemuck::cast_slice(self.bytes)
    }

    /// bf16 or f16, as bits.
    pub fn half(self) -> &'a [u16] {
        assert!(matches!(self.dtype, Dtype::Bf16 | Dtype::F16), "bf16 or f16 is needed");
        bytemuck::cast_slice(self.bytes)
    }

    pub fn u8(self) -> &'a [u8] {
        assert_eq!(self.dtype, Dtype::U8, "bytes are needed");
        self.bytes
    }
}

impl<'a> ViewMut<'a> {
    pub fn f32(self) -> &'a mut [f32] {
        assert_eq!(self.dtype, Dtype::F32, "f32 is needed");
        bytemuck::cast_slice_mut(self.bytes)
    }

    pub fn u8(self) -> &'a mut [u8] {
        assert_eq!(self.dtype, Dtype::U8, "bytes are needed");
        self.bytes
    }
}
