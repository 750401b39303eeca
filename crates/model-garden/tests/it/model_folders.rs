//! Folders that people bring as models and adapters: what is something else is told what it is with a next step, what transformers reads otherwise is refused
//! by its name, and no result goes into the folder of its model.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use expect_test::{Expect, expect};
use serde_json::{Value, json};

use crate::common::{model_garden, repository, run, scratch, told};

const TINY: &str = "testdata/tiny-model";
const POINTER: &str = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 3998048448\n";

/// A copy of the tiny model without what only its tests need.
pub(crate) fn tiny(folder: &Path) -> PathBuf {
    fs::create_dir_all(folder).unwrap();
    for name in [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "preprocessor_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ] {
        fs::copy(repository(TINY).join(name), folder.join(name)).unwrap();
    }
    folder.to_path_buf()
}

/// The header of a file of tensors, and where the values begin.
fn header(bytes: &[u8]) -> (Value, usize) {
    let end = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    (serde_json::from_slice(&bytes[8..end]).unwrap(), end)
}

/// Changes the values of the tensor whose name ends so.
fn change_tensor(folder: &Path, name: &str, change: impl FnOnce(&mut [u8])) {
    let path = folder.join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let (header, start) = header(&bytes);
    let (_, about) = header.as_object().unwrap().iter().find(|(key, _)| key.ends_with(name)).unwrap();
    let [begin, end] = [0, 1].map(|side| start + about["data_offsets"][side].as_u64().unwrap() as usize);
    change(&mut bytes[begin..end]);
    fs::write(&path, bytes).unwrap();
}

/// Adds a head to a model: its embedding, with each byte changed so.
fn add_head(folder: &Path, change: impl Fn(u8) -> u8) {
    let path = folder.join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let (mut header, start) = header(&bytes);
    let (_, embedding) =
        header.as_object().unwrap().iter().find(|(key, _)| key.ends_with("embed_tokens.weight")).unwrap();
    let mut about = embedding.clone();
    let [begin, end] = [0, 1].map(|side| about["data_offsets"][side].as_u64().unwrap() as usize);
    let length = bytes.len() - start;
    about["data_offsets"] = json!([length, length + end - begin]);
    header["lm_head.weight"] = about;
    let text = header.to_string();
    let values: Vec<u8> = bytes[start + begin..start + end].iter().map(|byte| change(*byte)).collect();
    fs::write(&path, [&(text.len() as u64).to_le_bytes(), text.as_bytes(), &bytes[start..], &values].concat()).unwrap();
}

/// Changes a JSON file of a folder.
fn rewrite(folder: &Path, file: &str, change: impl FnOnce(&mut Value)) {
    let path = folder.join(file);
    let mut value = fs::read(&path).map_or_else(|_| json!({}), |text| serde_json::from_slice(&text).unwrap());
    change(&mut value);
    fs::write(path, value.to_string()).unwrap();
}

/// What `generate` says of a model.
fn generated(model: &Path, more: &[&str]) -> String {
    let words =
        ["generate", "--model", model.to_str().unwrap(), "--prompt", "a", "--max-new-tokens", "2", "--threads", "1"];
    told(&run(&[&words[..], more].concat())).replace(model.to_str().unwrap(), "MODEL")
}

fn check(name: &str, change: impl FnOnce(&Path), expected: Expect) {
    let folder = tiny(&scratch(&format!("folder-{name}")));
    change(&folder);
    expected.assert_eq(&generated(&folder, &[]));
}

fn empty(folder: &Path) {
    for entry in fs::read_dir(folder).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
}

fn index(folder: &Path, files: [&str; 2]) {
    rewrite(folder, "model.safetensors.index.json", |value| {
        *value = json!({"weight_map": {"a": files[0], "b": files[1]}})
    });
}

#[test]
fn weights_that_are_not_all_there() {
    check(
        "lfs",
        |folder| fs::write(folder.join("model.safetensors"), POINTER).unwrap(),
        expect![[r#"
        exit 2
        ----- stderr
        error: cannot use `MODEL`
          caused by: `MODEL/model.safetensors`: is a Git LFS pointer: the file itself was not fetched

        hint: run `git lfs install` and `git lfs pull` in the folder, or download the model with `hf download`
    "#]],
    );
    check(
        "lfs-tokenizer",
        |folder| fs::write(folder.join("tokenizer.json"), POINTER).unwrap(),
        expect![[r#"
        exit 2
        ----- stderr
        error: cannot use `MODEL`
          caused by: `MODEL/tokenizer.json`: is a Git LFS pointer, not the file

        hint: run `git lfs install` and `git lfs pull` in the folder, or download the model with `hf download`
    "#]],
    );
    let cut = |length: usize| {
        move |folder: &Path| {
            let path = folder.join("model.safetensors");
            let bytes = fs::read(&path).unwrap();
            fs::write(path, &bytes[..length]).unwrap();
        }
    };
    check(
        "cut",
        cut(300_000),
        expect![[r#"
        exit 2
        ----- stderr
        error: cannot use `MODEL`
          caused by: `MODEL/model.safetensors`: is cut off: it has 300000 of 448264 bytes

        hint: the download or copy is not complete: run it again (`hf download` fetches only what is missing)
    "#]],
    );
    check(
        "cut-header",
        cut(1_000),
        expect![[r#"
            exit 2
            ----- stderr
            error: cannot use `MODEL`
              caused by: `MODEL/model.safetensors`: is cut off: it ends within its header, after 1000 bytes

            hint: the download or copy is not complete: run it again (`hf download` fetches only what is missing)
        "#]],
    );
    check(
        "cut-to-nothing",
        cut(0),
        expect![[r#"
        exit 2
        ----- stderr
        error: cannot use `MODEL`
          caused by: `MODEL/model.safetensors`: is cut off: it has 0 bytes

        hint: the download or copy is not complete: run it again (`hf download` fetches only what is missing)
    "#]],
    );
    let shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    let missing = |folder: &Path| {
        fs::rename(folder.join("model.safetensors"), folder.join(shards[0])).unwrap();
        index(folder, shards);
    };
    check(
        "missing-shard",
        missing,
        expect![[r#"
            exit 2
            ----- stderr
            error: cannot use `MODEL`
              caused by: `MODEL/model-00002-of-00002.safetensors`: is named by `model.safetensors.index.json`, but missing (1 of 2 files are)

            hint: the download or copy is not complete: run it again (`hf download` fetches only what is missing)
        "#]],
    );
    check(
        "no-weights",
        |folder| fs::remove_file(folder.join("model.safetensors")).unwrap(),
        expect![[r#"
        exit 2
        ----- stderr
        error: cannot use `MODEL`
          caused by: `MODEL`: has no weights: neither `model.safetensors` nor `model.safetensors.index.json`

        hint: the download or copy is not complete: run it again (`hf download` fetches only what is missing)
    "#]],
    );
}

#[test]
fn folders_that_are_no_models() {
    check(
        "empty",
        empty,
        expect![[r#"
        exit 2
        ----- stderr
        error: cannot use `MODEL`
          caused by: `MODEL`: is empty

        hint: download a supported model, for example `hf download Qwen/Qwen2.5-VL-3B-Instruct`
    "#]],
    );
    let adapter = |folder: &Path| {
        empty(folder);
        rewrite(folder, "adapter_config.json", |value| {
            value["base_model_name_or_path"] = "Qwen/Qwen2.5-VL-3B-Instruct".into()
        });
        fs::write(folder.join("adapter_model.safetensors"), "").unwrap();
    };
    check(
        "adapter",
        adapter,
        expect![[r#"
        exit 2
        ----- stderr
        error: cannot use `MODEL`
          caused by: `MODEL`: is an adapter, not a model

        hint: pass the folder as --adapter, and as --model its base, `Qwen/Qwen2.5-VL-3B-Instruct`
    "#]],
    );
    check(
        "both",
        |folder| rewrite(folder, "adapter_config.json", |_| ()),
        expect![[r#"
        exit 2
        ----- stderr
        error: cannot use `MODEL`
          caused by: `MODEL`: has a model and an adapter (`adapter_config.json`), which transformers would apply to it

        hint: move the adapter's files to a folder of their own and pass that as --adapter, or delete them
    "#]],
    );
    let pickled = |folder: &Path| {
        fs::rename(folder.join("model.safetensors"), folder.join("pytorch_model.bin")).unwrap();
    };
    check(
        "pickled",
        pickled,
        expect![[r#"
        exit 2
        ----- stderr
        error: cannot use `MODEL`
          caused by: `MODEL`: has weights only as `pytorch_model.bin`; only *.safetensors are read

        hint: transformers converts them: `AutoModelForImageTextToText.from_pretrained(DIR, dtype="auto").save_pretrained(NEW)`; copy the other files to NEW
    "#]],
    );
    let gguf = |folder: &Path| {
        empty(folder);
        fs::write(folder.join("qwen2.5-vl-3b-q4_k_m.gguf"), "GGUF").unwrap();
    };
    check(
        "gguf",
        gguf,
        expect![[r#"
        exit 2
        ----- stderr
        error: cannot use `MODEL`
          caused by: `MODEL`: has weights as GGUF, which cannot be trained

        hint: use the original weights as *.safetensors: download a supported model, for example `hf download Qwen/Qwen2.5-VL-3B-Instruct`
    "#]],
    );
    let vocabulary = |folder: &Path| {
        fs::remove_file(folder.join("tokenizer.json")).unwrap();
        fs::write(folder.join("vocab.json"), "{}").unwrap();
        fs::write(folder.join("merges.txt"), "").unwrap();
    };
    check(
        "vocabulary",
        vocabulary,
        expect![[r#"
        exit 2
        ----- stderr
        error: cannot use `MODEL`
          caused by: `MODEL/tokenizer.json`: is missing; there are only vocab.json and merges.txt

        hint: transformers writes it from the two: `AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)`
    "#]],
    );
    check(
        "no-tokenizer",
        |folder| fs::remove_file(folder.join("tokenizer.json")).unwrap(),
        expect![[r#"
        exit 2
        ----- stderr
        error: cannot use `MODEL`
          caused by: `MODEL/tokenizer.json`: is missing

        hint: copy tokenizer.json and tokenizer_config.json of the original model into the folder
    "#]],
    );
    check(
        "no-images",
        |folder| fs::remove_file(folder.join("preprocessor_config.json")).unwrap(),
        expect![[r#"
        exit 2
        ----- stderr
        error: cannot use `MODEL`
          caused by: `MODEL`: has no image settings: neither preprocessor_config.json nor processor_config.json

        hint: copy preprocessor_config.json of the original model into the folder
    "#]],
    );
    check(
        "llama",
        |folder| rewrite(folder, "config.json", |value| value["model_type"] = "llama".into()),
        expect![[r#"
            exit 2
            ----- stderr
            error: cannot use `MODEL`
              caused by: `MODEL`: is a model of the type `llama` (`model_type` in config.json), which is not supported

            hint: supported models are Qwen2.5-VL and fine-tunes of it: Qwen/Qwen2.5-VL-3B-Instruct, Qwen/Qwen2.5-VL-7B-Instruct, Qwen/Qwen2.5-VL-32B-Instruct and Qwen/Qwen2.5-VL-72B-Instruct
        "#]],
    );
    let run_folder = |folder: &Path| {
        empty(folder);
        fs::write(folder.join("recipe.toml"), "").unwrap();
        fs::create_dir(folder.join("checkpoint-4")).unwrap();
    };
    check(
        "run",
        run_folder,
        expect![[r#"
        exit 2
        ----- stderr
        error: cannot use `MODEL`
          caused by: `MODEL`: is the output folder of a training run without a model

        hint: pass the base model; an adapter of the run goes to --adapter, as `OUT` or `OUT/checkpoint-N`. A run that trains all weights (--full) has its model in the folder once it has ended
    "#]],
    );
}

#[test]
fn names_of_models_that_are_not_here() {
    let cache = scratch("folder-cache");
    let say = |name: &str| {
        let words = ["generate", "--model", name, "--prompt", "a"];
        let output = model_garden(&words).env("HF_HUB_CACHE", &cache).output().unwrap();
        told(&output).replace(cache.to_str().unwrap(), "CACHE")
    };
    expect![[r#"
        exit 2
        ----- stderr
        error: cannot use `Qwen/Qwen2.5-VL-7B-Instruct`
          caused by: `Qwen/Qwen2.5-VL-7B-Instruct`: no such file or folder, and not in the hub's cache `CACHE`

        hint: nothing is downloaded here: run `hf download Qwen/Qwen2.5-VL-7B-Instruct`
    "#]]
    .assert_eq(&say("Qwen/Qwen2.5-VL-7B-Instruct"));
    // A quantisation that is not read.
    let awq = say("Qwen/Qwen2.5-VL-7B-Instruct-AWQ");
    assert!(!awq.contains("hf download") && awq.contains("supported models are"), "{awq}");
    expect![[r#"
        exit 2
        ----- stderr
        error: cannot use `meta-llama/Llama-3.2-11B-Vision`
          caused by: `meta-llama/Llama-3.2-11B-Vision`: no such file or folder, and not in the hub's cache `CACHE`

        hint: nothing is downloaded here; supported models are Qwen2.5-VL and fine-tunes of it: Qwen/Qwen2.5-VL-3B-Instruct, Qwen/Qwen2.5-VL-7B-Instruct, Qwen/Qwen2.5-VL-32B-Instruct and Qwen/Qwen2.5-VL-72B-Instruct
    "#]].assert_eq(&say("meta-llama/Llama-3.2-11B-Vision"));
}

#[test]
fn folders_that_are_no_adapters() {
    let model = tiny(&scratch("folder-of-adapters"));
    let folder = scratch("folder-no-adapter");
    let say = |adapter: &Path| {
        let text = generated(&model, &["--adapter", adapter.to_str().unwrap()]);
        text.replace(adapter.to_str().unwrap(), "ADAPTER")
    };
    expect![[r#"
        exit 2
        ----- stderr
        error: cannot use the adapter `ADAPTER`
          caused by: `ADAPTER`: is a model, not an adapter

        hint: pass the folder as --model, without --adapter
    "#]]
    .assert_eq(&say(&tiny(&folder.join("whole"))));
    expect![[r#"
        exit 2
        ----- stderr
        error: cannot use the adapter `ADAPTER`
          caused by: `ADAPTER`: no such folder

        hint: an adapter folder has adapter_config.json and adapter_model.safetensors, as PEFT and this program save them
    "#]].assert_eq(&say(&folder.join("none")));
    fs::create_dir_all(folder.join("run/checkpoint-4")).unwrap();
    fs::create_dir_all(folder.join("run/checkpoint-12")).unwrap();
    expect![[r#"
        exit 2
        ----- stderr
        error: cannot use the adapter `ADAPTER`
          caused by: `ADAPTER`: is the output folder of a training run without a result

        hint: pass a checkpoint, such as `ADAPTER/checkpoint-12`, or resume the run to its end
    "#]]
    .assert_eq(&say(&folder.join("run")));
    let pickled = folder.join("pickled");
    fs::create_dir_all(&pickled).unwrap();
    fs::write(pickled.join("adapter_config.json"), "{}").unwrap();
    fs::write(pickled.join("adapter_model.bin"), "").unwrap();
    expect![[r#"
        exit 2
        ----- stderr
        error: cannot use the adapter `ADAPTER`
          caused by: `ADAPTER`: has its weights only as `adapter_model.bin`; only adapter_model.safetensors is read

        hint: load and save the adapter with PEFT once: it writes safetensors
    "#]]
    .assert_eq(&say(&pickled));
    fs::write(pickled.join("adapter_model.safetensors"), POINTER).unwrap();
    expect![[r#"
        exit 2
        ----- stderr
        error: cannot use the adapter `ADAPTER`
          caused by: `ADAPTER/adapter_model.safetensors`: is a Git LFS pointer: the file itself was not fetched

        hint: run `git lfs install` and `git lfs pull` in the folder, or download the model with `hf download`
    "#]]
    .assert_eq(&say(&pickled));
}

/// A model is read, or refused with these words.
fn reads(name: &str, change: impl FnOnce(&Path), refusal: Option<&str>) {
    let folder = tiny(&scratch(&format!("field-{name}")));
    change(&folder);
    let said = generated(&folder, &[]);
    match refusal {
        None => assert!(said.starts_with("exit 0"), "{name}: {said}"),
        Some(words) => assert!(said.starts_with("exit 2") && said.contains(words), "{name}: {said}"),
    }
}

#[test]
fn what_transformers_reads_otherwise_is_refused() {
    let config = |change: fn(&mut Value)| move |folder: &Path| rewrite(folder, "config.json", change);
    let tokenizer = |change: fn(&mut Value)| move |folder: &Path| rewrite(folder, "tokenizer_config.json", change);
    let file = |change: fn(&mut Value)| move |folder: &Path| rewrite(folder, "tokenizer.json", change);
    let add = |name: &'static str, value: Value| move |folder: &Path| rewrite(folder, name, |all| *all = value);
    reads(
        "head",
        |folder| add_head(folder, |byte| byte ^ 1),
        Some("tensor `lm_head.weight` differs from the embedding"),
    );
    reads("same-head", |folder| add_head(folder, |byte| byte), None);
    let untied = |folder: &Path| {
        add_head(folder, |byte| byte ^ 1);
        config(|all| {
            (all["tie_word_embeddings"], all["text_config"]["tie_word_embeddings"]) = (false.into(), false.into())
        })(folder);
    };
    reads("untied", untied, None);
    let tied_inside = |folder: &Path| {
        add_head(folder, |byte| byte ^ 1);
        config(|all| all["tie_word_embeddings"] = false.into())(folder);
    };
    reads("tied-inside", tied_inside, Some("differs from the embedding"));
    reads("one-file", |folder| index(folder, ["x.safetensors", "y.safetensors"]), None);
    reads(
        "other-file",
        config(|all| all["transformers_weights"] = "x.safetensors".into()),
        Some("`transformers_weights`"),
    );
    reads(
        "layers",
        config(|all| all["text_config"]["layer_types"][1] = "sliding_attention".into()),
        Some("`text_config.layer_types`"),
    );
    reads(
        "theta",
        config(|all| all["vision_config"]["rope_parameters"]["rope_theta"] = 500.into()),
        Some("`rope_parameters.rope_theta` is 500"),
    );
    reads(
        "head-dim",
        config(|all| all["text_config"]["head_dim"] = 8.into()),
        Some("`text_config.head_dim` is 8; expected 16"),
    );
    reads(
        "gptq",
        config(|all| all["quantization_config"] = json!({"quant_method": "gptq", "bits": 4})),
        Some("is of `gptq`"),
    );
    let nf4 = json!({"quant_method": "bitsandbytes", "load_in_4bit": true, "bnb_4bit_quant_type": "nf4"});
    let on_load = |folder: &Path| rewrite(folder, "config.json", |all| all["quantization_config"] = nf4);
    reads("on-load", on_load, Some("the weights are not quantised"));
    // Only training drops anything.
    reads("dropout", config(|all| all["text_config"]["attention_dropout"] = 0.5.into()), None);
    reads("prefix", tokenizer(|all| all["add_prefix_space"] = true.into()), Some("`add_prefix_space` is true"));
    reads("split", tokenizer(|all| all["split_special_tokens"] = true.into()), Some("`split_special_tokens` is true"));
    reads(
        "class",
        tokenizer(|all| all["tokenizer_class"] = "GPT2Tokenizer".into()),
        Some("`tokenizer_class` is \"GPT2Tokenizer\""),
    );
    reads(
        "extra",
        tokenizer(|all| all["extra_special_tokens"] = json!(["sign"])),
        Some("`extra_special_tokens` has `sign`"),
    );
    reads("known", tokenizer(|all| all["additional_special_tokens"] = json!(["<|im_start|>"])), None);
    reads("eos", tokenizer(|all| all["eos_token"] = "Harbour".into()), Some("`eos_token` has `Harbour`"));
    let decoder =
        |all: &mut Value| all["added_tokens_decoder"] = json!({"1201": {"content": "<|im_start|>", "special": true}});
    reads("decoder", tokenizer(decoder), Some("`added_tokens_decoder` lacks `<|endoftext|>` (1200)"));
    reads(
        "map",
        add("special_tokens_map.json", json!({"eos_token": "Harbour"})),
        Some("special_tokens_map.json`: field `eos_token`"),
    );
    reads(
        "added",
        add("added_tokens.json", json!({"sign": 1225})),
        Some("`sign` is 1225; tokenizer.json has no such added token"),
    );
    reads("added-known", add("added_tokens.json", json!({"<|im_end|>": 1202})), None);
    reads("cut", file(|all| all["truncation"] = json!({"max_length": 9})), Some("`truncation` is"));
    reads("padded", file(|all| all["padding"] = json!({"strategy": {"Fixed": 90}})), Some("`padding` is"));
    reads(
        "to-longest",
        file(|all| all["padding"] = json!({"strategy": "BatchLongest", "pad_to_multiple_of": null})),
        None,
    );
    let clip = json!({"image_processor": {"image_processor_type": "CLIPImageProcessor"}});
    reads("clip", add("processor_config.json", clip), Some("processor_config.json`: field `image_processor_type`"));
}

#[test]
fn training_drops_no_attention_weights() {
    let folder = scratch("field-dropout-training");
    let model = tiny(&folder.join("model"));
    rewrite(&model, "config.json", |all| all["text_config"]["attention_dropout"] = 0.5.into());
    let text = told(&train(&model, &folder.join("out"), &[]));
    expect![[r#"
        exit 2
        ----- stderr
        error: the run cannot start
          caused by: `FOLDER/model/config.json`: field `attention_dropout` is 0.5; training drops no attention weights

        hint: set it to 0; `lora-dropout` drops inputs of the adapter
    "#]]
    .assert_eq(&text.replace(folder.to_str().unwrap(), "FOLDER"));
}

#[test]
fn other_ways_to_answer_are_told() {
    let model = tiny(&scratch("field-generation"));
    let settings = json!({"eos_token_id": 1202, "do_sample": true, "temperature": 1e-6, "repetition_penalty": 1.05, "num_beams": 1, "bad_words_ids": [[5]]});
    fs::write(model.join("generation_config.json"), settings.to_string()).unwrap();
    let said = generated(&model, &[]);
    let note = said.lines().find(|line| line.starts_with("note: ")).unwrap_or_default();
    expect!["note: generation_config.json asks for bad_words_ids, do_sample true, repetition_penalty 1.05: not applied; use --repetition-penalty, --temperature, --top-k or --top-p"].assert_eq(note);
    assert!(!generated(&tiny(&scratch("field-greedy")), &[]).contains("note: "));
}

fn train(model: &Path, output: &Path, more: &[&str]) -> std::process::Output {
    let words = ["train-vision", "--model", model.to_str().unwrap(), "--output-dir", output.to_str().unwrap()];
    let fixed =
        ["--dataset", "testdata/data/datasets/chat.jsonl", "--device", "cpu", "--threads", "1", "--batch-size", "1"];
    run(&[&words[..], &fixed, &["--gradient-accumulation", "1", "--save-steps", "1", "--max-steps", "2"], more]
        .concat())
}

/// All files of a folder with their contents.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .flat_map(
            |path| if path.is_dir() { contents(&path) } else { [(path.clone(), fs::read(&path).unwrap())].into() },
        )
        .collect()
}

#[test]
fn a_result_never_goes_into_its_model() {
    let folder = scratch("folder-apart");
    let (model, adapter) = (tiny(&folder.join("model")), folder.join("adapter"));
    assert!(train(&model, &adapter, &[]).status.success());
    for name in ["recipe.toml", ".job.json"] {
        fs::remove_file(adapter.join(name)).unwrap();
    }
    symlink("model", folder.join("link")).unwrap();
    symlink(&folder, folder.join("around")).unwrap();
    // A folder of links to the files of a model, and one of the files themselves under other names.
    let [linked, hard] = ["linked", "hard"].map(|name| folder.join(name));
    [&linked, &hard].iter().for_each(|folder| fs::create_dir(folder).unwrap());
    for entry in fs::read_dir(&model).unwrap() {
        let path = entry.unwrap().path();
        symlink(&path, linked.join(path.file_name().unwrap())).unwrap();
        fs::hard_link(&path, hard.join(path.file_name().unwrap())).unwrap();
    }
    let before = (contents(&model), contents(&adapter), contents(&hard));
    let inside = [
        "model",
        "model/",
        "./model/.",
        "adapter/../model",
        "new/../model",
        "link",
        "around/model",
        "model/out",
        "link/new/out",
    ];
    let refused = |output: &std::process::Output, what: &str| {
        assert_eq!(output.status.code(), Some(2), "{what}: {}", told(output));
        assert!(told(output).contains("cannot write to"), "{what}: {}", told(output));
    };
    for place in inside {
        let place = folder.join(place);
        for more in [&[][..], &["--full"], &["--resume", "auto"], &["--dry-run"]] {
            refused(&train(&model, &place, more), &format!("train {more:?} {}", place.display()));
        }
        let [model, adapter, to] = [&model, &adapter, &place].map(|path| path.to_str().unwrap());
        refused(&run(&["export", "--model", model, "--adapter", adapter, "--output-dir", to]), to);
        refused(&run(&["quantise", "--model", model, "--output-dir", to]), to);
    }
    refused(&train(&linked, &model, &["--full"]), "linked");
    refused(&train(&model, &hard, &["--full"]), "the same files");
    refused(&train(&model, &adapter, &["--adapter", adapter.to_str().unwrap()]), "the adapter's folder");
    refused(&train(&model, &adapter, &[]), "another adapter's folder");
    // As people type it: a relative path, in the folder of the model itself.
    let words = ["train-vision", "--model", ".", "--output-dir", ".", "--full", "--dataset"];
    let rows = repository("testdata/data/datasets/chat.jsonl").canonicalize().unwrap();
    let output = model_garden(&[&words[..], &[rows.to_str().unwrap()]].concat()).current_dir(&model).output().unwrap();
    refused(&output, "here");
    assert_eq!((contents(&model), contents(&adapter), contents(&hard)), before);
    assert!(!folder.join("new").exists());
    let text = told(&train(&model, &folder.join("link"), &["--full"])).replace(folder.to_str().unwrap(), "FOLDER");
    expect![[r#"
        exit 2
        ----- stderr
        error: cannot write to `FOLDER/link`
          caused by: it is in the folder of the model, `FOLDER/model`

        hint: choose another folder with --output-dir
    "#]]
    .assert_eq(&text);
}

#[test]
fn a_run_that_goes_on_notices_another_base() {
    let folder = scratch("folder-other-base");
    let (model, output) = (tiny(&folder.join("model")), folder.join("out"));
    assert!(train(&model, &output, &[]).status.success());
    let goes_on = |model: &Path| told(&train(model, &output, &["--resume", "auto", "--max-steps", "3"]));
    // As a merged adapter, a fine-tune or another quantisation would: some values of one tensor, far from its ends.
    for (number, tensor) in
        ["layers.1.mlp.down_proj.weight", "layers.0.self_attn.k_proj.bias", "blocks.1.attn.qkv.weight", "norm.weight"]
            .iter()
            .enumerate()
    {
        let other = tiny(&folder.join(format!("other-{number}")));
        change_tensor(&other, tensor, |bytes| bytes.iter_mut().step_by(6).for_each(|byte| *byte ^= 1));
        assert!(goes_on(&other).contains("the run began with another base model"), "{tensor}: {}", goes_on(&other));
    }
    let other = tiny(&folder.join("other-theta"));
    rewrite(&other, "config.json", |all| all["text_config"]["rope_parameters"]["rope_theta"] = 500.into());
    let text = goes_on(&other).replace(folder.to_str().unwrap(), "FOLDER");
    expect![[r#"
        exit 2
        ----- stderr
        error: cannot resume from this checkpoint
          caused by: checkpoint `FOLDER/out/checkpoint-2`: the run began with another base model than `FOLDER/other-theta` holds now

        hint: resume with the model that the run began with, or start over in another `output-dir`
    "#]].assert_eq(&text);
    // The same model in another place and under another name, with its configuration written otherwise.
    let moved = tiny(&folder.join("moved"));
    rewrite(&moved, "config.json", |all| all["transformers_version"] = "6.0.0".into());
    fs::remove_dir_all(&model).unwrap();
    let text = goes_on(&moved);
    assert!(text.starts_with("exit 0") && text.contains("changed: `model` from"), "{text}");
    assert!(!text.contains("earlier version"), "{text}");
}

/// Checkpoints of versions that did not know their base.
#[test]
fn a_checkpoint_that_does_not_know_its_base_goes_on() {
    let folder = scratch("folder-older");
    let (model, output) = (tiny(&folder.join("model")), folder.join("out"));
    assert!(train(&model, &output, &[]).status.success());
    rewrite(&output, "checkpoint-2/garden_state.json", |state| {
        assert!(state.as_object_mut().unwrap().remove("base").unwrap().is_u64());
    });
    let text = told(&train(&model, &output, &["--resume", "auto", "--max-steps", "3"]));
    assert!(text.starts_with("exit 0"), "{text}");
    assert!(
        text.contains("an earlier version made the checkpoint: its base model is assumed to be the same"),
        "{text}"
    );
}
