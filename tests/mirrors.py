"""A local server whose mirrors serve well, break off, corrupt, stall, say nothing or know no such file."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server(ThreadingHTTPServer):
    """Serves `files`; the first part of a path says how: good, truncated, corrupt, stalled, silent or anything else."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.closing = threading.Event()

    def mirror(self, manner: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{manner}/"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hung up is what some of these tests are about."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        _, manner, file = self.path.split("/")
        self.server.asked.append(f"{manner}/{file}")
        content = self.server.files.get(file)
        if manner == "silent":
            self.server.closing.wait()
        elif content is None or manner not in ("good", "truncated", "corrupt", "stalled", "endless"):
            self.send_error(404)
        else:
            self.send_response(200)
            if manner != "endless":  # which says no length and simply ends, in the middle of the file
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.send_body(manner, content)

    def send_body(self, manner: str, content: bytes) -> None:
        if manner == "corrupt":
            content = content[:-1] + bytes([content[-1] ^ 1])
        self.wfile.write(content if manner in ("good", "corrupt") else content[: len(content) // 2])
        self.wfile.flush()
        if manner == "stalled":
            self.server.closing.wait()

    def log_message(self, *_: object) -> None:
        """Not on the terminal."""
