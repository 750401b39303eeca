"""The model, its adapter and its training step written out plainly, in float64 and without padding.

This is the README's list of formulas as code: rows lie end to end, attention runs over variable-length segments, and
nothing of transformers, peft or torch.optim is used. check_facts.py holds it against the recorded numbers, so what it
says about the order of windows, the position axes, the adapter's scale or the optimizer is not only read but measured.
Gradients come from autograd.
"""

import json
import math
import re
from pathlib import Path

import torch
import torch.nn.functional as functional
from safetensors.torch import load_file

import quantised_rules

VISION_EPS = 1e-6  # fixed in the code of transformers; only the decoder's is in the config
VISION_ROPE_THETA = 1e4
IGNORED = -100


def read_config(path):
    """The layers of the decoder, one by one, whatever the layout, with the vision fields under `vision`."""
    raw = json.loads(Path(path).read_text())
    text = raw.get("text_config", raw)
    return {
        "layers": raw.get("layers") or layers_of(text),
        "rms_norm_eps": text["rms_norm_eps"],
        "tied": raw.get("tie_word_embeddings", False),
        "image_token": raw["image_token_id"],
        "vision": raw["vision_config"],
    }


def layers_of(text):
    """Layers that are all alike."""
    rope, heads = text.get("rope_parameters") or text["rope_scaling"], text["num_attention_heads"]
    layer = {
        "heads": heads,
        "kv_heads": text["num_key_value_heads"],
        "head_dim": text["hidden_size"] // heads,
        "theta": rope.get("rope_theta") or text["rope_theta"],
        "sections": rope["mrope_section"],
    }
    return [layer] * text["num_hidden_layers"]


def read_weights(folder, files):
    """All tensors under the new names, whichever the file has."""
    weights = {}
    for file in files:
        for name, tensor in load_file(folder / file).items():
            name = re.sub(r"^visual\.", "model.visual.", name)
            name = re.sub(r"^model\.(?!visual\.|language_model\.)", "model.language_model.", name)
            weights[name] = tensor
    return weights


def unpack_weights(weights):
    """Replaces the tensors of a 4-bit checkpoint by the weights they stand for."""
    ending = ".quant_state.bitsandbytes__nf4"
    for name in [name.removesuffix(ending) for name in weights if name.endswith(ending)]:
        about = json.loads(bytes(weights.pop(name + ending).tolist()))
        scales = weights.pop(f"{name}.absmax")
        if f"{name}.nested_absmax" in weights:
            offset = torch.tensor(about["nested_offset"], dtype=torch.float32)
            scales = quantised_rules.dequantise_scales(scales, weights.pop(f"{name}.nested_absmax"), offset)
        shape = about["shape"]
        weights[name] = quantised_rules.dequantise_nf4(weights[name], scales, math.prod(shape)).view(shape)


def quantise_weights(weights, names, double):
    """Replaces weights by what is left of them after packing."""
    for name in names:
        weight = weights[name]
        packed, scales = quantised_rules.quantise_nf4(weight)
        if double:
            offset = scales.double().mean().float()
            scales = quantised_rules.dequantise_scales(*quantised_rules.quantise_scales(scales, offset), offset)
        weights[name] = quantised_rules.dequantise_nf4(packed, scales, weight.numel()).view(weight.shape)


def rms_norm(x, weight, eps):
    return weight * (x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + eps))


def rotate(x, angles):
    """Rotates the pairs (i, i + half) of each head. x: [tokens, heads, head_dim], angles: [tokens, half]."""
    cos, sin = angles.cos()[:, None, :], angles.sin()[:, None, :]
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def frequencies(count, theta):
    """theta^(-i / count), i = 0 .. count - 1."""
    return theta ** (-torch.arange(count, dtype=torch.float64) / count)


def attend(q, k, v, starts, causal):
    """Attention within segments. q: [tokens, heads, dim]; k, v: [tokens, kv_heads, dim]; starts: segment boundaries."""
    group = q.shape[1] // k.shape[1]
    # Query head h reads key head h / group.
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    pieces = []
    for begin, end in zip(starts[:-1], starts[1:]):
        scores = torch.einsum("qhd,khd->hqk", q[begin:end], k[begin:end]) / math.sqrt(q.shape[2])
        if causal:
            hidden = torch.ones(end - begin, end - begin, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(hidden, -math.inf)
        pieces.append(torch.einsum("hqk,khd->qhd", scores.softmax(dim=-1), v[begin:end]))
    return torch.cat(pieces).flatten(1)


def window_order(grids, window, merge=2):
    """Merged tokens in the order of their windows, and the window boundaries counted in patches.

    Windows of `window` x `window` merged tokens are taken frame by frame, then row by row; within a window tokens go row
    by row. Windows at the right and lower edge are smaller. No window is empty.
    """
    order, starts, base = [], [0], 0
    for frames, height, width in grids:
        rows, columns = height // merge, width // merge
        for frame in range(frames):
            for top in range(0, rows, window):
                for left in range(0, columns, window):
                    tokens = [
                        base + (frame * rows + row) * columns + column
                        for row in range(top, min(top + window, rows))
                        for column in range(left, min(left + window, columns))
                    ]
                    order += tokens
                    starts.append(starts[-1] + len(tokens) * merge * merge)
        base += frames * rows * columns
    return order, starts


def patch_positions(grids, merge=2):
    """Row and column of every patch, in the order patches come: merge blocks row by row, four patches in each."""
    return [
        (top + row, left + column)
        for frames, height, width in grids
        for _ in range(frames)
        for top in range(0, height, merge)
        for left in range(0, width, merge)
        for row in range(merge)
        for column in range(merge)
    ]


def image_starts(grids):
    starts = [0]
    for frames, height, width in grids:
        for _ in range(frames):
            starts.append(starts[-1] + height * width)
    return starts


def rope_positions(tokens, row_starts, grids, image_token, merge=2):
    """Time, row and column of every token, starting anew in each row. Images have one frame."""
    grids = iter(grids)
    positions = []
    for begin, end in zip(row_starts[:-1], row_starts[1:]):
        index, position = begin, 0
        while index < end:
            if tokens[index] != image_token:
                positions.append((position, position, position))
                index, position = index + 1, position + 1
                continue
            _, height, width = next(grids)
            rows, columns = height // merge, width // merge
            positions += [(position, position + r, position + c) for r in range(rows) for c in range(columns)]
            index, position = index + rows * columns, position + max(rows, columns)
    return positions


class Specification:
    """One case: the weights by name, the trainable ones among them, and the passes."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.case = json.loads((self.folder / "case.json").read_text())
        self.config = read_config(self.folder / "config.json")
        weights = read_weights(self.folder, self.case["model"]["weights"])
        quantisation = self.case.get("quantisation")
        self.packed, self.rounded_backward = set(), False
        if quantisation:
            self.packed = {f"{name}.weight" for name in quantisation["quantised_modules"]}
            # bitsandbytes dequantises to the type the weight was packed from, but in the forward pass to that of the input.
            self.rounded_backward = quantisation["weight_dtype"] == "bfloat16"
            if quantisation["stored"]:
                unpack_weights(weights)
            else:
                quantise_weights(weights, self.packed, quantisation["double"])
        self.weights = {name: tensor.double() for name, tensor in weights.items()}
        if self.config["tied"]:
            self.weights["lm_head.weight"] = self.weights["model.language_model.embed_tokens.weight"]
        self.adapter = {}
        if self.case["lora"]:
            file = self.folder / self.case["lora"]["folder"] / "adapter_model.safetensors"
            self.adapter = {name: tensor.double() for name, tensor in load_file(file).items()}
            self.trainable = self.adapter
        else:
            self.trainable = {n: w for n, w in self.weights.items() if not (self.config["tied"] and n == "lm_head.weight")}
        for tensor in self.trainable.values():
            tensor.requires_grad_()

    def linear(self, name, x):
        weight, bias = self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias")
        if self.rounded_backward and f"{name}.weight" in self.packed:
            rounded = weight.bfloat16().double()
            # The value is that of the weight, the gradient of x that of the rounded one.
            result = functional.linear(x, rounded, bias) + functional.linear(x.detach(), weight - rounded)
        else:
            result = functional.linear(x, weight, bias)
        down = self.adapter.get(f"base_model.model.{name}.lora_A.weight")
        if down is not None:
            up = self.adapter[f"base_model.model.{name}.lora_B.weight"]
            result = result + self.case["lora"]["scale"] * (x @ down.T) @ up.T
        return result

    def norm(self, name, x, eps):
        return rms_norm(x, self.weights[f"{name}.weight"], eps)

    def swiglu(self, name, x):
        gate = self.linear(f"{name}.gate_proj", x)
        return self.linear(f"{name}.down_proj", gate * torch.sigmoid(gate) * self.linear(f"{name}.up_proj", x))

    def see(self, pixels, grids):
        """The vision tower. pixels: [patches, channels * 2 * patch * patch] -> [merged tokens, hidden]."""
        vision, prefix = self.config["vision"], "model.visual"
        heads, window = vision["num_heads"], vision["window_size"] // 2 // vision["patch_size"]
        order, window_starts = window_order(grids, window)
        kernel = self.weights[f"{prefix}.patch_embed.proj.weight"]
        x = pixels @ kernel.flatten(1).T
        patches = (torch.tensor(order)[:, None] * 4 + torch.arange(4)).flatten()
        x = x[patches]
        head_dim = x.shape[1] // heads
        inverse = frequencies(head_dim // 4, VISION_ROPE_THETA)
        positions = torch.tensor(patch_positions(grids), dtype=torch.float64)[patches]
        angles = (positions[:, :, None] * inverse).flatten(1)  # rows first, then columns
        for index in range(vision["depth"]):
            starts = image_starts(grids) if index in vision["fullatt_block_indexes"] else window_starts
            block = f"{prefix}.blocks.{index}"
            qkv = self.linear(f"{block}.attn.qkv", self.norm(f"{block}.norm1", x, VISION_EPS))
            q, k, v = qkv.view(len(x), 3, heads, head_dim).unbind(1)
            mixed = attend(rotate(q, angles), rotate(k, angles), v, starts, causal=False)
            x = x + self.linear(f"{block}.attn.proj", mixed)
            x = x + self.swiglu(f"{block}.mlp", self.norm(f"{block}.norm2", x, VISION_EPS))
        x = self.norm(f"{prefix}.merger.ln_q", x, VISION_EPS).view(len(order), -1)
        x = self.linear(f"{prefix}.merger.mlp.0", x)
        x = x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))
        x = self.linear(f"{prefix}.merger.mlp.2", x)
        return x[torch.tensor(order).argsort()]

    def forward(self, batch):
        """Logits [tokens, vocabulary] of a packed batch, and the mean loss over its targets."""
        config, prefix = self.config, "model.language_model"
        tokens, row_starts = batch["packed.input_ids"], batch["packed.row_starts"].tolist()
        x = self.weights[f"{prefix}.embed_tokens.weight"][tokens]
        grids = batch["image_grid_thw"].tolist() if "image_grid_thw" in batch else []
        if grids:
            places = (tokens == config["image_token"]).nonzero().flatten()
            x = x.index_put((places,), self.see(batch["pixel_values"].double(), grids))
        positions = rope_positions(tokens.tolist(), row_starts, grids, config["image_token"])
        positions = torch.tensor(positions, dtype=torch.float64)
        eps = config["rms_norm_eps"]
        for index, about in enumerate(config["layers"]):
            heads, kv_heads, head_dim = about["heads"], about["kv_heads"], about["head_dim"]
            # Frequency i of half a head turns with the axis whose section it falls into.
            axis = torch.tensor([axis for axis, count in enumerate(about["sections"]) for _ in range(count)])
            angles = positions[:, axis] * frequencies(head_dim // 2, about["theta"])
            layer = f"{prefix}.layers.{index}"
            normed = self.norm(f"{layer}.input_layernorm", x, eps)
            q = self.linear(f"{layer}.self_attn.q_proj", normed).view(len(x), heads, head_dim)
            k = self.linear(f"{layer}.self_attn.k_proj", normed).view(len(x), kv_heads, head_dim)
            v = self.linear(f"{layer}.self_attn.v_proj", normed).view(len(x), kv_heads, head_dim)
            mixed = attend(rotate(q, angles), rotate(k, angles), v, row_starts, causal=True)
            x = x + self.linear(f"{layer}.self_attn.o_proj", mixed)
            x = x + self.swiglu(f"{layer}.mlp", self.norm(f"{layer}.post_attention_layernorm", x, eps))
        x = self.norm(f"{prefix}.norm", x, eps)
        logits = self.linear("lm_head", x)
        return logits, self.loss(logits, batch["packed.labels"], row_starts)

    def loss(self, logits, labels, row_starts):
        """Position i is asked for label i + 1 of its row; the last position of a row for nothing."""
        targets = torch.cat([labels[1:], torch.tensor([IGNORED])])
        targets[torch.tensor(row_starts[1:]) - 1] = IGNORED
        kept = targets != IGNORED
        chosen = logits[kept].gather(1, targets[kept][:, None]).squeeze(1)
        return (logits[kept].logsumexp(dim=1) - chosen).mean()

    def gradients(self, batch):
        """Logits, loss and the gradients by name; a parameter that took no part in the pass has none."""
        logits, loss = self.forward(batch)
        found = torch.autograd.grad(loss, list(self.trainable.values()), allow_unused=True)
        return logits.detach(), loss.item(), {n: g for n, g in zip(self.trainable, found) if g is not None}

    def train(self, batches):
        """AdamW with decoupled decay. Each parameter counts its own steps: one without a gradient is left as it is."""
        settings = self.case["training"]
        beta1, beta2, eps = settings["beta1"], settings["beta2"], settings["epsilon"]
        state = {name: [0, torch.zeros_like(p), torch.zeros_like(p)] for name, p in self.trainable.items()}
        losses, norms = [], []
        for step, rate in enumerate(settings["learning_rates"]):
            _, loss, gradients = self.gradients(batches[step % len(batches)])
            norm = math.sqrt(sum((g * g).sum().item() for g in gradients.values()))
            shrink = min(1.0, settings["clip_norm"] / (norm + 1e-6))
            losses.append(loss)
            norms.append(norm)
            for name, gradient in gradients.items():
                gradient = gradient * shrink
                count, first, second = state[name]
                count += 1
                first = beta1 * first + (1 - beta1) * gradient
                second = beta2 * second + (1 - beta2) * gradient * gradient
                state[name] = [count, first, second]
                decay = 0.0 if name in settings["not_decayed"] else settings["weight_decay"]
                with torch.no_grad():
                    parameter = self.trainable[name]
                    parameter *= 1 - rate * decay
                    parameter -= rate / (1 - beta1**count) * first / (torch.sqrt(second / (1 - beta2**count)) + eps)
        return losses, norms
