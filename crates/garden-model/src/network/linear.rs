//! Linear layers that share their inputs: frozen with LoRA adapters, or with their own gradients.

use garden_device::{Buffer, Device, FusedWeight, OutOfMemory, Profile, Purpose, Rows, Seed, Weight, Write};

use crate::network::activations::activations;
use crate::network::mode::Mode;
use crate::network::pass::{Adapters, Pass};

/// y `[rows, out]` = x `[rows, in]` W^T + b + scale (drop(x) A^T) B^T for each of them.
#[derive(Clone, Debug)]
pub(crate) struct Linears {
    pub weight: FusedWeight,
    /// Gradients of each part.
    pub gradients: Vec<PartGradients>,
    pub adapters: Vec<Lora>,
    /// Gradients of all A.
    pub down_gradients: Vec<Weight>,
    /// First column among the low-rank products of its layer.
    pub place: usize,
}

/// Gradients of a linear that is trained itself.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PartGradients {
    pub weight: Option<Weight>,
    pub bias: Option<Buffer>,
}

/// A LoRA adapter beside its matrices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lora {
    /// Index of its linear.
    pub part: usize,
    pub up_gradient: Option<Weight>,
    pub scale: f32,
    pub dropout: f32,
    /// Index among the model's adapters, so that each drops other inputs.
    pub number: u64,
}

/// Sizes of a model's adapters, for buffers that they share.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AdapterSizes {
    /// The most columns of low-rank products of linears that share inputs.
    pub narrow: usize,
    /// The most of a layer.
    pub of_layer: usize,
    /// The widest input.
    pub inputs: usize,
    pub has_dropout: bool,
}

impl AdapterSizes {
    /// Values behind each row of inputs and of outputs' gradients, where low-rank products lie beside them.
    pub fn room(&self, profile: &Profile) -> usize {
        if profile.is_joined { self.narrow } else { 0 }
    }
}

/// The most linears that share their inputs: queries, keys and values.
const MOST: usize = 3;

/// Rows of each adapter of linears, without memory of their own: a step allocates nothing.
#[derive(Clone, Copy)]
struct Slots {
    rows: [Rows; MOST],
    count: usize,
}

impl std::ops::Deref for Slots {
    type Target = [Rows];
    fn deref(&self) -> &[Rows] {
        &self.rows[..self.count]
    }
}

/// Buffers shared by all adapters, in turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinearWorkspace {
    /// A x `[rows, rank]` of each adapter, unless it lies beside x.
    narrow: Option<Buffer>,
    /// Its gradient.
    narrow_gradient: Option<Buffer>,
    /// x after dropout `[rows, in]`, or the gradient on the way back.
    dropped: Option<Buffer>,
}

impl LinearWorkspace {
    /// Allocates buffers for `rows` rows.
    pub fn build(
        device: &mut dyn Device,
        adapters: AdapterSizes,
        rows: usize,
        mode: Mode,
    ) -> Result<LinearWorkspace, OutOfMemory> {
        let mut workspace = LinearWorkspace { narrow: None, narrow_gradient: None, dropped: None };
        let apart = if device.profile().is_joined { 0 } else { adapters.narrow };
        let mut make = |label: &str, width: usize| match width {
            0 => Ok(None),
            width => activations(device, Purpose::Workspace, label, rows, width).map(Some),
        };
        workspace.narrow = make("adapter", apart)?;
        if mode == Mode::Training {
            workspace.narrow_gradient = make("adapter gradient", apart)?;
            workspace.dropped = make("dropped inputs", if adapters.has_dropout { adapters.inputs } else { 0 })?;
        }
        Ok(workspace)
    }
}

/// With t = drop(x) A^T of an adapter: dB += scale dy^T t, dt = scale dy B, dA += dt^T drop(x), dx += drop(dt A).
impl Linears {
    pub fn outputs(&self, part: usize) -> usize {
        self.weight.parts[part].weight.rows
    }

    /// Whether there are trainable parameters.
    pub fn is_trained(&self) -> bool {
        self.adapters.iter().any(|lora| lora.up_gradient.is_some())
            || self.gradients.iter().any(|gradients| gradients.weight.is_some())
    }

    /// y = linear(x) + `plus`. With `kept` `[rows, rank of all adapters of the layer]`, low-rank products are saved there for the backward pass.
    pub fn forward(
        &self,
        pass: &mut Pass,
        x: Rows,
        y: &[Rows],
        rows: usize,
        plus: Option<Buffer>,
        kept: Option<Buffer>,
    ) {
        let t = self.narrow(pass, x, rows, kept);
        pass.device.fused_linear(x, &t, &self.weight, y, rows, plus);
    }

    /// Accumulates gradients of trainable parameters, and computes dx if wanted. `kept` holds the forward pass's low-rank products, if saved.
    pub fn backward(&self, pass: &mut Pass, x: Rows, dy: &[Rows], dx: Option<Rows>, rows: usize, kept: Option<Buffer>) {
        self.backward_input(pass, dy, dx, rows);
        self.backward_weights(pass, x, dy, rows, kept);
    }

    /// First half of the backward pass, which does not need x: dx.
    pub fn backward_input(&self, pass: &mut Pass, dy: &[Rows], dx: Option<Rows>, rows: usize) {
        let dt = self.narrow_gradients(pass, dy, rows);
        if !dt.is_empty() {
            pass.device.fused_up_backward(dy, &self.weight, &dt, rows);
        }
        let Some(dx) = dx else { return };
        // What was dropped forward is dropped after A on the way back, so it cannot be part of one product.
        let drops = self.adapters.iter().any(|lora| lora.seed(pass).is_some());
        pass.device.fused_linear_backward(dy, if drops { &[] } else { &dt }, &self.weight, dx, rows);
        for ((lora, adapter), dt) in self.adapters.iter().zip(self.weight.adapters()).zip(dt.iter()) {
            if let Some(seed) = lora.seed(pass) {
                let back = Rows::dense(workspace(pass.linear.dropped, rows * dx.width), dx.width);
                pass.device.matmul_backward(*dt, &adapter.down, back, rows, 1.0, Write::Set);
                pass.device.dropout(back, dx, rows, lora.dropout, seed, Write::Add);
            }
        }
    }

    /// Second half: accumulates gradients of trainable parameters. Nothing else may use the adapters' workspace between the two.
    pub fn backward_weights(&self, pass: &mut Pass, x: Rows, dy: &[Rows], rows: usize, kept: Option<Buffer>) {
        for (gradients, dy) in self.gradients.iter().zip(dy) {
            if let Some(gradient) = &gradients.weight {
                pass.device.weight_gradient(*dy, x, gradient, rows, 1.0);
            }
            if let Some(gradient) = gradients.bias {
                pass.device.bias_gradient(*dy, gradient, rows);
            }
        }
        if self.adapters.iter().all(|lora| lora.up_gradient.is_none()) {
            return;
        }
        let (t, dt) = match kept {
            Some(kept) => (self.kept(kept, rows), self.narrow_gradients(pass, dy, rows)),
            None => (self.narrow(pass, x, rows, None), self.narrow_gradients(pass, dy, rows)),
        };
        for (lora, t) in self.adapters.iter().zip(t.iter()) {
            if let Some(gradient) = &lora.up_gradient {
                // The LoRA gradient of B, and below that of A.
                pass.device.weight_gradient(dy[lora.part], *t, gradient, rows, lora.scale);
            }
        }
        match self.adapters.iter().any(|lora| lora.seed(pass).is_some()) {
            false => pass.device.fused_down_gradient(&dt, x, &self.down_gradients, rows),
            true => {
                for ((lora, dt), gradient) in self.adapters.iter().zip(dt.iter()).zip(&self.down_gradients) {
                    let x = lora.dropped(pass, x, rows);
                    pass.device.weight_gradient(*dt, x, gradient, rows, 1.0);
                }
            }
        }
    }

    /// t = drop(x) A^T `[rows, rank]` of each adapter: beside x, in `kept` or in the workspace.
    fn narrow(&self, pass: &mut Pass, x: Rows, rows: usize, kept: Option<Buffer>) -> Slots {
        if self.adapters.is_empty() || matches!(pass.adapters, Adapters::Off) {
            return Slots { rows: [x; MOST], count: 0 };
        }
        let width = self.weight.narrow();
        let t = match (self.weight.joined, kept) {
            (Some(_), _) => self.slots(x.beside(width)),
            (None, Some(kept)) => self.kept(kept, rows),
            (None, None) => self.apart(workspace(pass.linear.narrow, rows * width), rows),
        };
        match self.adapters.iter().any(|lora| lora.seed(pass).is_some()) {
            false => pass.device.fused_down(x, &self.weight, &t, rows),
            true => {
                for ((lora, adapter), t) in self.adapters.iter().zip(self.weight.adapters()).zip(&*t) {
                    let x = lora.dropped(pass, x, rows);
                    pass.device.matmul(x, &adapter.down, *t, rows, 1.0, Write::Set);
                }
            }
        }
        if let Adapters::OfRows { owners, rank, slots } = pass.adapters {
            // What the adapters of other rows make of a row is not for it.
            let owners = owners.first(rows);
            match self.weight.joined {
                Some(_) => pass.device.keep_own(x.beside(width), owners, rank, slots, rows),
                None => t.iter().for_each(|t| pass.device.keep_own(*t, owners, rank, slots, rows)),
            }
        }
        if let (Some(_), Some(kept)) = (self.weight.joined, kept) {
            let to = Rows::dense(kept.part(self.place * rows, width * rows), width);
            pass.device.copy_rows(x.beside(width), to, rows);
        }
        t
    }

    /// Where dt `[rows, rank]` of each adapter is: beside dy, or in the workspace.
    fn narrow_gradients(&self, pass: &Pass, dy: &[Rows], rows: usize) -> Slots {
        let (last, width) = (dy[dy.len() - 1], self.weight.narrow());
        match (self.adapters.is_empty(), self.weight.joined) {
            (true, _) => Slots { rows: [last; MOST], count: 0 },
            (false, Some(_)) => self.slots(last.beside(width)),
            (false, None) => self.apart(workspace(pass.linear.narrow_gradient, rows * width), rows),
        }
    }

    /// The low-rank products of the forward pass.
    fn kept(&self, kept: Buffer, rows: usize) -> Slots {
        let width = self.weight.narrow();
        let own = kept.part(self.place * rows, width * rows);
        match self.weight.joined {
            Some(_) => self.slots(Rows::dense(own, width)),
            None => self.apart(own, rows),
        }
    }

    /// Columns of each adapter, side by side.
    fn slots(&self, all: Rows) -> Slots {
        let mut first = 0;
        self.each_adapter(all, |rank| {
            first += rank;
            all.columns(first - rank, rank)
        })
    }

    /// Rows of each adapter, one behind the other.
    fn apart(&self, all: Buffer, rows: usize) -> Slots {
        let mut first = 0;
        self.each_adapter(Rows::dense(all, 0), |rank| {
            first += rows * rank;
            Rows::dense(all.part(first - rows * rank, rows * rank), rank)
        })
    }

    fn each_adapter(&self, none: Rows, mut of: impl FnMut(usize) -> Rows) -> Slots {
        let mut slots = Slots { rows: [none; MOST], count: self.adapters.len() };
        for (slot, adapter) in slots.rows.iter_mut().zip(self.weight.adapters()) {
            *slot = of(adapter.down.rows);
        }
        slots
    }
}

impl Lora {
    fn seed(&self, pass: &Pass) -> Option<Seed> {
        pass.seed(self.number).filter(|_| self.dropout > 0.0)
    }

    fn dropped(&self, pass: &mut Pass, x: Rows, rows: usize) -> Rows {
        let Some(seed) = self.seed(pass) else { return x };
        let dropped = Rows::dense(workspace(pass.linear.dropped, rows * x.width), x.width);
        pass.device.dropout(x, dropped, rows, self.dropout, seed, Write::Set);
        dropped
    }
}

fn workspace(buffer: Option<Buffer>, length: usize) -> Buffer {
    buffer.unwrap_or_else(|| panic!("no workspace was made for adapters")).first(length)
}
