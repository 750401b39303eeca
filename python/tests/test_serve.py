"""`model-garden serve` with OpenAI's own client, as strict about answers as it can be."""
import base64
import json
import os
import subprocess
import time
import unittest
import urllib.request

from support import FolderCase, REPOSITORY, binary, environment, needs_binary

try:
    import openai
except ImportError:
    openai = None

MODEL = os.path.join(REPOSITORY, "testdata", "tiny-model")
PICTURES = os.path.join(REPOSITORY, "testdata", "data", "recorded", "pictures")


def rows(count):
    """Rows in OpenAI's form for vision."""
    names = sorted(name for name in os.listdir(PICTURES) if name.endswith(".png"))
    path = min((os.path.join(PICTURES, name) for name in names), key=os.path.getsize)
    with open(path, "rb") as file:
        url = "data:image/png;base64," + base64.b64encode(file.read()).decode()
    for number in range(count):
        picture = {"type": "image_url", "image_url": {"url": url, "detail": "low"}}
        question = {"role": "user", "content": [{"type": "text", "text": f"Which number is {number}?"}, picture]}
        answer = {"role": "assistant", "content": f"number {number % 3}", "weight": 1}
        yield json.dumps({"messages": [{"role": "system", "content": "Answer."}, question, answer]}) + "\n"


@needs_binary
@unittest.skipUnless(openai, "the `openai` package is not installed")
class Client(FolderCase):
    def setUp(self):
        super().setUp()
        words = [binary(), "serve", "--port", "0", "--device", "cpu", "--data-dir", os.path.join(self.folder, "data")]
        words += ["--models", MODEL, "--alias", "gpt-4o-2024-08-06=tiny-model"]
        self.server = subprocess.Popen(words, stderr=subprocess.PIPE, env=environment(), universal_newlines=True)
        self.addCleanup(self.server.stderr.close)
        self.addCleanup(self.server.wait)
        self.addCleanup(self.server.terminate)
        self.address = "http://" + self.server.stderr.readline().split("http://")[1].split("/")[0]
        self.client = openai.OpenAI(
            base_url=self.address + "/v1", api_key="none", _strict_response_validation=True, max_retries=0
        )
        self.addCleanup(self.client.close)

    def live(self, job):
        """What is told about a job until it is over."""
        with urllib.request.urlopen(f"{self.address}/api/jobs/{job}/live") as lines:
            return [line.decode().rstrip() for line in lines]

    def upload(self, count):
        path = os.path.join(self.folder, f"rows-{count}.jsonl")
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(rows(count))
        with open(path, "rb") as file:
            return self.client.files.create(file=file, purpose="fine-tune")

    def test_from_rows_to_a_result(self):
        jobs = self.client.fine_tuning.jobs
        train, held_out = self.upload(12), self.upload(4)
        self.assertEqual(self.client.files.retrieve(train.id).filename, "rows-12.jsonl")
        hyperparameters = {"n_epochs": 2, "batch_size": 2, "learning_rate_multiplier": "auto"}
        job = jobs.create(
            model="gpt-4o-2024-08-06", training_file=train.id, validation_file=held_out.id, suffix="numbers", seed=3,
            metadata={"team": "vision"}, method={"type": "supervised", "supervised": {"hyperparameters": hyperparameters}},
            extra_body={"model_garden": {"priority": 1, "recipe": {"threads": 1, "max_pixels": 3136}}},
        )
        kinds = {line.split(": ")[1] for line in self.live(job.id) if line.startswith("event: ")}
        self.assertTrue({"event", "sample", "log", "end"} <= kinds, kinds)
        job = jobs.retrieve(job.id)
        self.assertEqual((job.status, job.error, job.metadata), ("succeeded", None, {"team": "vision"}))
        self.assertTrue(job.fine_tuned_model.startswith("ft:tiny-model::numbers:"), job.fine_tuned_model)
        self.assertGreater(job.trained_tokens, 0)
        self.assertEqual((job.method.supervised.hyperparameters.n_epochs, job.hyperparameters.batch_size), (2, 2))

        events = list(jobs.list_events(job.id, limit=3))
        self.assertGreater(len(events), 12, "pages follow each other")
        self.assertEqual(len({event.id for event in events}), len(events))
        losses = [event.data["train_loss"] for event in events if event.type == "metrics" and "train_loss" in event.data]
        self.assertEqual(len(losses), 12)
        checkpoints = list(jobs.checkpoints.list(job.id, limit=1))
        self.assertEqual([checkpoint.step_number for checkpoint in checkpoints], [12, 6])
        self.assertIsNotNone(checkpoints[0].metrics.valid_loss)
        table = self.client.files.content(job.result_files[0]).text.splitlines()
        self.assertTrue(table[0].startswith("step,train_loss"), table[0])
        self.assertEqual(table[-1].split(",")[0], "12")

        self.assertEqual([found.id for found in jobs.list(metadata={"team": "vision"})], [job.id])
        self.assertEqual([found.id for found in jobs.list(metadata={"team": "other"})], [])
        self.assertIn(job.fine_tuned_model, [model.id for model in self.client.models.list()])
        self.assertTrue(self.client.models.delete(job.fine_tuned_model).deleted)
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve(job.fine_tuned_model)
        self.assertTrue(self.client.files.delete(train.id).deleted)

    def test_pause_resume_cancel(self):
        jobs = self.client.fine_tuning.jobs
        train = self.upload(12)
        job = jobs.create(
            model="tiny-model", training_file=train.id, hyperparameters={"n_epochs": 500, "batch_size": 2},
            extra_body={"model_garden": {"recipe": {"threads": 1, "max_pixels": 3136}}},
        )
        while jobs.retrieve(job.id).status == "validating_files":
            time.sleep(0.1)
        for act in (jobs.pause, jobs.resume, jobs.cancel):
            act(job.id)
        self.live(job.id)
        self.assertEqual(jobs.retrieve(job.id).status, "cancelled")
        with self.assertRaises(openai.BadRequestError):
            jobs.cancel(job.id)

    def test_an_upload_in_parts(self):
        data = "".join(rows(40)).encode()
        uploads = self.client.uploads
        upload = uploads.upload_file_chunked(
            file=data, filename="rows.jsonl", bytes=len(data), mime_type="text/jsonl", purpose="fine-tune", part_size=9000
        )
        self.assertEqual((upload.status, upload.file.bytes), ("completed", len(data)))
        self.assertEqual(self.client.files.content(upload.file.id).read(), data)

    def test_errors_have_their_shape(self):
        with self.assertRaises(openai.NotFoundError) as caught:
            self.client.fine_tuning.jobs.create(model="gpt-5", training_file="file-x")
        self.assertEqual((caught.exception.code, caught.exception.param), ("model_not_found", "model"))
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.fine_tuning.jobs.create(model="tiny-model", training_file="file-x", method={"type": "dpo"})
        self.assertEqual(caught.exception.param, "method.type")
