# SPDX-License-Identifier: Apache-2.0
"""The foreign files that were ever read stay readable: tests/golden/foreign, made by tests/golden/make_foreign.py."""

import filecmp
import os
import shutil
import tempfile

import serving
from foreign_scene import weft

GOLDEN = os.path.join(os.environ.get("WEFT_SOURCE") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."),
                      "tests", "golden", "foreign")
SCHEMES = {"slime-xor": "slime", "slime-overwrite": "slime", "skyrl": "skyrl", "arc2": "arc2", "trl-raw": "trl",
           "trl-gaps": "trl", "prime-ranks": "prime", "prime-update": "prime", "areal": "areal", "pulse-1": "pulse",
           "pulse-2": "pulse", "pulse-3": "pulse", "grail-3": "grail", "grail-31": "grail"}


def test_golden_files_lead_to_their_states():
    places = [name for name in os.listdir(GOLDEN) if os.path.isdir(os.path.join(GOLDEN, name))]
    assert sorted(places) == sorted(SCHEMES)
    for name, scheme in SCHEMES.items():
        with tempfile.TemporaryDirectory(prefix="weft-foreign.") as scratch:
            out = os.path.join(scratch, "out.safetensors")
            states = "bf16" if scheme in ("pulse", "grail") else "state"
            for number in 1, 2:
                if number == 1:
                    shutil.copy(os.path.join(GOLDEN, f"{states}-0.safetensors"), out)
                weft("convert", f"{scheme}:{os.path.join(GOLDEN, name)}", out, "--version", str(number), "--assume-base")
                assert filecmp.cmp(out, os.path.join(GOLDEN, f"{states}-{number}.safetensors"), shallow=False), (name, number)


if __name__ == "__main__":
    serving.main()
