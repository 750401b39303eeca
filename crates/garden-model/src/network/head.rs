//! The last norm, the LM head and the loss: only for positions that count in the loss, and a chunk of them at a time.

use garden_device::{Buffer, Device, DeviceError, Dtype, OutOfMemory, Purpose, Rows, Weight, Write};

use crate::network::activations::activations;
use crate::network::decoder::Norm;
use crate::network::mode::Mode;
use garden_input::TextConfig;

/// The norm before the head, and the head `[vocabulary, hidden]`, which may be the embedding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub norm: Norm,
    pub weight: Weight,
    pub gradient: Option<Weight>,
}

/// Buffers of the loss.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadWorkspace {
    /// Hidden states at loss positions `[targets, hidden]`.
    inputs: Buffer,
    /// Hidden states after the norm `[targets, hidden]`.
    normed: Buffer,
    /// Their gradients `[targets, hidden]`.
    gradient: Buffer,
    /// `[chunk, vocabulary]`.
    pub logits: Buffer,
    /// The loss of each row, f32 `[targets]`.
    pub losses: Buffer,
    /// 1 where the target is the first of the largest logits, else 0, f32 `[targets]`.
    pub hits: Buffer,
    /// Rows of logits that exist at once.
    pub chunk: usize,
}

/// Positions and targets of the loss.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// Positions that count in the loss, i32 `[rows]`.
    pub positions: Buffer,
    /// Their target tokens, i32 `[rows]`.
    pub targets: Buffer,
    pub rows: usize,
    /// The step's scalars, for the loss scale.
    pub scalars: Buffer,
}

impl HeadWorkspace {
    /// Allocates buffers for `targets` rows; logits are computed a chunk at a time.
    pub fn build(
        device: &mut dyn Device,
        text: &TextConfig,
        targets: usize,
        mode: Mode,
    ) -> Result<HeadWorkspace, OutOfMemory> {
        let back = mode.back(targets);
        let chunk = device.profile().logit_rows.min(targets);
        let losses = device.buffer(Purpose::Workspace, "losses", Dtype::F32, back)?;
        let hits = device.buffer(Purpose::Workspace, "hits", Dtype::F32, back)?;
        let mut make =
            |name: &str, rows: usize, width: usize| activations(device, Purpose::Workspace, name, rows, width);
        Ok(HeadWorkspace {
            inputs: make("head inputs", back, text.hidden)?,
            normed: make("head inputs, normed", targets, text.hidden)?,
            gradient: make("head gradient", back, text.hidden)?,
            logits: make("logits of a chunk", chunk, text.vocabulary)?,
            losses,
            hits,
            chunk: chunk.max(1),
        })
    }

    /// Chunks of rows: (first, count).
    fn chunks(&self, rows: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let chunk = self.chunk;
        (0..rows).step_by(chunk).map(move |first| (first, chunk.min(rows - first)))
    }
}

impl Head {
    /// The loss of every target, whether it is a hit, and the gradient of the loss scale times their sum in dx `[tokens, hidden]`.
    pub fn loss(
        &self,
        device: &mut dyn Device,
        text: &TextConfig,
        x: Buffer,
        dx: Rows,
        asked: Asked,
        workspace: &HeadWorkspace,
    ) {
        let Asked { positions, targets, rows, scalars } = asked;
        let part = |buffer: Buffer| buffer.first(rows * text.hidden);
        let [inputs, normed, gradient] = [workspace.inputs, workspace.normed, workspace.gradient].map(part);
        let of = |buffer: Buffer| Rows::dense(buffer, text.hidden);
        device.gather(of(x), positions, of(inputs), rows);
        self.norm.forward(device, inputs, of(normed), rows);
        for (first, count) in workspace.chunks(rows) {
            let [normed, gradient] =
                [normed, gradient].map(|buffer| of(buffer.part(first * text.hidden, count * text.hidden)));
            let logits = workspace.logits.first(count * text.vocabulary);
            let logit_rows = Rows::dense(logits, text.vocabulary);
            device.matmul(normed, &self.weight, logit_rows, count, 1.0, Write::Set);
            let [targets, losses, hits] =
                [targets, workspace.losses, workspace.hits].map(|buffer| buffer.part(first, count));
            device.cross_entropy(logits, targets, losses, hits, count, scalars);
            if let Some(weight) = &self.gradient {
                device.weight_gradient(logit_rows, normed, weight, count, 1.0);
            }
            device.matmul_backward(logit_rows, &self.weight, gradient, count, 1.0, Write::Set);
        }
        // The norm's output is no longer needed: the gradient of its inputs takes its place.
        self.norm.backward(device, gradient, inputs, of(normed), rows, Write::Set);
        device.zero(dx.buffer);
        device.scatter(of(normed), positions, dx, rows);
    }

    /// Logits of every row of x, passed to `take` chunk by chunk.
    pub fn logits(
        &self,
        device: &mut dyn Device,
        text: &TextConfig,
        x: Buffer,
        rows: usize,
        workspace: &HeadWorkspace,
        mut take: impl FnMut(&[f32]),
    ) -> Result<(), DeviceError> {
        let mut values = vec![0.0; workspace.chunk * text.vocabulary];
        for (first, count) in workspace.chunks(rows) {
            let x = x.part(first * text.hidden, count * text.hidden);
            let logits = self.chunk(device, text, x, count, workspace);
            device.download(logits, &mut values[..count * text.vocabulary])?;
            take(&values[..count * text.vocabulary]);
        }
        Ok(())
    }

    /// Logits `[rows, vocabulary]` of x `[rows, hidden]`, for at most a chunk of rows.
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
        let normed = Rows::dense(normed, text.hidden);
        self.norm.forward(device, x, normed, rows);
        device.matmul(normed, &self.weight, Rows::dense(logits, text.vocabulary), rows, 1.0, Write::Set);
        logits
    }
}
