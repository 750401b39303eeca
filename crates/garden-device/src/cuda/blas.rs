//! Matrix products with cuBLASLt.
//!
//! The library is column-major: it sees a row-major matrix as its transpose, so y = x W^T is requested as y^T = W x^T.
//! What a product computes depends only on its shape, rounded up, its alignment, the card and the library's version: the library's first choice of an algorithm says
//! into how many parts the sum is split, and reductions have a fixed order. Of the algorithms that split it the same way, those whose result has the same bits are measured,
//! and the fastest is taken (`products.rs`): time decides about time alone.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::PathBuf;

use super::driver::Address;
use super::library::{Unavailable, find, functions};
use crate::buffer::Dtype;

type Handle = *mut c_void;

functions! {
    Functions {
        create = "cublasLtCreate" (*mut Handle) -> c_int;
        destroy = "cublasLtDestroy" (Handle) -> c_int;
        version = "cublasLtGetVersion" () -> usize;
        status_text = "cublasLtGetStatusString" (c_int) -> *const c_char;
        description_create = "cublasLtMatmulDescCreate" (*mut Handle, c_int, c_int) -> c_int;
        description_destroy = "cublasLtMatmulDescDestroy" (Handle) -> c_int;
        description_set = "cublasLtMatmulDescSetAttribute" (Handle, c_int, *const c_void, usize) -> c_int;
        layout_create = "cublasLtMatrixLayoutCreate" (*mut Handle, c_int, u64, u64, i64) -> c_int;
        layout_destroy = "cublasLtMatrixLayoutDestroy" (Handle) -> c_int;
        preference_create = "cublasLtMatmulPreferenceCreate" (*mut Handle) -> c_int;
        preference_destroy = "cublasLtMatmulPreferenceDestroy" (Handle) -> c_int;
        preference_set = "cublasLtMatmulPreferenceSetAttribute" (Handle, c_int, *const c_void, usize) -> c_int;
        heuristic = "cublasLtMatmulAlgoGetHeuristic" (
            Handle, Handle, Handle, Handle, Handle, Handle, Handle, c_int, *mut Heuristic, *mut c_int
        ) -> c_int;
        configuration = "cublasLtMatmulAlgoConfigGetAttribute" (*const Algorithm, c_int, *mut c_void, usize, *mut usize) -> c_int;
        matmul = "cublasLtMatmul" (
            Handle, Handle, *const c_void, *const c_void, Handle, *const c_void, Handle, *const c_void, *const c_void, Handle,
            *mut c_void, Handle, *const Algorithm, *mut c_void, usize, Handle
        ) -> c_int;
    }
}

const COMPUTE_F32: c_int = 68;
const TRANSPOSE_A: c_int = 3;
const TRANSPOSE_B: c_int = 4;
const EPILOGUE: c_int = 7;
const BIAS_POINTER: c_int = 8;
/// Adds a value to each row of the library's column-major result: to each column of ours.
const EPILOGUE_BIAS: c_int = 4;
const WORKSPACE_BYTES: c_int = 1;
const REDUCTION_SCHEMES: c_int = 3;
const ALIGNMENT_A: c_int = 5;
/// Attributes of an algorithm: the number of parts of its sums, and how those are added.
const SPLITS: c_int = 2;
const REDUCTION_SCHEME: c_int = 3;
/// How many algorithms the library is asked for.
const CANDIDATES: usize = 8;
/// Partial sums of a long product are added in a fixed order and in f32, without rounding before.
const ORDERED_REDUCTIONS: u32 = 2;

/// Workspace of the library: its recommendation for Hopper, and enough elsewhere.
pub(super) const WORKSPACE: usize = 32 << 20;
/// Maximum number of cached plans; no training run has more shapes, and at the limit the cache is cleared.
const MOST_PLANS: usize = 4096;

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Algorithm([u64; 8]);

#[repr(C)]
#[derive(Clone, Copy)]
struct Heuristic {
    algorithm: Algorithm,
    workspace: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

/// The kind of product, in terms of x `[rows, k]`, W `[n, k]`, y `[rows, n]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Product {
    /// y = x W^T.
    Forward,
    /// dx = dy W.
    Backward,
    /// dW = dy^T x.
    Weight,
}

/// What determines the algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    product: Product,
    rows: usize,
    n: usize,
    k: usize,
    strides: Strides,
    /// bf16 results instead of f32.
    is_narrow: bool,
    has_bias: bool,
    /// Something is added to the result.
    adds: bool,
    alignment: u32,
}

/// Index of the description with a bias, after those of [`Product`].
const WITH_BIAS: usize = 3;

impl Key {
    fn of(of: &Operands) -> Key {
        let places = [of.first, of.second, of.to].into_iter().chain(of.plus);
        let alignment = places.map(|address| address.trailing_zeros().min(8)).min().unwrap_or(0);
        Key {
            product: of.product,
            rows: rounded(of.rows),
            n: of.n,
            k: of.k,
            strides: of.strides,
            is_narrow: of.to_dtype == Dtype::Bf16,
            has_bias: of.bias.is_some(),
            adds: of.plus.is_some(),
            alignment: 1 << alignment,
        }
    }

    fn description(&self) -> usize {
        if self.has_bias { WITH_BIAS } else { self.product as usize }
    }
}

/// Distances between rows of the three matrices of a product, in values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Strides {
    pub first: usize,
    pub second: usize,
    pub to: usize,
}

/// Shapes and addresses of a product.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operands {
    pub product: Product,
    pub rows: usize,
    pub n: usize,
    pub k: usize,
    pub strides: Strides,
    /// The activations: x, or dy for the last two.
    pub first: Address,
    /// The weight, or x for a weight gradient.
    pub second: Address,
    pub to: Address,
    pub to_dtype: Dtype,
    pub scale: f32,
    /// Added to the result, after that is rounded: the result itself, or a buffer of its shape and stride.
    pub plus: Option<Address>,
    /// bf16 `[n]`, added to each row of a forward product.
    pub bias: Option<Address>,
}

/// The cuBLASLt library.
pub(super) struct Blas {
    functions: Functions,
    handle: Handle,
    preference: Handle,
    /// Descriptions of the three products, and of the first with a bias.
    descriptions: [Handle; 4],
    plans: HashMap<Key, Algorithm>,
    pub version: usize,
    pub path: PathBuf,
}

/// A matrix as the library sees it; destroyed on drop.
struct Layout<'a> {
    functions: &'a Functions,
    handle: Handle,
}

impl Drop for Layout<'_> {
    fn drop(&mut self) {
        // SAFETY: our own layout, destroyed once.
        unsafe { (self.functions.layout_destroy)(self.handle) };
    }
}

impl Functions {
    fn check(&self, status: c_int) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: a text that lives as long as the library.
        let text = unsafe { CStr::from_ptr((self.status_text)(status)) }.to_string_lossy();
        Err(format!("{text} (cuBLASLt status {status})"))
    }

    /// A column-major layout with `rows` values per column; columns are `stride` values apart.
    fn layout(&self, dtype: Dtype, rows: usize, columns: usize, stride: usize) -> Result<Layout<'_>, String> {
        let kind = match dtype {
            Dtype::F32 => 0,
            Dtype::Bf16 => 14,
            other => return Err(format!("products of {other:?} are not supported")),
        };
        let mut handle = std::ptr::null_mut();
        // SAFETY: a place for the layout.
        self.check(unsafe { (self.layout_create)(&mut handle, kind, rows as u64, columns as u64, stride as i64) })?;
        Ok(Layout { functions: self, handle })
    }
}

impl Blas {
    pub fn find(most_major: i32) -> Result<Blas, Unavailable> {
        let (library, path) = find("libcublasLt", "cublas", most_major)?;
        let hint = "install cuBLAS from CUDA 12 or newer";
        let functions = Functions::of(library)
            .map_err(|name| Unavailable::new(format!("{} lacks {name}", path.display()), hint))?;
        let refused = |problem: String| Unavailable::new(format!("cuBLASLt cannot be used: {problem}"), hint);
        let (mut handle, mut preference) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: places for the handles, here and below.
        functions.check(unsafe { (functions.create)(&mut handle) }).map_err(refused)?;
        // SAFETY: as above.
        functions.check(unsafe { (functions.preference_create)(&mut preference) }).map_err(refused)?;
        let mut descriptions = [std::ptr::null_mut(); 4];
        // Column-major: W^T x^T, W x^T, x^T dy, W^T x^T + b.
        for (description, [a, b]) in descriptions.iter_mut().zip([[1_i32, 0], [0, 0], [0, 1], [1, 0]]) {
            // SAFETY: as above; f32 is 0 as a type of scales.
            functions.check(unsafe { (functions.description_create)(description, COMPUTE_F32, 0) }).map_err(refused)?;
            for (attribute, value) in [(TRANSPOSE_A, a), (TRANSPOSE_B, b)] {
                let place = std::ptr::from_ref(&value).cast();
                // SAFETY: a value of the stated size.
                let status = unsafe { (functions.description_set)(*description, attribute, place, 4) };
                functions.check(status).map_err(refused)?;
            }
        }
        let place = std::ptr::from_ref(&EPILOGUE_BIAS).cast();
        // SAFETY: a value of the stated size.
        let status = unsafe { (functions.description_set)(descriptions[WITH_BIAS], EPILOGUE, place, 4) };
        functions.check(status).map_err(refused)?;
        // SAFETY: no arguments.
        let version = unsafe { (functions.version)() };
        let blas = Blas { functions, handle, preference, descriptions, plans: HashMap::new(), version, path };
        blas.prefer(WORKSPACE_BYTES, &(WORKSPACE as u64)).map_err(refused)?;
        blas.prefer(REDUCTION_SCHEMES, &ORDERED_REDUCTIONS).map_err(refused)?;
        Ok(blas)
    }

    fn prefer<T>(&self, attribute: c_int, value: &T) -> Result<(), String> {
        let place = std::ptr::from_ref(value).cast();
        // SAFETY: a value of the stated size.
        self.functions
            .check(unsafe { (self.functions.preference_set)(self.preference, attribute, place, size_of::<T>()) })
    }

    /// The algorithm that was chosen for a product.
    pub fn chosen(&self, of: &Operands) -> Option<Algorithm> {
        self.plans.get(&Key::of(of)).copied()
    }

    /// Keeps the choice of an algorithm.
    pub fn choose(&mut self, of: &Operands, algorithm: Algorithm) {
        if self.plans.len() >= MOST_PLANS {
            self.plans.clear();
        }
        self.plans.insert(Key::of(of), algorithm);
    }

    /// Queues a product.
    ///
    /// # Safety
    /// All operands lie inside memory of the GPU, as large as the shapes say, and the result overlaps with none; the workspace has its size.
    pub unsafe fn multiply(
        &mut self,
        of: &Operands,
        algorithm: Algorithm,
        workspace: Address,
        stream: *mut c_void,
    ) -> Result<(), String> {
        let key = Key::of(of);
        if let Some(bias) = of.bias {
            assert_eq!(of.product, Product::Forward, "only forward products have a bias");
            let place = std::ptr::from_ref(&bias).cast();
            // SAFETY: a pointer of the stated size.
            let status =
                unsafe { (self.functions.description_set)(self.descriptions[WITH_BIAS], BIAS_POINTER, place, 8) };
            self.functions.check(status)?;
        }
        let [a_layout, b_layout, to_layout] = self.layouts(of.product, of.rows, of.n, of.k, of.strides, of.to_dtype)?;
        // The first operand is the weight for the first two products, and x for the last.
        let (a, b) = (of.second as *const c_void, of.first as *const c_void);
        let (alpha, beta) = (of.scale, if of.plus.is_some() { 1.0_f32 } else { 0.0 });
        // SAFETY: the caller's promise; layouts are those of the operands.
        let status = unsafe {
            (self.functions.matmul)(
                self.handle,
                self.descriptions[key.description()],
                std::ptr::from_ref(&alpha).cast(),
                a,
                a_layout.handle,
                b,
                b_layout.handle,
                std::ptr::from_ref(&beta).cast(),
                of.plus.unwrap_or(of.to) as *const c_void,
                to_layout.handle,
                of.to as *mut c_void,
                to_layout.handle,
                &algorithm,
                workspace as *mut c_void,
                WORKSPACE,
                stream,
            )
        };
        self.functions.check(status)
    }

    /// Layouts of a product's operands and result, column-major.
    fn layouts(
        &self,
        product: Product,
        rows: usize,
        n: usize,
        k: usize,
        strides: Strides,
        to: Dtype,
    ) -> Result<[Layout<'_>; 3], String> {
        // Values per column and columns of the second operand, of the first, and of the result.
        let [second, first, result] = match product {
            Product::Forward => [[k, n], [k, rows], [n, rows]],
            Product::Backward => [[k, n], [n, rows], [k, rows]],
            Product::Weight => [[k, rows], [n, rows], [k, n]],
        };
        let of = |dtype, [rows, columns]: [usize; 2], stride| self.functions.layout(dtype, rows, columns, stride);
        let (a, b) = (of(Dtype::Bf16, second, strides.second)?, of(Dtype::Bf16, first, strides.first)?);
        Ok([a, b, of(to, result, strides.to)?])
    }

    /// The library's algorithms for a product that split and add its sums as its first choice does, that one first.
    pub fn candidates(&self, of: &Operands) -> Result<Vec<Algorithm>, String> {
        let key = Key::of(of);
        for operand in 0..4 {
            self.prefer(ALIGNMENT_A + operand, &key.alignment)?;
        }
        let to = if key.is_narrow { Dtype::Bf16 } else { Dtype::F32 };
        let [a, b, c] = self.layouts(key.product, key.rows, key.n, key.k, key.strides, to)?;
        let empty = Heuristic { algorithm: Algorithm([0; 8]), workspace: 0, state: 0, waves: 0.0, reserved: [0; 4] };
        let (mut found, mut count) = ([empty; CANDIDATES], 0);
        // SAFETY: all handles are ours; there is space for this many results.
        let status = unsafe {
            (self.functions.heuristic)(
                self.handle,
                self.descriptions[key.description()],
                a.handle,
                b.handle,
                c.handle,
                c.handle,
                self.preference,
                CANDIDATES as c_int,
                found.as_mut_ptr(),
                &mut count,
            )
        };
        self.functions.check(status)?;
        let mut found = found[..count as usize].iter().filter(|found| found.state == 0).map(|found| found.algorithm);
        let first = found.next().ok_or_else(|| format!("cuBLASLt has no algorithm for {key:?}"))?;
        let sums = self.sums(&first);
        let others = found.filter(|other| sums.is_some() && self.sums(other) == sums);
        Ok(std::iter::once(first).chain(others).collect())
    }

    /// How an algorithm splits and adds its sums, if the library tells.
    fn sums(&self, algorithm: &Algorithm) -> Option<[u32; 2]> {
        let attribute = |attribute| {
            let (mut value, mut written) = (0_u32, 0);
            let place = std::ptr::from_mut(&mut value).cast();
            // SAFETY: an algorithm of the library, a place of the stated size, and one for the number of bytes.
            let status = unsafe { (self.functions.configuration)(algorithm, attribute, place, 4, &mut written) };
            (status == 0).then_some(value)
        };
        Some([attribute(SPLITS)?, attribute(REDUCTION_SCHEME)?])
    }
}

/// Rows rounded up, so that similar shapes share a plan: an algorithm for a few more rows serves as well.
fn rounded(rows: usize) -> usize {
    match rows {
        0..=16 => rows,
        17..=512 => rows.next_multiple_of(64),
        513..=4096 => rows.next_multiple_of(256),
        _ => rows.next_multiple_of(1024),
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: our own handles, destroyed once.
        unsafe {
            self.descriptions.iter().for_each(|description| {
                (self.functions.description_destroy)(*description);
            });
            (self.functions.preference_destroy)(self.preference);
            (self.functions.destroy)(self.handle);
        }
    }
}
