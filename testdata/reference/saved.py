#!/usr/bin/env python3
"""Records the names, shapes and types that transformers and peft save, for each kind of result; or loads results that another program saved.

usage: saved.py --out recorded_saved.json
       saved.py --check KIND FOLDER BASE [--check ...]        KIND: full, adapter, merged, quantised

Recording takes bases of this repository and variants of testdata/tiny-model: another type, a head of its own, names as in transformers 5.
Checking loads the folder with AutoModelForImageTextToText (an adapter with peft onto its base) and AutoProcessor, generates a token (with weights that are not packed), and exits 1
where a tensor is missing, left over or of another type than its config.json says.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText, AutoProcessor, BitsAndBytesConfig

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
# The seven linears of every decoder layer.
TARGETS = r".*\.language_model\..*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"
RANK = 4
# What is recorded of each base: a folder, and what is changed about it.
BASES = {
    "tiny": ("testdata/tiny-model", {}),
    "tiny_float16_untied": ("testdata/tiny-model", {"dtype": "float16", "tied": False}),
    "tiny_float32_untied": ("testdata/tiny-model", {"dtype": "float32", "tied": False}),
    "tiny_newer_names": ("testdata/tiny-model", {"newer": True}),
    "tiny_stored_head": ("testdata/tiny-model", {"stored_head": True}),
    "demo": ("crates/model-garden/assets/demo-base", {}),
}
# Models with their own adapters, for merging alone.
MERGED = ["bfloat16", "two_images_rslora", "vision_lora"]


def newer_name(name):
    if name.startswith("visual."):
        return f"model.{name}"
    return name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name


def variant(folder, to, dtype=None, tied=True, newer=False, stored_head=False):
    """The same model in another type, with names as in transformers 5, with a head of its own, or with a tied head that is stored all the same."""
    to.mkdir()
    config = json.loads((folder / "config.json").read_text())
    weights = load_file(folder / "model.safetensors")
    if not tied:
        config["tie_word_embeddings"] = config["text_config"]["tie_word_embeddings"] = False
    if stored_head or not tied:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    if dtype:
        config["dtype"] = dtype
        weights = {name: value.to(getattr(torch, dtype)) for name, value in weights.items()}
    if newer:
        weights = {newer_name(name): value for name, value in weights.items()}
    (to / "config.json").write_text(json.dumps(config))
    save_file(weights, to / "model.safetensors", {"format": "pt"})
    return to


def described(folder):
    """Types and shapes of all tensors of a folder, and the type that its configuration names."""
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():
                part = file.get_slice(name)
                shape = part.get_shape()
                # A text whose length depends on the digits of a number.
                is_text = ".quant_state." in name
                tensors[name] = f"{part.get_dtype()} {'text' if is_text else shape}"
    config = folder / "config.json"
    dtype = json.loads(config.read_text())["dtype"] if config.exists() else None
    return {"dtype": dtype, "tensors": dict(sorted(tensors.items()))}


def load(folder, **more):
    model, loading = AutoModelForImageTextToText.from_pretrained(folder, output_loading_info=True, dtype="auto", **more)
    if loading["missing_keys"] or loading["unexpected_keys"] or loading["mismatched_keys"]:
        sys.exit(f"error: {folder} does not fit the model: {loading}")
    return model


def save(model, to):
    model.save_pretrained(to)
    return described(to)


def record(base, work):
    four_bits = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        llm_int8_skip_modules=["model.visual", "lm_head"],
    )
    adapted = get_peft_model(load(base), LoraConfig(r=RANK, target_modules=TARGETS, task_type="CAUSAL_LM"))
    return {
        "full": save(load(base), work / "full"),
        "adapter": save(adapted, work / "adapter"),
        "merged": save(adapted.merge_and_unload(), work / "merged"),
        "quantised": save(load(base, quantization_config=four_bits), work / "quantised"),
    }


def record_all(out):
    found = {}
    for name, (folder, changes) in BASES.items():
        with tempfile.TemporaryDirectory() as work:
            work, base = Path(work), ROOT / folder
            found[name] = record(variant(base, work / "base", **changes) if changes else base, work)
    for name in MERGED:
        folder = HERE / "recorded" / name
        with tempfile.TemporaryDirectory() as work:
            merged = PeftModel.from_pretrained(load(folder), folder / "adapter").merge_and_unload()
            found[name] = {"merged": save(merged, Path(work) / "merged")}
    out.write_text(json.dumps(found, indent=1) + "\n")


def check(kind, folder, base):
    dtype = described(folder)["dtype"]
    model = load(base if kind == "adapter" else folder)
    if kind == "adapter":
        before = {name: value.clone() for name, value in model.state_dict().items()}
        # An adapter whose names do not fit is loaded with no more than a warning, and does nothing.
        merged = PeftModel.from_pretrained(model, folder).merge_and_unload()
        if all(value.equal(before[name]) for name, value in merged.state_dict().items()):
            sys.exit(f"error: the adapter {folder} changes nothing")
        model = merged
    else:
        kinds = {str(value.dtype) for value in model.state_dict().values() if value.is_floating_point()}
        # bitsandbytes keeps scales as float32.
        others = kinds - {f"torch.{dtype}"} - ({"torch.float32"} if kind == "quantised" else set())
        if others or f"torch.{dtype}" not in kinds:
            sys.exit(f"error: {folder} has {kinds}, and its config.json says {dtype}")
    processor = AutoProcessor.from_pretrained(folder)
    question = [{"role": "user", "content": [{"type": "text", "text": "What is it?"}]}]
    text = processor.apply_chat_template(question, add_generation_prompt=True)
    inputs = processor(text=[text], return_tensors="pt")
    count = inputs["input_ids"].shape[1]
    if kind == "quantised":
        # On a processor bitsandbytes computes with rows of whole blocks alone, which a tiny model does not have; check_saved_quantised.py compares logits.
        print(f"{folder.name}: {dtype}, {count} tokens")
        return
    # Not every processor that torch takes for one can compute in 16 bits.
    answer = model.float().generate(**inputs, max_new_tokens=1, do_sample=False)
    print(f"{folder.name}: {dtype}, {count} tokens, then {answer[0, -1].item()}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--check", nargs=3, metavar=("KIND", "FOLDER", "BASE"), action="append", default=[])
    arguments = parser.parse_args()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    for kind, folder, base in arguments.check:
        check(kind, Path(folder), Path(base))
    if arguments.out:
        record_all(arguments.out)


if __name__ == "__main__":
    main()
