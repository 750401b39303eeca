"""Workarounds for growing host memory, tried on a loop that shows the common mistake: images opened lazily and kept in a list.

    python audit_loop.py

Needs torch and Pillow. Each image is decoded when it is first used, and its pixels stay on the object. Nothing that is usually tried (a collection, an emptied
cache, fewer workers) gives them back; decoding on access does, which `lazy=True` stands for.
"""
import io

MEGAPIXELS = 1.2


def photographs(count):
    """Compressed images of about the same size, all different."""
    import random

    from PIL import Image

    width = int((MEGAPIXELS * 1e6 * 4 / 3) ** 0.5)
    height = width * 3 // 4
    for number in range(count):
        picture = Image.effect_noise((width // 8, height // 8), 20 + random.Random(number).random() * 60).convert("RGB").resize((width, height))
        encoded = io.BytesIO()
        picture.save(encoded, "JPEG")
        yield encoded.getvalue()


def loop(lazy=False, num_workers=0, pin_memory=False, batch_size=2, examples=160):
    """A training of one epoch after the other; each `yield` ends a step."""
    import torch
    from PIL import Image

    import model_garden

    encoded = list(photographs(examples))
    images = model_garden.LazyImages(encoded) if lazy else [Image.open(io.BytesIO(data)) for data in encoded]

    def collate(numbers):
        batch = [images[number].convert("RGB").resize((64, 64)) for number in numbers]
        return torch.stack([torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8) for image in batch]).float() / 255

    loader = torch.utils.data.DataLoader(range(examples), batch_size, collate_fn=collate, num_workers=num_workers, pin_memory=pin_memory, shuffle=True)
    model = torch.nn.Sequential(torch.nn.Linear(64 * 64 * 3, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        for batch in loader:
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield


if __name__ == "__main__":
    import model_garden

    tried = ["gc.collect", "malloc_trim", "empty_cache", "MALLOC_ARENA_MAX=2", "subprocess/20", "num_workers=2", "lazy=True"]
    model_garden.audit(loop, tried, report="audit.html", record="tried")
