# SPDX-License-Identifier: Apache-2.0
"""A run as a whole: its history, its fleet of followers, what it no longer needs, and repairs; over weft/sync.h."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
from typing import Any, Iterator, List, Mapping, Optional, Sequence, Tuple

from . import _structures as structures
from ._signatures import functions
from .context import Context, Progress
from .keys import KeyLike, key_of
from .store import Store, StoreLike, store_of
from .tensors import pairs_of


@dataclasses.dataclass(frozen=True)
class LogEntry:
    """A version of the history."""

    version: int
    epoch: int
    digest: str
    milliseconds: int  # since 1970, when it was published, by the publisher's clock
    patch_bytes: int  # 0: none
    anchor_bytes: int  # 0: none
    changed: int
    total: int
    dense_bytes: int
    kept: bool  # its objects are still promised to be there
    labels: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class FollowerInfo:
    """What a follower last reported of itself, and how far behind it is. Reports are untrusted."""

    name: str
    run: str
    state: str  # waiting, fetching, prepared, failed, ended
    version: int
    digest: str
    newest: int
    milliseconds: int
    published: int
    phase_seconds: Mapping[str, float]
    pause_seconds: float
    patches: int
    anchors: int
    healed: int
    fetched_bytes: int
    requests: int
    error: str
    error_milliseconds: int
    interval_seconds: float
    age_seconds: float
    lag: int
    lag_seconds: Optional[float]
    live: bool
    cuts: str  # that it asks the publisher for, PATTERN:DIM:PARTS with spaces between them
    reads: int  # the newest format that it can read


@dataclasses.dataclass(frozen=True)
class Fleet:
    """The followers of a run: the live ones first, and of these the one that is most behind."""

    followers: Sequence[FollowerInfo]
    live: int
    left_out: int
    newest: int
    slowest: int
    reads: int  # the newest format that all live followers can read; 0: there are none


@dataclasses.dataclass(frozen=True)
class Collected:
    """What gc has removed, or would."""

    objects: int
    bytes: int
    waiting: int  # no longer needed, within the grace period
    oldest: int  # the oldest version that is kept
    follower: int  # patches from this version on are left for a follower; 0: none
    ageless: bool
    unsettled: bool
    removed: Sequence[Tuple[str, int]] = dataclasses.field(repr=False)  # keys and bytes


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something that is wrong in a store, what that means, and what can be done."""

    kind: str  # head, page, patch, anchor, leap or versions
    key: str
    wrong: str
    effect: str
    remedy: str
    first: int
    last: int
    mendable: bool
    mended: bool


@dataclasses.dataclass(frozen=True)
class Repaired:
    """What repair found, and has mended."""

    findings: Sequence[Finding]
    left: int
    mendable: int
    mended: int
    version: int
    epoch: int
    oldest: int
    floor: int
    reachable: int
    listed: bool
    is_signed: bool


@contextlib.contextmanager
def _opened(store: StoreLike) -> Iterator[Store]:
    opened, owned = store_of(store, None, None)
    try:
        yield opened
    finally:
        if owned:
            opened.close()


def _values(kind: Any, found: Any, *others: str) -> "dict[str, Any]":
    return {field.name: getattr(found, field.name) for field in dataclasses.fields(kind) if field.name not in others}


def log(store: StoreLike, *, trust: KeyLike = None, limit: Optional[int] = None) -> List[LogEntry]:
    """The history from the newest version back, every link checked; at most `limit` versions of it.

    >>> import numpy, tempfile, weft
    >>> place = tempfile.TemporaryDirectory()
    >>> with weft.Publisher(place.name, {"w": numpy.arange(4)}) as publisher:
    ...     for step in range(3):
    ...         _ = publisher.publish(step=step)
    >>> [(entry.version, entry.labels["step"]) for entry in weft.log(place.name, limit=2)]
    [(3, '2'), (2, '1')]
    >>> place.cleanup()
    """
    entries: List[LogEntry] = []
    trusted = key_of(trust)
    with _opened(store) as opened, Context() as context:

        def visit(_: object, entry: Any) -> bool:
            try:
                found = entry.contents
                values = _values(LogEntry, found, "digest", "labels")
                entries.append(LogEntry(**values, digest=str(found.digest), labels=pairs_of(found.labels)))
                return limit is None or len(entries) < limit
            except BaseException as failure:
                context.failed(failure)
                return False

        context.run(
            functions.log_walk, context.pointer, opened.handle, None if trusted is None else trusted.handle,
            structures.VISIT_ENTRY(visit), None,
        )
    return entries


def fleet(store: StoreLike, *, trust: KeyLike = None) -> Fleet:
    """The reports of the followers in a store."""
    trusted = key_of(trust)
    options = structures.fleet_options(trusted=None if trusted is None else trusted.handle)
    found = structures.fleet()
    with _opened(store) as opened, Context() as context:
        context.run(functions.fleet_read, context.pointer, opened.handle, ctypes.byref(options), ctypes.byref(found))
        try:
            followers = [_follower(found.followers[index].contents) for index in range(found.count)]
            return Fleet(followers, found.live, found.left_out, found.newest, found.slowest, found.reads)
        finally:
            functions.fleet_close(context.pointer, ctypes.byref(found))


def _follower(found: Any) -> FollowerInfo:
    from .subscriber import PHASES

    texts = {name: getattr(found, name).decode(errors="replace") for name in ("name", "run", "state", "error", "cuts")}
    values = _values(FollowerInfo, found, "digest", "phase_seconds", "lag_seconds", *texts)
    return FollowerInfo(
        **values,
        **texts,
        digest=str(found.digest),
        phase_seconds=dict(zip(PHASES, found.phase_seconds)),
        lag_seconds=found.lag_seconds if found.lag_seconds >= 0 else None,
    )


def gc(
    store: StoreLike,
    *,
    trust: KeyLike = None,
    grace_seconds: float = 3600,
    dry_run: bool = False,
    keep_followers: bool = False,
    meeting_seconds: float = 0,
    progress: Progress = None,
) -> Collected:
    """Removes what no kept version has needed for `grace_seconds`. It may run at any time, beside publishers and followers.
    With `meeting_seconds`, also what trainers that met in the store have left, if none has put anything for so long."""
    trusted = key_of(trust)
    removed: List[Tuple[str, int]] = []
    callback = structures.REMOVED(lambda _, key, size: removed.append((key.decode(), size)))
    options = structures.gc_options(
        trusted=None if trusted is None else trusted.handle,
        grace_seconds=grace_seconds,
        dry_run=dry_run,
        keep_followers=keep_followers,
        meeting_seconds=meeting_seconds,
        removed=callback,
    )
    result = structures.gc_result()
    with _opened(store) as opened, Context(progress) as context:
        context.run(functions.gc_run, context.pointer, opened.handle, ctypes.byref(options), ctypes.byref(result))
    return Collected(**_values(Collected, result, "removed"), removed=removed)


def repair(
    store: StoreLike,
    *,
    trust: KeyLike = None,
    key: KeyLike = None,
    apply: bool = False,
    adopt: bool = False,
    unlisted: bool = False,
    deep: bool = False,
    progress: Progress = None,
) -> Repaired:
    """Checks heads, history and all that the kept versions need. With `apply` it mends what can be mended; no publisher may be
    running then. `key` signs what is written to a signed run. `deep` reads everything that is kept."""
    trusted, signing = key_of(trust), key_of(key)
    findings: List[Finding] = []

    def found(_: object, finding: Any) -> None:
        one = finding.contents
        texts = {name: getattr(one, name).decode(errors="replace") for name in ("key", "wrong", "effect", "remedy")}
        kind = functions.repair_kind_name(one.kind).decode()
        findings.append(Finding(**_values(Finding, one, "kind", *texts), **texts, kind=kind))

    options = structures.repair_options(
        trusted=None if trusted is None else trusted.handle,
        key=None if signing is None else signing.handle,
        adopt=adopt,
        apply=apply,
        unlisted=unlisted,
        deep=deep,
        found=structures.FOUND(found),
    )
    result = structures.repair_result()
    with _opened(store) as opened, Context(progress) as context:
        context.run(functions.repair_run, context.pointer, opened.handle, ctypes.byref(options), ctypes.byref(result))
    return Repaired(**_values(Repaired, result, "findings", "left"), findings=findings, left=result.findings)
