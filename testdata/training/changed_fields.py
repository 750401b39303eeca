#!/usr/bin/env python3
"""Model folders in which one field is another: this program reads it as transformers does, or refuses the folder.

usage: changed_fields.py --binary target/release/model-garden --work FOLDER [--only WORDS]

Each leaf of the tiny model's JSON files is changed in turn, then fields and files are added that others write. transformers is asked for the tokens, the loss of
a training step in float32 and the answer to a picture; the yardstick is what it says of the folder as it was changed. One line per change; exits 1 if this
program takes a folder and means something else than transformers. Needs the packages of requirements.txt. Some minutes on one core.
"""

import argparse
import copy
import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText, AutoProcessor

from random_checkpoint import TINY

# Relative to the loss; sums in another order differ by 1e-6.
ALLOWED = 2e-5
# Words that begin a text, contractions, digits, line breaks, and an accent in two characters.
QUESTION = "Harbour's sign: 1204  e\u0301tage\n\n What does it say?"
ANSWER = "  I'll  say: <b>Harbour</b>, 12 ."
NEW_TOKENS = 12
# Tokens of pictures and around them, which are only input.
VISION = [1209, 1210, 1211, 1212, 1213]
# Written by transformers, and never read for what is compared here.
NOT_READ = {"transformers_version", "architectures", "processor_class", "image_processor_type", "version"}


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def leaves(value, way=()):
    """The ways to all values that hold no others; lists of numbers count as one value."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*way, key))
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        # One of several alike is enough.
        for place in sorted({0, len(value) - 1}):
            yield from leaves(value[place], (*way, place))
    else:
        yield way, value


def others(value):
    """Values in place of one."""
    match value:
        case bool():
            return [not value]
        case int():
            return [value + 1]
        case float():
            return [value * 2 + 0.125]
        case str():
            return [value + "x"]
        case None:
            return [1]
        case list():
            return [value[:-1], [one + 1 if isinstance(one, (int, float)) else one + "x" for one in value]]
    return []


def put(value, way, new):
    changed = copy.deepcopy(value)
    inside = changed
    for key in way[:-1]:
        inside = inside[key] if isinstance(inside, list) else inside.setdefault(key, {})
    if new is None:
        inside.pop(way[-1], None)
    else:
        inside[way[-1]] = new
    return changed


def rewrite(name, way, new):
    def change(folder):
        path = folder / name
        path.write_text(json.dumps(put(read(path) if path.exists() else {}, way, new), ensure_ascii=False), encoding="utf-8")

    return change


def write(name, value):
    def change(folder):
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        (folder / name).write_text(text, encoding="utf-8")

    return change


def together(*changes):
    def change(folder):
        for one in changes:
            one(folder)

    return change


def without(*names):
    def change(folder):
        for name in names:
            (folder / name).unlink()

    return change


def each_field():
    """Every leaf of the JSON files with another value, and without it."""
    for name in ["config.json", "generation_config.json", "preprocessor_config.json", "tokenizer_config.json", "tokenizer.json"]:
        value = read(TINY / name)
        if name == "tokenizer.json":
            value["model"] = {key: inner for key, inner in value["model"].items() if key not in ("vocab", "merges")}
        for way, old in leaves(value):
            if way[-1] in NOT_READ:
                continue
            words = f"{name}: {'.'.join(map(str, way))}"
            yield f"{words} without", rewrite(name, way, None)
            for new in others(old):
                yield f"{words} = {json.dumps(new)[:60]}", rewrite(name, way, new)


# Fields that are not in the tiny model's files: those of other versions and tools.
ADDED = {
    "config.json": [
        (("attention_dropout",), 0.5), (("text_config", "attention_dropout"), 0.5), (("vision_config", "attention_dropout"), 0.5),
        (("text_config", "head_dim"), 8), (("vision_config", "head_dim"), 8), (("text_config", "rope_scaling"), {"type": "mrope", "mrope_section": [4, 2, 2]}),
        (("text_config", "rope_scaling"), {"type": "mrope", "mrope_section": [2, 3, 3], "rope_theta": 500.0}),
        (("text_config", "rope_theta"), 500.0), (("text_config", "rope_parameters", "partial_rotary_factor"), 0.5), (("text_config", "partial_rotary_factor"), 0.5),
        (("text_config", "rope_parameters", "rope_type"), "linear"), (("text_config", "rope_parameters", "rope_type"), "yarn"), (("text_config", "rope_parameters", "factor"), 4.0),
        (("text_config", "rope_parameters", "rope_type"), "mrope"), (("text_config", "rope_parameters", "type"), "dynamic"),
        (("text_config", "layer_types"), ["full_attention", "sliding_attention"]), (("vision_config", "rope_parameters"), None), (("vision_config", "rope_theta"), 500.0),
        (("vision_config", "in_chans"), 4), (("vision_config", "rms_norm_eps"), 0.5), (("text_config", "attention_bias"), False), (("text_config", "mlp_bias"), True),
        (("text_config", "tie_word_embeddings"), None), (("text_config", "use_mrope"), False), (("hidden_size",), 32), (("rms_norm_eps",), 0.5), (("rope_theta",), 500.0),
        (("pad_token_id",), 1200), (("text_config", "pad_token_id"), 1200), (("eos_token_id",), 5), (("quantization_config",), {"quant_method": "bitsandbytes", "load_in_8bit": True}),
        (("transformers_weights",), "other.safetensors"), (("text_config", "logit_scale"), 2.0), (("text_config", "final_logit_softcapping"), 1.0), (("text_config", "embedding_multiplier"), 2.0),
        (("model_type",), "qwen2_vl"), (("vision_config", "model_type"), "qwen2_5_vl"), (("vision_config", "fullatt_block_indexes"), []), (("output_hidden_states",), True), (("auto_map",), {"AutoConfig": "a.B"}),
        (("text_config", "dtype"), "float16"), (("torch_dtype",), "float32"), (("chunk_size_feed_forward",), 4), (("is_decoder",), True), (("text_config", "sliding_window"), 4),
        (("attn_implementation",), "eager"), (("pruned_heads",), {"0": [1]}), (("num_labels",), 3), (("vision_config", "spatial_patch_size"), 7), (("bos_token_id",), 3), (("return_dict",), False),
    ],
    "generation_config.json": [
        (("repetition_penalty",), 3.0), (("temperature",), 0.5), (("top_k",), 1), (("top_p",), 0.5), (("do_sample",), True), (("num_beams",), 3), (("no_repeat_ngram_size",), 1), (("min_new_tokens",), 9),
        (("min_length",), 200), (("suppress_tokens",), list(range(600))), (("begin_suppress_tokens",), list(range(600))), (("bad_words_ids",), [[token] for token in range(600)]), (("forced_eos_token_id",), 5), (("max_new_tokens",), 2),
        (("max_length",), 20), (("stop_strings",), "a"), (("exponential_decay_length_penalty",), [1, 1.5]), (("guidance_scale",), 3.0), (("encoder_repetition_penalty",), 3.0), (("sequence_bias",), [[[5], 50.0]]),
        (("min_p",), 0.9), (("penalty_alpha",), 0.6), (("eos_token_id",), list(range(600))), (("forced_bos_token_id",), 5), (("renormalize_logits",), True), (("use_cache",), False),
    ],
    "tokenizer_config.json": [
        (("add_prefix_space",), True), (("add_bos_token",), True), (("bos_token",), "<|im_start|>"), (("add_eos_token",), True), (("split_special_tokens",), True), (("do_lower_case",), True),
        (("tokenizer_class",), "PreTrainedTokenizerFast"), (("tokenizer_class",), "TokenizersBackend"), (("tokenizer_class",), "LlamaTokenizerFast"), (("tokenizer_class",), "Qwen2TokenizerFast"), (("tokenizer_class",), "GPT2Tokenizer"),
        (("unk_token",), "<|im_end|>"), (("extra_special_tokens",), ["sign", "<b>"]), (("extra_special_tokens",), {"image_token": "<|video_pad|>"}), (("additional_special_tokens",), ["sign"]), (("image_token",), "<|video_pad|>"),
        (("added_tokens_decoder",), {"1224": {"content": "sign", "lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True}}),
        (("added_tokens_decoder",), {"1201": {"content": "<|im_start|>", "lstrip": True, "rstrip": True, "normalized": False, "single_word": False, "special": True}}),
        (("chat_template",), "{{ messages }}"), (("legacy",), True), (("trim_offsets",), False), (("use_regex",), True), (("normalizer",), "NFD"), (("padding_side",), "left"), (("truncation_side",), "left"), (("max_length",), 5),
        (("fix_mistral_regex",), True), (("clean_up_tokenization_spaces",), True), (("pad_token",), "<|im_end|>"), (("eos_token",), "<|endoftext|>"), (("from_slow",), True), (("truncation",), True), (("eos_token",), "Harbour"), (("vocab_size",), 5),
    ],
    "tokenizer.json": [
        (("truncation",), {"direction": "Right", "max_length": 9, "strategy": "LongestFirst", "stride": 0}),
        (("padding",), {"strategy": {"Fixed": 90}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 1200, "pad_type_id": 0, "pad_token": "<|endoftext|>"}),
        (("post_processor",), {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|im_end|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": {"<|im_end|>": {"id": "<|im_end|>", "ids": [1202], "tokens": ["<|im_end|>"]}}}),
        (("normalizer",), {"type": "NFKC"}), (("normalizer",), {"type": "Sequence", "normalizers": [{"type": "NFC"}]}), (("model", "ignore_merges"), True), (("model", "dropout"), 0.5), (("model", "byte_fallback"), True), (("model", "unk_token"), "<|endoftext|>"), (("model", "end_of_word_suffix"), "</w>"),
        (("decoder",), {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}), (("added_tokens",), []),
    ],
    "preprocessor_config.json": [
        (("size",), {"shortest_edge": 6272, "longest_edge": 9408}), (("size",), {"min_pixels": 6272, "max_pixels": 9408}), (("size",), {"height": 56, "width": 56}), (("size", "longest_edge"), 9408), (("crop_size",), {"height": 28, "width": 28}), (("do_center_crop",), True),
        (("do_resize",), False), (("do_rescale",), False), (("do_normalize",), False), (("do_convert_rgb",), False), (("resample",), 2), (("resample",), 0), (("resample",), 1), (("resample",), "bicubic"), (("rescale_factor",), 0.5), (("do_pad",), True), (("image_mean",), 0.5), (("image_std",), 0.5), (("data_format",), "channels_last"), (("input_data_format",), "channels_last"),
        (("image_processor_type",), "Qwen2VLImageProcessorFast"), (("image_processor_type",), "CLIPImageProcessor"), (("image_processor_type",), "Qwen2VLImageProcessorPil"), (("processor_class",), "Qwen2VLProcessor"), (("default_to_square",), True), (("pad_size",), {"height": 200, "width": 200}), (("device",), "meta"), (("size_divisor",), 32), (("images_kwargs",), {"max_pixels": 6272}), (("image_processor",), {"max_pixels": 6272}), (("return_tensors",), "np"), (("feature_extractor_type",), "Qwen2VLImageProcessor"),
    ],
    "processor_config.json": [
        (("image_processor",), {"image_processor_type": "Qwen2VLImageProcessor", "size": {"shortest_edge": 3136, "longest_edge": 6272}}), (("image_processor",), {"max_pixels": 6272}), (("image_processor", "image_mean"), [0.5, 0.5, 0.5]), (("max_pixels",), 6272), (("processor_class",), "Qwen2_5_VLProcessor"), (("image_token",), "<|video_pad|>"),
        (("images_kwargs",), {"max_pixels": 6272}), (("images_kwargs",), {"size": {"shortest_edge": 3136, "longest_edge": 6272}}), (("text_kwargs",), {"add_special_tokens": True}), (("chat_template",), "{{ messages }}"), (("tokenizer",), {"add_prefix_space": True}), (("image_processor",), None), (("common_kwargs",), {"do_resize": False}), (("image_seq_length",), 4), (("image_processor", "do_resize"), False), (("image_processor", "merge_size"), 4),
    ],
    "special_tokens_map.json": [(("eos_token",), "<|endoftext|>"), (("eos_token",), "Harbour"), (("additional_special_tokens",), ["sign"]), (("image_token",), "<|video_pad|>")],
    "added_tokens.json": [(("sign",), 1225)],
    "video_preprocessor_config.json": [(("max_pixels",), 6272)],
}


def stored_head(scale):
    def change(folder):
        tensors = load_file(folder / "model.safetensors")
        name = next(name for name in tensors if name.endswith("embed_tokens.weight"))
        tensors["lm_head.weight"] = tensors[name] * scale
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return change


def shards_beside(folder):
    """A single file whose index names two shards with other values."""
    tensors = load_file(folder / "model.safetensors")
    names, other = sorted(tensors), {}
    for number, part in enumerate([names[::2], names[1::2]], 1):
        file = f"model-{number:05}-of-00002.safetensors"
        save_file({name: tensors[name] * 1.25 for name in part}, folder / file, metadata={"format": "pt"})
        other |= {name: file for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": other}))


def flat(folder):
    """The configuration as the hub has it: the decoder's fields at the top."""
    config = read(folder / "config.json")
    text = config.pop("text_config")
    rope = text.pop("rope_parameters")
    config |= {key: value for key, value in text.items() if key not in ("model_type", "layer_types")}
    config |= {"model_type": "qwen2_5_vl", "rope_theta": rope["rope_theta"], "rope_scaling": {"type": "mrope", "mrope_section": rope["mrope_section"]}}
    (folder / "config.json").write_text(json.dumps(config))


def saved_again(folder):
    """All files as transformers writes them."""
    processor, model = AutoProcessor.from_pretrained(folder), AutoModelForImageTextToText.from_pretrained(folder)
    for name in ["preprocessor_config.json", "tokenizer_config.json", "tokenizer.json", "config.json", "chat_template.jinja", "model.safetensors", "generation_config.json"]:
        (folder / name).unlink()
    processor.save_pretrained(folder)
    model.save_pretrained(folder)


def adapter_beside(folder):
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32), LoraConfig(r=4, target_modules=["q_proj"]))
    torch.manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)


TEMPLATE = "{% for message in messages %}{{ message['role'] }}|{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}assistant|{% endif %}"
WHOLE = {
    "a stored head that equals the embedding": stored_head(1.0),
    "a stored head of its own": stored_head(1.5),
    "a stored head of its own, tied by the decoder alone": together(stored_head(1.5), rewrite("config.json", ("tie_word_embeddings",), None)),
    "a stored head of its own, tied by nothing": together(stored_head(1.5), rewrite("config.json", ("tie_word_embeddings",), False), rewrite("config.json", ("text_config", "tie_word_embeddings"), False)),
    "a single file beside an index": shards_beside,
    "a flat configuration": flat,
    "a flat configuration, untied above": together(flat, rewrite("config.json", ("tie_word_embeddings",), False)),
    "a flat configuration with dropout": together(flat, rewrite("config.json", ("attention_dropout",), 0.5)),
    "saved again by transformers": saved_again,
    "saved again, with an older preprocessor_config.json beside": together(saved_again, write("preprocessor_config.json", {**read(TINY / "preprocessor_config.json"), "max_pixels": 6272})),
    "an adapter beside the model": adapter_beside,
    "chat_template.json beside chat_template.jinja": write("chat_template.json", {"chat_template": TEMPLATE}),
    "chat_template.json": together(without("chat_template.jinja"), write("chat_template.json", {"chat_template": TEMPLATE})),
    "chat_template.json, and another in tokenizer_config.json": together(without("chat_template.jinja"), write("chat_template.json", {"chat_template": TEMPLATE}), rewrite("tokenizer_config.json", ("chat_template",), "{{ messages }}")),
    "a template in tokenizer_config.json": together(without("chat_template.jinja"), rewrite("tokenizer_config.json", ("chat_template",), TEMPLATE)),
    "several templates in tokenizer_config.json": together(without("chat_template.jinja"), rewrite("tokenizer_config.json", ("chat_template",), [{"name": "tool_use", "template": "{{ messages }}"}, {"name": "default", "template": TEMPLATE}])),
    "a template in processor_config.json": together(without("chat_template.jinja"), write("processor_config.json", {"chat_template": TEMPLATE, "processor_class": "Qwen2_5_VLProcessor"})),
    "additional_chat_templates": lambda folder: ((folder / "additional_chat_templates").mkdir(), (folder / "additional_chat_templates" / "rag.jinja").write_text("{{ messages }}")),
    "a template that uses bos_token": together(write("chat_template.jinja", "{{ bos_token }}" + TEMPLATE), rewrite("tokenizer_config.json", ("bos_token",), "<|im_start|>")),
    "a template that uses eos_token": write("chat_template.jinja", TEMPLATE + "{{ eos_token }}"),
    "a template that uses eos_token of special_tokens_map.json": together(write("chat_template.jinja", TEMPLATE + "{{ eos_token }}"), write("special_tokens_map.json", {"eos_token": "<|endoftext|>"})),
    "a template that uses unk_token": write("chat_template.jinja", TEMPLATE + "{{ unk_token }}"),
    "a template that uses pad_token, which is missing": together(write("chat_template.jinja", TEMPLATE + "{{ pad_token }}"), rewrite("tokenizer_config.json", ("pad_token",), None)),
    "a template that uses eos_token, which is missing": together(write("chat_template.jinja", TEMPLATE + "{{ eos_token }}"), rewrite("tokenizer_config.json", ("eos_token",), None)),
    "no tokenizer_config.json": without("tokenizer_config.json"),
    "no generation_config.json": without("generation_config.json"),
    "no generation_config.json, end tokens in config.json": together(without("generation_config.json"), rewrite("config.json", ("eos_token_id",), list(range(600)))),
    "no generation_config.json, end tokens in the decoder's": together(without("generation_config.json"), rewrite("config.json", ("text_config", "eos_token_id"), list(range(600)))),
    "end tokens in config.json, and none in generation_config.json": together(rewrite("generation_config.json", ("eos_token_id",), None), rewrite("config.json", ("eos_token_id",), list(range(600)))),
    "vision rotary base beside, not inside": together(rewrite("config.json", ("vision_config", "rope_parameters"), None), rewrite("config.json", ("vision_config", "rope_theta"), 500.0)),
    "fewer layers than stored": together(rewrite("config.json", ("text_config", "num_hidden_layers"), 1), rewrite("config.json", ("text_config", "layer_types"), None)),
    "NF4 in config.json alone": rewrite("config.json", ("quantization_config",), {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": "float32"}),
    "an image processor of nothing in processor_config.json": write("processor_config.json", {"image_processor": None, "processor_class": "Qwen2_5_VLProcessor"}),
    "no preprocessor_config.json": without("preprocessor_config.json"),
    "only a processor_config.json": together(without("preprocessor_config.json"), write("processor_config.json", {"image_processor": {"image_processor_type": "Qwen2VLImageProcessor", "size": {"shortest_edge": 3136, "longest_edge": 6272}}, "processor_class": "Qwen2_5_VLProcessor"})),
    "only a processor_config.json without pictures": together(without("preprocessor_config.json"), write("processor_config.json", {"processor_class": "Qwen2_5_VLProcessor"})),
    "bounds on pixels in size and beside it": write("preprocessor_config.json", {"size": {"shortest_edge": 3136, "longest_edge": 9408}, "max_pixels": 6272, "image_processor_type": "Qwen2VLImageProcessor"}),
    "bounds on pixels in size alone": write("preprocessor_config.json", {"size": {"shortest_edge": 3136, "longest_edge": 9408}, "image_processor_type": "Qwen2VLImageProcessor"}),
    "half of the bounds on pixels in size": write("preprocessor_config.json", {"size": {"longest_edge": 9408}, "image_processor_type": "Qwen2VLImageProcessor"}),
    "older names in size": write("preprocessor_config.json", {"size": {"min_pixels": 3136, "max_pixels": 9408}, "image_processor_type": "Qwen2VLImageProcessor"}),
}


def changes():
    yield "as it is", lambda folder: None
    yield from each_field()
    for name, fields in ADDED.items():
        for way, new in fields:
            yield f"{name}: {'.'.join(map(str, way))} := {json.dumps(new, ensure_ascii=False)[:70]}", rewrite(name, way, new)
    yield from WHOLE.items()


def conversation(with_answer):
    user = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": QUESTION}]}
    answer = {"role": "assistant", "content": [{"type": "text", "text": ANSWER}]}
    return [user, answer] if with_answer else [user]


def inputs(processor, with_answer):
    text = processor.apply_chat_template(conversation(with_answer), tokenize=False, add_generation_prompt=not with_answer)
    return processor(text=[text], images=[Image.open(TINY / "harbour.jpg").convert("RGB")], return_tensors="pt")


def theirs(folder):
    """The loss of a step on all tokens, in training, and the answer."""
    torch.manual_seed(1)
    processor = AutoProcessor.from_pretrained(folder)
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    batch = inputs(processor, with_answer=True)
    labels = batch["input_ids"].clone()
    labels[torch.isin(labels, torch.tensor(VISION))] = -100
    model.train()
    with torch.no_grad():
        loss = model(**batch, labels=labels).loss.item()
    model.eval()
    prompt = inputs(processor, with_answer=False)
    with torch.no_grad():
        answer = model.generate(**prompt, max_new_tokens=NEW_TOKENS)
    return loss, processor.decode(answer[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)


class Ours:
    def __init__(self, binary, work):
        self.binary, self.work = binary, work
        row = {"messages": conversation(with_answer=True), "images": [str(TINY.resolve() / "harbour.jpg")]}
        (work / "rows.jsonl").write_text(json.dumps(row) + "\n")

    def run(self, *words):
        return subprocess.run([self.binary, *map(str, words), "--device", "cpu", "--threads", "1"], capture_output=True, text=True)

    def loss(self, folder):
        """The loss of the same step, or the refusal."""
        to = self.work / "out"
        shutil.rmtree(to, ignore_errors=True)
        done = self.run(
            "train-vision", "--model", folder, "--dataset", self.work / "rows.jsonl", "--output-dir", to, "--full", "--labels", "all", "--max-steps", "1", "--learning-rate", "0", "--batch-size", "1",
            "--gradient-accumulation", "1", "--logging-steps", "1", "--save-steps", "1",
        )
        log = to / "log.jsonl"
        lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        losses = [line["loss"] for line in lines if "loss" in line]
        # A learning rate of 0 changes nothing, which is bad news.
        return (losses[0], "") if losses and done.returncode in (0, 1) else (None, done.stderr)

    def answer(self, folder):
        """The answer, or the refusal; and what is said beside it."""
        done = self.run("generate", "--model", folder, "--image", TINY / "harbour.jpg", "--prompt", QUESTION, "--max-new-tokens", NEW_TOKENS, "--format", "json")
        return json.loads(done.stdout)["answers"][0]["text"] if done.returncode == 0 else None, done.stderr


def compare(folder, ours):
    """Whether this program means what transformers means, and words about it."""
    try:
        wanted = theirs(folder)
    except Exception as error:  # whatever it is: transformers does not take the folder
        wanted, why = None, f"{type(error).__name__}"
    loss, refusal = ours.loss(folder)
    answer, said = ours.answer(folder)
    told = next((line.strip() for line in (refusal or said).splitlines() if "caused by" in line), "").removeprefix("caused by: ").replace(str(folder), "")
    if wanted is None:
        return True, f"transformers refuses it ({why}); " + (f"refused: {told}" if loss is None or answer is None else "read here")
    problems = []
    if loss is not None and not abs(loss - wanted[0]) <= ALLOWED * abs(wanted[0]):
        problems.append(f"loss {loss:.6f} instead of {wanted[0]:.6f}")
    # What generation_config.json asks for is told, not applied.
    if answer is not None and answer != wanted[1] and "generation_config.json asks for" not in said:
        problems.append(f"answer {answer!r} instead of {wanted[1]!r}")
    if loss is None and not told:
        problems.append(f"no reason: {refusal}")
    way = [word for word, value in [("training", loss), ("answers", answer)] if value is None]
    good = f"{' and '.join(way)} refused: {told}" if way else ("told: not applied" if "asks for" in said else "the same")
    return not problems, "; ".join(problems) or good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="a folder for changed models and runs")
    parser.add_argument("--only", default="", help="only changes whose words have this in them")
    arguments = parser.parse_args()
    work = arguments.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    ours = Ours(arguments.binary.resolve(), work)
    warnings.simplefilter("ignore")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    failed, count = [], 0
    for name, change in changes():
        if arguments.only not in name and name != "as it is":
            continue
        folder = work / "model"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(TINY, folder)
        change(folder)
        is_good, words = compare(folder, ours)
        failed.extend([] if is_good else [name])
        count += 1
        print(f"{'' if is_good else 'DIFFERS: '}{name}: {words}", flush=True)
    print(f"{len(failed)} of {count} changed models mean something else here than in transformers" if failed else f"{count} changed models mean what they mean in transformers, or are refused")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
