# SPDX-License-Identifier: Apache-2.0
"""weft.Subscriber on a place of another system: into tensors in memory and into a checkpoint, from a directory and over
HTTP, with what is half written, missing, wrong, or taken back."""

import asyncio
import os
import shutil
import subprocess
import tempfile
import threading
import unittest

import numpy
import package
import serving
from foreign_scene import Scene
from weft_foreign import write_skyrl, write_slime, write_trl

weft = package.weft
KINDS = {"a": ("F32", (64, 64)), "b": ("F16", (333,)), "c": ("I64", (5,))}
NAMES = {"slime": "weight_v{:06d}", "skyrl": "delta-{:08d}"}
NGINX = shutil.which("nginx") or "/usr/sbin/nginx"
CONFIGURATION = """
daemon off;
user root;
worker_processes 1;
pid {root}/nginx.pid;
error_log {root}/error.log;
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path {root}/body;
    proxy_temp_path {root}/temp; fastcgi_temp_path {root}/temp; uwsgi_temp_path {root}/temp; scgi_temp_path {root}/temp;
    server {{
        listen 127.0.0.1:{port};
        root {directory};
    }}
}}
"""
TYPES = {"F32": "<f4", "F16": "<f2", "I64": "<i8"}


def arrays(state):
    return {name: numpy.frombuffer(weights.data, TYPES[weights.dtype]).reshape(weights.shape).copy()
            for name, weights in state.items()}


def same(live, state):
    return all(live[name].tobytes() == weights.data for name, weights in state.items())


def chain(scene, versions, write=write_slime, density=0.05):
    for version in versions:
        before, after = scene.advance(density)
        write(scene.place, version, version - 1, before, after)


class Static(serving.Server):
    """nginx, with the files of a directory and nothing else."""

    def __init__(self, directory):
        if not os.path.exists(NGINX):
            raise unittest.SkipTest("no nginx")
        self.scratch = tempfile.TemporaryDirectory(prefix="weft-static.")
        self.log_path = os.path.join(self.scratch.name, "log")
        self.tls, self.host = False, "127.0.0.1"
        self.held = serving.hold_port()
        self.port = self.held.getsockname()[1]
        path = os.path.join(self.scratch.name, "nginx.conf")
        with open(path, "w") as file:
            file.write(CONFIGURATION.format(root=self.scratch.name, port=self.port, directory=directory))
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen([NGINX, "-p", self.scratch.name, "-c", path], stdin=subprocess.DEVNULL,
                                            stderr=log)
        self.url = f"http://127.0.0.1:{self.port}"
        if not serving.wait_for(lambda: self.process.poll() is not None or self.answers()) or self.process.poll() is not None:
            raise RuntimeError("nginx does not start: " + self.log())
        self.held.close()

    def answers(self):
        try:
            self.socket().close()
            return True
        except OSError:
            return False


class Following(unittest.TestCase):
    def scene(self, seed=71, kinds=KINDS):
        scene = Scene(seed=seed, kinds=kinds)
        self.addCleanup(scene.scratch.cleanup)
        return scene

    def test_tensors_follow(self):
        scene = self.scene()
        live, place = arrays(scene.state), f"slime:{scene.place}"
        with weft.Subscriber(place, live, version=0) as subscriber:
            self.assertIsInstance(subscriber, weft.Subscriber)
            self.assertIsNone(subscriber.poll())
            self.assertEqual(dict(subscriber.labels), {})
            chain(scene, (1, 2))
            seen = []
            for update in subscriber.follow(timeout=0):
                kept = {name: array.copy() for name, array in live.items()}
                self.assertEqual(update.version, 2)
                self.assertEqual(update.more, subscriber.version == 0)
                self.assertEqual(update.labels["foreign.version"], str(subscriber.version + 1))
                changed = {}
                for name, units, old, new in update.changes():
                    kept[name].reshape(-1)[units] = new
                    changed[name] = len(units)
                update.commit()
                self.assertTrue(all((live[name].tobytes() == kept[name].tobytes()) for name in live))
                self.assertGreater(sum(changed.values()), 0)
                seen.append((update.version, update.labels["foreign.format"], update.labels["foreign.base"]))
            self.assertEqual(seen, [(1, "slime", "0"), (2, "slime", "1")])
            self.assertTrue(same(live, scene.state))
            self.assertEqual((subscriber.info.version, subscriber.info.newest, subscriber.info.patches), (2, 2, 2))
            subscriber.verify()
            subscriber.rollback()
            self.assertEqual((subscriber.version, subscriber.labels["foreign.version"]), (1, "1"))
            self.assertEqual(subscriber.pull(2).version, 2)
            self.assertTrue(same(live, scene.state))
            with self.assertRaisesRegex(weft.NotFoundError, "from version 2 to version 9"):
                subscriber.pull(9)
            live["a"].view("u1")[0, 0] ^= 1
            with self.assertRaisesRegex(weft.DigestMismatch, "somebody else"):
                subscriber.verify()

    def test_what_is_declined_comes_again_with_the_next(self):
        scene = self.scene()
        chain(scene, (1,))
        live = arrays(scene.state)
        with weft.Subscriber(f"slime:{scene.place}", live, version=1) as subscriber:
            chain(scene, (2,))
            for update in subscriber.follow(timeout=0.2):
                self.assertEqual(update.version, 2)  # and is not committed
            self.assertEqual(subscriber.version, 1)
            chain(scene, (3,))
            versions = [update.commit().version for update in subscriber.follow(timeout=0)]
            self.assertEqual(versions, [2, 3])
            self.assertTrue(same(live, scene.state))

    def test_asynchronously(self):
        scene = self.scene()
        live = arrays(scene.state)

        async def follow():
            with weft.Subscriber(f"skyrl:{scene.place}", live) as subscriber:
                writer = threading.Timer(0.2, chain, (scene, (1,), write_skyrl))
                writer.start()
                update = await subscriber.next()
                writer.join()
                update.commit()
                waiting = asyncio.ensure_future(subscriber.next())
                await asyncio.sleep(0.1)
                waiting.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await waiting
                return update.version

        self.assertEqual(asyncio.run(follow()), 1)
        self.assertTrue(same(live, scene.state))

    def test_a_checkpoint_follows_and_remembers(self):
        scene = self.scene()
        chain(scene, (1, 2))
        out = scene.path("out.safetensors")
        shutil.copy(scene.base, out)
        with weft.Subscriber(f"slime:{scene.place}", out) as subscriber:
            self.assertEqual([update.commit().version for update in subscriber.follow(timeout=0)], [1, 2])
            with self.assertRaises(weft.UnsupportedError):
                subscriber.changes()
        chain(scene, (3,))
        with weft.Subscriber(f"slime:{scene.place}", out, durable=True) as subscriber:
            self.assertEqual(subscriber.version, 2)
            self.assertTrue(subscriber.prepare() is False)
            subscriber.rollback()
            self.assertEqual(subscriber.pull().version, 3)
            digest = subscriber.info.digest
        self.assertEqual(digest, weft.digest(scene.save("expected.safetensors")))
        self.assertEqual(digest, weft.digest(out))

    def test_a_whole_checkpoint_leads_over_a_gap(self):
        scene = self.scene()
        live = arrays(scene.state)
        chain(scene, (1, 2))
        shutil.rmtree(os.path.join(scene.place, "weight_v000001"))
        for _ in range(3):
            scene.advance(0.1)
        whole = os.path.join(scene.place, "weight_v000005")
        os.mkdir(whole)
        shutil.copy(scene.save("anchor.safetensors"), os.path.join(whole, "model.safetensors"))
        with weft.Subscriber(f"slime:{scene.place}", live, version=0) as subscriber:
            self.assertEqual([update.commit().version for update in subscriber.follow(timeout=0)], [5])
            self.assertEqual(dict(subscriber.labels), {"foreign.format": "slime", "foreign.version": "5"})
        self.assertTrue(same(live, scene.state))

    def test_torch_tensors_follow(self):
        if package.torch is None:
            self.skipTest("no torch")
        torch = package.torch
        scene = self.scene(kinds={"w": ("BF16", (200, 31)), "s": ("F32", (7,))})
        kinds = {"BF16": torch.bfloat16, "F32": torch.float32}
        model = {name: torch.frombuffer(bytearray(weights.data), dtype=kinds[weights.dtype]).reshape(weights.shape)
                 for name, weights in scene.state.items()}
        chain(scene, (1, 2))
        with weft.Subscriber(f"slime:{scene.place}", model) as subscriber:
            subscriber.pull()
        for name, weights in scene.state.items():
            self.assertEqual(model[name].reshape(-1).view(torch.uint8).numpy().tobytes(), weights.data)

    def test_another_base_is_refused(self):
        scene = self.scene()
        live = arrays(scene.state)
        chain(scene, (1,))
        live["a"].view("u1")[:] ^= 1
        kept = live["a"].copy()
        with weft.Subscriber(f"slime:{scene.place}", live) as subscriber:
            with self.assertRaisesRegex(weft.IntegrityError, "was promised"):
                subscriber.pull()
            self.assertEqual(subscriber.version, 0)
        self.assertEqual(live["a"].tobytes(), kept.tobytes())

    def test_a_base_is_assumed_only_if_it_is_said(self):
        scene = self.scene(kinds={"w": ("BF16", (50, 31))})
        chain(scene, (1,), write_trl)
        with self.assertRaisesRegex(weft.UnsupportedError, "assume_base"):
            weft.Subscriber(f"trl:{scene.place}", scene.base)
        with weft.Subscriber(f"trl:{scene.place}", scene.base, assume_base=True) as subscriber:
            subscriber.pull()
            self.assertEqual(subscriber.info.digest, weft.digest(scene.save("expected.safetensors")))

    def test_an_index_that_is_half_there_is_waited_for(self):
        scene = self.scene()
        live = arrays(scene.state)
        chain(scene, (1,))
        index = os.path.join(scene.place, "weight_v000001", "model.safetensors.index.json")
        with open(index) as file:
            text = file.read()
        shutil.move(index, scene.path("hidden"))
        with weft.Subscriber(f"slime:{scene.place}", live, version=0) as subscriber:
            with open(index, "w") as file:
                file.write(text[:40])
            heal = threading.Timer(0.3, os.replace, (scene.path("hidden"), index))
            heal.start()
            self.assertEqual(subscriber.wait(serving.PATIENCE), 1)
            heal.join()
            subscriber.pull()
        self.assertTrue(same(live, scene.state))

    def test_what_is_about_a_run_is_refused(self):
        scene = self.scene()
        live = arrays(scene.state)
        with self.assertRaisesRegex(weft.InvalidArgument, "replace is about a run of weft"):
            weft.Subscriber(f"slime:{scene.place}", live, replace=True)
        with self.assertRaisesRegex(weft.InvalidArgument, "for places of other systems"):
            weft.Subscriber(scene.path("store"), live, assume_base=True)
        with self.assertRaisesRegex(weft.NotFoundError, "there is nothing"):
            weft.Subscriber(f"slime:{scene.path('nowhere')}", live)

    def test_over_http(self):
        """`weft serve` lists what it has; nginx does not, and is asked for the next numbers."""
        for write, scheme in (write_slime, "slime"), (write_skyrl, "skyrl"):
            for server in serving.Server, Static:
                with self.subTest(scheme=scheme, server=server.__name__):
                    self.follow_http(write, scheme, server)

    def follow_http(self, write, scheme, server):
        scene = self.scene()
        live, late = arrays(scene.state), arrays(scene.state)
        os.environ["TMPDIR"] = scene.path("scratch")
        self.addCleanup(os.environ.pop, "TMPDIR", None)
        os.mkdir(scene.path("scratch"))
        chain(scene, (1, 2), write)
        with server(directory=scene.place) as running:
            place = f"{scheme}:{running.url}"
            with weft.Subscriber(place, live, version=0) as subscriber:
                self.assertEqual([update.commit().version for update in subscriber.follow(timeout=0)], [1, 2])
                middle = {name: array.copy() for name, array in live.items()}
                held = sum(len(files) for _, _, files in os.walk(scene.path("scratch")))
                chain(scene, (3,), write)
                self.assertEqual(subscriber.pull().version, 3)
                self.assertEqual(sum(len(files) for _, _, files in os.walk(scene.path("scratch"))), held + 1)
                self.assertTrue(same(live, scene.state))
            for number in 1, 2:  # what a follower that begins at version 2 does not need
                shutil.rmtree(os.path.join(scene.place, NAMES[scheme].format(number)))
            with weft.Subscriber(place, late, version=0) as subscriber:
                self.assertIsNone(subscriber.poll())
            with weft.Subscriber(place, middle, version=2) as subscriber:
                self.assertEqual(subscriber.pull().version, 3)
        self.assertTrue(same(middle, scene.state))
        self.assertEqual(os.listdir(scene.path("scratch")), [])  # what was fetched is gone

    def test_a_pointer_over_http(self):
        """Stitch's `latest`: nothing counts behind what it names, and what it names is found behind a gap."""
        for server in serving.Server, Static:
            scene = self.scene()
            live = arrays(scene.state)
            os.mkdir(os.path.join(scene.place, "updates"))

            def write(version, base, density=0.02):
                before, after = scene.advance(density)
                write_slime(os.path.join(scene.place, "updates"), version, base, before, after)

            def point(version):
                serving.write_whole(os.path.join(scene.place, "latest"), f"weight_v{version:06d}\n".encode())

            write(1, 0)
            point(1)
            with server(directory=scene.place) as running:
                with weft.Subscriber(f"stitch:{running.url}", live, version=0) as subscriber:
                    self.assertEqual(subscriber.pull().version, 1)
                    write(21, 1)
                    self.assertIsNone(subscriber.poll())
                    point(21)
                    self.assertEqual(subscriber.pull().version, 21)
            self.assertTrue(same(live, scene.state))

    def test_what_a_server_should_not_have(self):
        """Files that an index leads to elsewhere, that are larger than the model could need, or are not there."""
        scene = self.scene()
        live = arrays(scene.state)
        chain(scene, (1,))
        directory = os.path.join(scene.place, "weight_v000001")
        index, payload = (os.path.join(directory, name) for name in
                          ("model.safetensors.index.json", "model-00000-of-00001.safetensors"))
        with open(index) as file:
            whole = file.read()

        def refused(error, words):
            with Static(directory=scene.place) as running:
                with weft.Subscriber(f"slime:{running.url}", live, version=0) as subscriber:
                    with self.assertRaisesRegex(error, words):
                        subscriber.pull()
                    self.assertEqual(subscriber.version, 0)

        for name in "../../../etc/passwd", "..", "/etc/passwd", ".hidden", "a/b", "", "x" * 300, "%2e%2e":
            with open(index, "w") as file:
                file.write(whole.replace("model-00000-of-00001.safetensors", name))
            refused(weft.Error, "no key can be")
        with open(index, "w") as file:
            file.write(whole)
        os.truncate(payload, 1 << 30)
        refused(weft.LimitError, "larger than one of this model can be")
        os.unlink(payload)
        refused(weft.NotFoundError, "")
        with self.assertRaisesRegex(weft.UnsupportedError, "Copy it to a file system"):
            weft.Subscriber("arc2:http://127.0.0.1:9", live)
        with self.assertRaisesRegex(weft.RemoteError, ""):
            weft.Subscriber("slime:http://127.0.0.1:9", live)


if __name__ == "__main__":
    serving.end(unittest.main(exit=False).result)
