#!/usr/bin/env python3
"""Makes a complete model folder that is small: tokenizer, chat template, image processor, random bfloat16 weights.

usage: tiny_model.py --out FOLDER [--first-seed 0]

In the folder, expected.json says what transformers answers (AutoProcessor and greedy generate, computed in float32) to three
prompts. Seeds are tried until no token of an answer was a close choice and the image matters to it, so that images which differ in the last bits, or
another order of sums, still give the same answer.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
import transformers
import trl
from PIL import Image
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoProcessor, GenerationConfig, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from pictures import photograph
from texts import corpus

ORDINARY_TOKENS = 1200
NEW_TOKENS = 20
# The best logit leads by this much at every step.
SMALLEST_GAP = 5e-2
DIFFERENT_TOKENS = 10
# As in the released models, in this order behind the ordinary tokens; the last four are not special there.
SPECIAL_TOKENS = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>", "<|box_end|>",
    "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>",
]
OTHER_ADDED_TOKENS = [
    "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>",
]
PROMPTS = [
    {"image": "harbour.jpg", "text": "How many boats are in the picture?"},
    {"image": "sign.png", "text": "Was steht auf dem Schild? 请描述这张图片。"},
    {"image": None, "text": "Name three colours."},
]


def make_tokenizer(folder):
    tokenizer = Tokenizer(models.BPE(dropout=None, unk_token=None, continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False, byte_fallback=False))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    trainer = trainers.BpeTrainer(vocab_size=ORDINARY_TOKENS, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False)
    tokenizer.train_from_iterator(corpus(), trainer)
    assert tokenizer.get_vocab_size() == ORDINARY_TOKENS, tokenizer.get_vocab_size()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in OTHER_ADDED_TOKENS])
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", {
        "add_bos_token": False, "add_prefix_space": False, "bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
        "unk_token": None, "errors": "replace", "clean_up_tokenization_spaces": False, "model_max_length": 1024, "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
    })
    return tokenizer


def make_processor(folder):
    (folder / "chat_template.jinja").write_text((Path(trl.__file__).parent / "chat_templates/qwen2_5_vl.jinja").read_text())
    write_json(folder / "preprocessor_config.json", {
        "min_pixels": 56 * 56, "max_pixels": 28 * 28 * 16, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2,
        "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711],
        "image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2_5_VLProcessor",
    })


def make_config(tokenizer):
    token = tokenizer.token_to_id
    return Qwen2_5_VLConfig(
        text_config=dict(
            vocab_size=-(-tokenizer.get_vocab_size() // 16) * 16, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, rms_norm_eps=1e-6, max_position_embeddings=1024, max_window_layers=2, tie_word_embeddings=True,
            rope_parameters=dict(rope_type="default", rope_theta=1e6, mrope_section=[2, 3, 3]),
            bos_token_id=token("<|endoftext|>"), eos_token_id=token("<|im_end|>"), pad_token_id=None,
        ),
        vision_config=dict(
            depth=2, hidden_size=32, intermediate_size=48, num_heads=2, patch_size=14, window_size=112, fullatt_block_indexes=[1], out_hidden_size=64,
            tokens_per_second=2,
        ),
        image_token_id=token("<|image_pad|>"), video_token_id=token("<|video_pad|>"), vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"), tie_word_embeddings=True,
    )


def make_model(config, seed):
    """Weights of a size at which tokens matter: with the usual 0.02 every answer would be the same."""
    model = Qwen2_5_VLForConditionalGeneration(config)
    numbers = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            values = torch.randn(weight.shape, generator=numbers)
            if weight.dim() == 1:
                weight.copy_(1 + 0.1 * values if "norm" in name or "ln_q" in name else 0.1 * values)
            elif "embed_tokens" in name:
                weight.copy_(0.5 * values)
            else:
                weight.copy_(1.4 * values / weight[0].numel() ** 0.5)
    return model.to(torch.bfloat16)


def answer(model, processor, folder, prompt, turned=False):
    image = Image.open(folder / prompt["image"]).convert("RGB") if prompt["image"] else None
    image = image.rotate(180) if image and turned else image
    content = ([{"type": "image"}] if image else []) + [{"type": "text", "text": prompt["text"]}]
    text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False)
    inputs = processor(text=[text], images=[image] if image else None, return_tensors="pt")
    settings = GenerationConfig(do_sample=False, max_new_tokens=NEW_TOKENS, eos_token_id=model.generation_config.eos_token_id, pad_token_id=processor.tokenizer.pad_token_id)
    with torch.no_grad():
        output = model.generate(**inputs, generation_config=settings, output_logits=True, return_dict_in_generate=True)
    tokens = output.sequences[0, inputs["input_ids"].shape[1]:].tolist()
    best = torch.stack(output.logits)[:, 0].topk(2).values
    return {
        **prompt,
        "rendered": text,
        "prompt_tokens": inputs["input_ids"][0].tolist(),
        "grids": inputs["image_grid_thw"].tolist() if image else [],
        "answer_tokens": tokens,
        "answer": processor.tokenizer.decode(tokens, skip_special_tokens=True),
        "smallest_gap": round((best[:, 0] - best[:, 1]).min().item(), 4),
    }


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, required=True)
    arguments.add_argument("--first-seed", type=int, default=0)
    arguments = arguments.parse_args()
    folder = arguments.out
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    tokenizer = make_tokenizer(folder)
    make_processor(folder)
    Image.fromarray(photograph(117, 171, seed=11)).save(folder / "harbour.jpg", quality=85)
    Image.fromarray(photograph(61, 90, seed=12)[..., :3] // 32 * 32).save(folder / "sign.png")
    config = make_config(tokenizer)
    for seed in range(arguments.first_seed, arguments.first_seed + 1000):
        make_model(config, seed).save_pretrained(folder)
        write_json(folder / "generation_config.json", {
            "bos_token_id": config.text_config.bos_token_id, "eos_token_id": [config.text_config.eos_token_id, config.text_config.bos_token_id],
            "pad_token_id": config.text_config.bos_token_id, "do_sample": False, "transformers_version": transformers.__version__,
        })
        model = Qwen2_5_VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
        processor = AutoProcessor.from_pretrained(folder)
        answers = [answer(model, processor, folder, prompt) for prompt in PROMPTS]
        good = [one["smallest_gap"] > SMALLEST_GAP and len(set(one["answer_tokens"])) >= DIFFERENT_TOKENS and len(one["answer_tokens"]) == NEW_TOKENS for one in answers]
        seen = [not one["image"] or answer(model, processor, folder, prompt, turned=True)["answer_tokens"] != one["answer_tokens"] for one, prompt in zip(answers, PROMPTS)]
        print(seed, [(one["smallest_gap"], len(set(one["answer_tokens"]))) for one in answers], flush=True)
        if all(good) and all(seen) and len({tuple(one["answer_tokens"]) for one in answers}) == len(answers):
            made_with = {"transformers": transformers.__version__, "torch": torch.__version__, "seed": seed, "new_tokens": NEW_TOKENS, "computed_in": "float32"}
            (folder / "model.safetensors").chmod(0o644)
            write_json(folder / "expected.json", {"made_with": made_with, "answers": answers})
            return
    raise SystemExit("no seed gave answers that are far from ties")


if __name__ == "__main__":
    main()
