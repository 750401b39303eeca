"""LazyImages: every kind of source, nothing kept, and the shapes in which trainers take images."""
import base64
import io
import os
import pathlib
import pickle
import subprocess
import sys
import unittest

import support
from support import FolderCase

try:
    from PIL import Image
except ImportError:
    Image = None

from model_garden import LazyImages


@unittest.skipUnless(Image, "Pillow is not installed")
class Images(FolderCase):
    def setUp(self):
        super().setUp()
        self.encoded = []
        for number in range(5):
            file = io.BytesIO()
            Image.new("RGB" if number % 2 else "L", (10 + number, 20), number).save(file, "PNG")
            self.encoded.append(file.getvalue())
        self.file = self.path("image.png")
        with open(self.file, "wb") as file:
            file.write(self.encoded[0])

    def test_every_kind_of_source(self):
        text = base64.b64encode(self.encoded[0]).decode()
        sources = [
            self.encoded[0],
            bytearray(self.encoded[0]),
            memoryview(self.encoded[0]),
            self.file,
            pathlib.Path(self.file),
            "file://" + self.file,
            text,
            "\n".join(text[begin:begin + 76] for begin in range(0, len(text), 76)),
            "data:image/png;base64," + text,
            {"bytes": self.encoded[0], "path": None},
            {"bytes": None, "path": self.file},
        ]
        images = LazyImages(sources)
        self.assertEqual(len(images), len(sources))
        for image in images:
            self.assertEqual((image.size, image.mode, image.getpixel((0, 0))), ((10, 20), "RGB", (0, 0, 0)))
        self.assertEqual(LazyImages([self.file], mode=None)[0].mode, "L")
        self.assertEqual([image.size for image in LazyImages([self.encoded[:3]])[0]], [(10, 20), (11, 20), (12, 20)])

    def test_it_is_a_sequence(self):
        images = LazyImages(self.encoded)
        self.assertEqual([images[-1].width, images[4].width], [14, 14])
        self.assertIsInstance(images[1:4], LazyImages)
        self.assertEqual([image.width for image in images[::-2]], [14, 12, 10])
        self.assertEqual(images[1:4][0].width, 11)
        for outside in (5, -6):
            with self.assertRaises(IndexError):
                images[outside]
        self.assertIsNot(images[0], images[0])
        self.assertEqual(len(pickle.loads(pickle.dumps(images))), 5)
        self.assertEqual(LazyImages(iter(self.encoded))[2].width, 12)
        self.assertEqual(LazyImages(self.encoded, transform=lambda image: image.resize((3, 3)))[0].size, (3, 3))
        self.assertEqual(repr(images), "LazyImages(5 sources, mode='RGB')")

    def test_mistakes_are_explained(self):
        opened = Image.open(io.BytesIO(self.encoded[0]))
        cases = [
            (lambda: LazyImages(self.file), TypeError, "a sequence of images, not one image"),
            (lambda: LazyImages([opened])[0], TypeError, "image 0 is already a PIL image, which keeps its pixels"),
            (lambda: LazyImages([3])[0], TypeError, "image 0 is a int; expected bytes, a path, base64"),
            (lambda: LazyImages(["/nowhere/a.png"])[0], FileNotFoundError, "neither an existing file nor base64 text: '/nowhere/a.png'"),
            (lambda: LazyImages([b"no image"])[0], ValueError, "image 0 is not an image that Pillow can read: b'no image'"),
            (lambda: LazyImages(["https://a.example/b.png"])[0], ValueError, "is a URL"),
            (lambda: LazyImages.dataset([{"text": 1}], field="image")[0], KeyError, "row 0 has no field 'image'; it has 'text'"),
            (lambda: LazyImages.dataset([7])[0], TypeError, "row 0 is a int; expected a dict or a list of messages"),
        ]
        for make, kind, text in cases:
            with self.assertRaises(kind) as raised:
                make()
            self.assertIn(text, str(raised.exception))
        opened.close()

    def rows(self):
        text = base64.b64encode(self.encoded[0]).decode()
        content = [{"type": "image", "image": text, "text": None}, {"type": "text", "text": "What is it?", "image": None}]
        return [
            {"messages": [{"role": "user", "content": content}, {"role": "assistant", "content": "A square"}], "label": 1},
            {"images": [self.encoded[1], self.encoded[2]], "prompt": "text"},
            {"image": {"bytes": self.encoded[3], "path": None}, "messages": [{"role": "user", "content": "plain"}]},
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + text}}]}],
        ]

    def test_rows_are_decoded_and_left_as_they_are(self):
        rows = self.rows()
        before = pickle.dumps(rows)
        dataset = LazyImages.dataset(rows)
        self.assertEqual(len(dataset), 4)
        part = dataset[0]["messages"][0]["content"][0]
        self.assertEqual((part["type"], part["image"].size), ("image", (10, 20)))
        self.assertEqual([image.size for image in dataset[1]["images"]], [(11, 20), (12, 20)])
        self.assertEqual(dataset[2]["image"].size, (13, 20))
        self.assertEqual(dataset[-1][0]["content"][0]["image"].size, (10, 20))
        # Unsloth's collator writes into the messages that it gets.
        taken = dataset[0]["messages"]
        taken[1]["content"] = [{"type": "text", "text": "changed"}]
        taken[0]["content"][0]["image"] = None
        self.assertEqual(pickle.dumps(rows), before)
        self.assertEqual(len(dataset[1:3]), 2)

    def test_a_collator_gets_decoded_rows(self):
        seen = []
        collator = LazyImages.collator(seen.append)
        collator(self.rows()[:3])
        self.assertEqual(seen[0][1]["images"][0].size, (11, 20))
        self.assertEqual(pickle.loads(pickle.dumps(LazyImages.collator(len)))([{"a": 1}, {"a": 2}]), 2)

        class Collator:
            pad_to_multiple_of = 8

        self.assertEqual(LazyImages.collator(Collator()).pad_to_multiple_of, 8)

    def test_memory_is_flat_where_a_list_of_opened_images_grows(self):
        script = """
import io, sys
from PIL import Image
from model_garden import LazyImages
from model_garden.memory import resident_bytes
encoded = []
for number in range(12):
    file = io.BytesIO()
    Image.new("RGB", (1500, 1000), (number, 0, 0)).save(file, "PNG")
    encoded.append(file.getvalue())
images = LazyImages(encoded) if sys.argv[1] == "lazy" else [Image.open(io.BytesIO(data)) for data in encoded]
images[0].resize((8, 8))
before = resident_bytes()
for image in images: image.resize((8, 8))
print((resident_bytes() - before) / (1 << 20))
"""
        grown = {}
        for kind in ("lazy", "opened"):
            words = [sys.executable, "-c", script, kind]
            grown[kind] = float(subprocess.check_output(words, env=support.environment(), universal_newlines=True))
        # 11 images at 4 bytes a pixel are 63 MiB.
        self.assertGreater(grown["opened"], 50)
        self.assertLess(grown["lazy"], 15)


if __name__ == "__main__":
    unittest.main()
