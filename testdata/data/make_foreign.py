"""Writes the archives, tables and folders of `foreign/`: datasets in the forms of other tools. The texts beside them are written by hand.

    venv/bin/python make_foreign.py --out foreign

What each tool writes is read in its documentation: img2dataset's README and writer.py, Hugging Face's `datasets` (image folders, the columns of
pictures), Donut's README (`ground_truth`), webdataset's names of members. Needs pyarrow.
"""

import argparse
import csv
import io
import json
import pathlib
import shutil
import tarfile
from base64 import b64encode
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq

HERE = pathlib.Path(__file__).parent
PICTURES = HERE / "datasets" / "pictures"
GATE, RECEIPT = (PICTURES / "gate.jpg").read_bytes(), (PICTURES / "receipt.png").read_bytes()


def meta(key, caption, status="success"):
    """What img2dataset says about a picture."""
    return {"caption": caption, "url": f"https://example.org/{key}.jpg", "key": key, "status": status, "error_message": None,
            "width": 256, "height": 256, "original_width": 640, "original_height": 480, "exif": "{}", "sha256": "0" * 64}


def archive(path, members):
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in members:
            data = data.encode() if isinstance(data, str) else data
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def table(path, rows, **types):
    columns = {name: [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)}
    arrays = {name: pa.array(values, types.get(name)) for name, values in columns.items()}
    pq.write_table(pa.table(arrays), path)


def folder(path):
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


def img2dataset(out):
    """Its archives have a table and statistics beside them, and each caption twice."""
    shards = folder(out / "img2dataset")
    rows = [meta("000000000", "A sign at an airport."), meta("000000001", "A receipt.")]
    members = []
    for row in rows:
        members += [(row["key"] + ".jpg", GATE), (row["key"] + ".txt", row["caption"]), (row["key"] + ".json", json.dumps(row, indent=4))]
    archive(shards / "00000.tar", members)
    table(shards / "00000.parquet", rows)
    (shards / "00000_stats.json").write_text(json.dumps({"count": 2, "successes": 2, "status_dict": {"success": 2}}, indent=4))
    failed = meta("000000001", "A receipt.", "failed_to_download")
    table(out / "img2dataset.parquet", [{**rows[0], "txt": rows[0]["caption"], "jpg": GATE}, {**failed, "txt": None, "jpg": None}], jpg=pa.binary())
    archive(out / "img2dataset-other-caption.tar", [("0.jpg", GATE), ("0.txt", "A sign."), ("0.json", json.dumps(meta("0", "An airport.")))])


def webdataset(out):
    archive(out / "webdataset-cls.tar", [("0.jpg", GATE), ("0.cls", "7"), ("0.txt", "A sign.")])
    archive(out / "webdataset-questions.tar", [("0.jpg", GATE), ("0.question.txt", "Which gate?"), ("0.answer.txt", "B14.")])
    archive(out / "webdataset-formats.tar", [("0.avif", b"\0\0\0 ftypavif"), ("0.json", '{"prompt": "q", "response": "a"}'), ("1.jpg", GATE), ("1.wav", b"RIFF"), ("1.txt", "A sign.")])
    archive(out / "webdataset-masks.tar", [("0.jpg", GATE), ("0.mask.png", RECEIPT), ("0.txt", "A sign.")])


def hub(out):
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    picture = {"bytes": GATE, "path": "gate.jpg"}
    table(out / "hub-caption.parquet", [{"image": picture, "text": "A sign at an airport."}], image=image)
    table(out / "hub-label.parquet", [{"image": picture, "label": 3}], image=image)
    table(out / "hub-other-column.parquet", [{"photo": picture, "question": "Which gate?", "answer": "B14."}], photo=image)
    table(out / "hub-query.parquet", [{"id": "1", "image": picture, "query": "Which gate?", "label": ["B14"], "human_or_machine": 0}], image=image)
    pairs = pa.list_(pa.struct([("user", pa.string()), ("assistant", pa.string()), ("source", pa.string())]))
    rows = [{"images": [picture], "texts": [{"user": "Which gate?", "assistant": "B14.", "source": "x"}]}]
    table(out / "the-cauldron.parquet", rows, images=pa.list_(image), texts=pairs)


    table(out / "mmbench.parquet", [{"question": "q", "hint": None, "A": "x", "B": "y", "C": None, "answer": "A", "image": picture}], image=image, C=pa.string())
    table(out / "hub-captions.parquet", [{"image": picture, "caption": ["A sign.", "An airport."]}, {"image": picture, "caption": ["A sign."]}], image=image)
    # Names that say nothing: what the columns are shows in their values.
    base64 = b64encode(GATE).decode()
    table(out / "hub-values.parquet", [{"q": 1, "blob": GATE, "question": "q", "answer": "a"}])
    table(out / "hub-base64.parquet", [{"data_uri": base64, "question": "q", "answer": "a"}])
    table(out / "hub-text.parquet", [{"text": "The sky is blue.", "id": 1}])
    table(out / "hub-skip.parquet", [{"question": "q", "answer": "a", "skip": False}, {"question": "q", "answer": "a", "skip": True}])
    table(out / "hub-types.parquet", [{"question": "q", "answer": Decimal("3.14")}])
    pair = [{"from": "human", "value": "q", "weight": None}, {"from": "gpt", "value": "a", "weight": None}]
    table(out / "openhermes.parquet", [{"conversations": pair, "system_prompt": None, "custom_instruction": None, "source": "x", "category": None, "model_name": None, "skip_prompt_formatting": None}])
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    other = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "b"}]
    table(out / "preference-turns.parquet", [{"chosen": turns, "rejected": other, "score_chosen": 1.0, "score_rejected": 0.5}])


def folders(out):
    donut = folder(out / "donut")
    truth = json.dumps({"gt_parse": {"gate": "B14"}})
    (donut / "metadata.jsonl").write_text(json.dumps({"file_name": "gate.jpg", "ground_truth": truth}) + "\n")
    captions = folder(out / "imagefolder")
    (captions / "metadata.jsonl").write_text(json.dumps({"file_name": "gate.jpg", "text": "A sign at an airport."}) + "\n")
    tables = folder(out / "imagefolder-csv")
    with open(tables / "metadata.csv", "w", newline="") as file:
        csv.writer(file).writerows([["file_name", "text"], ["gate.jpg", "A sign, at an airport."]])
    for path in (donut, captions, tables):
        (path / "gate.jpg").write_bytes(GATE)
    texts = folder(out / "captions-beside")
    (texts / "gate.jpg").write_bytes(GATE)
    (texts / "gate.txt").write_text("A sign at an airport.\n")
    classes = folder(out / "classes")
    for name in ("receipt", "sign"):
        (classes / name).mkdir()
    (classes / "sign" / "gate.jpg").write_bytes(GATE)
    (classes / "receipt" / "receipt.png").write_bytes(RECEIPT)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path, required=True)
    out = parser.parse_args().out
    out.mkdir(exist_ok=True)
    img2dataset(out), webdataset(out), hub(out), folders(out)
