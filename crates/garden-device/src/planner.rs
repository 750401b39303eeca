//! A device that computes nothing and counts every requested buffer.

use crate::buffer::{Buffer, Dtype, Purpose, Rows, Weight};
use crate::device::{AdamW, Attention, Device, DeviceError, Heads, OutOfMemory, Reserve, Shadow, Write};
use crate::fused::FusedWeight;
use crate::plan::{Block, Plan};
use crate::profile::Profile;
use crate::scalars::Seed;

/// Plans the memory of another device.
#[derive(Clone, Debug)]
pub struct Planner {
    profile: Profile,
    plan: Plan,
}

impl Planner {
    /// Plans for a device with this profile.
    pub fn like(profile: &Profile) -> Planner {
        Planner { profile: profile.clone(), plan: Plan::new(profile.alignment) }
    }

    /// Plans for a CPU with `threads` threads.
    pub fn for_cpu(threads: usize) -> Planner {
        Planner::like(&Profile::cpu(threads))
    }
}

impl Device for Planner {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn buffer(&mut self, purpose: Purpose, label: &str, dtype: Dtype, length: usize) -> Result<Buffer, OutOfMemory> {
        self.plan.add(purpose, label, dtype, length)
    }

    fn open_block(&mut self) -> Block {
        self.plan.open()
    }

    fn enter_block(&mut self, block: Option<Block>) {
        self.plan.enter(block);
    }

    fn branch_block(&mut self, block: Block) {
        self.plan.branch(block);
    }

    fn close_block(&mut self, block: Block, dtype: Dtype) -> Result<Buffer, OutOfMemory> {
        Ok(self.plan.close(block, dtype))
    }

    fn reserve(&mut self, reserve: Reserve) -> Result<(), OutOfMemory> {
        for scratch in (self.profile.workspace)(&self.profile, reserve) {
            self.buffer(Purpose::Workspace, scratch.label, scratch.dtype, scratch.length)?;
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
    fn upload_f32(&mut self, _: Buffer, _: &[f32]) {}
    fn upload_rows(&mut self, _: Rows, _: &[u8]) {}
    fn download(&mut self, _: Buffer, to: &mut [f32]) -> Result<(), DeviceError> {
        to.fill(0.0);
        Ok(())
    }
    fn download_bytes(&mut self, from: Buffer) -> Result<Vec<u8>, DeviceError> {
        Ok(vec![0; from.length() * from.dtype().size()])
    }
    fn finish(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }
    fn zero(&mut self, _: Buffer) {}
    fn copy(&mut self, _: Buffer, _: Buffer) {}
    fn cast(&mut self, _: Buffer, _: Buffer) {}
    fn cast_shadow(&mut self, _: Buffer, _: Shadow) {}
    fn copy_rows(&mut self, _: Rows, _: Rows, _: usize) {}
    fn add(&mut self, _: Buffer, _: Buffer) {}
    fn scale(&mut self, _: Buffer, _: Buffer) {}
    fn matmul(&mut self, _: Rows, _: &Weight, _: Rows, _: usize, _: f32, _: Write) {}
    fn matmul_backward(&mut self, _: Rows, _: &Weight, _: Rows, _: usize, _: f32, _: Write) {}
    fn weight_gradient(&mut self, _: Rows, _: Rows, _: &Weight, _: usize, _: f32) {}
    fn fused_down(&mut self, _: Rows, _: &FusedWeight, _: &[Rows], _: usize) {}
    fn fused_linear(&mut self, _: Rows, _: &[Rows], _: &FusedWeight, _: &[Rows], _: usize, _: Option<Buffer>) {}
    fn fused_up_backward(&mut self, _: &[Rows], _: &FusedWeight, _: &[Rows], _: usize) {}
    fn fused_linear_backward(&mut self, _: &[Rows], _: &[Rows], _: &FusedWeight, _: Rows, _: usize) {}
    fn fused_down_gradient(&mut self, _: &[Rows], _: Rows, _: &[Weight], _: usize) {}
    fn add_bias(&mut self, _: Buffer, _: Buffer, _: usize) {}
    fn bias_gradient(&mut self, _: Rows, _: Buffer, _: usize) {}
    fn rms_norm(&mut self, _: Buffer, _: Buffer, _: Rows, _: usize, _: f32) {}
    fn rms_norm_backward(
        &mut self,
        _: Buffer,
        _: Buffer,
        _: Buffer,
        _: Rows,
        _: Option<Buffer>,
        _: usize,
        _: f32,
        _: Write,
    ) {
    }
    fn rotate(&mut self, _: Heads, _: usize, _: Buffer, _: Buffer, _: usize) {}
    fn rotate_backward(&mut self, _: Heads, _: usize, _: Buffer, _: Buffer, _: usize) {}
    fn attend(&mut self, _: &Attention, _: Rows, _: Buffer) {}
    fn attend_kv_cache(&mut self, _: &Attention, _: Buffer, _: Buffer, _: Option<Buffer>, _: Rows) {}
    fn attend_backward(&mut self, _: &Attention, _: Rows, _: Buffer, _: Buffer, _: Heads, _: Heads, _: Heads) {}
    fn swiglu(&mut self, _: Rows, _: Rows, _: Rows, _: usize) {}
    fn swiglu_backward(&mut self, _: Rows, _: Rows, _: Rows, _: Rows, _: Option<Rows>, _: usize) {}
    fn gelu(&mut self, _: Buffer, _: Buffer) {}
    fn gelu_backward(&mut self, _: Buffer, _: Buffer, _: Buffer) {}
    fn embed(&mut self, _: &Weight, _: Buffer, _: Buffer, _: usize) {}
    fn embed_backward(&mut self, _: Rows, _: Buffer, _: &Weight, _: usize, _: &[i32]) {}
    fn gather(&mut self, _: Rows, _: Buffer, _: Rows, _: usize) {}
    fn keep_own(&mut self, _: Rows, _: Buffer, _: usize, _: usize, _: usize) {}
    fn scatter(&mut self, _: Rows, _: Buffer, _: Rows, _: usize) {}
    fn dropout(&mut self, _: Rows, _: Rows, _: usize, _: f32, _: Seed, _: Write) {}
    fn cross_entropy(&mut self, _: Buffer, _: Buffer, _: Buffer, _: Buffer, _: usize, _: Buffer) {}
    fn add_losses(&mut self, _: Buffer, _: Buffer, _: Buffer, _: Buffer) {}
    fn best_of_rows(&mut self, _: Buffer, _: Buffer, _: usize) {}
    fn add_squares(&mut self, _: Buffer, _: Buffer) {}
    fn repeat(&mut self, _: Buffer, _: usize, _: &mut dyn FnMut(&mut dyn Device)) {}
    fn adamw(&mut self, _: &[AdamW], _: Option<(Buffer, f32)>) {}
}
