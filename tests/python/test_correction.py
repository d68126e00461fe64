#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""weft.correction against an implementation in numpy, written from the formulas of doc/architecture/rollout.md in
double precision: every preset, level, mode and rule, the options of slime and verl, advantages, and the
objective with every aggregation."""

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import numpy

SOURCE = os.environ.get("WEFT_SOURCE") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
LIBRARY = os.path.join(os.environ.get("WEFT_BUILD", "build"), "libweft.so")
os.environ["WEFT_LIBRARY"] = LIBRARY
sys.path.insert(0, os.path.join(SOURCE, "python"))

import serving  # noqa: E402
from weft import correction, library  # noqa: E402  (the path is set above)

try:
    import torch
except ImportError:
    torch = None


class Batch:
    """Random sequences; a few tokens are far off and a few are masked."""

    def __init__(self, seed, sequences=24, longest=40):
        random = numpy.random.default_rng(seed)
        lengths = random.integers(0, longest, sequences)
        self.starts = numpy.concatenate([[0], numpy.cumsum(lengths)])
        count = int(self.starts[-1])
        self.sampler = -random.exponential(1, count).astype(numpy.float32)
        off = numpy.where(random.random(count) < 0.02, 12, 0.3) * random.standard_normal(count)
        self.old = (self.sampler + off).astype(numpy.float32)
        self.learner = (self.old + 0.3 * random.standard_normal(count)).astype(numpy.float32)
        self.reference = (self.old + 0.3 * random.standard_normal(count)).astype(numpy.float32)
        self.mask = random.random(count) < 0.9
        self.rewards = random.integers(0, 3, sequences).astype(numpy.float32)

    def parts(self):
        return [slice(a, b) for a, b in zip(self.starts[:-1], self.starts[1:])]


def raised(value):
    return numpy.exp(numpy.clip(value, -20, 20))


def within(value, lower, upper):
    return (value >= lower) & (value <= (upper or numpy.inf))


def bound(ratio, options):
    """Weights, and whether they are kept."""
    lower, upper = options.lower, options.upper or numpy.inf
    inside = within(ratio, lower, upper)
    if options.mode == correction.TRUNCATE:
        return numpy.minimum(ratio, upper), True
    if options.mode == correction.CLIP:
        return numpy.clip(ratio, lower, upper), True
    if options.mode == correction.ZERO:
        return numpy.where(inside, ratio, 0), True
    return ratio, inside if options.mode == correction.MASK else True


def binary(log_p, log_q):
    """The larger divergence of two policies of two tokens each."""
    p, q = (numpy.clip(numpy.exp(log.astype(numpy.float64)), 1e-6, 1 - 1e-6) for log in (log_p, log_q))
    divergence = lambda p, q: p * numpy.log(p / q) + (1 - p) * numpy.log((1 - p) / (1 - q))
    return numpy.maximum(divergence(p, q), divergence(q, p))


def statistic(rule, log, sampler):
    if rule.estimator == 4:
        return binary(sampler + log, sampler)
    clamped = numpy.clip(log, -20, 20)
    tokens = {1: log, 2: clamped**2 / 2, 3: numpy.exp(clamped) - 1 - clamped}[rule.estimator]
    value = [lambda x: x, numpy.sum, numpy.mean, numpy.max][rule.scope](tokens)
    return raised(value) if rule.estimator == 1 else value


def reference_weights(batch, options):
    """By the formulas, one sequence after another."""
    log = batch.old.astype(numpy.float64) - batch.sampler
    log = log.astype(numpy.float32).astype(numpy.float64)
    weights, kept = numpy.zeros(len(log)), numpy.zeros(len(log), bool)
    rejected, vetoed, means = [], 0, []
    before = numpy.zeros(len(log))
    for part in batch.parts():
        mask = batch.mask[part]
        mine = log[part][mask]
        if len(mine) == 0:
            rejected.append(False)
            continue
        total = {0: mine, 1: mine.sum(), 2: mine.mean()}[options.level]
        weight, keep = bound(raised(total), options) if options.weigh else (1.0, True)
        weight = numpy.broadcast_to(weight, mine.shape)
        keep = numpy.broadcast_to(keep, mine.shape).copy()
        for rule in options.rejections[: options.rejection_count]:
            keep &= within(statistic(rule, mine, batch.sampler[part][mask]), rule.lower, rule.upper)
        veto = options.veto > 0 and bool(numpy.any(mine < numpy.log(options.veto)))
        keep &= not veto
        vetoed += veto
        means.append(weight.mean())
        places = numpy.arange(part.start, part.stop)[mask]
        before[places] = weight
        weights[places] = numpy.where(keep, weight, 0)
        kept[places] = keep
        rejected.append(not keep.any())
    if options.weigh and options.normalise:
        token = options.level == correction.TOKEN
        weights /= before[batch.mask].mean() if token else numpy.mean(means)
    return weights, kept, numpy.array(rejected), vetoed, before


def reference_diagnostics(batch, kept, rejected, before):
    mask = batch.mask
    log = (batch.old - batch.sampler).astype(numpy.float64)
    mine, ratio, weight = log[mask], raised(log[mask]), before[mask]
    clamped = numpy.clip(mine, -20, 20)
    parts = [part for part in batch.parts() if mask[part].any()]
    sums = numpy.array([log[part][mask[part]].sum() for part in parts])
    mean = lambda array: numpy.array([array[part][mask[part]].mean() for part in parts])
    return {
        "sequences": len(parts),
        "tokens": int(mask.sum()),
        "rejected": int(rejected.sum()),
        "masked": int((mask & ~kept).sum()),
        "ratio_mean": ratio.mean(),
        "ratio_min": ratio.min(),
        "ratio_max": ratio.max(),
        "ratio_deviation": ratio.std(),
        "weight_mean": weight.mean(),
        "effective": weight.sum() ** 2 / (len(weight) * (weight**2).sum()),
        "kl_k1": -mine.mean(),
        "kl_k3": (ratio - 1 - clamped).mean(),
        "chi2_token": (ratio**2).mean() - 1,
        "chi2_sequence": (raised(sums) ** 2).mean() - 1,
        "perplexity_sampler": raised(-mean(batch.sampler.astype(numpy.float64))).mean(),
        "perplexity_old": raised(-mean(batch.old.astype(numpy.float64))).mean(),
        "perplexity_ratio": raised(-mean(log)).mean(),
    }


class Weights(unittest.TestCase):
    def compare(self, batch, options):
        found = correction.weigh(batch.starts, batch.sampler, batch.old, options, mask=batch.mask)
        weights, kept, rejected, vetoed, before = reference_weights(batch, options)
        self.assertTrue(numpy.array_equal(found.kept, kept))
        self.assertTrue(numpy.array_equal(found.rejected, rejected))
        numpy.testing.assert_allclose(found.weights, weights, rtol=3e-6, atol=1e-12)
        self.assertEqual(found.diagnostics.vetoed, vetoed)
        expected = reference_diagnostics(batch, kept, rejected, before)
        for name, value in expected.items():
            numpy.testing.assert_allclose(getattr(found.diagnostics, name), value, rtol=1e-5, atol=1e-7, err_msg=name)
        return found

    def test_presets_and_levels(self):
        for name, level, seed in itertools.product(correction.PRESETS, range(3), range(4)):
            options = correction.preset(name)
            options.level = level
            self.compare(Batch(seed, longest=900 if seed == 3 else 40), options)

    def test_modes(self):
        for mode, level, normalise in itertools.product(range(5), range(3), (False, True)):
            options = correction.Options(weigh=True, level=level, mode=mode, lower=0.7, upper=1.4, normalise=normalise)
            batch = Batch(mode * 3 + level)
            found = self.compare(batch, options)
            logs = [(batch.old - batch.sampler)[part][batch.mask[part]].astype(numpy.float64) for part in batch.parts()]
            logs = [log for log in logs if len(log) > 0]
            ratios = raised([numpy.concatenate(logs), [log.sum() for log in logs], [log.mean() for log in logs]][level])
            self.assertEqual(found.diagnostics.low, (ratios < 0.7).sum())
            self.assertEqual(found.diagnostics.high, (ratios > 1.4).sum())

    def test_rules(self):
        bounds = {"sum_k1": (0.3, 3), "sum_k2": (0, 8), "sum_k3": (0, 8)}
        names = [f"{scope}_k{k}" for scope in ("token", "seq_sum", "seq_mean", "seq_max") for k in (1, 2, 3)]
        names.remove("seq_max_k1")
        names.append("binary_kl")
        rejected = 0
        for seed, name in enumerate(names):
            lower, upper = bounds.get(name[4:], (0.8, 1.25) if name.endswith("k1") else (0, 0.4))
            rejected += self.compare(Batch(seed), correction.Options().reject(name, upper, lower)).diagnostics.masked
        self.assertGreater(rejected, 100)
        several = correction.preset("paper").reject("token_k1", 1.5, 0.5).reject("seq_mean_k3", 0.5)
        self.compare(Batch(99), several)

    def test_identical_arrays(self):
        batch = Batch(5)
        batch.old = batch.sampler.copy()
        for name in correction.PRESETS:
            found = correction.weigh(batch.starts, batch.sampler, batch.old, name, mask=batch.mask)
            self.assertTrue(numpy.array_equal(found.weights, batch.mask.astype(numpy.float32)))
            self.assertEqual(found.diagnostics.as_dict()["kl_k3"], 0)

    def test_errors(self):
        batch = Batch(6)
        with self.assertRaisesRegex(library.Error, "icepop"):
            correction.preset("best")
        with self.assertRaisesRegex(library.Error, "upper bound"):
            correction.weigh(batch.starts, batch.sampler, batch.old, correction.Options(weigh=True, mode=1))
        with self.assertRaises(ValueError):
            correction.weigh(batch.starts, batch.sampler, batch.old[1:], "tis")
        with self.assertRaises(ValueError):
            correction.weigh(batch.starts[:-1], batch.sampler, batch.old, "tis")
        batch.old[:] = numpy.nan
        with self.assertRaisesRegex(library.Error, "mask tokens"):
            correction.weigh(batch.starts, batch.sampler, batch.old, "tis")


    def test_names(self):
        """A name that was mistyped is refused, and records say what they hold."""
        options = correction.preset("released")
        with self.assertRaises(AttributeError):
            options.normalize = True
        with self.assertRaises(AttributeError):
            correction.Options(truncate=2)
        for text in ("upper=1.5", "veto=0.0001", "rules=[Rejection(scope=0", "normalise=True"):
            self.assertIn(text, repr(options))
        self.assertEqual(repr(correction.Options().rules), "[]")
        self.assertIn("ratio_mean=", repr(correction.weigh([0, 1], [-1.0], [-1.0], "tis").diagnostics))

    def test_rows(self):
        """Arrays of two dimensions are the same as flat ones without what fills them up."""
        batch = Batch(13)
        lengths = numpy.diff(batch.starts)
        inside = numpy.arange(lengths.max()) < lengths[:, None]

        def spread(flat, filling):
            wide = numpy.full(inside.shape, filling, flat.dtype)
            wide[inside] = flat
            return wide

        wide = {name: spread(getattr(batch, name), numpy.nan) for name in ("sampler", "old", "learner")}
        mask = spread(batch.mask, False)
        for name in correction.PRESETS:
            flat = correction.weigh(batch.starts, batch.sampler, batch.old, name, mask=batch.mask)
            rows = correction.weigh(None, wide["sampler"], wide["old"], name, mask=mask)
            self.assertEqual(rows.weights.shape, inside.shape)
            self.assertTrue(numpy.array_equal(rows.weights[inside], flat.weights))
            self.assertTrue(numpy.array_equal(rows.kept[inside], flat.kept) and not rows.kept[~inside].any())
            self.assertTrue(numpy.array_equal(rows.rejected, flat.rejected))
            advantages = correction.advantages(batch.rewards, 4)
            one = correction.objective(batch.starts, batch.old, batch.learner, advantages, flat.weights, flat.kept)
            other = correction.objective(None, wide["old"], wide["learner"], advantages, rows.weights, rows.kept)
            self.assertEqual((one.loss, one.tokens), (other.loss, other.tokens))
            self.assertTrue(numpy.array_equal(other.slopes[inside], one.slopes))
        for starts, sampler in ((None, batch.sampler), (batch.starts, wide["sampler"])):
            with self.assertRaisesRegex(ValueError, "two"):
                correction.weigh(starts, sampler, sampler, "tis")
        with self.assertRaisesRegex(ValueError, "old has the shape"):
            correction.weigh(None, wide["sampler"], wide["old"][:, 1:], "tis")

    def test_strides_and_types(self):
        """Views, other types and arrays that cannot be written are taken as they are."""
        batch = Batch(14)
        plain = correction.weigh(batch.starts, batch.sampler, batch.old, "paper", mask=batch.mask)
        sampler = numpy.repeat(batch.sampler, 2)[::2]
        old = batch.old.astype(numpy.float64)
        old.flags.writeable = False
        found = correction.weigh(batch.starts.astype(numpy.int32), sampler, old, "paper", mask=batch.mask * 3.5)
        self.assertTrue(numpy.array_equal(found.weights, plain.weights))
        nothing = correction.weigh([0], [], [], "released")
        self.assertEqual((len(nothing.weights), len(nothing.rejected), nothing.diagnostics.tokens), (0, 0, 0))
        nothing = correction.weigh([0, 0, 0], [], [], "released")
        self.assertEqual(nothing.rejected.tolist(), [False, False])


class Peers(unittest.TestCase):
    """Options of slime and verl, by their own definitions."""

    def test_slime(self):
        batch = Batch(7)
        options = correction.from_slime(
            tis_upper_bound=1.5, tis_lower_bound=0.5, use_rs=True, rs_veto_threshold=1e-4, tis_batch_normalize=True
        )
        released = correction.preset("released")
        ours = [correction.weigh(batch.starts, batch.sampler, batch.old, o, mask=batch.mask) for o in (options, released)]
        self.assertTrue(numpy.array_equal(ours[0].weights, ours[1].weights))
        ratio = raised((batch.old - batch.sampler).astype(numpy.float64))
        for level, mode in itertools.product(("token", "sequence", "geometric"), ("truncate", "clip", "mask")):
            options = correction.from_slime(tis_level=level, tis_mode=mode)
            self.assertEqual((options.lower, options.upper), (0.5, 2))
            correction.weigh(batch.starts, batch.sampler, batch.old, options, mask=batch.mask)
        with self.assertRaisesRegex(ValueError, "truncate, clip, mask"):
            correction.from_slime(tis_mode="cut")
        weights = lambda options: correction.weigh(batch.starts, batch.sampler, batch.old, options).weights
        clipped, popped = (correction.from_slime_tis(1.5, 0.5, icepop=icepop) for icepop in (False, True))
        numpy.testing.assert_allclose(weights(clipped), numpy.clip(ratio, 0.5, 1.5), rtol=3e-6)
        inside = (ratio >= 0.5) & (ratio <= 1.5)
        numpy.testing.assert_allclose(weights(popped), numpy.where(inside, ratio, 0), rtol=3e-6)
        self.assertFalse(correction.from_slime(use_tis=False).weigh)
        self.assertEqual(correction.from_slime(rs_veto_threshold=1e-4).veto, 0)
        found = correction.weigh(batch.starts, batch.sampler, batch.old, correction.from_slime(tis_mode="mask"), mask=batch.mask)
        self.assertTrue(numpy.array_equal(found.kept, batch.mask & (ratio >= 0.5) & (ratio <= 2)))

    def test_verl(self):
        batch = Batch(8)
        ratio = raised((batch.old - batch.sampler).astype(numpy.float64))
        weigh = lambda **given: correction.weigh(
            batch.starts, batch.sampler, batch.old, correction.from_verl(**given), mask=batch.mask
        )
        found = weigh(rollout_is="token", rollout_is_threshold="0.5_5.0")
        expected = numpy.where((ratio >= 0.5) & (ratio <= 5), ratio, 0) * batch.mask
        numpy.testing.assert_allclose(found.weights, expected, rtol=3e-6)
        self.assertTrue(numpy.array_equal(found.kept, batch.mask))
        found = weigh(rollout_is="token", rollout_is_threshold=1.2)
        numpy.testing.assert_allclose(found.weights, numpy.minimum(ratio, 1.2) * batch.mask, rtol=3e-6)
        self.assertEqual(found.diagnostics.low, ((ratio < 1 / 1.2) & batch.mask).sum())
        self.assertFalse(correction.from_verl(rollout_is="token", rollout_is_threshold=None).weigh)
        self.assertEqual(correction.from_verl(rollout_is="token", rollout_is_threshold=0.9).upper, 0.9)
        with self.assertRaisesRegex(ValueError, "token, sequence"):
            correction.from_verl(rollout_is="geometric")
        found = weigh(rollout_rs="binary_kl", rollout_rs_threshold=0.02)
        self.assertTrue(numpy.array_equal(found.kept, batch.mask & (binary(batch.old, batch.sampler) <= 0.02)))
        self.assertTrue(0 < found.diagnostics.masked < found.diagnostics.tokens)
        found = weigh(rollout_rs="token_k1,token_k2", rollout_rs_threshold="0.7_1.2,0.05")
        log = numpy.log(ratio)
        keep = (-log >= numpy.log(0.7)) & (-log <= numpy.log(1.2)) & (log**2 / 2 <= 0.05)
        self.assertTrue(numpy.array_equal(found.kept, batch.mask & keep))
        found = weigh(rollout_rs="token_k1", rollout_rs_threshold=1.3)
        self.assertTrue(numpy.array_equal(found.kept, batch.mask & (abs(log) <= numpy.log(1.3))))
        with self.assertRaises(ValueError):
            correction.from_verl(rollout_rs="token_k2")
        with self.assertRaises(ValueError):
            correction.from_verl(rollout_rs="token_k2", rollout_rs_threshold="0.1_0.2")


class Objective(unittest.TestCase):
    def test_advantages(self):
        batch = Batch(9)
        rejected = numpy.arange(24) % 5 == 0
        plain = correction.advantages(batch.rewards, 4)
        without = correction.advantages(batch.rewards, 4, rejected=rejected)
        for first in range(0, 24, 4):
            group = batch.rewards[first : first + 4].astype(numpy.float64)
            expected = (group - group.mean()) / (group.std(ddof=1) + 1e-6)
            numpy.testing.assert_allclose(plain[first : first + 4], expected, rtol=1e-5, atol=1e-7)
            left = ~rejected[first : first + 4]
            expected = numpy.where(left, (group - group[left].mean()) / (group[left].std(ddof=1) + 1e-6), 0)
            numpy.testing.assert_allclose(without[first : first + 4], expected, rtol=1e-5, atol=1e-7)

    def test_groups_by_label(self):
        """Groups of unequal size that do not lie together; labels may be anything that can be ordered."""
        batch = Batch(15)
        labels = numpy.array(list("bdabacadcbeabcdaabbccdda"))
        rejected = numpy.arange(24) % 3 == 0
        for left_out in (None, rejected):
            ours = correction.advantages(batch.rewards, labels, rejected=left_out)
            for label in "abcde":
                inside = labels == label
                expected = correction.advantages(
                    batch.rewards[inside], inside.sum(), rejected=None if left_out is None else rejected[inside]
                )
                self.assertTrue(numpy.array_equal(ours[inside], expected))
        self.assertTrue(numpy.any(ours != 0) and ours[labels == "e"] == 0)
        ordered = numpy.repeat(numpy.arange(6), 4)
        same = correction.advantages(batch.rewards, ordered)
        self.assertTrue(numpy.array_equal(same, correction.advantages(batch.rewards, 4)))
        self.assertEqual(len(correction.advantages([], [])), 0)
        with self.assertRaisesRegex(ValueError, "label for each"):
            correction.advantages(batch.rewards, labels[1:])
        with self.assertRaisesRegex(library.Error, "whole groups"):
            correction.advantages(batch.rewards, 5)

    def test_baseline(self):
        batch = Batch(12)
        for excludes in (False, True):
            options = correction.preset("paper")
            options.baseline_excludes_rejected = excludes
            found = correction.weigh(batch.starts, batch.sampler, batch.old, options, mask=batch.mask)
            self.assertTrue(found.rejected.any() and not found.rejected.all())
            ours = correction.advantages(batch.rewards, 4, rejected=found.left_out)
            expected = correction.advantages(batch.rewards, 4, rejected=found.rejected if excludes else None)
            self.assertTrue(numpy.array_equal(ours, expected))
        self.assertFalse(numpy.array_equal(ours, correction.advantages(batch.rewards, 4)))
        self.assertIsNone(correction.weigh(batch.starts, batch.sampler, batch.old, "released").left_out)
        self.assertIn("rejected=found.left_out", correction.__doc__)

    def loss(self, batch, advantages, weights, mask, aggregation, skip_empty, clip_dual):
        """By the definition."""
        spread = numpy.repeat(advantages.astype(numpy.float64), numpy.diff(batch.starts))
        ratio = raised(batch.learner.astype(numpy.float64) - batch.old)
        surrogate = numpy.minimum(ratio * spread, numpy.clip(ratio, 0.8, 1.28) * spread)
        if clip_dual:
            surrogate = numpy.where(spread < 0, numpy.maximum(surrogate, clip_dual * spread), surrogate)
        distance = numpy.clip(batch.reference.astype(numpy.float64) - batch.learner, -20, 20)
        token = (-weights * surrogate + 0.1 * (numpy.exp(distance) - 1 - distance)) * mask
        sums = numpy.array([token[part].sum() for part in batch.parts()])
        counts = numpy.array([mask[part].sum() for part in batch.parts()])
        sequences = (counts > 0).sum() if skip_empty else len(counts)
        return {
            "token-mean": sums.sum() / counts.sum(),
            "seq-mean-token-sum": sums.sum() / sequences,
            "seq-mean-token-mean": (sums / numpy.maximum(counts, 1)).sum() / sequences,
            "seq-mean-token-sum-norm": sums.sum() / sequences / 40,
        }[aggregation]

    def test_loss(self):
        for number, (aggregation, skip_empty, clip_dual) in enumerate(
            itertools.product(correction.AGGREGATIONS, (False, True), (0, 1.5))
        ):
            batch = Batch(number, longest=(40, 500)[number % 2])
            found = correction.weigh(batch.starts, batch.sampler, batch.old, ("paper", "tis")[number % 2], mask=batch.mask)
            advantages = correction.advantages(batch.rewards, 4)
            step = correction.objective(
                batch.starts,
                batch.old,
                batch.learner,
                advantages,
                weights=found.weights,
                mask=found.kept,
                reference=batch.reference,
                kl=0.1,
                aggregation=aggregation,
                horizon=40,
                skip_empty=skip_empty,
                clip_dual=clip_dual,
            )
            expected = self.loss(batch, advantages, found.weights, found.kept, aggregation, skip_empty, clip_dual)
            self.assertAlmostEqual(step.loss, expected, delta=1e-6 * (1 + abs(expected)))
            self.assertTrue(step.moves and step.tokens == found.kept.sum())
            self.assertTrue(numpy.all(step.slopes[~found.kept] == 0))

    def test_far_sequences(self):
        """slime's opsm_delta, by its definition."""
        batch = Batch(16)
        advantages = correction.advantages(batch.rewards, 4)
        run = lambda given, delta: correction.objective(
            batch.starts, batch.old, batch.learner, given, mask=batch.mask, sequence_delta=delta
        )
        distance = batch.old.astype(numpy.float64) - batch.learner
        means = numpy.array([distance[part][batch.mask[part]].mean() if batch.mask[part].any() else 0 for part in batch.parts()])
        far = (advantages < 0) & (means > 0.03)
        step, expected = run(advantages, 0.03), run(numpy.where(far, 0, advantages), 0)
        self.assertTrue(0 < step.far < len(far) and step.far == far.sum())
        self.assertTrue(step.loss == expected.loss and numpy.array_equal(step.slopes, expected.slopes))

    def test_nothing_kept(self):
        batch = Batch(10)
        step = correction.objective(
            batch.starts, batch.old, batch.learner, numpy.ones(24), mask=numpy.zeros(len(batch.old))
        )
        self.assertFalse(step.moves or step.loss or step.slopes.any())

    @unittest.skipIf(torch is None, "python3-torch is not installed (make deps-test installs it)")
    def test_tensors(self):
        batch = Batch(11)
        arrays = [torch.from_numpy(array) for array in (batch.starts, batch.sampler, batch.old)]
        found = correction.weigh(*arrays, "tis", mask=torch.from_numpy(batch.mask))
        plain = correction.weigh(batch.starts, batch.sampler, batch.old, "tis", mask=batch.mask)
        self.assertIsInstance(found.weights, torch.Tensor)
        self.assertTrue(numpy.array_equal(found.weights.numpy(), plain.weights))
        strided = [torch.stack((array, array), dim=1)[:, 0] for array in arrays[1:]]
        self.assertTrue(torch.equal(correction.weigh(arrays[0], *strided, "tis", mask=batch.mask).weights, found.weights))
        halves = [array.to(torch.bfloat16) for array in arrays[1:]]
        found = correction.weigh(arrays[0], *halves, "tis")
        plain = correction.weigh(batch.starts, *(array.float().numpy() for array in halves), "tis")
        self.assertTrue(numpy.array_equal(found.weights.numpy(), plain.weights))

    @unittest.skipIf(torch is None, "python3-torch is not installed (make deps-test installs it)")
    def test_slopes_by_torch(self):
        """The slopes are the gradient that torch finds for the same loss."""
        batch = Batch(12)
        found = correction.weigh(batch.starts, batch.sampler, batch.old, "tis", mask=batch.mask)
        advantages = correction.advantages(batch.rewards, 4)
        step = correction.objective(
            batch.starts, batch.old, batch.learner, advantages, weights=found.weights, mask=found.kept
        )
        ours = torch.tensor(batch.learner, requires_grad=True)
        log_probabilities = ours * 1
        tensor = correction.objective(
            torch.from_numpy(batch.starts),
            torch.from_numpy(batch.old),
            log_probabilities,
            torch.from_numpy(advantages),
            weights=torch.from_numpy(found.weights),
            mask=torch.from_numpy(found.kept),
        )
        log_probabilities.backward(tensor.slopes)
        self.assertTrue(numpy.array_equal(ours.grad.numpy(), step.slopes))
        learner = torch.tensor(batch.learner, dtype=torch.float64, requires_grad=True)
        spread = torch.from_numpy(numpy.repeat(advantages, numpy.diff(batch.starts)))
        ratio = torch.exp(learner - torch.from_numpy(batch.old))
        surrogate = torch.minimum(ratio * spread, torch.clamp(ratio, 0.8, 1.28) * spread)
        token = -torch.from_numpy(found.weights) * surrogate * torch.from_numpy(found.kept)
        means = [token[part].sum() / max(found.kept[part].sum(), 1) for part in batch.parts()]
        loss = sum(means) / len(means)
        loss.backward()
        self.assertAlmostEqual(step.loss, loss.item(), delta=1e-6)
        numpy.testing.assert_allclose(step.slopes, learner.grad.numpy(), rtol=1e-5, atol=1e-9)


class Loading(unittest.TestCase):
    """Where the package finds the library, in processes of their own."""

    def load(self, package, **environment):
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        return subprocess.run(
            [sys.executable, "-B", "-c", "from weft import correction; print(correction.preset('tis').upper)"],
            env={**kept, "PYTHONPATH": package, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def test_where_it_is_found(self):
        with tempfile.TemporaryDirectory() as scratch:
            for package, place in (("python", "build"), ("lib/python3/dist-packages", "lib")):
                shutil.copytree(os.path.join(SOURCE, "python"), os.path.join(scratch, package))
                missing = self.load(os.path.join(scratch, package))
                self.assertIn("set WEFT_LIBRARY", missing.stderr)
                os.makedirs(os.path.join(scratch, place), exist_ok=True)
                os.symlink(os.path.realpath(LIBRARY), os.path.join(scratch, place, library._NAME))
                self.assertEqual(self.load(os.path.join(scratch, package)).stdout, "2.0\n")
            bad = self.load(os.path.join(scratch, "python"), WEFT_LIBRARY=os.path.join(scratch, "none.so"))
            self.assertRegex(bad.stderr, "ImportError: .*none.so.*set WEFT_LIBRARY")

    def test_version(self):
        """The package loads the library of its own version and no other."""
        self.assertTrue(os.path.exists(os.path.join(os.path.dirname(LIBRARY), library._NAME)))


if __name__ == "__main__":
    serving.end(unittest.main(exit=False).result)
