//! Linears that share inputs, with adapters: the same numbers whether a device joins them or not, and nothing of a small adapter is lost to rounding.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test ends where something is not as it should be, and says what it measured"
)]

use crate::bench::{Bench, Output, PairOfRows, Side, check, rounded};
use crate::devices::{cpu, cpu_bf16, cuda, on_every_device};
use garden_device::{Buffer, Device, Dtype, FusedAdapter, FusedPart, FusedWeight, JoinedWeight, Purpose, Rows, Weight};

on_every_device! {
    linears,
    wide_linears,
    small_adapters_arrive,
}

/// Linears of both devices.
struct Linears {
    tested: FusedWeight,
    reference: FusedWeight,
    ranks: Vec<usize>,
}

/// A matrix of a device with these values.
fn put(device: &mut dyn Device, dtype: Dtype, values: &[f32]) -> Buffer {
    let buffer = device.buffer(Purpose::Weights, "test", dtype, values.len()).unwrap();
    device.upload_f32(buffer, values);
    buffer
}

/// Values of a part, for both devices.
struct Given {
    weight: Vec<f32>,
    bias: Option<Vec<f32>>,
    down: Vec<f32>,
    up: Vec<f32>,
    rank: usize,
}

impl Linears {
    /// With parts of these outputs and ranks, 0 for no adapter; B is this large.
    fn new(bench: &mut Bench, inputs: usize, outputs: &[usize], ranks: &[usize], has_bias: bool, size: f32) -> Linears {
        let dtype = bench.dtype();
        let mut draw = |length: usize, size: f32| -> Vec<f32> {
            let values: Vec<f32> = bench.random.values(length).iter().map(|value| size * value).collect();
            rounded(dtype, &values)
        };
        let given: Vec<Given> = outputs
            .iter()
            .zip(ranks)
            .map(|(outputs, rank)| Given {
                weight: draw(outputs * inputs, 1.0),
                bias: has_bias.then(|| draw(*outputs, 1.0)),
                down: draw(rank * inputs, (inputs as f32).powf(-0.5)),
                up: draw(outputs * rank, size),
                rank: *rank,
            })
            .collect();
        let reference = Linears::apart(&mut bench.cpu, Dtype::F32, inputs, outputs, &given);
        let tested = match bench.device.profile().is_joined {
            true => Linears::joined(&mut *bench.device, dtype, inputs, outputs, &given),
            false => Linears::apart(&mut *bench.device, dtype, inputs, outputs, &given),
        };
        let ranks = ranks.iter().copied().filter(|rank| *rank > 0).collect();
        Linears { tested, reference, ranks }
    }

    fn apart(device: &mut dyn Device, dtype: Dtype, inputs: usize, outputs: &[usize], given: &[Given]) -> FusedWeight {
        let part = |(outputs, given): (&usize, &Given)| FusedPart {
            weight: Weight::plain(put(device, dtype, &given.weight), *outputs, inputs),
            bias: given.bias.as_ref().map(|bias| put(device, Dtype::F32, bias)),
            adapter: (given.rank > 0).then(|| FusedAdapter {
                down: Weight::plain(put(device, dtype, &given.down), given.rank, inputs),
                up: Weight::plain(put(device, dtype, &given.up), *outputs, given.rank),
                scale: 1.0,
            }),
        };
        FusedWeight { inputs, parts: outputs.iter().zip(given).map(part).collect(), joined: None }
    }

    /// One matrix, as fused.rs describes it.
    fn joined(device: &mut dyn Device, dtype: Dtype, inputs: usize, outputs: &[usize], given: &[Given]) -> FusedWeight {
        let narrow: usize = given.iter().map(|given| given.rank).sum();
        let (all, stride) = (outputs.iter().sum::<usize>(), inputs + narrow);
        let mut values = vec![0.0; (all + narrow) * stride];
        let (mut first, mut column) = (0, 0);
        let mut places = Vec::new();
        for (outputs, given) in outputs.iter().zip(given) {
            for output in 0..*outputs {
                let row = &mut values[(first + output) * stride..][..stride];
                row[..inputs].copy_from_slice(&given.weight[output * inputs..][..inputs]);
                row[inputs + column..][..given.rank].copy_from_slice(&given.up[output * given.rank..][..given.rank]);
            }
            for rank in 0..given.rank {
                values[(all + column + rank) * stride..][..inputs]
                    .copy_from_slice(&given.down[rank * inputs..][..inputs]);
            }
            places.push((first, column));
            (first, column) = (first + outputs, column + given.rank);
        }
        let matrix = put(device, dtype, &values);
        let whole = Rows::dense(matrix, stride);
        let at = |row: usize, column: usize, rows: usize, width: usize| {
            Weight::of_rows(whole.below(row).columns(column, width), rows)
        };
        let biases: Vec<f32> = given.iter().filter_map(|given| given.bias.clone()).flatten().collect();
        let bias = (!biases.is_empty()).then(|| put(device, Dtype::Bf16, &biases));
        let part = |((outputs, given), (first, column)): ((&usize, &Given), &(usize, usize))| FusedPart {
            weight: at(*first, 0, *outputs, inputs),
            bias: bias.map(|bias| bias.part(*first, *outputs)),
            adapter: (given.rank > 0).then(|| FusedAdapter {
                down: at(all + column, 0, given.rank, inputs),
                up: at(*first, inputs + column, *outputs, given.rank),
                scale: 1.0,
            }),
        };
        let parts = outputs.iter().zip(given).zip(&places).map(part).collect();
        let has = narrow > 0;
        let joined = JoinedWeight {
            matrix: Some(matrix),
            down: has.then(|| at(all, 0, narrow, inputs)),
            up: has.then(|| at(0, inputs, all, narrow)),
            bias,
        };
        FusedWeight { inputs, parts, joined: Some(joined) }
    }

    fn on(&self, side: Side) -> &FusedWeight {
        if side == Side::Tested { &self.tested } else { &self.reference }
    }
}

/// Rows whose columns are those of several parts; the reference has a buffer for each.
struct Several {
    together: PairOfRows,
    widths: Vec<usize>,
    apart: Vec<PairOfRows>,
    is_joined: bool,
}

impl Several {
    fn new(bench: &mut Bench, rows: usize, widths: &[usize], room: usize, is_filled: bool) -> Several {
        let is_joined = bench.device.profile().is_joined;
        let all: usize = widths.iter().sum();
        let values = match is_filled {
            true => bench.random.values(rows * all),
            false => vec![f32::NAN; rows * all],
        };
        let together = bench.rows_with_room(&values, all, if is_joined { room } else { 0 });
        let mut first = 0;
        let apart = widths.iter().map(|width| {
            first += width;
            let own: Vec<f32> = values.chunks(all).flat_map(|row| row[first - width..first].to_vec()).collect();
            bench.rows_with_room(&own, *width, 0)
        });
        Several { together, widths: widths.to_vec(), apart: apart.collect(), is_joined }
    }

    fn on(&self, side: Side) -> Vec<Rows> {
        if side == Side::Reference || !self.is_joined {
            return self.apart.iter().map(|rows| rows.on(side)).collect();
        }
        let mut first = 0;
        let mut column = |width: &usize| {
            first += width;
            self.together.on(side).columns(first - width, *width)
        };
        self.widths.iter().map(&mut column).collect()
    }

    /// Rows that an operation may write, of whichever kind the device under test has.
    fn scratch(&self) -> Vec<Output> {
        let all = [self.together].into_iter().chain(self.apart.iter().copied());
        all.map(|rows| Output::scratch(rows.pair)).collect()
    }

    /// Compares with the reference, part by part.
    fn compare(&self, bench: &mut Bench, what: &str, roundings: f32, terms: f32) {
        let expected: Vec<Vec<f32>> = self.apart.iter().map(|rows| bench.expected(rows.pair)).collect();
        let got: Vec<Vec<f32>> = match self.is_joined {
            false => self.apart.iter().map(|rows| bench.got_rows(*rows)).collect(),
            true => {
                let all = bench.got_rows(self.together);
                let width: usize = self.widths.iter().sum();
                let mut first = 0;
                let mut part = |own: &usize| -> Vec<f32> {
                    first += own;
                    all.chunks(width).flat_map(|row| row[first - own..first].to_vec()).collect()
                };
                self.widths.iter().map(&mut part).collect()
            }
        };
        let tolerance = if bench.dtype() == Dtype::F32 { 0.0 } else { bench.device.profile().tolerance };
        for (part, (got, expected)) in got.iter().zip(&expected).enumerate() {
            for (row, (got, expected)) in
                got.chunks(self.widths[part]).zip(expected.chunks(self.widths[part])).enumerate()
            {
                let size = expected.iter().fold(terms, |size, value| size.max(value.abs()));
                let off =
                    got.iter().zip(expected).fold(0.0_f32, |off, (got, expected)| off.max((got - expected).abs()));
                assert!(got.iter().all(|value| value.is_finite()), "{what}: part {part} of row {row} has no numbers");
                assert!(
                    off <= (roundings * tolerance + 1e-5) * size,
                    "{what}: part {part} of row {row} is off by {off}"
                );
            }
        }
    }
}

/// All four products, with and without adapters, biases and a residual.
fn linears(bench: &mut Bench) {
    let parts = bench.random.between(1, 3);
    let inputs = 8 * bench.random.between(1, 20);
    let outputs: Vec<usize> = (0..parts).map(|_| 8 * bench.random.between(1, 15)).collect();
    let mut ranks: Vec<usize> = (0..parts).map(|_| 8 * bench.random.below(3)).collect();
    // The first of them is often the only one with an adapter.
    if bench.round.is_multiple_of(3) {
        ranks[0] = 8;
    }
    let (rows, has_bias) = (bench.random.of(&[1, 2, 7, 12, 13, 64, 65, 131]), bench.random.below(2) == 0);
    let linears = Linears::new(bench, inputs, &outputs, &ranks, has_bias, 0.3);
    let (narrow, all) = (linears.ranks.iter().sum::<usize>(), outputs.iter().sum::<usize>());
    let what = format!("[{rows}, {inputs}] times {outputs:?} with ranks {ranks:?}, bias {has_bias}");
    let room = narrow + bench.random.of(&[0, 8]);
    let terms = (inputs as f32).sqrt();
    // x with its low-rank products behind it.
    let mut widths = vec![inputs];
    widths.extend(&linears.ranks);
    let x = Several::new(bench, rows, &widths, room - narrow, true);
    let given = |side: Side| {
        let all = x.on(side);
        (all[0], all[1..].to_vec())
    };
    if narrow > 0 {
        bench.run_unchecked(&what, &x.scratch(), |device, side| {
            let (x, t) = given(side);
            device.fused_down(x, linears.on(side), &t, rows);
        });
        x.compare(bench, &format!("{what}: x A^T"), 1.0, 1.0);
    }
    for has_residual in [false, true] {
        if has_residual && parts > 1 {
            continue;
        }
        let y = Several::new(bench, rows, &outputs, 0, false);
        let other = bench.some(rows * all);
        bench.run_unchecked(&what, &y.scratch(), |device, side| {
            let (x, t) = given(side);
            let plus = has_residual.then_some(other.on(side));
            device.fused_linear(x, &t, linears.on(side), &y.on(side), rows, plus);
        });
        // A residual is added after the sum was rounded.
        y.compare(bench, &format!("{what}, residual {has_residual}"), if has_residual { 3.0 } else { 2.0 }, terms);
    }
    let mut widths = outputs.clone();
    widths.extend(&linears.ranks);
    let dy = Several::new(bench, rows, &widths, room - narrow, true);
    let back = |side: Side| {
        let all = dy.on(side);
        (all[..parts].to_vec(), all[parts..].to_vec())
    };
    if narrow > 0 {
        bench.run_unchecked(&what, &dy.scratch(), |device, side| {
            let (dy, dt) = back(side);
            device.fused_up_backward(&dy, linears.on(side), &dt, rows);
        });
        dy.compare(bench, &format!("{what}: dy B"), 1.0, (all as f32).sqrt());
    }
    for with_adapters in [false, true] {
        let dx = bench.unfilled_rows(rows, inputs);
        let output = Output::rows(dx.pair, inputs).of(dx).rounded(2).of_terms(10.0 * (all as f32).sqrt());
        bench.run(&format!("{what} backward, {with_adapters}"), &[output], |device, side| {
            let (dy, dt) = back(side);
            let dt = if with_adapters { dt } else { Vec::new() };
            device.fused_linear_backward(&dy, &dt, linears.on(side), dx.on(side), rows);
        });
    }
    if narrow > 0 {
        // One behind the other, as a model has them.
        let whole = bench.some_f32(narrow * inputs);
        let mut first = 0;
        let places: Vec<(usize, usize)> = linears
            .ranks
            .iter()
            .map(|rank| {
                first += rank;
                (first - rank, *rank)
            })
            .collect();
        let output = Output::rows(whole, inputs).of_terms((rows as f32).sqrt());
        let dt = Several::new(bench, rows, &linears.ranks, 0, true);
        bench.run(&format!("{what}: gradients of A"), &[output], |device, side| {
            let gradients: Vec<Weight> = places
                .iter()
                .map(|(first, rank)| {
                    let buffer = whole.on(side).part(first * inputs, rank * inputs);
                    Weight::plain(buffer, *rank, inputs)
                })
                .collect();
            device.fused_down_gradient(&dt.on(side), given(side).0, &gradients, rows);
        });
    }
}

/// So wide and of so many rows that a device may compute them part by part.
fn wide_linears(bench: &mut Bench) {
    if bench.round > 1 {
        return;
    }
    let (rows, inputs, outputs, ranks, has_bias) = (260, 64, [8200, 8192], [8, 16], bench.round == 1);
    let linears = Linears::new(bench, inputs, &outputs, &ranks, has_bias, 0.3);
    let x = Several::new(bench, rows, &[inputs, 8, 16], 0, true);
    let y = Several::new(bench, rows, &outputs, 0, false);
    bench.run_unchecked("wide linears", &y.scratch(), |device, side| {
        let all = x.on(side);
        device.fused_linear(all[0], &all[1..], linears.on(side), &y.on(side), rows, None);
    });
    y.compare(bench, "wide linears", 2.0, (inputs as f32).sqrt());
}

/// What an adapter adds arrives, however small it is beside what the frozen weight gives: its effect on all outputs, projected on what it would be without
/// rounding. Added to a rounded result, next to nothing of the smallest would arrive.
fn small_adapters_arrive(bench: &mut Bench) {
    if bench.round > 2 {
        return;
    }
    let size = [1e-2, 1e-3, 3e-4][bench.round];
    let (rows, inputs, outputs, rank) = (256, 256, 512, 8);
    let linears = Linears::new(bench, inputs, &[outputs], &[rank], false, size);
    let x = Several::new(bench, rows, &[inputs, rank], 0, true);
    let y = Several::new(bench, rows, &[outputs], 0, false);
    let mut of = |with_adapter: bool| -> [Vec<f32>; 2] {
        bench.run_unchecked("small adapters", &[x.scratch(), y.scratch()].concat(), |device, side| {
            let all = x.on(side);
            device.fused_down(all[0], linears.on(side), &all[1..], rows);
            let t = if with_adapter { &all[1..] } else { &[] };
            device.fused_linear(all[0], t, linears.on(side), &y.on(side), rows, None);
        });
        let rows = if y.is_joined { y.together } else { y.apart[0] };
        [bench.got_rows(rows), bench.expected(y.apart[0].pair)]
    };
    let ([got_without, without], [got_with, with]) = (of(false), of(true));
    let is_exact = bench.dtype() == Dtype::F32;
    let (mut along, mut whole, mut variance) = (0.0, 0.0, 0.0);
    for (index, (with, without)) in with.iter().zip(&without).enumerate() {
        let (effect, got) = (f64::from(with - without), f64::from(got_with[index] - got_without[index]));
        along += got * effect;
        whole += effect * effect;
        // A value changes by the distance of two bf16, as often as its effect is a part of that.
        let unit = if is_exact { 0.0 } else { f64::from(without.abs().max(1e-3)) / 128.0 };
        variance += effect * effect * effect.abs() * unit.max(effect.abs());
    }
    let (arrives, spread) = (along / whole, 4.0 * variance.sqrt() / whole);
    println!("B up to {size}: {arrives:.3} of its effect arrives, {spread:.3} is four standard errors");
    assert!(spread < 0.3, "too few outputs to tell");
    // The low-rank product and B are rounded, too, but relative to themselves.
    assert!((arrives - 1.0).abs() <= 0.01 + spread, "B up to {size}: {arrives} of its effect arrives");
}
