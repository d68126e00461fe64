#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The wheel, as a user gets it: built by scripts/wheel.sh, installed into a clean environment without a compiler, without
numpy and without this tree. It imports, has its command, publishes and follows."""

import glob
import os
import subprocess
import sys
import unittest
import zipfile

import package
import serving
import weft
from package import model

PROGRAM = """
import sys, weft
from weft import library
assert library.library._name.startswith(sys.prefix), library.library._name
assert not {"numpy", "torch"} & set(sys.modules)
store, old, new, replica = sys.argv[1:]
with weft.Publisher(store, old) as publisher, weft.Subscriber(store, replica) as subscriber:
    publisher.publish(step=1)
    for update in subscriber.follow(timeout=0):
        update.commit()
with weft.Publisher(store, new) as publisher, weft.Subscriber(store, replica) as subscriber:
    published = publisher.publish(step=2)
    for update in subscriber.follow(timeout=0):
        update.commit()
    assert (subscriber.version, subscriber.info.digest) == (2, published.digest), subscriber.info
print(weft.__version__, weft.digest(replica))
"""


class Wheel(package.Case):
    @classmethod
    def setUpClass(cls):
        script = os.path.join(package.SOURCE, "scripts", "wheel.sh")
        # without optimization, which is most of a compiler's time, and not where somebody would look for a wheel to keep
        output = os.path.join(package.SOURCE, "build", "wheel-test")
        settings = {"build-dir": output + "-build", "cmake.build-type": "None", "cmake.define.CMAKE_C_FLAGS": "-O0"}
        options = [f"--config-settings={key}={value}" for key, value in settings.items()]
        built = subprocess.run([script, *options], env={**os.environ, "WEFT_WHEEL_OUTPUT": output}, capture_output=True,
                               text=True)
        tools = os.path.join(package.SOURCE, "build", "package-venv", "requirements-package.txt")
        if built.returncode != 0 and not os.path.exists(tools):
            raise unittest.SkipTest("without build/package-venv the wheel could not be built: " + built.stderr[-2000:])
        assert built.returncode == 0, built.stdout + built.stderr
        print(built.stdout, end="")
        cls.wheels = glob.glob(os.path.join(output, "*.whl"))

    def test_contents(self):
        """One file for every Python, with the library once."""
        self.assertEqual(len(self.wheels), 1)
        self.assertRegex(os.path.basename(self.wheels[0]), r"^weft-[0-9.]+-py3-none-(many)?linux_.*\.whl$")
        with zipfile.ZipFile(self.wheels[0]) as file:
            names = file.namelist()
        self.assertEqual([name for name in names if "libweft" in name], ["weft/lib/libweft.so.1"])
        root = os.path.join(package.PYTHON, "weft")
        found = glob.glob(os.path.join(root, "**", "*.py"), recursive=True)
        modules = {os.path.relpath(path, root) for path in found}
        self.assertEqual({name[5:] for name in names if name.startswith("weft/") and name.endswith(".py")}, modules)
        self.assertTrue({"weft/py.typed", "weft/bin/weft"} <= set(names))

    def test_clean(self):
        for name, seed in (("old", 1), ("new", 2)):
            weft.save(model(seed), self.path(name))
        subprocess.run([sys.executable, "-m", "venv", self.path("venv")], check=True)
        python, command = self.path("venv/bin/python"), self.path("venv/bin/weft")
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-index", *self.wheels], check=True)
        environment = {"PATH": self.path("venv/bin"), "HOME": self.place}

        def run(*arguments):
            return subprocess.run(arguments, env=environment, cwd=self.place, check=True, capture_output=True, text=True).stdout

        expected = f"{weft.__version__} {weft.digest(self.path('new'))}\n"
        self.assertEqual(run(python, "-c", PROGRAM, *map(self.path, ("store", "old", "new", "replica"))), expected)
        self.assertEqual(run(command, "--version").split()[:2], ["weft", weft.__version__])
        run(command, "pull", self.path("store"), self.path("other"))
        self.assertEqual(weft.digest(self.path("other")), weft.digest(self.path("new")))
        failed = subprocess.run([command, "pull"], env=environment, capture_output=True, text=True)
        self.assertEqual(failed.returncode, 2)


if __name__ == "__main__":
    serving.end(unittest.main(exit=False).result)
