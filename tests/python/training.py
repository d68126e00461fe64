# SPDX-License-Identifier: Apache-2.0
"""training.py: lines as a trainer writes them (doc/FORMAT.md, train/metrics), made up for tests of what reads them."""
import math
import random

TENSORS = ["model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight", "model.norm.weight"]


def make_step(number, **members):
    dice = random.Random(number)
    rise = 1 - math.exp(-number / 30)
    step = {
        "step": number, "version": number + 1, "reward": 0.5 + 0.3 * rise + 0.02 * dice.random(),
        "success": 0.5 + 0.3 * rise if number % 10 == 0 else None, "loss": 0.02 * (dice.random() - 0.5),
        "clipped": 0.01, "norm": 0.8, "kl": 0, "rate": 1e-4,
        "density": {"1": 0.02 + 0.002 * dice.random(), "8": 0.1 if number >= 8 else None,
                    "32": 0.25 if number >= 32 else None},
        "tensors": {name: 0.01 * (place + 1) for place, name in enumerate(TENSORS)},
        "changed": 2800, "elements": 140000, "bytes": {"sent": 3300 + dice.randrange(200), "dense": 280000},
        "staleness": {"mean": 0.5, "max": 1}, "trajectories": {"used": 256, "rejected": 0, "reasons": {}},
        "tokens": 8192, "seconds": {"step": 0.5, "wait": 0.1, "train": 0.3, "publish": 0.02, "state": 0.01},
        "workers": [{"name": name, "version": number, "generate": 0.2, "pull": 0.01, "pause": 0.0002 + 0.0004 * dice.random(),
                     "received": 3400, "put": 0.001, "trajectories": 128} for name in ("a", "b")],
    }
    return {**step, **members}
