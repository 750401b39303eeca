#!/usr/bin/env python3
"""How far training in bf16 is from training in float32, ours and that of transformers and peft, over a grid of settings.

usage: parity_grid.py --work FOLDER --binary model-garden [--recorded] [--device cpu-bf16] [--lines d1,f2] [--seeds 1,2] [--phase make,peer,check,ours,dropout,compare]

The truth is the peer's own float32 run on the same rows, in the same order, with the same rates and the same first adapter. Beside it, the peer trains as people do (Trainer
under bf16 autocast, sdpa, the frozen base in bf16), and so does the binary. One setting shows little: what rounding does depends on the size of the adapter's effect, that is on
its rank, on alpha and on whether B begins with zero. The lines below cover every pair of values of all settings.

    make     two checkpoints, rows and first adapters (grid_inputs.py)
    peer     the peer's losses in float32 and in bf16 (grid_peer.py), written to --record run by run; needs the packages of requirements.txt
    check    the binary on the CPU in float32, the first seed of each line: it has to give the peer's float32 losses, or the runs are not the same
    ours     the binary on --device
    dropout  two lines with dropout. Its masks are our own, so the truth is the binary in float32, and the scale is the same line without dropout
    compare  the table and the verdict, also in FOLDER/grid.json with all losses; exits 1 if the bar below is not met

--recorded leaves out peer: what it gave is in recorded/grid.json, and the rest needs only numpy and Pillow.

The bar. Of each line: the root mean square of (ours - float32) is at most 1.5 times the peer's, and the signed mean is within 3.5 standard errors of zero or at most the peer's.
Over all lines: the geometric mean of these ratios is at most 1, and the pooled signed mean is within 2 standard errors or at most the peer's. Standard errors are those of the
seeds' means. The table also pools lines with adapters and lines that train all weights apart, which decides nothing: in the latter the peer multiplies with weights rounded to the
nearest bf16, which do not move until updates have grown to half a unit in the last place, and loses far more to that than to anything else here.
"""

import argparse
import hashlib
import itertools
import json
import math
import statistics
import sys
import time
from pathlib import Path

import grid_inputs
from parity import Batches, run_binary, run_trainer

# torch and transformers take seconds to import, and --recorded does not need them.

STEPS = 24
SETTINGS = {"batch": 2, "accumulation": 2, "warmup": 2, "norm": 1.0, "decay": 0.01, "rate": 2e-4, "seed": 42}
FULL_RATE = 2e-5
# Two epochs.
ROWS = STEPS * SETTINGS["batch"] * SETTINGS["accumulation"] // 2
SEEDS = [1, 2, 3, 4, 5]
RECORDED = Path(__file__).resolve().parent / "recorded/grid.json"

VALUES = {
    # Adapters in the decoder; in decoder, tower and merger; in the decoder, with the merger trained in full; all weights.
    "trained": ["decoder", "vision", "merger", "full"],
    "rank": [4, 8, 16, 64],
    "scale": [0.25, 1, 2, 4],  # alpha / rank
    "b": ["zero", "drawn"],
    "base": ["16-bit", "nf4"],
    "recompute": ["layer", "none"],
    "optim": ["adamw", "adamw-8bit"],
    "rows": ["one", "several", "mixed"],
    "channels": ["plain", "large"],
}
# What has no meaning without adapters.
OF_ADAPTERS = ("rank", "scale", "b", "base")
TABLE = {
    "d1": ("decoder", 4, 2, "zero", "nf4", "none", "adamw-8bit", "mixed", "large"),
    "d2": ("decoder", 8, 0.25, "drawn", "16-bit", "none", "adamw", "several", "large"),
    "d3": ("decoder", 8, 4, "drawn", "nf4", "layer", "adamw-8bit", "mixed", "plain"),
    "d4": ("decoder", 16, 1, "drawn", "16-bit", "layer", "adamw", "mixed", "plain"),
    "d5": ("decoder", 64, 4, "zero", "16-bit", "none", "adamw-8bit", "one", "large"),
    # Covers nothing new: it is how most runs begin.
    "d6": ("decoder", 8, 1, "zero", "16-bit", "layer", "adamw", "one", "plain"),
    "v1": ("vision", 4, 0.25, "drawn", "16-bit", "layer", "adamw", "mixed", "plain"),
    "v2": ("vision", 4, 1, "drawn", "16-bit", "layer", "adamw-8bit", "one", "large"),
    "v3": ("vision", 8, 2, "zero", "nf4", "none", "adamw", "one", "plain"),
    "v4": ("vision", 16, 2, "zero", "16-bit", "none", "adamw", "several", "plain"),
    "v5": ("vision", 16, 4, "zero", "16-bit", "none", "adamw", "several", "plain"),
    "v6": ("vision", 64, 1, "zero", "nf4", "layer", "adamw-8bit", "several", "large"),
    "m1": ("merger", 4, 4, "zero", "nf4", "layer", "adamw-8bit", "several", "large"),
    "m2": ("merger", 8, 1, "drawn", "nf4", "none", "adamw", "one", "large"),
    "m3": ("merger", 16, 0.25, "drawn", "nf4", "layer", "adamw-8bit", "one", "large"),
    "m4": ("merger", 64, 0.25, "zero", "16-bit", "layer", "adamw", "mixed", "plain"),
    "m5": ("merger", 64, 2, "drawn", "nf4", "layer", "adamw-8bit", "mixed", "large"),
    "f1": ("full", None, None, None, None, "none", "adamw", "one", "large"),
    "f2": ("full", None, None, None, None, "none", "adamw-8bit", "several", "plain"),
    "f3": ("full", None, None, None, None, "layer", "adamw-8bit", "mixed", "plain"),
}
LINES = {name: dict(zip(VALUES, values)) for name, values in TABLE.items()}
DROPOUT, WITH_DROPOUT = 0.1, ["d6", "v3"]
PHASES = ("make", "peer", "check", "ours", "dropout", "compare")
MOST_LINE, MOST_ALL, MOST_ERRORS_LINE, MOST_ERRORS_ALL = 1.5, 1.0, 3.5, 2.0
# Ours in float32 from the peer's float32, relative to the loss. A line is chaotic if the peer itself is further than that from its own run when its first weights are changed in their
# last bit. Then this holds for the first steps, and over all of them the difference is at most a tenth of what bf16 does to the peer: too small to matter for what is measured.
MOST_CHECK, FIRST, MOST_SHARE = 1e-5, 4, 0.1


def missing_pairs():
    """Pairs of values that no line has."""
    pairs = {
        (one, value, other, beside) for one, other in itertools.combinations(VALUES, 2) for value in VALUES[one] for beside in VALUES[other]
        if not (value == "full" and other in OF_ADAPTERS)
    }
    return pairs - {(one, line[one], other, line[other]) for line in LINES.values() for one, other in itertools.combinations(VALUES, 2)}


assert not missing_pairs(), sorted(map(str, missing_pairs()))


def settings_of(line):
    return {**SETTINGS, "rate": FULL_RATE} if line["trained"] == "full" else SETTINGS


class Places:
    """Where the files of a run are."""

    def __init__(self, work, name, seed):
        line = LINES[name]
        self.model, self.data = work / f"model-{line['channels']}", work / f"rows-{line['rows']}-{seed}"
        self.first = None if line["trained"] == "full" else work / f"first-{name}-{seed}"

    def digest(self):
        return grid_inputs.digest(self.model, self.data, self.first)


def each(arguments, what, names=None, seeds=None):
    """Every run of a phase, with a line that says how far it is and how long the last one took."""
    runs = [(name, seed) for name in names or arguments.lines for seed in seeds or arguments.seeds]
    began = time.perf_counter()
    for number, (name, seed) in enumerate(runs, 1):
        start = time.perf_counter()
        yield name, seed
        now = time.perf_counter()
        print(f"{what}: line {name}, seed {seed} ({number} of {len(runs)}): {now - start:.1f} s, {now - began:.0f} s in all", flush=True)


def make(arguments):
    for kind in sorted({LINES[name]["channels"] for name in arguments.lines}):
        grid_inputs.write_model(arguments.work / f"model-{kind}", kind == "large")
    made = set()
    for name in arguments.lines:
        for seed in arguments.seeds:
            places = Places(arguments.work, name, seed)
            if places.data not in made:
                grid_inputs.write_rows(places.data, LINES[name]["rows"], seed, ROWS)
                made.add(places.data)
            if places.first:
                grid_inputs.write_adapter(places.first, LINES[name], seed, places.model)


def read(path):
    return json.loads(path.read_text()) if path.exists() else {}


def told():
    """All that the numbers of a recording depend on and no digest tells."""
    return {"steps": STEPS, "settings": SETTINGS, "full rate": FULL_RATE}


def read_recorded(arguments):
    """What the peer gave for these lines; refuses what belongs to other inputs."""
    recorded = read(arguments.record)
    if recorded.get("of") != told():
        sys.exit(f"error: {arguments.record} was recorded with other settings, or not at all\n\nhint: run --phase make,peer")
    for name in arguments.lines:
        for seed in arguments.seeds:
            one = recorded["lines"].get(name, {}).get(str(seed))
            if one is None or recorded["lines"][name]["line"] != LINES[name]:
                sys.exit(f"error: {arguments.record} has not line {name} with seed {seed}\n\nhint: run --phase make,peer --lines {name}")
            places = Places(arguments.work, name, seed)
            if places.model.exists() and one["inputs"] != places.digest():
                sys.exit(f"error: line {name}, seed {seed}: other weights, rows or adapter than {arguments.record} was recorded with")
    return recorded


def train_peer(kind, line, places, batches, messages, device, folder):
    """Losses to the digits that float32 has."""
    import grid_peer

    is_wide, settings = kind != "bf16", settings_of(line)
    model, more = grid_peer.load(line, places, is_wide, device)
    if kind == "nudged":
        grid_peer.nudge(model)
    log, _ = run_trainer(model, batches, messages, settings, STEPS, is_wide, device, folder, **more(settings))
    return [float(f"{loss:.7g}") for loss in log["loss"]]


def peer(arguments):
    import grid_peer

    about = grid_peer.prepare()
    recorded = read(arguments.record)
    if (recorded.get("made with"), recorded.get("of")) != (about, told()):
        recorded = {"made with": about, "of": told(), "lines": {}}
    batches, device = {}, "cuda" if arguments.device == "cuda" else "cpu"
    for name, seed in each(arguments, "peer"):
        line, places = LINES[name], Places(arguments.work, name, seed)
        messages = [json.loads(text)["messages"] for text in (places.data / "train.jsonl").read_text().splitlines()]
        batches.setdefault(places.data, Batches(places.model, places.data))
        entry = {"inputs": places.digest()}
        for kind in ("float32", "bf16", "nudged") if seed == SEEDS[0] else ("float32", "bf16"):
            entry[kind] = train_peer(kind, line, places, batches[places.data], messages, device, arguments.work / "peer")
        if recorded["lines"].get(name, {}).get("line") != line:
            recorded["lines"][name] = {"line": line}
        recorded["lines"][name][str(seed)] = entry
        write_recorded(arguments.record, recorded)


def write_recorded(path, recorded):
    """A row of text for each run: differences are then readable."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(
        f' {json.dumps(name)}: {{\n' + ",\n".join(f"  {json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in one.items()) + "\n }"
        for name, one in sorted(recorded["lines"].items())
    )
    head = "".join(f" {json.dumps(key)}: {json.dumps(recorded[key])},\n" for key in ("made with", "of"))
    path.write_text(f'{{\n{head} "lines": {{\n{lines}\n}}}}\n')


def train_ours(arguments, name, seed, device, dropout=0.0):
    line, places = LINES[name], Places(arguments.work, name, seed)
    flags = ["--recompute", line["recompute"], "--optim", line["optim"], "--threads", arguments.threads]
    if line["trained"] == "full":
        flags += ["--full", "true"]
    else:
        flags += ["--adapter", places.first, "--lora-r", line["rank"], "--lora-alpha", round(line["rank"] * line["scale"]), "--lora-dropout", dropout]
        flags += {"decoder": [], "vision": ["--finetune-vision", "true"], "merger": ["--modules-to-save", "visual.merger"]}[line["trained"]]
        flags += ["--load-in-4bit", "true"] if line["base"] == "nf4" else []
    rows = places.data / "train.jsonl"
    found = run_binary(arguments.binary, places.model, rows, arguments.work / "run", settings_of(line), STEPS, device, *flags, is_quiet=True)
    assert len(found["loss"]) == STEPS, f"{len(found['loss'])} steps instead of {STEPS}"
    return found["loss"]


def read_kept(arguments):
    """What this binary gave before, from FOLDER/ours.json."""
    kept, of = read(arguments.work / "ours.json"), {**told(), "binary": hashlib.sha256(arguments.binary.read_bytes()).hexdigest()}
    return kept if kept.get("of") == of else {"of": of}


def keep(arguments, part, name, seed, losses):
    kept = read_kept(arguments)
    kept.setdefault(part, {}).setdefault(name, {})[str(seed)] = losses
    (arguments.work / "ours.json").write_text(json.dumps(kept))


def apart(one, other):
    """The largest difference, relative to the loss."""
    return max(abs(a - b) / b for a, b in zip(one, other))


def same_run(losses, entry):
    """Whether ours in float32 is the peer's float32 run."""
    if apart(entry["nudged"], entry["float32"]) <= MOST_CHECK:
        return apart(losses, entry["float32"]) <= MOST_CHECK
    own, other = (measure({0: one}, {0: entry["float32"]})["rms"] for one in (losses, entry["bf16"]))
    return apart(losses[:FIRST], entry["float32"]) <= MOST_CHECK and own <= MOST_SHARE * other


def check(arguments):
    recorded, broken = read_recorded(arguments), []
    for name, seed in each(arguments, "check", seeds=SEEDS[:1]):
        entry, losses = recorded["lines"][name][str(seed)], train_ours(arguments, name, seed, "cpu")
        keep(arguments, "float32", name, seed, losses)
        found, itself = apart(losses, entry["float32"]), apart(entry["nudged"], entry["float32"])
        print(f"line {name}: ours in float32 is at most {found:.1e} of the loss from the peer's, which is {itself:.1e} from itself when nudged")
        if not same_run(losses, entry):
            broken.append(name)
    if broken:
        sys.exit(f"error: ours and the peer's float32 runs are not the same in {', '.join(broken)}")


def ours(arguments):
    read_recorded(arguments)
    for name, seed in each(arguments, "ours"):
        keep(arguments, arguments.device, name, seed, train_ours(arguments, name, seed, arguments.device))


def dropout(arguments):
    for name, seed in each(arguments, "dropout", names=[name for name in WITH_DROPOUT if name in arguments.lines]):
        for device in ("cpu", arguments.device):
            keep(arguments, f"dropout {device}", name, seed, train_ours(arguments, name, seed, device, DROPOUT))


def measure(found, truth):
    """Of losses by seed, in thousandths: signed mean, its standard error, root mean square, and the means of the seeds."""
    differences = {seed: [1000 * (one - other) for one, other in zip(found[seed], truth[seed])] for seed in truth}
    means = [statistics.fmean(ones) for ones in differences.values()]
    every = [one for ones in differences.values() for one in ones]
    error = statistics.stdev(means) / len(means) ** 0.5 if len(means) > 1 else math.nan
    return {"mean": statistics.fmean(means), "error": error, "rms": statistics.fmean(one * one for one in every) ** 0.5, "means of seeds": means}


def pool(lines, who):
    """The mean of the lines' means, and its standard error from theirs: how lines differ among each other is no noise."""
    mean = statistics.fmean(line[who]["mean"] for line in lines)
    return {"mean": mean, "error": sum(line[who]["error"] ** 2 for line in lines) ** 0.5 / len(lines)}


def is_centred(own, other, most_errors):
    """Written so that a NaN is not."""
    return abs(own["mean"]) <= most_errors * own["error"] or abs(own["mean"]) <= abs(other["mean"])


def judge(line):
    """What of the bar a line does not meet."""
    holds = {"rms": line["ratio"] <= MOST_LINE, "mean": is_centred(line["ours"], line["peer"], MOST_ERRORS_LINE)}
    return [what for what in holds if not holds[what]]


def describe(line):
    values = {**line, "channels": "large channels" if line["channels"] == "large" else None, "recompute": "recompute" if line["recompute"] == "layer" else None}
    if line["trained"] == "full":
        return ", ".join(str(values[key]) for key in ("trained", "optim", "rows", "recompute", "channels") if values[key])
    values |= {"rank": f"r {line['rank']}", "scale": f"alpha {line['rank'] * line['scale']:g}", "b": f"B {line['b']}"}
    return ", ".join(str(values[key]) for key in VALUES if values[key])


def compare(arguments):
    recorded, kept = read_recorded(arguments), read_kept(arguments)
    seeds, lines = [str(seed) for seed in arguments.seeds], {}
    for name in arguments.lines:
        own = kept.get(arguments.device, {}).get(name, {})
        if any(seed not in own for seed in seeds):
            sys.exit(f"error: line {name} was not trained on {arguments.device} with every seed\n\nhint: run --phase ours")
        losses = {"float32": {}, "bf16": {}, "ours": {}}
        for seed in seeds:
            entry = recorded["lines"][name][seed]
            losses["float32"][seed], losses["bf16"][seed], losses["ours"][seed] = entry["float32"], entry["bf16"], own[seed]
        line = {"line": LINES[name], "ours": measure(losses["ours"], losses["float32"]), "peer": measure(losses["bf16"], losses["float32"]), "losses": losses}
        line["ratio"] = line["ours"]["rms"] / line["peer"]["rms"]
        checked = kept.get("float32", {}).get(name, {}).get(str(SEEDS[0]))
        if checked:
            entry = recorded["lines"][name][str(SEEDS[0])]
            line["in float32"] = {"ours": apart(checked, entry["float32"]), "peer, nudged": apart(entry["nudged"], entry["float32"])}
        line["not met"] = judge(line)
        lines[name] = line
    geometric = math.exp(statistics.fmean(math.log(line["ratio"]) for line in lines.values()))
    full = [line for line in lines.values() if line["line"]["trained"] == "full"]
    kinds = {"all lines": list(lines.values()), "with adapters": [line for line in lines.values() if line not in full], "full": full}
    pooled = {kind: {who: pool(ones, who) for who in ("ours", "peer")} for kind, ones in kinds.items() if ones}
    not_met = {name: line["not met"] for name, line in lines.items() if line["not met"]}
    not_met |= {} if geometric <= MOST_ALL else {"geometric mean": ["rms"]}
    not_met |= {} if is_centred(*pooled["all lines"].values(), MOST_ERRORS_ALL) else {"pooled": ["mean"]}
    dropped = compare_dropout(arguments, kept, seeds, lines)
    result = {
        "device": arguments.device, "binary": kept["of"]["binary"], "recorded with": recorded["made with"], **told(), "seeds": arguments.seeds, "geometric mean of ratios": geometric,
        "pooled": pooled, "not met": not_met, "lines": lines, "dropout": dropped,
    }
    (arguments.work / "grid.json").write_text(json.dumps(result, indent=1) + "\n")
    show(lines, dropped, geometric, pooled, not_met)
    return 1 if not_met else 0


def compare_dropout(arguments, kept, seeds, lines):
    found = {}
    for name in WITH_DROPOUT:
        truth, own = (kept.get(f"dropout {device}", {}).get(name, {}) for device in ("cpu", arguments.device))
        if name in lines and all(seed in truth and seed in own for seed in seeds):
            truth, own = ({seed: losses[seed] for seed in seeds} for losses in (truth, own))
            found[name] = {**measure(own, truth), "losses": {"float32": truth, "ours": own}}
    return found


def show(lines, dropped, geometric, pooled, not_met):
    print(f"\nin thousandths of the loss: signed mean (standard error) and root mean square of the difference to float32\n\n{'':5}{'ours':>22}{'peer':>24}{'':>8} float32: ours, peer nudged")
    for name, line in lines.items():
        figures = "".join(f"{one['mean']:+9.2f} ({one['error']:5.2f}) {one['rms']:6.2f}" for one in (line["ours"], line["peer"]))
        checked = " ".join(f"{one:.0e}" for one in line["in float32"].values()) if "in float32" in line else f"{'-':>11}"
        print(f"{name:4} {figures} x{line['ratio']:5.2f} {checked}  {describe(line['line'])}{'  NOT MET: ' + ', '.join(line['not met']) if line['not met'] else ''}")
    for kind, one in pooled.items():
        figures = "".join(f"{who['mean']:+9.2f} ({who['error']:5.2f}) {'':6}" for who in one.values())
        errors = "; ".join(f"{name} is {who['mean'] / who['error']:+.1f} standard errors from zero" for name, who in one.items() if who["error"] > 0)
        print(f"     {figures}{'':20} {kind}; {errors}")
    print(f"geometric mean of the ratios: {geometric:.3f}")
    for name, one in dropped.items():
        twin = lines[name]["ours"]
        told_one, told_twin = (f"{figures['mean']:+.2f} ({figures['error']:.2f}) {figures['rms']:.2f}" for figures in (one, twin))
        print(f"{name} with dropout {DROPOUT}: {told_one} from our own float32; without dropout {told_twin}")
    print("the bar is met" if not not_met else "NOT MET: " + "; ".join(f"{name}: {', '.join(what)}" for name, what in not_met.items()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    listed = lambda choices: lambda words: [one for one in words.split(",") if one in choices or parser.error(f"no such: {one}")]  # noqa: E731
    parser.add_argument("--work", type=Path, required=True, help="a folder for checkpoints, rows, adapters, runs and the result")
    parser.add_argument("--binary", type=Path, default=Path("target/release/model-garden"))
    parser.add_argument("--device", choices=("cpu-bf16", "cuda"), default="cpu-bf16", help="where ours trains; with cuda, the peer too [default: cpu-bf16]")
    parser.add_argument("--lines", type=listed(LINES), default=list(LINES), help="some of the lines [default: all]")
    parser.add_argument("--seeds", type=lambda words: [int(one) for one in words.split(",")], default=SEEDS, help="[default: 1,2,3,4,5]")
    parser.add_argument("--phase", type=listed(PHASES), help="some of make,peer,check,ours,dropout,compare [default: all; with --recorded, without peer]")
    parser.add_argument("--recorded", action="store_true", help="take what the peer gave from --record")
    parser.add_argument("--record", type=Path, default=RECORDED, help="the file with the peer's losses [default: recorded/grid.json beside this script]")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    arguments.work, arguments.binary = arguments.work.resolve(), arguments.binary.resolve()
    if "check" in (arguments.phase or PHASES) and SEEDS[0] not in arguments.seeds:
        parser.error(f"check needs seed {SEEDS[0]}; leave it out with --phase")
    phases = arguments.phase or [phase for phase in PHASES if not (arguments.recorded and phase == "peer")]
    if arguments.recorded and "peer" in phases:
        parser.error("--recorded and --phase peer exclude each other")
    code = 0
    for phase in PHASES:
        if phase in phases:
            began = time.perf_counter()
            code = {"make": make, "peer": peer, "check": check, "ours": ours, "dropout": dropout, "compare": compare}[phase](arguments) or 0
            print(f"phase {phase}: {time.perf_counter() - began:.1f} s", flush=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
