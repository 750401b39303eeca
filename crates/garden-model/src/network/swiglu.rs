//! The MLP of both towers: y = down(silu(gate(x)) up(x)).

use garden_device::{Buffer, Plus, Write};

use crate::checkpoint::layout::Width;
use crate::error::Error;
use crate::network::linear::Linear;
use crate::network::parameters::Builder;
use crate::network::pass::Pass;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Swiglu {
    pub gate: Linear,
    pub up: Linear,
    pub down: Linear,
}

/// Saved activations and workspace of an MLP.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SwigluWorkspace {
    /// Saved: gate(x) `[rows, inner]`.
    pub gate: Buffer,
    /// Saved: up(x) `[rows, inner]`.
    pub up: Buffer,
    /// silu(gate) up `[rows, inner]`.
    pub mixed: Buffer,
    /// Gradient of silu(gate) up, then of up(x) `[rows, inner]`.
    pub mixed_gradient: Buffer,
    /// Gradient of gate(x) `[rows, inner]`.
    pub gate_gradient: Buffer,
    /// Low-rank products that adapters keep for the backward pass.
    pub kept: Option<Buffer>,
    /// Whether `kept` includes the last linear's product: not if only the inner half was recomputed.
    pub keeps_down: bool,
}

impl SwigluWorkspace {
    fn of(&self, length: usize) -> SwigluWorkspace {
        SwigluWorkspace {
            gate: self.gate.first(length),
            up: self.up.first(length),
            mixed: self.mixed.first(length),
            mixed_gradient: self.mixed_gradient.first(length),
            gate_gradient: self.gate_gradient.first(length),
            kept: self.kept,
            keeps_down: self.keeps_down,
        }
    }
}

impl Swiglu {
    pub fn build(
        builder: &mut Builder,
        name: &str,
        hidden: usize,
        inner: usize,
        has_bias: bool,
    ) -> Result<Swiglu, Error> {
        let (hidden, inner) = (Width::exact(hidden), Width::inner(builder.device.profile(), inner));
        Ok(Swiglu {
            gate: builder.linear(&format!("{name}.gate_proj"), hidden, inner, has_bias)?,
            up: builder.linear(&format!("{name}.up_proj"), hidden, inner, has_bias)?,
            down: builder.linear(&format!("{name}.down_proj"), inner, hidden, has_bias)?,
        })
    }

    /// Computes only what the backward pass needs.
    pub fn forward_inner(&self, pass: &mut Pass, x: Buffer, rows: usize, workspace: &SwigluWorkspace) {
        let inner = rows * self.gate.outputs();
        self.gate.forward(pass, x, workspace.gate.first(inner), rows, Plus::Nothing, workspace.kept);
        self.up.forward(pass, x, workspace.up.first(inner), rows, Plus::Nothing, workspace.kept);
    }

    /// y `[rows, hidden]` = mlp(x `[rows, hidden]`) + `other`.
    pub fn forward(
        &self,
        pass: &mut Pass,
        x: Buffer,
        other: Buffer,
        y: Buffer,
        rows: usize,
        workspace: &SwigluWorkspace,
    ) {
        self.forward_inner(pass, x, rows, workspace);
        let inner = rows * self.gate.outputs();
        let mixed = workspace.mixed.first(inner);
        pass.device.swiglu(workspace.gate.first(inner), workspace.up.first(inner), mixed);
        self.down.forward(pass, mixed, y, rows, Plus::Other(other), workspace.kept);
    }

    /// dx `[rows, hidden]` from dy `[rows, hidden]`.
    pub fn backward(
        &self,
        pass: &mut Pass,
        x: Buffer,
        dy: Buffer,
        dx: Buffer,
        rows: usize,
        workspace: &SwigluWorkspace,
    ) {
        let SwigluWorkspace { gate, up, mixed, mixed_gradient, gate_gradient, kept, keeps_down } =
            workspace.of(rows * self.gate.outputs());
        self.down.backward_input(pass, dy, Some((mixed_gradient, Write::Set)), rows);
        let up_gradient = mixed_gradient;
        let again = self.down.is_trained().then_some(mixed);
        pass.device.swiglu_backward(mixed_gradient, gate, up, gate_gradient, again);
        if let Some(mixed) = again {
            self.down.backward_weights(pass, mixed, dy, rows, kept.filter(|_| keeps_down));
        }
        self.gate.backward(pass, x, gate_gradient, Some((dx, Write::Set)), rows, kept);
        self.up.backward(pass, x, up_gradient, Some((dx, Write::Add)), rows, kept);
    }
}
