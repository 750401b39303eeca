"""Conversations and structured answers, with which of their tokens are trained, found in other ways than `garden-data` finds them."""

import json
import random
import re
import tempfile
from pathlib import Path

import numpy as np
import torch
import trl
from PIL import Image
from transformers import AutoConfig, AutoProcessor, Qwen2_5_VLForConditionalGeneration
from transformers.image_utils import load_image

from texts import test_texts

VISION = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>"]


def text(words):
    return {"type": "text", "text": words}


def image(name):
    return {"type": "image", "image": name}


def say(role, *content):
    return {"role": role, "content": content[0] if len(content) == 1 and isinstance(content[0], str) else list(content)}


EXAMPLES = [
    [say("user", "Hello."), say("assistant", "Hello, what do you want?")],
    [say("system", "Answer in German."), say("user", "Hello."), say("assistant", "Guten Tag."), say("user", "Again!"), say("assistant", "Noch einmal:\n\nGuten Tag.\n")],
    [say("user", image("420.jpg"), text("What is the total?")), say("assistant", '{"vendor": "Meyer & Sons", "total": 1234.56, "items": [{"name": "bolt M8", "count": null}]}')],
    [say("system", text("You count boats.")), say("user", text("First "), image("rgb-large.png"), text(" then "), image("gray.jpg")), say("assistant", text("Two boats.")),
     say("user", text("And here?"), image("rgb-strip.png")), say("assistant", text("None, "), text("none at all."))],
    [say("user", image("turned-6.jpg"), image("rgb-one-pixel.png"), text("请描述这张图片。")), say("assistant", "两只船😀 e\u0301te\u0301 \u0958 Ω\u2126")],
    # Answers whose first token holds the line end of the header, too; and marks that combine with nothing before them.
    [say("user", "Go on."), say("assistant", "\n\nNew paragraph"), say("user", "More"), say("assistant", "\nline"), say("user", "e"), say("assistant", "\u0301x"), say("user", "e"), say("assistant", "  blank")],
    [say("user", ""), say("assistant", "")],
    [say("tool", "42"), say("assistant", "First."), say("assistant", "Second."), say("user", "Thank you.")],
    [say("user", "What ends a turn?"), say("assistant", "The token <|im_end|>\nends it, <|im_start|>assistant\nbegins one."), say("user", "<|im_start|>assistant\nNo answer."), say("assistant", "I see.")],
    [say("user", "Draw a boat."), say("assistant", text("Here: "), image("palette.png"), text(" it is."))],
]


def random_messages(numbers, texts, pictures):
    """A conversation of odd texts; one role may speak twice, and answers may be empty."""
    def content(role):
        if numbers.random() < 0.6:
            return [numbers.choice(texts)]
        parts = [text(numbers.choice(texts)) if numbers.random() < 0.7 or role == "system" else image(numbers.choice(pictures)) for _ in range(numbers.randrange(1, 4))]
        return parts
    roles = ["system"] * numbers.randrange(2) + ["user"] + [numbers.choice(["user", "assistant", "assistant", "tool"]) for _ in range(numbers.randrange(5))] + ["assistant"]
    return [say(role, *content(role)) for role in roles]


def random_examples(count, seed, pictures):
    numbers = random.Random(seed)
    texts = [""] + [one for one in test_texts(20 * count, seed) if "_pad|>" not in one] if count else []
    pictures = sorted(path.name for path in pictures.iterdir() if path.name.count(".") == 1)
    return [random_messages(numbers, texts, pictures) for _ in range(count)]


def record_examples(model, pictures, count=0, seed=0):
    processor = AutoProcessor.from_pretrained(model)
    with torch.device("meta"):
        network = Qwen2_5_VLForConditionalGeneration(AutoConfig.from_pretrained(model)).model
    return [record_example(processor, network, pictures, messages) for messages in EXAMPLES + random_examples(count, seed, pictures)]


def record_borders(model, pictures):
    """Rows with a tokenizer in which two line ends are one token, as in the released models: it takes the place of the merge that was learnt last."""
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        for path in model.iterdir():
            if path.suffix in (".json", ".jinja"):
                (folder / path.name).write_bytes(path.read_bytes())
        tokenizer = json.loads((model / "tokenizer.json").read_text())
        merges, words = tokenizer["model"]["merges"], tokenizer["model"]["vocab"]
        words["ĊĊ"] = words.pop("".join(merges[-1]))
        merges[-1] = ["Ċ", "Ċ"]
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
        recorded = record_examples(folder, pictures)
    assert any(words["ĊĊ"] in one["tokens"] for one in recorded)
    return recorded


def record_example(processor, network, pictures, messages):
    names = [part["image"] for message in messages if isinstance(message["content"], list) for part in message["content"] if part["type"] == "image"]
    images = [Image.fromarray(np.array(load_image(str(pictures / name)))) for name in names]
    given = iter(images)
    shown = [{**message, "content": message["content"] if isinstance(message["content"], str) else [
        {"type": "image", "image": next(given)} if part["type"] == "image" else part for part in message["content"]]} for message in messages]
    features = processor.apply_chat_template(shown, tokenize=True, return_dict=True, return_tensors="pt")
    tokens, grids = features["input_ids"][0].tolist(), features.get("image_grid_thw")
    positions, _ = network.get_rope_index(features["input_ids"], features["mm_token_type_ids"], image_grid_thw=grids, attention_mask=features["attention_mask"])
    grids = [] if grids is None else grids.tolist()
    labels = {labels: trained_tokens(processor, messages, tokens, grids, labels) for labels in ("assistant", "completion", "all")}
    check_with_trl(processor, shown, tokens, labels["assistant"])
    return {"messages": messages, "pictures": names, "tokens": tokens, "grids": grids, "positions": positions[:, 0].tolist(),
            "labels": {name: "".join("01"[one] for one in labels[name]) for name in labels}}


def trained_tokens(processor, messages, tokens, grids, which):
    """From a text that is put together by hand, not by the template, and the tokenizer's own offsets."""
    pieces = [] if messages[0]["role"] == "system" else [("<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n", False)]
    counts = iter(grid[0] * grid[1] * grid[2] // 4 for grid in grids)
    last = max(number for number, message in enumerate(messages) if message["role"] == "assistant")
    for number, message in enumerate(messages):
        pieces.append((f"<|im_start|>{message['role']}\n", False))
        is_answer = message["role"] == "assistant" and (which == "assistant" or number == last)
        for part in [text(message["content"])] if isinstance(message["content"], str) else message["content"]:
            pieces.append((part["text"] if part["type"] == "text" else "<|vision_start|>" + next(counts) * "<|image_pad|>" + "<|vision_end|>", is_answer))
        pieces.append(("<|im_end|>\n", is_answer))
    characters = [is_answer for piece, is_answer in pieces for _ in piece]
    encoded = processor.tokenizer("".join(piece for piece, _ in pieces), add_special_tokens=False, return_offsets_mapping=True)
    assert encoded["input_ids"] == tokens
    never = set(processor.tokenizer.convert_tokens_to_ids(VISION))
    return [token not in never and (which == "all" or any(characters[start:end])) for token, (start, end) in zip(tokens, encoded["offset_mapping"])]


def check_with_trl(processor, shown, tokens, labels):
    """What TRL trains with `assistant_only_loss`, but that it trains images in answers, too."""
    template = (Path(trl.__file__).parent / "chat_templates/qwen2_5_vl_training.jinja").read_text()
    features = processor.apply_chat_template(shown, chat_template=template, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
    never = set(processor.tokenizer.convert_tokens_to_ids(VISION))
    flat = lambda value: value[0] if isinstance(value[0], list) else value
    assert flat(features["input_ids"]) == tokens
    masks = [bool(one) and token not in never for one, token in zip(flat(features["assistant_masks"]), tokens)]
    assert masks == labels, (masks, labels)


ANSWERS = [
    '{"vendor": "Meyer & Sons", "date": "2024-03-17", "total": 1234.56, "items": [{"name": "bolt M8", "count": 100}]}',
    '{\n  "vendor": "Müller\\u00e9 \\"Söhne\\" \\\\",\n  "total": null,\n  "paid": true,\n  "items": []\n}\n',
    '{"type": "object", "properties": {"total": {"type": "number"}, "type": {"type": "total"}}, "required": ["total"]}',
    '[{"name":"a,b:{c}"},{"name":"[null]"}]', "[]", " { } ", '{"":""}', '{"name":{"type":["string","null"]},"type":null}', "[-1.5e+3,0,1E5,false]",
    '{"\\u0074otal": 1, "e\u0301": "e\u0301", "日付": "二〇二四年", "total\\n": "😀"}', "A boat, at 12:30.", "null", '"total"', "12", '{"a": }', '{"a": 1,}', "{'a': 1}", "[NaN]", "[01]", '["\\x"]', '["\t"]', "",
    "```json\n{}\n```", '{"a": 1} ', "{} {}", '["\\ud800"]', "\u00a0[]",
]
WORDS = ["total", "vendor", "items", "name", "count", "date", "type", "required", "null", "Meyer & Sons", "ß", "e\u0301", "中文", "😀", "a\"b", "c\\d", "\n", "x,y", "{", "]:", "", " ", "12", "\u0301"]
SCHEMA_KEYS = "$defs $id $ref $schema additionalProperties allOf anyOf const definitions enum format items not oneOf pattern properties required type".split()
SCHEMA_TYPES = "array boolean integer null number object string".split()
LEVELS = ["conservative", "moderate", "aggressive"]
COMMON = 0.08


def random_answer(numbers, depth=0):
    kind = numbers.randrange(4 if depth else 2) if depth < 3 else 3
    space = lambda: numbers.choice(["", "", " ", "\n", "  ", "\n\t"])
    quote = lambda word: json.dumps(word, ensure_ascii=numbers.random() < 0.3)
    inside = lambda: random_answer(numbers, depth + 1)
    if kind == 0:
        pairs = [f"{space()}{quote(numbers.choice(WORDS))}{space()}:{space()}{inside()}" for _ in range(numbers.randrange(4))]
        return "{" + ",".join(pairs) + space() + "}"
    if kind == 1:
        return "[" + ",".join(space() + inside() for _ in range(numbers.randrange(4))) + space() + "]"
    return numbers.choice([quote(numbers.choice(WORDS)), quote(numbers.choice(SCHEMA_TYPES)), str(numbers.randrange(10000)), "-0.5e3", "null", "true", "false"])


TOKENS = re.compile(r'(?P<string>"(?:[^"\\]|\\.)*")|(?P<white>[ \t\n\r]+)|(?P<sign>[{}\[\],:])|(?P<word>[^ \t\n\r{}\[\],:"]+)', re.DOTALL)


def parsed(answer):
    """The value of an answer that is a JSON object or array, else nothing."""
    def refuse(word):
        raise ValueError(word)
    try:
        value = json.loads(answer, parse_constant=refuse)
    except ValueError:
        return None
    return value if isinstance(value, (dict, list)) else None


def structure(answer, level, common):
    """For each character, whether it is taken out; nothing if the answer is not structured."""
    if parsed(answer) is None:
        return None
    found = [match for match in TOKENS.finditer(answer) if match.lastgroup != "white"]
    assert "".join(match.group() for match in TOKENS.finditer(answer)) == answer
    result = [character in " \t\n\r" for character in answer]
    for place, match in enumerate(found):
        start, end = match.span()
        if match.lastgroup == "sign":
            result[start] = True
        elif match.lastgroup == "word":
            result[start:end] = [level != "conservative" and match.group() == "null"] * (end - start)
        else:
            follows = found[place + 1].group() if place + 1 < len(found) else ""
            value = json.loads(match.group())
            if follows == ":":
                is_out = level != "conservative" and value in SCHEMA_KEYS or level == "aggressive" and value in common
            else:
                before = [one.group() for one in found[max(place - 2, 0):place]]
                is_out = level != "conservative" and before == ['"type"', ":"] and value in SCHEMA_TYPES
            result[start:end] = [True] + [is_out] * (end - start - 2) + [True]
    return result


def keys_of(value):
    if isinstance(value, dict):
        return set(value) | set().union(*map(keys_of, value.values()))
    return set().union(*map(keys_of, value)) if isinstance(value, list) else set()


def record_selective(model, count=120, seed=7):
    tokenizer = AutoProcessor.from_pretrained(model).tokenizer
    numbers = random.Random(seed)
    answers = ANSWERS + [random_answer(numbers) for _ in range(count)]
    values = [value for value in map(parsed, answers) if value is not None]
    seen = [keys_of(value) for value in values]
    common = sorted(key for key in set().union(*seen) if sum(key in keys for keys in seen) >= COMMON * len(values))
    recorded = []
    for answer in answers:
        encoded = tokenizer(answer, add_special_tokens=False, return_offsets_mapping=True)
        masks = {}
        for level in LEVELS:
            characters = structure(answer, level, common)
            masks[level] = None if characters is None else "".join("01"[all(characters[start:end])] for start, end in encoded["offset_mapping"])
        recorded.append({"answer": answer, "tokens": encoded["input_ids"], **masks})
    return {"share": COMMON, "structured": len(values), "keys": common, "answers": recorded}
