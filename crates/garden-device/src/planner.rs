//! A device that computes nothing and counts every buffer it is asked for.

use crate::buffer::{Buffer, Dtype, Purpose, Weight};
use crate::cpu::workspace;
use crate::device::{AdamW, Attention, Device, Heads, OutOfMemory, Reserve, Write};
use crate::plan::Plan;

/// Counts what another device would hold.
#[derive(Clone, Debug)]
pub struct Planner {
    plan: Plan,
    threads: usize,
}

impl Planner {
    /// Plans for a CPU with so many threads.
    pub fn for_cpu(threads: usize) -> Planner {
        Planner { plan: Plan::default(), threads }
    }
}

impl Device for Planner {
    fn buffer(&mut self, purpose: Purpose, label: &str, dtype: Dtype, length: usize) -> Result<Buffer, OutOfMemory> {
        let id = self.plan.buffers.len() as u32;
        self.plan.add(purpose, label, dtype, length);
        Ok(Buffer { id, dtype, offset: 0, length })
    }

    fn reserve(&mut self, reserve: Reserve) -> Result<(), OutOfMemory> {
        for (label, length) in workspace(reserve, self.threads) {
            self.buffer(Purpose::Workspace, label, Dtype::F32, length)?;
        }
        Ok(())
    }

    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn computes(&self) -> bool {
        false
    }

    fn upload(&mut self, _: Buffer, _: &[u8]) {}
    fn download(&mut self, _: Buffer, to: &mut [f32]) {
        to.fill(0.0);
    }
    fn download_bytes(&mut self, from: Buffer) -> Vec<u8> {
        vec![0; from.length()]
    }
    fn zero(&mut self, _: Buffer) {}
    fn copy(&mut self, _: Buffer, _: Buffer) {}
    fn add(&mut self, _: Buffer, _: Buffer) {}
    fn scale(&mut self, _: Buffer, _: f32) {}
    fn matmul(&mut self, _: Buffer, _: &Weight, _: Buffer, _: usize, _: f32, _: Write) {}
    fn matmul_backward(&mut self, _: Buffer, _: &Weight, _: Buffer, _: usize, _: f32, _: Write) {}
    fn weight_gradient(&mut self, _: Buffer, _: Buffer, _: &Weight, _: usize, _: f32) {}
    fn add_bias(&mut self, _: Buffer, _: Buffer, _: usize) {}
    fn bias_gradient(&mut self, _: Buffer, _: Buffer, _: usize) {}
    fn rms_norm(&mut self, _: Buffer, _: Buffer, _: Buffer, _: usize, _: f32) {}
    fn rms_norm_backward(
        &mut self,
        _: Buffer,
        _: Buffer,
        _: Buffer,
        _: Buffer,
        _: Option<Buffer>,
        _: usize,
        _: f32,
        _: Write,
    ) {
    }
    fn rotate(&mut self, _: Heads, _: usize, _: Buffer, _: Buffer, _: usize) {}
    fn rotate_backward(&mut self, _: Heads, _: usize, _: Buffer, _: Buffer, _: usize) {}
    fn attend(&mut self, _: &Attention, _: Buffer, _: Buffer) {}
    fn attend_kv_cache(&mut self, _: &Attention, _: Buffer, _: Buffer, _: Buffer) {}
    fn attend_backward(&mut self, _: &Attention, _: Buffer, _: Buffer, _: Buffer, _: Heads, _: Heads, _: Heads) {}
    fn swiglu(&mut self, _: Buffer, _: Buffer, _: Buffer) {}
    fn swiglu_backward(&mut self, _: Buffer, _: Buffer, _: Buffer, _: Buffer, _: Buffer) {}
    fn gelu(&mut self, _: Buffer, _: Buffer) {}
    fn gelu_backward(&mut self, _: Buffer, _: Buffer, _: Buffer) {}
    fn embed(&mut self, _: &Weight, _: Buffer, _: Buffer, _: usize) {}
    fn embed_backward(&mut self, _: Buffer, _: Buffer, _: &Weight, _: usize, _: &[i32]) {}
    fn gather(&mut self, _: Buffer, _: Buffer, _: Buffer, _: usize, _: usize) {}
    fn scatter(&mut self, _: Buffer, _: Buffer, _: Buffer, _: usize, _: usize) {}
    fn dropout(&mut self, _: Buffer, _: Buffer, _: f32, _: u64, _: Write) {}
    fn cross_entropy(&mut self, _: Buffer, _: Buffer, _: Buffer, _: usize, _: f32) {}
    fn add_squares(&mut self, _: Buffer, _: Buffer) {}
    fn adamw(&mut self, _: &AdamW, _: Option<(Buffer, f32)>) {}
}
