#!/usr/bin/env python3
"""Adapters of PEFT that this program did not write: each is answered with, exported and trained on as PEFT means it, or refused by the field's name.

usage: foreign_adapters.py --binary target/release/model-garden --work FOLDER [--model FOLDER]

PEFT makes each adapter on the tiny model with drawn values in all of its tensors. What PEFT answers with it is the yardstick, in float32. One line per adapter;
exits 1 if one is answered otherwise, read though it should be refused, or refused without its reason. Needs the packages of requirements.txt. Two minutes on one core.
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText, AutoProcessor

from random_checkpoint import TINY

# Relative to the size of the logits; sums in another order differ by 1e-6.
ALLOWED = 2e-5
QUESTION = "What does the sign say?"
DECODER = "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj".split()

# ms-swift's and LLaMA-Factory's way to name the language model's linears: with look-around.
SWIFT = r"^(model\.language_model(?=\.).*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj))$"
FACTORY = r"^(?!.*visual)(?:(?!patch_embed).)*(?:q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)(?:.*)*$"

UNDERSTOOD = {
    "plain": dict(r=4, lora_alpha=8, target_modules=DECODER),
    "rslora, alpha of its own": dict(r=3, lora_alpha=7, use_rslora=True, target_modules=["q_proj", "v_proj"]),
    "rank pattern": dict(r=4, lora_alpha=8, target_modules=DECODER, rank_pattern={"layers.0.self_attn.q_proj": 2, "q_proj": 9, "down_proj": 1}),
    "rank and alpha pattern, rslora": dict(
        r=4, lora_alpha=8, use_rslora=True, target_modules=DECODER, rank_pattern={r".*\.mlp\..*": 6}, alpha_pattern={"layers.1.mlp.up_proj": 3, "o_proj": 31}
    ),
    "alpha pattern whose order counts": dict(r=2, lora_alpha=2, target_modules=DECODER, alpha_pattern={"v_proj": 5, r"layers\.0\..*": 11, "mlp.*": 7}),
    "exclude, a list": dict(r=4, lora_alpha=8, target_modules=["q_proj", "gate_proj", "down_proj"], exclude_modules=["visual.blocks.0.mlp.gate_proj", "q_proj"]),
    "exclude, a pattern": dict(r=4, lora_alpha=8, target_modules=DECODER, exclude_modules=r".*visual.*|.*layers\.1\.mlp.*"),
    "layers, one": dict(r=4, lora_alpha=8, target_modules=DECODER, layers_to_transform=1),
    "layers, with their pattern": dict(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"], layers_to_transform=[0], layers_pattern="layers"),
    "look-around of ms-swift": dict(r=4, lora_alpha=8, target_modules=SWIFT),
    "look-around of LLaMA-Factory": dict(r=4, lora_alpha=16, target_modules=FACTORY),
    "all-linear": dict(r=2, lora_alpha=4, target_modules="all-linear"),
    "modules to save": dict(r=2, lora_alpha=4, target_modules=["q_proj"], modules_to_save=["visual.merger"]),
    "gaussian": dict(r=4, lora_alpha=8, target_modules=DECODER, init_lora_weights="gaussian"),
    "orthogonal": dict(r=4, lora_alpha=8, target_modules=DECODER, init_lora_weights="orthogonal"),
    "dora": dict(r=4, lora_alpha=8, target_modules=DECODER, use_dora=True),
    "dora, patterns, rslora": dict(
        r=3, lora_alpha=5, use_dora=True, use_rslora=True, target_modules=DECODER + ["qkv", "merger.mlp.0"], rank_pattern={"k_proj": 7}, alpha_pattern={"up_proj": 2}
    ),
}
# Fields that other tools add to the file.
ADDED = {
    "look-around of ms-swift": {"lora_dtype": None, "lorap_lr_ratio": None, "lorap_emb_lr": 1e-6},
    "look-around of LLaMA-Factory": {"task_type": "CAUSAL_LM", "peft_version": "0.17.1", "qalora_group_size": 16},
}
# What PEFT makes of it, or a field that is set in the file; and words of the refusal.
REFUSED = {
    "pissa": (dict(init_lora_weights="pissa"), {}, ["init_lora_weights", "path_initial_model_for_weight_conversion"]),
    "pissa, fast": (dict(init_lora_weights="pissa_niter_4"), {}, ["init_lora_weights", "path_initial_model_for_weight_conversion"]),
    "olora": (dict(init_lora_weights="olora"), {}, ["init_lora_weights", "path_initial_model_for_weight_conversion"]),
    "loftq": ({}, {"init_lora_weights": "loftq"}, ["init_lora_weights", "LoftQ"]),
    "bias": (dict(bias="lora_only"), {}, ["bias"]),
    "lora_bias": (dict(lora_bias=True), {}, ["lora_bias"]),
    "layer replication": ({}, {"layer_replication": [[0, 1], [0, 2]]}, ["layer_replication"]),
    "tokens": (dict(trainable_token_indices=[1, 2]), {}, ["trainable_token_indices"]),
    "another method": ({}, {"peft_type": "IA3"}, ["peft_type", "IA3"]),
    "a field of tomorrow": ({}, {"use_quantum": {"qubits": 4}}, ["use_quantum"]),
}


def base(folder):
    return AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()


def draw(model, seed):
    """Gives all of an adapter's tensors values, so that none of them is without effect."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_magnitude_vector" in name:
                parameter.mul_(torch.rand_like(parameter) + 0.5)
            elif "lora_" in name:
                parameter.copy_(torch.randn_like(parameter) * 0.15)
            elif "modules_to_save" in name:
                parameter.add_(torch.randn_like(parameter) * 0.02)


def inputs(model_folder):
    processor = AutoProcessor.from_pretrained(model_folder)
    picture = Image.open(model_folder / "sign.png").convert("RGB")
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": QUESTION}]}]
    text = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return processor, processor(text=[text], images=[picture], return_tensors="pt")


def logits(model, batch):
    with torch.no_grad():
        return model(**batch).logits[0].double()


def answer(model, processor, batch):
    with torch.no_grad():
        tokens = model.generate(**batch, max_new_tokens=12, do_sample=False)
    return processor.batch_decode(tokens[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)[0]


class Ours:
    def __init__(self, binary, model, work):
        self.binary, self.model, self.work = binary, model, work

    def run(self, *arguments):
        return subprocess.run([self.binary, *map(str, arguments)], capture_output=True, text=True)

    def export(self, adapter, to):
        shutil.rmtree(to, ignore_errors=True)
        # It ends with an error where what it wrote is not what it checked; in 32 bits nothing is rounded that PEFT does not round.
        return self.run("export", "--adapter", adapter, "--model", self.model, "--output-dir", to, "--dtype", "float32")

    def generate(self, adapter):
        found = self.run(
            "generate", "--model", self.model, "--adapter", adapter, "--image", self.model / "sign.png", "--prompt", QUESTION,
            "--max-new-tokens", "12", "--device", "cpu", "--format", "json",
        )
        return found, json.loads(found.stdout)["answers"][0]["text"] if found.returncode == 0 else None

    def train(self, adapter, to, rows):
        shutil.rmtree(to, ignore_errors=True)
        return self.run(
            "train-vision", "--model", self.model, "--adapter", adapter, "--dataset", rows, "--output-dir", to, "--max-steps", "2", "--batch-size", "1",
            "--gradient-accumulation", "1", "--learning-rate", "0", "--device", "cpu",
        )


def change(folder, fields):
    path = folder / "adapter_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | fields, indent=2))


def difference(got, wanted):
    return ((got - wanted).abs().max() / wanted.abs().max()).item()


def check_understood(name, ours, settings, processor, batch, number):
    folder = ours.work / name.replace(" ", "-").replace(",", "")
    shutil.rmtree(folder, ignore_errors=True)
    model = get_peft_model(base(ours.model), LoraConfig(**settings))
    draw(model, number)
    model.eval().save_pretrained(folder / "adapter")
    # PEFT sorts patterns when it writes them, but goes by the order that it reads: the file is what an adapter means.
    patterns = {name: settings[name] for name in ("rank_pattern", "alpha_pattern") if name in settings}
    change(folder / "adapter", {**patterns, **ADDED.get(name, {})})
    model = PeftModel.from_pretrained(base(ours.model), str(folder / "adapter")).eval()
    wanted, plain, text = logits(model, batch), logits(base(ours.model), batch), answer(model, processor, batch)
    problems = []
    exported = ours.export(folder / "adapter", folder / "merged")
    if exported.returncode != 0:
        return [f"export: {exported.stderr.strip()}"], ""
    far = difference(logits(base(folder / "merged"), batch), wanted)
    generated, answered = ours.generate(folder / "adapter")
    if generated.returncode != 0:
        problems.append(f"generate: {generated.stderr.strip()}")
    elif answered != text:
        problems.append(f"generate answers {answered!r}, PEFT {text!r}")
    if not far <= ALLOWED:
        problems.append("the exported logits differ")
    trained = ours.train(folder / "adapter", folder / "trained", ours.work / "rows.jsonl")
    if settings.get("use_dora"):
        if trained.returncode == 0 or "use_dora" not in trained.stderr:
            problems.append(f"training is not refused: {trained.stderr.strip()}")
        again = 0.0
    elif trained.returncode != 0:
        problems.append(f"train: {trained.stderr.strip()}")
        again = float("nan")
    else:
        # At a learning rate of 0 it is the same adapter; PEFT reads it as it reads its own.
        again = difference(logits(PeftModel.from_pretrained(base(ours.model), folder / "trained").eval(), batch), wanted)
        if not again <= ALLOWED:
            problems.append("the adapter that was trained further differs")
    effect = difference(plain, wanted)
    if not effect > 100 * ALLOWED:
        problems.append(f"the adapter has no effect: {effect:.1e}")
    return problems, f"effect {effect:.1e}; exported {far:.1e}; trained further {again:.1e}; answer {text!r}"


def check_refused(name, ours, settings, fields, words):
    folder = ours.work / f"refused-{name.replace(' ', '-').replace(',', '')}"
    shutil.rmtree(folder, ignore_errors=True)
    model = get_peft_model(base(ours.model), LoraConfig(**{"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], **settings}))
    model.save_pretrained(folder / "adapter")
    change(folder / "adapter", fields)
    commands = {
        "export": ours.export(folder / "adapter", folder / "merged"),
        "generate": ours.generate(folder / "adapter")[0],
        "train": ours.train(folder / "adapter", folder / "trained", ours.work / "rows.jsonl"),
    }
    problems = []
    for command, done in commands.items():
        if done.returncode == 0:
            problems.append(f"{command} is not refused")
        problems += [f"{command} does not say {word}: {done.stderr.strip()}" for word in words if word not in done.stderr]
    return problems


def check_converted(kind, ours, batch):
    """An adapter whose first values were taken from the base, converted by PEFT: it belongs to the base again."""
    folder = ours.work / f"converted-{kind}"
    shutil.rmtree(folder, ignore_errors=True)
    model = get_peft_model(base(ours.model), LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"], init_lora_weights=kind))
    # The first values have to be read back as they are.
    model.peft_config["default"].init_lora_weights = True
    model.save_pretrained(folder / "first")
    model.peft_config["default"].init_lora_weights = kind
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    wanted = logits(model.eval(), batch)
    model.save_pretrained(folder / "adapter", path_initial_model_for_weight_conversion=str(folder / "first"))
    exported = ours.export(folder / "adapter", folder / "merged")
    if exported.returncode != 0:
        return [f"export: {exported.stderr.strip()}"], ""
    far = difference(logits(base(folder / "merged"), batch), wanted)
    return ([] if far <= ALLOWED else ["the exported logits differ"]), f"exported {far:.1e}"


def check_older(ours, batch):
    """Names as transformers 4.51 and earlier wrote them, with targets and patterns for these names; and DoRA's lengths as PEFT 0.10 wrote them."""
    folder = ours.work / "older"
    shutil.rmtree(folder, ignore_errors=True)
    settings = dict(r=4, lora_alpha=8, use_dora=True, target_modules=DECODER, rank_pattern={"layers.0.self_attn.q_proj": 2}, alpha_pattern={"layers.1.mlp.up_proj": 3})
    model = get_peft_model(base(ours.model), LoraConfig(**settings))
    draw(model, 99)
    model.eval().save_pretrained(folder / "adapter")
    wanted = logits(model, batch)
    path = folder / "adapter" / "adapter_model.safetensors"

    def older(name):
        name = name.replace("base_model.model.model.language_model.", "base_model.model.model.").replace("base_model.model.model.visual.", "base_model.model.visual.")
        return name.removesuffix(".weight") if "lora_magnitude_vector" in name else name

    save_file({older(name): tensor for name, tensor in load_file(path).items()}, path)
    change(
        folder / "adapter",
        {
            "target_modules": r"^(?:model\.layers|visual\.blocks)\.\d+\..*_proj$",
            "rank_pattern": {r"^model\.layers\.0\.self_attn\.q_proj": 2},
            "alpha_pattern": {r"^model\.layers\.1\.mlp\.up_proj": 3},
        },
    )
    exported = ours.export(folder / "adapter", folder / "merged")
    if exported.returncode != 0:
        return [f"export: {exported.stderr.strip()}"], ""
    far = difference(logits(base(folder / "merged"), batch), wanted)
    return ([] if far <= ALLOWED else ["the exported logits differ"]), f"exported {far:.1e}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="a folder for adapters and exported models")
    parser.add_argument("--model", type=Path, default=TINY)
    arguments = parser.parse_args()
    work = arguments.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    ours = Ours(arguments.binary.resolve(), arguments.model.resolve(), work)
    rows = [{"messages": [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "Harbour"}]}] * 2
    (work / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    processor, batch = inputs(ours.model)
    transformers.utils.logging.disable_progress_bar()
    failed = []

    def tell(name, problems, figures=""):
        failed.extend([name] if problems else [])
        print(f"{name}: {'; '.join(problems) or figures or 'refused'}", flush=True)

    for number, (name, settings) in enumerate(UNDERSTOOD.items()):
        tell(name, *check_understood(name, ours, settings, processor, batch, number))
    for name, (settings, fields, words) in REFUSED.items():
        tell(name, check_refused(name, ours, settings, fields, words))
    for kind in ["pissa", "olora"]:
        tell(f"{kind}, converted", *check_converted(kind, ours, batch))
    tell("older names", *check_older(ours, batch))
    print(f"{len(failed)} of {len(UNDERSTOOD) + len(REFUSED) + 3} adapters are not what PEFT means: {', '.join(failed)}" if failed else "all adapters are what PEFT means")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
