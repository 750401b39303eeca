//! The last norm, the head and the loss: only for places whose next token is asked for, and a chunk of them at a time.

use garden_device::{Buffer, Device, Dtype, OutOfMemory, Purpose, Weight, Write};

use crate::config::TextConfig;
use crate::decoder::Norm;
use crate::mode::Mode;

/// Rows of logits that exist at once.
pub(crate) const CHUNK: usize = 64;

/// The norm before the head, and the head [vocabulary, hidden], which may be the embedding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub norm: Norm,
    pub weight: Weight,
    pub gradient: Option<Weight>,
}

/// Room for the loss.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadWorkspace {
    /// Rows that are asked [targets, hidden].
    loss_positions: Buffer,
    /// After the norm [targets, hidden].
    normed: Buffer,
    /// Gradients [targets, hidden].
    gradient: Buffer,
    /// [chunk, vocabulary].
    logits: Buffer,
    /// The loss of each row [targets].
    pub losses: Buffer,
}

impl HeadWorkspace {
    /// Room for so many rows at once; those of the logits are made a chunk at a time.
    pub fn build(
        device: &mut dyn Device,
        text: &TextConfig,
        targets: usize,
        mode: Mode,
    ) -> Result<HeadWorkspace, OutOfMemory> {
        let back = mode.back(targets);
        let mut make = |name: &str, length: usize| device.buffer(Purpose::Workspace, name, Dtype::F32, length);
        Ok(HeadWorkspace {
            loss_positions: make("head inputs", back * text.hidden)?,
            normed: make("head inputs, normed", targets * text.hidden)?,
            gradient: make("head gradient", back * text.hidden)?,
            logits: make("logits of a chunk", CHUNK.min(targets) * text.vocabulary)?,
            losses: make("losses", back)?,
        })
    }
}

/// Chunks of rows: (first, how many).
fn chunks(rows: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rows).step_by(CHUNK).map(move |first| (first, CHUNK.min(rows - first)))
}

impl Head {
    /// The loss of every row that is asked, and the gradient of `scale` times their sum in dx [tokens, hidden].
    pub fn loss(
        &self,
        device: &mut dyn Device,
        text: &TextConfig,
        x: Buffer,
        dx: Buffer,
        places: Buffer,
        targets: Buffer,
        rows: usize,
        scale: f32,
        workspace: &HeadWorkspace,
    ) {
        let part = |buffer: Buffer| buffer.first(rows * text.hidden);
        let (loss_positions, normed, gradient) =
            (part(workspace.loss_positions), part(workspace.normed), part(workspace.gradient));
        device.gather(x, places, loss_positions, rows, text.hidden);
        self.norm.forward(device, loss_positions, normed, rows);
        for (first, count) in chunks(rows) {
            let inputs = normed.part(first * text.hidden, count * text.hidden);
            let logits = workspace.logits.first(count * text.vocabulary);
            device.matmul(inputs, &self.weight, logits, count, 1.0, Write::Set);
            device.cross_entropy(logits, targets.part(first, count), workspace.losses.part(first, count), count, scale);
            if let Some(weight) = &self.gradient {
                device.weight_gradient(logits, inputs, weight, count, 1.0);
            }
            device.matmul_backward(
                logits,
                &self.weight,
                gradient.part(first * text.hidden, count * text.hidden),
                count,
                1.0,
                Write::Set,
            );
        }
        // What the norm gave is needed no more: the gradient of its inputs takes that place.
        self.norm.backward(device, gradient, loss_positions, normed, rows, Write::Set);
        device.zero(dx);
        device.scatter(normed, places, dx, rows, text.hidden);
    }

    /// Logits of every row of x, given to `take` chunk by chunk.
    pub fn logits(
        &self,
        device: &mut dyn Device,
        text: &TextConfig,
        x: Buffer,
        rows: usize,
        workspace: &HeadWorkspace,
        mut take: impl FnMut(&[f32]),
    ) {
        let most = workspace.normed.length() / text.hidden;
        let step = CHUNK.min(most).max(1);
        let mut values = vec![0.0; step * text.vocabulary];
        for first in (0..rows).step_by(step) {
            let count = step.min(rows - first);
            let logits = self.chunk(device, text, x.part(first * text.hidden, count * text.hidden), count, workspace);
            device.download(logits, &mut values[..count * text.vocabulary]);
            take(&values[..count * text.vocabulary]);
        }
    }

    /// Logits [rows, vocabulary] of x [rows, hidden], of no more rows than there is room for.
    pub fn chunk(
        &self,
        device: &mut dyn Device,
        text: &TextConfig,
        x: Buffer,
        rows: usize,
        workspace: &HeadWorkspace,
    ) -> Buffer {
        let normed = workspace.normed.first(rows * text.hidden);
        let logits = workspace.logits.first(rows * text.vocabulary);
        self.norm.forward(device, x, normed, rows);
        device.matmul(normed, &self.weight, logits, rows, 1.0, Write::Set);
        logits
    }
}
