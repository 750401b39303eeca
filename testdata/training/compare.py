#!/usr/bin/env python3
"""Trains the same adapter with `model-garden train-vision` and with transformers' Trainer and peft, and compares them step by step.

usage: compare.py --binary target/release/model-garden --work FOLDER [--model ../tiny-model] [--steps 50] [--learning-rate 2e-3] [--only NAME ...]

Both begin with an adapter that peft drew, read the same rows in the same order, and compute in float32. Texts, tokens, labels and pixels come from transformers'
own processor and TRL's template for training on one side, and from the binary on the other. Then the adapter that the binary wrote is loaded by peft, its
checkpoint by transformers, its event files by TensorBoard (skipped if that is not installed), and its merged export by transformers.

Prints JSON, which is also in FOLDER/result.json; exits 1 if anything is further apart than the tolerances below, and 2 if a run failed. Needs the packages of
requirements.txt. About five minutes on one core.
"""

import argparse
import copy
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import accelerate
import peft
import torch
import transformers
import trl
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from PIL import Image
from safetensors.torch import load_file
from torch.utils.data import SequentialSampler
from transformers import AutoProcessor, PrinterCallback, Qwen2_5_VLForConditionalGeneration, Trainer, TrainerState, TrainingArguments

from dataset import write_dataset

# Both sides add up float32 numbers in different orders, which gives losses that differ by some 1e-7 (docs/engine.md). AdamW divides by the root of the second
# moment, so a gradient that is nearly zero moves its weight as far as a large one does, and its rounding with it: differences grow from step to step. What was
# asked before anything was measured is in docs/training-peers.md. These are tighter: they also notice a weight decay that is left out (4e-4 in the loss).
TOLERANCES = {
    "loss, first 10 steps": 5e-6,
    "loss": 5e-5,
    "gradient norm": 1e-3,
    "learning rate": 1e-9,
    "weights": 1e-3,
    "evaluation loss": 1e-5,
    # The same tokens have the largest logit on both sides: their shares are equal, but for the last bit of a division.
    "token accuracy": 1e-12,
    "evaluation token accuracy": 1e-12,
    "merged logits": 1e-4,
    "events": 1e-6,
}

SETTINGS = {"batch": 2, "accumulation": 4, "warmup": 10, "norm": 1.0, "decay": 0.01, "seed": 42, "rank": 16, "alpha": 16}
DECODER = r".*\.language_model\..*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"
EVERYTHING = (
    r".*\.(language_model\..*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"
    r"|visual\..*\.(qkv|attn\.proj|gate_proj|up_proj|down_proj)|visual\.merger\.mlp\.[02])"
)
ROWS, EVAL_ROWS, NEW_TOKENS = 60, 11, 24
VISION = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>"]


@dataclass
class Run:
    """What is trained and how, as peft and transformers are told and as the binary is."""

    config: LoraConfig
    flags: list = field(default_factory=list)
    # Whether transformers divides by the tokens of a step.
    by_tokens: bool = False
    # Rates of the vision tower and the merger, and the one at the end of the cosine, as multiples of the learning rate.
    vision: float = 1.0
    merger: float = 1.0
    least: float = 0.0


VISION_RSLORA = ["--finetune-vision", "true", "--use-rslora", "true"]
TOKENS = ["--loss-normalisation", "tokens"]
RUNS = {
    "decoder": Run(LoraConfig(target_modules=DECODER)),
    "decoder, tokens": Run(LoraConfig(target_modules=DECODER), TOKENS, by_tokens=True),
    "vision, rslora": Run(LoraConfig(target_modules=EVERYTHING, use_rslora=True), VISION_RSLORA),
    "vision, rslora, tokens": Run(LoraConfig(target_modules=EVERYTHING, use_rslora=True), [*VISION_RSLORA, *TOKENS], by_tokens=True),
    "all-linear, rates": Run(LoraConfig(target_modules="all-linear"), ["--lora-targets", "all-linear"], vision=0.25, merger=2.0, least=0.1),
    "merger saved, tokens": Run(
        LoraConfig(target_modules=DECODER, modules_to_save=["visual.merger"]), ["--modules-to-save", "visual.merger", *TOKENS], by_tokens=True, merger=0.1,
    ),
    # `norm` is the end of the names of all norms of the decoder. The head of a tied model cannot be saved alone.
    "merger, head and norms saved": Run(
        LoraConfig(target_modules=DECODER, modules_to_save=["visual.merger", "lm_head", "norm"]), ["--modules-to-save", "visual.merger,lm_head,norm"],
        merger=0.1, least=0.1,
    ),
}
# The others are for compare_models.py.
DEFAULT_RUNS = ["decoder", "decoder, tokens", "vision, rslora", "vision, rslora, tokens"]


def count_hits(logits, labels):
    """Labels that are the argmax of their logits, and all labels."""
    trained = labels != -100
    return int(((logits.argmax(-1) == labels) & trained).sum()), int(trained.sum())


def load_base(folder):
    return Qwen2_5_VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)


class Rows:
    """Rows as transformers' processor makes them."""

    def __init__(self, model, data):
        self.processor = AutoProcessor.from_pretrained(model)
        self.processor.tokenizer.padding_side = "right"
        self.template = (Path(trl.__file__).parent / "chat_templates/qwen2_5_vl_training.jinja").read_text()
        self.never = set(self.processor.tokenizer.convert_tokens_to_ids(VISION))
        self.data = data

    def shown(self, messages):
        """Messages as transformers' documentation writes them, with the pictures themselves."""
        def part(one):
            return {"type": "image", "image": Image.open(self.data / one["image_url"]).convert("RGB")} if one["type"] == "image_url" else dict(one)

        return [{**one, "content": one["content"] if isinstance(one["content"], str) else list(map(part, one["content"]))} for one in messages]

    def labels(self, shown, tokens):
        """The answers, as TRL's `assistant_only_loss` marks them; -100 elsewhere."""
        features = self.processor.apply_chat_template(
            [shown], chat_template=self.template, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        assert list(features["input_ids"][0]) == tokens, "TRL's template gives other tokens than the model's"
        return [token if mask and token not in self.never else -100 for token, mask in zip(tokens, features["assistant_masks"][0])]

    def collate(self, rows):
        rows = [self.shown(messages) for messages in rows]
        texts = [self.processor.apply_chat_template(shown, tokenize=False) for shown in rows]
        parts = [part for shown in rows for message in shown if isinstance(message["content"], list) for part in message["content"]]
        images = [part["image"] for part in parts if part["type"] == "image"]
        batch = self.processor(text=texts, images=images or None, padding=True, return_tensors="pt")
        labels = torch.full_like(batch["input_ids"], -100)
        for row, shown in enumerate(rows):
            length = int(batch["attention_mask"][row].sum())
            labels[row, :length] = torch.tensor(self.labels(shown, batch["input_ids"][row, :length].tolist()))
        return {**batch, "labels": labels}


class InOrder(Trainer):
    """The trainer itself, but that rows come in their order, that parts of the model may have rates of their own, and that it counts hits, as TRL's does."""

    factors = {}
    hits, tokens = 0, 0

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs["labels"]
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch)
        hits, tokens = count_hits(outputs.logits[:, :-1].detach(), labels[:, 1:])
        self.hits, self.tokens = self.hits + hits, self.tokens + tokens
        return (loss, outputs) if return_outputs else loss

    def log(self, logs, *rest):
        if "loss" in logs:
            logs["mean_token_accuracy"] = self.hits / self.tokens
            self.hits = self.tokens = 0
        super().log(logs, *rest)

    def _get_train_sampler(self, train_dataset=None):
        return SequentialSampler(self.train_dataset)

    def create_optimizer(self, model=None):
        """The trainer's own optimizer; each of its groups is cut by the parts of the model. The decoder comes first: its rate is the one in the log."""
        optimizer = super().create_optimizer(model)
        parts = {id(weight): "merger" if ".visual.merger." in name else "vision" if ".visual." in name else "decoder" for name, weight in self.model.named_parameters()}
        groups = [
            {**group, "params": weights, "lr": group["lr"] * factor}
            for part, factor in {"decoder": 1.0, **self.factors}.items() for group in optimizer.param_groups
            if (weights := [weight for weight in group["params"] if parts[id(weight)] == part])
        ]
        assert sum(len(group["params"]) for group in groups) == sum(len(group["params"]) for group in optimizer.param_groups)
        optimizer.param_groups[:] = groups
        return optimizer


def draw_adapter(arguments, config, folder):
    """An adapter with peft's own first values."""
    config = copy.deepcopy(config)
    config.r, config.lora_alpha, config.lora_dropout = SETTINGS["rank"], SETTINGS["alpha"], 0.0
    torch.manual_seed(SETTINGS["seed"])
    get_peft_model(load_base(arguments.model), config).save_pretrained(folder)


def train_theirs(arguments, adapter, rows, messages, one, folder):
    base = load_base(arguments.model)
    assert base.accepts_loss_kwargs is False, "transformers divides by something else than docs/loss.md says"
    base.accepts_loss_kwargs = one.by_tokens
    schedule = {"lr_scheduler_type": "cosine"}
    if one.least:
        schedule = {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": one.least * arguments.learning_rate}}
    model = PeftModel.from_pretrained(base, adapter, is_trainable=True)
    settings = TrainingArguments(
        output_dir=folder, max_steps=arguments.steps, per_device_train_batch_size=SETTINGS["batch"],
        gradient_accumulation_steps=SETTINGS["accumulation"], learning_rate=arguments.learning_rate, **schedule,
        warmup_steps=SETTINGS["warmup"], max_grad_norm=SETTINGS["norm"], weight_decay=SETTINGS["decay"], logging_steps=1, seed=SETTINGS["seed"],
        save_strategy="no", report_to="none", remove_unused_columns=False, use_cpu=True, disable_tqdm=True, bf16=False, fp16=False,
    )
    trainer = InOrder(model=model, args=settings, train_dataset=messages, data_collator=rows.collate)
    trainer.factors = {"vision": one.vision, "merger": one.merger}
    assert trainer.model_accepts_loss_kwargs is one.by_tokens
    # Standard output is for the result.
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    decayed = sum(len(group["params"]) for group in trainer.optimizer.param_groups if group["weight_decay"])
    assert one.config.modules_to_save or decayed == sum(weight.requires_grad for weight in model.parameters()), "some weights do not decay"
    model.save_pretrained(folder)
    return [line for line in trainer.state.log_history if "loss" in line]


class RunFailed(Exception):
    """The binary ended with an error."""


def command(arguments, *words):
    words = [str(arguments.binary), *map(str, words)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        raise RunFailed(f"`{' '.join(words)}` ended with {done.returncode}\n{done.stderr.strip()}")
    return done.stdout


def train_ours(arguments, adapter, one, folder):
    rates = {"--vision-learning-rate": (one.vision, 1.0), "--merger-learning-rate": (one.merger, 1.0), "--min-learning-rate": (one.least, 0.0)}
    flags = [*one.flags, *(word for name, (factor, usual) in rates.items() if factor != usual for word in (name, factor * arguments.learning_rate))]
    command(
        arguments, "train-vision", "--base-model", arguments.model, "--dataset", arguments.work / "data/train.jsonl", "--eval-dataset",
        arguments.work / "data/eval.jsonl", "--output-dir", folder, "--adapter", adapter, "--shuffle", "false", "--max-steps", arguments.steps,
        "--batch-size", SETTINGS["batch"], "--gradient-accumulation", SETTINGS["accumulation"], "--learning-rate", arguments.learning_rate,
        "--lr-scheduler", "cosine", "--warmup-steps", SETTINGS["warmup"], "--max-grad-norm", SETTINGS["norm"], "--weight-decay", SETTINGS["decay"],
        "--lora-r", SETTINGS["rank"], "--lora-alpha", SETTINGS["alpha"], "--logging-steps", 1, "--eval-steps", 25, "--eval-answers", 2,
        "--max-new-tokens", NEW_TOKENS, "--seed", SETTINGS["seed"], "--optim", "adamw", "--device", "cpu", "--threads", 1, *flags,
    )
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def apart(ours, theirs):
    return abs(ours - theirs) / max(abs(theirs), 1e-12)


def compare_steps(ours, theirs):
    assert [line["step"] for line in ours] == [line["step"] for line in theirs]
    pairs = list(zip(ours, theirs))
    losses = [apart(our["loss"], their["loss"]) for our, their in pairs]
    norms = [apart(our["grad_norm"], their["grad_norm"]) for our, their in pairs]
    rates = [0.0 if our["learning_rate"] == their["learning_rate"] else apart(our["learning_rate"], their["learning_rate"]) for our, their in pairs]
    accuracies = [abs(our["mean_token_accuracy"] - their["mean_token_accuracy"]) for our, their in pairs]
    return {
        "token accuracy": max(accuracies), "last token accuracy": [ours[-1]["mean_token_accuracy"], theirs[-1]["mean_token_accuracy"]],
        "loss, first 10 steps": max(losses[:10]), "loss": max(losses), "loss, mean": sum(losses) / len(losses), "gradient norm": max(norms),
        "learning rate": max(rates), "first loss": [ours[0]["loss"], theirs[0]["loss"]], "last loss": [ours[-1]["loss"], theirs[-1]["loss"]],
        "steps that were clipped": sum(line["grad_norm"] > SETTINGS["norm"] for line in theirs),
    }


def compare_weights(first, ours, theirs):
    """How far the trained adapters are apart, relative to how far training went; of the worst matrix too."""
    first, ours, theirs = (load_file(folder / "adapter_model.safetensors") for folder in (first, ours, theirs))
    assert first.keys() == ours.keys() == theirs.keys()
    differences = {name: (ours[name] - theirs[name]).norm().item() for name in ours}
    changes = {name: (theirs[name] - first[name]).norm().item() for name in ours}
    whole = sum(one**2 for one in differences.values()) ** 0.5 / sum(one**2 for one in changes.values()) ** 0.5
    return {"weights": whole, "weights, worst matrix": max(differences[name] / changes[name] for name in ours), "matrices": len(ours)}


def evaluate(model, rows, messages):
    """The mean loss of a trained token, the share of hits, and the mean of the mean losses of micro-batches, as Trainer.evaluate has it."""
    total, tokens, all_hits, means = 0.0, 0, 0, []
    for begin in range(0, len(messages), SETTINGS["batch"]):
        batch = rows.collate(messages[begin : begin + SETTINGS["batch"]])
        labels = batch.pop("labels")[:, 1:]
        with torch.no_grad():
            logits = model(**batch).logits[:, :-1]
        losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
        hits, trained = count_hits(logits, labels)
        total, tokens, all_hits = total + losses.double().sum().item(), tokens + trained, all_hits + hits
        means.extend([losses.sum().item() / trained] * len(labels))
    return total / tokens, all_hits / tokens, sum(means) / len(means)


def make_prompts(arguments, messages):
    """The first question of each row, its pictures in front."""
    prompts = []
    for row in messages:
        content = next(message["content"] for message in row if message["role"] == "user")
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        names = [part["image_url"] for part in parts if part["type"] == "image_url"]
        prompts.append({"prompt": "".join(part["text"] for part in parts if part["type"] == "text"), "images": names})
    (arguments.work / "data/prompts.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    return prompts


def answers_theirs(model, rows, prompts):
    """Greedy answers, the logits of their tokens, and by how much the closest choice was made."""
    found, logits, lead = [], [], float("inf")
    for prompt in prompts:
        content = [*({"type": "image"} for _ in prompt["images"]), {"type": "text", "text": prompt["prompt"]}]
        text = rows.processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False)
        images = [Image.open(rows.data / name).convert("RGB") for name in prompt["images"]]
        batch = rows.processor(text=[text], images=images or None, return_tensors="pt")
        made = model.generate(
            **batch, do_sample=False, max_new_tokens=NEW_TOKENS, output_logits=True, return_dict_in_generate=True
        )
        tokens = made.sequences[0, batch["input_ids"].shape[1] :]
        found.append(rows.processor.tokenizer.decode(tokens, skip_special_tokens=True))
        steps = torch.cat(made.logits)
        best = steps.topk(2).values
        lead = min(lead, (best[:, 0] - best[:, 1]).min().item())
        logits.append(steps)
    return found, logits, lead


def answers_ours(arguments, *flags):
    told = json.loads(command(arguments, "generate", *flags, "--prompts", arguments.work / "data/prompts.jsonl", "--max-new-tokens", NEW_TOKENS, "--threads", 1, "--json"))
    return [answer["text"] for answer in told["answers"]]


def compare_answers(arguments, rows, messages, log, folder):
    """The adapter of the output folder in peft, and merged by `export`, against the binary."""
    prompts = make_prompts(arguments, messages)
    model = PeftModel.from_pretrained(load_base(arguments.model), folder).eval()
    taken, written = get_peft_model_state_dict(model), load_file(folder / "adapter_model.safetensors")
    assert taken.keys() == written.keys() and all(torch.equal(taken[name], written[name]) for name in written), "peft did not take every tensor"
    by_token, accuracy, by_batch = evaluate(model, rows, messages)
    best = min((line for line in log if "eval_loss" in line and line["step"] > 0), key=lambda line: line["eval_loss"])
    told, told_accuracy = best["eval_loss"], best["eval_mean_token_accuracy"]
    theirs, logits, lead = answers_theirs(model, rows, prompts)
    with model.disable_adapter():
        without, _, _ = answers_theirs(model, rows, prompts)
    ours = answers_ours(arguments, "--model", arguments.model, "--adapter", folder)

    merged = folder.with_name(folder.name + "-merged")
    shutil.rmtree(merged, ignore_errors=True)
    command(arguments, "export", "--base-model", arguments.model, "--adapter", folder, "--output-dir", merged, "--dtype", "float32", "--threads", 1)
    merged_theirs, merged_logits, _ = answers_theirs(load_base(merged).eval(), rows, prompts)
    merged_ours = answers_ours(arguments, "--model", merged)
    same = [one.shape == other.shape for one, other in zip(merged_logits, logits)]
    far = max((one - other).abs().max().item() for one, other in zip(merged_logits, logits)) if all(same) else float("nan")
    return {
        "evaluation loss": apart(told, by_token), "evaluation loss, ours and theirs": [told, by_token], "evaluation loss as Trainer.evaluate has it": by_batch,
        "evaluation token accuracy": abs(told_accuracy - accuracy), "evaluation token accuracy, ours and theirs": [told_accuracy, accuracy],
        "prompts": len(prompts), "same answers": sum(one == other for one, other in zip(ours, theirs)),
        "same answers, merged, in transformers": sum(one == other for one, other in zip(merged_theirs, theirs)),
        "same answers, merged, in the binary": sum(one == other for one, other in zip(merged_ours, theirs)),
        "answers that the adapter changed": sum(one != other for one, other in zip(theirs, without)),
        "smallest lead of a chosen token": lead, "merged logits": far / max(one.abs().max().item() for one in logits), "answers": ours[:4],
    }


def compare_checkpoint(arguments, folder, log):
    """What Hugging Face's own code reads of a checkpoint."""
    path = folder / f"checkpoint-{arguments.steps}"
    state = TrainerState.load_from_json(path / "trainer_state.json")
    model = PeftModel.from_pretrained(load_base(arguments.model), path)
    evaluations = [line["eval_loss"] for line in log if "eval_loss" in line and line["step"] > 0]
    taken, written = get_peft_model_state_dict(model), load_file(path / "adapter_model.safetensors")
    return {
        "trainer_state.json": state.global_step == state.max_steps == arguments.steps and state.log_history == log and state.best_metric == min(evaluations)
        and Path(state.best_model_checkpoint).name == f"checkpoint-{state.best_global_step}",
        "adapter": taken.keys() == written.keys() and all(torch.equal(taken[name], written[name]) for name in written),
    }


def compare_events(folder, log):
    """What TensorBoard reads, against the log."""
    try:
        import tensorboard
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError as error:
        print(f"skipped: TensorBoard is not installed ({error})", file=sys.stderr)
        return {"skipped": str(error)}
    events = EventAccumulator(str(folder / "runs"), size_guidance={"scalars": 0})
    events.Reload()
    found = {}
    tags = {
        "train/loss": "loss", "train/mean_token_accuracy": "mean_token_accuracy", "train/learning_rate": "learning_rate", "train/grad_norm": "grad_norm",
        "eval/loss": "eval_loss", "eval/mean_token_accuracy": "eval_mean_token_accuracy",
    }
    for tag, name in tags.items():
        expected = [(line["step"], line[name]) for line in log if name in line]
        scalars = [(event.step, event.value) for event in events.Scalars(tag)]
        assert [step for step, _ in scalars] == [step for step, _ in expected], tag
        found[tag] = {"points": len(scalars), "apart": max(abs(one - other) / max(abs(other), 1e-12) for (_, one), (_, other) in zip(scalars, expected))}
    return {"version": tensorboard.__version__, "tags": found, "events": max(one["apart"] for one in found.values())}


def run(arguments, name, rows, messages, evaluation):
    one = RUNS[name]
    folder = arguments.work / name.replace(", ", "-")
    shutil.rmtree(folder, ignore_errors=True)
    first, ours, theirs = folder / "first", folder / "ours", folder / "theirs"
    draw_adapter(arguments, one.config, first)
    log = train_ours(arguments, first, one, ours)
    expected = train_theirs(arguments, first, rows, messages, one, theirs)
    (folder / "theirs.json").write_text(json.dumps(expected))
    return {
        "steps": compare_steps([line for line in log if "loss" in line], expected),
        "weights": compare_weights(first, ours / f"checkpoint-{arguments.steps}", theirs),
        "answers": compare_answers(arguments, rows, evaluation, log, ours),
        "checkpoint": compare_checkpoint(arguments, ours, log),
        "events": compare_events(ours, log),
        "losses": {"ours": [line["loss"] for line in log if "loss" in line], "theirs": [line["loss"] for line in expected]},
    }


def broken(result):
    """What is further apart than it may be."""
    for name, parts in result["runs"].items():
        for part in parts.values():
            for key, value in part.items():
                # Written so that a NaN is too far.
                if key in TOLERANCES and not value <= TOLERANCES[key]:
                    yield f"{name}: {key} {value:.2e}, may be {TOLERANCES[key]:.0e}"
                elif key.startswith("same answers") and value != part["prompts"] or value is False:
                    yield f"{name}: {key}: {value}"


def write_result(arguments, result):
    runs = result["runs"]
    result["largest difference of losses with the other normalisation"] = {
        f"{one} / {other}": max(map(apart, runs[one]["losses"]["ours"], runs[other]["losses"]["theirs"]))
        for name in runs for one, other in ((name, f"{name}, tokens"), (f"{name}, tokens", name)) if {one, other} <= runs.keys()
    }
    result["broken"] = list(broken(result))
    text = json.dumps(result, indent=1)
    (arguments.work / "result.json").write_text(text + "\n")
    return text


def compare(arguments):
    """The result of the runs that `arguments` name, on its model."""
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    messages = write_dataset(arguments.work / "data", "train", ROWS, 1)
    evaluation = write_dataset(arguments.work / "data", "eval", EVAL_ROWS, 2)
    rows = Rows(arguments.model, arguments.work / "data")
    packages = (torch, transformers, peft, trl, accelerate)
    versions = {package.__name__: package.__version__ for package in packages}
    result = {"packages": versions, "tolerances": TOLERANCES, "learning rate": arguments.learning_rate, "runs": {}, "failed": {}}
    for name in arguments.only:
        try:
            result["runs"][name] = run(arguments, name, rows, messages, evaluation)
            print(f"compared: {name}", file=sys.stderr)
        except RunFailed as error:
            result["failed"][name] = str(error)
            print(f"error: {name}: {error}", file=sys.stderr)
        # After each, so that a comparison that is broken off leaves what it found.
        write_result(arguments, result)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="a folder for datasets, adapters and logs")
    parser.add_argument("--model", type=Path, default=Path(__file__).parent.parent / "tiny-model")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--only", nargs="+", choices=RUNS, default=DEFAULT_RUNS)
    arguments = parser.parse_args()
    arguments.binary, arguments.work, arguments.model = (path.resolve() for path in (arguments.binary, arguments.work, arguments.model))
    result = compare(arguments)
    print(write_result(arguments, result))
    sys.exit(2 if result["failed"] else bool(result["broken"]))


if __name__ == "__main__":
    main()
