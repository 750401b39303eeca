"""What parity_grid.py trains: a checkpoint, rows and first adapters, drawn with numpy, bit for bit the same on every machine.

The checkpoint is deep and thin. What rounding does to a small adapter adds up from layer to layer, and the tiny model of the tests has only two. Heads have the released sizes (128
in the decoder, 80 in the tower), so that a GPU takes the kernels of released models.

No torch here: a machine with the binary, numpy and Pillow makes the same files.
"""

import hashlib
import json
import random
import shutil
import zlib
from pathlib import Path

import numpy

from dataset import COLOURS, SHAPES, draw, picture, text
from parity import DECODER, LINEARS, WORDS

TINY = Path(__file__).parent.parent / "tiny-model"
COPIED = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "preprocessor_config.json", "generation_config.json")
MODEL_SEED = 42
LAYERS, HIDDEN, INNER, KEYS, VOCABULARY = 12, 256, 512, 128, 1232
BLOCKS, TOWER, TOWER_INNER = 3, 160, 212
MERGED = 4 * TOWER
# A product with a matrix of the released shape (inputs 2,048, drawn with 0.02) changes the size of its input by this.
GAIN = 0.02 * 2048**0.5
# The residual stream begins with this size and grows with the root of the layers it has passed.
BEGIN, GROWTH = 0.5, 0.75
# Channels of the residual stream that hold about LARGER for every token, a hundred times what the others do, as released models have them. The root of the mean square is then
# SPREAD, whatever the other channels hold.
LARGE, LARGER, SPREAD = {17: 1, 85: -1, 149: -1, 222: 1}, 100.0, 12.5
VISION = r".*\.visual\.(blocks\..*\.(qkv|proj|gate_proj|up_proj|down_proj)|merger\.mlp\.[02])"
# None is resized: that is not what the grid is about.
SIZES = [(56, 56), (84, 56), (56, 84), (140, 56), (84, 84), (56, 112), (112, 84)]


def numbers_of(*seed):
    """A stream for what these numbers and names say. numpy promises that this generator never changes."""
    return numpy.random.RandomState([one if isinstance(one, int) else zlib.crc32(one.encode()) for one in seed])


def normal(numbers, shape):
    """Nearly normal: sums of four 16-bit numbers. Only whole numbers and one product, so no library's logarithm has a say."""
    count = int(numpy.prod(shape))
    sums = numpy.frombuffer(numbers.bytes(8 * count), dtype="<u2").reshape(count, 4).sum(axis=1, dtype=numpy.int64)
    return ((sums - 2 * 65535) * (3**0.5 / 65536)).reshape(shape)


def bf16(values):
    """The upper halves of float32 numbers, rounded to the nearest, ties to even."""
    bits = values.astype("<f4").view("<u4").astype(numpy.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def write_safetensors(path, tensors, dtype):
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, values in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [end, end + values.nbytes]}
        end += values.nbytes
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(len(head).to_bytes(8, "little") + head + b"".join(values.tobytes() for values in tensors.values()))


def decoder_linears():
    """Outputs and inputs of each adapted linear, by the end of its name."""
    shapes = [(HIDDEN, HIDDEN), (KEYS, HIDDEN), (KEYS, HIDDEN), (HIDDEN, HIDDEN), (INNER, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER)]
    return {f"language_model.layers.{layer}.{name}": shape for layer in range(LAYERS) for name, shape in zip(LINEARS, shapes)}


def vision_linears():
    in_block = {
        "attn.qkv": (3 * TOWER, TOWER), "attn.proj": (TOWER, TOWER), "mlp.gate_proj": (TOWER_INNER, TOWER), "mlp.up_proj": (TOWER_INNER, TOWER), "mlp.down_proj": (TOWER, TOWER_INNER),
    }
    blocks = {f"visual.blocks.{block}.{name}": shape for block in range(BLOCKS) for name, shape in in_block.items()}
    return {**blocks, "visual.merger.mlp.0": (MERGED, MERGED), "visual.merger.mlp.2": (HIDDEN, MERGED)}


def shapes():
    """All tensors of the checkpoint; the head is tied."""
    found = {"language_model.embed_tokens.weight": (VOCABULARY, HIDDEN), "language_model.norm.weight": (HIDDEN,), "visual.patch_embed.proj.weight": (TOWER, 3, 2, 14, 14)}
    found |= {"visual.merger.ln_q.weight": (TOWER,)}
    for layer in range(LAYERS):
        found |= {f"language_model.layers.{layer}.{norm}.weight": (HIDDEN,) for norm in ("input_layernorm", "post_attention_layernorm")}
    for block in range(BLOCKS):
        found |= {f"visual.blocks.{block}.{norm}.weight": (TOWER,) for norm in ("norm1", "norm2")}
    for name, shape in (decoder_linears() | vision_linears()).items():
        found[f"{name}.weight"] = shape
        if "visual" in name or name.endswith(("q_proj", "k_proj", "v_proj")):
            found[f"{name}.bias"] = shape[:1]
    return {f"model.{name}": shape for name, shape in found.items()}


def enlarge(name, values):
    """Embedding and merger write the large channels; norms read all channels about as large as without them, as a trained model's do."""
    channels, signs = list(LARGE), numpy.array(list(LARGE.values()))
    if "embed_tokens" in name:
        values[:, channels] = signs * LARGER * (1 + 0.1 * values[:, channels])
    elif name.endswith("visual.merger.mlp.2.bias"):
        values[channels] = signs * LARGER
    elif "layernorm" in name:
        passed = int(name.split(".")[3]) + ("post_attention" in name) / 2
        values *= SPREAD / (GROWTH * (passed + 0.5) ** 0.5)
        values[channels] = SPREAD / LARGER
    elif name == "model.language_model.norm.weight":
        values *= SPREAD / (GROWTH * LAYERS**0.5)
        # The head is the embedding, whose channels are large, too.
        values[channels] = SPREAD / LARGER**2
    return values


def draw_tensor(name, shape, is_large):
    values = normal(numbers_of(MODEL_SEED, name), shape)
    if "embed_tokens" in name:
        values *= BEGIN
    elif len(shape) > 1:
        values *= GAIN / numpy.prod(shape[1:]) ** 0.5
    elif name.endswith(".bias"):
        values *= 0.05
    else:
        values = 1 + 0.1 * values
    if name == "model.language_model.norm.weight":
        # Logits as large as with an embedding of the released size.
        values *= 0.02 / BEGIN * (2048 / HIDDEN) ** 0.5
    return bf16(enlarge(name, values) if is_large else values)


def write_model(folder, is_large):
    folder.mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        shutil.copy(TINY / name, folder / name)
    config = json.loads((TINY / "config.json").read_text())
    config["text_config"] |= {
        "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": LAYERS, "max_window_layers": LAYERS, "layer_types": ["full_attention"] * LAYERS,
        "num_attention_heads": HIDDEN // 128, "num_key_value_heads": KEYS // 128, "rope_parameters": {"mrope_section": [16, 24, 24], "rope_theta": 1000000.0, "rope_type": "default"},
    }
    config["vision_config"] |= {
        "depth": BLOCKS, "hidden_size": TOWER, "intermediate_size": TOWER_INNER, "num_heads": TOWER // 80, "out_hidden_size": HIDDEN, "fullatt_block_indexes": [1],
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    write_safetensors(folder / "model.safetensors", {name: draw_tensor(name, shape, is_large) for name, shape in shapes().items()}, "BF16")


def write_rows(folder, kind, seed, count):
    """Questions about drawn pictures and answers in JSON. `one`: a picture each; `several`: two or three; `mixed`: every third row has none, nor have those of the third step."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "pictures").mkdir(parents=True)
    numbers, lines = random.Random(f"{kind} {seed}"), []

    def prose(most):
        return " ".join(numbers.choice(WORDS) for _ in range(numbers.randrange(2, most)))

    for number in range(count):
        pictures = {"one": 1, "several": 2 + number % 2, "mixed": 0 if number % 3 == 2 or 8 <= number < 12 else 1}[kind]
        parts, seen = [], []
        for place in range(pictures):
            colour, shape, shown = numbers.choice(list(COLOURS)), numbers.choice(SHAPES), numbers.randrange(1, 6)
            name = f"pictures/{number:02}{'abc'[place]}.png"
            draw(numbers.choice(SIZES), colour, shape, shown, numbers).save(folder / name)
            parts.append(picture(name))
            seen.append(f"{shown} {colour} {shape}")
        answer = json.dumps({"seen": seen, "said": prose(8)})
        lines.append({"messages": [{"role": "user", "content": [*parts, text(f"What is drawn? {prose(6)}")]}, {"role": "assistant", "content": answer}]})
    (folder / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_adapter(folder, line, seed, base):
    """An adapter as peft saves it. A is drawn as peft does it; B is zero, or small."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers, tensors, rank = numbers_of("adapter", seed), {}, line["rank"]
    for name, (outputs, inputs) in (decoder_linears() | (vision_linears() if line["trained"] == "vision" else {})).items():
        place, bound = f"base_model.model.model.{name}", inputs**-0.5
        halves = numpy.frombuffer(numbers.bytes(4 * rank * inputs), dtype="<u4").reshape(rank, inputs)
        tensors[f"{place}.lora_A.weight"] = ((halves / 2**31 - 1) * bound).astype("<f4")
        tensors[f"{place}.lora_B.weight"] = ((0.01 if line["b"] == "drawn" else 0.0) * normal(numbers, (outputs, rank))).astype("<f4")
    if line["trained"] == "merger":
        for name, shape in shapes().items():
            if "visual.merger" in name:
                halves = draw_tensor(name, shape, line["channels"] == "large")
                tensors[f"base_model.model.{name}"] = (halves.astype("<u4") << 16).view("<f4")
    config = {
        "peft_type": "LORA", "task_type": None, "base_model_name_or_path": str(base), "r": rank, "lora_alpha": round(rank * line["scale"]), "lora_dropout": 0.0, "bias": "none",
        "target_modules": f"{DECODER}|{VISION}" if line["trained"] == "vision" else DECODER, "modules_to_save": ["visual.merger"] if line["trained"] == "merger" else None,
        "fan_in_fan_out": False, "init_lora_weights": True, "use_rslora": False, "use_dora": False, "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1) + "\n")
    write_safetensors(folder / "adapter_model.safetensors", tensors, "F32")


def digest(model, data, adapter):
    """Of all that is trained. Pictures count by their pixels: how a file is compressed depends on the library."""
    from PIL import Image

    found = hashlib.sha256()
    files = [*(model / name for name in ("config.json", "model.safetensors", *COPIED)), data / "train.jsonl"]
    for path in [*files, *([adapter / "adapter_model.safetensors"] if adapter else [])]:
        found.update(path.read_bytes())
    for path in sorted((data / "pictures").iterdir()):
        found.update(Image.open(path).tobytes())
    return found.hexdigest()[:16]
