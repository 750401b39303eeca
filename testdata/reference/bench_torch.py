#!/usr/bin/env python3
"""Times LoRA training steps of PyTorch on the CPU, on a checkpoint and batch that another program can run as well.

usage: bench_torch.py --save-only FOLDER
       bench_torch.py --run-only FOLDER [--threads 2] [--steps 10] [--warm-up 3] [--attention sdpa]
       bench_torch.py FOLDER [...]      both: saves when the folder is not there yet, then runs

The model: decoder of 8 layers, hidden 512, 8 heads, 2 key heads, vocabulary 8192; vision tower of 4 blocks; LoRA of rank
16 on the decoder linears; 2 rows of 256 tokens, each with one image of 224 x 224. A step is forward, backward, clipping
and AdamW update, float32. Prints one JSON object: times of all steps, their median, the losses (to see that the other
program does the same work), and the peak of resident memory above what importing the packages took.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import time
from pathlib import Path


def resident_bytes(field="VmRSS"):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) << 10
    raise SystemExit(f"error: /proc/self/status has no {field}")


def forget_peak():
    """Starts the kernel's peak anew, so that what imports needed for a moment does not count."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        print("warning: the peak of resident memory includes the imports", file=sys.stderr)


def bench_case():
    from cases import DECODER_LINEARS, Case, Files, Lora, Row, Text, Training, Vision

    # 16 x 16 patches are 64 tokens, and two markers: 256 tokens with 190 of text.
    row = Row((20, (16, 16), 170))
    return Case(
        name="bench",
        about="the model that the speed of a training step is measured with",
        text=Text(
            hidden=512, intermediate=1408, layers=8, heads=8, kv_heads=2, vocabulary=8192, mrope_section=(8, 12, 12)
        ),
        vision=Vision(depth=4, hidden=320, intermediate=856, heads=4, patch=14, window=112, full_blocks=(3,)),
        files=Files(),
        lora=Lora(rank=16, alpha=16, targets=DECODER_LINEARS),
        training=Training(learning_rate=2e-4),
        tied=True,
        batches=[[row, row]],
    )


def save(folder):
    """Writes checkpoint, adapter, batch and a case.json that says how to train; there are no reference numbers in it."""
    from checkpoint import write_inputs, write_json

    case = bench_case()
    about = write_inputs(case, 0, folder)
    training = case.training
    about["training"] = {
        "learning_rates": [training.learning_rate],
        "beta1": training.beta1,
        "beta2": training.beta2,
        "epsilon": training.epsilon,
        "weight_decay": training.weight_decay,
        "clip_norm": training.clip_norm,
        "not_decayed": [],
    }
    write_json(folder / "case.json", about)


def measure(arguments):
    import torch

    after_torch = resident_bytes()
    import transformers
    from peft import PeftModel
    from safetensors.torch import load_file
    from transformers import Qwen2_5_VLForConditionalGeneration

    from record import run

    torch.set_num_threads(arguments.threads)
    transformers.logging.disable_progress_bar()
    after_imports = resident_bytes()
    forget_peak()

    folder = arguments.folder
    about = json.loads((folder / "case.json").read_text())
    training = about["training"]
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32, attn_implementation=arguments.attention
    )
    model = PeftModel.from_pretrained(model, folder / about["lora"]["folder"], is_trainable=True).train()
    batch = load_file(folder / about["batches"][0])
    after_load = resident_bytes()
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(
        parameters,
        lr=training["learning_rates"][0],
        betas=(training["beta1"], training["beta2"]),
        eps=training["epsilon"],
        weight_decay=training["weight_decay"],
        fused=True,  # the fastest there is, and what the Trainer takes
    )
    seconds, losses = [], []
    for _ in range(arguments.warm_up + arguments.steps):
        begin = time.perf_counter()
        loss = run(model, batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, training["clip_norm"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begin)
    timed = seconds[arguments.warm_up :]
    peak = resident_bytes("VmHWM")
    return {
        "program": "pytorch",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "threads": torch.get_num_threads(),
        "attention": arguments.attention,
        "tokens_per_step": int(batch["attention_mask"].sum()),
        "median_step_seconds": statistics.median(timed),
        "step_seconds": timed,
        "warm_up_seconds": seconds[: arguments.warm_up],
        "losses": losses,
        "resident_after_torch_bytes": after_torch,
        "resident_after_imports_bytes": after_imports,
        "resident_after_load_bytes": after_load,
        "peak_resident_bytes": peak,
        "peak_above_torch_bytes": peak - after_torch,
        "peak_above_imports_bytes": peak - after_imports,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--save-only", action="store_true", help="write the folder and stop")
    only.add_argument("--run-only", action="store_true", help="the folder must be there")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--attention", choices=["sdpa", "eager"], default="sdpa")
    arguments = parser.parse_args()
    written = (arguments.folder / "case.json").exists()
    if arguments.run_only and not written:
        sys.exit(f"error: {arguments.folder} has no case.json; write it with --save-only")
    if arguments.save_only and written:
        shutil.rmtree(arguments.folder)
        written = False
    if not written:
        # In a process of its own: what saving needs must not count as memory of training.
        child = os.fork()
        if child == 0:
            save(arguments.folder)
            sys.stdout.flush()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status != 0:
            sys.exit("error: the checkpoint could not be written")
    if not arguments.save_only:
        print(json.dumps(measure(arguments), indent=2))


if __name__ == "__main__":
    main()
