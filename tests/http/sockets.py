"""Bytes to and from a server on this computer."""
import contextlib
import socket
import time


class Sockets:
    """For classes with a port."""

    def connect(self, timeout=20, receive_buffer=0):
        s = socket.socket()
        if receive_buffer:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        s.settimeout(timeout)
        s.connect(("127.0.0.1", self.port))
        return s

    def raw(self, *pieces, pause=0.0, half_close=False, timeout=20):
        """Sends bytes, returns everything until the server closes."""
        with contextlib.closing(self.connect(timeout)) as s:
            with contextlib.suppress(OSError):
                for piece in pieces:
                    s.sendall(piece)
                    time.sleep(pause)
                if half_close:
                    s.shutdown(socket.SHUT_WR)
            return read_all(s)


def read_all(s):
    data = b""
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):
        while more := s.recv(65536):
            data += more
    return data
