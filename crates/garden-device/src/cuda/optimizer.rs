//! AdamW: all parameters of a kind in one launch, which reads where they are from a table.

use super::Cuda;
use super::driver::{Address, Argument};
use crate::buffer::{Buffer, Dtype};
use crate::device::{AdamW, Moments, Shadow};
use crate::scalars::ParameterGroup;

/// Bytes of a parameter in the table: the kernels' `Parameter`.
pub(super) const ENTRY: usize = 96;
/// Maximum number of different constants of an update: by learning rate, group and decay. Each takes 8 f32.
pub(super) const STEPS: usize = 16;
/// Blocks of threads for a parameter; a longer one is gone through in turns.
const MOST_BLOCKS: usize = 264;

/// A parameter as the kernels see it.
struct Entry {
    value: Address,
    gradient: Address,
    moments: [Address; 2],
    codes: [Address; 2],
    step: Address,
    shadow: Option<(Address, usize, usize, f32)>,
    length: usize,
}

impl Entry {
    fn bytes(&self) -> [u8; ENTRY] {
        let (shadow, width, stride, scale) = self.shadow.unwrap_or((0, 1, 1, 0.0));
        let words = [
            self.value,
            self.gradient,
            self.moments[0],
            self.moments[1],
            self.codes[0],
            self.codes[1],
            self.step,
            shadow,
            self.length as Address,
            width as Address,
            stride as Address,
            Address::from(scale.to_bits()),
        ];
        let mut bytes = [0; ENTRY];
        bytes.as_chunks_mut::<8>().0.iter_mut().zip(words).for_each(|(to, word)| *to = word.to_le_bytes());
        bytes
    }
}

impl Cuda {
    fn entry_shadow(&self, shadow: Shadow, length: usize) -> (Address, usize, usize, f32) {
        let rows = length / shadow.rows.width.max(1);
        assert_eq!(rows * shadow.rows.width, length, "a copy has rows as wide as the parameter's");
        (self.rows(shadow.rows, rows), shadow.rows.width, shadow.rows.stride, shadow.scale)
    }

    /// The table on the GPU, uploaded unless it is there already.
    fn table(&mut self, entries: Vec<u8>) -> Address {
        let table = self.scratch().parameters;
        assert!(entries.len() <= table.length(), "more parameters are updated than were planned");
        if self.table != entries {
            crate::device::Device::upload(self, table.first(entries.len()), &entries);
            self.table = entries;
        }
        self.address(table)
    }
}

pub(super) fn cast_shadow(cuda: &mut Cuda, value: Buffer, shadow: Shadow) {
    let length = value.length();
    let (to, width, stride, scale) = cuda.entry_shadow(shadow, length);
    let [count, width, stride] = [length, width, stride].map(|size| Argument::I64(size as i64));
    let arguments = [cuda.of(value, Dtype::F32), Argument::Address(to), count, width, stride, Argument::F32(scale)];
    cuda.by_values("cast_shadow", length, &arguments);
}

/// Launches a kernel over a part of the table.
fn launch(cuda: &mut Cuda, name: &'static str, table: Address, lengths: &[usize], more: &[Argument]) {
    let longest = lengths.iter().copied().max().unwrap_or(0);
    let arguments: Vec<Argument> = [Argument::Address(table)].into_iter().chain(more.iter().copied()).collect();
    cuda.launch(name, [longest.div_ceil(2048).min(MOST_BLOCKS), lengths.len(), 1], [256, 1, 1], 0, &arguments);
}

pub(super) fn adamw(cuda: &mut Cuda, updates: &[AdamW], clip: Option<(Buffer, f32)>) {
    let Some(shared) = updates.first() else { return };
    let [beta1, beta2, epsilon] = [shared.beta1, shared.beta2, shared.epsilon];
    let constants = cuda.scratch().constants;
    let null = Argument::Address(0);
    let (squares, largest) = clip.map_or((null, 0.0), |(squares, largest)| (cuda.of(squares, Dtype::F32), largest));
    // Constants of an update, and where they are.
    let mut steps: Vec<(Buffer, ParameterGroup, f32)> = Vec::new();
    let (mut wide, mut narrow) = ((Vec::new(), Vec::new()), (Vec::new(), Vec::new()));
    for update in updates {
        let AdamW { value, shadow, gradient, moments, decay, scalars, group, .. } = *update;
        assert_eq!([update.beta1, update.beta2, update.epsilon], [beta1, beta2, epsilon], "all have the same settings");
        assert_eq!([value.dtype, gradient.dtype], [Dtype::F32; 2]);
        let length = value.length();
        assert_eq!(gradient.length(), length);
        let key = (scalars, group, decay);
        let number = steps.iter().position(|step| *step == key).unwrap_or_else(|| {
            steps.push(key);
            steps.len() - 1
        });
        assert!(number < STEPS, "more than {STEPS} different updates at once");
        let (entries, (moments, codes)) = match moments {
            Moments::F32 { first, second } => {
                assert_eq!([first, second].map(|moment| (moment.dtype, moment.length())), [(Dtype::F32, length); 2]);
                (&mut wide, ([first, second].map(|moment| cuda.address(moment)), [0; 2]))
            }
            Moments::Int8 { codes, scales } => {
                assert_eq!(codes.map(|codes| (codes.dtype, codes.length())), [(Dtype::U8, length); 2]);
                (
                    &mut narrow,
                    ([scales[0], scales[1]].map(|scale| cuda.address(scale)), codes.map(|codes| cuda.address(codes))),
                )
            }
        };
        let entry = Entry {
            value: cuda.address(value),
            gradient: cuda.address(gradient),
            moments,
            codes,
            step: cuda.address(constants.part(512 + 8 * number, 8)),
            shadow: shadow.map(|shadow| cuda.entry_shadow(shadow, length)),
            length,
        };
        entries.0.extend(entry.bytes());
        entries.1.push(length);
    }
    for (number, (scalars, group, decay)) in steps.into_iter().enumerate() {
        let arguments = [
            cuda.of(scalars, Dtype::I32),
            Argument::I32(group.0.into()),
            squares,
            Argument::F32(largest),
            Argument::F32(beta1),
            Argument::F32(beta2),
            Argument::F32(epsilon),
            Argument::F32(decay),
            cuda.of(constants.part(512 + 8 * number, 8), Dtype::F32),
        ];
        cuda.launch("adamw_step", [1, 1, 1], [1, 1, 1], 0, &arguments);
    }
    let begin_of_narrow = wide.0.len() as Address;
    let table = cuda.table([wide.0, narrow.0].concat());
    launch(cuda, "adamw", table, &wide.1, &[beta1, beta2, epsilon].map(Argument::F32));
    let [signed, unsigned] = [0, 256].map(|first| cuda.of(constants.part(first, 256), Dtype::F32));
    let more = [signed, unsigned, Argument::F32(beta1), Argument::F32(beta2)];
    launch(cuda, "adamw_narrow", table + begin_of_narrow, &narrow.1, &more);
}
