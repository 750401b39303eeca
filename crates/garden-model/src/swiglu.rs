//! The MLP of both towers: y = down(silu(gate(x)) up(x)).

use garden_device::{Buffer, Device, Write};

use crate::error::Error;
use crate::linear::{Linear, LinearWorkspace};
use crate::parameters::Builder;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Swiglu {
    pub gate: Linear,
    pub up: Linear,
    pub down: Linear,
}

/// What an MLP needs for its passes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SwigluWorkspace {
    /// Kept: gate(x) [rows, inner].
    pub gate: Buffer,
    /// Kept: up(x) [rows, inner].
    pub up: Buffer,
    /// silu(gate) up, then the gradient of up(x) [rows, inner].
    pub mixed: Buffer,
    /// Gradient of silu(gate) up [rows, inner].
    pub mixed_gradient: Buffer,
    /// Gradient of gate(x) [rows, inner].
    pub gate_gradient: Buffer,
}

impl SwigluWorkspace {
    fn of(&self, length: usize) -> SwigluWorkspace {
        SwigluWorkspace {
            gate: self.gate.first(length),
            up: self.up.first(length),
            mixed: self.mixed.first(length),
            mixed_gradient: self.mixed_gradient.first(length),
            gate_gradient: self.gate_gradient.first(length),
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
        Ok(Swiglu {
            gate: builder.linear(&format!("{name}.gate_proj"), hidden, inner, has_bias)?,
            up: builder.linear(&format!("{name}.up_proj"), hidden, inner, has_bias)?,
            down: builder.linear(&format!("{name}.down_proj"), inner, hidden, has_bias)?,
        })
    }

    /// Makes what the backward pass needs, and nothing more.
    pub fn forward_inner(
        &self,
        device: &mut dyn Device,
        x: Buffer,
        rows: usize,
        workspace: &SwigluWorkspace,
        linear: &LinearWorkspace,
    ) {
        let inner = rows * self.gate.outputs();
        self.gate.forward(device, x, workspace.gate.first(inner), rows, linear, Write::Set);
        self.up.forward(device, x, workspace.up.first(inner), rows, linear, Write::Set);
    }

    /// y [rows, hidden] += this of x [rows, hidden].
    pub fn forward(
        &self,
        device: &mut dyn Device,
        x: Buffer,
        y: Buffer,
        rows: usize,
        workspace: &SwigluWorkspace,
        linear: &LinearWorkspace,
    ) {
        self.forward_inner(device, x, rows, workspace, linear);
        let inner = rows * self.gate.outputs();
        let mixed = workspace.mixed.first(inner);
        device.swiglu(workspace.gate.first(inner), workspace.up.first(inner), mixed);
        self.down.forward(device, mixed, y, rows, linear, Write::Add);
    }

    /// dx [rows, hidden] from dy [rows, hidden].
    pub fn backward(
        &self,
        device: &mut dyn Device,
        x: Buffer,
        dy: Buffer,
        dx: Buffer,
        rows: usize,
        workspace: &SwigluWorkspace,
        linear: &LinearWorkspace,
    ) {
        let workspace = workspace.of(rows * self.gate.outputs());
        if self.down.is_trained() {
            device.swiglu(workspace.gate, workspace.up, workspace.mixed);
        }
        self.down.backward(device, workspace.mixed, dy, Some((workspace.mixed_gradient, Write::Set)), rows, linear);
        let up_gradient = workspace.mixed;
        device.swiglu_backward(
            workspace.mixed_gradient,
            workspace.gate,
            workspace.up,
            workspace.gate_gradient,
            up_gradient,
        );
        self.gate.backward(device, x, workspace.gate_gradient, Some((dx, Write::Set)), rows, linear);
        self.up.backward(device, x, up_gradient, Some((dx, Write::Add)), rows, linear);
    }
}
