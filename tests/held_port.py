"""A port of loopback that stays with a test, also while no server of it listens there."""

import socket


class HeldPort:
    """Bound, and never listened on: a server of ours may listen there, and nobody else is given the port.

    While no server does, connections are refused.
    """

    def __init__(self):
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.number = self._socket.getsockname()[1]

    def give_back(self):
        self._socket.close()

    def __enter__(self):
        return self.number

    def __exit__(self, *_):
        self.give_back()
