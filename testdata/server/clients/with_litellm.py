"""LiteLLM's functions for files and fine-tuning, pointed at our base URL, as its users use them.

`run.py` starts it with a server. LiteLLM has no uploads in parts, `method`, `metadata`, events, checkpoints, pausing or deleting of models; it sends the older
`hyperparameters`. Its errors are subclasses of OpenAI's.
"""

import asyncio
import importlib.metadata
import pathlib

import litellm
import openai

from steps import ADDRESS, BASE, KEY, MODEL, ROWS, end, raises, step, until

litellm.telemetry, litellm.suppress_debug_info = False, True
print(f"litellm {importlib.metadata.version('litellm')}, openai {openai.__version__}")
at, data = {"api_base": BASE, "api_key": KEY, "custom_llm_provider": "openai"}, pathlib.Path(ROWS).read_bytes()


def retrieve(job):
    return litellm.retrieve_fine_tuning_job(fine_tuning_job_id=job.id, **at)


with step("upload a file, retrieve, list"):
    with open(ROWS, "rb") as file:
        rows = litellm.create_file(file=file, purpose="fine-tune", **at)
    bad = litellm.create_file(file=("bad.jsonl", b"{}\n"), purpose="fine-tune", **at)
    found = litellm.file_retrieve(rows.id, **at)
    assert (found.filename, found.bytes) == ("rows.jsonl", len(data)), found
    assert {file.id for file in litellm.file_list(**at)} == {rows.id, bad.id}

with step("job with hyperparameters"):
    job = litellm.create_fine_tuning_job(model=MODEL, training_file=rows.id, suffix="numbers", seed=3, hyperparameters={"n_epochs": 2, "batch_size": 4}, **at)
    long = litellm.create_fine_tuning_job(model="tiny-model", training_file=rows.id, hyperparameters={"n_epochs": 1000}, **at)
    usual = litellm.create_fine_tuning_job(model="tiny-model", training_file=rows.id, **at)
    assert (job.seed, job.hyperparameters.n_epochs, job.metadata) == (3, 2, None), job

with step("job with bad rows"):
    failed = litellm.create_fine_tuning_job(model=MODEL, training_file=bad.id, **at)
    failed = until(lambda: retrieve(failed), "failed")
    assert failed.error.code == "invalid_training_file", failed.error

with step("job, retrieved until it is done"):
    job = until(lambda: retrieve(job), "succeeded")
    assert ":numbers:" in job.fine_tuned_model, job

with step("cancel"):
    for one in (usual, long):
        assert litellm.cancel_fine_tuning_job(fine_tuning_job_id=one.id, **at).id == one.id
        until(lambda: retrieve(one), "cancelled")

with step("list jobs in pages"):
    newest_first = [failed.id, usual.id, long.id, job.id]
    assert [found.id for found in litellm.list_fine_tuning_jobs(limit=1, **at)] == newest_first
    assert [found.id for found in litellm.list_fine_tuning_jobs(after=usual.id, **at)] == newest_first[2:]

with step("content of files"):
    assert litellm.file_content(job.result_files[0], **at).text.startswith("step,train_loss")
    assert litellm.file_content(rows.id, **at).content == data

with step("wrong state, sent once"):
    with raises(openai.BadRequestError):
        litellm.cancel_fine_tuning_job(fine_tuning_job_id=job.id, **at)

with step("what is not there"):
    with raises(openai.NotFoundError):
        litellm.create_fine_tuning_job(model=MODEL, training_file="file-unknown", **at)
    with raises(openai.NotFoundError):
        litellm.file_retrieve("file-unknown", **at)

with step("wrong key"):
    with raises(openai.AuthenticationError):
        litellm.file_list(**{**at, "api_key": "wrong"})

with step("models, list"):
    found = litellm.get_valid_models(check_provider_endpoint=True, custom_llm_provider="openai", api_key=KEY, api_base=ADDRESS)
    assert {MODEL, job.fine_tuned_model} <= {name.removeprefix("openai/") for name in found}, found

with step("asynchronous client"):
    async def look():
        sent = await litellm.acreate_file(file=("rows.jsonl", data), purpose="fine-tune", **at)
        found = [found.id async for found in await litellm.alist_fine_tuning_jobs(limit=2, **at)]
        return found, (await litellm.afile_delete(sent.id, **at)).deleted
    assert asyncio.run(look()) == (newest_first, True)

with step("delete a file"):
    assert litellm.file_delete(rows.id, **at).deleted
    with raises(openai.NotFoundError):
        litellm.file_content(rows.id, **at)

end()
