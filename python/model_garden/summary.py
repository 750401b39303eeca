"""What is said at the end of a training: how memory grew, and which tensors and objects did."""
from .memory import format_bytes, format_change


def growth_summary(start, end, counter=None, share=0.0, is_judged=False):
    """The summary as text. `start` and `end` are (step, resident bytes) or None; `share` is what counting took of the time.

    Where a verdict follows (`is_judged`), the growth is its own: two figures for one thing would only differ.
    """
    lines = [] if is_judged else [_memory(start, end)]
    if counter is not None and counter.last.step > counter.first.step:
        lines += _counts(counter.baseline, counter.last)
        lines.append(_cost(counter, share))
    return "\n".join(lines)


def _memory(start, end):
    # Not labelled `RAM` as the lines of the steps are: a reader of the log must not take it for one more sample.
    if not start or not end or start[1] is None or end[1] is None:
        return "Growth: unknown"
    (first, before), (last, after) = start, end
    growth = after - before
    rate = f", {format_change(growth / (last - first))} per step" if last > first else ""
    return f"Growth: {format_change(growth)}{rate}; from {format_bytes(before)} after step {first} to {format_bytes(after)} after step {last}"


def _counts(first, last):
    lines = [
        f"Between step {first.step} and step {last.step}:",
        f"  tensors  {first.tensors} → {last.tensors} (CPU: {first.tensors_cpu} → {last.tensors_cpu}, GPU: {first.tensors_gpu} → {last.tensors_gpu})",
        f"  holding  {format_bytes(first.bytes_cpu)} → {format_bytes(last.bytes_cpu)} in RAM, "
        f"{format_bytes(first.bytes_gpu)} → {format_bytes(last.bytes_gpu)} on GPUs",
        f"  objects  {first.objects} → {last.objects}",
    ]
    tensors = last.grown_tensors(first)
    if tensors:
        lines.append("  tensors that grew most")
        lines += [f"    +{more} of {_kind(shape, dtype, device)}, {format_change(size)}" for size, more, shape, dtype, device in tensors]
    types = last.grown_types(first)
    if types:
        lines.append("  object types that grew most")
        lines += [f"    +{more} {name}" for more, name in types]
    largest = last.largest_tensors(3)
    if largest:
        lines.append("  largest tensors")
        lines += [f"    {number} of {_kind(shape, dtype, device)}, {format_bytes(size)}" for size, number, shape, dtype, device in largest]
    return lines


def _kind(shape, dtype, device):
    return f"{'x'.join(map(str, shape)) or 'scalar'} {dtype} on {device}"


def _cost(counter, share):
    text = f"Counting took {share:.2%} of the time"
    if counter.skipped:
        text += f"; {counter.skipped} counts were skipped to keep it low (each takes {counter.cost_s * 1000:.0f} ms)"
    return text + "."
