"""Rows in the shapes that people publish, with the tokens and labels that transformers and TRL give them.

Each row is what stands in a dataset; beside it, written by hand, is what Python is given: messages in transformers' shape and tools. Labels come from
TRL's templates for training (`{% generation %}` marks) and, for `prompt` and `completion`, from TRL's own collator. Rows that say what is refused are
not given to Python: most of them train something else there.
"""

import json
import random
from pathlib import Path

import numpy as np
import trl
from PIL import Image
from transformers import AutoProcessor
from transformers.image_utils import load_image
from trl.trainer.sft_trainer import DataCollatorForVisionLanguageModeling

from examples import VISION, image, say, text

# Templates that trl carries. The released Qwen2.5-VL's own, `qwen2_5_vl`, knows no tools.
TEMPLATES = ["qwen2_5", "qwen2_5_vl", "qwen3_vl", "qwen3"]

WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Wetter für eine Stadt <heute>", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 1}, "scale": {"type": "number", "enum": [1.0, 0.5, 1e-07]}},
    "required": ["city"]}}}
TIME = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}


def call(name, arguments, **others):
    return {**others, "type": "function", "function": {"name": name, "arguments": arguments}}


def calls(*all_calls, **others):
    return {"role": "assistant", **others, "tool_calls": list(all_calls)}


PARIS = {"city": "Paris", "days": 2, "scale": 1.0, "exact": None, "is_now": True, "near": [1, 2.5, {"z": "ü", "a": 10000000000000000000}]}


def openai(arguments=json.dumps(PARIS, ensure_ascii=False)):
    """As in OpenAI's guide to fine-tuning with tools: arguments are JSON in a text, content is null or missing."""
    return {"messages": [
        say("system", "You answer with tools."), say("user", "Weather in Paris?"),
        {"role": "assistant", "content": None, "tool_calls": [call("get_weather", arguments, id="call_1"), call("now", "{}", id="call_2")]},
        {"role": "tool", "tool_call_id": "call_1", "content": "{\"celsius\": 14}"}, {"role": "tool", "tool_call_id": "call_2", "content": "noon"},
        say("assistant", "14 degrees.")], "tools": [WEATHER, TIME], "parallel_tool_calls": True}


def openai_given(with_id=True):
    ids = [{"id": "call_1"}, {"id": "call_2"}] if with_id else [{}, {}]
    return {"messages": [
        say("system", "You answer with tools."), say("user", "Weather in Paris?"), calls(call("get_weather", PARIS, **ids[0]), call("now", {}, **ids[1])),
        say("tool", "{\"celsius\": 14}"), say("tool", "noon"), say("assistant", "14 degrees.")], "tools": [WEATHER, TIME]}


PLAIN = [say("user", "Weather in Paris?"), calls(call("get_weather", {"city": "Paris"})), say("tool", "14"), say("assistant", "14 degrees.")]
BARE = {"name": "get_weather", "description": "Weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
FUNCTION_CALL = {"name": "get_weather", "arguments": {"city": "Paris"}}

# A row, the template, what Python is given, and which fields nothing reads.
def boxed(objects):
    return {"messages": [say("user", "<image>Where is <ref-object>?"), say("assistant", "<bbox>")], "images": ["pictures/420.jpg"], "objects": {"ref": ["boat"], **objects}}


def grounded(answer):
    return {"messages": [say("user", "<image>Where?"), say("assistant", answer)], "images": ["pictures/420.jpg"]}


TRAINED = [
    dict(row=openai(), template=name, given=openai_given(), ignored=["messages[].tool_call_id", "parallel_tool_calls"]) for name in ["qwen2_5", "qwen3_vl"]
] + [
    # Content beside calls, and empty content; calls in the middle that are not trained.
    dict(row={"messages": [say("user", "Weather?"), {**calls(call("now", ""), content="Let me see."), "weight": 0}, say("tool", "noon"), {**calls(call("now", None), content=""), "weight": 1},
                           {"role": "tool", "content": [text("no"), text("on")]}, {**say("assistant", "Noon."), "weight": 1}], "tools": [TIME]},
         template="qwen3_vl", weights=[0, 1, 1],
         given={"messages": [say("user", "Weather?"), calls(call("now", {}), content="Let me see."), say("tool", "noon"), calls(call("now", {}), content=""), say("tool", text("no"), text("on")), say("assistant", "Noon.")], "tools": [TIME]}),
    # The same without tools, with the model's own template: weights of OpenAI and ms-swift.
    dict(row={"messages": [say("user", "a"), {**say("assistant", "wrong"), "weight": 0}, say("user", "b"), {**say("assistant", "right"), "weight": 1.0}, say("user", "c"), {**say("assistant", "bad"), "loss": False}, say("user", "d"), {**say("assistant", "good"), "loss": True}]},
         template="qwen2_5_vl", weights=[0, 1, 0, 1],
         given={"messages": [say("user", "a"), say("assistant", "wrong"), say("user", "b"), say("assistant", "right"), say("user", "c"), say("assistant", "bad"), say("user", "d"), say("assistant", "good")]}),
    # LLaMA-Factory's ShareGPT: tools as a text, calls and answers of tools as messages of their own.
    dict(row={"conversations": [{"from": "human", "value": "Weather in Paris?"}, {"from": "function_call", "value": json.dumps(FUNCTION_CALL)}, {"from": "observation", "value": "14"}, {"from": "gpt", "value": "14 degrees."}],
              "system": "Be brief.", "tools": json.dumps([BARE])},
         template="qwen3_vl", given={"messages": [say("system", "Be brief."), say("user", "Weather in Paris?"), calls(FUNCTION_CALL), say("tool", "14"), say("assistant", "14 degrees.")], "tools": [BARE]}),
    # ms-swift: each of two calls in a message of its own, behind words of the same turn.
    dict(row={"tools": [WEATHER, TIME], "messages": [say("user", "Weather and time?"), say("assistant", "I look."), {"role": "tool_call", "content": json.dumps(FUNCTION_CALL)}, {"role": "tool_call", "content": "{\"name\": \"now\", \"arguments\": {}}"},
                                                    {"role": "tool_response", "content": "14"}, {"role": "tool_response", "content": "noon"}, say("assistant", "14 degrees at noon.")]},
         template="qwen3_vl", given={"messages": [say("user", "Weather and time?"), calls(FUNCTION_CALL, {"name": "now", "arguments": {}}, content="I look."), say("tool", "14"), say("tool", "noon"), say("assistant", "14 degrees at noon.")], "tools": [WEATHER, TIME]}),
    # A picture, tools, and a last turn that is a call.
    dict(row={"image": "pictures/420.jpg", "conversations": [{"from": "human", "value": "<image>\nWhere is this?"}, {"from": "function_call", "value": json.dumps([FUNCTION_CALL])}], "tools": [WEATHER], "id": "x", "source": "y"},
         template="qwen3_vl", ignored=["id", "source"], given={"messages": [say("user", image("420.jpg"), text("Where is this?")), calls(FUNCTION_CALL)], "tools": [WEATHER]}),
    # Bounds on pixels of one picture, as qwen-vl-utils reads them.
    dict(row={"messages": [say("user", {"type": "image", "image": "pictures/rgb-large.png", "max_pixels": 28 * 28 * 6, "min_pixels": 28 * 28 * 4}, {"type": "image", "image": "pictures/rgb-large.png"}, {"type": "image_url", "image_url": {"url": "pictures/gray.jpg", "detail": "low"}, "min_pixels": 28 * 28 * 12}, text("Which?")), say("assistant", "The first.")]},
         template="qwen2_5_vl", ignored=["messages[].content[].image_url.detail"], bounds=[[28 * 28 * 4, 28 * 28 * 6], [None, None], [28 * 28 * 12, None]],
         given={"messages": [say("user", image("rgb-large.png"), image("rgb-large.png"), image("gray.jpg"), text("Which?")), say("assistant", "The first.")]}),
    # Thoughts, where the template writes them and where it does not.
    dict(row={"messages": [say("user", "2 + 2?"), {**say("assistant", "4"), "reasoning_content": "Two and two."}]}, template="qwen3",
         given={"messages": [say("user", "2 + 2?"), {**say("assistant", "4"), "reasoning_content": "Two and two."}]}),
    dict(row={"messages": [say("user", "2 + 2?"), {**say("assistant", "4"), "reasoning": "Two and two."}]}, template="qwen3",
         given={"messages": [say("user", "2 + 2?"), {**say("assistant", "4"), "reasoning": "Two and two."}]}),
    dict(row={"messages": [say("user", "2 + 2?"), {**say("assistant", "4"), "reasoning_content": "Two and two."}]}, template="qwen2_5_vl", ignored=["messages[].reasoning_content"],
         given={"messages": [say("user", "2 + 2?"), {**say("assistant", "4"), "reasoning_content": "Two and two."}]}),
    # TRL's prompt and completion; answers of the prompt are not trained.
    dict(row={"prompt": [say("system", "Be brief."), say("user", "Hello."), say("assistant", "Hello!"), say("user", "And now?")], "completion": [say("assistant", "Goodbye.")]}, template="qwen2_5_vl", given="row"),
    dict(row={"prompt": [say("user", "Where is this?")], "completion": [say("assistant", "In \"Paris\".\n")], "images": ["pictures/420.jpg", "pictures/gray.jpg"]}, template="qwen2_5_vl", given="row"),
    dict(row={"prompt": PLAIN[:3], "completion": PLAIN[3:], "tools": [WEATHER]}, template="qwen3_vl", weights=[0, 1], given={"messages": PLAIN, "tools": [WEATHER]}),
    dict(row={"prompt": PLAIN[:1], "completion": PLAIN[1:], "tools": json.dumps([WEATHER])}, template="qwen3_vl", given={"messages": PLAIN, "tools": [WEATHER]}),
    # Boxes in pixels of the picture as it is stored, as ms-swift has them, in JSON as Qwen2.5-VL has it (its `QWENVL_BBOX_FORMAT=new`).
    dict(row={"messages": [say("user", "<image>Locate the <ref-object> in the image"), say("assistant", "[\n\t{\"bbox_2d\": <bbox>, \"label\": \"<ref-object>\"},\n\t{\"bbox_2d\": <bbox>, \"label\": \"<ref-object>\"}\n]")],
              "images": ["pictures/rgb-large.png"], "objects": {"ref": ["sheep", "a ewe", "a ram"], "bbox": [[9.9, 16.8, 40, 45.5], [300.5, 0.25, 612.9, 400.5]]}},
         template="qwen2_5_vl", given=lambda seen: {"messages": [say("user", image("rgb-large.png"), text("Locate the sheep in the image")), say("assistant", "[\n\t{\"bbox_2d\": %s, \"label\": \"a ewe\"},\n\t{\"bbox_2d\": %s, \"label\": \"a ram\"}\n]" % (
             seen("rgb-large.png", 9.9, 16.8, 40, 45.5), seen("rgb-large.png", 300.5, 0.25, 612.9, 400.5)))]}),
    # Points and shares of the sides; the second of two pictures; text of parts.
    dict(row={"messages": [say("user", image("pictures/420.jpg"), image("pictures/rgb-large.png"), text("What is at <bbox>?")), say("assistant", "click(<bbox>)")], "objects": {"bbox": [[0.25, 0.5], [0.5, 0.75]], "bbox_type": "norm1", "image_id": [1, 0], "note": "x"}},
         template="qwen2_5_vl", ignored=["objects.note"], given=lambda seen: {"messages": [say("user", image("420.jpg"), image("rgb-large.png"), text("What is at %s?" % seen("rgb-large.png", 0.25, 0.5, shares=True))),
                                                                                     say("assistant", "click(%s)" % seen("420.jpg", 0.5, 0.75, shares=True))]}),
    # Boxes of texts stay what they are, and `objects` without places for them are notes.
    dict(row={**grounded("[{\"bbox_2d\": [1, 2, 30.5, 40], \"label\": \"boat\"}]"), "objects": {"bbox": [[1, 2, 3, 4]]}}, template="qwen2_5_vl", ignored=["objects"],
         given={"messages": [say("user", image("420.jpg"), text("Where?")), say("assistant", "[{\"bbox_2d\": [1, 2, 30.5, 40], \"label\": \"boat\"}]")]}),
    # Alpaca.
    dict(row={"instruction": "Add the numbers.", "input": "2, 2", "output": "4", "history": []}, template="qwen2_5_vl", given={"messages": [say("user", "Add the numbers.\n2, 2"), say("assistant", "4")]}),
]

# What would be lost is refused by the name of the field.
REFUSED = [
    dict(row=openai(), template="qwen2_5_vl", field="tools"),
    dict(row={"messages": PLAIN}, template="qwen2_5_vl", field="messages[1].tool_calls[0]"),
    dict(row={"messages": PLAIN[:2]}, template="qwen2_5_vl", field="messages[1].tool_calls[0]"),
    dict(row=openai("{\"city\": "), template="qwen3_vl", field="messages[2].tool_calls[0].function.arguments"),
    dict(row=openai("[1]"), template="qwen3_vl", field="messages[2].tool_calls[0].function.arguments"),
    dict(row={"messages": [say("user", "a"), calls({"type": "function", "function": {"arguments": {}}})]}, template="qwen3_vl", field="messages[1].tool_calls[0].function.name"),
    dict(row={"messages": [say("user", "a"), calls(call("f", {"n": 123456789012345678901234567890}))]}, template="qwen3_vl", field="messages[1].tool_calls[0].function.arguments.n"),
    dict(row={"messages": [{**say("user", "a"), "tool_calls": [call("f", {})]}, say("assistant", "b")]}, template="qwen3_vl", field="messages[0].tool_calls"),
    dict(row={"messages": [say("user", "a"), {"role": "assistant", "content": None}]}, template="qwen3_vl", field="messages[1].content"),
    dict(row={"messages": [say("user", "a"), {"role": "assistant", "content": None, "tool_calls": []}]}, template="qwen3_vl", field="messages[1].content"),
    dict(row={"messages": [say("user", "a"), {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}]}, template="qwen3_vl", field="messages[1].function_call"),
    dict(row={"functions": [BARE], "messages": [say("user", "a"), say("assistant", "b")]}, template="qwen3_vl", field="functions"),
    # xLAM's rows as they are published: which field is the answer is not said.
    dict(row={"id": 1, "query": "Weather in Paris?", "answers": json.dumps([FUNCTION_CALL]), "tools": json.dumps([BARE])}, template="qwen3_vl", field="response"),
    dict(row={"conversations": [{"from": "human", "value": "a"}, {"from": "function_call", "value": "get_weather(Paris)"}], "tools": json.dumps([BARE])}, template="qwen3_vl", field="conversations[1].value"),
    dict(row={"messages": [say("user", "a"), {**say("assistant", "b"), "weight": 0.5}]}, template="qwen2_5_vl", field="messages[1].weight"),
    dict(row={"messages": [say("user", "a"), {**say("assistant", "b"), "weight": 0}]}, template="qwen2_5_vl", field=""),
    dict(row={"messages": [say("user", "<video>What happens?"), say("assistant", "b")], "videos": ["a.mp4"]}, template="qwen2_5_vl", field="videos"),
    dict(row={"video": "a.mp4", "conversations": [{"from": "human", "value": "<image>\nWhat?"}, {"from": "gpt", "value": "b"}]}, template="qwen2_5_vl", field="video"),
    dict(row={"messages": [say("user", "<video>What happens?"), say("assistant", "b")]}, template="qwen2_5_vl", field="messages[0].content"),
    dict(row={"messages": [say("user", {"type": "video", "video": "a.mp4"}, text("What?")), say("assistant", "b")]}, template="qwen2_5_vl", field="messages[0].content[0].type"),
    dict(row={"messages": [say("user", "<audio>What?"), say("assistant", "b")], "audios": ["a.wav"]}, template="qwen2_5_vl", field="audios"),
    # Boxes that cannot be right. 420.jpg has 53 x 77 pixels; rgb-large.png more than the model sees of it.
    dict(row=boxed({"bbox": [[1, 2, 3]]}), template="qwen2_5_vl", field="objects.bbox[0]"),
    dict(row=boxed({"bbox": [[1, 2, 3, "4"]]}), template="qwen2_5_vl", field="objects.bbox[0]"),
    dict(row=boxed({"bbox": [[30, 2, 3, 40]]}), template="qwen2_5_vl", field="objects.bbox[0]"),
    dict(row=boxed({"bbox": [[3, 40, 30, 40]]}), template="qwen2_5_vl", field="objects.bbox[0]"),
    dict(row=boxed({"bbox": [[10, 10, 54, 20]]}), template="qwen2_5_vl", field="objects.bbox[0]"),
    dict(row=boxed({"bbox": [[-1, 10, 20, 20]]}), template="qwen2_5_vl", field="objects.bbox[0]"),
    dict(row=boxed({"bbox": [[60, 10]]}), template="qwen2_5_vl", field="objects.bbox[0]"),
    dict(row=boxed({"bbox": [[1, 2, 30, 40]], "bbox_type": "norm1"}), template="qwen2_5_vl", field="objects.bbox[0]"),
    dict(row=boxed({"bbox": [[1, 2, 30, 40]], "bbox_type": "norm1000"}), template="qwen2_5_vl", field="objects.bbox_type"),
    dict(row=boxed({"bbox": [[1, 2, 30, 40]], "image_id": [1]}), template="qwen2_5_vl", field="objects.bbox[0]"),
    dict(row=boxed({"bbox": [[1, 2, 30, 40]], "image_id": [0, 0]}), template="qwen2_5_vl", field="objects.image_id"),
    dict(row=boxed({"bbox": [[1, 2, 30, 40]], "image_id": ["a"]}), template="qwen2_5_vl", field="objects.image_id[0]"),
    dict(row=boxed({"bbox": [[1, 2, 30, 40], [1, 2, 30, 40]]}), template="qwen2_5_vl", field="objects.bbox"),
    dict(row=boxed({"bbox": []}), template="qwen2_5_vl", field="objects.bbox"),
    dict(row=boxed({"ref": [], "bbox": [[1, 2, 30, 40]]}), template="qwen2_5_vl", field="objects.ref"),
    dict(row={**boxed({"bbox": [[1, 2, 30, 40]]}), "objects": [{"caption": "boat", "bbox": [1, 2, 30, 40]}]}, template="qwen2_5_vl", field="objects"),
    dict(row={**boxed({"bbox": [[1, 2, 30, 40]]}), "images": []}, template="qwen2_5_vl", field="images"),
    dict(row=grounded("[{\"bbox_2d\": [1, 2, 300, 40], \"label\": \"boat\"}]"), template="qwen2_5_vl", field="messages[1]"),
    dict(row=grounded("[{\"bbox_2d\": [1, 2, 30], \"label\": \"boat\"}]"), template="qwen2_5_vl", field="messages[1]"),
    dict(row=grounded("{\"point_2d\": [1, 200]}"), template="qwen2_5_vl", field="messages[1]"),
    dict(row={"messages": [say("user", {"type": "image", "image": "pictures/420.jpg", "resized_height": 56}, text("?")), say("assistant", "b")]}, template="qwen2_5_vl", field="messages[0].content[0].resized_height"),
    dict(row={"messages": [say("user", {"type": "image", "image": "pictures/420.jpg", "max_pixels": "many"}, text("?")), say("assistant", "b")]}, template="qwen2_5_vl", field="messages[0].content[0].max_pixels"),
    dict(row={"instruction": "Go on.", "output": "b", "history": [["a"]]}, template="qwen2_5_vl", field="history[0]"),
    dict(row={"input": "2 + 2?", "output": "4"}, template="qwen2_5_vl", field="prompt"),
    dict(row={"system": "a", "conversations": [{"from": "system", "value": "b"}, {"from": "human", "value": "c"}, {"from": "gpt", "value": "d"}]}, template="qwen2_5_vl", field="system"),
    dict(row={"prompt": [say("user", "a")], "chosen": [say("assistant", "b")], "rejected": [say("assistant", "c")]}, template="qwen2_5_vl", field="response"),
    dict(row={"messages": [say("user", "a"), say("assistant", "b")], "chat_template_kwargs": {"enable_thinking": False}}, template="qwen3", field="chat_template_kwargs"),
]


def template_source(name, for_training=False):
    return (Path(trl.__file__).parent / f"chat_templates/{name}{'_training' if for_training else ''}.jinja").read_text()


def flat(values):
    return values[0] if values and isinstance(values[0], list) else values


def resized(picture, bounds):
    """What qwen-vl-utils does before the processor does the same with its own bounds."""
    least, most = bounds
    if least is None and most is None:
        return picture
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize
    # Its own defaults, where a row says nothing.
    height, width = smart_resize(picture.height, picture.width, 28, least or 4 * 28 * 28, most or 16384 * 28 * 28)
    return picture.resize((width, height))


def record_trained(processor, pictures, one):
    row, given, name = one["row"], one["given"], one["template"]
    opened = lambda name: Image.fromarray(np.array(load_image(str(pictures / name))))

    def seen(name, *numbers, shares=False):
        """A box in pixels of the resized picture, by ms-swift's formula, as Python writes a list."""
        from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize
        size = processor.image_processor.size
        width, height = opened(name).size
        new_height, new_width = smart_resize(height, width, 28, size["shortest_edge"], size["longest_edge"])
        sides = [1, 1] if shares else [width, height]
        return str([int(round(number / sides[place % 2] * [new_width, new_height][place % 2])) for place, number in enumerate(numbers)])

    given = given(seen) if callable(given) else given
    if given == "row":
        # TRL's own way from a row to labels.
        processor.chat_template = template_source(name)
        example = {**row, "images": [opened(Path(path).name) for path in row.get("images", [])]}
        features = DataCollatorForVisionLanguageModeling(processor, completion_only_loss=True)([example])
        tokens = features["input_ids"][0].tolist()
        labels = [label != -100 for label in features["labels"][0].tolist()]
    else:
        bounds = iter(one.get("bounds", []))
        shown = [message if not isinstance(message.get("content"), list) else {**message, "content": [
            {"type": "image", "image": resized(opened(part["image"]), next(bounds, (None, None)))} if part["type"] == "image" else part for part in message["content"]]} for message in given["messages"]]
        arguments = dict(tools=given.get("tools"), tokenize=True, return_dict=True)
        tokens = flat(processor.apply_chat_template(shown, chat_template=template_source(name), **arguments)["input_ids"])
        # Where templates are trained with thoughts, TRL's writes more of them than the model's own does.
        features = processor.apply_chat_template(shown, chat_template=template_source(name, True), return_assistant_tokens_mask=True, **arguments)
        assert flat(features["input_ids"]) == tokens, (name, row)
        labels = [bool(label) for label in flat(features["assistant_masks"])]
        labels = weighted(processor, tokens, labels, one.get("weights"))
    never = set(processor.tokenizer.convert_tokens_to_ids(VISION))
    labels = [label and token not in never for token, label in zip(tokens, labels)]
    return {"template": name, "ignored": one.get("ignored", []), "tokens": tokens, "trained": "".join("01"[label] for label in labels)}


def weighted(processor, tokens, labels, weights):
    """Takes out answers of weight 0, and the header's line end, which TRL's template for Qwen2.5 has among the trained."""
    header = processor.tokenizer("<|im_start|>assistant\n", add_special_tokens=False)["input_ids"]
    labels, answers = list(labels), 0
    for place in range(len(tokens)):
        if tokens[place:place + len(header)] != header:
            continue
        start = place + len(header)
        end = tokens.index(processor.tokenizer.convert_tokens_to_ids("<|im_end|>"), start) + 2
        labels[place:start] = [False] * len(header)
        if weights is not None and not weights[answers]:
            labels[start:end] = [False] * (end - start)
        answers += 1
    assert weights is None or answers == len(weights)
    return labels


def random_json(numbers, words, depth=0):
    kind = numbers.randrange(9 if depth < 3 else 6)
    if kind == 0:
        return numbers.choice([None, True, False])
    if kind == 1:
        return numbers.choice([0, -1, 7, 2**31, 2**53 + 1, -2**63, 2**64 - 1, numbers.randrange(-10**6, 10**6)])
    if kind == 2:
        return numbers.choice([0.0, -0.0, 1.0, 0.1, 1e15, 1e16, 123456789012345680.0, 1e-4, 1e-5, 5e-324, numbers.gauss(0, 1), numbers.gauss(0, 1) * 10.0 ** numbers.randrange(-20, 19)])
    if kind < 6:
        return numbers.choice(words)
    if kind == 6:
        return [random_json(numbers, words, depth + 1) for _ in range(numbers.randrange(4))]
    return {numbers.choice(words): random_json(numbers, words, depth + 1) for _ in range(numbers.randrange(4))}


def random_rows(count, seed):
    """Tools and calls with any JSON in them; arguments sometimes as a text."""
    numbers = random.Random(seed)
    words = ["city", "größe", "a b", "", "\"", "'", "it's \"so\"", "\\", "\n", "\t\r", "</tool_call>", "<b>&amp;", "\x01\x7f", "😀", "e\u0301", "\u2028", "{{ x }}", "日本", "null"]
    rows = []
    for _ in range(count):
        tree = lambda: {numbers.choice(words): random_json(numbers, words) for _ in range(numbers.randrange(4))}
        tools = [{"type": "function", "function": {"name": "f", "description": numbers.choice(words), "parameters": tree()}} for _ in range(numbers.randrange(3))]
        messages, given = [say("user", "Go.")], [say("user", "Go.")]
        for _ in range(numbers.randrange(1, 4)):
            if numbers.random() < 0.3:
                messages.append(say("assistant", "x" + numbers.choice(words)))
                given.append(messages[-1])
            else:
                trees = [tree() for _ in range(numbers.randrange(1, 3))]
                content = numbers.choice([{}, {"content": ""}, {"content": "So: "}])
                messages.append(calls(*[call("f", json.dumps(one) if numbers.random() < 0.5 else one) for one in trees], **content))
                given.append(calls(*[call("f", one) for one in trees], **content))
            messages.append(say("tool", "t" + numbers.choice(words)))
            given.append(messages[-1])
        messages.append(say("assistant", "Done."))
        given.append(messages[-1])
        name = numbers.choice(["qwen2_5", "qwen3_vl"])
        rows.append(dict(row={"messages": messages, "tools": tools}, template=name, given={"messages": given, "tools": tools or None}))
    return rows


def record_rows(model, pictures, count=0, seed=0):
    """The rows, and what becomes of each."""
    processor = AutoProcessor.from_pretrained(model)
    fixed = TRAINED + random_rows(count, seed)
    trained = [record_trained(processor, pictures, one) for one in fixed]
    refused = [{"template": one["template"], "refused": one["field"]} for one in REFUSED]
    return [one["row"] for one in fixed + REFUSED], trained + refused
