# SPDX-License-Identifier: Apache-2.0
"""weft: exact sparse patches between model checkpoints, and learning from sampled responses.

    publisher = weft.Publisher("s3://bucket/run-7", model, key="run-7.key")
    publisher.publish(step=42)

    subscriber = weft.Subscriber("https://trainer:8477", model, trust="run-7.key.pub")
    for update in subscriber.follow():
        with engine.paused():
            update.commit()

Each module stands over one header of libweft, or a part of one. What is named here is loaded when it is first used:
`import weft` takes a few milliseconds, and never imports torch.
"""

import importlib
from typing import TYPE_CHECKING, Any, List

_HOMES = {
    "errors": (
        "AbortedError", "BaseMismatch", "BusyError", "CallbackError", "Cancelled", "ConflictError", "DeniedError",
        "DigestMismatch", "Error", "FileError", "IntegrityError", "InvalidArgument", "LimitError", "NoSpace",
        "NotFoundError", "OutOfMemory", "RemoteError", "SignatureMismatch", "StaleError", "UnsupportedError",
    ),
    "patches": (
        "Applied", "BucketInfo", "Diff", "PatchInfo", "TensorInfo", "Transaction", "Verified", "apply", "diff",
        "digest", "inspect", "merge", "save", "verify",
    ),
    "survey": ("Stats", "TensorStats", "stats"),
    "keys": ("Key",),
    "store": ("ObjectInfo", "Store", "Traffic"),
    "changes": ("Change",),
    "publisher": ("Published", "Publisher"),
    "subscriber": ("Phase", "Subscriber", "SubscriberInfo", "Update"),
    "group": ("Group", "GroupInfo", "Member", "MemberInfo"),
    "runs": ("Collected", "Finding", "Fleet", "FollowerInfo", "LogEntry", "Repaired", "fleet", "gc", "log", "repair"),
}  # fmt: skip
_MODULES = ("correction", "device", "foreign", "layouts", "library", "loco", "lora", "nemo_rl", "optim", "sglang", "sharded",
            "slime", "testing", "trl", "verl")
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

if TYPE_CHECKING:
    from .changes import Change
    from .errors import *
    # `as` says that a name is for users, to those who check types strictly.
    from .group import Group as Group, GroupInfo as GroupInfo, Member as Member, MemberInfo as MemberInfo
    from .keys import Key as Key
    from .patches import Applied as Applied, BucketInfo as BucketInfo, Diff as Diff, PatchInfo as PatchInfo
    from .patches import TensorInfo as TensorInfo, Transaction as Transaction, Verified as Verified, apply as apply
    from .patches import diff as diff, digest as digest, inspect as inspect, merge as merge, save as save
    from .patches import verify as verify
    from .publisher import Published as Published, Publisher as Publisher
    from .runs import Collected as Collected, Finding as Finding, Fleet as Fleet, FollowerInfo as FollowerInfo
    from .runs import LogEntry as LogEntry, Repaired as Repaired, fleet as fleet, gc as gc, log as log, repair as repair
    from .store import ObjectInfo as ObjectInfo, Store as Store, Traffic as Traffic
    from .subscriber import Phase as Phase, Subscriber as Subscriber, SubscriberInfo as SubscriberInfo, Update as Update
    from .survey import Stats as Stats, TensorStats as TensorStats, stats as stats

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        value = getattr(importlib.import_module("." + _HOME_OF[name], __name__), name)
    elif name in _MODULES:
        value = importlib.import_module("." + name, __name__)
    elif name == "__version__":
        number = importlib.import_module("._signatures", __name__).functions.version()
        value = f"{number // 1000000}.{number // 1000 % 1000}.{number % 1000}"
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> List[str]:
    return sorted({*globals(), *_HOME_OF, *_MODULES, "__version__"})
