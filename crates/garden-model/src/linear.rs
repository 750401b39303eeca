//! A linear layer, with a low-rank adapter beside a frozen weight or with gradients of its own.

use garden_device::{Buffer, Device, OutOfMemory, Purpose, Seed, Weight, Write};

use crate::activations::activations;
use crate::layout::Width;
use crate::lora::LoraConfig;
use crate::mode::Mode;
use crate::pass::Pass;

/// y [rows, out] = x [rows, in] W^T + b + scale (drop(x) A^T) B^T.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Linear {
    /// [out, in].
    pub weight: Weight,
    pub weight_gradient: Option<Weight>,
    /// [out].
    pub bias: Option<Buffer>,
    pub bias_gradient: Option<Buffer>,
    pub lora: Option<Lora>,
}

/// A low-rank adapter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lora {
    /// A [rank, in].
    pub down: Weight,
    pub down_gradient: Option<Weight>,
    /// B [out, rank].
    pub up: Weight,
    pub up_gradient: Option<Weight>,
    pub scale: f32,
    pub dropout: f32,
    /// Which of the model's adapters it is: each drops other inputs.
    pub number: u64,
}

/// Buffers that all adapters use, one after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinearWorkspace {
    /// A x [rows, rank].
    narrow: Option<Buffer>,
    /// Its gradient [rows, rank].
    narrow_gradient: Option<Buffer>,
    /// x with some values dropped [rows, in], or the gradient that comes back there.
    dropped: Option<Buffer>,
}

impl LinearWorkspace {
    /// For products with so many rows, and for adapters whose widest input has so many values.
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

    /// Whether anything of it is trained.
    pub fn is_trained(&self) -> bool {
        self.lora.is_some_and(|lora| lora.up_gradient.is_some()) || self.weight_gradient.is_some()
    }

    /// y = this of x, or added to y.
    pub fn forward(&self, pass: &mut Pass, x: Buffer, y: Buffer, rows: usize, write: Write) {
        pass.device.matmul(x, &self.weight, y, rows, 1.0, write);
        if let Some(bias) = self.bias {
            pass.device.add_bias(y, bias, rows);
        }
        if let Some(lora) = &self.lora {
            let narrow = lora.narrow(pass, x, rows);
            pass.device.matmul(narrow, &lora.up, y, rows, lora.scale, Write::Add);
        }
    }

    /// Adds to the gradients of what is trained, and gives dx where it is wanted.
    pub fn backward(&self, pass: &mut Pass, x: Buffer, dy: Buffer, dx: Option<(Buffer, Write)>, rows: usize) {
        if let Some(gradient) = &self.weight_gradient {
            pass.device.weight_gradient(dy, x, gradient, rows, 1.0);
        }
        if let Some(gradient) = self.bias_gradient {
            pass.device.bias_gradient(dy, gradient, rows);
        }
        if let Some((dx, write)) = dx {
            pass.device.matmul_backward(dy, &self.weight, dx, rows, 1.0, write);
        }
        if let Some(lora) = &self.lora {
            lora.backward(pass, x, dy, dx.map(|dx| dx.0), rows);
        }
    }
}

impl Lora {
    fn rank(&self) -> usize {
        self.down.rows
    }

    fn seed(&self, pass: &Pass) -> Option<Seed> {
        pass.seed(self.number).filter(|_| self.dropout > 0.0)
    }

    /// drop(x) A^T [rows, rank].
    fn narrow(&self, pass: &mut Pass, x: Buffer, rows: usize) -> Buffer {
        let narrow = first(pass.linear.narrow, rows * self.rank());
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

    /// With t = drop(x) A^T: dB += scale dy^T t, dt = scale dy B, dA += dt^T drop(x), dx += drop(dt A).
    fn backward(&self, pass: &mut Pass, x: Buffer, dy: Buffer, dx: Option<Buffer>, rows: usize) {
        let narrow = self.narrow(pass, x, rows);
        if let Some(gradient) = &self.up_gradient {
            pass.device.weight_gradient(dy, narrow, gradient, rows, self.scale);
        }
        let dnarrow = first(pass.linear.narrow_gradient, rows * self.rank());
        pass.device.matmul_backward(dy, &self.up, dnarrow, rows, self.scale, Write::Set);
        // `narrow` has left the dropped inputs where they were made.
        let inputs = self.seed(pass).map_or(x, |_| first(pass.linear.dropped, x.length()));
        if let Some(gradient) = &self.down_gradient {
            pass.device.weight_gradient(dnarrow, inputs, gradient, rows, 1.0);
        }
        let Some(dx) = dx else { return };
        match self.seed(pass) {
            None => pass.device.matmul_backward(dnarrow, &self.down, dx, rows, 1.0, Write::Add),
            Some(seed) => {
                let back = first(pass.linear.dropped, dx.length());
                pass.device.matmul_backward(dnarrow, &self.down, back, rows, 1.0, Write::Set);
                pass.device.dropout(back, dx, self.dropout, seed, Write::Add);
            }
        }
    }
}

fn first(buffer: Option<Buffer>, length: usize) -> Buffer {
    buffer.unwrap_or_else(|| panic!("no workspace was made for adapters")).first(length)
}
