//! Copies between host and GPU, through pinned memory if available.

use super::Cuda;
use super::driver::{Address, Driver, Event, Failure, Pinned, Stream};
use crate::buffer::{Buffer, Rows};
use crate::device::DeviceError;

/// Size and number of the pieces of pinned memory for batches.
const STAGING: usize = 8 << 20;
const STAGES: usize = 5;

/// Size and number of the pinned slots for small uploads on the stream of operations: such a slot is free again when the work before it is done,
/// and the next batch must not wait for that.
const NOTE: usize = 4 << 10;
const NOTES: usize = 16;

/// Total pinned bytes.
pub const STAGING_BYTES: usize = STAGING * STAGES + NOTE * NOTES;

/// Pinned memory for uploads, used piece by piece.
pub(super) struct Staging {
    pub(super) pieces: Ring,
    pub(super) notes: Ring,
}

/// Slots used in turn, each reused after its event. Empty if the system pins no memory.
#[derive(Default)]
pub(super) struct Ring {
    pub(super) places: Vec<(Pinned, Event)>,
    pub(super) next: usize,
}

/// Lets uploads of the next batch overtake the work on this one.
pub(super) struct Ahead {
    /// Start of the batch being computed.
    pub(super) began: Event,
    /// End of the uploads ahead.
    pub(super) copied: Event,
    pub(super) is_on: bool,
}

impl Staging {
    pub(super) fn new(driver: &Driver) -> Staging {
        let ring = |count, size| {
            let place = |_| Some((driver.pinned(size)?, driver.event().ok()?));
            (0..count).map(place).collect::<Option<Vec<_>>>().map(|places| Ring { places, next: 0 })
        };
        let (pieces, notes) = ring(STAGES, STAGING).zip(ring(NOTES, NOTE)).unwrap_or_default();
        Staging { pieces, notes }
    }

    pub(super) fn is_there(&self) -> bool {
        !self.pieces.places.is_empty()
    }
}

impl Cuda {
    /// Fills a buffer piece by piece: `fill` receives the byte offset of each piece in the buffer.
    pub(super) fn bring(&mut self, to: Buffer, fill: &dyn Fn(usize, &mut [u8])) {
        let length = to.length() * to.dtype.size();
        if self.failure.is_some() || length == 0 {
            return;
        }
        // It may be what a list of tiles was made from.
        self.tile_lists.clear();
        let address = self.address(to);
        let result = match self.staging.is_there() {
            true => self.bring_pinned(address, length, fill),
            false => self.bring_unpinned(address, length, fill),
        };
        self.latch(result.map_err(|failure| failure.text));
    }

    pub(super) fn bring_pinned(
        &mut self,
        address: Address,
        length: usize,
        fill: &dyn Fn(usize, &mut [u8]),
    ) -> Result<(), Failure> {
        let stream = if self.ahead.as_ref().is_some_and(|ahead| ahead.is_on) { Stream::Copies } else { Stream::Work };
        let is_note = stream == Stream::Work && length <= NOTE;
        let ring = if is_note { &mut self.staging.notes } else { &mut self.staging.pieces };
        for first in (0..length).step_by(STAGING) {
            let number = ring.next % ring.places.len();
            ring.next += 1;
            let (pinned, event) = &ring.places[number];
            event.wait()?;
            let size = STAGING.min(length - first).min(pinned.length);
            // SAFETY: the slot is this large, and the previous copy from it is done; it is reused after this one's event.
            unsafe {
                fill(first, std::slice::from_raw_parts_mut(pinned.start, size));
                self.driver.copy_to(address + first as Address, pinned.start, size, stream)?;
            }
            self.driver.record(event, stream)?;
        }
        Ok(())
    }

    /// Fills rows that may be apart, as many at once as a piece of staging memory holds.
    pub(super) fn bring_rows(&mut self, to: Rows, bytes: &[u8]) {
        let size = to.buffer.dtype.size();
        let (width, stride) = (to.width * size, to.stride * size);
        let count = bytes.len() / width.max(1);
        assert!(to.length(count) <= to.buffer.length() && count * width == bytes.len(), "whole rows are needed");
        if to.width == to.stride || count == 1 {
            let whole = to.buffer.first(bytes.len() / size);
            return self.bring(whole, &|first, piece| piece.copy_from_slice(&bytes[first..first + piece.len()]));
        }
        if self.failure.is_some() {
            return;
        }
        let address = self.address(to.buffer);
        assert!(width <= STAGING, "a row of {width} bytes is longer than a piece of staging memory");
        let at_once = STAGING / width;
        for first in (0..count).step_by(at_once) {
            let rows = at_once.min(count - first);
            let piece = &bytes[first * width..][..rows * width];
            let result = self.bring_piece(address + (first * stride) as Address, stride, piece, width);
            self.latch(result.map_err(|failure| failure.text));
        }
    }

    fn bring_piece(&mut self, to: Address, stride: usize, piece: &[u8], width: usize) -> Result<(), Failure> {
        let rows = piece.len() / width;
        let ring = &mut self.staging.pieces;
        if ring.places.is_empty() {
            // SAFETY: inside the buffer, as the caller has checked; the bytes stay until the wait is over.
            unsafe { self.driver.copy_rows_to(to, stride, piece.as_ptr(), width, rows, Stream::Work)? };
            return self.driver.wait(Stream::Work);
        }
        let number = ring.next % ring.places.len();
        ring.next += 1;
        let (pinned, event) = &ring.places[number];
        event.wait()?;
        // SAFETY: the slot is this large, and the previous copy from it is done; it is reused after this one's event.
        unsafe {
            std::slice::from_raw_parts_mut(pinned.start, piece.len()).copy_from_slice(piece);
            self.driver.copy_rows_to(to, stride, pinned.start, width, rows, Stream::Work)?;
        }
        self.driver.record(event, Stream::Work)
    }

    /// Uploads through memory that is not pinned: the driver copies it, and it is reused when that is done.
    pub(super) fn bring_unpinned(
        &mut self,
        address: Address,
        length: usize,
        fill: &dyn Fn(usize, &mut [u8]),
    ) -> Result<(), Failure> {
        let mut piece = vec![0; STAGING.min(length)];
        for first in (0..length).step_by(STAGING) {
            let piece = &mut piece[..STAGING.min(length - first)];
            fill(first, piece);
            // SAFETY: inside the buffer; the bytes stay until the wait is over.
            unsafe { self.driver.copy_to(address + first as Address, piece.as_ptr(), piece.len(), Stream::Work)? };
            self.driver.wait(Stream::Work)?;
        }
        Ok(())
    }

    pub(super) fn fetch(&mut self, from: Buffer, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.status()?;
        if bytes.is_empty() {
            return Ok(());
        }
        let result = self.driver.copy_from(bytes, self.address(from));
        self.latch(result.map_err(|failure| failure.text));
        self.status()
    }
}
