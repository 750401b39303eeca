#!/usr/bin/env python3
"""Trains the same adapter at full size with transformers and peft in bf16 and with `model-garden train-vision`, and compares losses step by step.

usage: parity.py --work FOLDER --binary model-garden [--shape 3b --vocabulary FOLDER] [--device cuda] [--phase make,peer,ours,compare]

Rounding to 16 bits makes any two programs differ, so the yardstick is the peer itself: its losses with one attention (`sdpa`) and with the other (`eager`), which are
the same mathematics. Ours may be at most twice as far from either as these two are from each other, in the largest absolute difference over all steps.

    make     a checkpoint with random weights of the released shape, rows with drawn pictures, and a first adapter whose B is not zero
    peer     transformers' Trainer and peft from that adapter under bf16 autocast, with each of --peers (`float32` is without autocast, on widened weights)
    ours     the binary, with the same rows in the same order
    compare  losses and their differences, in FOLDER/parity.json; exits 1 if ours are too far

--vocabulary is a folder that testdata/data/real_vocabulary.py made. `--shape tiny --device cpu` runs all of it on a processor in a minute, to see that it works: the binary computes
in float32 there, so ours are close to the peer's `float32`.
"""

import argparse
import gc
import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# torch and transformers take seconds to import: only phases that need them do.

ROWS, STEPS = 40, 20
SETTINGS = {"batch": 2, "accumulation": 2, "warmup": 2, "norm": 1.0, "decay": 0.01, "rate": 2e-4, "seed": 42, "rank": 16, "alpha": 32}
LINEARS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
DECODER = r".*\.language_model\..*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"
# 1,024 merged tokens, others down to 64; most do not divide by 28 and are resized.
SIZES = [(896, 896), (640, 480), (448, 672), (800, 600), (224, 224), (1120, 560), (333, 777), (512, 512)]
WORDS = "a harbour with nine grey boats and one old crane behind the wall where nobody waits for rain to end before the evening train leaves".split()
PHASES = ("make", "peer", "ours", "compare")
PEERS = ("sdpa", "eager", "float32")


def make_rows(folder):
    """Forty rows, the same ones each time: one picture each, questions and answers of many lengths."""
    from dataset import COLOURS, SHAPES, draw, picture, text

    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    numbers = random.Random(SETTINGS["seed"])

    def prose(most):
        return " ".join(numbers.choice(WORDS) for _ in range(numbers.randrange(5, most)))

    lines = []
    for number in range(ROWS):
        colour, shape, count = numbers.choice(list(COLOURS)), numbers.choice(SHAPES), numbers.randrange(1, 9)
        name = f"pictures/{number:02}.png"
        draw(SIZES[number % len(SIZES)], colour, shape, count, numbers).save(folder / name, compress_level=1)
        answer = {"colour": colour, "shape": shape, "count": count, "seen": prose(120)}
        lines.append({"messages": [
            {"role": "user", "content": [picture(name), text(f"What is drawn? {prose(60)}")]},
            {"role": "assistant", "content": json.dumps(answer)},
        ]})
    (folder / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def make_adapter(model, folder, is_new=False):
    """An adapter as peft saves it. A is drawn as peft does it. B is zero if it is new; else small, so that gradients of A do not begin with zero."""
    import torch
    from peft import LoraConfig
    from safetensors.torch import save_file
    from transformers import AutoConfig

    text = AutoConfig.from_pretrained(model).text_config
    keys = text.hidden_size // text.num_attention_heads * text.num_key_value_heads
    wide = {
        "self_attn.q_proj": (text.hidden_size, text.hidden_size), "self_attn.k_proj": (text.hidden_size, keys), "self_attn.v_proj": (text.hidden_size, keys),
        "self_attn.o_proj": (text.hidden_size, text.hidden_size), "mlp.gate_proj": (text.hidden_size, text.intermediate_size),
        "mlp.up_proj": (text.hidden_size, text.intermediate_size), "mlp.down_proj": (text.intermediate_size, text.hidden_size),
    }
    rank, numbers, tensors = SETTINGS["rank"], torch.Generator().manual_seed(SETTINGS["seed"]), {}
    for layer in range(text.num_hidden_layers):
        for name in LINEARS:
            inputs, outputs = wide[name]
            place = f"base_model.model.model.language_model.layers.{layer}.{name}"
            tensors[f"{place}.lora_A.weight"] = torch.empty(rank, inputs).uniform_(-(inputs**-0.5), inputs**-0.5, generator=numbers)
            tensors[f"{place}.lora_B.weight"] = torch.empty(outputs, rank).normal_(0.0, 0.0 if is_new else 0.01, generator=numbers)
    config = LoraConfig(r=rank, lora_alpha=SETTINGS["alpha"], lora_dropout=0.0, target_modules=DECODER, base_model_name_or_path=str(model))
    config.save_pretrained(folder)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def make(arguments):
    from random_checkpoint import write_checkpoint

    model = arguments.work / "model"
    if (model / "model.safetensors.index.json").exists() and json.loads((model / "shape.json").read_text()) == arguments.shape:
        print("the checkpoint is there already")
    else:
        shutil.rmtree(model, ignore_errors=True)
        count = write_checkpoint(model, arguments.shape, arguments.vocabulary, arguments.device, SETTINGS["seed"])
        (model / "shape.json").write_text(json.dumps(arguments.shape))
        print(f"{count:,} parameters")
    make_rows(arguments.work / "data")
    make_adapter(model, arguments.work / "first")
    give_back()


class Batches:
    """Micro-batches as transformers' own processor makes them. Each is made once: both runs and both epochs take the same ones."""

    def __init__(self, model, data):
        from transformers import AutoProcessor

        self.processor = AutoProcessor.from_pretrained(model)
        self.processor.tokenizer.padding_side = "right"
        self.start = self.processor.tokenizer.convert_tokens_to_ids("<|im_start|>")
        self.header = self.processor.tokenizer.encode("assistant\n")
        self.data, self.kept = data, {}

    def answers(self, tokens):
        """Labels: an assistant's turns from behind their header to where the next turn begins, as TRL's template for training marks them."""
        labels = [-100] * len(tokens)
        starts = [place for place, token in enumerate(tokens) if token == self.start]
        for start, end in zip(starts, [*starts[1:], len(tokens)]):
            first = start + 1 + len(self.header)
            if tokens[start + 1 : first] == self.header:
                labels[first:end] = tokens[first:end]
        return labels

    def make(self, rows):
        import torch
        from PIL import Image

        shown, images = [], []
        for messages in rows:
            question, answer = messages
            parts = [{"type": "image"} if part["type"] == "image_url" else part for part in question["content"]]
            images += [Image.open(self.data / part["image_url"]).convert("RGB") for part in question["content"] if part["type"] == "image_url"]
            shown.append(self.processor.apply_chat_template([{**question, "content": parts}, answer], tokenize=False))
        batch = self.processor(text=shown, images=images or None, padding=True, return_tensors="pt")
        lengths = batch["attention_mask"].sum(1).tolist()
        labels = torch.full_like(batch["input_ids"], -100)
        for row, length in enumerate(lengths):
            labels[row, :length] = torch.tensor(self.answers(batch["input_ids"][row, :length].tolist()))
        return {**batch, "labels": labels}

    def collate(self, rows):
        key = json.dumps(rows)
        if key not in self.kept:
            self.kept[key] = self.make(rows)
        return dict(self.kept[key])


def load_base(folder, dtype, attention, device):
    from transformers import Qwen2_5_VLForConditionalGeneration

    return Qwen2_5_VLForConditionalGeneration.from_pretrained(folder, dtype=dtype, attn_implementation=attention, device_map=device)


def load_adapter(base, folder):
    """The base with this adapter, ready to be trained. peft widens adapters; modules it saves in full are widened here, or most of their updates would be rounded away."""
    import torch
    from peft import PeftModel
    from safetensors.torch import load_file

    model = PeftModel.from_pretrained(base, folder, is_trainable=True)
    trained = {place.replace(".modules_to_save.default", "").replace(".default", ""): one for place, one in model.named_parameters() if one.requires_grad}
    first = load_file(folder / "adapter_model.safetensors")
    assert trained.keys() == first.keys(), "peft trains something else than the adapter"
    assert all(one.dtype == torch.float32 for place, one in trained.items() if ".lora_" in place), "peft did not widen the adapter"
    for one in trained.values():
        one.data = one.data.float()
    assert all(torch.equal(one.detach().cpu(), first[place]) for place, one in trained.items()), "peft begins with another adapter"
    return model


def run_trainer(model, batches, messages, settings, steps, is_wide, device, folder, **more):
    """The trainer itself; only its rows come in their order. Returns what it logged, and how many of its weights decay."""
    from torch.utils.data import SequentialSampler
    from transformers import PrinterCallback, Trainer, TrainingArguments

    class InOrder(Trainer):
        def _get_train_sampler(self, train_dataset=None):
            return SequentialSampler(self.train_dataset)

    told = TrainingArguments(
        output_dir=folder, max_steps=steps, per_device_train_batch_size=settings["batch"], gradient_accumulation_steps=settings["accumulation"],
        learning_rate=settings["rate"], lr_scheduler_type="cosine", warmup_steps=settings["warmup"], max_grad_norm=settings["norm"], weight_decay=settings["decay"],
        logging_steps=1, seed=settings["seed"], save_strategy="no", report_to="none", remove_unused_columns=False, use_cpu=device == "cpu", disable_tqdm=True,
        bf16=not is_wide, dataloader_pin_memory=False,
    )
    trainer = InOrder(model=model, args=told, train_dataset=messages, data_collator=batches.collate, **more)
    # Means of micro-batches, as `--loss-normalisation batch` has it.
    assert trainer.model_accepts_loss_kwargs is False
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    log = [line for line in trainer.state.log_history if "loss" in line]
    decayed = sum(len(group["params"]) for group in trainer.optimizer.param_groups if group["weight_decay"])
    return {name: [line[name] for line in log] for name in ("loss", "grad_norm", "learning_rate")}, decayed


def train_peer(arguments, name, batches, messages):
    import torch

    is_wide = name == "float32"
    base = load_base(arguments.work / "model", torch.float32 if is_wide else torch.bfloat16, "sdpa" if is_wide else name, arguments.device)
    model = load_adapter(base, arguments.work / "first")
    log, decayed = run_trainer(model, batches, messages, SETTINGS, arguments.steps, is_wide, arguments.device, arguments.work / f"peer-{name}")
    assert decayed == sum(one.requires_grad for one in model.parameters()), "some weights do not decay"
    return log


def give_back():
    """The memory of the GPU that a phase held: the binary plans with what is free."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()


def peer(arguments):
    import peft
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    messages = [json.loads(line)["messages"] for line in (arguments.work / "data/train.jsonl").read_text().splitlines()]
    batches = Batches(arguments.work / "model", arguments.work / "data")
    # An epoch's, so that no run pays for them.
    for begin in range(0, len(messages), SETTINGS["batch"]):
        batch = batches.collate(messages[begin : begin + SETTINGS["batch"]])
    shown = [list(one["input_ids"].shape) for one in batches.kept.values()]
    print(f"micro-batches: {len(shown)}, rows x tokens {shown[:4]} ..., longest {max(length for _, length in shown)}")
    about = {"torch": torch.__version__, "transformers": transformers.__version__, "peft": peft.__version__}
    about["device"] = torch.cuda.get_device_name() if arguments.device == "cuda" else "cpu"
    for name in arguments.peers:
        began = time.perf_counter()
        log = train_peer(arguments, name, batches, messages)
        if arguments.device == "cuda":
            log["peak device memory, bytes"] = torch.cuda.max_memory_allocated()
            torch.cuda.reset_peak_memory_stats()
        give_back()
        log |= {"seconds": time.perf_counter() - began, "trained tokens": int(sum(int((one["labels"][:, 1:] != -100).sum()) for one in batches.kept.values()))}
        (arguments.work / f"peer-{name}.json").write_text(json.dumps({**log, "made with": about}))
        print(f"peer {name}: {log['seconds']:.1f} s, loss {log['loss'][0]:.4f} -> {log['loss'][-1]:.4f}", flush=True)


def run_binary(binary, model, rows, folder, settings, steps, device, *flags, is_quiet=False):
    """What `train-vision` logged at each step."""
    shutil.rmtree(folder, ignore_errors=True)
    words = [
        binary, "train-vision", "--base-model", model, "--dataset", rows, "--output-dir", folder, "--shuffle", "false", "--max-steps", steps,
        "--batch-size", settings["batch"], "--gradient-accumulation", settings["accumulation"], "--learning-rate", settings["rate"], "--lr-scheduler", "cosine",
        "--warmup-steps", settings["warmup"], "--max-grad-norm", settings["norm"], "--weight-decay", settings["decay"], "--logging-steps", 1, "--save-steps", 1000,
        "--seed", settings["seed"], "--device", device, *flags,
    ]
    words = [str(word) for word in words]
    done = subprocess.run(words, stdout=subprocess.PIPE if is_quiet else None, stderr=subprocess.STDOUT if is_quiet else None, text=True)
    if done.returncode != 0:
        sys.exit(f"{done.stdout or ''}error: `{' '.join(words)}` ended with {done.returncode}")
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    log = [line for line in log if "loss" in line]
    return {name: [line[name] for line in log] for name in ("loss", "grad_norm", "learning_rate")}


def ours(arguments):
    began = time.perf_counter()
    found = run_binary(
        arguments.binary, arguments.work / "model", arguments.work / "data/train.jsonl", arguments.work / "ours", SETTINGS, arguments.steps, arguments.device,
        "--adapter", arguments.work / "first", "--lora-r", SETTINGS["rank"], "--lora-alpha", SETTINGS["alpha"], "--optim", "adamw", *arguments.ours_flags.split(),
    )
    (arguments.work / "ours.json").write_text(json.dumps({**found, "seconds": time.perf_counter() - began, "device": arguments.device}))


def compare(arguments):
    files = {**{name: f"peer-{name}.json" for name in PEERS}, "ours": "ours.json"}
    runs = {name: json.loads((arguments.work / file).read_text()) for name, file in files.items() if (arguments.work / file).exists()}
    missing = {"sdpa", "eager", "ours"} - runs.keys()
    if missing:
        sys.exit(f"error: nothing was trained with {', '.join(sorted(missing))} in {arguments.work}")
    lengths = {len(run["loss"]) for run in runs.values()}
    if len(lengths) > 1:
        sys.exit(f"error: the runs have different numbers of steps: {sorted(lengths)}")

    def largest(one, other, what="loss"):
        return max(abs(a - b) for a, b in zip(runs[one][what], runs[other][what]))

    rates = max(largest("ours", name, "learning_rate") for name in ("sdpa", "eager"))
    assert rates < 1e-12, f"learning rates differ by {rates}"
    names = list(runs)
    pairs = [(one, other) for at, one in enumerate(names) for other in names[at + 1 :]]
    apart = {f"{one} - {other}": largest(one, other) for one, other in pairs}
    bound = 2 * apart["sdpa - eager"]
    worst = max(apart["sdpa - ours"], apart["eager - ours"])
    result = {
        "shape": arguments.shape, "steps": lengths.pop(), "settings": SETTINGS, "largest absolute difference of losses": apart, "may be": bound, "is": worst,
        # Written so that a NaN does not hold.
        "holds": bool(worst <= bound), "relative to the loss": {pair: largest(*pair.split(" - ")) / min(runs["sdpa"]["loss"]) for pair in apart},
        "largest difference of gradient norms": {f"{one} - {other}": largest(one, other, "grad_norm") for one, other in pairs},
        "seconds": {name: run["seconds"] for name, run in runs.items()}, "made with": runs["sdpa"]["made with"],
        "losses": {name: run["loss"] for name, run in runs.items()}, "gradient norms": {name: run["grad_norm"] for name, run in runs.items()},
    }
    (arguments.work / "parity.json").write_text(json.dumps(result, indent=1) + "\n")
    print("step " + "".join(f"{name:>12}" for name in names))
    for step, losses in enumerate(zip(*(runs[name]["loss"] for name in names)), 1):
        print(f"{step:4} " + "".join(f"{loss:12.6f}" for loss in losses))
    for pair, value in apart.items():
        print(f"|{pair}| {value:.2e}")
    print(f"ours is {worst:.2e} from the peer, which is {bound / 2:.2e} from itself: {'at most twice' if result['holds'] else 'MORE than twice'}")
    return 0 if result["holds"] else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    listed = lambda choices: lambda words: [one for one in words.split(",") if one in choices or parser.error(f"no such: {one}")]  # noqa: E731
    parser.add_argument("--work", type=Path, required=True, help="a folder for the checkpoint, rows, runs and the result")
    parser.add_argument("--binary", type=Path, default=Path("target/release/model-garden"))
    parser.add_argument("--shape", choices=("3b", "tiny"), default="3b")
    parser.add_argument("--vocabulary", type=Path, help="tokenizer and processor files (data/real_vocabulary.py); for 3b")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--phase", type=listed(PHASES), default=list(PHASES), help="some of make,peer,ours,compare [default: all]")
    parser.add_argument("--peers", type=listed(PEERS), default=["sdpa", "eager"], help="some of sdpa,eager,float32 [default: sdpa,eager]")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--ours-flags", default="", help="more flags for train-vision, in one word")
    arguments = parser.parse_args()
    arguments.work, arguments.binary = arguments.work.resolve(), arguments.binary.resolve()
    if "make" in arguments.phase and arguments.shape == "3b" and arguments.vocabulary is None:
        parser.error("--shape 3b needs --vocabulary")
    code = 0
    for phase in PHASES:
        if phase in arguments.phase:
            began = time.perf_counter()
            code = {"make": make, "peer": peer, "ours": ours, "compare": compare}[phase](arguments) or 0
            print(f"phase {phase}: {time.perf_counter() - began:.1f} s", flush=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
