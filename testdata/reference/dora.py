#!/usr/bin/env python3
"""Records a DoRA adapter of peft on a recorded tiny model: what the model says with it, and the weights that peft merges.

usage: dora.py --out FOLDER

The base is that of the case decoder_lora. All of the adapter's tensors are drawn, its lengths too, and ranks and scales differ between modules. Writes
adapter/, and dora.safetensors with `prompt` (tokens), `logits` of its last token, `answer` (greedy tokens), and the merged weights.
"""

import argparse
import json
from pathlib import Path

import torch
import transformers
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import Qwen2_5_VLForConditionalGeneration

BASE = Path(__file__).parent / "recorded" / "decoder_lora"
SETTINGS = dict(r=3, lora_alpha=5, use_dora=True, use_rslora=True, target_modules=["q_proj", "v_proj", "down_proj"], rank_pattern={"q_proj": 2}, alpha_pattern={"down_proj": 2})
PROMPT = [21, 48, 90, 33, 75, 102, 64]
NEW_TOKENS = 6
# The best logit leads by this much at every step, or float32 engines may differ for good.
SMALLEST_GAP = 1e-3


def base():
    return Qwen2_5_VLForConditionalGeneration.from_pretrained(BASE, dtype=torch.float32, attn_implementation="eager").eval()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(35)
    transformers.logging.disable_progress_bar()
    model = get_peft_model(base(), LoraConfig(**SETTINGS)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_magnitude_vector" in name:
                parameter.mul_(torch.rand_like(parameter) + 0.5)
            elif "lora_" in name:
                parameter.copy_(torch.randn_like(parameter) * 0.3)
        tokens, first = list(PROMPT), None
        for _ in range(NEW_TOKENS):
            logits = model(input_ids=torch.tensor([tokens])).logits[0, -1]
            first = logits if first is None else first
            best = logits.topk(2)
            if best.values[0] - best.values[1] < SMALLEST_GAP:
                raise SystemExit("error: two tokens are nearly equal: draw another adapter")
            tokens.append(int(best.indices[0]))
        plain = base()(input_ids=torch.tensor([PROMPT])).logits[0, -1]
    if (first - plain).abs().max() < 0.1 * plain.abs().max():
        raise SystemExit("error: the adapter changes too little")
    arguments.out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(arguments.out / "adapter")
    (arguments.out / "adapter" / "README.md").unlink(missing_ok=True)
    path = arguments.out / "adapter" / "adapter_config.json"
    config = json.loads(path.read_text())
    config.update(base_model_name_or_path=None, target_modules=sorted(config["target_modules"]))
    path.write_text(json.dumps(config, indent=2) + "\n")
    before = base().state_dict()
    merged = {name: value for name, value in model.merge_and_unload().state_dict().items() if not value.equal(before[name])}
    recorded = {"prompt": torch.tensor(PROMPT), "logits": first, "answer": torch.tensor(tokens[len(PROMPT) :])}
    save_file({**recorded, **{name: value.contiguous() for name, value in merged.items()}}, arguments.out / "dora.safetensors")
    print(f"{len(merged)} weights, answer {tokens[len(PROMPT):]}")


if __name__ == "__main__":
    main()
