//! Samples of a checkpoint, by which it is known again: all names, shapes and dtypes, and some of each tensor's values.
//!
//! Whoever trains or merges changes most values of whole tensors, so a few kilobytes of each tensor show it: a merged adapter changes all rows of its
//! weights, a fine-tune nearly all tensors, and another quantisation codes and scales. A change of a few rows of an embedding or of single values
//! can lie between the samples. Reading grows with the number of tensors (12 KiB of each) and with their size (another 4 KiB per 32 MiB):
//! about 25 MB of 70 GB.

use memmap2::Advice;

use crate::checkpoint::Checkpoint;
use crate::error::Error;

/// Bytes that are read at a place: a page, which costs as much as less would.
const PLACE: usize = 4096;
/// Bytes of a tensor for which there is a further place, besides its beginning, its middle and its end.
const PER_PLACE: usize = 32 << 20;

/// A tensor with some of its bytes.
#[derive(Clone, Debug)]
pub struct TensorSample<'a> {
    /// Its newer name, dtype and shape.
    pub header: String,
    /// Bytes from places all over the tensor, its beginning and its end among them.
    pub places: Vec<&'a [u8]>,
}

impl Checkpoint {
    /// A sample of each tensor, in the order of their newer names: the same however they are divided into files. Nothing is read before a
    /// sample's bytes are.
    pub fn samples(&self) -> Result<Vec<TensorSample<'_>>, Error> {
        for file in &self.files {
            // Otherwise the kernel would read far more around each place. If it does not listen, that only takes longer.
            drop(file.map.advise(Advice::Random));
        }
        let sample = |(name, place): (&String, &super::Place)| {
            self.is_there(place)?;
            let header = format!("{name} {:?} {:?}", place.dtype, place.shape);
            Ok(TensorSample { header, places: places(self.bytes_of(place).0) })
        };
        self.tensors.iter().map(sample).collect()
    }
}

/// Parts of some bytes, evenly from the beginning to the end; all of them if they are few.
fn places(bytes: &[u8]) -> Vec<&[u8]> {
    let gaps = 2 + bytes.len() / PER_PLACE;
    if bytes.len() <= (gaps + 1) * PLACE {
        return vec![bytes];
    }
    let last = bytes.len() - PLACE;
    (0..=gaps)
        .map(|number| last / gaps * number + last % gaps * number / gaps)
        .map(|first| &bytes[first..][..PLACE])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_reach_from_the_beginning_to_the_end() {
        let bytes: Vec<u8> =
            (0..(PER_PLACE + 3 * PLACE + 5) as u32).map(|number| (number >> 12) as u8 ^ number as u8).collect();
        let found = places(&bytes);
        assert_eq!(found.len(), 4);
        assert!(found.iter().all(|place| place.len() == PLACE));
        assert_eq!((found[0], found[3]), (&bytes[..PLACE], &bytes[bytes.len() - PLACE..]));
        assert_eq!(places(&bytes[..3 * PLACE]), [&bytes[..3 * PLACE]]);
        assert_eq!(places(&[]), [&[] as &[u8]]);
        assert_eq!(places(&bytes[..3 * PLACE + 1]).concat().len(), 3 * PLACE);
    }
}
