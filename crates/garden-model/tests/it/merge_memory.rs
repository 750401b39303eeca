//! Merging holds a few pieces of tensors, whatever their size, measured in a process of its own.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]
#![allow(clippy::print_stdout, reason = "figures for whoever runs it with --nocapture")]

use garden_input::FAMILIES;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use crate::case::find;
use garden_model::{Checkpoint, Merge, MergeSettings, PackedBase, read_adapter};
use garden_testing::alone;
use safetensors::{Dtype as FileDtype, tensor::TensorView};
use serde_json::Value;

/// The model's vocabulary and the width of its MLP: tensors of 100 MB and of 40 MB.
const VOCABULARY: usize = 800_000;
const INNER: usize = 320_000;
/// All memory that may be there beside what was there before, pages of files included: far below the largest tensor. Measured: 39 MB, of which an adapter's A and B of the
/// wide MLP (5 MB each, A twice) and pieces of 4 MB.
const MOST: i64 = 64 << 20;

fn resident() -> i64 {
    let text = fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<i64>().unwrap() << 10
}

/// A file of tensors with zeros, made without any of them in memory.
fn write_zeros(path: &Path, tensors: &[(String, Vec<usize>)]) {
    let mut header = serde_json::Map::new();
    let mut end = 0;
    for (name, shape) in tensors {
        let begin = end;
        end += 4 * shape.iter().product::<usize>();
        header.insert(name.clone(), serde_json::json!({"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}));
    }
    let header = Value::from(header).to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    fs::write(path, &bytes).unwrap();
    fs::OpenOptions::new().write(true).open(path).unwrap().set_len((bytes.len() + end) as u64).unwrap();
}

/// The same tensors with a larger vocabulary and a wider MLP.
fn larger(name: &str, shape: &[usize]) -> Vec<usize> {
    let mut shape = shape.to_vec();
    let is_decoder = !name.contains("visual");
    if name.contains("embed_tokens") || name.contains("lm_head") {
        shape[0] = VOCABULARY;
    } else if is_decoder && (name.contains("gate_proj") || name.contains("up_proj")) && !name.contains("lora_A") {
        shape[0] = INNER;
    } else if is_decoder && name.contains("down_proj") && !name.contains("lora_B") {
        shape[1] = INNER;
    }
    shape
}

#[test]
fn memory_does_not_grow_with_the_tensors() {
    alone("merge_memory::memory_does_not_grow_with_the_tensors", merge_large_tensors);
}

fn merge_large_tensors() {
    let case = find("decoder_lora");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("merge-memory");
    let _gone = fs::remove_dir_all(&folder);
    fs::create_dir_all(folder.join("adapter")).unwrap();
    let text = fs::read_to_string(case.folder.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    config["vocab_size"] = VOCABULARY.into();
    config["intermediate_size"] = INNER.into();
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let names = case.checkpoint.names();
    let tensors: Vec<_> =
        names.map(|name| (name.to_string(), larger(name, case.checkpoint.tensor(name).unwrap().shape))).collect();
    write_zeros(&folder.join("model.safetensors"), &tensors);

    let adapter = folder.join("adapter");
    fs::copy(case.folder.join("adapter/adapter_config.json"), adapter.join("adapter_config.json")).unwrap();
    let small = Checkpoint::open_file(&case.folder.join("adapter/adapter_model.safetensors")).unwrap();
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = small
        .names()
        .map(|name| {
            let shape = larger(name, small.tensor(name).unwrap().shape);
            let values = (0..shape.iter().product::<usize>()).flat_map(|index| ((index % 7) as f32).to_le_bytes());
            (name.to_string(), shape, values.collect())
        })
        .collect();
    let views = tensors
        .iter()
        .map(|(name, shape, bytes)| (name.as_str(), TensorView::new(FileDtype::F32, shape.clone(), bytes).unwrap()));
    safetensors::serialize_to_file(views, None, &adapter.join("adapter_model.safetensors")).unwrap();
    drop(tensors);

    let (base, adapter) = (Checkpoint::open(&folder).unwrap(), read_adapter(&adapter, FAMILIES[0]).unwrap());
    let settings = MergeSettings { dtype: None, shard_bytes: 100 << 20, packed: PackedBase::Refuse, threads: 2 };
    let merge = Merge::plan(&base, &adapter, settings).unwrap();
    let before = resident();
    let mut most = 0;
    let report = merge
        .write(&folder.join("merged"), &mut |_, _| {
            most = most.max(resident() - before);
            ControlFlow::Continue(())
        })
        .unwrap();
    println!("{} bytes written in {} files with {most} bytes of memory", report.bytes, report.shards);
    fs::remove_dir_all(&folder).unwrap();
    assert!(report.bytes > 300 << 20 && report.shards >= 3, "{report:?}");
    assert!(most < MOST, "{most} bytes");
}
