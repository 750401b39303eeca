//! AdamW.

use super::Cuda;
use super::driver::Argument;
use crate::buffer::{Buffer, Dtype};
use crate::device::{AdamW, Moments};
use crate::scalars::Part;

pub(super) fn adamw(cuda: &mut Cuda, update: &AdamW, clip: Option<(Buffer, f32)>) {
    let AdamW { value, shadow, gradient, moments, beta1, beta2, epsilon, decay, scalars, part } = *update;
    let length = value.length();
    assert_eq!(gradient.length(), length);
    let step = cuda.of(cuda.scratch().constants.part(512, 8), Dtype::F32);
    let null = Argument::Address(0);
    let (squares, largest) = clip.map_or((null, 0.0), |(squares, largest)| (cuda.of(squares, Dtype::F32), largest));
    let [beta1, beta2, epsilon] = [beta1, beta2, epsilon].map(Argument::F32);
    let arguments = [
        cuda.of(scalars, Dtype::I32),
        Argument::I32((part == Part::Vision).into()),
        squares,
        Argument::F32(largest),
        beta1,
        beta2,
        epsilon,
        Argument::F32(decay),
        step,
    ];
    // The constants are the same for all parameters of an update, except for its part and its decay.
    let is_made = cuda.step.as_ref().is_some_and(|made| made[..] == arguments[..]);
    if !is_made {
        cuda.launch("adamw_step", [1, 1, 1], [1, 1, 1], 0, &arguments);
        cuda.step = Some(arguments);
    }
    let shadow = shadow.map_or(null, |shadow| cuda.activation(shadow));
    let (value, gradient) = (cuda.of(value, Dtype::F32), cuda.of(gradient, Dtype::F32));
    let count = Argument::I64(length as i64);
    match moments {
        Moments::F32 { first, second } => {
            let [first, second] = [first, second].map(|moment| cuda.of(moment, Dtype::F32));
            let arguments = [value, shadow, gradient, first, second, step, beta1, beta2, epsilon, count];
            cuda.by_values("adamw", length, &arguments);
        }
        Moments::Int8 { codes, scales } => {
            let [codes1, codes2] = codes.map(|codes| cuda.of(codes, Dtype::U8));
            let [scales1, scales2] = scales.map(|scales| cuda.of(scales, Dtype::F32));
            let constants = cuda.scratch().constants;
            let [signed, unsigned] = [0, 256].map(|first| cuda.of(constants.part(first, 256), Dtype::F32));
            let arguments = [
                value, shadow, gradient, codes1, codes2, scales1, scales2, signed, unsigned, step, beta1, beta2, count,
            ];
            cuda.launch("adamw_narrow", [length.div_ceil(2048).min(1056), 1, 1], [256, 1, 1], 0, &arguments);
        }
    }
}
