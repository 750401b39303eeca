"""Tables of a result of the benchmark, in Markdown: `python3 bench/table.py bench/results/FILE.json`."""

import json
import random
import statistics
import sys
from pathlib import Path

MB = 1_000_000
WORK_PARTS = ("compute_s", "touch_s", "allocate_s", "map_s")


def spread(values, digits=3, unit=""):
    """The median, and the middle half of the values."""
    values = sorted(value for value in values if value is not None)
    if not values:
        return "-"
    if len(values) == 1:
        return f"{values[0]:.{digits}f}{unit}"
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.{digits}f}{unit} ({low:.{digits}f} to {high:.{digits}f})"


def row(*cells):
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def head(*cells):
    return [row(*cells), row(*["---"] * len(cells))]


def mean_of(units, name):
    return statistics.fmean(unit[name] for unit in units)


def median_of(units, name):
    return statistics.median(unit[name] for unit in units)


def ratio(units, alone, name, of=median_of):
    """Time per unit of work, against the stretches before and after."""
    return of(units, name) / statistics.fmean(of(stretch, name) for stretch in alone)


def by(items, key):
    """Items in groups, in the order in which each group came first."""
    groups = {}
    for item in items:
        groups.setdefault(item[key], []).append(item)
    return groups


def cost_table(cost):
    lines = [f"Watcher's own cost, on {cost['gib']} GiB and {cost['children']} children:", ""]
    lines += head("watcher", "% of one core", "samples a second", "ms per sample", "start-up, CPU s", "peak, MB")
    groups = by(cost["blocks"], "variant")
    for name in sorted(name for name in groups if name != "none"):
        used = [block["cost"] for block in groups[name]]
        peaks = [max(block["cost"]["peak"] or 0, block["peak_at_end"]) / MB for block in groups[name]]
        lines.append(row(
            name,
            spread([item["percent_of_a_core"] for item in used]),
            spread([item["samples"] / item["wall_s"] for item in used], 1).split(" ")[0],
            spread([(item["microseconds_per_sample"] or 0) / 1000 for item in used], 2).split(" ")[0],
            spread([block["start"]["cpu_s"] for block in groups[name]], 2),
            f"{max(peaks):.1f}",
        ))
    lines += ["", "Time for the same work, with the watcher / without:", ""]
    lines += head("watcher", "wall, median unit", "wall, all units", "CPU, median unit")
    kinds = (("wall_s", median_of), ("wall_s", mean_of), ("cpu_s", median_of))
    for name in sorted(groups, key=lambda name: (name != "none", name)):
        blocks = groups[name]
        ratios = [spread([ratio(b["units"], b["alone"], time, of) for b in blocks]) for time, of in kinds]
        lines.append(row("none (noise)" if name == "none" else name, *ratios))
    return lines


def interval(values, draws=2000):
    """The median, and where it lies with 95 % confidence (bootstrap)."""
    draw = random.Random(1)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(draws))
    return f"{statistics.median(values):.3f} ({medians[draws // 40]:.3f} to {medians[-draws // 40]:.3f})"


def turns_table(turns):
    count = len(by(turns, "turn"))
    lines = ["", f"The same, in {count} turns of two seconds each; the median and its 95 % confidence interval:", ""]
    lines += head("watcher", "wall time", "CPU time", "middle half of the turns, wall")
    groups = by(turns, "variant")
    for name in sorted(groups, key=lambda name: (name != "none", name)):
        wall, cpu = ([ratio(t["units"], t["alone"], of, mean_of) for t in groups[name]] for of in ("wall_s", "cpu_s"))
        middle = spread(wall).partition("(")[2].rstrip(")")
        lines.append(row("none (noise)" if name == "none" else name, interval(wall), interval(cpu), middle))
    return lines


def memray_table(memray):
    lines = ["", "memray, time for the same work with / without:", ""]
    lines += head("watcher", "wall time", "CPU time", *[f"{part[:-2]} alone" for part in WORK_PARTS])
    names = ("wall_s", "cpu_s", *WORK_PARTS)
    pairs = [{run["variant"]: run["units"] for run in pair} for pair in by(memray["runs"], "pair").values()]
    lines.append(row("memray run", *[
        spread([median_of(pair["memray run"], name) / median_of(pair["none"], name) for pair in pairs], 2) for name in names
    ]))
    base = [pair["none"] for pair in pairs]
    noise = [[median_of(b, name) / median_of(a, name) for a, b in zip(base, base[1:])] for name in names]
    lines.append(row("none (one start after another)", *[spread(values, 2) for values in noise]))
    if memray["attach"]:
        lines.append(row("memray attach", *[
            spread([ratio(turn["units"], turn["alone"], name) for turn in memray["attach"]], 2) for name in names
        ]))
    return lines


def growth_table(growth):
    lines = ["", f"model-garden at 10 Hz by number of children ({growth['small_gib']} GiB):", ""]
    lines += head("children", "ms per sample", "% of one core")
    for children, items in by(growth["by_children"], "children").items():
        used = [item["cost"] for item in items]
        per_sample = [item["microseconds_per_sample"] / 1000 for item in used]
        lines.append(row(children, spread(per_sample), spread([item["percent_of_a_core"] for item in used])))
    lines += ["", "Start of model-garden by memory, with the first reading of shares (20 children):", ""]
    lines += head("GiB", "CPU s", "wall s")
    for gib, items in by(growth["by_memory"], "gib").items():
        lines.append(row(gib, *[spread([item["start"][name] for item in items]) for name in ("cpu_s", "wall_s")]))
    return lines


def flat_table(flat):
    lines = ["", f"Memory of model-garden at 10 Hz over time ({flat['cost']['samples']} samples):", ""]
    lines += head("after s", "resident, MB", "anonymous, MB")
    readings = flat["readings"]
    shown = readings[:2] + readings[2::6] if len(readings) > 8 else readings
    for reading in shown:
        sizes = [f"{reading[name] / MB:.2f}" for name in ("resident", "anonymous")]
        lines.append(row(f"{reading['elapsed_s']:.0f}", *sizes))
    cost, length = flat["cost"], flat["trace_bytes"] / flat["cost"]["samples"]
    lines += ["", f"Peak {cost['peak'] / MB:.2f} MB, with the report at the end {flat['peak_at_end'] / MB:.2f} MB;"]
    lines += [f"{cost['percent_of_a_core']:.3f} % of one core; trace {length:.0f} bytes per sample."]
    small = ", ".join(f"{stage['percent_of_a_core']:.3f} %" for stage in flat["small_tree_1_hz"])
    each = flat["small_tree_1_hz"][0]["wall_s"]
    lines += [f"At 1 Hz on the same small tree, each {each:.0f} s in turn: {small} of one core."]
    return lines


def report_table(report):
    lines = ["", "The report at the end by the length of the trace:", ""]
    lines += head("samples", "trace, MB", "peak, MB", "wall s")
    for item in report:
        sizes = [f"{item[name] / MB:.1f}" for name in ("trace_bytes", "peak")]
        lines.append(row(item["samples"], *sizes, f"{item['wall_s']:.2f}"))
    return lines


def of(result):
    """All tables of a result."""
    makers = {
        "cost": cost_table,
        "turns": turns_table,
        "memray": memray_table,
        "growth": growth_table,
        "flat": flat_table,
        "report": report_table,
    }
    return "\n".join(line for part, make in makers.items() if result.get(part) for line in make(result[part]))


if __name__ == "__main__":
    print(of(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
