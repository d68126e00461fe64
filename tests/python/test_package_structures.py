#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The structures and constants of weft._structures against include/weft: a compiled program prints the size of each
and the place of every member."""

import ctypes
import os
import re
import shutil
import subprocess
import unittest

import package
import serving
from weft import _structures, errors, patches, subscriber, tensors

COMPILER = os.environ.get("CC") or shutil.which("cc")


def structures():
    for name, value in vars(_structures).items():
        if isinstance(value, type) and issubclass(value, ctypes.Structure) and value.__module__ == _structures.__name__:
            yield name, value


def members(structure):
    """Those of the class itself, after `size` if it begins with that."""
    return (["size"] if issubclass(structure, _structures.Sized) else []) + [field[0] for field in structure._fields_]


CONSTANTS = {
    "WEFT_RANK_MAX": _structures.RANK_MAX,
    "WEFT_KEY_TEXT": _structures.KEY_TEXT,
    "WEFT_HEAD_MAX": _structures.HEAD_MAX,
    "WEFT_STORE_TAG_MAX": _structures.TAG_MAX,
    "WEFT_PROFILE_FAST": patches.PROFILES["fast"],
    "WEFT_PROFILE_SMALL": patches.PROFILES["small"],
    "WEFT_PROFILE_SMALLEST": patches.PROFILES["smallest"],
    "WEFT_FATE_REPLACED": patches.FATES.index("replaced"),
    "WEFT_CODING_SMALLEST": max(patches.CODINGS),
    "WEFT_SYNC_COMMIT": subscriber.PHASES.index("commit"),
    "WEFT_DTYPE_BF16": tensors.BF16,
    "WEFT_DTYPE_F32": tensors.F32,
    "WEFT_DTYPE_C64": tensors.dtype_number("complex64"),
    "WEFT_STORE_IF_SAME": 2,
}


class Structures(package.Case):
    def printed(self, lines):
        """What a program with these lines in its main prints, by name."""
        with open(self.path("program.c"), "w") as file:
            file.write("#include <stddef.h>\n#include <stdio.h>\n#include <weft/weft.h>\nint main(void) {\n")
            file.writelines(lines)
            file.write("return 0;\n}\n")
        include = os.path.join(package.SOURCE, "include")
        subprocess.run([COMPILER, "-std=c11", "-Wall", "-Werror", f"-I{include}", self.path("program.c"), "-o",
                        self.path("program")], check=True)
        output = subprocess.run([self.path("program")], check=True, capture_output=True, text=True).stdout
        return {name: int(number) for name, number in (line.split() for line in output.splitlines())}

    def test_places(self):
        lines, expected = [], {}
        for name, structure in structures():
            lines.append(f'printf("{name} %zu\\n", sizeof(weft_{name}));\n')
            expected[name] = ctypes.sizeof(structure)
            for member in members(structure):
                lines.append(f'printf("{name}.{member} %zu\\n", offsetof(weft_{name}, {member}));\n')
                lines.append(f'printf("{name}.{member}= %zu\\n", sizeof ((weft_{name} *)0)->{member});\n')
                expected[f"{name}.{member}"] = getattr(structure, member).offset
                expected[f"{name}.{member}="] = getattr(structure, member).size
        self.assertGreater(len(expected), 400)
        self.assertEqual(self.printed(lines), expected)

    def test_constants(self):
        lines = [f'printf("{name} %d\\n", (int){name});\n' for name in CONSTANTS]
        self.assertEqual(self.printed(lines), CONSTANTS)

    def test_statuses(self):
        """Every failure has an exception of its own kind."""
        with open(os.path.join(package.SOURCE, "include/weft/base.h")) as file:
            numbers = [int(number) for number in re.findall(r"^    WEFT_\w+ = (-\d+)", file.read(), re.M)]
        self.assertGreater(len(numbers), 15)
        for number in numbers:
            error = errors.error_of(number, "text")
            self.assertIsNot(type(error), errors.Error, number)
            self.assertEqual((error.status, str(error)), (number, "text"))
            self.assertEqual(isinstance(error, errors.IntegrityError), -399 <= number <= -200, number)

    def test_dtypes(self):
        for name, number in tensors._DTYPES.items():
            self.assertEqual(tensors.dtype_number(name), number)
            spelled = tensors.functions.dtype_name(number).decode()
            self.assertEqual(tensors.dtype_number(spelled), number)


if __name__ == "__main__":
    if COMPILER is None:
        serving.skip_all("there is no compiler")
    serving.end(unittest.main(exit=False).result)
