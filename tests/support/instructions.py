# SPDX-License-Identifier: Apache-2.0
"""Keeps oneDNN from instructions that end the process here, in the environment that runs this, if it has torch.

Some virtual machines tell of AMX and hide what its tiles are (leaf 0x1D of CPUID). oneDNN then configures none, and the
first product of BF16 matrices is an illegal instruction. There every process that this environment starts is told to go
without. vLLM's attention uses tiles as they are, and relies on oneDNN to have asked the system for them (arch_prctl,
ARCH_REQ_XCOMP_PERM, tile data): so that is done too."""

import os
import pathlib
import signal
import site
import subprocess
import sys

PRODUCT = "import torch; torch.nn.functional.linear(*(torch.ones(64, 64, dtype=torch.bfloat16) for _ in range(2)))"


def main() -> None:
    tried = subprocess.run([sys.executable, "-c", PRODUCT], env={**os.environ, "ONEDNN_MAX_CPU_ISA": "ALL"},
                           stderr=subprocess.DEVNULL)
    line = pathlib.Path(site.getsitepackages()[0]) / "weft_instructions.pth"
    if tried.returncode == -signal.SIGILL:
        limit = "os.environ.setdefault('ONEDNN_MAX_CPU_ISA', 'AVX512_CORE_BF16')"
        line.write_text(f"import ctypes, os; {limit}; ctypes.CDLL(None).syscall(158, 0x1023, 18)\n")
        print("AMX is broken on this machine, and oneDNN goes without (ONEDNN_MAX_CPU_ISA)")
    else:
        line.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
