# SPDX-License-Identifier: Apache-2.0
"""Kills `weft apply --in-place` with SIGKILL, again and again, and looks at what the next weft command finds.

Half of the kills come at a random instant of the whole run. The other half wait for a file to appear (the
journal, or the temporary checkpoint of a rebuild) and strike shortly after, where it hurts. Some strike the
recovery too. Whatever happens, the checkpoint is then at one of the versions that it could be at, byte for
byte, and nothing else is left in its directory.

WEFT names the command. WEFT_SOAK, if set, asks for thousands of kills (or for as many as it says).
"""

import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time

WEFT = os.environ.get("WEFT") or "build/weft"
KILLS = 60
SOAK_KILLS = 3000
ROWS, COLUMNS = 2000, 2000


def write_checkpoint(path, tensors, metadata=None):
    """A safetensors file of {name: (dtype, shape, bytes)}."""
    header, offset = {}, 0
    if metadata:
        header["__metadata__"] = metadata
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            file.write(data)


def changed(dice, data, count):
    """A copy with `count` 16-bit weights moved up or down by one."""
    copy = bytearray(data)
    for _ in range(count):
        at = 2 * dice.randrange(len(copy) // 2)
        value = struct.unpack_from("<H", copy, at)[0]
        struct.pack_into("<H", copy, at, (value + dice.choice((1, -1))) & 0xFFFF)
    return bytes(copy)


def weft(*arguments):
    result = subprocess.run([WEFT, *arguments], capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"weft {' '.join(arguments)}: exit {result.returncode}\n{result.stderr}")
    return result


def read(path):
    with open(path, "rb") as file:
        return file.read()


class Scene:
    """Versions of a checkpoint, the patches between them, and a directory in which things are killed."""

    def __init__(self, directory, dice):
        self.directory = directory
        self.dice = dice
        self.place = os.path.join(directory, "place")
        self.work = os.path.join(self.place, "work.safetensors")
        os.mkdir(self.place)
        weights = dice.randbytes(2 * ROWS * COLUMNS)
        norm = dice.randbytes(4 * COLUMNS)
        self.versions = []
        for number in range(3):
            tensors = {"weight": ("BF16", [ROWS, COLUMNS], weights), "norm": ("F32", [COLUMNS], norm)}
            # the last version has another header and cannot be reached without a new file
            path = os.path.join(directory, f"v{number}.safetensors")
            write_checkpoint(path, tensors, {"version": "2"} if number == 2 else None)
            self.versions.append(path)
            weights = changed(dice, weights, 60000)
        self.contents = [read(path) for path in self.versions]
        self.digests = [json.loads(weft("digest", "--json", path).stdout)["digest"] for path in self.versions]
        self.patches = {}
        for profile in ("fast", "small"):
            for first, last in ((0, 1), (1, 2), (0, 2)):
                path = os.path.join(directory, f"{first}-{last}-{profile}.weft")
                weft("diff", self.versions[first], self.versions[last], "-o", path, "--profile", profile, "-q")
                self.patches[first, last, profile] = path

    def modes(self):
        """Arguments, the versions that may result, and the file whose appearance is worth waiting for."""
        journal = self.work + ".weft-journal"
        for profile in ("fast", "small"):
            plain = self.patches[0, 1, profile]
            yield [plain], (0, 1), journal
            yield [plain, "--durable"], (0, 1), journal
            yield [plain, self.patches[1, 2, profile]], (0, 1, 2), None
            yield [self.patches[0, 2, profile]], (0, 2), None

    def start(self, arguments):
        return subprocess.Popen([WEFT, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def appeared(self, path):
        if path is not None:
            return os.path.exists(path)
        return any(name.endswith(".tmp") for name in os.listdir(self.place))

    def kill(self, process, longest, file, wait):
        """True if the process was still alive."""
        deadline = time.monotonic() + 10 * longest + 1
        while wait and process.poll() is None and time.monotonic() < deadline and not self.appeared(file):
            pass
        time.sleep(self.dice.random() * (longest / 10 if wait else longest * 1.1))
        process.kill()
        return process.wait() != 0

    def check(self, allowed, what):
        """What the next command finds: the version, and whether it had to recover it."""
        result = weft("digest", "--json", self.work)
        digest = json.loads(result.stdout)["digest"]
        found = [number for number in allowed if self.digests[number] == digest]
        if not found:
            sys.exit(f"{what}: the digest is {digest}, none of {[self.digests[n] for n in allowed]}")
        if read(self.work) != self.contents[found[0]]:
            sys.exit(f"{what}: the digest is right, the file is not")
        left = [name for name in os.listdir(self.place) if name != "work.safetensors"]
        if left:
            sys.exit(f"{what}: left behind: {left}")
        return found[0], "recovered" in result.stderr


def run(scene, dice, kills):
    modes = list(scene.modes())
    longest = {}
    tally = {"alive": 0, "old": 0, "new": 0, "recovered": 0, "recoveries killed": 0}
    number = 0
    while tally["alive"] < kills:
        key = number % len(modes)
        patches, allowed, file = modes[key]
        arguments = ["apply", "--in-place", scene.work, *patches]
        shutil.copyfile(scene.versions[0], scene.work)
        if key not in longest:
            began = time.monotonic()
            if scene.start(arguments).wait() != 0:
                sys.exit(f"{arguments} failed")
            longest[key] = time.monotonic() - began
            if scene.check(allowed, "undisturbed")[0] != allowed[-1]:
                sys.exit("undisturbed, it did not reach the new version")
            shutil.copyfile(scene.versions[0], scene.work)
        what = f"kill {number} of {[os.path.basename(part) for part in patches]}"
        wait = number // len(modes) % 2 == 1
        tally["alive"] += scene.kill(scene.start(arguments), longest[key], file, wait)
        if os.path.exists(scene.work + ".weft-journal") and dice.random() < 0.5:
            recovery = scene.start(["apply", "--in-place", scene.work, "--recover"])
            tally["recoveries killed"] += scene.kill(recovery, longest[key] / 4, None, False)
        version, recovered = scene.check(allowed, what)
        tally["old" if version == 0 else "new"] += 1
        tally["recovered"] += recovered
        number += 1
        if number > 20 * kills:
            sys.exit(f"the kills come too late: {tally}")
    print(f"{number} runs: {tally}")


def main():
    soak = os.environ.get("WEFT_SOAK", "")
    kills = KILLS if not soak else max(SOAK_KILLS, int(soak) if soak.isdigit() else 0)
    seed = int.from_bytes(os.urandom(4), "little")
    print(f"seed {seed}", flush=True)
    dice = random.Random(seed)
    directory = tempfile.mkdtemp(prefix="weft-kill-")
    try:
        run(Scene(directory, dice), dice, kills)
    finally:
        shutil.rmtree(directory)


main()
