# SPDX-License-Identifier: Apache-2.0
# %% [markdown]
# # A tour of weft
# A notebook: `jupytext --to ipynb tour.py`. A script: `python tour.py [sparsity.png]`.
# Random steps move FP32 masters. Workers hold them as BF16.
# %%
import sys
import tempfile

import numpy
import weft

place = tempfile.TemporaryDirectory()
random = numpy.random.default_rng(7)
masters = {"w": random.normal(0, 0.02, (256, 256)).astype("float32")}

def train(rate: float) -> None:
    masters["w"] += rate * random.normal(0, 1, (256, 256)).astype("float32")

# %% [markdown]
# A patch has the BF16 weights that a step changed. It applies to its base and to nothing else.
# %%
weft.save(masters, place.name + "/worker.safetensors", dtype="bfloat16")
before = {"w": masters["w"].copy()}
train(1e-5)
patch = weft.diff(before, masters, dtype="bfloat16", labels={"step": 1})
print(weft.inspect(patch))
print(weft.apply(place.name + "/worker.safetensors", patch))
assert weft.digest(place.name + "/worker.safetensors") == patch.result
# %% [markdown]
# A publisher puts each version into a store. A subscriber brings its replica there: tensors, or a file as here.
# %%
with weft.Publisher(place.name + "/store", masters, dtype="bfloat16") as publisher:
    publisher.publish()
    with weft.Subscriber(place.name + "/store", place.name + "/replica.safetensors") as subscriber:
        for rate in numpy.geomspace(1e-4, 1e-7, 40):
            train(rate)
            digest = publisher.publish(rate=rate).digest
            for update in subscriber.follow(timeout=0):
                update.commit()
            assert subscriber.info.digest == digest
# %% [markdown]
# Sparsity by step: as the rate falls, fewer weights leave their rounding cell, and fewer bytes are sent.
# %%
history = weft.log(place.name + "/store")[-2::-1]  # from version 2 on
for entry in history[::6]:
    print(f"step {entry.version:2}: {entry.changed / entry.total:6.2%} changed, {entry.patch_bytes:5} bytes")
place.cleanup()
# %%
try:
    import matplotlib.pyplot as pyplot
except ImportError:
    print("there is no matplotlib, and no plot")
else:
    steps = [entry.version for entry in history]
    pyplot.semilogy(steps, [entry.changed / entry.total for entry in history], label="share of weights changed")
    pyplot.semilogy(steps, [entry.patch_bytes / entry.dense_bytes for entry in history], label="share of bytes sent")
    pyplot.legend()
    pyplot.savefig(sys.argv[1]) if sys.argv[1:] and sys.argv[1].endswith(".png") else pyplot.show()
