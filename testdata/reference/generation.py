#!/usr/bin/env python3
"""Records what transformers generates for the recorded tiny models, and how it filters probabilities for sampling.

usage: generation.py --out FOLDER [--seed 0] [--only NAME ...]

Reads models and adapters from recorded/ and recorded_quantised/ beside this file, draws prompts, and writes one
NAME.safetensors per run, sampling.safetensors, and generation.json (README.md lists the tensors). Prompts are drawn again
until no choice of a token is close to a tie. Everything is also computed by specification.py in float64 without padding or
cache; the script stops where a token differs.
"""

import argparse
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

os.environ["TORCHDYNAMO_DISABLE"] = "1"

import torch
import transformers
from peft import PeftModel
from safetensors.torch import save_file
from transformers import GenerationConfig, Qwen2_5_VLForConditionalGeneration

from cases import Row
from checkpoint import FIRST_TEXT_TOKEN, MARKERS, PADDING_TOKEN, make_row, write_json
from record import base_of, made_with
from record_quantised import Quantisation, library_settings, load_base, widen
from specification import Specification

HERE = Path(__file__).parent
NEW_TOKENS = 40
PENALTY = 1.3
# Logits are recorded for this many tokens of each row.
RECORDED_STEPS = 5
# The best logit must lead by this much at every step, or float32 engines may differ for good.
SMALLEST_GAP = 1e-3
# Greedy answers of random models soon go round in circles; one of two or three tokens would hide mistakes in positions.
DIFFERENT_TOKENS = 6
# Rows computed together, padded on the left, and alone; with and without cache.
SAME_TOLERANCE = 1e-5
# Probability between the sum that top-p cuts at and the nearest sum that occurs.
SMALLEST_CUT = 1e-4


@dataclass
class Run:
    name: str
    model: str  # folder of the case
    adapter: bool
    rows: list


RUNS = [
    Run("images", "recorded/full_untied", False, [Row((3, (4, 4), 4)), Row((6,)), Row((2, (2, 4), 1, (4, 2), 3))]),
    Run("adapter", "recorded/decoder_lora", True, [Row((2, (4, 6), 5)), Row((11,)), Row((1, (2, 2), 1)), Row((4,))]),
    Run("vision_adapter", "recorded/vision_lora", True, [Row(((4, 4), 3)), Row((1, (2, 6), 2))]),
    Run("rslora", "recorded/two_images_rslora", True, [Row((4, (2, 4), 2, (4, 2), 3)), Row((3,))]),
    Run("text_only", "recorded/text_only", False, [Row((9,)), Row((1,)), Row((17,)), Row((4,))]),
    Run("bfloat16", "recorded/bfloat16", True, [Row((5,)), Row((2, (2, 2), 3))]),
    Run("nf4_on_load", "recorded_quantised/nf4_on_load", True, [Row((3, (4, 2), 3)), Row((5,))]),
    Run("nf4_saved", "recorded_quantised/nf4_saved", False, [Row((2, (2, 4), 4)), Row((7,))]),
]


def load_model(run):
    folder = HERE / run.model
    about = json.loads((folder / "case.json").read_text())
    quantised = about.get("quantisation")
    if quantised is None:
        model = Qwen2_5_VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    else:
        settings = Quantisation(quantised["stored"], quantised["double"], quantised["skip_modules"])
        model = load_base(folder, None if quantised["stored"] else library_settings(settings))
        widen(model)
    # 4-bit products of evaluation mode are bfloat16 on some CPUs; nothing here has dropout.
    model.train(quantised is not None)
    if run.adapter:
        training = model.training
        model = PeftModel.from_pretrained(model, folder / about["lora"]["folder"]).train(training)
    return model


def draw_prompts(run, config, generator):
    """Tokens of every row, and the images of all."""
    case = SimpleNamespace(text=SimpleNamespace(vocabulary=config.text_config.vocab_size))
    rows = [make_row(case, config, row, generator)[0] for row in run.rows]
    grids = [(1, *piece) for row in run.rows for piece in row.pieces if isinstance(piece, tuple)]
    vision = config.vision_config
    patches = sum(height * width for _, height, width in grids)
    values = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    pixels = torch.randn(patches, values, generator=generator)
    return rows, grids, pixels


def images_of(run, number):
    """Which images and patches belong to a row."""
    sizes = [[p[0] * p[1] for p in row.pieces if isinstance(p, tuple)] for row in run.rows]
    image = sum(len(s) for s in sizes[:number])
    patch = sum(sum(s) for s in sizes[:number])
    return slice(image, image + len(sizes[number])), slice(patch, patch + sum(sizes[number]))


def padded(rows, config):
    """Padding on the left, so that every row ends where its first new token goes."""
    length = max(map(len, rows))
    tokens = torch.tensor([[PADDING_TOKEN] * (length - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (length - len(row)) + [1] * len(row) for row in rows])
    return {"input_ids": tokens, "attention_mask": mask, "mm_token_type_ids": (tokens == config.image_token_id).int()}


def generate(model, rows, grids, pixels, stop=None, penalty=1.0, cache=True):
    """New tokens of each row up to and with an end token, and the logits they were chosen from, unpenalised."""
    inputs = padded(rows, base_of(model).config)
    if grids:
        inputs |= {"pixel_values": pixels, "image_grid_thw": torch.tensor(grids)}
    else:
        del inputs["mm_token_type_ids"]
    with torch.no_grad():
        output = model.generate(
            **inputs,
            do_sample=False,
            max_new_tokens=NEW_TOKENS,
            eos_token_id=stop,
            pad_token_id=PADDING_TOKEN,
            repetition_penalty=penalty,
            use_cache=cache,
            output_logits=True,
            return_dict_in_generate=True,
        )
    # The model keeps the position offsets of the last prompt, which the next one must not see.
    base_of(model).model.rope_deltas = None
    new = output.sequences[:, inputs["input_ids"].shape[1] :].tolist()
    logits = torch.stack(output.logits, dim=1)
    lengths = [next((i + 1 for i, token in enumerate(row) if token in (stop or [])), len(row)) for row in new]
    return [row[:length] for row, length in zip(new, lengths)], [row[:length] for row, length in zip(logits, lengths)]


def penalised(logits, seen, penalty):
    """Logits of seen tokens: divided where positive, multiplied where negative."""
    result = logits.clone()
    index = torch.tensor(sorted(set(seen)))
    chosen = logits[index]
    result[index] = torch.where(chosen < 0, chosen * penalty, chosen / penalty)
    return result


def smallest_gap(rows, new, logits, penalty):
    """The least that the best logit leads by, after the penalty, over all rows and steps."""
    gaps = []
    for prompt, tokens, row in zip(rows, new, logits):
        for step in range(len(tokens)):
            best = penalised(row[step], prompt + tokens[:step], penalty).topk(2).values
            gaps.append((best[0] - best[1]).item())
    return min(gaps)


def alone(model, run, rows, grids, pixels, number, **settings):
    images, patches = images_of(run, number)
    new, logits = generate(model, [rows[number]], grids[images], pixels[patches], **settings)
    return new[0], logits[0]


def check_alone(model, run, prompts, new, logits, stop):
    """A row by itself, without padding, gives the same tokens; and so do passes without a cache."""
    worst = 0.0
    for number in range(len(run.rows)):
        for cache in (True, False):
            found, found_logits = alone(model, run, *prompts, number, stop=stop, cache=cache)
            if found != new[number]:
                sys.exit(f"error: {run.name}: row {number} alone gives other tokens (cache: {cache})")
            worst = max(worst, ((found_logits - logits[number]).abs().max() / logits[number].abs().max()).item())
    if worst > SAME_TOLERANCE:
        sys.exit(f"error: {run.name}: padding or cache changes logits by {worst:.1e}")
    return worst


def check_specification(run, prompts, new, logits, penalty):
    """Float64, one pass over prompt and answer together: every token must be the best after those before it."""
    specification = Specification(HERE / run.model)
    if not run.adapter:
        specification.adapter = {}
    rows, grids, pixels = prompts
    worst = 0.0
    for number, prompt in enumerate(rows):
        images, patches = images_of(run, number)
        tokens = prompt + new[number]
        batch = {
            "packed.input_ids": torch.tensor(tokens),
            "packed.labels": torch.tensor(tokens),
            "packed.row_starts": torch.tensor([0, len(tokens)]),
        }
        if grids[images]:
            batch |= {"image_grid_thw": torch.tensor(grids[images]), "pixel_values": pixels[patches]}
        with torch.no_grad():
            found = specification.forward(batch)[0][len(prompt) - 1 : -1]
        for step, token in enumerate(new[number]):
            if penalised(found[step], tokens[: len(prompt) + step], penalty).argmax() != token:
                sys.exit(f"error: {run.name}: row {number}, token {step} is another one in float64")
        if logits is not None:
            worst = max(worst, ((found - logits[number]).abs().max() / found.abs().max()).item())
    return worst


def choose_stop(new):
    """Two tokens that end a row early, none before the recorded logits end, and leave one that goes on to the last step."""
    for row in new:
        for token in row[RECORDED_STEPS:25]:
            early = any(token in other[:RECORDED_STEPS] for other in new)
            if not early and any(token not in other for other in new):
                # The second token never comes; an engine must still take a list.
                unused = next(t for t in range(FIRST_TEXT_TOKEN, 1000) if all(t not in other for other in new))
                return sorted([token, unused])
    return None


def record_run(run, seed, folder):
    model = load_model(run)
    config = base_of(model).config
    # An image token in the answer is embedded like text; the specification would look for its image.
    markers = range(config.text_config.vocab_size - MARKERS, config.text_config.vocab_size)
    for attempt in range(1000):
        number = seed * 100_000 + attempt
        generator = torch.Generator().manual_seed(number * 100 + [r.name for r in RUNS].index(run.name))
        prompts = draw_prompts(run, config, generator)
        free, logits = generate(model, *prompts)
        if min(len(set(row)) for row in free) < DIFFERENT_TOKENS:
            continue
        stop = choose_stop(free)
        if stop is None or smallest_gap(prompts[0], free, logits, 1.0) < SMALLEST_GAP:
            continue
        new, logits = generate(model, *prompts, stop=stop)
        # Alone: in a batch, transformers also penalises the padding token in every row that has padding.
        penalty = [alone(model, run, *prompts, row, stop=stop, penalty=PENALTY) for row in range(len(run.rows))]
        penalty_new, penalty_logits = [list(part) for part in zip(*penalty)]
        gap = smallest_gap(prompts[0], new, logits, 1.0)
        penalty_gap = smallest_gap(prompts[0], penalty_new, penalty_logits, PENALTY)
        found = {token for row in free + penalty_new for token in row}
        if min(gap, penalty_gap) >= SMALLEST_GAP and not found.intersection(markers):
            break
    else:
        sys.exit(f"error: {run.name}: no prompts without a near tie")
    together = generate(model, *prompts, stop=stop, penalty=PENALTY)[0]
    difference = check_alone(model, run, prompts, new, logits, stop)
    exact = check_specification(run, prompts, new, logits, 1.0)
    check_specification(run, prompts, penalty_new, None, PENALTY)

    rows, grids, pixels = prompts
    tensors = {
        "prompt.input_ids": torch.tensor([token for row in rows for token in row]),
        "prompt.row_starts": torch.tensor([sum(map(len, rows[:number])) for number in range(len(rows) + 1)]),
        "greedy.tokens": fill(new),
        "greedy.lengths": torch.tensor([len(row) for row in new]),
        "greedy.logits": torch.stack([row[:RECORDED_STEPS] for row in logits]),
        "penalty.tokens": fill(penalty_new),
        "penalty.lengths": torch.tensor([len(row) for row in penalty_new]),
    }
    if grids:
        tensors |= {"prompt.pixel_values": pixels, "prompt.image_grid_thw": torch.tensor(grids)}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / f"{run.name}.safetensors")
    lengths = [len(row) for row in new]
    print(
        f"{run.name:15} attempt {attempt:3}  tokens {lengths}, with penalty {[len(row) for row in penalty_new]}  "
        f"gap {min(gap, penalty_gap):.1e}  padding and cache {difference:.0e}  float64 {exact:.0e}",
        flush=True,
    )
    return {
        "name": run.name,
        "model": run.model,
        "adapter": f"{run.model}/adapter" if run.adapter else None,
        "rows": len(rows),
        "new_tokens": NEW_TOKENS,
        "end_tokens": stop,
        "repetition_penalty": PENALTY,
        "smallest_gap": min(gap, penalty_gap),
        "penalty_in_a_padded_batch_is_the_same": together == penalty_new,
    }


def fill(rows):
    """Rows of different length side by side, -1 where a row has ended."""
    return torch.tensor([row + [-1] * (NEW_TOKENS - len(row)) for row in rows])


SETTINGS = [
    dict(temperature=1.0, top_k=0, top_p=1.0, repetition_penalty=1.0),
    dict(temperature=0.7, top_k=0, top_p=1.0, repetition_penalty=1.0),
    dict(temperature=1.5, top_k=0, top_p=1.0, repetition_penalty=1.0),
    dict(temperature=1.0, top_k=7, top_p=1.0, repetition_penalty=1.0),
    dict(temperature=1.0, top_k=0, top_p=0.8, repetition_penalty=1.0),
    dict(temperature=1.0, top_k=0, top_p=0.01, repetition_penalty=1.0),  # the best token alone
    dict(temperature=1.0, top_k=1000, top_p=1.0, repetition_penalty=1.0),  # more than there are
    dict(temperature=1.0, top_k=0, top_p=1.0, repetition_penalty=1.2),
    dict(temperature=0.6, top_k=20, top_p=0.9, repetition_penalty=1.0),
    dict(temperature=1.3, top_k=12, top_p=0.7, repetition_penalty=1.5),
    dict(temperature=0.000001, top_k=0, top_p=1.0, repetition_penalty=1.05),
]
VOCABULARY = 101


def filtered(model, logits, seen, settings):
    """Probabilities after the processors that transformers itself puts together for these settings."""
    config = GenerationConfig(do_sample=True, **settings)
    processors = model._get_logits_processor(config, input_ids_seq_length=len(seen), model_kwargs={})
    return processors(torch.tensor([seen]), logits[None])[0].softmax(dim=-1)


def filtered_by_rules(logits, seen, settings):
    """The same in float64: penalty, temperature, top-k, top-p. Returns also how near a sum comes to the top-p cut."""
    scores = penalised(logits.double(), seen, settings["repetition_penalty"]) / settings["temperature"]
    if 0 < settings["top_k"] < len(scores):
        # Ties with the k-th are kept.
        scores[scores < scores.sort(descending=True).values[settings["top_k"] - 1]] = -torch.inf
    cut = 1.0
    if settings["top_p"] < 1:
        order = scores.argsort()
        sums = scores[order].softmax(dim=-1).cumsum(dim=-1)
        removed = sums <= 1 - settings["top_p"]
        removed[-1] = False
        scores[order[removed]] = -torch.inf
        cut = (sums - (1 - settings["top_p"])).abs().min().item()
    return scores.softmax(dim=-1), cut


def record_sampling(seed, folder):
    model = load_model(RUNS[0])
    generator = torch.Generator().manual_seed(seed)
    listed, tensors = [], {}
    for number, settings in enumerate(SETTINGS):
        while True:
            logits = 1.5 * torch.randn(VOCABULARY, generator=generator)
            seen = torch.randint(0, VOCABULARY, (15,), generator=generator).tolist()
            if settings["top_k"] == 7:
                best = logits.argsort(descending=True)
                logits[best[7:9]] = logits[best[6]].item()  # three tokens share the seventh place, all stay
            expected, cut = filtered_by_rules(logits, seen, settings)
            if cut > SMALLEST_CUT:
                break
        probabilities = filtered(model, logits, seen, settings)
        if not torch.equal(probabilities > 0, expected > 0) or (probabilities - expected).abs().max() > 1e-5:
            sys.exit(f"error: transformers filters otherwise with {settings}")
        tensors |= {f"{number}.logits": logits, f"{number}.seen": torch.tensor(seen), f"{number}.probabilities": probabilities}
        listed.append({**settings, "kept": int((probabilities > 0).sum())})
    save_file(tensors, folder / "sampling.safetensors")
    return listed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0, help="other prompts and logits")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="record only these runs, and no sampling")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    arguments.out.mkdir(parents=True, exist_ok=True)
    runs = [run for run in RUNS if not arguments.only or run.name in arguments.only]
    listed = [record_run(run, arguments.seed, arguments.out) for run in runs]
    if not arguments.only:
        about = {
            "format": 1,
            "seed": arguments.seed,
            "runs": listed,
            "sampling": record_sampling(arguments.seed, arguments.out),
            "made_with": made_with(),
        }
        write_json(arguments.out / "generation.json", about)


if __name__ == "__main__":
    main()
