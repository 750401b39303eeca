#!/usr/bin/env python3
"""Makes the folder of the demo's base but for its weights: tokenizer, chat template, configuration.

usage: make_demo_base texts | demo_base.py --out FOLDER

The tokenizer is a small byte-level BPE made of the texts that the base is taught, so that each of their words is one token. Special tokens and
template are those of the released models (from testdata/tiny-model).
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

TINY = Path(__file__).parent.parent / "tiny-model"
# More than there will be: merges end when every word of the texts is one token.
MOST_TOKENS = 2000
SPECIAL_TOKENS = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>", "<|box_end|>",
    "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>",
]
LAYERS, HIDDEN, HEADS = 3, 128, 4
VISION_LAYERS, VISION_HIDDEN, VISION_HEADS = 3, 96, 3


def make_tokenizer(texts):
    tokenizer = Tokenizer(models.BPE(dropout=None, unk_token=None, continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False, byte_fallback=False))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    trainer = trainers.BpeTrainer(vocab_size=MOST_TOKENS, min_frequency=2, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL_TOKENS])
    return tokenizer


def config(tokenizer):
    token = tokenizer.token_to_id
    text = {
        "model_type": "qwen2_5_vl_text", "vocab_size": -(-tokenizer.get_vocab_size() // 16) * 16, "hidden_size": HIDDEN, "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": HEADS // 2, "layer_types": ["full_attention"] * LAYERS,
        "hidden_act": "silu", "rms_norm_eps": 1e-6, "initializer_range": 0.02, "attention_dropout": 0.0, "max_position_embeddings": 1024,
        "max_window_layers": LAYERS, "use_sliding_window": False, "sliding_window": None, "use_cache": True, "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]},
        "bos_token_id": token("<|endoftext|>"), "eos_token_id": token("<|im_end|>"), "pad_token_id": None,
    }
    vision = {
        "model_type": "qwen2_5_vl_vision", "depth": VISION_LAYERS, "fullatt_block_indexes": [VISION_LAYERS - 1], "hidden_size": VISION_HIDDEN,
        "intermediate_size": 2 * VISION_HIDDEN, "num_heads": VISION_HEADS, "out_hidden_size": HIDDEN, "hidden_act": "silu", "in_channels": 3,
        "initializer_range": 0.02, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2, "tokens_per_second": 2, "window_size": 112,
        "rope_parameters": {"rope_type": "axial", "rope_theta": 10000.0},
    }
    return {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl", "dtype": "bfloat16", "tie_word_embeddings": True,
        "image_token_id": token("<|image_pad|>"), "video_token_id": token("<|video_pad|>"), "vision_start_token_id": token("<|vision_start|>"),
        "vision_end_token_id": token("<|vision_end|>"), "text_config": text, "vision_config": vision,
    }


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1) + "\n")


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, required=True)
    folder = arguments.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer(sys.stdin.read().splitlines())
    tokenizer.save(str(folder / "tokenizer.json"))
    for name in ["chat_template.jinja", "tokenizer_config.json", "preprocessor_config.json"]:
        shutil.copyfile(TINY / name, folder / name)
    write_json(folder / "config.json", config(tokenizer))
    ends = [tokenizer.token_to_id(token) for token in ["<|im_end|>", "<|endoftext|>"]]
    write_json(folder / "generation_config.json", {"bos_token_id": ends[1], "eos_token_id": ends, "pad_token_id": ends[1], "do_sample": False})


if __name__ == "__main__":
    main()
