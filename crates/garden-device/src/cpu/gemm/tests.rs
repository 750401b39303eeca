//! Products against sums in f64, with every instruction set that this processor supports.

use super::*;

/// Instruction sets that this processor supports.
fn processors() -> Vec<Processor> {
    let mut all = vec![Processor::Any];
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
            all.push(Processor::Avx2);
        }
        if std::arch::is_x86_feature_detected!("avx512f") {
            all.push(Processor::Avx512);
        }
    }
    assert_eq!(all.last(), Some(&processor()), "the best is chosen");
    all
}

/// Pseudorandom numbers.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn below(&mut self, bound: usize) -> usize {
        self.next() as usize % bound
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    fn values(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.next() as f32 / (1_u64 << 30) as f32 - 1.0).collect()
    }
}

/// A strided matrix `[rows, columns]`, with gaps between its values and around it.
struct Held {
    values: Vec<f32>,
    first: usize,
    row: usize,
    column: usize,
}

impl Held {
    fn new(random: &mut Random, rows: usize, columns: usize) -> Held {
        let (first, gap) = (random.below(5), random.of(&[0, 0, 1, 7]));
        let (row, column) = match random.below(5) {
            0 | 1 => (columns + gap, 1),
            2 | 3 => (1, rows + gap),
            _ => (2 * columns + gap, 2),
        };
        let values = random.values(first + row * rows + column * columns + 1);
        Held { values, first, row, column }
    }

    fn matrix(&self) -> Matrix {
        Matrix { start: self.values[self.first..].as_ptr(), row: self.row as isize, column: self.column as isize }
    }

    fn at(&self, row: usize, column: usize) -> f32 {
        self.values[self.first + row * self.row + column * self.column]
    }
}

fn factor_a(a: Matrix) -> Factor<'static> {
    Factor::Strided { start: a.start, along: a.column, across: a.row }
}

fn factor_b(b: Matrix) -> Factor<'static> {
    Factor::Strided { start: b.start, along: b.row, across: b.column }
}

/// Workspace with an arbitrary alignment.
fn some_workspace(random: &mut Random) -> (Vec<f32>, usize) {
    let first = random.below(16);
    (vec![f32::NAN; first + workspace()], first)
}

fn check(random: &mut Random, m: usize, n: usize, k: usize) {
    let (a, b) = (Held::new(random, m, k), Held::new(random, k, n));
    let (scale, write) = (random.of(&[1.0, 0.5, -3.0, 0.0]), random.of(&[Write::Set, Write::Add]));
    let (row, first) = (n + random.below(9), random.below(9));
    let before = random.values(first + m * row + 64);
    for processor in processors() {
        let mut c = before.clone();
        let (mut workspace, start) = some_workspace(random);
        let product = Product {
            c: c[first..].as_mut_ptr(),
            row: row as isize,
            m,
            n,
            k,
            a: factor_a(a.matrix()),
            b: factor_b(b.matrix()),
            scale,
            write,
        };
        // SAFETY: all lie inside their vectors, and the processor supports this instruction set.
        unsafe { product.on(processor, &mut workspace[start..]) };
        for (place, (value, before)) in c.iter().zip(&before).enumerate() {
            let at = place.checked_sub(first).map(|at| (at / row.max(1), at % row.max(1)));
            let Some((i, j)) = at.filter(|(i, j)| *i < m && *j < n) else {
                assert_eq!(
                    value.to_bits(),
                    before.to_bits(),
                    "{processor:?} {m} x {n} x {k} wrote beside c, at {place}"
                );
                continue;
            };
            let products = (0..k).map(|p| f64::from(a.at(i, p)) * f64::from(b.at(p, j)));
            let (sum, sizes) = products.fold((0.0, 0.0), |(sum, sizes), one| (sum + one, sizes + one.abs()));
            let set = if write == Write::Add { f64::from(*before) } else { 0.0 };
            let expected = set + f64::from(scale) * sum;
            // Each of k multiply-adds, and the last step, may err by at most half a unit of the summed magnitudes.
            let bound =
                (2 * k + 4) as f64 * f64::from(f32::EPSILON) / 2.0 * (f64::from(scale).abs() * sizes + set.abs());
            let error = (f64::from(*value) - expected).abs();
            assert!(error <= bound, "{processor:?} {m} x {n} x {k} at {i}, {j}: {value} for {expected}, {bound:e}");
        }
    }
}

#[test]
fn products_agree_with_sums_in_f64() {
    let mut random = Random(1);
    let edges = [0, 1, 2, 5, 6, 13, 15, 16, 17, 31, 48, 63, 64, 65, 80, 129, 257];
    for _ in 0..400 {
        let (mut m, n, k) =
            (random.of(&edges), random.of(&edges), random.of(&[0, 1, 2, 5, 8, 63, 64, 65, 128, 129, 257]));
        while m * n * k > 300_000 {
            m /= 2;
        }
        check(&mut random, m, n, k);
    }
    for (m, n, k) in
        [(5, 65, 5000), (64, 3, 1025), (1, 1, 5000), (14, 17, 513), (25, 16, 2000), (63, 300, 512), (3, 1700, 40)]
    {
        check(&mut random, m, n, k);
    }
}

/// The bits of a product computed in pieces that start at these rows and columns.
fn bits(
    processor: Processor,
    [m, n, k]: [usize; 3],
    a: Matrix,
    b: Matrix,
    row_cuts: &[usize],
    column_cuts: &[usize],
) -> Vec<u32> {
    let (mut c, mut workspace) = (vec![0.25; m * n], vec![0.0; workspace()]);
    let to = c.as_mut_ptr();
    for (row, row_end) in row_cuts.iter().zip(row_cuts[1..].iter().chain([&m])) {
        for (column, column_end) in column_cuts.iter().zip(column_cuts[1..].iter().chain([&n])) {
            let product = Product {
                c: to.wrapping_add(row * n + column),
                row: n as isize,
                m: row_end - row,
                n: column_end - column,
                k,
                a: factor_a(a.at(*row, 0)),
                b: factor_b(b.at(0, *column)),
                scale: 0.7,
                write: Write::Add,
            };
            // SAFETY: as in `check`.
            unsafe { product.on(processor, &mut workspace) };
        }
    }
    c.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn no_cut_and_no_width_of_vectors_changes_a_bit() {
    let mut random = Random(2);
    for [m, n, k] in [[70, 200, 40], [30, 300, 700], [100, 90, 1100]] {
        for _ in 0..6 {
            let (a, b) = (Held::new(&mut random, m, k), Held::new(&mut random, k, n));
            let whole = |processor| bits(processor, [m, n, k], a.matrix(), b.matrix(), &[0], &[0]);
            for processor in processors() {
                for rows in [&[0][..], &[0, 1], &[0, 13, 27]] {
                    for columns in [&[0][..], &[0, 64], &[0, 1, 17, 80]] {
                        let cut = bits(processor, [m, n, k], a.matrix(), b.matrix(), rows, columns);
                        assert_eq!(cut, whole(processor), "{processor:?} {m} x {n} x {k} at {rows:?}, {columns:?}");
                    }
                }
            }
            #[cfg(target_arch = "x86_64")]
            if processors().contains(&Processor::Avx512) {
                assert_eq!(whole(Processor::Avx512), whole(Processor::Avx2));
            }
        }
    }
}

#[test]
fn what_is_filled_in_gives_the_bits_of_what_lies_in_memory() {
    let mut random = Random(3);
    for [m, n, k] in [[70, 200, 40], [7, 65, 1100], [130, 300, 129], [1, 1, 1], [2, 9000, 8]] {
        let (a, b) = (Held::new(&mut random, m, k), Held::new(&mut random, k, n));
        // By row and by column: (line, first, to).
        let row_of = |of: &Held, row: usize, first: usize, to: &mut [f32]| {
            to.iter_mut().enumerate().for_each(|(at, to)| *to = of.at(row, first + at));
        };
        let column_of = |of: &Held, column: usize, first: usize, to: &mut [f32]| {
            to.iter_mut().enumerate().for_each(|(at, to)| *to = of.at(first + at, column));
        };
        let (a_rows, a_columns) = (
            |line: usize, first: usize, to: &mut [f32]| row_of(&a, line, first, to),
            |line: usize, first: usize, to: &mut [f32]| column_of(&a, line, first, to),
        );
        let (b_rows, b_columns) = (
            |line: usize, first: usize, to: &mut [f32]| row_of(&b, line, first, to),
            |line: usize, first: usize, to: &mut [f32]| column_of(&b, line, first, to),
        );
        let product = |a: Source<'_>, b: Source<'_>| {
            let (mut c, mut workspace) = (vec![0.0; m * n], vec![f32::NAN; workspace()]);
            // SAFETY: as in `check`.
            unsafe { multiply(c.as_mut_ptr(), n as isize, m, n, k, a, b, 1.0, Write::Set, &mut workspace) };
            c.iter().map(|value| value.to_bits()).collect::<Vec<u32>>()
        };
        let (in_a, in_b) = (Source::Values(a.matrix()), Source::Values(b.matrix()));
        let expected = product(in_a, in_b);
        assert_eq!(product(Source::Rows(&a_rows), in_b), expected);
        assert_eq!(product(Source::Columns(&a_columns), in_b), expected);
        assert_eq!(product(in_a, Source::Rows(&b_rows)), expected);
        assert_eq!(product(in_a, Source::Columns(&b_columns)), expected);
        assert_eq!(product(Source::Columns(&a_columns), Source::Rows(&b_rows)), expected);
    }
}

#[test]
fn a_sum_of_nothing_is_zero() {
    for (write, expected) in [(Write::Set, [0.0, 0.0, 7.0]), (Write::Add, [7.0; 3])] {
        let (mut c, nothing) = ([7.0_f32; 3], Matrix { start: std::ptr::null(), row: 0, column: 0 });
        // SAFETY: there is nothing to read, and c has a row of two values.
        unsafe { multiply(c.as_mut_ptr(), 3, 1, 2, 0, nothing, nothing, 1.0, write, &mut []) };
        assert_eq!(c, expected);
    }
}
