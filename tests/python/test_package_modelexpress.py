# SPDX-License-Identifier: Apache-2.0
"""ModelExpress's own classes, from PyPI: what its trainers publish is followed, and what weft writes its receiver takes.
The orchestrator that says which versions there are is a gRPC service here, by the stubs of the package; objects lie in
a directory instead of S3 (tests/cli/test_foreign_s3.sh reads such from there)."""

import concurrent.futures
import filecmp
import os
import shutil
import types
import unittest

import foreign_scene
import package
import serving
from foreign_scene import Scene, weft

try:
    import grpc
    import numpy
    import torch
    from modelexpress_rl import refit_pb2, refit_pb2_grpc
    from modelexpress_rl.inference import receiver
    from modelexpress_rl.object_storage import ObjectStorageType
    from modelexpress_rl.train import WeightPayloadFormat
    from modelexpress_rl.train.methods.canonical_delta import CanonicalDeltaPublicationMethod
    from modelexpress_rl.version import WeightVersionRef
except ImportError as failure:
    serving.skip_all(f"no modelexpress 0.7.0 (tests/requirements-modelexpress.txt): {failure}")

KINDS = {"model.embed.weight": ("BF16", (120, 33)), "model.norm.weight": ("F32", (65,)), "steps": ("I64", (3,))}
TORCH = {"BF16": torch.bfloat16, "F32": torch.float32, "I64": torch.int64}
PREFIX = "s3://bucket/updates"
MODEL = "a/model"


class Objects:
    """As the package's S3Client, over a directory."""

    def __init__(self, root):
        self.root = root

    def path(self, uri):
        assert uri.startswith(PREFIX + "/")
        return os.path.join(self.root, uri[len(PREFIX) + 1:])

    def put(self, *, uri, data):
        serving.write_whole(self.path(uri), data)

    def get(self, uri):
        with open(self.path(uri), "rb") as file:
            return file.read()

    def size(self, uri):
        return os.path.getsize(self.path(uri))

    def close(self):
        pass


def uri_of(version):
    return f"{PREFIX}/weight_v{version}/model.safetensors.index.json"


def is_whole(version):
    return version == "000003"


class Orchestrator(refit_pb2_grpc.RefitServiceServicer):
    """Which versions there are: 000001 and so on, each from the one before, the third whole."""

    def GetWeightVersion(self, request, context):
        base = f"{int(request.uid) - 1:06d}"
        kind = (refit_pb2.WEIGHT_PAYLOAD_FORMAT_FULL_HF_CHECKPOINT if is_whole(request.uid)
                else refit_pb2.WEIGHT_PAYLOAD_FORMAT_XOR_DELTA)
        version = refit_pb2.WeightVersion(
            uid=request.uid, model_name=MODEL, payload_format=kind,
            base_version_id=None if is_whole(request.uid) else base,
            object_storage={"storage_type": refit_pb2.OBJECT_STORAGE_TYPE_S3, "uri": uri_of(request.uid)})
        return refit_pb2.GetWeightVersionResponse(version=version)


def tensors(state):
    """As a trainer gives them, in two buckets."""
    rows = [(name, torch.frombuffer(bytearray(weights.data), dtype=TORCH[weights.dtype]).reshape(weights.shape))
            for name, weights in state.items()]
    return [rows[:1], rows[1:]]


class ModelExpress(package.Case):
    def setUp(self):
        super().setUp()
        torch.distributed.init_process_group("gloo", init_method=f"file://{self.path('meeting')}", rank=0, world_size=1)
        self.addCleanup(torch.distributed.destroy_process_group)

    def publisher(self, scene, service):
        method = CanonicalDeltaPublicationMethod(
            config=types.SimpleNamespace(initial_base_version_id="000000", uri_prefix=PREFIX), model_name=MODEL,
            service=lambda: service, rpc_timeout_seconds=serving.PATIENCE, process_group=torch.distributed.group.WORLD,
            read_seed_tensor=lambda name: numpy.frombuffer(scene.state[name].data, "u1"), s3=Objects(scene.place))
        method.prepare_base(hf_tensor_iter=tensors(scene.state))
        return method

    def test_what_its_trainer_publishes_is_followed(self):
        server = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
        refit_pb2_grpc.add_RefitServiceServicer_to_server(Orchestrator(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        self.addCleanup(lambda: server.stop(None).wait())
        with Scene(seed=81, kinds=KINDS) as scene, grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            live = {name: tensor.clone() for bucket in tensors(scene.state) for name, tensor in bucket}
            out = scene.path("out.safetensors")
            shutil.copy(scene.base, out)
            method = self.publisher(scene, refit_pb2_grpc.RefitServiceStub(channel))
            with package.weft.Subscriber(f"modelexpress:{scene.place}", live, version=0) as subscriber:
                for number, density in (1, 1), (2, 0.01), (3, 0.5), (4, 0):
                    scene.advance(density)
                    version = WeightVersionRef(f"{number:06d}")
                    method.publish(version=version, staged=method.stage(version=version, hf_tensor_iter=tensors(scene.state)))
                    self.assertEqual([update.commit().version for update in subscriber.follow(timeout=0)], [number])
                    expected = {name: tensor for bucket in tensors(scene.state) for name, tensor in bucket}
                    for name, tensor in live.items():
                        self.assertTrue(torch.equal(tensor.view(torch.uint8), expected[name].view(torch.uint8)), name)
                    if number != 3:
                        self.assertEqual(subscriber.labels["foreign.checksum"], "adler32")
            weft("pull", f"modelexpress:{scene.place}", out)
            self.assertTrue(filecmp.cmp(out, scene.save("expected.safetensors"), shallow=False))

    def test_what_weft_writes_its_receiver_takes(self):
        for density in foreign_scene.DENSITIES[1:]:
            with Scene(seed=82, kinds=KINDS) as scene:
                scene.advance(density)
                following = scene.save("next.safetensors")
                weft("convert", following, f"modelexpress:{scene.place}", "--base", scene.base, "--checksum", "adler32")
                local = receiver._LocalCheckpoint(
                    model_name=MODEL, s3=Objects(scene.place),
                    config=receiver.ObjectStorageGeneratorConfig(
                        storage_type=ObjectStorageType.S3, initial_base_version_id="000000",
                        seed_checkpoint_path=scene.base, refit_checkpoint_dir=scene.path("cache")))
                local.initialize()
                prepared = local.prepare(receiver._S3Version("000001", "000000", WeightPayloadFormat.XOR_DELTA,
                                                             uri_of("000001")))
                found = os.path.join(prepared.path, "model.safetensors")
                self.assertEqual(foreign_scene.digest(found), foreign_scene.digest(following), density)


if __name__ == "__main__":
    serving.end(unittest.main(exit=False).result)
