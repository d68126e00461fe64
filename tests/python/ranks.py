# SPDX-License-Identifier: Apache-2.0
"""ranks.py: several processes of torch.distributed for tests, over gloo on this machine.

They are forks of the test, which has imported torch but starts none of its threads: that is quick, and functions of the
test can be given.
"""

import multiprocessing
import os
import queue
import tempfile
import traceback

import serving
import torch

torch.set_num_threads(1)  # a fork would wait for the others for ever


def _work(answers, path, rank, ranks, function, arguments):
    import torch.distributed as distributed

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        store = distributed.FileStore(path, ranks)
        distributed.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
        result = function(rank, ranks, *arguments)
        distributed.barrier()
        distributed.destroy_process_group()
        answers.put((rank, result, None))
    except BaseException:
        answers.put((rank, None, traceback.format_exc()))
    answers.close()
    answers.join_thread()
    os._exit(0)  # without the test's own end


def run(ranks, function, *arguments):
    """What function(rank, ranks, *arguments) returns on each rank. The first failure ends all."""
    fork = multiprocessing.get_context("fork")
    answers = fork.Queue()
    with tempfile.TemporaryDirectory(prefix="weft-ranks.") as place:
        path = os.path.join(place, "meeting")
        processes = [fork.Process(target=_work, args=(answers, path, rank, ranks, function, arguments))
                     for rank in range(ranks)]
        for process in processes:
            process.start()
        try:
            results = {}
            while len(results) < ranks:
                rank, result, failure = answers.get(timeout=serving.PATIENCE)
                if failure is not None:
                    raise AssertionError(f"rank {rank} of {ranks}: {failure}")
                results[rank] = result
            return [results[rank] for rank in range(ranks)]
        except queue.Empty:
            raise AssertionError(f"ranks that did not answer: {set(range(ranks)) - results.keys()}") from None
        finally:
            for process in processes:
                if results.keys() != set(range(ranks)):
                    process.kill()
                process.join()
