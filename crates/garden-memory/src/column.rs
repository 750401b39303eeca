//! One quantity of all samples, in as little memory as it takes.
//!
//! Most columns of a trace are either constant (no swap, no shared memory) or whole kibibytes, the kernel's own unit. The
//! first kind takes no memory, the second four bytes a sample; anything else takes eight.

use crate::bytes::KIB;

/// The values of one quantity, some of them absent.
#[derive(Clone, Debug)]
pub(crate) enum Column {
    /// One value at all samples, and their number.
    Same(Option<u64>, usize),
    /// Whole kibibytes.
    Kibibytes(Vec<u32>),
    /// Anything.
    Exact(Vec<u64>),
}

const NO_KIBIBYTES: u32 = u32::MAX;
const NO_VALUE: u64 = u64::MAX;

impl Column {
    /// A column without a value at its first `samples` samples.
    pub(crate) fn absent(samples: usize) -> Column {
        Column::Same(None, samples)
    }

    /// Adds the next sample's value.
    pub(crate) fn push(&mut self, value: Option<u64>) {
        match self {
            Column::Same(_, samples) if *samples == 0 => *self = Column::Same(value, 1),
            Column::Same(same, samples) if *same == value => *samples += 1,
            Column::Same(same, samples) => {
                let (same, samples) = (*same, *samples);
                *self = match kibibytes(same) {
                    Some(kibibytes) => Column::Kibibytes(vec![kibibytes; samples]),
                    None => Column::Exact(vec![same.unwrap_or(NO_VALUE); samples]),
                };
                self.push(value);
            }
            Column::Kibibytes(values) => match kibibytes(value) {
                Some(kibibytes) => values.push(kibibytes),
                None => {
                    let widen = |&value: &u32| if value == NO_KIBIBYTES { NO_VALUE } else { u64::from(value) * KIB };
                    let mut exact: Vec<u64> = values.iter().map(widen).collect();
                    exact.push(value.unwrap_or(NO_VALUE));
                    *self = Column::Exact(exact);
                }
            },
            Column::Exact(values) => values.push(value.unwrap_or(NO_VALUE)),
        }
    }

    /// The value at a sample.
    pub(crate) fn get(&self, sample: usize) -> Option<u64> {
        match self {
            Column::Same(same, samples) => same.filter(|_| sample < *samples),
            Column::Kibibytes(values) => {
                let value = values.get(sample).copied().filter(|&value| value != NO_KIBIBYTES)?;
                Some(u64::from(value) * KIB)
            }
            Column::Exact(values) => values.get(sample).copied().filter(|&value| value != NO_VALUE),
        }
    }
}

/// A value in kibibytes, if it is a whole number of them and fits.
fn kibibytes(value: Option<u64>) -> Option<u32> {
    match value {
        None => Some(NO_KIBIBYTES),
        Some(bytes) if bytes.is_multiple_of(KIB) => {
            u32::try_from(bytes / KIB).ok().filter(|&kibibytes| kibibytes != NO_KIBIBYTES)
        }
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back_as_they_went_in() {
        let largest = (u64::from(u32::MAX) - 1) * KIB;
        let cases: [&[Option<u64>]; 7] = [
            &[],
            &[Some(0), Some(0), Some(0)],
            &[None, Some(4096), None, Some(8192)],
            &[Some(4096), Some(largest), Some(largest + KIB), Some(7)],
            &[Some(7), Some(7), Some(4096)],
            &[Some(NO_VALUE - 1), None],
            &[Some(0), Some(1), None, Some(1024)],
        ];
        for values in cases {
            for before in [0, 2] {
                let mut column = Column::absent(before);
                values.iter().for_each(|&value| column.push(value));
                let found: Vec<Option<u64>> = (0..before + values.len() + 1).map(|index| column.get(index)).collect();
                let expected: Vec<Option<u64>> = [&vec![None; before][..], values, &[None]].concat();
                assert_eq!(found, expected);
            }
        }
    }
}
