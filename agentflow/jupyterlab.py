"""JupyterLab that keeps the port it has found, so that two that start in the same second take two. `lab` becomes it.

JupyterLab itself lets the port go, says its address, and takes the port again when it begins to serve.
"""

from __future__ import annotations

import signal
from contextlib import suppress
from socket import socket

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # while the rest is imported, Ctrl-C ends the process without a word

from jupyter_server import serverapp
from jupyterlab.labapp import LabApp  # type: ignore[import-untyped]
from tornado.netutil import bind_sockets


class ServerApp(serverapp.ServerApp):
    """Jupyter's, under the same name, since its options are found by it; it binds its port when it chooses it."""

    _held: list[socket]

    def init_signal(self) -> None:
        """From here on an interrupt is heard: on a terminal by a question, elsewhere by an orderly end."""
        signal.signal(signal.SIGINT, signal.default_int_handler)
        super().init_signal()

    def _find_http_port(self) -> None:
        self._held = []
        while not self._held:
            super()._find_http_port()  # ends this process if none is free
            with suppress(OSError):  # somebody was faster
                self._held = bind_sockets(self.port, self.ip)

    def _bind_http_server_tcp(self) -> bool:
        self.http_server.add_sockets(self._held)
        return True


LabApp.serverapp_class = ServerApp
if __name__ == "__main__":
    LabApp.launch_instance()
