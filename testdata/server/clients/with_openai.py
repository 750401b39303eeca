"""OpenAI's Python client, of any series since 1, as its users use it: from rows to a result, and what goes wrong on the way.

`run.py` starts it with a server. Answers are validated against the client's types.
"""

import asyncio
import hashlib
import io
import os
import pathlib
import tempfile
import time

import openai

from steps import BASE, KEY, MODEL, ROWS, end, raises, step, until

print(f"openai {openai.__version__}")
client = openai.OpenAI(base_url=BASE, api_key=KEY, _strict_response_validation=True)
jobs, data = client.fine_tuning.jobs, pathlib.Path(ROWS).read_bytes()
supervised = {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 2, "batch_size": 4, "learning_rate_multiplier": "auto"}}}

with step("upload a file, retrieve, list"):
    with open(ROWS, "rb") as file:
        rows = client.files.create(file=file, purpose="fine-tune")
    held_out = client.files.create(file=("held-out.jsonl", data[: data.index(b"\n") + 1]), purpose="fine-tune", expires_after={"anchor": "created_at", "seconds": 3600})
    bad = client.files.create(file=("bad.jsonl", io.BytesIO(b'{"messages": [{"role": "user", "content": "no answer"}]}\n')), purpose="fine-tune")
    assert held_out.expires_at == held_out.created_at + 3600, held_out
    found = client.files.wait_for_processing(rows.id)
    assert (found.filename, found.bytes, found.status) == ("rows.jsonl", len(data), "processed"), found
    assert [file.id for file in client.files.list(limit=1, order="asc", purpose="fine-tune")] == [rows.id, held_out.id, bad.id]

with step("upload in parts"):
    upload = client.uploads.upload_file_chunked(file=pathlib.Path(ROWS), mime_type="text/jsonl", purpose="fine-tune", part_size=5000, md5=hashlib.md5(data).hexdigest())
    assert (upload.status, client.files.content(upload.file.id).read()) == ("completed", data), upload
    upload = client.uploads.create(bytes=4, filename="a.jsonl", mime_type="text/jsonl", purpose="fine-tune")
    part = client.uploads.parts.create(upload.id, data=b"{}")
    with raises(openai.BadRequestError):
        client.uploads.complete(upload.id, part_ids=[part.id])
    assert client.uploads.cancel(upload.id).status == "cancelled"

with step("job with method"):
    job = jobs.create(
        model=MODEL, training_file=rows.id, validation_file=held_out.id, suffix="numbers", seed=3, metadata={"team": "vision", "Größe": "a b&c=d"}, method=supervised,
        extra_body={"model_garden": {"recipe": {"threads": 1}}},
    )
    assert (job.metadata, job.seed, job.method.supervised.hyperparameters.n_epochs) == ({"team": "vision", "Größe": "a b&c=d"}, 3, 2), job

with step("job with hyperparameters"):
    long = jobs.create(model="tiny-model", training_file=rows.id, hyperparameters={"n_epochs": 1000})
    assert (long.hyperparameters.n_epochs, long.method.type, long.model) == (1000, "supervised", "tiny-model"), long

with step("job, idempotent"):
    order = {"model": MODEL, "training_file": rows.id, "hyperparameters": {"n_epochs": 1000}, "extra_headers": {"Idempotency-Key": "once"}}
    once, again = jobs.create(**order), jobs.create(**order)
    assert once.id == again.id
    with raises(openai.UnprocessableEntityError):
        jobs.create(**{**order, "seed": 5})

with step("job with bad rows"):
    failed = until(lambda: jobs.retrieve(jobs.create(model=MODEL, training_file=bad.id, extra_headers={"Idempotency-Key": "bad"}).id), "failed")
    assert (failed.error.code, failed.error.param) == ("invalid_training_file", "training_file"), failed.error
    assert "no answer" in failed.error.message, failed.error

with step("job, retrieved until it is done"):
    job = until(lambda: jobs.retrieve(job.id), "succeeded")
    assert job.fine_tuned_model.startswith("ft:") and ":numbers:" in job.fine_tuned_model and job.trained_tokens > 0, job

with step("pause, resume, cancel"):
    until(lambda: jobs.retrieve(long.id), "running")
    # It can be saved once it has trained.
    while not any(event.type == "metrics" for event in jobs.list_events(long.id, limit=10).data):
        time.sleep(0.1)
    assert jobs.pause(long.id).id == long.id
    until(lambda: jobs.retrieve(long.id), "queued")
    assert jobs.resume(long.id).status in ("queued", "running")
    jobs.cancel(long.id)
    until(lambda: jobs.retrieve(long.id), "cancelled")
    assert jobs.cancel(once.id).id == once.id

with step("list jobs in pages"):
    page = jobs.list(limit=1)
    assert len(page.data) == 1 and page.has_more and page.has_next_page()
    assert page.get_next_page().data == jobs.list(limit=1, after=page.data[0].id).data
    newest_first = [failed.id, once.id, long.id, job.id]
    assert [found.id for found in jobs.list(limit=1)] == newest_first
    assert [found.id for found in jobs.list()] == newest_first

with step("filter jobs by metadata"):
    assert [found.id for found in jobs.list(metadata={"team": "vision"})] == [job.id]
    assert [found.id for found in jobs.list(metadata={"team": "vision", "Größe": "a b&c=d"})] == [job.id]
    assert not list(jobs.list(metadata={"team": "other"})) and not list(jobs.list(metadata={"team": "vision", "x": "y"}))
    assert [found.id for found in jobs.list(extra_query={"metadata": "null"})] == newest_first[:3]

with step("events"):
    events = list(jobs.list_events(job.id, limit=2))
    assert len({event.id for event in events}) == len(events) > 6 and events == list(jobs.list_events(job.id, limit=100))
    assert sum(event.type == "metrics" and "train_loss" in event.data for event in events) == 6
    assert [event.created_at for event in events] == sorted((event.created_at for event in events), reverse=True)

with step("checkpoints"):
    checkpoints = list(jobs.checkpoints.list(job.id, limit=1))
    assert [checkpoint.step_number for checkpoint in checkpoints] == [6, 3], checkpoints
    assert checkpoints[0].metrics.valid_loss > 0 and checkpoints[0].fine_tuning_job_id == job.id

with step("content of files"):
    table = client.files.content(job.result_files[0])
    assert table.text.startswith("step,train_loss") and client.files.retrieve(job.result_files[0]).purpose == "fine-tune-results"
    with tempfile.TemporaryDirectory() as folder, client.files.with_streaming_response.content(rows.id) as answer:
        answer.stream_to_file(os.path.join(folder, "rows.jsonl"))
        assert pathlib.Path(folder, "rows.jsonl").read_bytes() == data

with step("wrong state, sent once"):
    for act in (jobs.cancel, jobs.pause, jobs.resume):
        with raises(openai.BadRequestError) as caught:
            act(job.id)
        assert caught[0].code == "wrong_state" and caught[0].type == "invalid_request_error" and caught[0].status_code == 400, caught

with step("what is not there"):
    with raises(openai.NotFoundError) as caught:
        jobs.create(model=MODEL, training_file="file-unknown")
    assert caught[0].param == "training_file", caught[0].body
    for act in (lambda: client.files.retrieve("file-unknown"), lambda: client.files.content("file-unknown"), lambda: client.files.delete("file-unknown"),
                lambda: jobs.retrieve("ftjob-unknown"), lambda: jobs.list_events("ftjob-unknown"), lambda: client.models.retrieve("gpt-5"),
                lambda: jobs.create(model="gpt-5", training_file=rows.id)):
        with raises(openai.NotFoundError):
            act()

with step("wrong values"):
    for param, wrong in {"method.type": {"method": {"type": "dpo"}}, "integrations": {"integrations": [{"type": "wandb", "wandb": {"project": "p"}}]},
                         "suffix": {"suffix": "x" * 65}, "hyperparameters.n_epochs": {"hyperparameters": {"n_epochs": 0}}, "seed": {"seed": -1}}.items():
        with raises(openai.BadRequestError) as caught:
            jobs.create(model=MODEL, training_file=rows.id, **wrong)
        assert caught[0].param == param, caught[0].body

with step("wrong key"):
    for key in ("wrong", KEY + "x"):
        with raises(openai.AuthenticationError) as caught:
            client.with_options(api_key=key).models.list()
        assert caught[0].code == "invalid_api_key", caught[0].body

with step("request ids"):
    assert client.files.retrieve(rows.id)._request_id.startswith("req_") and jobs.list(limit=1)._request_id.startswith("req_")
    raw = jobs.with_raw_response.retrieve(job.id, extra_headers={"X-Request-ID": "mine"})
    assert raw.headers["x-request-id"] == raw.request_id == "mine" and raw.parse() == jobs.retrieve(job.id)
    with raises(openai.NotFoundError) as caught:
        client.files.retrieve("file-unknown")
    assert caught[0].request_id.startswith("req_")

with step("models, list, retrieve, delete"):
    assert {"tiny-model", MODEL, job.fine_tuned_model} <= {model.id for model in client.models.list()}
    assert client.models.retrieve(job.fine_tuned_model).id == job.fine_tuned_model and client.models.retrieve(checkpoints[1].fine_tuned_model_checkpoint)
    more = jobs.create(model=job.fine_tuned_model, training_file=rows.id, hyperparameters={"n_epochs": 1})
    until(lambda: jobs.retrieve(more.id), "succeeded")
    assert client.models.delete(job.fine_tuned_model).deleted
    with raises(openai.NotFoundError):
        client.models.retrieve(job.fine_tuned_model)
    with raises(openai.PermissionDeniedError):
        client.models.delete("tiny-model")

with step("delete a file"):
    assert client.files.delete(rows.id).deleted
    with raises(openai.NotFoundError):
        client.files.retrieve(rows.id)

with step("asynchronous client"):
    async def look():
        async with openai.AsyncOpenAI(base_url=BASE, api_key=KEY, _strict_response_validation=True) as client:
            sent = await client.files.create(file=("rows.jsonl", data), purpose="fine-tune")
            found = [found.id async for found in client.fine_tuning.jobs.list(limit=2)]
            return found, (await client.files.content(sent.id)).read() == data, (await client.files.delete(sent.id)).deleted
    assert asyncio.run(look()) == ([more.id, *newest_first], True, True)

with step("Azure's client, api-version"):
    # It sends an Entra token as others send a key; a key would be in the header `api-key`.
    azure = openai.AzureOpenAI(base_url=BASE, azure_ad_token=KEY, api_version="2025-04-01-preview", _strict_response_validation=True)
    assert azure.fine_tuning.jobs.retrieve(job.id).id == job.id
    assert len(list(azure.fine_tuning.jobs.list(limit=1, metadata={"team": "vision"}))) == 1
    sent = azure.files.create(file=("rows.jsonl", data), purpose="fine-tune")
    assert azure.files.delete(sent.id).deleted

with step("Azure's client, azure_endpoint and key"):
    # It asks for `/openai/files` then.
    azure = openai.AzureOpenAI(azure_endpoint=BASE.removesuffix("/v1"), api_key=KEY, api_version="2024-10-21", _strict_response_validation=True)
    sent = azure.files.create(file=("rows.jsonl", data), purpose="fine-tune")
    assert azure.files.content(sent.id).read() == data and azure.files.delete(sent.id).deleted
    assert azure.fine_tuning.jobs.retrieve(job.id).id == job.id
    assert azure.models.retrieve(MODEL).id == MODEL

end()
