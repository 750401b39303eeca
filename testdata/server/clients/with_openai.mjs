// OpenAI's client for Node, as its users use it: from rows to a result, and what goes wrong on the way.
//
// `run.py` starts it with a server. At the end TypeScript compares the answers with the client's types.

import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import fs from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";
import OpenAI, { AzureOpenAI, toFile } from "openai";

const { GARDEN_ADDRESS: address, GARDEN_KEY: key, GARDEN_ROWS: rowsPath } = process.env;
const here = path.dirname(fileURLToPath(import.meta.url));
const { version } = JSON.parse(fs.readFileSync(path.join(here, "node_modules/openai/package.json"), "utf8"));
console.log(`openai ${version}, node ${process.version}`);
const base = `${address}/v1`, model = "gpt-4o-2024-08-06", data = fs.readFileSync(rowsPath);
const client = new OpenAI({ baseURL: base, apiKey: key }), { jobs } = client.fineTuning;
// Answers, by the type that they should have.
const answers = [];
let failures = 0;

/** An operation. The next one is tried, too, if it fails. */
async function step(name, act) {
  try {
    await act();
    console.log(`ok: ${name}`);
  } catch (error) {
    failures += 1;
    const line = /with_openai\.mjs:(\d+)/.exec(error.stack ?? "")?.[1];
    console.log(`failed: ${name}: ${error.constructor.name}: ${error.message} (line ${line} of with_openai.mjs)`);
  }
}

function same(found, wanted) {
  if (JSON.stringify(found) !== JSON.stringify(wanted)) throw new Error(`${JSON.stringify(found)}, not ${JSON.stringify(wanted)}`);
}

/** Keeps an answer for TypeScript. */
async function typed(type, answer) {
  const value = await answer;
  answers.push([type, value]);
  return value;
}

async function all(pages, type) {
  const found = [];
  for await (const one of pages) found.push(one);
  for (const one of type ? found : []) answers.push([type, one]);
  return found;
}

/** Answers so far with a status of 400 to 499. */
async function refused() {
  const answer = await fetch(`${address}/metrics`, { headers: { Authorization: `Bearer ${key}` } });
  return Number(/responses_total\{class="4xx"} (\d+)/.exec(await answer.text())[1]);
}

/** The error of this class that a request is refused with. The client may send it only once. */
async function raises(kind, act) {
  const before = await refused();
  const error = await act().then(() => null, (error) => error);
  if (!(error instanceof kind)) throw error ?? new Error(`it was not refused with ${kind.name}`);
  same((await refused()) - before, 1);
  return error;
}

const pause = () => new Promise((done) => setTimeout(done, 100));

async function until(id, wanted) {
  for (const deadline = Date.now() + 120_000; ; await pause()) {
    const job = await jobs.retrieve(id);
    if (job.status === wanted) return typed("FineTuning.FineTuningJob", job);
    if (Date.now() > deadline || ["failed", "cancelled", "succeeded"].includes(job.status)) throw new Error(`it is ${job.status}: ${job.error?.message}`);
  }
}

let rows, heldOut, bad, job, long, once, failed, more, newestFirst, checkpoints;
const metadata = { team: "vision", Größe: "a b&c=d" };
const supervised = { type: "supervised", supervised: { hyperparameters: { n_epochs: 2, batch_size: 4, learning_rate_multiplier: "auto" } } };

await step("upload a file, retrieve, list", async () => {
  rows = await typed("FileObject", client.files.create({ file: fs.createReadStream(rowsPath), purpose: "fine-tune" }));
  const first = data.subarray(0, data.indexOf("\n") + 1), expires_after = { anchor: "created_at", seconds: 3600 };
  heldOut = await typed("FileObject", client.files.create({ file: await toFile(first, "held-out.jsonl"), purpose: "fine-tune", expires_after }));
  bad = await client.files.create({ file: new File(['{"messages": [{"role": "user", "content": "no answer"}]}\n'], "bad.jsonl"), purpose: "fine-tune" });
  same(heldOut.expires_at, heldOut.created_at + 3600);
  const found = await client.files.waitForProcessing(rows.id);
  same([found.filename, found.bytes, found.status], ["rows.jsonl", data.length, "processed"]);
  const files = await all(client.files.list({ limit: 1, order: "asc", purpose: "fine-tune" }), "FileObject");
  same(files.map((file) => file.id), [rows.id, heldOut.id, bad.id]);
});

await step("upload in parts", async () => {
  const order = { filename: "rows.jsonl", mime_type: "text/jsonl", purpose: "fine-tune" };
  let upload = await typed("Upload", client.uploads.create({ ...order, bytes: data.length }));
  const part_ids = [];
  for (let at = 0; at < data.length; at += 5000) {
    const part = await typed("Uploads.UploadPart", client.uploads.parts.create(upload.id, { data: await toFile(data.subarray(at, at + 5000), "part") }));
    part_ids.push(part.id);
  }
  upload = await typed("Upload", client.uploads.complete(upload.id, { part_ids, md5: createHash("md5").update(data).digest("hex") }));
  same([upload.status, await (await client.files.content(upload.file.id)).text()], ["completed", data.toString()]);
  upload = await client.uploads.create({ ...order, bytes: 4 });
  await raises(OpenAI.BadRequestError, () => client.uploads.complete(upload.id, { part_ids: [] }));
  same((await typed("Upload", client.uploads.cancel(upload.id))).status, "cancelled");
});

await step("job with method", async () => {
  const order = { model, training_file: rows.id, validation_file: heldOut.id, suffix: "numbers", seed: 3, metadata, method: supervised };
  job = await typed("FineTuning.FineTuningJob", jobs.create({ ...order, model_garden: { recipe: { threads: 1 } } }));
  same([job.metadata.team, job.metadata.Größe, job.seed, job.method.supervised.hyperparameters.n_epochs], [...Object.values(metadata), 3, 2]);
});

await step("job with hyperparameters", async () => {
  long = await typed("FineTuning.FineTuningJob", jobs.create({ model: "tiny-model", training_file: rows.id, hyperparameters: { n_epochs: 1000 } }));
  same([long.hyperparameters.n_epochs, long.method.type, long.model], [1000, "supervised", "tiny-model"]);
});

await step("job, idempotent", async () => {
  const order = { model, training_file: rows.id, hyperparameters: { n_epochs: 1000 } }, headers = { "Idempotency-Key": "once" };
  once = await jobs.create(order, { headers });
  same((await jobs.create(order, { headers })).id, once.id);
  await raises(OpenAI.UnprocessableEntityError, () => jobs.create({ ...order, seed: 5 }, { headers }));
});

await step("job with bad rows", async () => {
  failed = await until((await jobs.create({ model, training_file: bad.id })).id, "failed");
  same([failed.error.code, failed.error.param], ["invalid_training_file", "training_file"]);
});

await step("job, retrieved until it is done", async () => {
  job = await until(job.id, "succeeded");
  same([job.fine_tuned_model.includes(":numbers:"), job.trained_tokens > 0], [true, true]);
});

await step("pause, resume, cancel", async () => {
  await until(long.id, "running");
  // It can be saved once it has trained.
  while (!(await jobs.listEvents(long.id, { limit: 10 })).data.some((event) => event.type === "metrics")) await pause();
  await typed("FineTuning.FineTuningJob", jobs.pause(long.id));
  await until(long.id, "queued");
  await jobs.resume(long.id);
  await jobs.cancel(long.id);
  await until(long.id, "cancelled");
  same((await jobs.cancel(once.id)).id, once.id);
});

await step("list jobs in pages", async () => {
  newestFirst = [failed, once, long, job].map((job) => job.id);
  const page = await jobs.list({ limit: 1 });
  same([page.data.length, page.has_more, page.hasNextPage()], [1, true, true]);
  same((await page.getNextPage()).data[0].id, newestFirst[1]);
  same((await all(jobs.list({ limit: 1 }), "FineTuning.FineTuningJob")).map((job) => job.id), newestFirst);
});

await step("filter jobs by metadata", async () => {
  const found = async (query, options) => (await all(jobs.list(query, options))).map((job) => job.id);
  same(await found({ metadata }), [job.id]);
  same(await found({ metadata: { team: "other" } }), []);
  same(await found({}, { query: { metadata: "null" } }), newestFirst.slice(0, 3));
});

await step("events", async () => {
  const events = await all(jobs.listEvents(job.id, { limit: 2 }), "FineTuning.FineTuningJobEvent");
  same([new Set(events.map((event) => event.id)).size, events.length > 6], [events.length, true]);
  same(events.filter((event) => event.type === "metrics" && "train_loss" in event.data).length, 6);
});

await step("checkpoints", async () => {
  checkpoints = await all(jobs.checkpoints.list(job.id, { limit: 1 }), "FineTuning.Jobs.FineTuningJobCheckpoint");
  same(checkpoints.map((checkpoint) => checkpoint.step_number), [6, 3]);
});

await step("content of files", async () => {
  const table = await client.files.content(job.result_files[0]);
  same((await table.text()).startsWith("step,train_loss"), true);
  same((await typed("FileObject", client.files.retrieve(job.result_files[0]))).purpose, "fine-tune-results");
});

await step("wrong state, sent once", async () => {
  for (const act of ["cancel", "pause", "resume"]) {
    const error = await raises(OpenAI.BadRequestError, () => jobs[act](job.id));
    same([error.code, error.type, error.status], ["wrong_state", "invalid_request_error", 400]);
  }
});

await step("what is not there", async () => {
  const error = await raises(OpenAI.NotFoundError, () => jobs.create({ model, training_file: "file-unknown" }));
  same(error.param, "training_file");
  const acts = [() => client.files.retrieve("file-unknown"), () => client.files.content("file-unknown"), () => client.files.delete("file-unknown"), () => jobs.retrieve("ftjob-unknown"),
    () => jobs.listEvents("ftjob-unknown"), () => client.models.retrieve("gpt-5")];
  for (const act of acts) await raises(OpenAI.NotFoundError, act);
});

await step("wrong values", async () => {
  const wrong = { "method.type": { method: { type: "dpo" } }, suffix: { suffix: "x".repeat(65) }, "hyperparameters.n_epochs": { hyperparameters: { n_epochs: 0 } }, seed: { seed: -1 } };
  for (const [param, part] of Object.entries(wrong)) {
    same((await raises(OpenAI.BadRequestError, () => jobs.create({ model, training_file: rows.id, ...part }))).param, param);
  }
});

await step("wrong key", async () => {
  const error = await raises(OpenAI.AuthenticationError, () => new OpenAI({ baseURL: base, apiKey: "wrong" }).models.list());
  same(error.code, "invalid_api_key");
});

await step("request ids", async () => {
  same((await client.files.retrieve(rows.id))._request_id.startsWith("req_"), true);
  const { request_id, response } = await jobs.retrieve(job.id, { headers: { "X-Request-ID": "mine" } }).withResponse();
  same([request_id, response.headers.get("x-request-id")], ["mine", "mine"]);
  same((await raises(OpenAI.NotFoundError, () => client.files.retrieve("file-unknown"))).requestID.startsWith("req_"), true);
});

await step("models, list, retrieve, delete", async () => {
  const names = (await all(client.models.list(), "Model")).map((model) => model.id);
  same(["tiny-model", model, job.fine_tuned_model].every((name) => names.includes(name)), true);
  for (const name of [job.fine_tuned_model, checkpoints[1].fine_tuned_model_checkpoint]) same((await client.models.retrieve(name)).id, name);
  more = await jobs.create({ model: job.fine_tuned_model, training_file: rows.id, hyperparameters: { n_epochs: 1 } });
  await until(more.id, "succeeded");
  same((await typed("ModelDeleted", client.models.delete(job.fine_tuned_model))).deleted, true);
  await raises(OpenAI.NotFoundError, () => client.models.retrieve(job.fine_tuned_model));
  await raises(OpenAI.PermissionDeniedError, () => client.models.delete("tiny-model"));
});

await step("delete a file", async () => {
  same((await typed("FileDeleted", client.files.delete(rows.id))).deleted, true);
  await raises(OpenAI.NotFoundError, () => client.files.retrieve(rows.id));
});

await step("Azure's client, api-version", async () => {
  // It sends an Entra token as others send a key; a key would be in the header `api-key`.
  const azure = new AzureOpenAI({ baseURL: base, azureADTokenProvider: async () => key, apiVersion: "2025-04-01-preview" });
  same((await azure.fineTuning.jobs.retrieve(job.id)).id, job.id);
  same((await all(azure.fineTuning.jobs.list({ limit: 1, metadata: { team: "vision" } }))).length, 1);
  const sent = await azure.files.create({ file: await toFile(data, "rows.jsonl"), purpose: "fine-tune" });
  same((await azure.files.delete(sent.id)).deleted, true);
});

await step("answers have their types", async () => {
  // These are null where there is none; by the client's types they would be left out, which JavaScript hardly tells apart.
  const plain = (name, value) => (["expires_at", "status_details"].includes(name) && value === null ? undefined : value);
  // Each type parameter is the type of the answer itself, so that fields beyond those of the client's type are allowed.
  const lines = answers.map(([type, value]) => `(<Answer extends OpenAI.${type}>(answer: Answer) => answer)(${JSON.stringify(value, plain)});`);
  fs.writeFileSync(path.join(here, "answers.mts"), `import OpenAI from "openai";\n${lines.join("\n")}\n`);
  const words = ["--noEmit", "--strict", "--skipLibCheck", "--target", "es2022", "--module", "nodenext", "--types", "", "answers.mts"];
  try {
    execFileSync(process.execPath, [path.join(here, "node_modules/typescript/bin/tsc"), ...words], { cwd: here, encoding: "utf8" });
  } catch (error) {
    throw new Error(error.stdout || error.stderr);
  }
});

process.exit(failures ? 1 : 0);
