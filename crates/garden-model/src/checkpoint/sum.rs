//! W + scale B A in f32, some rows of a weight at a time.

use garden_device::{Buffer, Cpu, Device, Dtype, Purpose, Reserve, Rows, Weight, Write};

use crate::checkpoint::adapter::Pair;
use crate::error::Error;
use crate::model::bytes_of;

/// Values at a time: 4 MiB as f32.
pub(crate) const PIECE: usize = 1 << 20;

/// Values of a weight at a time, in whole rows.
pub(crate) fn piece(columns: usize) -> usize {
    let columns = columns.max(1);
    (PIECE / columns).max(1) * columns
}

/// Buffers for a piece, and the adapter of one weight.
pub(crate) struct Sum {
    cpu: Cpu,
    /// A `[rank, in]`.
    down: Buffer,
    /// Rows of B `[rows, rank]`.
    up: Buffer,
    /// Rows of the weight `[rows, in]`.
    values: Buffer,
    /// All of B `[out, rank]`.
    up_values: Vec<f32>,
    /// The lengths of rows `[out]`; empty without DoRA.
    lengths: Vec<f32>,
}

impl Sum {
    /// Makes room for the largest of some adapters.
    pub fn for_pairs<'a>(threads: usize, pairs: impl Iterator<Item = &'a Pair<'a>>) -> Result<Sum, Error> {
        let (mut down, mut up, mut values) = (0, 0, 0);
        for pair in pairs {
            let ([rank, columns], rows) = ([pair.down.shape[0], pair.down.shape[1]], pair.up.shape[0]);
            let piece = piece(columns).min(rows * columns);
            down = down.max(rank * columns);
            up = up.max(piece / columns.max(1) * rank);
            values = values.max(piece);
        }
        let mut cpu = Cpu::new(threads);
        cpu.reserve(Reserve::default())?;
        let mut make = |label: &str, length| cpu.buffer(Purpose::Workspace, label, Dtype::F32, length);
        let (down, up, values) = (make("adapter A", down)?, make("adapter B", up)?, make("merged", values)?);
        Ok(Sum { cpu, down, up, values, up_values: Vec::new(), lengths: Vec::new() })
    }

    /// Sets the adapter of the next weight.
    pub fn take(&mut self, pair: &Pair<'_>) {
        let down = pair.down.values();
        self.cpu.upload(self.down.first(down.len()), bytes_of(&down));
        self.up_values = pair.up.values();
        self.lengths = pair.lengths.map_or_else(Vec::new, |lengths| lengths.values());
        pair.forget();
    }

    /// Turns whole rows of W into rows of W + scale B A.
    pub fn add(&mut self, pair: &Pair<'_>, first: usize, values: &mut [f32]) -> Result<(), Error> {
        let [rank, columns] = [pair.down.shape[0], pair.down.shape[1]];
        let rows = values.len() / columns;
        let (up, sum) = (self.up.first(rows * rank), self.values.first(values.len()));
        let down = Weight::plain(self.down.first(rank * columns), rank, columns);
        self.cpu.upload(up, bytes_of(&self.up_values[first * rank..(first + rows) * rank]));
        self.cpu.upload(sum, bytes_of(values));
        // The backward pass of a linear is the wanted product: W += scale B A.
        let [b, to] = [Rows::dense(up, rank), Rows::dense(sum, columns)];
        self.cpu.matmul_backward(b, &down, to, rows, pair.scale, Write::Add);
        Ok(self.cpu.download(sum, values)?)
    }

    /// The factors that give rows their lengths, with DoRA; none without.
    pub fn factors(&self, first: usize, sums: &[f32], columns: usize) -> Vec<f32> {
        let lengths = self.lengths.iter().skip(first);
        let factor = |(row, length): (&[f32], &f32)| (f64::from(*length) / row_length(row)) as f32;
        sums.chunks_exact(columns.max(1)).zip(lengths).map(factor).collect()
    }
}

/// The Euclidean length of a row.
fn row_length(row: &[f32]) -> f64 {
    row.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt()
}

/// Multiplies each row by its factor; without factors nothing changes.
pub(crate) fn scale_rows(values: &mut [f32], factors: &[f32]) {
    if factors.is_empty() {
        return;
    }
    let columns = values.len() / factors.len();
    for (row, factor) in values.chunks_exact_mut(columns.max(1)).zip(factors) {
        row.iter_mut().for_each(|value| *value *= factor);
    }
}
