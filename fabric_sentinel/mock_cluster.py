"""The child process of the embedded broker: librdkafka's mock cluster, driven line by line over stdin and stdout.

It prints its address; then each line in, a JSON object of topic names and partition counts, gives one line out, a
JSON object of the topics that were refused and why. It ends when stdin does or when its parent is gone.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import sys
import threading

import confluent_kafka.cimpl

PRODUCER = 0
TOPIC_ALREADY_EXISTS = 36
MAX_PARTITIONS = 10_000
# librdkafka waits 3 s for more members before a group's first assignment; a demo should not.
INITIAL_REBALANCE_DELAY_MS = 200
# A forked sibling may hold our stdin open after the parent's death, so the end of the pipe alone is not enough.
PARENT_CHECK_S = 0.5
# The cluster's thread looks at its queue once a second unless a socket wakes it (measured: 1 s per topic, or 0.4 ms).
WAKE_INTERVAL_S = 0.005


class MockCluster:
    """One broker inside librdkafka, listening on a free port of 127.0.0.1 from construction on."""

    def __init__(self) -> None:
        # Through confluent_kafka's own extension, so that the symbols come from the librdkafka it was built with.
        self._lib = lib = _declare(ctypes.CDLL(confluent_kafka.cimpl.__file__))
        conf = lib.rd_kafka_conf_new()
        error = ctypes.create_string_buffer(512)
        lib.rd_kafka_conf_set(conf, b"log_level", b"3", error, len(error))
        handle = lib.rd_kafka_new(PRODUCER, conf, error, len(error))
        if not handle:
            raise RuntimeError(error.value.decode())
        self._cluster = lib.rd_kafka_mock_cluster_new(handle, 1)
        lib.rd_kafka_mock_group_initial_rebalance_delay_ms(self._cluster, INITIAL_REBALANCE_DELAY_MS)
        self.address: str = lib.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()
        self._topics: dict[str, int] = {}

    def create(self, name: str, partitions: int) -> str | None:
        """Create a topic; returns why not, or None when it is there with that count."""
        if not 1 <= partitions <= MAX_PARTITIONS:
            return f"{partitions} partitions is not between 1 and {MAX_PARTITIONS}"
        known = self._topics.setdefault(name, partitions)
        if known != partitions:
            return f"exists with {known} partitions, not {partitions}"
        code = self._create_awake(name.encode(), partitions)
        if code in (0, TOPIC_ALREADY_EXISTS):
            return None
        return f"librdkafka error {code}"

    def _create_awake(self, name: bytes, partitions: int) -> int:
        codes: list[int] = []
        create = self._lib.rd_kafka_mock_topic_create
        worker = threading.Thread(target=lambda: codes.append(create(self._cluster, name, partitions, 1)))
        worker.start()
        host, port = self.address.split(":")
        while worker.is_alive():
            # On a starved machine the cluster accepts too slowly, and connecting fails: it is awake then anyway.
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1.0):
                worker.join(WAKE_INTERVAL_S)
        return codes[0]


def _declare(lib: ctypes.CDLL) -> ctypes.CDLL:
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    signatures = {
        "rd_kafka_conf_new": (pointer, []),
        "rd_kafka_conf_set": (number, [pointer, text, text, text, ctypes.c_size_t]),
        "rd_kafka_new": (pointer, [number, pointer, text, ctypes.c_size_t]),
        "rd_kafka_mock_cluster_new": (pointer, [pointer, number]),
        "rd_kafka_mock_cluster_bootstraps": (text, [pointer]),
        "rd_kafka_mock_topic_create": (number, [pointer, text, number, number]),
        "rd_kafka_mock_group_initial_rebalance_delay_ms": (None, [pointer, ctypes.c_int32]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


def serve(cluster: MockCluster, parent_pid: int) -> None:
    """Answer lines until stdin ends or the parent is no longer ours."""
    print(cluster.address, flush=True)
    while os.getppid() == parent_pid:
        if not select.select([sys.stdin], [], [], PARENT_CHECK_S)[0]:
            continue
        line = sys.stdin.readline()
        if not line:
            return
        answers = {name: cluster.create(name, count) for name, count in json.loads(line).items()}
        print(json.dumps({name: why for name, why in answers.items() if why}), flush=True)


def main() -> None:
    """Serve the parent named in argv; Ctrl-C in the terminal is the parent's to handle, who then stops us last."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(BrokenPipeError):
        serve(MockCluster(), parent_pid=int(sys.argv[1]))
    os._exit(0)  # skips librdkafka's teardown, which waits for clients that are still connected


if __name__ == "__main__":
    main()
