"""The tiny models and batches that reference numbers are recorded for: a fixed list, and a way to draw others.

A case says everything about itself: the shape of the model, how its files are laid out, what is trained and how, and
what the rows of each batch are made of. Nothing is computed here.
"""

import random
from dataclasses import dataclass, field

DECODER_LINEARS = r".*\.language_model\..*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"
ALL_LINEARS = (
    r".*\.(language_model\..*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"
    r"|visual\..*\.(qkv|attn\.proj|gate_proj|up_proj|down_proj)|visual\.merger\.mlp\.[02])"
)
VISION_LINEARS = r".*\.visual\.(blocks\..*\.(qkv|attn\.proj|gate_proj|up_proj|down_proj)|merger\.mlp\.[02])"


@dataclass
class Text:
    """The decoder."""

    hidden: int = 32
    intermediate: int = 48
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    vocabulary: int = 160
    rope_theta: float = 1e6
    mrope_section: tuple = (1, 1, 2)
    rms_norm_eps: float = 1e-6


@dataclass
class Vision:
    """The vision tower. `window` is in pixels, as in the config."""

    depth: int = 2
    hidden: int = 16
    intermediate: int = 24
    heads: int = 2
    patch: int = 4
    window: int = 24
    full_blocks: tuple = (1,)


@dataclass
class Files:
    """How the checkpoint lies on disk."""

    config: str = "nested"  # or "flat": the layout of the checkpoints released on the hub
    names: str = "new"  # `model.visual.*`, `model.language_model.*`; or "hub": `visual.*`, `model.*`
    shards: int = 1
    dtype: str = "float32"


@dataclass
class Lora:
    rank: int = 4
    alpha: int = 8
    rslora: bool = False
    targets: object = DECODER_LINEARS  # a string is a regular expression for the whole name, a list holds name endings


@dataclass
class Training:
    learning_rate: float = 5e-3
    schedule: str = "constant"  # or "linear": from the learning rate down to 0 after the last step
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    clip_norm: float = 1.0
    steps: int = 10


@dataclass
class Row:
    """One sequence. A piece is a number of text tokens, or an image as (height, width) in patches."""

    pieces: tuple
    labels: str = "some"  # or "none": a row in which every label is ignored


@dataclass
class Case:
    name: str
    about: str
    batches: list  # of lists of rows; step i trains on batch i modulo their number
    text: Text = field(default_factory=Text)
    vision: Vision = field(default_factory=Vision)
    files: Files = field(default_factory=Files)
    lora: Lora | None = None  # none: all weights are trained
    training: Training = field(default_factory=Training)
    tied: bool = True


def fixed_cases():
    """The cases checked in. Together they cover what the README lists."""
    return [
        Case(
            name="decoder_lora",
            about="LoRA on the decoder linears, tied head, 2 query heads per key head, flat config and names as on the hub; "
            "an image row, a text-only row and a row that is ignored in the loss; windows of 3x3 do not divide the images",
            files=Files(config="flat", names="hub"),
            lora=Lora(rank=4, alpha=8),
            batches=[[Row((5, (8, 10), 9)), Row((13,)), Row((3, (4, 6), 6), labels="none")]],
        ),
        Case(
            name="two_images_rslora",
            about="two images of different size in one row and one in the next, untied head, 4 query heads per key head, "
            "rsLoRA with a rank that is no power of two, two shards, one image that the windows divide exactly",
            text=Text(hidden=64, intermediate=40, heads=8, kv_heads=2, mrope_section=(2, 1, 1), rms_norm_eps=1e-3),
            vision=Vision(depth=4, hidden=16, heads=1, intermediate=20, window=16, full_blocks=(1, 3)),
            files=Files(shards=2),
            tied=False,
            lora=Lora(rank=3, alpha=5, rslora=True),
            training=Training(schedule="linear", clip_norm=0.5),
            batches=[[Row((2, (8, 4), 3, (6, 6), 7)), Row(((4, 4), 6))]],
        ),
        Case(
            name="vision_lora",
            about="LoRA on vision tower, merger and decoder, no grouped heads, alpha below the rank, weight decay on the "
            "adapter; an image smaller than a window, one of a single token, one that is a thin strip",
            text=Text(hidden=32, intermediate=56, heads=2, kv_heads=2, mrope_section=(2, 3, 3), rope_theta=1e4),
            vision=Vision(depth=3, hidden=16, heads=2, intermediate=28, window=30, full_blocks=(1,)),
            lora=Lora(rank=5, alpha=2, targets=ALL_LINEARS),
            training=Training(learning_rate=1e-2, weight_decay=0.1),
            batches=[[Row((4, (4, 4), 6)), Row(((2, 2), 5, (2, 14), 8)), Row((10,))]],
        ),
        Case(
            name="full_tied",
            about="all weights trained, tied head (the embedding gets both gradients), weight decay groups of the Trainer",
            text=Text(intermediate=32, vocabulary=164, rms_norm_eps=1e-5),
            vision=Vision(depth=3, full_blocks=(2,)),
            training=Training(learning_rate=2e-3, weight_decay=0.1),
            batches=[[Row((6, (6, 8), 8)), Row((9,)), Row((2, (8, 2), 5, (4, 6), 4))]],
        ),
        Case(
            name="full_untied",
            about="all weights trained, untied head, windows that divide every image exactly, every other batch without an "
            "image (the vision tower gets no update then), other betas and epsilon, flat config with new names",
            text=Text(intermediate=32, heads=4, kv_heads=1, mrope_section=(2, 1, 1)),
            vision=Vision(depth=2, heads=2, window=16, full_blocks=(0,)),
            files=Files(config="flat"),
            tied=False,
            training=Training(learning_rate=3e-3, beta1=0.8, beta2=0.95, epsilon=1e-6, weight_decay=0.05),
            batches=[[Row((4, (8, 8), 7)), Row((3, (4, 8), 6))], [Row((12,)), Row((7,))]],
        ),
        Case(
            name="text_only",
            about="no image in the batch; the adapter also covers the vision tower, which gets no gradient and no decay",
            text=Text(hidden=36, intermediate=40, layers=3, heads=3, kv_heads=3, vocabulary=168, mrope_section=(1, 2, 3)),
            vision=Vision(depth=1, hidden=8, heads=1, full_blocks=()),
            lora=Lora(rank=4, alpha=4, targets=ALL_LINEARS),
            training=Training(weight_decay=0.1),
            batches=[[Row((17,)), Row((5,)), Row((23,)), Row((1,))]],
        ),
        Case(
            name="bfloat16",
            about="weights stored in bfloat16 and computed in float32, names and config as on the hub, patches of 14 pixels "
            "and windows of 112 as the released models have them, default LoRA shape (alpha = rank)",
            text=Text(hidden=32, intermediate=64, heads=2, kv_heads=1, mrope_section=(2, 3, 3)),
            vision=Vision(depth=2, hidden=16, patch=14, window=112, full_blocks=(1,)),
            files=Files(config="flat", names="hub", dtype="bfloat16"),
            lora=Lora(rank=8, alpha=8),
            batches=[[Row((4, (2, 6), 6)), Row((3, (4, 4), 7))]],
        ),
        Case(
            name="name_endings",
            about="LoRA targets given as name endings, of which gate_proj is in decoder and vision tower; one row, "
            "no padding; no block has full attention",
            text=Text(hidden=32, heads=2, kv_heads=2, mrope_section=(4, 2, 2), rope_theta=5e5),
            vision=Vision(depth=2, hidden=24, heads=2, intermediate=20, window=20, full_blocks=()),
            lora=Lora(rank=2, alpha=6, targets=["gate_proj", "q_proj", "v_proj"]),
            training=Training(clip_norm=0.05),
            batches=[[Row((6, (6, 10), 2, (10, 6), 9))]],
        ),
        Case(
            name="vision_lora_only",
            about="LoRA on vision tower and merger only, the decoder passes gradients through; image rows of three sizes",
            text=Text(hidden=40, intermediate=36, layers=2, heads=5, kv_heads=1, mrope_section=(1, 2, 1)),
            vision=Vision(depth=3, hidden=16, heads=2, window=24, full_blocks=(2,)),
            lora=Lora(rank=4, alpha=6, rslora=True, targets=VISION_LINEARS),
            training=Training(learning_rate=2e-3),
            batches=[[Row((3, (6, 6), 5)), Row((7, (8, 4), 4)), Row((2, (2, 4), 9))]],
        ),
    ]


def random_case(seed, index):
    """Draws another shape and batch. The same seed and index always give the same case."""
    draw = random.Random(f"{seed}/{index}")
    head_dim = draw.choice([8, 12, 16, 20])
    kv_heads = draw.choice([1, 2, 3])
    heads = kv_heads * draw.choice([1, 2, 3, 4])
    axes = cut_in_three(draw, head_dim // 2)
    depth = draw.randint(1, 4)
    vision_heads = draw.choice([1, 2, 3])
    patch = draw.choice([2, 4, 6])
    full = draw.random() < 0.35
    text = Text(
        hidden=heads * head_dim,
        intermediate=draw.randint(5, 20) * 4,
        layers=draw.randint(1, 3),
        heads=heads,
        kv_heads=kv_heads,
        vocabulary=draw.randint(80, 240),
        rope_theta=draw.choice([1e4, 5e5, 1e6]),
        mrope_section=axes,
        rms_norm_eps=draw.choice([1e-6, 1e-5, 1e-3]),
    )
    vision = Vision(
        depth=depth,
        hidden=vision_heads * draw.choice([8, 12, 16]),
        intermediate=draw.randint(3, 10) * 4,
        heads=vision_heads,
        patch=patch,
        window=draw.randint(2 * patch, 12 * patch),
        full_blocks=tuple(block for block in range(depth) if draw.random() < 0.4),
    )
    files = Files(
        config=draw.choice(["flat", "nested"]),
        names=draw.choice(["hub", "new"]),
        shards=draw.choice([1, 1, 2]),
        dtype=draw.choice(["float32", "float32", "bfloat16"]),
    )
    lora = Lora(
        rank=draw.randint(1, 8),
        alpha=draw.randint(1, 16),
        rslora=draw.random() < 0.4,
        targets=draw.choice(
            [DECODER_LINEARS, ALL_LINEARS, VISION_LINEARS, ["q_proj", "v_proj"], ["down_proj", "qkv"]]
        ),
    )
    training = Training(
        learning_rate=draw.choice([1e-3, 2e-3]) if full else draw.choice([2e-3, 5e-3]),
        schedule=draw.choice(["constant", "linear"]),
        beta2=draw.choice([0.999, 0.95]),
        weight_decay=draw.choice([0.0, 0.01, 0.1]),
        clip_norm=draw.choice([0.3, 1.0, 1.0]),
    )
    # An adapter on the vision tower alone cannot train on text: its first batch has an image.
    with_image = not full and lora.targets == VISION_LINEARS
    return Case(
        name=f"random_{seed}_{index}",
        about=f"drawn with seed {seed}, index {index}",
        batches=[random_batch(draw, with_image) for _ in range(draw.choice([1, 1, 2]))],
        text=text,
        vision=vision,
        files=files,
        lora=None if full else lora,
        training=training,
        tied=draw.random() < 0.5,
    )


def random_batch(draw, with_image):
    rows = [random_row(draw) for _ in range(draw.randint(1, 4))]
    if with_image:
        rows[0] = Row((2, (draw.randint(1, 5) * 2, draw.randint(1, 5) * 2), 6))
    else:
        # At least one row must have something to predict.
        rows[0] = Row(rows[0].pieces + (4,))
    return rows


def random_row(draw):
    pieces = []
    for _ in range(draw.randint(1, 4)):
        if draw.random() < 0.4:
            pieces.append((draw.randint(1, 5) * 2, draw.randint(1, 6) * 2))
        else:
            pieces.append(draw.randint(1, 12))
    return Row(tuple(pieces), labels=draw.choice(["some", "some", "some", "none"]))


def cut_in_three(draw, total):
    """Three positive numbers with this sum: the shares of the position axes in half a head."""
    first, second = sorted(draw.sample(range(1, total), 2))
    return (first, second - first, total - second)
