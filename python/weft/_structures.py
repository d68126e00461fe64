# SPDX-License-Identifier: Apache-2.0
"""The structures of include/weft as ctypes sees them, each under its own name without the prefix.

tests/python/test_package_structures.py compiles a program that prints the size of each and the place of every
member, and compares. What is a pointer to something that Python does not look into is a void pointer here.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_bool, c_char, c_char_p, c_double, c_float, c_int, c_int64, c_size_t, c_uint, c_uint8
from ctypes import c_uint16, c_uint32, c_uint64, c_void_p

from .library import Sized

RANK_MAX, KEY_TEXT, HEAD_MAX, TAG_MAX, DIGEST_BYTES = 16, 65, 4096, 128, 16
STATUS = c_int

# ---- functions of the caller's ----

PROGRESS = ctypes.CFUNCTYPE(c_bool, c_void_p, c_char_p, c_uint64, c_uint64)
WRITE = ctypes.CFUNCTYPE(STATUS, c_void_p, c_void_p, c_size_t)
PHASE = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_uint64, c_double, c_uint64)
VISIT_OBJECT = ctypes.CFUNCTYPE(c_bool, c_void_p, c_char_p, c_uint64, c_double)
REMOVED = ctypes.CFUNCTYPE(None, c_void_p, c_char_p, c_uint64)
ARRIVED = ctypes.CFUNCTYPE(None, c_void_p, c_uint64)
READ = ctypes.CFUNCTYPE(STATUS, c_void_p, c_uint64, c_void_p, c_size_t)
GATHER = ctypes.CFUNCTYPE(STATUS, c_void_p, c_void_p, c_size_t, c_void_p)
BATCH = ctypes.CFUNCTYPE(STATUS, c_void_p)
BATCH_GATHER = ctypes.CFUNCTYPE(STATUS, c_void_p, c_void_p, c_void_p, c_size_t, c_void_p)
FEED_READ = ctypes.CFUNCTYPE(STATUS, c_void_p, c_uint64, c_void_p, c_size_t, POINTER(c_size_t))


# ---- base.h ----


class limits(Sized):
    _fields_ = [
        ("header_bytes", c_uint64),
        ("tensors", c_uint64),
        ("bucket_bytes", c_uint64),
        ("stage_bytes", c_uint64),
    ]


class allocator(ctypes.Structure):
    _fields_ = [("allocate", c_void_p), ("reallocate", c_void_p), ("release", c_void_p), ("opaque", c_void_p)]


class context_options(Sized):
    _fields_ = [
        ("allocator", allocator),
        ("limits", POINTER(limits)),
        ("threads", c_uint),
        ("progress", PROGRESS),
        ("progress_opaque", c_void_p),
    ]


# ---- tensor.h ----


class digest(ctypes.Structure):
    _fields_ = [("bytes", c_uint8 * DIGEST_BYTES)]

    def __str__(self) -> str:
        return bytes(self.bytes).hex()


class access(ctypes.Structure):
    _fields_ = [("read", READ), ("gather", GATHER), ("scatter", GATHER)]


class batch_access(Sized):
    _fields_ = [
        ("begin", BATCH),
        ("gather", BATCH_GATHER),
        ("scatter", BATCH_GATHER),
        ("end", BATCH),
        ("opaque", c_void_p),
    ]


class tensor(Sized):
    _fields_ = [
        ("name", c_char_p),
        ("dtype", c_int),
        ("storage", c_int),
        ("rank", c_uint32),
        ("shape", c_uint64 * RANK_MAX),
        ("bytes", c_uint64),
        ("data", c_void_p),
        ("access", POINTER(access)),
        ("opaque", c_void_p),
        ("writable", c_bool),
        ("tied_to", c_int64),
        ("strides", POINTER(c_int64)),
        ("converter", c_void_p),
    ]


class write_options(Sized):
    _fields_ = [("shard_bytes", c_uint64), ("metadata", POINTER(c_char_p)), ("durable", c_bool)]


# ---- patch.h ----


class sink(ctypes.Structure):
    _fields_ = [("write", WRITE), ("opaque", c_void_p)]


class cut(ctypes.Structure):
    _fields_ = [("pattern", c_char_p), ("dim", c_uint32), ("parts", c_uint32)]


class tensor_changes(ctypes.Structure):
    _fields_ = [("tensor", c_char_p), ("units", c_void_p), ("values", c_void_p), ("count", c_uint64)]


class foreign_options(Sized):
    _fields_ = [("assume_base", c_bool), ("store", c_void_p)]


class foreign_replica_options(Sized):
    _fields_ = [("durable", c_bool), ("version", c_uint64), ("version_given", c_bool), ("poll_seconds", c_double)]


class foreign_replica_info(Sized):
    _fields_ = [
        ("version", c_uint64),
        ("digest", digest),
        ("changed", c_uint64),
        ("read_seconds", c_double),
        ("prove_seconds", c_double),
        ("pause_seconds", c_double),
        ("prepared", c_uint64),
    ]


class foreign_version(ctypes.Structure):
    _fields_ = [("version", c_uint64), ("base", c_uint64), ("whole", c_bool), ("path", c_char_p)]


class diff_options(Sized):
    _fields_ = [
        ("profile", c_int),
        ("bucket_bytes", c_uint64),
        ("cuts", POINTER(cut)),
        ("cut_count", c_size_t),
        ("base_container", c_void_p),
        ("new_container", c_void_p),
        ("labels", POINTER(c_char_p)),
        ("base_sums", c_void_p),
        ("new_sums_out", c_void_p),
        ("inverse", POINTER(sink)),
        ("trail", c_void_p),
        ("notes", c_void_p),
        ("changes", POINTER(tensor_changes)),
        ("change_count", c_size_t),
        ("format", c_uint),
    ]


class diff_stats(Sized):
    _fields_ = [
        ("changed", c_uint64),
        ("total", c_uint64),
        ("dense_bytes", c_uint64),
        ("patch_bytes", c_uint64),
        ("inverse_bytes", c_uint64),
        ("buckets", c_uint64),
        ("base", digest),
        ("result", digest),
    ]


class source(ctypes.Structure):
    _fields_ = [("memory", c_void_p), ("size", c_uint64), ("read", c_void_p), ("opaque", c_void_p)]


class patch_info(Sized):
    _fields_ = [
        ("version", c_uint16),
        ("profile", c_int),
        ("bytes", c_uint64),
        ("changed", c_uint64),
        ("total", c_uint64),
        ("dense_bytes", c_uint64),
        ("buckets", c_uint64),
        ("added", c_uint64),
        ("removed", c_uint64),
        ("replaced", c_uint64),
        ("base", digest),
        ("result", digest),
        ("recalls", c_uint64),
    ]


class bucket_info(Sized):
    _fields_ = [
        ("coding", c_int),
        ("offset", c_uint64),
        ("bytes", c_uint64),
        ("units", c_uint64),
        ("changed", c_uint64),
        ("first_tensor", c_size_t),
        ("last_tensor", c_size_t),
    ]


class change_batch(ctypes.Structure):
    _fields_ = [
        ("tensor", POINTER(tensor)),
        ("index", c_size_t),
        ("count", c_size_t),
        ("units", c_void_p),
        ("olds", c_void_p),
        ("news", c_void_p),
    ]


VISIT_CHANGES = ctypes.CFUNCTYPE(STATUS, c_void_p, POINTER(change_batch))


class apply_stats(Sized):
    _fields_ = [
        ("changed", c_uint64),
        ("buckets", c_uint64),
        ("bytes_read", c_uint64),
        ("stage_bytes", c_uint64),
        ("decode_seconds", c_double),
        ("commit_seconds", c_double),
    ]


class merge_options(Sized):
    _fields_ = [("profile", c_int), ("base", c_void_p), ("labels", POINTER(c_char_p))]


# ---- store.h ----


class store_tag(ctypes.Structure):
    _fields_ = [("text", c_char * TAG_MAX)]


class store_options(Sized):
    _fields_ = [
        ("token", c_char_p),
        ("ca_file", c_char_p),
        ("connect_seconds", c_double),
        ("stall_seconds", c_double),
        ("attempts", c_uint),
        ("backoff_seconds", c_double),
        ("transfers", c_uint),
        ("volatile_writes", c_bool),
        ("token_file", c_char_p),
    ]


class store_traits(Sized):
    _fields_ = [("directory", c_char_p), ("poll_seconds", c_double), ("paid", c_bool), ("conditional", c_bool),
                ("idle_seconds", c_double), ("dated", c_bool), ("ahead_seconds", c_double), ("credentials", c_char_p)]


class store_traffic(Sized):
    _fields_ = [("requests", c_uint64), ("sent", c_uint64), ("received", c_uint64)]


class store_get_request(Sized):
    _fields_ = [
        ("key", c_char_p),
        ("offset", c_uint64),
        ("length", c_uint64),
        ("buffer", c_void_p),
        ("unless", POINTER(store_tag)),
        ("arrived", ARRIVED),
        ("opaque", c_void_p),
    ]


class store_get_result(Sized):
    _fields_ = [("received", c_uint64), ("object_bytes", c_uint64), ("tag", store_tag), ("unchanged", c_bool)]


class store_feed(ctypes.Structure):
    _fields_ = [("size", c_uint64), ("read", FEED_READ), ("opaque", c_void_p)]


class store_put_request(Sized):
    _fields_ = [
        ("key", c_char_p),
        ("feed", store_feed),
        ("condition", c_int),
        ("tag", store_tag),
        ("volatile_write", c_bool),
    ]


GET = ctypes.CFUNCTYPE(STATUS, c_void_p, c_void_p, POINTER(store_get_request), POINTER(store_get_result))
PUT = ctypes.CFUNCTYPE(STATUS, c_void_p, c_void_p, POINTER(store_put_request), POINTER(store_tag))
HEAD = ctypes.CFUNCTYPE(STATUS, c_void_p, c_void_p, c_char_p, POINTER(c_uint64), POINTER(store_tag))
REMOVE = ctypes.CFUNCTYPE(STATUS, c_void_p, c_void_p, c_char_p)
WATCH = ctypes.CFUNCTYPE(
    STATUS, c_void_p, c_void_p, c_uint64, c_double, c_void_p, c_size_t, POINTER(c_size_t)
)
LIST = ctypes.CFUNCTYPE(STATUS, c_void_p, c_void_p, c_char_p, VISIT_OBJECT, c_void_p)
AGE = ctypes.CFUNCTYPE(STATUS, c_void_p, c_void_p, c_char_p, POINTER(c_double))
TRAITS = ctypes.CFUNCTYPE(None, c_void_p, POINTER(store_traits))
CLOSE = ctypes.CFUNCTYPE(None, c_void_p)


class store_operations(Sized):
    _fields_ = [
        ("name", c_char_p),
        ("traits", TRAITS),
        ("get", GET),
        ("put", PUT),
        ("head", HEAD),
        ("remove", REMOVE),
        ("watch", WATCH),
        ("list", LIST),
        ("age", AGE),
        ("close", CLOSE),
    ]


# ---- sync.h ----


class publisher_options(Sized):
    _fields_ = [
        ("profile", c_int),
        ("bucket_bytes", c_uint64),
        ("cuts", POINTER(cut)),
        ("cut_count", c_size_t),
        ("container", c_void_p),
        ("key", c_void_p),
        ("adopt", c_bool),
        ("anchor_ratio", c_double),
        ("keep_anchors", c_uint),
        ("gc_seconds", c_double),
        ("keep_followers", c_bool),
        ("max_lag", c_uint64),
        ("max_lag_seconds", c_double),
        ("whole", c_bool),
        ("no_leaps", c_bool),
        ("leap_bytes", c_uint64),
        ("mirror_path", c_char_p),
        ("spool_directory", c_char_p),
        ("anchors_in_background", c_bool),
        ("part_index", c_uint),
        ("part_count", c_uint),
        ("part_seconds", c_double),
        ("no_announced_cuts", c_bool),
        ("format", c_uint),
    ]


class publish_result(Sized):
    _fields_ = [
        ("version", c_uint64),
        ("epoch", c_uint64),
        ("changed", c_uint64),
        ("total", c_uint64),
        ("dense_bytes", c_uint64),
        ("patch_bytes", c_uint64),
        ("buckets", c_uint64),
        ("base", digest),
        ("digest", digest),
        ("uploaded_bytes", c_uint64),
        ("requests", c_uint64),
        ("anchored", c_bool),
        ("anchor_bytes", c_uint64),
        ("seconds", c_double),
        ("diff_seconds", c_double),
        ("upload_seconds", c_double),
        ("head_seconds", c_double),
        ("waited_seconds", c_double),
        ("overtaken", c_bool),
        ("format", c_uint),
    ]


class subscriber_options(Sized):
    _fields_ = [
        ("trusted", c_void_p),
        ("state_path", c_char_p),
        ("audit_bytes", c_uint64),
        ("poll_seconds", c_double),
        ("fetch_bytes", c_uint64),
        ("empty", c_bool),
        ("replace", c_bool),
        ("durable", c_bool),
        ("phase", PHASE),
        ("phase_opaque", c_void_p),
        ("report_name", c_char_p),
        ("report_seconds", c_double),
        ("cuts", POINTER(cut)),
        ("cut_count", c_size_t),
    ]


class subscriber_info(Sized):
    _fields_ = [
        ("version", c_uint64),
        ("digest", digest),
        ("newest", c_uint64),
        ("epoch", c_uint64),
        ("sequence", c_uint64),
        ("fetched_bytes", c_uint64),
        ("requests", c_uint64),
        ("patches", c_uint64),
        ("anchors", c_uint64),
        ("healed", c_uint64),
        ("pause_seconds", c_double),
        ("milliseconds", c_uint64),
    ]


class follower(ctypes.Structure):
    _fields_ = [
        ("name", c_char * 65),
        ("run", c_char * 33),
        ("state", c_char * 16),
        ("version", c_uint64),
        ("digest", digest),
        ("newest", c_uint64),
        ("milliseconds", c_uint64),
        ("published", c_uint64),
        ("phase_seconds", c_double * 5),
        ("pause_seconds", c_double),
        ("patches", c_uint64),
        ("anchors", c_uint64),
        ("healed", c_uint64),
        ("fetched_bytes", c_uint64),
        ("requests", c_uint64),
        ("error_milliseconds", c_uint64),
        ("error", c_char * 301),
        ("interval_seconds", c_double),
        ("age_seconds", c_double),
        ("lag", c_uint64),
        ("lag_seconds", c_double),
        ("live", c_bool),
        ("cuts", c_char * 1025),
        ("relayed", c_bool),
        ("relay_seconds", c_double),
        ("reads", c_uint),
    ]


class fleet_options(Sized):
    _fields_ = [("trusted", c_void_p), ("head", c_void_p)]


class fleet(Sized):
    _fields_ = [
        ("followers", POINTER(POINTER(follower))),
        ("count", c_size_t),
        ("live", c_size_t),
        ("left_out", c_size_t),
        ("newest", c_uint64),
        ("slowest", c_uint64),
        ("reads", c_uint),
    ]


class group_options(Sized):
    _fields_ = [("members", c_uint), ("follow", POINTER(subscriber_options))]


class group_info(Sized):
    _fields_ = [
        ("version", c_uint64),
        ("digest", digest),
        ("newest", c_uint64),
        ("offered", c_uint64),
        ("present", c_uint),
        ("committed", c_uint64),
        ("aborted", c_uint64),
        ("step_bytes", c_uint64),
        ("fetched_bytes", c_uint64),
        ("requests", c_uint64),
        ("milliseconds", c_uint64),
    ]


class member_options(Sized):
    _fields_ = [("seconds", c_double), ("audit_bytes", c_uint64)]


class member_info(Sized):
    _fields_ = [
        ("version", c_uint64),
        ("digest", digest),
        ("rank", c_uint),
        ("committed", c_uint64),
        ("aborted", c_uint64),
        ("pause_seconds", c_double),
        ("vote_seconds", c_double),
        ("milliseconds", c_uint64),
    ]


class log_entry(ctypes.Structure):
    _fields_ = [
        ("version", c_uint64),
        ("epoch", c_uint64),
        ("digest", digest),
        ("milliseconds", c_uint64),
        ("patch_bytes", c_uint64),
        ("anchor_bytes", c_uint64),
        ("changed", c_uint64),
        ("total", c_uint64),
        ("dense_bytes", c_uint64),
        ("kept", c_bool),
        ("labels", POINTER(c_char_p)),
    ]


VISIT_ENTRY = ctypes.CFUNCTYPE(c_bool, c_void_p, POINTER(log_entry))


class gc_options(Sized):
    _fields_ = [
        ("trusted", c_void_p),
        ("grace_seconds", c_double),
        ("dry_run", c_bool),
        ("keep_followers", c_bool),
        ("removed", REMOVED),
        ("opaque", c_void_p),
        ("meeting_seconds", c_double),
    ]


class gc_result(Sized):
    _fields_ = [
        ("objects", c_uint64),
        ("bytes", c_uint64),
        ("waiting", c_uint64),
        ("oldest", c_uint64),
        ("follower", c_uint64),
        ("ageless", c_bool),
        ("unsettled", c_bool),
    ]


class repair_finding(ctypes.Structure):
    _fields_ = [
        ("kind", c_int),
        ("key", c_char_p),
        ("wrong", c_char_p),
        ("effect", c_char_p),
        ("remedy", c_char_p),
        ("first", c_uint64),
        ("last", c_uint64),
        ("mendable", c_bool),
        ("mended", c_bool),
    ]


FOUND = ctypes.CFUNCTYPE(None, c_void_p, POINTER(repair_finding))


class repair_options(Sized):
    _fields_ = [
        ("trusted", c_void_p),
        ("key", c_void_p),
        ("adopt", c_bool),
        ("apply", c_bool),
        ("unlisted", c_bool),
        ("deep", c_bool),
        ("found", FOUND),
        ("opaque", c_void_p),
    ]


class repair_result(Sized):
    _fields_ = [
        ("findings", c_uint64),
        ("mendable", c_uint64),
        ("mended", c_uint64),
        ("version", c_uint64),
        ("epoch", c_uint64),
        ("oldest", c_uint64),
        ("floor", c_uint64),
        ("reachable", c_uint64),
        ("listed", c_bool),
        ("is_signed", c_bool),
    ]


# ---- loco.h ----


class loco_tensor(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("data", c_void_p), ("count", c_uint64)]


class loco_options(Sized):
    _fields_ = [
        ("run", c_char_p),
        ("rank", c_uint32),
        ("ranks", c_uint32),
        ("rate", c_float),
        ("momentum", c_float),
        ("significant", c_uint32),
        ("open", c_bool),
        ("raw", c_bool),
        ("average", c_bool),
        ("grid", c_uint32),
        ("overlap", c_bool),
    ]


class loco_payload(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("size", c_size_t)]


class loco_stats(Sized):
    _fields_ = [
        ("elements", c_uint64),
        ("fired", c_uint64),
        ("sent", c_uint64),
        ("received", c_uint64),
        ("included", c_uint32),
        ("decoding", c_double),
        ("moving", c_double),
    ]


SHARE = ctypes.CFUNCTYPE(
    STATUS, c_void_p, c_void_p, c_uint64, POINTER(loco_payload), POINTER(loco_payload), c_size_t
)
LABEL = ctypes.CFUNCTYPE(None, c_void_p, c_char_p, c_char_p)


class loco_exchange(Sized):
    _fields_ = [
        ("share", SHARE),
        ("ended", c_void_p),
        ("snapshot_due", c_void_p),
        ("snapshot_put", c_void_p),
        ("snapshot_get", c_void_p),
        ("close", CLOSE),
        ("opaque", c_void_p),
        ("threads", c_bool),
    ]


class loco_store_options(Sized):
    _fields_ = [
        ("run", c_char_p),
        ("rank", c_uint32),
        ("ranks", c_uint32),
        ("least", c_uint32),
        ("deadline_seconds", c_double),
        ("passing_seconds", c_double),
        ("poll_seconds", c_double),
        ("patience_seconds", c_double),
        ("keep_rounds", c_uint64),
        ("snapshot_rounds", c_uint64),
        ("key", c_void_p),
    ]


class loco_store_stats(Sized):
    _fields_ = [
        ("sent", c_uint64),
        ("received", c_uint64),
        ("snapshot_bytes", c_uint64),
        ("led", c_uint64),
        ("leader", c_uint32),
        ("left_out", c_uint64),
        ("refused", c_uint64),
        ("unremoved", c_uint64),
    ]
