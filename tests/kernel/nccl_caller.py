"""Calls a real libnccl as told on stdin, one JSON object a line, and answers with the results: a workload for tests.

    {"call": "ncclAllReduce", "args": ["p:0", "p:0", "z:1024", "i:7", "i:0", "p:0", "p:0"], "times": 3}

p: pointer, z: size_t, i: int, s: an out pointer's slot, id: 128 bytes by value (hex), idp: the same by pointer.
`threads` runs the same calls on so many threads at once. Needs nothing but the standard library.
"""

import ctypes
import json
import sys
import threading
from typing import Any


class UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_ubyte * 128),)


SLOTS = (ctypes.c_void_p * 64)()
BLANK = ctypes.create_string_buffer(1 << 24)  # a communicator that fails NCCL's own checks instead of crashing
IDS = []


def argument(text: str) -> Any:
    kind, _, value = text.partition(":")
    if kind == "p":
        return ctypes.c_void_p(ctypes.addressof(BLANK) if value == "blank" else int(value, 0))
    if kind == "z":
        return ctypes.c_size_t(int(value))
    if kind == "i":
        return ctypes.c_int(int(value))
    if kind == "s":
        return ctypes.byref(SLOTS, 8 * int(value))
    unique_id = UniqueId.from_buffer_copy(bytes.fromhex(value))
    if kind == "id":
        return unique_id
    IDS.append(unique_id)
    return ctypes.byref(unique_id)


def repeat(function: Any, args: list[Any], times: int, results: list[int]) -> None:
    results.extend(function(*args) for _ in range(times))


def main() -> None:
    library = ctypes.CDLL(sys.argv[1])
    print(json.dumps({"blank": ctypes.addressof(BLANK)}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        function, args = getattr(library, order["call"]), [argument(text) for text in order["args"]]
        results: list[int] = []
        threads = [
            threading.Thread(target=repeat, args=(function, args, order["times"], results))
            for _ in range(order.get("threads", 0))
        ]
        for thread in threads:
            thread.start()
        if not threads:
            repeat(function, args, order["times"], results)
        for thread in threads:
            thread.join()
        print(json.dumps({"results": sorted(set(results)), "calls": len(results), "slots": list(SLOTS)}), flush=True)


if __name__ == "__main__":
    main()
