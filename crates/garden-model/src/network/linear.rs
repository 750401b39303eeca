//! A linear layer: frozen with a LoRA adapter, or with its own gradients.

use garden_device::{Buffer, Device, OutOfMemory, Plus, Purpose, Seed, Weight, Write};

use crate::checkpoint::layout::Width;
use crate::network::activations::activations;
use crate::network::lora::LoraConfig;
use crate::network::mode::Mode;
use crate::network::pass::Pass;

/// y `[rows, out]` = x `[rows, in]` W^T + b + scale (drop(x) A^T) B^T.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Linear {
    /// `[out, in]`.
    pub weight: Weight,
    pub weight_gradient: Option<Weight>,
    /// `[out]`.
    pub bias: Option<Buffer>,
    pub bias_gradient: Option<Buffer>,
    pub lora: Option<Lora>,
}

/// A LoRA adapter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lora {
    /// A `[rank, in]`.
    pub down: Weight,
    pub down_gradient: Option<Weight>,
    /// B `[out, rank]`.
    pub up: Weight,
    pub up_gradient: Option<Weight>,
    pub scale: f32,
    pub dropout: f32,
    /// Index among the model's adapters, so that each drops other inputs.
    pub number: u64,
    /// Index among its layer's adapters.
    pub place: usize,
}

/// Buffers shared by all adapters, in turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinearWorkspace {
    /// A x `[rows, rank]`.
    narrow: Option<Buffer>,
    /// Its gradient `[rows, rank]`.
    narrow_gradient: Option<Buffer>,
    /// x after dropout `[rows, in]`, or the gradient on the way back.
    dropped: Option<Buffer>,
}

impl LinearWorkspace {
    /// Allocates buffers for `rows` rows; `lora` includes the widest input of any adapter.
    pub fn build(
        device: &mut dyn Device,
        lora: Option<(&LoraConfig, usize)>,
        rows: usize,
        mode: Mode,
    ) -> Result<LinearWorkspace, OutOfMemory> {
        let mut workspace = LinearWorkspace { narrow: None, narrow_gradient: None, dropped: None };
        let Some((lora, widest)) = lora else { return Ok(workspace) };
        let rank = Width::inner(device.profile(), lora.rank).padded;
        let mut make =
            |label: &str, width: usize| activations(device, Purpose::Workspace, label, rows, width).map(Some);
        workspace.narrow = make("adapter", rank)?;
        if mode == Mode::Training {
            workspace.narrow_gradient = make("adapter gradient", rank)?;
            workspace.dropped = if lora.dropout > 0.0 { make("dropped inputs", widest)? } else { None };
        }
        Ok(workspace)
    }
}

impl Linear {
    pub fn outputs(&self) -> usize {
        self.weight.rows
    }

    /// Whether it has trainable parameters.
    pub fn is_trained(&self) -> bool {
        self.lora.is_some_and(|lora| lora.up_gradient.is_some()) || self.weight_gradient.is_some()
    }

    /// y = linear(x) + `plus`. With `kept` `[adapters of the layer, rows, rank]`, the low-rank product is saved there for the backward pass.
    pub fn forward(&self, pass: &mut Pass, x: Buffer, y: Buffer, rows: usize, plus: Plus, kept: Option<Buffer>) {
        let Some(lora) = &self.lora else {
            return pass.device.linear(x, &self.weight, self.bias, y, rows, plus);
        };
        let narrow = lora.narrow(pass, x, rows, kept);
        if plus == Plus::Nothing {
            // The adapter's product is cheap to compute and expensive to write; the other product reads it while computing.
            pass.device.matmul(narrow, &lora.up, y, rows, lora.scale, Write::Set);
            pass.device.linear(x, &self.weight, self.bias, y, rows, Plus::Itself);
        } else {
            pass.device.linear(x, &self.weight, self.bias, y, rows, plus);
            pass.device.matmul(narrow, &lora.up, y, rows, lora.scale, Write::Add);
        }
    }

    /// Accumulates gradients of trainable parameters, and computes dx if wanted. `kept` holds the forward pass's low-rank product, if saved.
    pub fn backward(
        &self,
        pass: &mut Pass,
        x: Buffer,
        dy: Buffer,
        dx: Option<(Buffer, Write)>,
        rows: usize,
        kept: Option<Buffer>,
    ) {
        self.backward_input(pass, dy, dx, rows);
        self.backward_weights(pass, x, dy, rows, kept);
    }

    /// First half of the backward pass, which does not need x: dx.
    pub fn backward_input(&self, pass: &mut Pass, dy: Buffer, dx: Option<(Buffer, Write)>, rows: usize) {
        let Some(lora) = &self.lora else {
            if let Some((dx, write)) = dx {
                pass.device.matmul_backward(dy, &self.weight, dx, rows, 1.0, write);
            }
            return;
        };
        let dnarrow = lora.narrow_gradient(pass, dy, rows);
        match dx {
            // As in the forward pass, the adapter's part is written first if possible.
            Some((dx, Write::Set)) if lora.seed(pass).is_none() => {
                pass.device.matmul_backward(dnarrow, &lora.down, dx, rows, 1.0, Write::Set);
                pass.device.matmul_backward(dy, &self.weight, dx, rows, 1.0, Write::Add);
            }
            Some((dx, write)) => {
                pass.device.matmul_backward(dy, &self.weight, dx, rows, 1.0, write);
                lora.add_input_gradient(pass, dnarrow, dx, rows);
            }
            None => {}
        }
    }

    /// Second half: accumulates gradients of trainable parameters. Nothing else may use the adapters' workspace between the two.
    pub fn backward_weights(&self, pass: &mut Pass, x: Buffer, dy: Buffer, rows: usize, kept: Option<Buffer>) {
        if let Some(gradient) = &self.weight_gradient {
            pass.device.weight_gradient(dy, x, gradient, rows, 1.0);
        }
        if let Some(gradient) = self.bias_gradient {
            pass.device.bias_gradient(dy, gradient, rows);
        }
        if let Some(lora) = &self.lora {
            lora.backward_weights(pass, x, dy, rows, kept);
        }
    }
}

/// With t = drop(x) A^T: dB += scale dy^T t, dt = scale dy B, dA += dt^T drop(x), dx += drop(dt A).
impl Lora {
    fn rank(&self) -> usize {
        self.down.rows
    }

    fn seed(&self, pass: &Pass) -> Option<Seed> {
        pass.seed(self.number).filter(|_| self.dropout > 0.0)
    }

    /// The buffer of t `[rows, rank]`: in `kept`, or in the workspace.
    fn place(&self, pass: &Pass, rows: usize, kept: Option<Buffer>) -> Buffer {
        let length = rows * self.rank();
        match kept {
            Some(kept) => kept.part(self.place * length, length),
            None => first(pass.linear.narrow, length),
        }
    }

    /// t = drop(x) A^T `[rows, rank]`.
    fn narrow(&self, pass: &mut Pass, x: Buffer, rows: usize, kept: Option<Buffer>) -> Buffer {
        let narrow = self.place(pass, rows, kept);
        let x = self.dropped(pass, x);
        pass.device.matmul(x, &self.down, narrow, rows, 1.0, Write::Set);
        narrow
    }

    fn dropped(&self, pass: &mut Pass, x: Buffer) -> Buffer {
        let Some(seed) = self.seed(pass) else { return x };
        let dropped = first(pass.linear.dropped, x.length());
        pass.device.dropout(x, dropped, self.dropout, seed, Write::Set);
        dropped
    }

    /// dt = scale dy B `[rows, rank]`.
    fn narrow_gradient(&self, pass: &mut Pass, dy: Buffer, rows: usize) -> Buffer {
        let dnarrow = first(pass.linear.narrow_gradient, rows * self.rank());
        pass.device.matmul_backward(dy, &self.up, dnarrow, rows, self.scale, Write::Set);
        dnarrow
    }

    /// dx += drop(dt A).
    fn add_input_gradient(&self, pass: &mut Pass, dnarrow: Buffer, dx: Buffer, rows: usize) {
        match self.seed(pass) {
            None => pass.device.matmul_backward(dnarrow, &self.down, dx, rows, 1.0, Write::Add),
            Some(seed) => {
                let back = first(pass.linear.dropped, dx.length());
                pass.device.matmul_backward(dnarrow, &self.down, back, rows, 1.0, Write::Set);
                pass.device.dropout(back, dx, self.dropout, seed, Write::Add);
            }
        }
    }

    /// dB += scale dy^T t, dA += dt^T drop(x), with dt from the workspace.
    fn backward_weights(&self, pass: &mut Pass, x: Buffer, dy: Buffer, rows: usize, kept: Option<Buffer>) {
        let x = self.dropped(pass, x);
        let narrow = self.place(pass, rows, kept);
        if kept.is_none() {
            pass.device.matmul(x, &self.down, narrow, rows, 1.0, Write::Set);
        }
        if let Some(gradient) = &self.up_gradient {
            // The LoRA gradient of B, and below that of A.
            pass.device.weight_gradient(dy, narrow, gradient, rows, self.scale);
        }
        if let Some(gradient) = &self.down_gradient {
            let dnarrow = first(pass.linear.narrow_gradient, rows * self.rank());
            pass.device.weight_gradient(dnarrow, x, gradient, rows, 1.0);
        }
    }
}

fn first(buffer: Option<Buffer>, length: usize) -> Buffer {
    buffer.unwrap_or_else(|| panic!("no workspace was made for adapters")).first(length)
}
