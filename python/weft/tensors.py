# SPDX-License-Identifier: Apache-2.0
"""The caller's tensors as the library sees them, without a copy.

A model is a path of safetensors, a mapping of names to numpy arrays or torch tensors, or a torch module. torch is
never imported here: whoever gives a torch tensor has imported it. Tensors that share their memory, such as an
embedding and an output head, are recognised by the library.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
from typing import TYPE_CHECKING, Any, Dict, FrozenSet, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, Union

from . import _structures as structures
from ._signatures import functions
from .context import Context
from .errors import UNSUPPORTED, Error, InvalidArgument, StaleError, UnsupportedError

if TYPE_CHECKING:
    from .device import Device

Path = Union[str, "os.PathLike[str]"]
Model = Any  # a path, a mapping of names to arrays or tensors, or a torch.nn.Module
Layout = Any  # a mapping as doc/architecture/layouts.md has it, its JSON, the path of a file, or a weft.layouts.Layout
Cuts = Union[Mapping[str, Tuple[int, int]], Sequence[Tuple[str, int, int]]]

# The names of numpy, ml_dtypes and torch, and the numbers of weft_dtype.
_DTYPES: Dict[str, int] = {
    "bool": 1,
    "uint8": 2,
    "int8": 3,
    "float8_e5m2": 4,
    "float8_e4m3fn": 5,
    "float8_e8m0fnu": 6,
    "float8_e5m2fnuz": 7,
    "float8_e4m3fnuz": 8,
    "uint16": 12,
    "int16": 13,
    "float16": 14,
    "bfloat16": 15,
    "uint32": 16,
    "int32": 17,
    "float32": 18,
    "uint64": 19,
    "int64": 20,
    "float64": 21,
    "complex64": 22,
}
BF16, F32 = 15, 18


class Memory(NamedTuple):
    """Where a tensor lies, and what it is. With no address it stands for a tensor that is described only."""

    dtype: int
    shape: Tuple[int, ...]
    address: int
    writable: bool
    strides: Optional[Tuple[int, ...]] = None  # in elements; None: end to end
    reached: bool = False  # on a device, and not at that address of this process


def _modules(value: object) -> List[str]:
    return [kind.__module__.partition(".")[0] for kind in type(value).__mro__]


def is_torch(value: object) -> bool:
    return "torch" in _modules(value)


def is_path(value: object) -> bool:
    return isinstance(value, (str, os.PathLike))


def path_bytes(path: Path) -> bytes:
    """
    >>> path_bytes("model.safetensors")
    b'model.safetensors'
    """
    return _whole(path, os.fsencode(os.fspath(path)))


def _whole(given: object, encoded: bytes) -> bytes:
    """C ends a text at its first NUL: what follows would be lost in silence."""
    if b"\0" in encoded:
        raise InvalidArgument(f"{given!r} has a NUL in it; give it without")
    return encoded


def text_bytes(text: object) -> bytes:
    """
    >>> text_bytes("layer.weight")
    b'layer.weight'
    """
    if not isinstance(text, str):
        raise InvalidArgument(f"{text!r} is a {type(text).__name__}; names are texts")
    try:
        return _whole(text, text.encode())
    except UnicodeEncodeError:
        raise InvalidArgument(f"{text!r} cannot be written in UTF-8") from None


def dtype_number(dtype: object) -> int:
    """The number of a dtype of torch, numpy or ml_dtypes, or of its name, also as safetensors spells it.

    >>> dtype_number("bfloat16"), dtype_number("BF16"), dtype_number("torch.float32")
    (15, 15, 18)
    """
    name = str(getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or dtype).rpartition(".")[2]
    number = _DTYPES.get(name)
    if number is None:
        spelled = {functions.dtype_name(number).decode(): number for number in range(1, 23)}
        number = spelled.get(name.upper())
    if number is None:
        raise InvalidArgument(f"{dtype!r} is no dtype that safetensors has; give one of {', '.join(sorted(_DTYPES))}")
    return number


def _refuse(name: str, what: str, next_step: str) -> "UnsupportedError":
    return UnsupportedError(UNSUPPORTED, f"tensor {name}: {what}; {next_step}")


def _numpy_memory(name: str, array: Any) -> Memory:
    if array.dtype.name not in _DTYPES:
        raise _refuse(name, f"weft has no dtype for {array.dtype}", "give its bits, as array.view('uint8')")
    if array.dtype.byteorder == ">":
        raise _refuse(name, "its bytes are big-endian", "give array.astype(array.dtype.newbyteorder('<'))")
    strides = None
    if not array.flags.c_contiguous:
        if any(stride % array.itemsize for stride in array.strides):
            raise _refuse(name, "its strides are no whole elements", "give numpy.ascontiguousarray(array)")
        strides = tuple(stride // array.itemsize for stride in array.strides)
        _check_strides(name, array.shape, strides, "numpy.ascontiguousarray(array)")
    return Memory(
        _DTYPES[array.dtype.name], tuple(array.shape), array.ctypes.data, bool(array.flags.writeable), strides
    )


def _torch_memory(name: str, tensor: Any) -> Memory:
    if any(kind.__name__ == "DTensor" for kind in type(tensor).__mro__):
        raise _refuse(name, "it is a DTensor, of which this process holds a part",
                      "publish it by weft.sharded.Publisher, or give tensor.to_local() with a layout that says which part that is")
    if tensor.device.type == "meta":
        raise _refuse(name, "it is on the device meta, which holds no values", "materialise it with to_empty() first")
    if tensor.is_quantized:
        raise _refuse(name, "it is quantised", "give tensor.int_repr(), and its scales as tensors of their own")
    if str(tensor.layout) != "torch.strided":
        raise _refuse(name, f"its layout is {tensor.layout}", "give tensor.to_dense()")
    dtype = str(tensor.dtype).rpartition(".")[2]
    if dtype not in _DTYPES:
        raise _refuse(name, f"weft has no dtype for {tensor.dtype}", "give its bits, as tensor.view(torch.uint8)")
    if tensor.is_conj() or tensor.is_neg():
        raise _refuse(name, "it is a lazy conjugate or negative", "give tensor.resolve_conj().resolve_neg()")
    strides = None
    reached = tensor.device.type != "cpu"
    if not reached and not tensor.is_contiguous():
        strides = tuple(tensor.stride())
        _check_strides(name, tensor.shape, strides, "tensor.contiguous()")
    return Memory(_DTYPES[dtype], tuple(tensor.shape), tensor.data_ptr(), True, strides, reached)


def _check_strides(name: str, shape: Sequence[int], strides: Sequence[int], instead: str) -> None:
    for extent, stride in zip(shape, strides):
        if extent > 1 and stride <= 0:
            what = "it is expanded, so that elements share memory" if stride == 0 else "it runs backwards in memory"
            raise _refuse(name, what, f"give {instead}, and change that in place")


def memory_of(name: str, value: Any) -> Memory:
    """Where the values of an array or tensor lie; an error that says what to do if they cannot be used in place."""
    if isinstance(value, Memory):
        return value
    modules = _modules(value)
    if "torch" in modules:
        return _torch_memory(name, value)
    if "numpy" in modules:
        if not hasattr(value, "flags") or not hasattr(value, "ctypes"):
            raise InvalidArgument(f"tensor {name} is a scalar of numpy; give an array")
        return _numpy_memory(name, value)
    raise InvalidArgument(f"tensor {name} is a {type(value).__name__}; give a numpy array or a torch tensor")


def _unwrapped(value: Any) -> Any:
    """What weft.device.through_device() was given."""
    return value.model if getattr(value, "through_device", False) is True else value


def _is_same(name: str, given: Any, memory: Memory) -> bool:
    """Whether a name still stands for this memory: tensors can be given other memory, also by a resize, or be seen in
    another shape or dtype."""
    if isinstance(given, Memory) or given is None:
        return given == memory
    try:
        return memory_of(name, given) == memory
    except Error:
        return False


def _tensors_of(model: Model) -> Mapping[str, Any]:
    """The named tensors of a module or a mapping, as they are now."""
    if "torch" in _modules(model) and hasattr(model, "state_dict"):
        state: Mapping[str, Any] = model.state_dict()
        return {name: value for name, value in state.items() if "torch" in _modules(value)}
    if isinstance(model, Mapping):
        return model
    raise InvalidArgument(
        f"a model is a path of safetensors, a mapping of names to arrays, or a torch module, not a {type(model).__name__}"
    )


def texts(pairs: Optional[Mapping[str, object]]) -> Any:
    """key, value, …, NULL; or None if there are none."""
    if not pairs:
        return None
    words = [text_bytes(str(word)) for pair in pairs.items() for word in pair]
    return (ctypes.c_char_p * (len(words) + 1))(*words, None)


def pairs_of(words: Any) -> Dict[str, str]:
    """The other way round."""
    found: Dict[str, str] = {}
    index = 0
    while words and words[index] is not None:
        found[words[index].decode()] = words[index + 1].decode()
        index += 2
    return found


def cut_array(cuts: Optional[Cuts]) -> "tuple[Any, int]":
    """{"*.o_proj.weight": (1, 2)}, dimension and parts; or a sequence of (pattern, dimension, parts)."""
    if not cuts:
        return None, 0
    rows = [(key, *value) for key, value in cuts.items()] if isinstance(cuts, Mapping) else list(cuts)
    array = (structures.cut * len(rows))()
    for cut, (pattern, dim, parts) in zip(array, rows):
        cut.pattern, cut.dim, cut.parts = pattern.encode(), dim, parts
    return array, len(rows)


def layout_text(layout: Layout) -> bytes:
    """The JSON of a layout."""
    if isinstance(layout, os.PathLike) or (isinstance(layout, str) and not layout.lstrip().startswith("{")):
        with open(layout, "rb") as file:
            return file.read()
    if isinstance(layout, str):
        return layout.encode()
    if isinstance(layout, Mapping):
        return json.dumps(layout).encode()
    if hasattr(layout, "to_json"):
        return str(layout.to_json()).encode()
    raise InvalidArgument(f"a layout is a mapping, JSON, a path or a weft.layouts.Layout, not a {type(layout).__name__}")


def _laid_out(tensors: Mapping[str, Any], layout: Layout) -> Dict[str, Tuple[Any, Memory]]:
    """Each tensor and where it lies. A weft.layouts.Layout says which of an engine's tensors are held, and in which shape: the
    same memory from its beginning, without rows that pad a vocabulary."""
    if not hasattr(layout, "table"):
        return {name: (value, memory_of(name, _unwrapped(value))) for name, value in tensors.items()}
    found: Dict[str, Tuple[Any, Memory]] = {}
    for name, held in layout.table().items():
        if name not in tensors:
            raise InvalidArgument(f"the layout has a tensor {name}, and the model has none; give the layout of this engine")
        memory = memory_of(name, _unwrapped(tensors[name]))
        if dtype_number(held.dtype) != memory.dtype or math.prod(held.shape) > math.prod(memory.shape):
            raise InvalidArgument(
                f"tensor {name} has the shape {memory.shape}, and the layout wants {held.dtype} {tuple(held.shape)}; "
                "give the layout of this model, engine and rank"
            )
        if memory.strides is not None and tuple(held.shape) != memory.shape:
            raise InvalidArgument(f"tensor {name} is not contiguous, and the layout holds it in another shape; make it contiguous")
        found[name] = (tensors[name], memory._replace(shape=tuple(held.shape)))
    return found


class Tensors:
    """A table of the library over a model, and a view of it. To be closed before its context."""

    def __init__(
        self,
        context: Context,
        model: Model,
        *,
        dtype: object = None,
        layout: Layout = None,
        checkpoint: Optional["Tensors"] = None,
        viewed: bool = True,
    ) -> None:
        self._context = context
        self._model = _unwrapped(model)
        self._through = self._model is not model  # all of it goes through a device
        model = self._model
        self.device: Optional["Device"] = None
        self.values: Dict[str, Any] = {}  # of a model in memory, by name
        self.cast: Set[str] = set()  # masters, which are published in another dtype
        self._names: FrozenSet[str] = frozenset()  # that the model had when this was opened
        self._memories: Dict[str, Memory] = {}  # as they were when this was opened
        self._checkpoint = ctypes.c_void_p()
        self._table = ctypes.c_void_p()
        self.layout = ctypes.c_void_p()
        self.view = ctypes.c_void_p()
        try:
            if is_path(model):
                if dtype is not None:
                    raise InvalidArgument("dtype is for masters in memory; a checkpoint is published as it is")
                self._open_file(model)
            else:
                named = _tensors_of(model)
                self._names = frozenset(named)
                self._add(_laid_out(named, layout), None if dtype is None else dtype_number(dtype))
            if layout is not None:
                text = layout_text(layout)
                context.call(functions.layout_parse, context.pointer, text, len(text), ctypes.byref(self.layout))
            if viewed:
                self._look(checkpoint)
        except BaseException:
            self.close()
            raise

    def _open_file(self, path: Path) -> None:
        context = self._context
        recovered = ctypes.c_bool()
        name = path_bytes(path)
        context.call(functions.apply_recover, context.pointer, name, ctypes.byref(recovered))
        context.call(functions.checkpoint_open, context.pointer, name, 0, ctypes.byref(self._checkpoint))

    def _add(self, tensors: Mapping[str, Tuple[Any, Memory]], dtype: Optional[int]) -> None:
        context = self._context
        if dtype is not None and dtype != BF16:
            raise InvalidArgument("masters in FP32 are published as bfloat16; cast them yourself for another dtype")
        context.call(functions.table_create, context.pointer, ctypes.byref(self._table))
        for name, (value, memory) in tensors.items():
            through = self._through or _unwrapped(value) is not value
            value = _unwrapped(value)
            if len(memory.shape) > structures.RANK_MAX:
                raise InvalidArgument(f"tensor {name} has {len(memory.shape)} dimensions; at most 16 can be described")
            cast = dtype is not None and memory.dtype == F32
            if through and "torch" not in _modules(value):
                raise InvalidArgument(f"tensor {name} is no torch tensor, and cannot be reached through a device")
            tensor = structures.tensor(
                name=text_bytes(name),
                dtype=BF16 if cast else memory.dtype,
                storage=memory.dtype,
                rank=len(memory.shape),
                data=memory.address or None,
                writable=memory.writable,
            )
            for index, extent in enumerate(memory.shape):
                tensor.shape[index] = extent
            if 0 in memory.shape:
                tensor.data = None
            elif through or memory.reached:
                self._reach(name, value, cast, tensor)
            elif memory.strides is not None:
                tensor.strides = (ctypes.c_int64 * len(memory.strides))(*memory.strides)
            context.call(functions.table_add, self._table, ctypes.byref(tensor))
            if cast:
                self.cast.add(name)
            self.values[name] = value
            self._memories[name] = memory_of(name, value)  # a layout may see it in another shape

        if self.device is not None:
            self.device.tie()
            context.call(functions.table_set_batch_access, self._table, ctypes.byref(self.device.batch))

    def _reach(self, name: str, value: Any, cast: bool, tensor: structures.tensor) -> None:
        """Describes a tensor on a device, where masters are read as BF16 already."""
        from .device import Device

        if self.device is None:
            self.device = Device(self._context)
        tensor.opaque = self.device.add(name, value, cast)
        tensor.access = ctypes.pointer(self.device.access)
        tensor.data, tensor.storage, tensor.writable = None, tensor.dtype, tensor.writable and not cast

    def _look(self, checkpoint: Optional["Tensors"]) -> None:
        context = self._context
        if not self.layout:
            context.call(functions.view_create, context.pointer, self.table, ctypes.byref(self.view))
            return
        if checkpoint is None:
            raise InvalidArgument("a layout needs the checkpoint's tensors: give checkpoint=, a path or a mapping")
        context.call(
            functions.view_create_layout,
            context.pointer, self.table, self.layout, checkpoint.table, ctypes.byref(self.view),
        )

    @property
    def table(self) -> ctypes.c_void_p:
        return self._table or ctypes.c_void_p(functions.checkpoint_table(self._checkpoint))

    @property
    def checkpoint(self) -> ctypes.c_void_p:
        return self._checkpoint

    @property
    def container(self) -> Optional[int]:
        """The files that the tensors come from."""
        found: Optional[int] = functions.checkpoint_container(self._checkpoint) if self._checkpoint else None
        return found

    def check(self, *, added: bool = False) -> None:
        """Raises StaleError if a name stands for other memory than when this was opened. Such a tensor would be passed over
        in silence: the library works on the memory that it was given. With `added` also if there are more names by now."""
        if is_path(self._model):
            return
        now = _tensors_of(self._model)
        # a layout says which of the names are held
        more = next((name for name in now if name not in self._names), None) if added and not self.layout else None
        if more is not None:
            raise StaleError(-100, f"tensor {more} was not in the model when it was opened; close this and open it again")
        for name, memory in self._memories.items():
            if not _is_same(name, _unwrapped(now.get(name)), memory):
                raise StaleError(
                    -100,
                    f"tensor {name} is no longer the memory that was opened; change tensors in place, as "
                    "array[...] = values or tensor.copy_(values), or close this and open it with the new ones",
                )

    def __iter__(self) -> Iterator[Any]:
        """The tensors of the table, as structures."""
        table = self.table
        for index in range(functions.table_count(table)):
            yield functions.table_at(table, index).contents

    def close(self) -> None:
        for attribute, destroy in (
            ("view", functions.view_destroy),
            ("layout", functions.layout_destroy),
            ("_table", functions.table_destroy),
            ("_checkpoint", functions.checkpoint_close),
        ):
            if getattr(self, attribute):
                destroy(getattr(self, attribute))
                setattr(self, attribute, ctypes.c_void_p())
        self.device = None
        self.values.clear()
        self._memories.clear()

    def __enter__(self) -> "Tensors":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
