"""A door in front of a broker: a loopback port that refuses connections until it is opened."""

import contextlib
import socket
import threading


class Gate:
    """Forwards connections on its own port to an address while open."""

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self._listener: socket.socket | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def open(self, target: str) -> None:
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("127.0.0.1", self.port))
        self._listener.listen()
        threading.Thread(target=self._accept, args=(self._listener, target), daemon=True).start()

    def close(self) -> None:
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()

    def _accept(self, listener: socket.socket, target: str) -> None:
        host, port = target.split(":")
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                broker = socket.create_connection((host, int(port)))
                for source, sink in ((client, broker), (broker, client)):
                    threading.Thread(target=_copy, args=(source, sink), daemon=True).start()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
