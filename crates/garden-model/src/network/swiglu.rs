//! The MLP of both towers: y = down(silu(gate(x)) up(x)).

use garden_device::{Buffer, Device, OutOfMemory, Purpose, Rows};

use crate::checkpoint::layout::Width;
use crate::error::Error;
use crate::network::activations::{roomy, side_by_side};
use crate::network::linear::Linears;
use crate::network::parameters::Builder;
use crate::network::pass::Pass;

#[derive(Clone, Debug)]
pub(crate) struct Swiglu {
    pub gate_up: Linears,
    pub down: Linears,
}

/// Workspace of MLPs, used in turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SwigluWorkspace {
    /// silu(gate) up `[rows, inner]`.
    pub mixed: Rows,
    /// Gradients of gate(x) and of up(x), before that of silu(gate) up `[rows, inner]`.
    pub gate_up_gradient: [Rows; 2],
}

/// Saved activations of an MLP, and its workspace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SwigluBuffers {
    /// gate(x) and up(x) `[rows, inner]`.
    pub gate_up: [Rows; 2],
    /// Low-rank products that adapters keep for the backward pass.
    pub kept: Option<Buffer>,
    /// Whether `kept` includes the last linear's product: not if only the inner half was recomputed.
    pub keeps_down: bool,
    pub workspace: SwigluWorkspace,
}

impl SwigluWorkspace {
    /// Allocates buffers for `rows` rows, and for `back` rows of the backward pass.
    pub fn build(
        device: &mut dyn Device,
        label: &str,
        inner: usize,
        rows: usize,
        back: usize,
        room: usize,
    ) -> Result<SwigluWorkspace, OutOfMemory> {
        let purpose = Purpose::Workspace;
        let mixed = roomy(device, purpose, &format!("{label} mixed"), rows, inner, room)?;
        let named = [("gate gradient", inner), ("mixed gradient", inner)];
        let gate_up_gradient = side_by_side(device, purpose, &format!("{label} "), named, back, room)?;
        Ok(SwigluWorkspace { mixed, gate_up_gradient })
    }
}

impl Swiglu {
    pub fn build(
        builder: &mut Builder,
        [gate, up, down]: [String; 3],
        hidden: usize,
        inner: usize,
        has_bias: bool,
    ) -> Result<Swiglu, Error> {
        let (hidden, inner) = (Width::exact(hidden), Width::inner(builder.device.profile(), inner));
        let gate_up = [(gate, inner), (up, inner)];
        Ok(Swiglu {
            gate_up: builder.linears(&gate_up, hidden, has_bias)?,
            down: builder.linear(&down, inner, hidden, has_bias)?,
        })
    }

    /// Computes only what the backward pass needs.
    pub fn forward_inner(&self, pass: &mut Pass, x: Rows, rows: usize, saved: &SwigluBuffers) {
        let gate_up = saved.gate_up.map(|part| part.first(rows));
        self.gate_up.forward(pass, x, &gate_up, rows, None, saved.kept);
    }

    /// y `[rows, hidden]` = mlp(x `[rows, hidden]`) + `other`.
    pub fn forward(&self, pass: &mut Pass, x: Rows, other: Buffer, y: Buffer, rows: usize, saved: &SwigluBuffers) {
        self.forward_inner(pass, x, rows, saved);
        let [gate, up] = saved.gate_up.map(|part| part.first(rows));
        let mixed = saved.workspace.mixed.first(rows);
        pass.device.swiglu(gate, up, mixed, rows);
        let y = Rows::dense(y, self.down.outputs(0));
        self.down.forward(pass, mixed, &[y], rows, Some(other), saved.kept);
    }

    /// dx `[rows, hidden]` from dy `[rows, hidden]`.
    pub fn backward(&self, pass: &mut Pass, x: Rows, dy: Rows, dx: Rows, rows: usize, saved: &SwigluBuffers) {
        let [dgate, dup] = saved.workspace.gate_up_gradient.map(|part| part.first(rows));
        let ([gate, up], mixed) = (saved.gate_up.map(|part| part.first(rows)), saved.workspace.mixed.first(rows));
        // The gradient of silu(gate) up lies where that of up will be.
        self.down.backward_input(pass, &[dy], Some(dup), rows);
        let again = self.down.is_trained().then_some(mixed);
        pass.device.swiglu_backward(dup, gate, up, dgate, again, rows);
        if again.is_some() {
            let kept = saved.kept.filter(|_| saved.keeps_down);
            self.down.backward_weights(pass, mixed, &[dy], rows, kept);
        }
        self.gate_up.backward(pass, x, &[dgate, dup], Some(dx), rows, saved.kept);
    }
}
