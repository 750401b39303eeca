"""Rows as OpenAI's guides show them, each as a job of its own: what is trained, and what is refused with which words.

`run.py` starts it with a server. The guides are those on supervised fine-tuning, vision fine-tuning, tool calling and direct preference optimisation, and the
reference of a training file's rows. `tiny-tools` is a model whose chat template writes tools; that of `tiny-model`, as of Qwen2.5-VL, does not.
"""

import json
import pathlib
import time
import urllib.error
import urllib.request

from steps import ADDRESS, KEY, ROWS, end, step

PICTURE = json.loads(pathlib.Path(ROWS).read_text().split("\n")[0])["messages"][0]["content"][1]["image_url"]["url"]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
FUNCTION = {"name": "get_weather", "description": "The weather now", "parameters": PARAMETERS, "strict": True}
TOOLS = [{"type": "function", "function": FUNCTION}]


def user(content, **more):
    return {"role": "user", "content": content, **more}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


def call(number, city, **more):
    return {"id": f"call_{number}", "type": "function", "function": {"name": "get_weather", "arguments": json.dumps({"city": city})}, **more}


def image(url=PICTURE, **more):
    return {"type": "image_url", "image_url": {"url": url, **more}}


def text(words):
    return {"type": "text", "text": words}


ASK, ANSWER, WEATHER = user("Where is it?"), assistant("Here."), user("How is the weather in Bern?")
CALLS = {"role": "assistant", "tool_calls": [call(1, "Bern")]}
ROUND = [WEATHER, CALLS, {"role": "tool", "tool_call_id": "call_1", "content": "12 degrees"}, assistant("It is 12 degrees.")]
TRAINED = None

# What it is, the model, the row, and a part of the reason if it is refused.
CASES = [
    ("system, user, assistant", "tiny-model", {"messages": [{"role": "system", "content": "Be brief."}, ASK, ANSWER]}, TRAINED),
    ("developer", "tiny-model", {"messages": [{"role": "developer", "content": "Be brief."}, ASK, ANSWER]}, TRAINED),
    ("weight 0 and 1", "tiny-model", {"messages": [ASK, assistant("There.", weight=0), ASK, assistant("Here.", weight=1)]}, TRAINED),
    ("weight 0 only", "tiny-model", {"messages": [ASK, assistant("There.", weight=0)]}, "nothing would be trained"),
    ("name", "tiny-model", {"messages": [{"role": "system", "content": "Be brief.", "name": "rules"}, user("Where?", name="ann"), assistant("Here.", name="bot")]}, TRAINED),
    ("text parts in all roles", "tiny-model", {"messages": [{"role": "system", "content": [text("Be "), text("brief.")]}, user([text("Where?")]), assistant([text("He"), text("re.")])]}, TRAINED),
    ("an answer as an API gives it", "tiny-model", {"messages": [ASK, assistant("Here.", refusal=None, annotations=[], audio=None, function_call=None, tool_calls=None)]}, TRAINED),
    ("structured output", "tiny-model", {"messages": [ASK, assistant('{"place": "here", "sure": true}')]}, TRAINED),
    ("structured output, response_format", "tiny-model", {"messages": [ASK, assistant('{"place": "here"}')], "response_format": {"type": "json_schema", "json_schema": {"name": "place", "schema": PARAMETERS}}}, TRAINED),
    ("refusal", "tiny-model", {"messages": [ASK, assistant(None, refusal="I cannot say that.")]}, TRAINED),
    ("refusal without content", "tiny-model", {"messages": [ASK, {"role": "assistant", "refusal": "I cannot say that."}]}, TRAINED),
    ("refusal and content", "tiny-model", {"messages": [ASK, assistant("Here.", refusal="I cannot say that.")]}, "has both"),
    ("refusal as a part", "tiny-model", {"messages": [ASK, assistant([{"type": "refusal", "refusal": "I cannot say that."}])]}, TRAINED),
    ("vision, data, detail low", "tiny-model", {"messages": [user([text("What?"), image(detail="low")]), ANSWER]}, TRAINED),
    ("vision, detail high", "tiny-model", {"messages": [user([image(detail="high"), text("What?")]), ANSWER]}, TRAINED),
    ("vision, detail auto", "tiny-model", {"messages": [user([image(detail="auto")]), ANSWER]}, TRAINED),
    ("vision, two user messages", "tiny-model", {"messages": [{"role": "system", "content": "Name it."}, user("What is this?"), user([image()]), ANSWER]}, TRAINED),
    ("vision, several pictures and turns", "tiny-model", {"messages": [user([image(), image()]), ANSWER, user([text("And this?"), image()]), ANSWER]}, TRAINED),
    ("vision, http", "tiny-model", {"messages": [user([text("What?"), image("https://example.org/a.jpg")]), ANSWER]}, "remote URL"),
    ("tools, a call", "tiny-tools", {"messages": [WEATHER, CALLS], "tools": TOOLS, "parallel_tool_calls": False}, TRAINED),
    ("tools, a call, content null", "tiny-tools", {"messages": [WEATHER, {**CALLS, "content": None}], "tools": TOOLS}, TRAINED),
    ("tools, a call, content empty", "tiny-tools", {"messages": [WEATHER, {**CALLS, "content": ""}], "tools": TOOLS}, TRAINED),
    ("tools, there and back", "tiny-tools", {"messages": ROUND, "tools": TOOLS}, TRAINED),
    ("tools, answer in parts", "tiny-tools", {"messages": [*ROUND[:2], {**ROUND[2], "content": [text("12 "), text("degrees")]}, ROUND[3]], "tools": TOOLS}, TRAINED),
    ("tools, parallel calls", "tiny-tools", {"messages": [WEATHER, {"role": "assistant", "tool_calls": [call(1, "Bern"), call(2, "Brig")]}, ROUND[2], {**ROUND[2], "tool_call_id": "call_2"}, ANSWER], "tools": TOOLS, "parallel_tool_calls": True}, TRAINED),
    ("tools, weight 0 for a call", "tiny-tools", {"messages": [WEATHER, {**CALLS, "weight": 0}, *ROUND[2:]], "tools": TOOLS}, TRAINED),
    ("tools, arguments as an object", "tiny-tools", {"messages": [WEATHER, {"role": "assistant", "tool_calls": [{**call(1, ""), "function": {"name": "get_weather", "arguments": {"city": "Bern"}}}]}], "tools": TOOLS}, TRAINED),
    ("tools, none called", "tiny-tools", {"messages": [ASK, ANSWER], "tools": TOOLS}, TRAINED),
    ("tools, an empty list", "tiny-model", {"messages": [ASK, ANSWER], "tools": [], "parallel_tool_calls": True}, TRAINED),
    ("tools, Qwen2.5-VL's template", "tiny-model", {"messages": ROUND, "tools": TOOLS}, "chat template"),
    ("tools, broken arguments", "tiny-tools", {"messages": [WEATHER, {"role": "assistant", "tool_calls": [{**call(1, ""), "function": {"name": "get_weather", "arguments": '{"city'}}]}], "tools": TOOLS}, "which is not JSON"),
    ("functions (deprecated)", "tiny-tools", {"messages": [WEATHER, {"role": "assistant", "function_call": {"name": "get_weather", "arguments": "{}"}}], "functions": [FUNCTION]}, "older format"),
    ("function_call (deprecated)", "tiny-tools", {"messages": [WEATHER, {"role": "assistant", "function_call": {"name": "get_weather", "arguments": "{}"}}]}, "older format"),
    ("role function (deprecated)", "tiny-tools", {"messages": [WEATHER, CALLS, {"role": "function", "name": "get_weather", "content": "12"}, ANSWER], "tools": TOOLS}, "unknown role"),
    ("prompt and completion (legacy)", "tiny-model", {"prompt": "Where is it?", "completion": "Here."}, TRAINED),
    ("preferences (DPO)", "tiny-model", {"input": {"messages": [ASK], "tools": [], "parallel_tool_calls": True}, "preferred_output": [ANSWER], "non_preferred_output": [assistant("There.")]}, "no conversation"),
    ("reinforcement", "tiny-model", {"messages": [ASK], "reference": "here"}, "no answer"),
    ("sound", "tiny-model", {"messages": [user([{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}]), ANSWER]}, "`input_audio`, which is not supported"),
    ("a file", "tiny-model", {"messages": [user([{"type": "file", "file": {"file_id": "file-1"}}]), ANSWER]}, "`file`, which is not supported"),
    ("parts of the Responses API", "tiny-model", {"messages": [user([{"type": "input_text", "text": "Where?"}]), assistant([{"type": "output_text", "text": "Here."}])]}, "not supported"),
]


def ask(path, body=None, kind="application/json"):
    data = json.dumps(body).encode() if isinstance(body, dict) else body
    request = urllib.request.Request(ADDRESS + path, data, {"Authorization": f"Bearer {KEY}", "Content-Type": kind})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def train(model, row):
    """The job that trains a row, once it is over."""
    form = b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nfine-tune\r\n--b\r\ncontent-disposition: form-data; name="file"; filename="row.jsonl"\r\n\r\n'
    file = ask("/v1/files", form + json.dumps(row).encode() + b"\n\r\n--b--\r\n", "multipart/form-data; boundary=b")["id"]
    job = ask("/v1/fine_tuning/jobs", {"model": model, "training_file": file, "hyperparameters": {"n_epochs": 1}})
    while job["finished_at"] is None:
        time.sleep(0.05)
        job = ask(f"/v1/fine_tuning/jobs/{job['id']}")
    return job


for name, model, row, reason in CASES:
    with step(name):
        job = train(model, row)
        told = job["error"] and job["error"]["message"]
        print(f"      {job['status']}: {told or str(job['trained_tokens']) + ' tokens'}")
        if reason is TRAINED:
            assert job["status"] == "succeeded" and job["trained_tokens"] > 0, told
        else:
            assert job["error"] and job["error"]["code"] == "invalid_training_file" and reason in told, told

end()
