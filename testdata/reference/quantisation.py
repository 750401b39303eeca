#!/usr/bin/env python3
"""Records how bitsandbytes' CPU backend packs tensors into NF4, for code that must do the same bit for bit.

usage: quantisation.py --out FOLDER [--seed 0] [--check COUNT]

Writes nf4.safetensors and nf4.json (README.md lists the tensors). Every tensor is also computed by the rules in
quantised_rules.py, and the script stops where a single bit differs; --check does only that, for COUNT random tensors.
"""

import argparse
import json
import os
import sys
from pathlib import Path

# bitsandbytes compiles some functions when they are first used: half a minute for the same bits.
os.environ["TORCHDYNAMO_DISABLE"] = "1"

import bitsandbytes
import bitsandbytes.functional as library
import torch
from safetensors.torch import save_file

import quantised_rules as rules

# Float32 sums of scales in another order: relative to the mean.
OFFSET_TOLERANCE = 1e-6


def normal(generator, *shape):
    return torch.randn(shape, generator=generator)


def spread(generator, *shape):
    """Rows of very different size, so that the scales use all of the dynamic map."""
    exponents = torch.empty(shape[0], 1).uniform_(-4, 2, generator=generator)
    return normal(generator, *shape) * 10**exponents


def with_zero_blocks(generator, *shape):
    """Whole blocks of zeros, the short last block among them."""
    values = normal(generator, *shape).flatten()
    values[64:192] = 0
    values[-(values.numel() % 64) :] = 0
    return values.view(shape)


def extremes(generator):
    """Blocks of huge and tiny values: float32's largest, its smallest, below the clamp at 1e-38, and mixed."""
    sizes = torch.tensor([3e38, 1e30, 1.0, 1e-20, 2e-38, 5e-39, 1e-42])
    values = torch.empty(7, 64).uniform_(-1, 1, generator=generator) * sizes[:, None]
    values[2, ::3] *= 1e-30
    values[:, 0] = sizes
    return values


def ties(generator):
    """Values on the midpoints between codes, and the nearest float32 on either side."""
    middle = rules.midpoints(rules.NF4)
    up, down = torch.tensor(float("inf")), torch.tensor(float("-inf"))
    row = torch.cat([torch.ones(1), middle, torch.nextafter(middle, up), torch.nextafter(middle, down), torch.zeros(18)])
    # In the second row the scale is 1/3: values leave the midpoints again when they are multiplied by its reciprocal.
    # The third is shorter than a block and divides.
    return torch.cat([row, row / 3, row[:46] / 3])[None]


def tensors(seed):
    """Name, values in the type they have in a checkpoint, and what the tensor is there for."""
    drawn = [
        ("one_block", normal, (1, 64), "float32", "exactly one block"),
        ("short", normal, (3, 7), "float32", "one short block, an odd number of values"),
        ("odd_rows", normal, (5, 129), "float32", "blocks cross rows, short last block of 5"),
        ("square", normal, (64, 64), "bfloat16", "every row is a block"),
        ("half", normal, (9, 80), "float16", "rows of 80: wrong in the library's AVX-512 code when taken row by row"),
        ("zero_blocks", with_zero_blocks, (7, 45), "bfloat16", "zero blocks, the short last one too"),
        ("constant", lambda generator, *shape: torch.full(shape, -0.25), (4, 100), "float32", "all scales equal"),
        ("many_blocks", spread, (3, 5501), "bfloat16", "258 scales: two nested blocks, the last of two"),
    ]
    for index, (name, draw, shape, dtype, about) in enumerate(drawn):
        generator = torch.Generator().manual_seed(seed * 1000 + index)
        yield name, draw(generator, *shape).to(getattr(torch, dtype)), about
    generator = torch.Generator().manual_seed(seed * 1000 + len(drawn))
    yield "extremes", extremes(generator), "huge and tiny values, scales below the clamp"
    yield "ties", ties(generator), "values on and beside the midpoints of codes"


def dequantised(packed, scales, count, dtype):
    """One row of `count` values: taken row by row, the library's AVX-512 code finds wrong scales for some widths."""
    return torch.ops.bitsandbytes.dequantize_4bit(packed, scales, rules.BLOCK, "nf4", (1, count), dtype)


def quantise(values):
    """All that the library computes for a tensor, by the name it is recorded under."""
    count = values.numel()
    packed, state = library.quantize_4bit(values, blocksize=rules.BLOCK, quant_type="nf4")
    nested_packed, nested = library.quantize_4bit(
        values, blocksize=rules.BLOCK, quant_type="nf4", compress_statistics=True
    )
    expect_equal("packed", nested_packed, packed)
    expect_equal("map", nested.code, rules.NF4)
    expect_equal("nested map", nested.state2.code, rules.dynamic_map(signed=True))
    nested_scales = library.dequantize_blockwise(nested.absmax, nested.state2) + nested.offset
    result = {
        "input": values,
        "packed": packed,
        "absmax": state.absmax,
        "absmax_codes": nested.absmax,
        "nested_absmax": nested.state2.absmax,
        "offset": nested.offset.reshape(1),
        "nested_scales": nested_scales,
    }
    for kind, scales in (("plain", state.absmax), ("nested", nested_scales)):
        for dtype in (torch.float32, torch.bfloat16):
            name = f"{kind}.{str(dtype).removeprefix('torch.')}"
            result[name] = dequantised(packed, scales, count, dtype).view(values.shape)
    return result


def expect_equal(what, found, expected):
    """The same bits; comparing bytes also tells a zero from a negative zero."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        sys.exit(f"error: {what}: {found.dtype} {list(found.shape)} instead of {expected.dtype} {list(expected.shape)}")
    if not torch.equal(found.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8)):
        where = (found != expected).flatten().nonzero().flatten()[:1].tolist()
        sys.exit(f"error: {what}: other bits than the rules give, first at {where}")


def check(name, recorded):
    """Stops unless the rules give what the library gave."""
    values, count = recorded["input"], recorded["input"].numel()
    packed, scales = rules.quantise_nf4(values)
    expect_equal(f"{name}: packed", recorded["packed"], packed)
    expect_equal(f"{name}: absmax", recorded["absmax"], scales)
    offset = recorded["offset"][0]
    mean = scales.double().mean()
    if abs(offset - mean) > OFFSET_TOLERANCE * mean:
        sys.exit(f"error: {name}: the offset is not the mean")
    codes, nested_absmax = rules.quantise_scales(scales, offset)
    expect_equal(f"{name}: absmax codes", recorded["absmax_codes"], codes)
    expect_equal(f"{name}: nested absmax", recorded["nested_absmax"], nested_absmax)
    nested_scales = rules.dequantise_scales(codes, nested_absmax, offset)
    expect_equal(f"{name}: nested scales", recorded["nested_scales"], nested_scales)
    for kind, used in (("plain", scales), ("nested", nested_scales)):
        expected = rules.dequantise_nf4(packed, used, count).view(values.shape)
        expect_equal(f"{name}: {kind}", recorded[f"{kind}.float32"], expected)
        expect_equal(f"{name}: {kind} bfloat16", recorded[f"{kind}.bfloat16"], expected.bfloat16())
    return offset == mean.float()


def blockwise(seed):
    """8-bit codes of numbers from 1e-9 to 1, zeros among them, with both dynamic maps."""
    generator = torch.Generator().manual_seed(seed * 1000 + 999)
    size = 10 ** torch.empty(1297).uniform_(-9, 0, generator=generator)
    sign = torch.randint(0, 2, size.shape, generator=generator) * 2 - 1
    size[5:300:7] = 0
    size[512:768] = 0
    result = {}
    for name, values, signed in (("signed", size * sign * 3.7, True), ("unsigned", size * 0.02, False)):
        code = rules.dynamic_map(signed)
        expect_equal(f"{name} map", library.create_dynamic_map(signed=signed), code)
        codes, state = library.quantize_blockwise(values, code=code, blocksize=rules.NESTED_BLOCK)
        found_codes, scales = rules.quantise_8bit(values, code)
        expect_equal(f"{name}: codes", codes, found_codes)
        expect_equal(f"{name}: absmax", state.absmax, scales)
        restored = library.dequantize_blockwise(codes, state)
        expect_equal(f"{name}: restored", restored, rules.dequantise_8bit(codes, scales, code))
        parts = {"values": values, "codes": codes, "absmax": scales, "restored": restored}
        result |= {f"blockwise.{name}.{part}": tensor for part, tensor in parts.items()}
    return result


def check_random(seed, count):
    generator = torch.Generator().manual_seed(seed)
    equal_means = 0
    for index in range(count):
        rows, columns = torch.randint(1, 400, (2,), generator=generator).tolist()
        dtype = (torch.float32, torch.bfloat16, torch.float16)[index % 3]
        values = (spread if index % 2 else normal)(generator, rows, columns).to(dtype)
        equal_means += bool(check(f"{dtype} {rows} x {columns}", quantise(values)))
        blockwise(seed + index)
    print(f"{count} random tensors: the rules give the library's bits; {equal_means} offsets are the rounded float64 mean")


def record(seed, folder):
    tables = {
        "quant_map": rules.NF4,
        "nested_quant_map": rules.dynamic_map(signed=True),
        "unsigned_quant_map": rules.dynamic_map(signed=False),
    }
    saved, listed = {**tables, **blockwise(seed)}, []
    for name, values, about in tensors(seed):
        recorded = quantise(values)
        exact = check(name, recorded)
        if values.numel() > 10_000:
            # The scales alone tell these from the nested ones; they would be half of the file.
            del recorded["plain.float32"], recorded["plain.bfloat16"]
        saved |= {f"{name}.{part}": tensor for part, tensor in recorded.items()}
        listed.append(
            {
                "name": name,
                "about": about,
                "shape": list(values.shape),
                "dtype": str(values.dtype).removeprefix("torch."),
                "blocks": len(recorded["absmax"]),
                "nested_blocks": len(recorded["nested_absmax"]),
                "offset": recorded["offset"].item(),
                "offset_is_rounded_mean": bool(exact),
            }
        )
    about = {
        "format": 1,
        "seed": seed,
        "block": rules.BLOCK,
        "nested_block": rules.NESTED_BLOCK,
        "tensors": listed,
        "made_with": {"bitsandbytes": bitsandbytes.__version__, "torch": torch.__version__.split("+")[0]},
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in saved.items()}, folder / "nf4.safetensors")
    (folder / "nf4.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    print(f"nf4.safetensors {(folder / 'nf4.safetensors').stat().st_size / 1000:.1f} kB, {len(listed)} tensors")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder that gets the two files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check", type=int, metavar="COUNT", help="hold the rules against this many random tensors")
    arguments = parser.parse_args()
    if (arguments.out is None) == (arguments.check is None):
        parser.error("give either --out or --check")
    torch.set_num_threads(1)
    if arguments.check is not None:
        check_random(arguments.seed, arguments.check)
    else:
        record(arguments.seed, arguments.out)


if __name__ == "__main__":
    main()
