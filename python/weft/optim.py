# SPDX-License-Identifier: Apache-2.0
"""Publishing from inside a training loop: a hook of torch.optim."""

from __future__ import annotations

import importlib
from typing import Any, Callable, Dict, Mapping, Optional, Union

from .device import flat_bits, rounded_bits
from .errors import UNSUPPORTED, InvalidArgument, UnsupportedError
from .publisher import Published, Publisher
from .tensors import Tensors

Labels = Union[None, Mapping[str, object], Callable[[], Mapping[str, object]]]


class _Shadow:
    """The bits that were published last, on the devices of the tensors."""

    def __init__(self, tensors: Tensors) -> None:
        self._torch = importlib.import_module("torch")
        self._tensors = tensors
        self._last: Dict[str, Any] = {}
        self._first: Dict[Any, str] = {}  # of the names that share memory
        for name, value in tensors.values.items():
            if self._first.setdefault(self._place(name, value), name) == name:
                self._last[name] = self._now(name, value).clone()

    @staticmethod
    def _place(name: str, value: Any) -> Any:
        return (value.device, value.data_ptr()) if value.numel() > 0 else name

    def _now(self, name: str, value: Any) -> Any:
        return rounded_bits(value.detach().reshape(-1)) if name in self._tensors.cast else flat_bits(value)

    def changes(self) -> "Dict[str, Any]":
        """By tensor, where its bits differ and what they are. They stay on the device."""
        found: Dict[str, Any] = {}
        for name, value in self._tensors.values.items():
            first = self._first[self._place(name, value)]
            if first == name:
                now = self._now(name, value)
                units = self._torch.ne(now, self._last[name]).nonzero().reshape(-1)
                found[name] = units, now[units]
            elif first in found:
                found[name] = found[first]
        return {name: change for name, change in found.items() if len(change[0]) > 0}

    def typed(self, name: str, bits: Any) -> Any:
        return bits.view(self._torch.bfloat16 if name in self._tensors.cast else self._tensors.values[name].dtype)

    def move(self, changes: "Dict[str, Any]") -> None:
        for name, (units, bits) in changes.items():
            if name in self._last:
                self._last[name].index_copy_(0, units, bits)


class PublishAfterStep:
    """Publishes after every `every`-th step of an optimizer, as step=1, 2, …; `step` is where the count begins.

    The publisher's model is what goes out, in whole: FP32 parameters or masters with dtype=bfloat16, or the BF16 parameters of
    an optimizer that keeps masters of its own and has written them back when its step() returns. Further `labels` are a
    mapping, or a function that gives one. `published` is the newest result.

    Memory: of tensors on the CPU, the publisher's own baseline, one copy in the published dtype on the host, and nothing
    here. Of a model with tensors on a device, changes are found there, by torch.ne, and only they leave it. That takes one
    more copy in the published dtype, on the device, which is made at the first publish; and for a moment, of the largest
    tensor another one and a byte for each weight. Where the device has no room for it, call publisher.publish() yourself,
    which reads the weights whole.

    A failure is raised by optimizer.step(), whose step is done by then; the next publish makes up for it.

    >>> import tempfile, torch, weft
    >>> place, model = tempfile.TemporaryDirectory(), torch.nn.Linear(4, 4)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with weft.Publisher(place.name, model, dtype="bfloat16") as publisher:
    ...     with weft.optim.PublishAfterStep(optimizer, publisher, every=2) as publishing:
    ...         for _ in range(4):
    ...             model(torch.ones(4)).sum().backward()
    ...             optimizer.step()
    ...     publishing.published.version, publisher.version, weft.log(place.name)[0].labels
    (2, 2, {'step': '4'})
    >>> place.cleanup()
    """

    def __init__(
        self, optimizer: Any, publisher: Publisher, *, every: int = 1, step: int = 0, labels: Labels = None
    ) -> None:
        if every < 1:
            raise InvalidArgument(f"every is {every}; give 1 or more")
        register = getattr(optimizer, "register_step_post_hook", None)
        if register is None:
            raise UnsupportedError(UNSUPPORTED, f"this {type(optimizer).__name__} has no register_step_post_hook; take torch 2.0 "
                                   "or newer, or call publisher.publish() after each step")
        tensors = publisher._tensors
        if publisher.closed or tensors is None or not tensors.values:
            raise InvalidArgument("the publisher is closed, or publishes a checkpoint on disk, which no optimizer changes")
        self.step = step
        self.published: Optional[Published] = None
        self._every = every
        self._labels = labels
        self._publisher = publisher
        self._tensors = tensors
        self._shadow: Optional[_Shadow] = None
        self._hook: Any = register(self._after_step)

    def _after_step(self, *_: Any) -> None:
        self.step += 1
        if self.step % self._every == 0:
            self.publish()

    def publish(self) -> Published:
        """Publishes now, whatever the count."""
        labels = self._labels() if callable(self._labels) else self._labels or {}
        labels = {"step": self.step, **labels}
        if self._tensors.device is None:
            self.published = self._publisher.publish(labels)
            return self.published
        with importlib.import_module("torch").no_grad():
            if self._shadow is None:
                self.published = self._publisher.publish(labels)
                self._shadow = _Shadow(self._tensors)
                return self.published
            self._tensors.check(added=True)
            changes = self._shadow.changes()
            typed = {name: (units, self._shadow.typed(name, bits)) for name, (units, bits) in changes.items()}
            self.published = self._publisher.publish_changes(typed, labels)
            self._shadow.move(changes)
        return self.published

    def close(self) -> None:
        """Removes the hook and gives back the copy. The publisher stays open."""
        if self._hook is not None:
            self._hook.remove()
        self._hook = self._shadow = None

    def __enter__(self) -> "PublishAfterStep":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
