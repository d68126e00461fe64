# SPDX-License-Identifier: Apache-2.0
"""Learning from responses that a cheaper policy sampled: weights, rejections, advantages, the objective.

Arrays are numpy arrays or torch tensors on the CPU, one-dimensional, with the tokens of all sequences one
behind another; `starts` says where each sequence begins, and the end of the last. Results are of the same
kind as the first array that is given. weft/rollout.h says what each function does; doc/ARCHITECTURE.md has
the formulas.

    from weft import correction

    options = correction.preset("paper")
    found = correction.weigh(starts, sampler, old, options, mask=mask)
    advantages = correction.advantages(rewards, group=8, rejected=found.left_out)
    step = correction.objective(starts, old, learner, advantages, weights=found.weights, mask=found.kept)
    if step.moves:
        learner.backward(step.slopes)  # the gradient of step.loss by the learner's log-probabilities
"""

import ctypes
import dataclasses
import math

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


class Rejection(ctypes.Structure):
    """A rule that rejects tokens or sequences; made by Options.reject."""

    _fields_ = [
        ("scope", ctypes.c_int),
        ("estimator", ctypes.c_int),
        ("lower", ctypes.c_double),
        ("upper", ctypes.c_double),
    ]


class Options(ctypes.Structure):
    """How to correct; see weft_correction_options. A new one corrects nothing."""

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

    def reject(self, name, upper, lower=0.0):
        """Adds a rule by verl's name for it, such as "seq_max_k3". Bounds of k1 are those of old / sampler."""
        library.call(
            "weft_correction_reject",
            ctypes.byref(self),
            name.encode(),
            ctypes.c_double(lower),
            ctypes.c_double(upper),
        )
        return self


class Diagnostics(ctypes.Structure):
    """What was found; see weft_correction_diagnostics."""

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

    def as_dict(self):
        """All of it by name, for a logger."""
        return {name: getattr(self, name) for name, _ in self._fields_}


class _Batch(ctypes.Structure):
    _fields_ = [("sequences", ctypes.c_size_t), ("starts", ctypes.c_void_p), ("mask", ctypes.c_void_p)]


class _ObjectiveOptions(ctypes.Structure):
    _fields_ = [
        ("surrogate", ctypes.c_int),
        ("clip_low", ctypes.c_double),
        ("clip_high", ctypes.c_double),
        ("clip_dual", ctypes.c_double),
        ("kl", ctypes.c_double),
        ("aggregation", ctypes.c_int),
        ("horizon", ctypes.c_double),
        ("skip_empty", ctypes.c_bool),
    ]


class _ObjectiveInput(ctypes.Structure):
    _fields_ = [("batch", ctypes.POINTER(_Batch))] + [
        (name, ctypes.c_void_p) for name in ("old", "learner", "reference", "weights", "advantages")
    ]


class _ObjectiveResult(ctypes.Structure):
    _fields_ = [
        ("loss", ctypes.c_double),
        ("tokens", ctypes.c_size_t),
        ("sequences", ctypes.c_size_t),
        ("clipped", ctypes.c_double),
        ("ratio", ctypes.c_double),
        ("kl", ctypes.c_double),
        ("moves", ctypes.c_bool),
    ]


# ---- options ----


def preset(name):
    """Options by name: one of PRESETS."""
    options = Options()
    library.call("weft_correction_preset", name.encode(), ctypes.byref(options))
    return options


def from_slime(
    use_tis=True,
    tis_level="token",
    tis_mode="truncate",
    tis_lower_bound=None,
    tis_upper_bound=2.0,
    tis_batch_normalize=False,
    use_rs=False,
    rs_level=None,
    rs_lower_bound=None,
    rs_upper_bound=None,
    rs_veto_threshold=None,
):
    """Options from those of slime's mis.yaml. As there, nothing is corrected without use_tis, and the veto
    counts only with use_rs."""
    options = Options()
    if not use_tis:
        return options
    options.weigh = True
    options.level = LEVELS[tis_level]
    options.mode = MODES[tis_mode]
    options.upper = tis_upper_bound
    options.lower = 1 / tis_upper_bound if tis_lower_bound is None else tis_lower_bound
    options.normalise = tis_batch_normalize
    if use_rs:
        name = {"token": "token_k1", "sequence": "seq_sum_k1", "geometric": "seq_mean_k1"}
        lower = options.lower if rs_lower_bound is None else rs_lower_bound
        upper = options.upper if rs_upper_bound is None else rs_upper_bound
        options.reject(name[rs_level or tis_level], upper, lower)
        options.veto = rs_veto_threshold or 0
    return options


def from_verl(
    rollout_is=None,
    rollout_is_threshold=2.0,
    rollout_is_batch_normalize=False,
    rollout_rs=None,
    rollout_rs_threshold=None,
):
    """Options from those of verl's rollout_correction. For bypass_mode give the sampler's array to objective
    as `old`, and no weights."""
    options = Options()
    if rollout_is is not None:
        bounds = [float(part) for part in str(rollout_is_threshold).split("_", 1)]
        options.weigh = True
        options.level = {"token": TOKEN, "sequence": SEQUENCE}[rollout_is]
        options.mode = TRUNCATE if len(bounds) == 1 else ZERO
        options.lower = 0 if len(bounds) == 1 else bounds[0]
        options.upper = bounds[-1]
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


def _is_tensor(array):
    return type(array).__module__.split(".")[0] == "torch"


def _tensor_dtype(dtype):
    """Types such as torch.bfloat16 have no counterpart in numpy, so tensors are converted before."""
    import torch

    return {numpy.float32: torch.float32, numpy.uint64: torch.int64, numpy.uint8: torch.uint8}[dtype]


def _take(array, dtype, name, count=None):
    """An array of the library's type; copied only if it must be."""
    if array is None:
        return None
    if _is_tensor(array):
        array = array.detach().to(_tensor_dtype(dtype)).numpy()
    array = numpy.ascontiguousarray(array, dtype=dtype)
    if array.ndim != 1 or (count is not None and len(array) != count):
        raise ValueError(f"{name} has the shape {array.shape}, not {(count,) if count is not None else 'one dimension'}")
    return array


def _take_flags(array, name, count):
    """Anything but 0 is 1, whatever the type was."""
    if array is None:
        return None
    flags = array.detach() != 0 if _is_tensor(array) else numpy.asarray(array) != 0
    return _take(flags, numpy.uint8, name, count)


def _give(array, like):
    """As the caller's kind of array."""
    if not _is_tensor(like):
        return array
    import torch

    return torch.from_numpy(array)


def _address(array):
    return None if array is None else array.ctypes.data


def _take_starts(starts, tokens):
    starts = _take(starts, numpy.uint64, "starts")
    if len(starts) < 1 or starts[-1] != tokens or starts[0] != 0 or numpy.any(starts[1:] < starts[:-1]):
        raise ValueError(f"starts must ascend from 0 to the number of tokens, {tokens}")
    return starts


# ---- the functions ----


@dataclasses.dataclass
class Weights:
    """What weigh gives: of each token a weight and whether it is kept, and of each sequence whether it is
    rejected. `left_out` is for advantages: `rejected` with the option baseline_excludes_rejected, else None."""

    weights: object
    kept: object
    rejected: object
    left_out: object
    diagnostics: Diagnostics


def weigh(starts, sampler, old, options, mask=None):
    """Weights and rejections from the log-probabilities of the sampler and of the dense old policy.

    `options` is an Options or the name of a preset; tokens where `mask` is 0 do not count."""
    if isinstance(options, str):
        options = preset(options)
    sampler_array = _take(sampler, numpy.float32, "sampler")
    count = len(sampler_array)
    old_array = _take(old, numpy.float32, "old", count)
    mask_array = _take_flags(mask, "mask", count)
    starts_array = _take_starts(starts, count)
    sequences = len(starts_array) - 1
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
    kept, rejected = (_give(array.view(bool), sampler) for array in (kept, rejected))
    left_out = rejected if options.baseline_excludes_rejected else None
    return Weights(_give(weights, sampler), kept, rejected, left_out, diagnostics)


def advantages(rewards, group, rejected=None, normalise=True):
    """(reward - mean) / (deviation + 1e-6) within each group of sequences that lie together.

    Sequences that `rejected` marks are left out of their group's baseline: give it what weigh found as `left_out`."""
    rewards_array = _take(rewards, numpy.float32, "rewards")
    rejected_array = _take_flags(rejected, "rejected", len(rewards_array))
    output = numpy.zeros(len(rewards_array), numpy.float32)
    library.call(
        "weft_correction_advantages",
        ctypes.c_void_p(_address(rewards_array)),
        ctypes.c_void_p(_address(rejected_array)),
        ctypes.c_size_t(len(rewards_array)),
        ctypes.c_size_t(group),
        ctypes.c_bool(normalise),
        ctypes.c_void_p(_address(output)),
    )
    return _give(output, rewards)


@dataclasses.dataclass
class Objective:
    """What objective gives; `slopes` is the gradient of `loss` by the learner's log-probabilities. Leave out
    the optimizer's step if it does not move: momentum would still change weights."""

    loss: float
    slopes: object
    tokens: int
    sequences: int
    clipped: float
    ratio: float
    kl: float
    moves: bool


def objective(
    starts,
    old,
    learner,
    advantages,
    weights=None,
    mask=None,
    reference=None,
    clip_low=0.2,
    clip_high=0.28,
    clip_dual=0.0,
    kl=0.0,
    surrogate="ppo_clip",
    aggregation="seq-mean-token-mean",
    horizon=None,
    skip_empty=False,
):
    """The loss of the clipped surrogate with the weights outside of the clip, and its slopes.

    `mask` is what weigh kept; `horizon` the divisor of "seq-mean-token-sum-norm"."""
    old_array = _take(old, numpy.float32, "old")
    count = len(old_array)
    starts_array = _take_starts(starts, count)
    sequences = len(starts_array) - 1
    arrays = [
        old_array,
        _take(learner, numpy.float32, "learner", count),
        _take(reference, numpy.float32, "reference", count),
        _take(weights, numpy.float32, "weights", count),
        _take(advantages, numpy.float32, "advantages", sequences),
    ]
    mask_array = _take_flags(mask, "mask", count)
    batch = _Batch(sequences, _address(starts_array), _address(mask_array))
    given = _ObjectiveInput(ctypes.pointer(batch), *(_address(array) for array in arrays))
    if horizon is None:
        horizon = math.nan
    options = _ObjectiveOptions(
        SURROGATES[surrogate], clip_low, clip_high, clip_dual, kl, AGGREGATIONS[aggregation], horizon, skip_empty
    )
    slopes = numpy.zeros(count, numpy.float32)
    result = _ObjectiveResult()
    library.call(
        "weft_objective_run",
        ctypes.byref(given),
        ctypes.byref(options),
        ctypes.c_void_p(_address(slopes)),
        ctypes.byref(result),
    )
    fields = {name: getattr(result, name) for name, _ in result._fields_}
    return Objective(slopes=_give(slopes, old), **fields)
