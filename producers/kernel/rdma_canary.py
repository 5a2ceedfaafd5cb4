"""One queue pair, completion queue and memory region of our own, to prove that the probes deliver."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

RELIABLE_CONNECTION = 2  # IBV_QPT_RC
REGION_BYTES = 4096


class CanaryUnavailable(Exception):  # noqa: N818
    """No canary can be made here; the message is one line and says why."""


class _Capabilities(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint32)
        for name in ("max_send_wr", "max_recv_wr", "max_send_sge", "max_recv_sge", "max_inline_data")
    ]


class _QueuePairAttributes(ctypes.Structure):
    _fields_ = [
        ("qp_context", ctypes.c_void_p),
        ("send_cq", ctypes.c_void_p),
        ("recv_cq", ctypes.c_void_p),
        ("srq", ctypes.c_void_p),
        ("cap", _Capabilities),
        ("qp_type", ctypes.c_int),
        ("sq_sig_all", ctypes.c_int),
    ]


def make_and_destroy(device: str, library: str = "libibverbs.so.1") -> None:
    """Create one of each object on a device and destroy them again; raises CanaryUnavailable."""
    try:
        verbs = ctypes.CDLL(library, use_errno=True)
    except OSError as error:
        raise CanaryUnavailable(f"{library} cannot be loaded: {error}") from error
    region = ctypes.create_string_buffer(REGION_BYTES)
    with contextlib.ExitStack() as stack:
        context = stack.enter_context(_opened(verbs, device))
        domain = stack.enter_context(_made(verbs, "ibv_alloc_pd", "ibv_dealloc_pd", context))
        queue = stack.enter_context(_made(verbs, "ibv_create_cq", "ibv_destroy_cq", context, 1, None, None, 0))
        stack.enter_context(
            _made(verbs, "ibv_reg_mr", "ibv_dereg_mr", domain, region, ctypes.c_size_t(REGION_BYTES), 0)
        )
        attributes = _QueuePairAttributes(
            send_cq=queue.value,
            recv_cq=queue.value,
            cap=_Capabilities(max_send_wr=1, max_recv_wr=1, max_send_sge=1, max_recv_sge=1),
            qp_type=RELIABLE_CONNECTION,
        )
        stack.enter_context(_made(verbs, "ibv_create_qp", "ibv_destroy_qp", domain, ctypes.byref(attributes)))


@contextlib.contextmanager
def _opened(verbs: Any, device: str) -> Iterator[ctypes.c_void_p]:
    verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
    verbs.ibv_get_device_name.restype = ctypes.c_char_p
    count = ctypes.c_int()
    devices = verbs.ibv_get_device_list(ctypes.byref(count))
    if not devices:
        raise CanaryUnavailable("libibverbs lists no devices")
    try:
        for i in range(count.value):
            if verbs.ibv_get_device_name(ctypes.c_void_p(devices[i])) == device.encode():
                break
        else:
            raise CanaryUnavailable(f"libibverbs does not know {device}")
        with _made(verbs, "ibv_open_device", "ibv_close_device", ctypes.c_void_p(devices[i])) as context:
            yield context
    finally:
        verbs.ibv_free_device_list(devices)


@contextlib.contextmanager
def _made(verbs: Any, make: str, destroy: str, *arguments: Any) -> Iterator[ctypes.c_void_p]:
    function = getattr(verbs, make)
    function.restype = ctypes.c_void_p
    made = function(*arguments)
    if not made:
        raise CanaryUnavailable(f"{make}: error {ctypes.get_errno()}")
    try:
        yield ctypes.c_void_p(made)
    finally:
        getattr(verbs, destroy)(ctypes.c_void_p(made))
