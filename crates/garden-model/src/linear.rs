//! A linear layer, with a low-rank adapter beside a frozen weight or with gradients of its own.

use garden_device::{Buffer, Device, Dtype, OutOfMemory, Purpose, Weight, Write};

use crate::lora::LoraConfig;
use crate::mode::Mode;

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

/// Room that all linears share, one after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinearWorkspace {
    /// A x [rows, rank].
    pub narrow: Option<Buffer>,
    /// Its gradient [rows, rank].
    pub narrow_gradient: Option<Buffer>,
    /// x with some values dropped [rows, in], or the gradient that comes back there.
    pub dropped: Option<Buffer>,
    /// What the dropped inputs are drawn from; 0 while nothing is to be dropped.
    pub seed: u64,
}

impl LinearWorkspace {
    /// Room for products with so many rows, and for adapters whose widest input has so many values.
    pub fn build(
        device: &mut dyn Device,
        lora: Option<(&LoraConfig, usize)>,
        rows: usize,
        mode: Mode,
    ) -> Result<LinearWorkspace, OutOfMemory> {
        let mut workspace = LinearWorkspace { narrow: None, narrow_gradient: None, dropped: None, seed: 0 };
        let Some((lora, widest)) = lora else { return Ok(workspace) };
        let mut make =
            |label: &str, width: usize| device.buffer(Purpose::Workspace, label, Dtype::F32, rows * width).map(Some);
        workspace.narrow = make("adapter", lora.rank)?;
        if mode == Mode::Training {
            workspace.narrow_gradient = make("adapter gradient", lora.rank)?;
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
    pub fn forward(
        &self,
        device: &mut dyn Device,
        x: Buffer,
        y: Buffer,
        rows: usize,
        workspace: &LinearWorkspace,
        write: Write,
    ) {
        device.matmul(x, &self.weight, y, rows, 1.0, write);
        if let Some(bias) = self.bias {
            device.add_bias(y, bias, rows);
        }
        if let Some(lora) = &self.lora {
            let narrow = lora.narrow(device, x, rows, workspace);
            device.matmul(narrow, &lora.up, y, rows, lora.scale, Write::Add);
        }
    }

    /// Adds to the gradients of what is trained, and gives dx where it is wanted.
    pub fn backward(
        &self,
        device: &mut dyn Device,
        x: Buffer,
        dy: Buffer,
        dx: Option<(Buffer, Write)>,
        rows: usize,
        workspace: &LinearWorkspace,
    ) {
        if let Some(gradient) = &self.weight_gradient {
            device.weight_gradient(dy, x, gradient, rows, 1.0);
        }
        if let Some(gradient) = self.bias_gradient {
            device.bias_gradient(dy, gradient, rows);
        }
        if let Some((dx, write)) = dx {
            device.matmul_backward(dy, &self.weight, dx, rows, 1.0, write);
        }
        if let Some(lora) = &self.lora {
            lora.backward(device, x, dy, dx.map(|dx| dx.0), rows, workspace);
        }
    }
}

impl Lora {
    fn rank(&self) -> usize {
        self.down.rows
    }

    fn seed(&self, workspace: &LinearWorkspace) -> Option<u64> {
        (self.dropout > 0.0 && workspace.seed != 0)
            .then(|| workspace.seed ^ self.number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// drop(x) A^T [rows, rank].
    fn narrow(&self, device: &mut dyn Device, x: Buffer, rows: usize, workspace: &LinearWorkspace) -> Buffer {
        let narrow = first(workspace.narrow, rows * self.rank());
        let x = self.dropped(device, x, workspace);
        device.matmul(x, &self.down, narrow, rows, 1.0, Write::Set);
        narrow
    }

    fn dropped(&self, device: &mut dyn Device, x: Buffer, workspace: &LinearWorkspace) -> Buffer {
        let Some(seed) = self.seed(workspace) else { return x };
        let dropped = first(workspace.dropped, x.length());
        device.dropout(x, dropped, self.dropout, seed, Write::Set);
        dropped
    }

    /// With t = drop(x) A^T: dB += scale dy^T t, dt = scale dy B, dA += dt^T drop(x), dx += drop(dt A).
    fn backward(
        &self,
        device: &mut dyn Device,
        x: Buffer,
        dy: Buffer,
        dx: Option<Buffer>,
        rows: usize,
        workspace: &LinearWorkspace,
    ) {
        let narrow = self.narrow(device, x, rows, workspace);
        if let Some(gradient) = &self.up_gradient {
            device.weight_gradient(dy, narrow, gradient, rows, self.scale);
        }
        let dnarrow = first(workspace.narrow_gradient, rows * self.rank());
        device.matmul_backward(dy, &self.up, dnarrow, rows, self.scale, Write::Set);
        // `narrow` has left the dropped inputs where they were made.
        let inputs = self.seed(workspace).map_or(x, |_| first(workspace.dropped, x.length()));
        if let Some(gradient) = &self.down_gradient {
            device.weight_gradient(dnarrow, inputs, gradient, rows, 1.0);
        }
        let Some(dx) = dx else { return };
        match self.seed(workspace) {
            None => device.matmul_backward(dnarrow, &self.down, dx, rows, 1.0, Write::Add),
            Some(seed) => {
                let back = first(workspace.dropped, dx.length());
                device.matmul_backward(dnarrow, &self.down, back, rows, 1.0, Write::Set);
                device.dropout(back, dx, self.dropout, seed, Write::Add);
            }
        }
    }
}

fn first(workspace: Option<Buffer>, length: usize) -> Buffer {
    workspace.unwrap_or_else(|| panic!("no workspace was made for adapters")).first(length)
}
