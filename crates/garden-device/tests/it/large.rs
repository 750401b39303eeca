//! Products that are large enough for the GPU's algorithms to be measured: whichever is the fastest, the bits are the same, and right.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

use crate::bench::{LARGEST, Random, bits, download, rounded};
use crate::devices::cuda as open;
use garden_device::{Device, Dtype, Purpose, Rows, Weight, Write};

const ROWS: usize = 1100;
const OUTPUTS: usize = 1024;
const INPUTS: usize = 2048;

/// x [rows, inputs] W^T, and dy [rows, outputs] W.
fn products(device: &mut dyn Device, weight: &[f32], x: &[f32], dy: &[f32]) -> [Vec<f32>; 2] {
    device.reserve(LARGEST).unwrap();
    let mut make = |values: &[f32]| {
        let buffer = device.buffer(Purpose::Workspace, "test", Dtype::Bf16, values.len()).unwrap();
        device.upload_f32(buffer, values);
        buffer
    };
    let (weight, x, dy) = (make(weight), make(x), make(dy));
    let (y, dx) = (make(&vec![f32::NAN; ROWS * OUTPUTS]), make(&vec![f32::NAN; ROWS * INPUTS]));
    let weight = Weight::plain(weight, OUTPUTS, INPUTS);
    // The second time by the algorithm that was chosen.
    for _ in 0..2 {
        device.matmul(Rows::dense(x, INPUTS), &weight, Rows::dense(y, OUTPUTS), ROWS, 1.0, Write::Set);
        device.matmul_backward(Rows::dense(dy, OUTPUTS), &weight, Rows::dense(dx, INPUTS), ROWS, 1.0, Write::Set);
    }
    [download(device, y), download(device, dx)]
}

mod cuda {
    use super::*;

    #[test]
    fn large_products_have_the_same_bits_in_every_process() {
        let mut random = Random(7);
        let [weight, x, dy] = [OUTPUTS * INPUTS, ROWS * INPUTS, ROWS * OUTPUTS].map(|length| random.values(length));
        let Some(mut device) = open() else { return };
        let [y, dx] = products(&mut *device, &weight, &x, &dy);
        drop(device);
        for _ in 0..3 {
            let again = products(&mut *open().unwrap(), &weight, &x, &dy);
            assert_eq!([bits(&again[0]), bits(&again[1])], [bits(&y), bits(&dx)]);
        }
        // Some of them in f64.
        let [weight, x, dy] = [weight, x, dy].map(|values| rounded(Dtype::Bf16, &values));
        let near =
            |got: f32, sum: f64, terms: usize| (f64::from(got) - sum).abs() <= sum.abs() / 256.0 + 1e-5 * terms as f64;
        for _ in 0..500 {
            let (row, output, input) = (random.below(ROWS), random.below(OUTPUTS), random.below(INPUTS));
            let sum =
                (0..INPUTS).map(|k| f64::from(x[row * INPUTS + k]) * f64::from(weight[output * INPUTS + k])).sum();
            assert!(near(y[row * OUTPUTS + output], sum, INPUTS), "{sum} {}", y[row * OUTPUTS + output]);
            let sum =
                (0..OUTPUTS).map(|n| f64::from(dy[row * OUTPUTS + n]) * f64::from(weight[n * INPUTS + input])).sum();
            assert!(near(dx[row * INPUTS + input], sum, OUTPUTS), "{sum} {}", dx[row * INPUTS + input]);
        }
    }
}
