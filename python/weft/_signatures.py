# SPDX-License-Identifier: Apache-2.0
"""The functions of include/weft that the package calls: what each takes and gives back.

`functions` is the library with all of them declared. Handles (contexts, views, stores …) are void pointers. A name
that the library does not have fails here, when the package is loaded, and not in the middle of a training run.
"""

from __future__ import annotations

from ctypes import POINTER, c_bool, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any, Dict, Tuple

from . import _structures as s
from .library import library

_P = c_void_p  # a handle
_OUT = POINTER(c_void_p)  # where a new handle goes
_STATUS = c_int
_TEXTS = POINTER(c_char_p)


_SIGNATURES: Dict[str, Tuple[Any, Tuple[Any, ...]]] = {
    # base.h
    "version": (c_uint, ()),
    "context_create": (_STATUS, (POINTER(s.context_options), _OUT)),
    "cpu_name": (c_char_p, ()),
    "bf16_from_f32": (None, (_P, _P, c_size_t)),
    # tensor.h
    "dtype_name": (c_char_p, (c_int,)),
    "dtype_width": (c_uint, (c_int,)),
    "table_create": (_STATUS, (_P, _OUT)),
    "table_destroy": (None, (_P,)),
    "table_add": (_STATUS, (_P, POINTER(s.tensor))),
    "table_set_batch_access": (_STATUS, (_P, POINTER(s.batch_access))),
    "table_count": (c_size_t, (_P,)),
    "table_at": (POINTER(s.tensor), (_P, c_size_t)),
    "table_find": (c_int64, (_P, c_char_p)),
    "table_bytes": (c_uint64, (_P,)),
    "table_write": (_STATUS, (_P, _P, c_char_p, POINTER(s.write_options))),
    "checkpoint_open": (_STATUS, (_P, c_char_p, c_int, _OUT)),
    "checkpoint_close": (None, (_P,)),
    "checkpoint_table": (_P, (_P,)),
    "checkpoint_container": (_P, (_P,)),
    "layout_parse": (_STATUS, (_P, c_char_p, c_size_t, _OUT)),
    "layout_destroy": (None, (_P,)),
    "view_create": (_STATUS, (_P, _P, _OUT)),
    "view_create_layout": (_STATUS, (_P, _P, _P, _P, _OUT)),
    "view_destroy": (None, (_P,)),
    "view_count": (c_size_t, (_P,)),
    "view_find": (c_int64, (_P, c_char_p)),
    "view_at": (POINTER(s.tensor), (_P, c_size_t)),
    "sums_compute": (_STATUS, (_P, _P, _OUT)),
    "sums_destroy": (None, (_P,)),
    "sums_digest": (s.digest, (_P,)),
    "sums_tensor": (s.digest, (_P, c_size_t)),
    # patch.h
    "diff": (_STATUS, (_P, _P, _P, POINTER(s.diff_options), POINTER(s.sink), POINTER(s.diff_stats))),
    "patch_open": (_STATUS, (_P, POINTER(s.source), _OUT)),
    "patch_close": (None, (_P,)),
    "patch_describe": (None, (_P, POINTER(s.patch_info))),
    "patch_label": (c_char_p, (_P, c_char_p)),
    "patch_label_count": (c_size_t, (_P,)),
    "patch_label_key": (c_char_p, (_P, c_size_t)),
    "patch_tensor_count": (c_size_t, (_P,)),
    "patch_tensor": (POINTER(s.tensor), (_P, c_size_t, POINTER(c_int))),
    "patch_bucket": (_STATUS, (_P, _P, c_size_t, POINTER(s.bucket_info))),
    "apply_create": (_STATUS, (_P, _P, _P, _P, _OUT)),
    "apply_prepare": (_STATUS, (_P,)),
    "apply_changes": (_STATUS, (_P, c_size_t, s.VISIT_CHANGES, _P)),
    "apply_commit": (_STATUS, (_P,)),
    "apply_rollback": (_STATUS, (_P,)),
    "apply_describe": (None, (_P, POINTER(s.apply_stats))),
    "apply_destroy": (None, (_P,)),
    "apply_rebuild": (_STATUS, (_P, _P, _OUT, c_size_t, c_char_p, c_bool, POINTER(s.digest))),
    "apply_in_place": (_STATUS, (_P, c_char_p, _OUT, c_size_t, c_bool, POINTER(s.digest))),
    "apply_recover": (_STATUS, (_P, c_char_p, POINTER(c_bool))),
    "merge": (_STATUS, (_P, _OUT, c_size_t, POINTER(s.merge_options), POINTER(s.sink), POINTER(s.diff_stats))),
    # foreign.h
    "foreign_open": (_STATUS, (_P, c_char_p, POINTER(s.foreign_options), _OUT)),
    "foreign_close": (None, (_P,)),
    "foreign_count": (c_size_t, (_P,)),
    "foreign_at": (POINTER(s.foreign_version), (_P, c_size_t)),
    "foreign_read": (_STATUS, (_P, c_uint64, _P, _OUT)),
    "foreign_step_changes": (POINTER(s.tensor_changes), (_P, POINTER(c_size_t))),
    "foreign_step_labels": (_TEXTS, (_P,)),
    "foreign_step_destroy": (None, (_P,)),
    "foreign_place": (c_int, (c_char_p, _TEXTS)),
    "foreign_replica_open": (_STATUS, (_P, _P, c_char_p, POINTER(s.foreign_replica_options), _OUT)),
    "foreign_replica_open_view": (_STATUS, (_P, _P, _P, POINTER(s.foreign_replica_options), _OUT)),
    "foreign_replica_close": (None, (_P,)),
    "foreign_replica_describe": (None, (_P, POINTER(s.foreign_replica_info))),
    "foreign_replica_labels": (_TEXTS, (_P, c_bool)),
    "foreign_replica_wait": (_STATUS, (_P, c_double, POINTER(c_uint64))),
    "foreign_replica_prepare": (_STATUS, (_P, c_uint64)),
    "foreign_replica_changes": (_STATUS, (_P, c_size_t, s.VISIT_CHANGES, _P)),
    "foreign_replica_commit": (_STATUS, (_P,)),
    "foreign_replica_rollback": (_STATUS, (_P,)),
    "foreign_replica_verify": (_STATUS, (_P,)),
    # store.h
    "store_open": (_STATUS, (_P, c_char_p, POINTER(s.store_options), _OUT)),
    "store_create": (_STATUS, (_P, c_char_p, POINTER(s.store_operations), _P, _OUT)),
    "store_close": (None, (_P,)),
    "store_url": (c_char_p, (_P,)),
    "store_traits_of": (None, (_P, POINTER(s.store_traits))),
    "store_traffic_of": (None, (_P, POINTER(s.store_traffic))),
    "store_get": (_STATUS, (_P, _P, POINTER(s.store_get_request), POINTER(s.store_get_result))),
    "store_put": (_STATUS, (_P, _P, POINTER(s.store_put_request), POINTER(s.store_tag))),
    "store_put_bytes": (
        _STATUS,
        (_P, _P, c_char_p, c_char_p, c_size_t, c_int, POINTER(s.store_tag), POINTER(s.store_tag)),
    ),
    "store_head": (_STATUS, (_P, _P, c_char_p, POINTER(c_uint64), POINTER(s.store_tag))),
    "store_remove": (_STATUS, (_P, _P, c_char_p)),
    "store_watch": (_STATUS, (_P, _P, c_uint64, c_double, _P, c_size_t, POINTER(c_size_t))),
    "store_list": (_STATUS, (_P, _P, c_char_p, s.VISIT_OBJECT, _P)),
    "store_age": (_STATUS, (_P, _P, c_char_p, POINTER(c_double))),
    # sync.h
    "key_generate": (_STATUS, (_P, _OUT)),
    "key_read": (_STATUS, (_P, c_char_p, _OUT)),
    "key_write": (_STATUS, (_P, _P, c_char_p, c_char_p)),
    "key_bind": (_STATUS, (_P, _P, c_char_p)),
    "key_destroy": (None, (_P,)),
    "key_secret": (c_bool, (_P,)),
    "key_format": (None, (_P, c_char_p)),
    "publisher_open": (_STATUS, (_P, _P, _P, POINTER(s.publisher_options), _OUT)),
    "publisher_publish": (_STATUS, (_P, _TEXTS, POINTER(s.publish_result))),
    "publisher_publish_changes": (
        _STATUS,
        (_P, POINTER(s.tensor_changes), c_size_t, _TEXTS, POINTER(s.publish_result)),
    ),
    "publisher_anchor": (_STATUS, (_P, POINTER(c_uint64))),
    "publisher_settle": (_STATUS, (_P,)),
    "publisher_version": (c_uint64, (_P,)),
    "publisher_epoch": (c_uint64, (_P,)),
    "publisher_run": (c_char_p, (_P,)),
    "publisher_close": (None, (_P,)),
    "sync_phase_name": (c_char_p, (c_int,)),
    "subscriber_open": (_STATUS, (_P, _P, _P, POINTER(s.subscriber_options), _OUT)),
    "subscriber_open_layout": (_STATUS, (_P, _P, _P, _P, POINTER(s.subscriber_options), _OUT)),
    "subscriber_open_file": (_STATUS, (_P, _P, c_char_p, POINTER(s.subscriber_options), _OUT)),
    "subscriber_close": (None, (_P,)),
    "subscriber_wait": (_STATUS, (_P, c_double, POINTER(c_uint64))),
    "subscriber_prepare": (_STATUS, (_P, c_uint64)),
    "subscriber_changes": (_STATUS, (_P, c_size_t, s.VISIT_CHANGES, _P)),
    "subscriber_commit": (_STATUS, (_P,)),
    "subscriber_rollback": (_STATUS, (_P,)),
    "subscriber_pull": (_STATUS, (_P, c_uint64)),
    "subscriber_verify": (_STATUS, (_P,)),
    "subscriber_describe": (None, (_P, POINTER(s.subscriber_info))),
    "subscriber_labels": (_TEXTS, (_P,)),
    "fleet_read": (_STATUS, (_P, _P, POINTER(s.fleet_options), POINTER(s.fleet))),
    "fleet_close": (None, (_P, POINTER(s.fleet))),
    "group_lead": (_STATUS, (_P, _P, c_char_p, POINTER(s.group_options), _OUT)),
    "group_run": (_STATUS, (_P, c_double, POINTER(c_uint64))),
    "group_describe": (None, (_P, POINTER(s.group_info))),
    "group_close": (None, (_P,)),
    "member_open": (_STATUS, (_P, c_char_p, c_uint, _P, POINTER(s.member_options), _OUT)),
    "member_open_layout": (_STATUS, (_P, c_char_p, c_uint, _P, _P, POINTER(s.member_options), _OUT)),
    "member_close": (None, (_P,)),
    "member_wait": (_STATUS, (_P, c_double, POINTER(c_uint64))),
    "member_prepare": (_STATUS, (_P, c_uint64)),
    "member_commit": (_STATUS, (_P,)),
    "member_rollback": (_STATUS, (_P,)),
    "member_verify": (_STATUS, (_P,)),
    "member_describe": (None, (_P, POINTER(s.member_info))),
    "member_label": (c_char_p, (_P, c_char_p)),
    "log_walk": (_STATUS, (_P, _P, _P, s.VISIT_ENTRY, _P)),
    "gc_run": (_STATUS, (_P, _P, POINTER(s.gc_options), POINTER(s.gc_result))),
    "repair_kind_name": (c_char_p, (c_int,)),
    "repair_run": (_STATUS, (_P, _P, POINTER(s.repair_options), POINTER(s.repair_result))),
    # loco.h
    "loco_defaults": (None, (POINTER(s.loco_options),)),
    "loco_create": (_STATUS, (_P, POINTER(s.loco_options), POINTER(s.loco_tensor), c_size_t, _OUT)),
    "loco_destroy": (None, (_P,)),
    "loco_rounds": (c_uint64, (_P,)),
    "loco_digest": (s.digest, (_P,)),
    "loco_residual_energy": (c_double, (_P,)),
    "loco_encode": (_STATUS, (_P, POINTER(s.loco_payload))),
    "loco_aggregate": (_STATUS, (_P, POINTER(s.loco_payload), c_size_t, POINTER(s.loco_stats))),
    "loco_round": (_STATUS, (_P, POINTER(s.loco_exchange), POINTER(s.loco_stats))),
    "loco_round_begin": (_STATUS, (_P, POINTER(s.loco_exchange))),
    "loco_catch_up": (_STATUS, (_P, POINTER(s.loco_exchange), POINTER(c_uint64))),
    "loco_save": (_STATUS, (_P, c_char_p, _P, _TEXTS, c_bool)),
    "loco_load": (_STATUS, (_P, c_char_p, _P, _TEXTS, s.LABEL, _P)),
    "loco_store_defaults": (None, (POINTER(s.loco_store_options),)),
    "loco_store_open": (_STATUS, (_P, _P, POINTER(s.loco_store_options), POINTER(s.loco_exchange))),
    "loco_store_describe": (None, (POINTER(s.loco_exchange), POINTER(s.loco_store_stats))),
}


class Functions:
    """The functions of libweft by their names without the prefix."""

    def __init__(self) -> None:
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, "weft_" + name)
            function.restype = result
            function.argtypes = arguments
            setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"weft_{name} is not declared in {__name__}")


functions = Functions()
