# SPDX-License-Identifier: Apache-2.0
"""Learning from responses that a cheaper policy sampled: weights, rejections, advantages, the objective.

Arrays are numpy arrays or torch tensors. Those that hold something of each token have the tokens of all
sequences one behind another, and `starts` says where each sequence begins, and the end of the last; or they
have two dimensions, a sequence in each row and a mask over what fills it up, and `starts` is None. Results are
of the same kind and shape as the first array that is given. weft/rollout.h says what each function does;
doc/architecture/rollout.md has the formulas.

    from weft import correction

    options = correction.preset("paper")
    found = correction.weigh(starts, sampler, old, options, mask=mask)
    advantages = correction.advantages(rewards, group=8, rejected=found.left_out)
    step = correction.objective(starts, old, learner, advantages, weights=found.weights, mask=found.kept)
    if step.moves:
        learner.backward(step.slopes)  # the gradient of step.loss by the learner's log-probabilities
"""

from __future__ import annotations

import ctypes
import dataclasses
import math
from typing import Any, ClassVar, Dict, List, Mapping, Optional, Tuple, Union

import numpy

from . import library

TOKEN, SEQUENCE, GEOMETRIC = 0, 1, 2
ANY, TRUNCATE, CLIP, MASK, ZERO = 0, 1, 2, 3, 4
PRESETS = ("none", "paper", "released", "tis", "mis", "icepop")
LEVELS = {"token": TOKEN, "sequence": SEQUENCE, "geometric": GEOMETRIC}
MODES = {"truncate": TRUNCATE, "clip": CLIP, "mask": MASK}
SURROGATES = {"ppo_clip": 0, "reinforce": 1}
AGGREGATIONS = {
    "seq-mean-token-mean": 0,
    "token-mean": 1,
    "seq-mean-token-sum": 2,
    "seq-mean-token-sum-norm": 3,
}
_REJECTIONS_MAX = 8

Array = Any  # a numpy array or a torch tensor


class _Shown:
    """A structure that shows what it holds. Without __slots__ in each, a name that was mistyped would be one more attribute,
    and change nothing."""

    __slots__ = ()
    _fields_: ClassVar[Any]

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._shown())
        return f"{type(self).__name__}({values})"

    def _shown(self) -> List[str]:
        return [name for name, _ in self._fields_]


class Rejection(_Shown, ctypes.Structure):
    """A rule that rejects tokens or sequences; made by Options.reject."""

    __slots__ = ()
    _fields_ = [
        ("scope", ctypes.c_int),
        ("estimator", ctypes.c_int),
        ("lower", ctypes.c_double),
        ("upper", ctypes.c_double),
    ]


class Options(_Shown, library.Sized):
    """How to correct; see weft_correction_options. A new one corrects nothing. `level` is TOKEN, SEQUENCE or
    GEOMETRIC, `mode` ANY, TRUNCATE, CLIP, MASK or ZERO."""

    __slots__ = ()
    _fields_ = [
        ("weigh", ctypes.c_bool),
        ("level", ctypes.c_int),
        ("mode", ctypes.c_int),
        ("lower", ctypes.c_double),
        ("upper", ctypes.c_double),
        ("normalise", ctypes.c_bool),
        ("veto", ctypes.c_double),
        ("rejection_count", ctypes.c_size_t),
        ("rejections", Rejection * _REJECTIONS_MAX),
        ("baseline_excludes_rejected", ctypes.c_bool),
    ]

    def _shown(self) -> List[str]:
        return [name for name in super()._shown() if name not in ("rejection_count", "rejections")] + ["rules"]

    @property
    def rules(self) -> List[Rejection]:
        """The rejections that were added."""
        return list(self.rejections[: self.rejection_count])

    def reject(self, name: str, upper: float, lower: float = 0.0) -> Options:
        """Adds a rule by verl's name for it, such as "seq_max_k3". Bounds of k1 are those of old / sampler."""
        library.call(
            "weft_correction_reject",
            ctypes.byref(self),
            name.encode(),
            ctypes.c_double(lower),
            ctypes.c_double(upper),
        )
        return self


class Diagnostics(_Shown, library.Sized):
    """What was found; see weft_correction_diagnostics."""

    __slots__ = ()
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("sequences", "tokens", "rejected", "vetoed", "masked", "below_veto", "low", "high")
    ] + [
        (name, ctypes.c_double)
        for name in (
            "ratio_mean",
            "ratio_min",
            "ratio_max",
            "ratio_deviation",
            "weight_mean",
            "effective",
            "kl_k1",
            "kl_k3",
            "chi2_token",
            "chi2_sequence",
            "perplexity_sampler",
            "perplexity_old",
            "perplexity_ratio",
        )
    ]

    def as_dict(self) -> Dict[str, Union[int, float]]:
        """All of it by name, for a logger."""
        return {name: getattr(self, name) for name, _ in self._fields_}


class _Batch(ctypes.Structure):
    _fields_ = [("sequences", ctypes.c_size_t), ("starts", ctypes.c_void_p), ("mask", ctypes.c_void_p)]


class _ObjectiveOptions(library.Sized):
    _fields_ = [
        ("surrogate", ctypes.c_int),
        ("clip_low", ctypes.c_double),
        ("clip_high", ctypes.c_double),
        ("clip_dual", ctypes.c_double),
        ("kl", ctypes.c_double),
        ("aggregation", ctypes.c_int),
        ("horizon", ctypes.c_double),
        ("skip_empty", ctypes.c_bool),
        ("sequence_delta", ctypes.c_double),
    ]


class _ObjectiveInput(ctypes.Structure):
    _fields_ = [("batch", ctypes.POINTER(_Batch))] + [
        (name, ctypes.c_void_p) for name in ("old", "learner", "reference", "weights", "advantages")
    ]


class _ObjectiveResult(library.Sized):
    _fields_ = [
        ("loss", ctypes.c_double),
        ("tokens", ctypes.c_size_t),
        ("sequences", ctypes.c_size_t),
        ("clipped", ctypes.c_double),
        ("ratio", ctypes.c_double),
        ("kl", ctypes.c_double),
        ("far", ctypes.c_size_t),
        ("moves", ctypes.c_bool),
    ]


# ---- options ----


def _choose(names: Mapping[str, Any], name: str, what: str) -> Any:
    if name not in names:
        raise ValueError(f"{what} cannot be {name!r}; choose one of {', '.join(names)}")
    return names[name]


def preset(name: str) -> Options:
    """Options by name: one of PRESETS."""
    options = Options()
    library.call("weft_correction_preset", name.encode(), ctypes.byref(options))
    return options


def from_slime(
    use_tis: bool = True,
    tis_level: str = "token",
    tis_mode: str = "truncate",
    tis_lower_bound: Optional[float] = None,
    tis_upper_bound: float = 2.0,
    tis_batch_normalize: bool = False,
    use_rs: bool = False,
    rs_level: Optional[str] = None,
    rs_lower_bound: Optional[float] = None,
    rs_upper_bound: Optional[float] = None,
    rs_veto_threshold: Optional[float] = None,
) -> Options:
    """Options from those of slime's mis.yaml. As there, nothing is corrected without use_tis, and the veto
    counts only with use_rs."""
    options = Options()
    if not use_tis:
        return options
    options.weigh = True
    options.level = _choose(LEVELS, tis_level, "tis_level")
    options.mode = _choose(MODES, tis_mode, "tis_mode")
    options.upper = tis_upper_bound
    options.lower = 1 / tis_upper_bound if tis_lower_bound is None else tis_lower_bound
    options.normalise = tis_batch_normalize
    if use_rs:
        names = {"token": "token_k1", "sequence": "seq_sum_k1", "geometric": "seq_mean_k1"}
        lower = options.lower if rs_lower_bound is None else rs_lower_bound
        upper = options.upper if rs_upper_bound is None else rs_upper_bound
        options.reject(_choose(names, rs_level or tis_level, "rs_level"), upper, lower)
        options.veto = rs_veto_threshold or 0
    return options


def from_slime_tis(tis_clip: float = 2.0, tis_clip_low: float = 0.0, icepop: bool = False) -> Options:
    """Options from the arguments of slime's --use-tis: its own function, or the icepop_function that
    --custom-tis-function-path names. For a mis.yaml see from_slime."""
    return Options(weigh=True, mode=ZERO if icepop else CLIP, lower=tis_clip_low, upper=tis_clip)


def from_verl(
    rollout_is: Optional[str] = None,
    rollout_is_threshold: Union[None, float, str] = 2.0,
    rollout_is_batch_normalize: bool = False,
    rollout_rs: Optional[str] = None,
    rollout_rs_threshold: Union[None, float, str] = None,
) -> Options:
    """Options from those of verl's rollout_correction. As there, nothing is weighed without a threshold.

    For bypass_mode, weigh with the learner's array as `old`. Then for the loss_type ppo_clip give the sampler's
    array to objective as `old`, and what was kept, but no weights, which the ratio there has in it; for reinforce
    give it both."""
    options = Options()
    if rollout_is is not None and rollout_is_threshold is not None:
        bounds = [float(part) for part in str(rollout_is_threshold).split("_", 1)]
        options.weigh = True
        options.level = _choose({"token": TOKEN, "sequence": SEQUENCE}, rollout_is, "rollout_is")
        options.mode = TRUNCATE if len(bounds) == 1 else ZERO
        options.upper = bounds[-1]
        # what is truncated has no lower bound; below this verl counts it as low
        options.lower = bounds[0] if len(bounds) == 2 else 1 / options.upper if options.upper > 1 else 0
        options.normalise = rollout_is_batch_normalize
    names = list(dict.fromkeys(part.strip() for part in (rollout_rs or "").split(",") if part.strip()))
    if names and rollout_rs_threshold is None:
        raise ValueError("rollout_rs needs rollout_rs_threshold")
    texts = [part.strip() for part in str(rollout_rs_threshold).split(",") if part.strip()]
    if names and len(texts) not in (1, len(names)):
        raise ValueError("rollout_rs_threshold takes one threshold, or one for each rule of rollout_rs")
    for place, name in enumerate(names):
        bounds = [float(part) for part in texts[place % len(texts)].split("_", 1)]
        if name.endswith("k1"):
            # verl bounds sampler / old; a single bound stands for its inverse too
            lower = bounds[0] if len(bounds) == 2 else 1 / bounds[0]
            options.reject(name, 1 / lower, 1 / bounds[-1])
        elif len(bounds) == 2:
            raise ValueError(f"{name} takes an upper bound only")
        else:
            options.reject(name, bounds[0])
    return options


# ---- arrays ----


def _is_tensor(array: Any) -> bool:
    return type(array).__module__.split(".")[0] == "torch"


def _tensor_dtype(dtype: Any) -> Any:
    """Types such as torch.bfloat16 have no counterpart in numpy, so tensors are converted before."""
    import torch

    return {numpy.float32: torch.float32, numpy.uint64: torch.int64, numpy.uint8: torch.uint8}[dtype]


def _take(array: Any, dtype: Any, name: str, shape: Optional[Tuple[int, ...]] = None) -> Any:
    """An array of the library's type, flat; copied only if it must be. Without a shape any of one dimension will do."""
    if array is None:
        return None
    if _is_tensor(array):
        array = array.detach().to(device="cpu", dtype=_tensor_dtype(dtype)).numpy()
    array = numpy.ascontiguousarray(array, dtype=dtype)
    if array.shape != shape and (shape is not None or array.ndim != 1):
        raise ValueError(f"{name} has the shape {array.shape}, not {'one dimension' if shape is None else shape}")
    return array.reshape(-1)


def _take_flags(array: Any, name: str, shape: Tuple[int, ...]) -> Any:
    """Anything but 0 is 1, whatever the type was."""
    if array is None:
        return None
    flags = array.detach() != 0 if _is_tensor(array) else numpy.asarray(array) != 0
    return _take(flags, numpy.uint8, name, shape)


def _give(array: Any, like: Any, shape: Optional[Tuple[int, ...]] = None) -> Any:
    """As the caller's kind of array, in that shape and where it lies."""
    array = array if shape is None else array.reshape(shape)
    if not _is_tensor(like):
        return array
    import torch

    return torch.from_numpy(array).to(like.device)


def _address(array: Any) -> Optional[int]:
    return None if array is None else array.ctypes.data


def _take_batch(starts: Any, first: Any, name: str) -> Tuple[Any, Tuple[int, ...]]:
    """Where sequences start, as the library has it, and the shape that all arrays of tokens must have."""
    shape = tuple(first.shape) if hasattr(first, "shape") else numpy.shape(first)
    if starts is None:
        if len(shape) != 2:
            raise ValueError(f"without starts {name} must have two dimensions, a sequence in each row; it has the shape {shape}")
        return numpy.arange(shape[0] + 1, dtype=numpy.uint64) * numpy.uint64(shape[1]), shape
    if len(shape) != 1:
        raise ValueError(f"{name} has the shape {shape}, not one dimension; with two, starts is None")
    starts = _take(starts, numpy.uint64, "starts")
    if len(starts) < 1 or starts[-1] != shape[0] or starts[0] != 0 or numpy.any(starts[1:] < starts[:-1]):
        raise ValueError(f"starts must ascend from 0 to the number of tokens, {shape[0]}")
    return starts, shape


# ---- the functions ----


@dataclasses.dataclass
class Weights:
    """What weigh gives: of each token a weight and whether it is kept, and of each sequence whether it is
    rejected. `left_out` is for advantages: `rejected` with the option baseline_excludes_rejected, else None."""

    weights: Array
    kept: Array
    rejected: Array
    left_out: Optional[Array]
    diagnostics: Diagnostics


def weigh(
    starts: Optional[Array], sampler: Array, old: Array, options: Union[str, Options], mask: Optional[Array] = None
) -> Weights:
    """Weights and rejections from the log-probabilities of the sampler and of the dense old policy.

    `options` is an Options or the name of a preset; tokens where `mask` is 0 do not count."""
    if isinstance(options, str):
        options = preset(options)
    starts_array, shape = _take_batch(starts, sampler, "sampler")
    sampler_array = _take(sampler, numpy.float32, "sampler", shape)
    old_array = _take(old, numpy.float32, "old", shape)
    mask_array = _take_flags(mask, "mask", shape)
    count, sequences = len(sampler_array), len(starts_array) - 1
    weights = numpy.zeros(count, numpy.float32)
    kept = numpy.zeros(count, numpy.uint8)
    rejected = numpy.zeros(sequences, numpy.uint8)
    batch = _Batch(sequences, _address(starts_array), _address(mask_array))
    diagnostics = Diagnostics()
    library.call(
        "weft_correction_weigh",
        ctypes.byref(batch),
        *(ctypes.c_void_p(_address(array)) for array in (sampler_array, old_array)),
        ctypes.byref(options),
        *(ctypes.c_void_p(_address(array)) for array in (weights, kept, rejected)),
        ctypes.byref(diagnostics),
    )
    kept, rejected = _give(kept.view(bool), sampler, shape), _give(rejected.view(bool), sampler)
    left_out = rejected if options.baseline_excludes_rejected else None
    return Weights(_give(weights, sampler, shape), kept, rejected, left_out, diagnostics)


def _compare(rewards: Any, rejected: Any, group: int, normalise: bool) -> Any:
    """Advantages within groups of one size that lie together."""
    output = numpy.zeros(len(rewards), numpy.float32)
    library.call(
        "weft_correction_advantages",
        ctypes.c_void_p(_address(rewards)),
        ctypes.c_void_p(_address(rejected)),
        ctypes.c_size_t(len(rewards)),
        ctypes.c_size_t(group),
        ctypes.c_bool(normalise),
        ctypes.c_void_p(_address(output)),
    )
    return output


def _split(labels: Any, count: int) -> Any:
    """The places of each label, in order."""
    labels = numpy.asarray(labels.detach().cpu() if _is_tensor(labels) else labels)
    if labels.shape != (count,):
        raise ValueError(f"group has the shape {labels.shape}, not {(count,)}: a label for each sequence, or a size")
    _, numbers, sizes = numpy.unique(labels, return_inverse=True, return_counts=True)
    return numpy.split(numpy.argsort(numbers, kind="stable"), numpy.cumsum(sizes)[:-1]) if count else []


def advantages(
    rewards: Array, group: Union[int, Array], rejected: Optional[Array] = None, normalise: bool = True
) -> Array:
    """(reward - mean) / (deviation + 1e-6) within each group of sequences.

    `group` is the size of groups that lie together, or a label for each sequence, such as verl's uid: those with the
    same one are a group, of any size. Sequences that `rejected` marks are left out of their group's baseline: give it
    what weigh found as `left_out`."""
    rewards_array = _take(rewards, numpy.float32, "rewards")
    count = len(rewards_array)
    rejected_array = _take_flags(rejected, "rejected", (count,))
    if numpy.ndim(group) == 0:
        return _give(_compare(rewards_array, rejected_array, group, normalise), rewards)
    output = numpy.zeros(count, numpy.float32)
    for places in _split(group, count):
        left_out = None if rejected_array is None else rejected_array[places]
        output[places] = _compare(rewards_array[places], left_out, len(places), normalise)
    return _give(output, rewards)


@dataclasses.dataclass
class Objective:
    """What objective gives; `slopes` is the gradient of `loss` by the learner's log-probabilities. Leave out
    the optimizer's step if it does not move: momentum would still change weights."""

    loss: float
    slopes: Array
    tokens: int
    sequences: int
    clipped: float
    ratio: float
    kl: float
    far: int
    moves: bool


def objective(
    starts: Optional[Array],
    old: Array,
    learner: Array,
    advantages: Array,
    weights: Optional[Array] = None,
    mask: Optional[Array] = None,
    reference: Optional[Array] = None,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    clip_dual: float = 0.0,
    kl: float = 0.0,
    surrogate: str = "ppo_clip",
    aggregation: str = "seq-mean-token-mean",
    horizon: Optional[float] = None,
    skip_empty: bool = False,
    sequence_delta: float = 0.0,
) -> Objective:
    """The loss of the clipped surrogate with the weights outside of the clip, and its slopes.

    `mask` is what weigh kept; `horizon` the divisor of "seq-mean-token-sum-norm"; `sequence_delta` slime's
    opsm_delta. weft_objective_options says what the others are."""
    starts_array, shape = _take_batch(starts, old, "old")
    sequences = len(starts_array) - 1
    arrays = [
        _take(old, numpy.float32, "old", shape),
        _take(learner, numpy.float32, "learner", shape),
        _take(reference, numpy.float32, "reference", shape),
        _take(weights, numpy.float32, "weights", shape),
        _take(advantages, numpy.float32, "advantages", (sequences,)),
    ]
    mask_array = _take_flags(mask, "mask", shape)
    batch = _Batch(sequences, _address(starts_array), _address(mask_array))
    given = _ObjectiveInput(ctypes.pointer(batch), *(_address(array) for array in arrays))
    if horizon is None:
        horizon = math.nan
    options = _ObjectiveOptions(
        surrogate=_choose(SURROGATES, surrogate, "surrogate"),
        clip_low=clip_low,
        clip_high=clip_high,
        clip_dual=clip_dual,
        kl=kl,
        aggregation=_choose(AGGREGATIONS, aggregation, "aggregation"),
        horizon=horizon,
        skip_empty=skip_empty,
        sequence_delta=sequence_delta,
    )
    slopes = numpy.zeros(arrays[0].shape, numpy.float32)
    result = _ObjectiveResult()
    library.call(
        "weft_objective_run",
        ctypes.byref(given),
        ctypes.byref(options),
        ctypes.c_void_p(_address(slopes)),
        ctypes.byref(result),
    )
    fields = {field[0]: getattr(result, field[0]) for field in result._fields_}
    return Objective(slopes=_give(slopes, old, shape), **fields)
