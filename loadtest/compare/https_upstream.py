"""Serves the repositories of a folder over https, all of the same content: what `git http-backend` answered for one of them is
answered for all. Connections are kept. https_upstream.py FOLDER CERTIFICATE KEY PORT"""

import http.server
import os
import re
import ssl
import subprocess
import sys

folder, certificate, key, port = sys.argv[1:]
answers = {}


def backend(method, path, query, kind, version, body):
    environment = dict(os.environ, GIT_PROJECT_ROOT=folder, GIT_HTTP_EXPORT_ALL="1", REQUEST_METHOD=method, PATH_INFO=path,
                       QUERY_STRING=query, CONTENT_TYPE=kind, CONTENT_LENGTH=str(len(body)), GIT_PROTOCOL=version)
    run = subprocess.run(["git", "http-backend"], env=environment, input=body, stdout=subprocess.PIPE, check=True)
    head, _, body = run.stdout.partition(b"\r\n\r\n")
    headers = [line.split(": ", 1) for line in head.decode().split("\r\n")]
    status = [value for name, value in headers if name == "Status"]
    return int(status[0][:3]) if status else 200, [each for each in headers if each[0] != "Status"], body


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def setup(self):
        self.request.do_handshake()
        super().setup()

    def do_GET(self):
        path, _, query = self.path.partition("?")
        kind, version = self.headers.get("Content-Type", ""), self.headers.get("Git-Protocol", "")
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        asked = (self.command, re.sub(r"^/\d+", "", path), query, kind, version, body)
        if asked not in answers:
            answers[asked] = backend(self.command, path, query, kind, version, body)
        status, headers, body = answers[asked]
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    do_POST = do_GET

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 512

    def handle_error(self, *_):
        pass


context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(certificate, key)
server = Server(("127.0.0.1", int(port)), Handler)
server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
server.serve_forever()
