//! A device under test beside a processor that computes the same in f32: each operation runs on both, on the same values.
//!
//! Activations are rounded to what the device keeps them in before either gets them, so all that can differ is what the device itself does.
//!
//! # How far results may be apart
//!
//! A device computes in f32 and rounds what it writes. One rounding moves a value by at most the profile's tolerance, relative to the value: 2^-8 for
//! bf16, which has 8 significant bits. Sums in f32, in whatever order, are off by [`F32`] of their size. So a result that went through n roundings
//! (one for what is written, and one more for each product whose factors a device may round in between, as those of attention) must be within
//!
//! - n tolerance + F32 of the size of its row, value by value: where terms cancel a value is small and its error is not, so the largest of the row
//!   counts, or the size of the terms that is given with it;
//! - n tolerance + F32 of the norm of all expected values, in the norm of all differences. A term that is missing from a long sum hides below the
//!   first bound and not below this one, and errors of roundings never reach it together.
//!
//! f32 results (statistics, losses, gradients of parameters, moments) have no roundings: n is 0. What is only moved must be the same bits. Nothing that is
//! no number passes, and results are filled with it beforehand.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

use garden_device::{
    Buffer, Cpu, Device, Dtype, Nf4Blocks, Nf4Scales, Profile, Purpose, Reserve, Rows, StepScalars, Weight, nf4,
};

/// Values behind each buffer that no operation may touch.
const GUARD: usize = 16;
/// Times that each case runs, with other shapes.
pub const ROUNDS: usize = 12;
/// The largest that cases use.
pub const LARGEST: Reserve = Reserve {
    widest: 2200,
    largest_packed: 400 * 300,
    longest_vector: 2200,
    longest: 700,
    head_size: 128,
    attention_tokens: 2000,
    segments: 100,
    query_heads: 2000 * 12,
    grouped_values: 2000 * 12 * 128,
    parameters: 64,
};

/// Random numbers: SplitMix64.
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    pub fn of<T: Copy>(&mut self, given: &[T]) -> T {
        given[self.below(given.len())]
    }

    /// Between -1 and 1.
    pub fn value(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub fn values(&mut self, length: usize) -> Vec<f32> {
        (0..length).map(|_| self.value()).collect()
    }
}

/// Which of the two devices an operation runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Tested,
    Reference,
}

/// The same values on both.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    tested: Buffer,
    reference: Buffer,
}

impl Pair {
    pub fn on(self, side: Side) -> Buffer {
        match side {
            Side::Tested => self.tested,
            Side::Reference => self.reference,
        }
    }

    pub fn length(self) -> usize {
        self.tested.length()
    }
}

/// The same rows on both. Where a device has rows with room behind them, this one has; the reference never has.
#[derive(Clone, Copy, Debug)]
pub struct PairOfRows {
    pub pair: Pair,
    pub width: usize,
    stride: usize,
}

impl PairOfRows {
    pub fn on(self, side: Side) -> Rows {
        let stride = if side == Side::Tested { self.stride } else { self.width };
        Rows { buffer: self.pair.on(side), width: self.width, stride }
    }

    /// What lies in the rows, of all values of the buffer.
    fn inside(&self, all: &[f32]) -> Vec<f32> {
        all.chunks(self.stride).flat_map(|row| &row[..self.width]).copied().collect()
    }
}

/// A weight as the device under test has it, and its values in f32: what products forward and backward multiply with.
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    tested: Weight,
    forward: Weight,
    backward: Weight,
}

impl Matrix {
    pub fn forward(&self, side: Side) -> &Weight {
        if side == Side::Tested { &self.tested } else { &self.forward }
    }

    pub fn backward(&self, side: Side) -> &Weight {
        if side == Side::Tested { &self.tested } else { &self.backward }
    }
}

/// How a weight is stored.
#[derive(Clone, Copy, Debug)]
pub enum Stored {
    As(Dtype),
    Packed { is_double: bool, packed_from: Dtype },
}

/// What errors of a result are relative to.
#[derive(Clone, Copy, Debug)]
enum Size {
    /// Nothing: the same bits.
    Exact,
    /// The largest of each row of so many values.
    Rows(usize),
    /// The largest of all.
    All,
    /// Nothing: it is used and forgotten.
    Scratch,
}

/// What an operation writes, and how near it must be.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    pair: Pair,
    /// Width and stride of rows with room behind them.
    rows: Option<PairOfRows>,
    size: Size,
    roundings: f32,
    /// What roundings are relative to at least.
    least: f32,
    terms: f32,
}

impl Output {
    pub fn exact(pair: Pair) -> Output {
        Output { pair, rows: None, size: Size::Exact, roundings: 0.0, least: 0.0, terms: 0.0 }
    }

    /// Each value has an error of its own.
    pub fn values(pair: Pair) -> Output {
        Output::rows(pair, 1)
    }

    pub fn rows(pair: Pair, width: usize) -> Output {
        Output { size: Size::Rows(width), roundings: 1.0, ..Output::exact(pair) }
    }

    pub fn all(pair: Pair) -> Output {
        Output { size: Size::All, roundings: 1.0, ..Output::exact(pair) }
    }

    /// Written, but not to be read.
    pub fn scratch(pair: Pair) -> Output {
        Output { size: Size::Scratch, ..Output::exact(pair) }
    }

    /// Of rows that may have room behind them, which stays as it is.
    pub fn of(self, rows: PairOfRows) -> Output {
        Output { rows: Some(rows), ..self }
    }

    /// Activations are rounded more than once on their way.
    pub fn rounded(self, roundings: usize) -> Output {
        Output { roundings: roundings as f32, ..self }
    }

    /// Something this large is rounded before it is added to something else, whatever is left of both.
    pub fn of_sums(self, least: f32) -> Output {
        Output { least, ..self }
    }

    /// Terms that are this large are summed in f32, whatever is left of them.
    pub fn of_terms(self, terms: f32) -> Output {
        Output { terms, ..self }
    }
}

/// A device under test and its reference.
pub struct Bench {
    pub device: Box<dyn Device>,
    pub cpu: Cpu,
    pub random: Random,
    pub round: usize,
    /// Buffers of the device under test, with what lies behind them.
    made: Vec<Buffer>,
}

/// How far f32 may be away: sums of a few hundred products.
fn f32_tolerance() -> f32 {
    Profile::cpu(1).tolerance
}

/// The number that GARDEN_SEED gives, so that other values can be tried.
fn seed() -> u64 {
    garden_testing::seed()
}

/// Runs a case on a device, where there is one.
pub fn check(device: Option<Box<dyn Device>>, case: fn(&mut Bench)) {
    let Some(mut device) = device else { return };
    // One thread, so that on a processor another cut of the work is compared.
    let mut cpu = Cpu::new(1);
    device.reserve(LARGEST).unwrap();
    cpu.reserve(LARGEST).unwrap();
    let mut bench = Bench { device, cpu, random: Random(0), round: 0, made: Vec::new() };
    for round in 0..ROUNDS {
        (bench.round, bench.random) = (round, Random(seed() * 1000 + round as u64));
        bench.made.clear();
        case(&mut bench);
    }
}

/// Values as a dtype has them.
pub fn rounded(dtype: Dtype, values: &[f32]) -> Vec<f32> {
    let mut bytes = vec![0; values.len() * dtype.size()];
    dtype.narrow(values, &mut bytes);
    let mut rounded = vec![0.0; values.len()];
    dtype.widen(&bytes, &mut rounded);
    rounded
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

impl Bench {
    pub fn dtype(&self) -> Dtype {
        self.device.profile().activations
    }

    /// A buffer of the device under test with a guard behind it.
    fn make(&mut self, dtype: Dtype, length: usize) -> Buffer {
        let all = self.device.buffer(Purpose::Workspace, "test", dtype, length + GUARD).unwrap();
        match dtype {
            Dtype::U8 => self.device.upload(all, &vec![77; length + GUARD]),
            Dtype::I32 => self.device.upload(all, &77_i32.to_le_bytes().repeat(length + GUARD)),
            _ => self.device.upload_f32(all, &vec![77.0; length + GUARD]),
        }
        self.made.push(all);
        all.first(length)
    }

    fn floats(&mut self, dtype: Dtype, values: &[f32]) -> Pair {
        let values = rounded(dtype, values);
        let tested = self.make(dtype, values.len());
        self.device.upload_f32(tested, &values);
        let reference = self.cpu.buffer(Purpose::Workspace, "test", Dtype::F32, values.len()).unwrap();
        self.cpu.upload_f32(reference, &values);
        Pair { tested, reference }
    }

    /// Values of activations.
    pub fn activations(&mut self, values: &[f32]) -> Pair {
        self.floats(self.dtype(), values)
    }

    /// Random activations between -1 and 1.
    pub fn some(&mut self, length: usize) -> Pair {
        let values = self.random.values(length);
        self.activations(&values)
    }

    /// f32 on every device.
    pub fn f32(&mut self, values: &[f32]) -> Pair {
        self.floats(Dtype::F32, values)
    }

    /// Random f32 between -1 and 1.
    pub fn some_f32(&mut self, length: usize) -> Pair {
        let values = self.random.values(length);
        self.f32(&values)
    }

    /// Activations that are all written: what was there before must not matter.
    pub fn unfilled(&mut self, length: usize) -> Pair {
        self.activations(&vec![f32::NAN; length])
    }

    pub fn unfilled_f32(&mut self, length: usize) -> Pair {
        self.f32(&vec![f32::NAN; length])
    }

    /// Rows of activations, with room behind them where a device has that: aligned or not.
    pub fn rows(&mut self, values: &[f32], width: usize) -> PairOfRows {
        let room = if self.device.profile().is_joined { self.random.of(&[0, 3, 8, 24]) } else { 0 };
        self.rows_with_room(values, width, room)
    }

    pub fn rows_with_room(&mut self, values: &[f32], width: usize, room: usize) -> PairOfRows {
        let (dtype, stride) = (self.dtype(), width + room);
        let values = rounded(dtype, values);
        let spread: Vec<f32> =
            values.chunks(width).flat_map(|row| row.iter().copied().chain(std::iter::repeat_n(55.0, room))).collect();
        let tested = self.make(dtype, spread.len());
        self.device.upload_f32(tested, &spread);
        let reference = self.cpu.buffer(Purpose::Workspace, "test", Dtype::F32, values.len()).unwrap();
        self.cpu.upload_f32(reference, &values);
        PairOfRows { pair: Pair { tested, reference }, width, stride }
    }

    pub fn some_rows(&mut self, rows: usize, width: usize) -> PairOfRows {
        let values = self.random.values(rows * width);
        self.rows(&values, width)
    }

    /// Nothing, or something to add to.
    pub fn written_rows(&mut self, write: garden_device::Write, rows: usize, width: usize) -> PairOfRows {
        match write {
            garden_device::Write::Set => self.rows(&vec![f32::NAN; rows * width], width),
            garden_device::Write::Add => self.some_rows(rows, width),
        }
    }

    pub fn unfilled_rows(&mut self, rows: usize, width: usize) -> PairOfRows {
        self.written_rows(garden_device::Write::Set, rows, width)
    }

    pub fn got_rows(&mut self, rows: PairOfRows) -> Vec<f32> {
        rows.inside(&self.got(rows.pair))
    }

    /// As [`Bench::align`].
    pub fn align_rows(&mut self, rows: PairOfRows) {
        let (expected, mut all) = (self.expected(rows.pair), self.got(rows.pair));
        let values = rounded(self.dtype(), &expected);
        for (to, from) in all.chunks_mut(rows.stride).zip(values.chunks(rows.width)) {
            to[..rows.width].copy_from_slice(from);
        }
        self.device.upload_f32(rows.pair.tested, &all);
        self.cpu.upload_f32(rows.pair.reference, &values);
    }

    fn raw(&mut self, dtype: Dtype, bytes: &[u8]) -> Pair {
        let length = bytes.len() / dtype.size();
        let tested = self.make(dtype, length);
        self.device.upload(tested, bytes);
        let reference = self.cpu.buffer(Purpose::Workspace, "test", dtype, length).unwrap();
        self.cpu.upload(reference, bytes);
        Pair { tested, reference }
    }

    pub fn i32(&mut self, values: &[i32]) -> Pair {
        self.raw(Dtype::I32, &values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>())
    }

    pub fn u8(&mut self, values: &[u8]) -> Pair {
        self.raw(Dtype::U8, values)
    }

    pub fn scalars(&mut self, scalars: StepScalars) -> Pair {
        self.i32(&scalars.words())
    }

    /// What the device under test takes in products.
    pub fn storages(&self) -> Vec<Stored> {
        let dtypes = match self.device.profile().frozen {
            Some(dtype) => vec![dtype],
            None => vec![Dtype::F32, Dtype::Bf16, Dtype::F16],
        };
        let packed = [(false, Dtype::F32), (true, Dtype::Bf16), (true, Dtype::F16)];
        let packed = packed.map(|(is_double, packed_from)| Stored::Packed { is_double, packed_from });
        dtypes.into_iter().map(Stored::As).chain(packed).collect()
    }

    /// A random weight; one that is packed has padding around `stored` rows and columns.
    pub fn weight(&mut self, how: Stored, rows: usize, columns: usize, stored: (usize, usize)) -> Matrix {
        match how {
            Stored::As(dtype) => {
                let values = rounded(dtype, &self.random.values(rows * columns));
                let tested = self.make(dtype, values.len());
                self.device.upload_f32(tested, &values);
                let wide = self.wide(&values, rows, columns);
                Matrix { tested: Weight::plain(tested, rows, columns), forward: wide, backward: wide }
            }
            Stored::Packed { is_double, packed_from } => self.packed(is_double, packed_from, rows, columns, stored),
        }
    }

    fn packed(
        &mut self,
        is_double: bool,
        packed_from: Dtype,
        rows: usize,
        columns: usize,
        stored: (usize, usize),
    ) -> Matrix {
        let values = self.random.values(stored.0 * stored.1);
        let (mut packed, mut scales) = (Vec::new(), Vec::new());
        nf4::pack(&values, &mut packed, &mut scales);
        let double = nf4::DoubleScales::of(&scales);
        let view = match is_double {
            true => nf4::Scales::Double(&double.codes, &double.scales, double.offset),
            false => nf4::Scales::Plain(&scales),
        };
        let mut unpacked = vec![0.0; values.len()];
        nf4::unpack(&packed, view, 0, &mut unpacked);
        let mut padded = vec![0.0; rows * columns];
        for (from, to) in unpacked.chunks_exact(stored.1).zip(padded.chunks_exact_mut(columns)) {
            to[..stored.1].copy_from_slice(from);
        }
        let buffer = self.u8(&packed).tested;
        let scales = match is_double {
            true => Nf4Scales::Double {
                codes: self.u8(&double.codes).tested,
                scales: self.f32(&double.scales).tested,
                offset: double.offset,
            },
            false => Nf4Scales::Plain(self.f32(&scales).tested),
        };
        let blocks = Some(Nf4Blocks { rows: stored.0, columns: stored.1, scales, packed_from });
        // Where activations are rounded, so is what they are multiplied with; else backward passes round to what the weight was.
        let narrow = self.device.profile().shadow();
        let of = |bench: &mut Bench, dtype: Dtype| bench.wide(&rounded(dtype, &padded), rows, columns);
        Matrix {
            tested: Weight { blocks, ..Weight::plain(buffer, rows, columns) },
            forward: of(self, narrow.unwrap_or(Dtype::F32)),
            backward: of(self, narrow.unwrap_or(packed_from)),
        }
    }

    /// A weight of the reference.
    fn wide(&mut self, values: &[f32], rows: usize, columns: usize) -> Weight {
        let buffer = self.cpu.buffer(Purpose::Weights, "test", Dtype::F32, values.len()).unwrap();
        self.cpu.upload_f32(buffer, values);
        Weight::plain(buffer, rows, columns)
    }

    /// What the device under test has.
    pub fn got(&mut self, pair: Pair) -> Vec<f32> {
        download(&mut *self.device, pair.tested)
    }

    /// What the reference has.
    pub fn expected(&mut self, pair: Pair) -> Vec<f32> {
        download(&mut self.cpu, pair.reference)
    }

    pub fn got_bytes(&mut self, pair: Pair) -> Vec<u8> {
        self.device.download_bytes(pair.tested).unwrap()
    }

    pub fn expected_bytes(&mut self, pair: Pair) -> Vec<u8> {
        self.cpu.download_bytes(pair.reference).unwrap()
    }

    /// Gives the device under test what the reference has, rounded to what it can hold, so that errors do not pile up.
    pub fn align(&mut self, pair: Pair) {
        if pair.tested.dtype() == Dtype::U8 {
            let bytes = self.expected_bytes(pair);
            return self.device.upload(pair.tested, &bytes);
        }
        let values = rounded(pair.tested.dtype(), &self.expected(pair));
        self.device.upload_f32(pair.tested, &values);
        self.cpu.upload_f32(pair.reference, &values);
    }

    /// Runs an operation on both devices and compares what it writes. On the one under test it runs twice from the same values: the bits must be the
    /// same again, and whatever it does not write must stay as it was.
    pub fn run(&mut self, what: &str, outputs: &[Output], operation: impl Fn(&mut dyn Device, Side)) {
        self.run_unchecked(what, outputs, operation);
        self.compare_all(what, outputs);
    }

    /// The same for what the caller compares in a way of its own.
    pub fn run_unchecked(&mut self, what: &str, outputs: &[Output], operation: impl Fn(&mut dyn Device, Side)) {
        let before = self.snapshot();
        operation(&mut *self.device, Side::Tested);
        let once = self.snapshot();
        self.restore(&before);
        operation(&mut *self.device, Side::Tested);
        let again = self.snapshot();
        for ((buffer, before), (once, again)) in self.made.iter().zip(&before).zip(once.iter().zip(&again)) {
            assert!(once == again, "{what}: other bits the second time");
            // What is behind is never written; the rest only if it is said to be.
            let is_written = outputs.iter().any(|output| output.pair.tested == buffer.first(buffer.length() - GUARD));
            let kept = if is_written { before.len() - GUARD } else { 0 };
            assert_eq!(once[kept..], before[kept..], "{what}: {buffer:?} was changed from {kept} on");
            for rows in outputs.iter().filter(|output| output.pair.tested == buffer.first(buffer.length() - GUARD)) {
                let Some(PairOfRows { width, stride, .. }) = rows.rows else { continue };
                let beside = |all: &[u32]| -> Vec<u32> {
                    all[..kept].chunks(stride).flat_map(|row| &row[width..]).copied().collect()
                };
                assert_eq!(beside(once), beside(before), "{what}: what lies behind the rows of {buffer:?} was changed");
            }
        }
        operation(&mut self.cpu, Side::Reference);
    }

    /// Compares what both devices have.
    pub fn compare_all(&mut self, what: &str, outputs: &[Output]) {
        outputs.iter().for_each(|output| self.compare(what, output));
    }

    fn compare(&mut self, what: &str, output: &Output) {
        let (got, expected) = (self.got(output.pair), self.expected(output.pair));
        let got = output.rows.map_or(got.clone(), |rows| rows.inside(&got));
        let dtype = output.pair.tested.dtype();
        let width = match output.size {
            Size::Exact => {
                assert_eq!(bits(&got), bits(&rounded(dtype, &expected)), "{what}: other bits");
                return;
            }
            Size::Scratch => return,
            Size::Rows(width) => width,
            Size::All => expected.len().max(1),
        };
        let narrow = if dtype == Dtype::F32 { 0.0 } else { output.roundings * self.device.profile().tolerance };
        let bound = |size: f32| narrow * size.max(output.least) + f32_tolerance() * size.max(output.terms);
        let (mut off, mut norm) = (0.0, 0.0);
        for (row, (got, expected)) in got.chunks(width).zip(expected.chunks(width)).enumerate() {
            let size = expected.iter().fold(0.0_f32, |size, value| size.max(value.abs()));
            assert!(expected.iter().all(|value| value.is_finite()), "{what}: the reference has no numbers");
            for (column, (got, expected)) in got.iter().zip(expected).enumerate() {
                let apart = (got - expected).abs();
                // What is no number is not below anything.
                assert!(
                    apart <= bound(size),
                    "{what} [{row}, {column}]: {got} instead of {expected}, {:.1} times what is allowed",
                    apart / bound(size)
                );
                off += f64::from(apart).powi(2);
                norm += f64::from(expected.abs()).powi(2);
            }
        }
        let (off, norm) = (off.sqrt() as f32, norm.sqrt() as f32);
        let root = (expected.len() as f32).sqrt();
        let allowed = narrow * norm.max(output.least * root) + f32_tolerance() * norm.max(output.terms * root);
        assert!(off <= allowed, "{what}: all differences together are {off:.1e}, {allowed:.1e} allowed");
    }

    /// The bits of all buffers but those of whole numbers, which no operation writes and no device reads back.
    fn snapshot(&mut self) -> Vec<Vec<u32>> {
        let device = &mut *self.device;
        let take = |buffer: &Buffer| match buffer.dtype() {
            Dtype::I32 => Vec::new(),
            Dtype::U8 => device.download_bytes(*buffer).unwrap().into_iter().map(u32::from).collect(),
            _ => bits(&download(device, *buffer)),
        };
        self.made.iter().map(take).collect()
    }

    fn restore(&mut self, snapshot: &[Vec<u32>]) {
        for (buffer, bits) in self.made.iter().zip(snapshot) {
            match buffer.dtype() {
                Dtype::I32 => {}
                Dtype::U8 => {
                    self.device.upload(*buffer, &bits.iter().map(|bits| *bits as u8).collect::<Vec<u8>>());
                }
                _ => {
                    let values: Vec<f32> = bits.iter().map(|bits| f32::from_bits(*bits)).collect();
                    self.device.upload_f32(*buffer, &values);
                }
            }
        }
    }
}

pub fn download(device: &mut dyn Device, buffer: Buffer) -> Vec<f32> {
    let mut values = vec![f32::NAN; buffer.length()];
    device.download(buffer, &mut values).unwrap();
    values
}
