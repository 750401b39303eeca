"""The rules of bitsandbytes' NF4 and blockwise 8-bit formats, written out in float32; README.md says them in words.

Everything here gives the same bits as the library on a CPU. Tensors are flat: rows do not matter to the format.
"""

import torch

BLOCK = 64  # values that share one scale
NESTED_BLOCK = 256  # scales that share one scale of their own; also the block of 8-bit optimizer states
SMALLEST_SCALE = 1e-38
# The library finds 8-bit codes on a CPU in a table over [-1, 1] with this many entries.
TABLE_ENTRIES = 65536

NF4 = torch.tensor(
    [
        -1.0,
        -0.6961928009986877,
        -0.5250730514526367,
        -0.39491748809814453,
        -0.28444138169288635,
        -0.18477343022823334,
        -0.09105003625154495,
        0.0,
        0.07958029955625534,
        0.16093020141124725,
        0.24611230194568634,
        0.33791524171829224,
        0.44070982933044434,
        0.5626170039176941,
        0.7229568362236023,
        1.0,
    ]
)


def dynamic_map(signed):
    """256 values in rising order. Decade i from 1e-7..1e-6 up to 0.1..1 has 2^i steps (unsigned 2^(i+1)), each at its middle."""
    values = [0.0, 1.0]
    for decade in range(7):
        steps = 2**decade if signed else 2 ** (decade + 1)
        edges = torch.linspace(0.1, 1, steps + 1, dtype=torch.float32)
        # The power of ten is a float64 that becomes float32 before the product.
        middles = ((edges[:-1] + edges[1:]) / 2 * 10.0 ** (decade - 6)).tolist()
        values += middles
        if signed:
            values += [-middle for middle in middles]
    return torch.tensor(sorted(values), dtype=torch.float32)


def blocks_of(values, size):
    """The values in blocks, and the maximum of each block. The last block may be shorter."""
    blocks = list(values.split(size))
    return blocks, torch.stack([block.abs().max() for block in blocks])


def midpoints(code):
    return (code[:-1] + code[1:]) / 2


def quantise_nf4(values):
    """Packed bytes and one scale per block. `values` is any float tensor; the arithmetic is float32."""
    values = values.flatten().float()
    blocks, scales = blocks_of(values, BLOCK)
    codes = []
    for number, block in enumerate(blocks):
        scale = scales[number].clamp(min=SMALLEST_SCALE)
        if len(block) == BLOCK:
            scaled = block * (1 / scale)
        else:
            # A short last block is divided instead, and its scale is stored as clamped.
            scaled, scales[number] = block / scale, scale
        # The number of midpoints below the value: a tie goes to the lower code.
        codes.append((scaled.clamp(-1, 1)[:, None] > midpoints(NF4)).sum(dim=1))
    codes = torch.cat(codes)
    if len(codes) % 2:
        codes = torch.cat([codes, torch.tensor([7])])  # the code of zero fills the last byte
    return (codes[::2] * 16 + codes[1::2]).to(torch.uint8)[:, None], scales


def dequantise_nf4(packed, scales, count):
    packed = packed.flatten().long()
    codes = torch.stack([packed // 16, packed % 16], dim=1).flatten()[:count]
    return NF4[codes] * scales.repeat_interleave(BLOCK)[:count]


def quantise_8bit(values, code):
    """Codes and block maxima as the library's CPU code finds them: in a table, which blurs values below 1e-4.

    Zero in a block that is not all zero does not become the code of zero.
    """
    entries = -1 + 2 * torch.arange(TABLE_ENTRIES, dtype=torch.float32) / (TABLE_ENTRIES - 1)
    table = torch.bucketize(entries, midpoints(code))
    blocks, scales = blocks_of(values.flatten(), NESTED_BLOCK)
    codes = []
    for block, scale in zip(blocks, scales):
        if scale == 0:
            codes.append(torch.zeros(len(block), dtype=torch.int64))
            continue
        scaled = (block * (1 / scale)).clamp(-1, 1)
        codes.append(table[((scaled + 1) * 0.5 * (TABLE_ENTRIES - 1) + 0.5).long()])
    return torch.cat(codes).to(torch.uint8), scales


def dequantise_8bit(codes, scales, code):
    return code[codes.long()] * scales.repeat_interleave(NESTED_BLOCK)[: len(codes)]


def quantise_scales(scales, offset):
    """Double quantisation of the scales. The offset is their mean, but its last bits depend on the order of the sum."""
    return quantise_8bit(scales - offset, dynamic_map(signed=True))


def dequantise_scales(codes, nested_scales, offset):
    return dequantise_8bit(codes, nested_scales, dynamic_map(signed=True)) + offset


def nearest_codes(values, code):
    """Codes and block maxima by the nearest code, as the library's CUDA kernels find them."""
    blocks, scales = blocks_of(values.flatten(), NESTED_BLOCK)
    codes = []
    for block, scale in zip(blocks, scales):
        # Zero over zero: any code is right, the maximum is zero.
        scaled = block / scale if scale > 0 else torch.zeros_like(block)
        codes.append(torch.bucketize(scaled, midpoints(code).to(values.dtype)))
    return torch.cat(codes), scales


def keep_sign(codes, values, code):
    """A first moment whose sign bit is not that of its code takes the next code on its side.

    Zero is positive: a negative moment never becomes zero, a positive one may.
    """
    differs = values.signbit() != code[codes].signbit()
    return codes + differs.long() * torch.where(values > 0, 1, -1)


class AdamW8:
    """Blockwise 8-bit AdamW for one tensor, in the type of the parameter.

    `rounding` is "cpu" (codes from the table, decay before the update) or "nearest" (CUDA: nearest codes, signs kept, decay
    after the update). Both update the parameter with the moments before these are rounded.
    """

    FIRST, SECOND = dynamic_map(signed=True), dynamic_map(signed=False)

    def __init__(self, parameter, rounding, beta1, beta2, epsilon):
        self.rounding, self.beta1, self.beta2, self.epsilon = rounding, beta1, beta2, epsilon
        self.step_count = 0
        blocks = -(-parameter.numel() // NESTED_BLOCK)
        # Code 0 is not the code of zero, but the maximum is zero.
        self.codes = [torch.zeros(parameter.numel(), dtype=torch.uint8) for _ in range(2)]
        self.absmax = [torch.zeros(blocks, dtype=parameter.dtype) for _ in range(2)]

    def step(self, parameter, gradient, rate, decay):
        self.step_count += 1
        shape, parameter, gradient = parameter.shape, parameter.flatten(), gradient.flatten()
        first, second = (
            dequantise_8bit(codes, absmax, code.to(parameter.dtype))
            for codes, absmax, code in zip(self.codes, self.absmax, (self.FIRST, self.SECOND))
        )
        first = first * self.beta1 + (1 - self.beta1) * gradient
        second = second * self.beta2 + (1 - self.beta2) * gradient * gradient
        correction1 = 1 - self.beta1**self.step_count
        correction2 = (1 - self.beta2**self.step_count) ** 0.5
        change = first / (second.sqrt() + correction2 * self.epsilon) * (-rate * correction2 / correction1)
        shrink = 1 - rate * decay
        if self.rounding == "cpu":
            parameter = parameter * shrink + change
            (codes1, absmax1), (codes2, absmax2) = quantise_8bit(first, self.FIRST), quantise_8bit(second, self.SECOND)
        else:
            parameter = (parameter + change) * shrink
            codes1, absmax1 = nearest_codes(first, self.FIRST)
            codes1 = keep_sign(codes1, first, self.FIRST)
            codes2, absmax2 = nearest_codes(second, self.SECOND)
        self.codes, self.absmax = [codes1.to(torch.uint8), codes2.to(torch.uint8)], [absmax1, absmax2]
        return parameter.view(shape)
