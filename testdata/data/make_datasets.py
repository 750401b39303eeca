"""Makes `datasets/`: the same few rows in each format that people keep them in.

    venv/bin/python make_datasets.py --out datasets
"""

import argparse
import datetime
import base64
import io
import json
import random
import shutil
import tarfile
from pathlib import Path

import pyarrow
import pyarrow.parquet
from PIL import Image, ImageDraw

ROWS = [
    {"images": ["gate.jpg"], "prompt": "Which gate is it?", "response": "Gate B14."},
    {"images": ["receipt.png", "gate.jpg"], "prompt": "What do the two have in common?", "response": "A number: 14."},
    {"images": [], "prompt": "Wie heißt die Hauptstadt von Österreich?", "response": "Wien."},
]
# Only in formats that have several turns.
TURNS = {
    "system": "You read receipts.",
    "turns": [
        ("user", [], "Hello."),
        ("assistant", [], "Hello. Show me a receipt."),
        ("user", ["receipt.png"], "What is the total?"),
        ("assistant", [], '{"total": 14.2, "currency": "EUR"}'),
    ],
}


def draw(text, size, kind, **options):
    """A picture with a text on coloured stripes, as a file's bytes."""
    chance = random.Random(text)
    picture = Image.new("RGB", size, (235, 232, 220))
    pencil = ImageDraw.Draw(picture)
    for stripe in range(6):
        colour = tuple(chance.randrange(90, 230) for _ in range(3))
        pencil.rectangle((0, stripe * size[1] // 6, chance.randrange(size[0]), (stripe + 1) * size[1] // 6 - 3), fill=colour)
    pencil.text((8, size[1] // 2 - 6), text, fill=(20, 20, 30))
    out = io.BytesIO()
    picture.save(out, kind, **options)
    return out.getvalue()


def data_uri(name, data):
    return f"data:image/{'png' if name.endswith('png') else 'jpeg'};base64,{base64.b64encode(data).decode()}"


def messages(row, part):
    parts = [part(name) for name in row["images"]] + [{"type": "text", "text": row["prompt"]}]
    content = parts if row["images"] else row["prompt"]
    return [{"role": "user", "content": content}, {"role": "assistant", "content": row["response"]}]


def turns(part):
    chat = [{"role": "system", "content": TURNS["system"]}]
    for role, images, text in TURNS["turns"]:
        content = [part(name) for name in images] + [{"type": "text", "text": text}] if images else text
        chat.append({"role": role, "content": content})
    return chat


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def write_json(out, pictures):
    def in_row(row):
        images = [f"pictures/{name}" for name in row["images"]]
        return {"image": images[0]} if len(images) == 1 else {"images": images} if images else {}

    write_lines(out / "questions.jsonl", [{"prompt": row["prompt"], **in_row(row), "response": row["response"]} for row in ROWS])
    older = [{"id": number, "text": row["prompt"], **in_row(row), "output": row["response"]} for number, row in enumerate(ROWS)]
    (out / "questions.json").write_text(json.dumps(older, indent=2), encoding="utf-8")

    kinds = {
        "chat.jsonl": lambda name: {"type": "image_url", "image_url": {"url": data_uri(name, pictures[name])}},
        "chat_paths.jsonl": lambda name: {"type": "image_url", "image_url": f"pictures/{name}"},
        "chat_older.jsonl": lambda name: {"type": "image", "image": base64.b64encode(pictures[name]).decode()},
    }
    for name, part in kinds.items():
        write_lines(out / name, [{"messages": messages(row, part)} for row in ROWS] + [{"messages": turns(part)}])

    def sharegpt(row, human, gpt):
        value = "<image>\n" * len(row["images"]) + row["prompt"]
        chat = [{"from": human, "value": value}, {"from": gpt, "value": row["response"]}]
        return {"id": "x", **in_row(row), "conversations": chat}

    names = {"system": "system", "user": "human", "assistant": "gpt"}
    several = [{"from": "system", "value": TURNS["system"]}]
    several += [{"from": names[role], "value": "<image>\n" * len(images) + text} for role, images, text in TURNS["turns"]]
    rows = [sharegpt(ROWS[0], "human", "gpt"), sharegpt(ROWS[1], "user", "assistant"), sharegpt(ROWS[2], "human", "gpt")]
    rows.append({"image": "pictures/receipt.png", "conversations": several})
    (out / "sharegpt.json").write_text(json.dumps(rows), encoding="utf-8")


def write_folder(out, pictures):
    folder = out / "folder" / "train"
    folder.mkdir(parents=True)
    (folder / "gate.jpg").write_bytes(pictures["gate.jpg"])
    rows = [{"file_name": "gate.jpg", "prompt": ROWS[0]["prompt"], "response": ROWS[0]["response"]}]
    rows.append({"file_name": "gate.jpg", "text": "A sign at an airport."})
    write_lines(folder / "metadata.jsonl", rows)


def write_tar(out, pictures):
    folder = out / "shards"
    folder.mkdir()
    number = 0
    for shard, rows in enumerate((ROWS[:2], ROWS[2:])):
        with tarfile.open(folder / f"train-{shard:06}.tar", "w", format=tarfile.GNU_FORMAT if shard else tarfile.PAX_FORMAT) as archive:
            def add(name, data):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))

            for row in rows:
                # The second shard has names that need a header of their own.
                key = f"rows/{number:06}" if shard == 0 else f"{'long_' * 30}/{number:06}"
                for place, name in enumerate(row["images"]):
                    add(f"{key}.{place}.{name.rsplit('.')[-1]}", pictures[name])
                add(f"{key}.json", json.dumps({"prompt": row["prompt"], "response": row["response"]}).encode())
                number += 1
            if shard == 1:
                add("captions/a.jpg", pictures["gate.jpg"])
                add("captions/a.txt", b"A sign at an airport.\n")


def write_parquet(out, pictures):
    image = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    stored = lambda name: {"bytes": pictures[name], "path": name}
    plain = pyarrow.schema([("id", pyarrow.int64()), ("images", pyarrow.list_(image)), ("prompt", pyarrow.string()), ("response", pyarrow.large_string())])
    rows = [{"id": 1, "images": [stored(name) for name in row["images"]], "prompt": row["prompt"], "response": row["response"]} for row in ROWS]
    table = pyarrow.Table.from_pylist(rows, schema=plain)
    kinds = {
        "snappy": {"compression": "snappy"},
        "zstd": {"compression": "zstd", "data_page_version": "2.0"},
        "gzip": {"compression": "gzip", "use_dictionary": False},
        "plain": {"compression": "none", "use_dictionary": False, "data_page_version": "2.0", "row_group_size": 2},
        "brotli": {"compression": "brotli"},
    }
    folder = out / "parquet"
    folder.mkdir()
    for name, options in kinds.items():
        pyarrow.parquet.write_table(table, folder / f"{name}.parquet", **options)

    # As `datasets` pushes it: conversations as lists of structures, one of which may have a picture.
    part = pyarrow.struct([("type", pyarrow.string()), ("text", pyarrow.string()), ("index", pyarrow.int64())])
    message = pyarrow.struct([("role", pyarrow.string()), ("content", pyarrow.list_(part))])
    chat = pyarrow.schema([("messages", pyarrow.list_(message)), ("images", pyarrow.list_(image))])

    def as_parts(conversation):
        return [
            {"role": said["role"], "content": said["content"] if isinstance(said["content"], list) else [{"type": "text", "text": said["content"]}]}
            for said in conversation
        ]

    show = lambda name: {"type": "image"}
    rows = [{"messages": as_parts(messages(row, show)), "images": [stored(name) for name in row["images"]]} for row in ROWS]
    rows.append({"messages": as_parts(turns(show)), "images": [stored("receipt.png")]})
    snapshot = out / "snapshot" / "data"
    snapshot.mkdir(parents=True)
    (out / "snapshot" / "README.md").write_text("As the hub keeps it.\n")
    for name, some in {"train-00000-of-00002": rows[:2], "train-00001-of-00002": rows[2:], "validation-00000-of-00001": rows[:1]}.items():
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(some, schema=chat), snapshot / f"{name}.parquet")

    # One image column, as most datasets of the hub have it; several pages and row groups.
    single = pyarrow.schema([("image", image), ("question", pyarrow.string()), ("answer", pyarrow.string())])
    rows = [{"image": stored(("gate.jpg", "receipt.png")[number % 2]), "question": f"Row {number}?", "answer": f"Row {number}."} for number in range(40)]
    table = pyarrow.Table.from_pylist(rows, schema=single)
    pyarrow.parquet.write_table(table, folder / "pages.parquet", row_group_size=16, data_page_size=64, write_batch_size=3, use_dictionary=["image.path"])


def write_tools(out):
    """Tools and calls as JSON Lines, and as the tables that `datasets` makes of them: each structure has the fields of all rows, null where a row has none."""
    arguments = [{"city": "Paris", "days": 2}, {"scale": 0.5, "is_now": True, "near": [1, 2]}, {"city": "Rome", "is_now": False}]
    call = lambda given: {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": given}}], "weight": 1}
    tool = lambda fields: {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": fields}}}
    rows = [
        {"messages": [{"role": "user", "content": f"Call {number}."}, call(given), {"role": "tool", "content": "done"}, {"role": "assistant", "content": "Yes.", "weight": number % 2}, {"role": "user", "content": "And?"}, {"role": "assistant", "content": "No."}],
         "tools": [tool({name: {"type": "string"} for name in given})], "score": 0.5, "taken": "2026-11-15"}
        for number, given in enumerate(arguments)
    ]
    write_lines(out / "tools.jsonl", rows)
    for row in rows:
        row["taken"] = datetime.date.fromisoformat(row["taken"])
    table = pyarrow.Table.from_pylist(rows)
    pyarrow.parquet.write_table(table, out / "tools.parquet")
    pyarrow.parquet.write_table(table, out / "tools-v2.parquet", data_page_version="2.0", use_dictionary=False, compression="zstd")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    shutil.rmtree(out, ignore_errors=True)
    (out / "pictures").mkdir(parents=True)
    pictures = {
        "gate.jpg": draw("GATE B14", (96, 64), "JPEG", quality=70),
        "receipt.png": draw("Total EUR 14.20", (120, 60), "PNG", optimize=True),
    }
    for name, data in pictures.items():
        (out / "pictures" / name).write_bytes(data)
    write_json(out, pictures)
    write_folder(out, pictures)
    write_tar(out, pictures)
    write_parquet(out, pictures)
    write_tools(out)


if __name__ == "__main__":
    main()
