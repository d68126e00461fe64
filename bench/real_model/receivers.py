# SPDX-License-Identifier: Apache-2.0
"""What receivers of other types see of the same steps.

A receiver of FP16 rounds the masters. One of FP8 or INT8 gets what an engine makes of the BF16 checkpoint: matrices of
the layers are quantised with a scale per tensor, per block of 128 x 128 or per row, and the rest stays BF16. *Pinned*
scales are those of the version before, as a publisher may keep them between two anchors; others follow the largest
weight. The patch is that of weft, profile small, between the two files of the receiver, scales and all.
"""
import json
import subprocess

from streams import gradient_path

BLOCK = 128
KINDS = {
    "FP8 E4M3, scale per tensor": ("fp8", None),
    "FP8 E4M3, scale per block of 128 x 128": ("fp8", BLOCK),
    "INT8, scale per row": ("int8", "row"),
}


def scales_of(torch, weight, group, most):
    if group is None:
        return weight.abs().max().view(1, 1) / most
    if group == "row":
        return weight.abs().amax(1, keepdim=True) / most
    rows, columns = (-(-size // group) for size in weight.shape)
    more = (0, columns * group - weight.shape[1], 0, rows * group - weight.shape[0])
    padded = torch.nn.functional.pad(weight.abs(), more)
    return padded.view(rows, group, columns, group).amax((1, 3)) / most


def spread(scales, group, shape):
    if group != BLOCK:
        return scales
    return scales.repeat_interleave(group, 0)[: shape[0]].repeat_interleave(group, 1)[:, : shape[1]]


def quantise(torch, weight, kind, group, pinned=None):
    """Codes and scales of a matrix."""
    weight = weight.float()
    most = 448.0 if kind == "fp8" else 127.0
    scales = scales_of(torch, weight, group, most) if pinned is None else pinned
    scaled = (weight / spread(scales, group, weight.shape)).clamp(-most, most)
    codes = scaled.to(torch.float8_e4m3fn) if kind == "fp8" else scaled.round().to(torch.int8)
    return codes, scales


def patch_bytes(options, old, new):
    patch = options.work / "receiver.weft"
    subprocess.run([options.weft, "diff", "--quiet", old, new, "-o", patch], check=True)
    size = patch.stat().st_size
    patch.unlink()
    return size


def compare(options, kind, group, pinned, before, after):
    """Of two BF16 states."""
    import torch
    from safetensors.torch import save_file

    files = [options.work / f"receiver-{n}.safetensors" for n in (0, 1)]
    states = [{}, {}]
    seen = {"weights": 0, "changed": 0, "groups": 0, "groups_changed": 0}
    for name in before:
        if before[name].dim() != 2 or "embed" in name:
            states[0][name], states[1][name] = before[name], after[name]
            continue
        old, old_scales = quantise(torch, before[name], kind, group)
        new, new_scales = quantise(torch, after[name], kind, group, old_scales if pinned else None)
        for state, codes, scales in ((states[0], old, old_scales), (states[1], new, new_scales)):
            state[name], state[f"{name}_scale"] = codes, scales
        seen["weights"] += old.numel()
        seen["changed"] += int((old.view(torch.uint8) != new.view(torch.uint8)).sum())
        seen["groups"] += old_scales.numel()
        seen["groups_changed"] += int((old_scales != new_scales).sum())
    for path, state in zip(files, states):
        save_file(state, path)
    seen["whole_bytes"] = files[1].stat().st_size
    seen["patch_bytes"] = patch_bytes(options, *files)
    for path in files:
        path.unlink()
    return seen


def plain(options, torch, old, new):
    """Of two checkpoints of 16 bits."""
    from safetensors import safe_open

    seen = {"weights": 0, "changed": 0}
    with safe_open(old, "pt") as before, safe_open(new, "pt") as after:
        for name in before.keys():
            units = before.get_tensor(name).view(torch.int16)
            seen["weights"] += units.numel()
            seen["changed"] += int((units != after.get_tensor(name).view(torch.int16)).sum())
    return {**seen, "whole_bytes": new.stat().st_size, "patch_bytes": patch_bytes(options, old, new)}


def receivers(options, clock, room, steps):
    """The version of steps[1] after that of steps[0]; WORK/receivers.json."""
    import torch
    from safetensors.torch import load_file

    result = options.work / "receivers.json"
    found = json.loads(result.read_text()) if result.exists() else {}
    old, new = (gradient_path(room, step) for step in steps)

    def keep(name, make):
        if name not in found:
            clock.check()
            found[name] = make()
            result.write_text(json.dumps(found) + "\n")

    keep("BF16", lambda: plain(options, torch, old, new))
    keep("FP16", lambda: plain(options, torch, *(path.with_suffix(".fp16") for path in (old, new))))
    before, after = load_file(old), load_file(new)
    for name, (kind, group) in KINDS.items():
        keep(name, lambda: compare(options, kind, group, False, before, after))
        keep(f"{name}, pinned", lambda: compare(options, kind, group, True, before, after))
