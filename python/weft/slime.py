# SPDX-License-Identifier: Apache-2.0
"""slime and miles: the two hooks of their weight sync by disk, so that trainer and engines need no file system in
common.

    --update-weight-mode full --update-weight-transport disk --update-weight-disk-dir /local/weights …
    --custom-update-weight-post-write-path weft.slime.publish
    --sglang-custom-pull-weights-pre-read-hook weft.slime.pull

with WEFT_STORE on both sides. The trainer writes a checkpoint to its own disk, and what changed since the last one goes
into the store. Before an engine reads, its host makes the same checkpoint of it, under the same name.

Deltas (--update-weight-mode delta) are taken too: the trainer's host keeps a checkpoint that they are put on, which begins
as a copy of --hf-checkpoint, or of WEFT_BASE. Engines find whole checkpoints all the same.
"""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
import re
import shutil
import sys
import time
from typing import Any, Dict, Mapping, Optional

from .errors import NOT_FOUND, FileError, InvalidArgument, NotFoundError
from .publisher import Published, Publisher
from .runs import log
from .subscriber import Subscriber

_NAME = re.compile(r"weight_v(\d{6,})$")
_INDEX = "model.safetensors.index.json"
_LABEL = "weight_version"
_POLL = 0.1  # seconds between looks for a version


def _setting(name: str, args: Any = None) -> Optional[str]:
    """WEFT_STORE, or weft_store of the arguments (slime's and miles' --custom-config-path sets such)."""
    found = getattr(args, f"weft_{name}", None) or os.environ.get(f"WEFT_{name.upper()}")
    return None if found is None else str(found)


def _store(args: Any = None) -> str:
    store = _setting("store", args)
    if store is None:
        raise InvalidArgument("no store is known; set WEFT_STORE")
    return store


def _is_first() -> bool:
    """Whether this process is rank 0, which writes the checkpoint: the hook is called on all ranks."""
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return True
    return bool(distributed.get_rank() == 0)


def publish(args: Any, version_dir: str, rollout_engines: Any) -> Optional[Published]:
    """The trainer's hook: after a version's files are written, before engines are told to read them. A copy of what was
    published last is kept beside them, in .weft, so that the difference can be made."""
    if not _is_first():
        return None
    place = pathlib.Path(version_dir)
    found = _NAME.search(place.name)
    if found is None:
        raise InvalidArgument(f"{version_dir} is not named as slime names versions, weight_v000007")
    version = int(found[1])
    kept = place.parent / ".weft"
    kept.mkdir(exist_ok=True)
    labels: Dict[str, object] = {_LABEL: version}
    if _is_delta(place):
        labels.update(_put_on(args, place, version, kept / "checkpoint"))
        place = kept / "checkpoint"
    with Publisher(_store(args), place, key=_setting("key", args), mirror=kept / "mirror") as publisher:
        return publisher.publish(labels)


def _put_on(args: Any, place: pathlib.Path, version: int, checkpoint: pathlib.Path) -> Mapping[str, str]:
    """Brings the checkpoint to what a delta leads to; where that came from."""
    if not checkpoint.exists():
        base = _setting("base", args) or getattr(args, "hf_checkpoint", None)
        if base is None or not list(pathlib.Path(base).glob("*.safetensors")):
            raise InvalidArgument(
                f"{place} is a delta, and no checkpoint is known that deltas begin from (slime's version 0); set WEFT_BASE to "
                "its directory"
            )
        made = checkpoint.with_name("checkpoint.new")
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
        for file in pathlib.Path(base).glob("*.safetensors*"):
            shutil.copyfile(file, made / file.name)
        if not (made / _INDEX).exists():
            _write_index(made)
        made.rename(checkpoint)
    with Subscriber(f"slime:{place.parent}", checkpoint) as subscriber:
        if subscriber.version != version:
            subscriber.pull(version)
        return subscriber.labels


def _write_index(directory: pathlib.Path) -> None:
    """For a checkpoint of one file: with an index it stays a directory wherever it goes, as slime's engines expect it."""
    weight_map = {}
    for path in directory.glob("*.safetensors"):
        with open(path, "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        weight_map.update({name: path.name for name in header if name != "__metadata__"})
    (directory / _INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def _is_delta(place: pathlib.Path) -> bool:
    """Whole checkpoints have an index, and so have deltas, whose index says so."""
    try:
        metadata = json.loads((place / _INDEX).read_text()).get("metadata", {})
    except FileNotFoundError as error:
        raise InvalidArgument(f"{place} has no {_INDEX}, as slime writes it last") from error
    return "delta_encoding" in metadata


def _version_of(store: str, target: int, trust: Optional[str], end: float) -> int:
    """weft's number of the version that slime calls `target`."""
    while True:
        try:
            entries = log(store, trust=trust)
        except NotFoundError:
            entries = []
        for entry in entries:  # the newest first
            if entry.labels.get(_LABEL) == str(target):
                return entry.version
        if time.monotonic() > end:
            raise NotFoundError(
                NOT_FOUND,
                f"{store} has no version that is labelled {_LABEL}={target}; look whether the trainer "
                "has weft.slime.publish as its post-write hook",
            )
        time.sleep(_POLL)


def pull(source_dir: str, target_version: int, timeout: float = 300) -> None:
    """The engine's hook: before the files of a version are read. source_dir/weight_v000007 is then a link to a
    checkpoint of that version, which all processes of the host share. The first of them that comes brings it there."""
    if target_version < 1:  # slime's version 0 is what the engine was started with
        return
    end = time.monotonic() + timeout
    store, trust = _store(), _setting("trust")
    version = _version_of(store, target_version, trust, end)
    source = pathlib.Path(source_dir)
    held = source / ".weft" / "checkpoint"
    held.parent.mkdir(parents=True, exist_ok=True)
    with open(held.parent / "lock", "a") as lock:  # the checkpoint may not exist yet, and cannot be locked itself
        fcntl.flock(lock, fcntl.LOCK_EX)
        with Subscriber(store, held, trust=trust, replace=True) as subscriber:
            if subscriber.version != version:
                subscriber.pull(version)
    link = source / f"weight_v{target_version:06d}"
    made = source / ".weft" / f"link.{os.getpid()}"
    made.unlink(missing_ok=True)
    made.symlink_to(os.path.join(held.parent.name, held.name), target_is_directory=True)  # seen from where it goes
    try:
        os.replace(made, link)
    except IsADirectoryError:
        made.unlink()
        raise FileError(
            -400, f"{link} is a directory that was not made by weft; give engines a source_dir of their own"
        ) from None
