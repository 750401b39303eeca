//! `rocm-smi --showmeminfo vram`, as text and with `--csv`: memory in use of each GPU.

use garden_memory::Subject;

use super::{Claim, Family, Listen, Told, Tool};
use crate::series::identity::{Identity, Who};
use crate::time::Stamp;

const ROCM_SMI: Tool = Tool { name: "rocm-smi", documented_as: "rocm-smi", example: "rocm-smi.txt" };

/// The tools of this file.
pub(in crate::formats) const FAMILY: Family = Family { tools: &[ROCM_SMI], listen: |_| Box::new(Amd::default()) };

/// What `rocm-smi` has told of the present GPU.
#[derive(Default)]
struct Amd {
    /// Places of the total and of the memory in use under the header of `--csv`.
    columns: Option<(usize, usize)>,
    /// The GPU whose total came last, and that.
    total: Option<(String, u64)>,
}

/// What `rocm-smi` calls the memory that there is, and the memory in use.
const AMD_TOTAL: &str = "VRAM Total Memory (B)";
const AMD_USED: &str = "VRAM Total Used Memory (B)";

impl Listen for Amd {
    /// A line such as `GPU[0] : VRAM Total Used Memory (B): 10883072`, or a row such as `card0,68702699520,10883072`.
    fn take(&mut self, line: &str, _: Option<Stamp>, told: &mut Vec<Told>) -> Claim {
        if line.starts_with("device,") && line.contains(AMD_USED) {
            let cells: Vec<&str> = line.split(',').map(str::trim).collect();
            let find = |name: &str| cells.iter().position(|cell| *cell == name);
            self.columns = find(AMD_TOTAL).zip(find(AMD_USED));
            return Claim::Yes;
        }
        if line.starts_with("=====") && line.ends_with("=====") {
            return Claim::Yes;
        }
        if let Some((gpu, rest)) = line.strip_prefix("GPU[").and_then(|rest| rest.split_once(']')) {
            let Some((name, value)) = rest.trim_start_matches([':', ' ', '\t']).rsplit_once(": ") else {
                return Claim::No;
            };
            match (name, value.trim().parse::<u64>()) {
                (AMD_TOTAL, Ok(bytes)) => self.total = Some((gpu.to_string(), bytes)),
                (AMD_USED, Ok(bytes)) => {
                    let total = self.total.take().filter(|(of, _)| of == gpu).map(|(_, bytes)| bytes);
                    told.push(Amd::sample(gpu, bytes, total));
                }
                _ => {}
            }
            return Claim::Yes;
        }
        let (Some((total, used)), Some(row)) = (self.columns, line.strip_prefix("card")) else { return Claim::No };
        let cells: Vec<&str> = row.split(',').map(str::trim).collect();
        let bytes = |at: usize| cells.get(at).and_then(|cell| cell.parse::<u64>().ok());
        let Some(used) = bytes(used) else { return Claim::No };
        told.push(Amd::sample(cells[0], used, bytes(total)));
        Claim::Yes
    }
}

impl Amd {
    fn sample(gpu: &str, used: u64, total: Option<u64>) -> Told {
        let mut one = Told::new(ROCM_SMI, Subject::Device, AMD_USED, used, 1);
        one.limit = total;
        one.of(Identity::of(Who::Gpu, gpu))
    }
}
