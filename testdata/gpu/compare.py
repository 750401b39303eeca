#!/usr/bin/env python3
"""Measures `model-garden` and its fastest peer in alternation on one GPU: training steps and greedy decoding of the 3B shape with random weights.

usage: compare.py --binary model-garden [--rounds 3] [--what none,large,layer,4bit,decode] [--model FOLDER] [--results FILE]
       compare.py --peer none|large|4bit|decode [--tiny]

The peer is transformers + peft under bf16 autocast as a careful user runs it: vision attention in one variable-length launch (what flash-attn gives), every layer compiled, AdamW
fused. The work is the one of `model-garden bench`: 2 rows (large: 8) of 1,024 image and 256 text tokens, half of them trained, LoRA of rank 16 on the decoder's seven linears, 4
micro-steps a step. `layer` and `4bit` recompute on our side; the peer of `layer` is the one that does not, and that of `4bit` has bitsandbytes' NF4 and does not either.
Decoding is greedy, 320 prompt tokens and 128 new ones, 1 and 32 rows, the peer's with a static cache and compiled; --model is a checkpoint of that shape (testdata/training/parity.py --phase make). The peer's second call counts, ours is
the first one. Prints medians over rounds and their ratios; --results appends to what a file has, so that rounds may come from several calls.

Needs torch, transformers and peft, and bitsandbytes for `4bit`. With --peer it is one run of the peer, which prints a line of JSON; --tiny makes that small enough for a processor.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
BEGAN = time.time()
HERE = Path(__file__).resolve().parent
IMAGE, TEXT, ACCUMULATION, PROMPT, NEW = 1024, 256, 4, 320, 128
# What of ours is compared with which run of the peer.
ROWS = {"none": "none", "large": "large", "layer": "none", "4bit": "4bit", "decode": "decode"}
OURS = {
    "none": ["--recompute", "none"],
    "large": ["--recompute", "none", "--batch-size", "8"],
    "layer": ["--recompute", "layer"],
    "4bit": ["--recompute", "layer", "--load-in-4bit"],
}
DECODER = r".*language_model.*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)$"
WORDS = "river stone cloud table green seven letter bridge winter copper window garden music signal paper number".split()


def peer_model(tiny):
    import torch
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    sys.path.insert(0, str(HERE.parent / "training"))
    from random_checkpoint import CONFIG_3B, TINY

    config = json.loads((TINY / "config.json").read_text()) if tiny else CONFIG_3B
    with torch.device("cpu" if tiny else "cuda"):
        torch.manual_seed(0)
        model = Qwen2_5_VLForConditionalGeneration._from_config(Qwen2_5_VLConfig.from_dict(config), dtype=torch.float32 if tiny else torch.bfloat16, attn_implementation="sdpa")
    model.tie_weights()
    return model.requires_grad_(False)


def attend_at_once(rows):
    """All windows, or all images, of the vision tower in one launch instead of one by one."""
    import transformers.models.qwen2_5_vl.modeling_qwen2_5_vl as qwen
    from torch.nn.attention.varlen import varlen_attn

    def forward(self, hidden_states, cu_seqlens, position_embeddings=None, **_):
        length = hidden_states.shape[0]
        query, key, value = self.qkv(hidden_states).view(length, 3, self.num_heads, -1).unbind(1)
        query, key = qwen.apply_rotary_pos_emb_vision(query, key, *position_embeddings)
        query, key, value = (part.to(value.dtype).contiguous() for part in (query, key, value))
        # A window has 8 x 8 patches; with as many segments as pictures they are whole ones.
        longest = length // rows if cu_seqlens.shape[0] == rows + 1 else 64
        mixed = varlen_attn(query, key, value, cu_seqlens, cu_seqlens, longest, longest)
        return self.proj(mixed.reshape(length, -1))

    qwen.Qwen2_5_VLVisionAttention.forward = forward


def pack(model):
    """The decoder's linears in NF4 with double quantisation, as load_in_4bit leaves them."""
    import re

    import torch
    from bitsandbytes.nn import Linear4bit, Params4bit

    for name, linear in list(model.named_modules()):
        if re.fullmatch(DECODER, name):
            packed = Linear4bit(linear.in_features, linear.out_features, bias=linear.bias is not None, compute_dtype=torch.bfloat16, quant_type="nf4", device="meta")
            packed.weight = Params4bit(linear.weight.data.cpu(), requires_grad=False, quant_type="nf4", compress_statistics=True)
            if linear.bias is not None:
                packed.bias = torch.nn.Parameter(linear.bias.data, requires_grad=False)
            parent, own = name.rsplit(".", 1)
            setattr(model.get_submodule(parent), own, packed.to("cuda"))
    model.is_loaded_in_4bit = True
    torch.cuda.empty_cache()


def micro_batches(config, rows, tiny):
    import torch

    numbers = torch.Generator().manual_seed(1)
    side = 16 if tiny else 64
    image, vocabulary = side * side // 4, min(config.text_config.vocab_size, 151643) - 16
    for _ in range(ACCUMULATION):
        text = torch.randint(0, min(vocabulary, 400 if tiny else vocabulary), (rows, TEXT - 2), generator=numbers)
        begin, middle, end = (torch.full((rows, count), token) for count, token in ((1, config.vision_start_token_id), (image, config.image_token_id), (1, config.vision_end_token_id)))
        tokens = torch.cat([text[:, :24], begin, middle, end, text[:, 24:]], 1)
        labels = tokens.clone()
        labels[:, : -TEXT // 2] = -100
        yield {
            "input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": labels, "mm_token_type_ids": (tokens == config.image_token_id).int(),
            "pixel_values": torch.randn(rows * side * side, 3 * 2 * 14 * 14, generator=numbers), "image_grid_thw": torch.tensor([[1, side, side]] * rows),
        }


def peer_trains(which, tiny):
    import peft
    import torch

    rows, device = 8 if which == "large" else 2, "cpu" if tiny else "cuda"
    if not tiny:
        attend_at_once(rows)
    model = peer_model(tiny)
    if which == "4bit":
        pack(model)
    adapter = peft.LoraConfig(r=16, lora_alpha=16, lora_dropout=0.0, target_modules=DECODER, task_type="CAUSAL_LM")
    model = peft.get_peft_model(model, adapter).train()
    base = model.get_base_model()
    base.config.use_cache = base.config.text_config.use_cache = False
    if not tiny:
        for layer in [*base.model.language_model.layers, *base.model.visual.blocks]:
            layer.compile()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=2e-4, fused=not tiny)
    batches, steps, first = list(micro_batches(base.config, rows, tiny)), [], None
    for step in range(3 if tiny else 7):
        began = time.perf_counter()
        for batch in batches:
            batch = {name: values.to(device, non_blocking=True) for name, values in batch.items()}
            with torch.autocast(device, dtype=torch.bfloat16, enabled=not tiny):
                loss = model(**batch).loss / ACCUMULATION
            loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if not tiny:
            torch.cuda.synchronize()
        first = first or time.time() - BEGAN
        if step >= 2:
            steps.append(time.perf_counter() - began)
        if step == 1 and not tiny:
            torch.cuda.reset_peak_memory_stats()
    status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    host = {name: int(status[key].split()[0]) * 1024 for name, key in (("resident", "VmRSS"), ("peak", "VmHWM"))}
    memory = 0 if tiny else torch.cuda.max_memory_allocated()
    return {"ms": 1e3 * statistics.median(steps) / ACCUMULATION, "memory": memory, "host": host["resident"], "host_peak": host["peak"], "start": first}


def peer_decodes(tiny):
    import torch
    from transformers import GenerationConfig

    model, device = peer_model(tiny).eval(), "cpu" if tiny else "cuda"
    found = {}
    for rows in (1, 32):
        tokens = torch.randint(0, 400, (rows, PROMPT), device=device)
        # A static cache is what transformers compiles decoding for.
        end = model.config.text_config.eos_token_id
        config = GenerationConfig(max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, pad_token_id=0, eos_token_id=end, cache_implementation="static")
        for _ in range(2):
            began = time.perf_counter()
            with torch.inference_mode():
                model.generate(input_ids=tokens, attention_mask=torch.ones_like(tokens), generation_config=config)
            if not tiny:
                torch.cuda.synchronize()
            seconds = time.perf_counter() - began
        found[f"tokens_{rows}"] = rows * NEW / seconds
    return found


def ours(binary, what, model):
    if what != "decode":
        printed = subprocess.run([binary, "bench", "--shape", "qwen2.5-vl-3b", *OURS[what], "--steps", "6", "--json"], check=True, capture_output=True, text=True).stdout
        found = json.loads(printed)
        memory, host, start = found["memory"], found["host"], found["start"]
        return {"ms": found["micro_step_ms"], "memory": memory["measured_bytes"], "planned": memory["planned_bytes"], "host": host["resident_bytes"],
                "host_peak": host["peak_resident_bytes"], "start": start["first_step_seconds"]}
    found = {}
    for rows in (1, 32):
        # The chat template takes 19 tokens, and each of these words is one.
        lines = [{"prompt": " ".join(WORDS[(row * 7 + place * place) % len(WORDS)] for place in range(PROMPT - 19))} for row in range(rows)]
        prompts = Path(model) / f"prompts-{rows}.jsonl"
        prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
        command = [binary, "generate", "--model", model, "--prompts", str(prompts), "--max-new-tokens", str(NEW), "--device", "cuda", "--json"]
        answered = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        made = sum(len(answer["tokens"]) for answer in answered["answers"])
        if made != rows * NEW or answered["answers"][0]["prompt_tokens"] != PROMPT:
            print(f"warning: {made} tokens of {rows} rows, after {answered['answers'][0]['prompt_tokens']} of a prompt", file=sys.stderr)
        found[f"tokens_{rows}"] = made / answered["seconds"]["generate"]
    return found


def peer(what):
    ran = subprocess.run([sys.executable, __file__, "--peer", what], capture_output=True, text=True)
    if ran.returncode:
        print(f"error: the peer's run `{what}` failed\n{ran.stderr[-1500:]}", file=sys.stderr)
        return None
    return json.loads(ran.stdout.splitlines()[-1])


def table(results):
    def median(side, what, field):
        values = [found[field] for found in results[side].get(what, []) if found and field in found]
        return statistics.median(values) if values else None

    gib = 2.0**30
    print("\n| | ours | peer | ratio | GPU memory, ours (planned), peer | host, peak, ours | peer | start, ours, peer |\n| --- | --- | --- | --- | --- | --- | --- | --- |")
    for what in OURS:
        own, other = ({field: median(side, key, field) for field in ("ms", "memory", "planned", "host", "host_peak", "start")} for side, key in (("ours", what), ("peer", ROWS[what])))
        if own["ms"] and other["ms"]:
            print(f"| {what} | {own['ms']:.1f} ms | {other['ms']:.1f} ms | {own['ms'] / other['ms']:.2f} | {own['memory'] / gib:.2f} ({own['planned'] / gib:.2f}), {other['memory'] / gib:.2f} GiB "
                  f"| {own['host'] / 2**20:.0f}, {own['host_peak'] / 2**20:.0f} MiB | {other['host'] / 2**20:.0f}, {other['host_peak'] / 2**20:.0f} MiB | {own['start']:.1f}, {other['start']:.1f} s |")
    for rows in (1, 32):
        own, other = (median(side, "decode", f"tokens_{rows}") for side in ("ours", "peer"))
        if own and other:
            print(f"| decode {rows} | {own:.0f} tokens/s | {other:.0f} | {other / own:.2f} | | | | |")


def main():
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    parser.add_argument("--peer", choices=sorted(set(ROWS.values())))
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--binary")
    parser.add_argument("--model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--what", default=",".join(ROWS))
    parser.add_argument("--results", type=Path)
    arguments = parser.parse_args()
    if arguments.peer:
        print(json.dumps(peer_decodes(arguments.tiny) if arguments.peer == "decode" else peer_trains(arguments.peer, arguments.tiny)))
        return
    what = arguments.what.split(",")
    if not arguments.binary or ("decode" in what and not arguments.model):
        parser.error("--binary is needed, and --model for decoding")
    results = {"ours": {}, "peer": {}}
    if arguments.results and arguments.results.exists():
        results = json.loads(arguments.results.read_text())
    for number in range(arguments.rounds):
        for other in dict.fromkeys(ROWS[one] for one in what):
            theirs = [("peer", other, peer(other))]
            own = [("ours", one, ours(arguments.binary, one, arguments.model)) for one in what if ROWS[one] == other]
            for side, name, found in theirs + own:
                results[side].setdefault(name, []).append(found)
                print(f"round {number + 1} {side} {name}: {json.dumps(found)}", flush=True)
            if arguments.results:
                arguments.results.write_text(json.dumps(results))
    table(results)


if __name__ == "__main__":
    main()
