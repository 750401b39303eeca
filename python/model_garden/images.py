"""`LazyImages`: images that are decoded when they are used and kept by nobody.

The trap that this is for: `PIL.Image.open` reads a header and nothing else, so a list of opened images looks small. The first use of
an image (`convert`, `resize`, an image processor) decodes it, and the pixels then stay on that very object: four bytes per
pixel for RGB, 23 MiB for a photograph of 2500 x 2450, for as long as the list lives. Memory grows with every example that is seen for
the first time, by hundreds of MiB per step, until the epoch ends; with more examples than fit, the process is killed.

Here the list holds what was on disk (bytes, a path, base64 text), each access makes a new image, and it is gone when the batch is.
"""
import os
from collections.abc import Mapping, Sequence

# Longer than any path, shorter than any image in base64.
LONGEST_PATH = 4096
# Where chat-like examples keep their messages, in the names that TRL and Unsloth know.
MESSAGE_FIELDS = ("messages", "conversations", "prompt", "completion", "chosen", "rejected")
IMAGE_FIELDS = ("image", "images")


class LazyImages(Sequence):
    """A sequence of images which keeps only their sources.

        images = LazyImages(paths_or_bytes_or_base64)
        images[0]          # a new PIL image at each access
        images[-3:]        # a LazyImages again: nothing is decoded

    A source may be bytes, a path, base64 text, a `data:` URI, a dict with `bytes` or `path` as `datasets.Image(decode=False)` gives them,
    or a list of these, which gives a list of images. `mode` is what images are converted to (None: left as they are);
    `transform` is applied to each image, for example to shrink it or to turn it by its EXIF data (`PIL.ImageOps.exif_transpose`).

    See `dataset` and `collator` for images that are fields of examples or parts of messages.
    """

    def __init__(self, sources, mode="RGB", transform=None):
        if isinstance(sources, (str, bytes, bytearray, memoryview, Mapping)):
            raise TypeError("LazyImages takes a sequence of images, not one image: write LazyImages([source])")
        has_order = hasattr(sources, "__getitem__") and hasattr(sources, "__len__")
        self.sources = sources if has_order else list(sources)
        self.mode = mode
        self.transform = transform

    def __len__(self):
        return len(self.sources)

    def __getitem__(self, index):
        if isinstance(index, slice):
            places = range(len(self))[index]
            is_plain = isinstance(self.sources, (list, tuple))
            chosen = self.sources[index] if is_plain else [self.sources[place] for place in places]
            return LazyImages(chosen, self.mode, self.transform)
        number = index.__index__()
        if not -len(self) <= number < len(self):
            raise IndexError(f"image {number} of {len(self)}")
        return decode(self.sources[number % len(self)], self.mode, self.transform, f"image {number}")

    def __repr__(self):
        return f"LazyImages({len(self)} sources, mode={self.mode!r})"

    @staticmethod
    def dataset(rows, field=None, mode="RGB", transform=None):
        """A dataset over the same rows whose images are decoded at each access: for Trainer, Unsloth and any DataLoader.

            dataset = LazyImages.dataset(rows)                     # list of {"messages": [... {"type": "image", "image": base64} ...]}
            dataset = LazyImages.dataset(rows, field="picture")

        Without `field`, images are found in `image`, `images` and in the messages (`{"type": "image", "image": ...}`). The rows themselves
        are never changed, not even by a collator that changes what it gets.
        """
        return LazyImageRows(rows, field, mode, transform)

    @staticmethod
    def collator(collate, field=None, mode="RGB", transform=None):
        """A collator that decodes the images of a batch just before `collate` gets it: for TRL, whose trainers take no other datasets.

        trainer = SFTTrainer(..., data_collator=LazyImages.collator(UnslothVisionDataCollator(model, processor)))
        """
        return LazyImageCollator(collate, field, mode, transform)


class LazyImageRows(Sequence):
    """Rows whose images are decoded at each access; see `LazyImages.dataset`."""

    def __init__(self, rows, field=None, mode="RGB", transform=None):
        self.rows = rows
        self.field = field
        self.mode = mode
        self.transform = transform

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        if isinstance(index, slice):
            chosen = [self.rows[place] for place in range(len(self))[index]]
            return LazyImageRows(chosen, self.field, self.mode, self.transform)
        number = index.__index__()
        if not -len(self) <= number < len(self):
            raise IndexError(f"row {number} of {len(self)}")
        return decode_row(self.rows[number % len(self)], self.field, self.mode, self.transform, f"row {number}")

    def __repr__(self):
        return f"LazyImages.dataset({len(self)} rows)"


class LazyImageCollator:
    """Decodes the images of a batch, then collates it; see `LazyImages.collator`."""

    def __init__(self, collate, field=None, mode="RGB", transform=None):
        self.collate = collate
        self.field = field
        self.mode = mode
        self.transform = transform

    def __call__(self, rows):
        decoded = [
            decode_row(row, self.field, self.mode, self.transform, f"row {number} of the batch") for number, row in enumerate(rows)
        ]
        return self.collate(decoded)

    def __getattr__(self, name):
        # Trainers ask collators for settings of theirs. Names of our own are missing only while a copy is being made.
        if name.startswith("__") or name == "collate":
            raise AttributeError(name)
        return getattr(self.collate, name)


def decode_row(row, field=None, mode="RGB", transform=None, name="row"):
    """A copy of a row with its images decoded; what holds no image is shared with the row."""

    def image(source, where):
        return decode(source, mode, transform, f"{name}, {where}")

    if isinstance(row, (list, tuple)):
        return _decode_messages(row, image)  # the row is the messages
    if not isinstance(row, Mapping):
        raise TypeError(f"{name} is a {type(row).__name__}; expected a dict or a list of messages")
    if field is not None:
        if field not in row:
            raise KeyError(f"{name} has no field {field!r}; it has {', '.join(map(repr, row))}")
        return {**row, field: image(row[field], f"field {field!r}")}
    copy = dict(row)
    for key, value in row.items():
        if key in IMAGE_FIELDS and value is not None:
            copy[key] = image(value, f"field {key!r}")
        elif key in MESSAGE_FIELDS and isinstance(value, (list, tuple)):
            copy[key] = _decode_messages(value, image)
    return copy


def _decode_messages(messages, image):
    return [_decode_message(message, image) for message in messages]


def _decode_message(message, image):
    # A copy in any case: collators write into messages.
    if not isinstance(message, Mapping):
        return message
    content = message.get("content")
    if not isinstance(content, (list, tuple)):
        return dict(message)
    return {**message, "content": [_decode_part(part, image) for part in content]}


def _decode_part(part, image):
    if not isinstance(part, Mapping):
        return part
    copy = dict(part)
    if part.get("type") == "image" and part.get("image") is not None:
        copy["image"] = image(part["image"], "message")
    elif part.get("type") == "image_url":
        # The shape of the OpenAI interface; an address in the net stays what it is.
        url = part.get("image_url")
        url = url.get("url") if isinstance(url, Mapping) else url
        if isinstance(url, str) and url.startswith("data:"):
            copy = {"type": "image", "image": image(url, "message")}
    return copy


def decode(source, mode="RGB", transform=None, name="image"):
    """A new image from a source, or a list of images from a list of sources. Nothing of it is kept here."""
    if isinstance(source, (list, tuple)):
        return [decode(one, mode, transform, f"{name}.{place}") for place, one in enumerate(source)]
    opened = _open(source, name)
    if mode is not None and opened.mode != mode:
        decoded = opened.convert(mode)
        opened.close()
    else:
        # `convert` to the same mode would copy the pixels.
        opened.load()
        decoded = opened
    return decoded if transform is None else transform(decoded)


def _open(source, name):
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise ImportError("LazyImages needs Pillow: pip install pillow") from error
    import io

    if isinstance(source, Image.Image):
        raise TypeError(
            f"{name} is already a PIL image, which keeps its pixels after the first use; pass LazyImages the bytes or the path it was opened from"
        )
    found = _file_or_bytes(source, name)
    try:
        return Image.open(found if isinstance(found, str) else io.BytesIO(found))
    except UnidentifiedImageError:
        raise ValueError(f"{name} is not an image that Pillow can read: {_brief(source)}") from None


def _file_or_bytes(source, name):
    if isinstance(source, (bytes, bytearray, memoryview)):
        return source
    if isinstance(source, Mapping):
        inner = source.get("bytes")
        return _file_or_bytes(inner if inner is not None else source.get("path"), name)
    if isinstance(source, os.PathLike):
        return os.fspath(source)
    if not isinstance(source, str):
        raise TypeError(f"{name} is a {type(source).__name__}; expected bytes, a path, base64 text or a dict with `bytes` or `path`")
    if source.startswith(("http://", "https://")):
        raise ValueError(f"{name} is a URL, {_brief(source)}; download it first")
    if source.startswith("file://"):
        return source[len("file://"):]
    if source.startswith("data:"):
        return _from_base64(source.partition(",")[2], name)
    if len(source) <= LONGEST_PATH and os.path.exists(source):
        return source
    return _from_base64(source, name)


def _from_base64(text, name):
    import base64
    import binascii

    try:
        return base64.b64decode("".join(text.split()) if "\n" in text else text, validate=True)
    except (binascii.Error, ValueError):
        raise FileNotFoundError(f"{name} is neither an existing file nor base64 text: {_brief(text)}") from None


def _brief(source):
    text = repr(source)
    return text if len(text) <= 80 else text[:77] + "..."
