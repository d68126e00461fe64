#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A forward proxy, as companies have them: forward_proxy.py URL-FILE LOG-FILE

listens on a port of 127.0.0.1 that the kernel chooses, writes its URL to URL-FILE, and runs until it is ended. Each
request is a line of LOG-FILE: CONNECT HOST:PORT of a tunnel for TLS, or METHOD URL of a plain one.
"""

import os
import socket
import socketserver
import sys
import threading
import urllib.parse


def pump(source, target):
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


class Handler(socketserver.BaseRequestHandler):
    def handle(self):
        head = b""
        while b"\r\n\r\n" not in head:
            data = self.request.recv(65536)
            if not data:
                return
            head += data
        method, target, version = head.split(b"\r\n", 1)[0].decode().split(" ")
        with open(sys.argv[2], "a") as log:
            print(method, target, file=log)
        if method == "CONNECT":
            address = urllib.parse.urlsplit("//" + target)
            first = b""
        else:
            address = urllib.parse.urlsplit(target)
            path = target[len(f"{address.scheme}://{address.netloc}"):] or "/"
            # one request for each connection: what follows is for the same host
            first = f"{method} {path} {version}\r\n".encode() + head.split(b"\r\n", 1)[1].replace(
                b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)
        with socket.create_connection((address.hostname, address.port or 80)) as upstream:
            if method == "CONNECT":
                self.request.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            upstream.sendall(first)
            back = threading.Thread(target=pump, args=(upstream, self.request))
            back.start()
            pump(self.request, upstream)
            back.join()


class Proxy(socketserver.ThreadingTCPServer):
    daemon_threads = True


with Proxy(("127.0.0.1", 0), Handler) as proxy:
    with open(sys.argv[1] + ".new", "w") as file:
        file.write(f"http://127.0.0.1:{proxy.server_address[1]}\n")
    os.rename(sys.argv[1] + ".new", sys.argv[1])
    proxy.serve_forever()
