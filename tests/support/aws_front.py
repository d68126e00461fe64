#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What Amazon has around a bucket, before a real S3 service: temporary credentials that expire, and who gives them.

    aws_front.py --upstream http://HOST:PORT --user USER --secret SECRET --url-file FILE --life SECONDS

listens on a port of 127.0.0.1 that the kernel chooses, writes its URL to FILE when it is ready, and runs until it is
ended. As the public descriptions of the protocols have it, it gives credentials that live for SECONDS:

    PUT /latest/api/token, GET /latest/meta-data/iam/security-credentials/[ROLE]    instance metadata, version 2 only
    GET /container                            with the Authorization that is in FILE.token
    POST /  Action=AssumeRoleWithWebIdentity  STS, with the token that is in FILE.identity
    GET /process                              what a credential_process prints (a test lets curl be that process)
    GET /profile                              the same as a profile of ~/.aws/credentials
    GET /revoke                               nothing that was given is good any more, whatever its date says

Everything else is a request to S3. Its signature (AWS Signature Version 4) is checked here, against the credentials
that were given and with their session token; expired ones are answered as Amazon does: 400 ExpiredToken. A good
request is signed anew for the upstream and goes there. What was done is written to FILE.log, a line each.
"""

import argparse
import calendar
import hashlib
import hmac
import http.client
import http.server
import json
import os
import secrets
import sys
import threading
import time
import urllib.parse

ROLE = "weft-worker"
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "expect", "host", "authorization", "x-amz-date",
              "x-amz-security-token", "content-length",
              "x-amz-server-side-encryption"}  # neither service of the tests has keys to encrypt with
EMPTY = hashlib.sha256(b"").hexdigest()


def canonical_query(query):
    parts = [part.partition("=")[::2] for part in query.split("&") if part]
    return "&".join(f"{name}={value}" for name, value in sorted(parts))


def signature(secret, method, path, query, headers, signed, date, scope):
    """Of a request, in hexadecimal; `headers` have lower-case names."""
    lines = "".join(f"{name}:{' '.join(headers.get(name, '').split())}\n" for name in signed)
    request = "\n".join([method, path, canonical_query(query), lines, ";".join(signed),
                         headers.get("x-amz-content-sha256", EMPTY)])
    text = "\n".join(["AWS4-HMAC-SHA256", date, scope, hashlib.sha256(request.encode()).hexdigest()])
    key = ("AWS4" + secret).encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


class Front(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, options):
        super().__init__(("127.0.0.1", 0), Handler)
        self.options = options
        self.lock = threading.Lock()
        self.given = {}  # access key: (secret, token, expires)
        self.metadata = set()  # tokens of the instance's service
        self.log = open(options.url_file + ".log", "w", buffering=1)

    def note(self, *words):
        with self.lock:
            print(f"{time.time():.3f}", *words, file=self.log)

    def give(self, source):
        """New credentials, as a tuple of key, secret, token and the date of their end."""
        user = "ASIA" + secrets.token_hex(8).upper()
        secret, token = secrets.token_urlsafe(30), secrets.token_urlsafe(600)
        expires = time.time() + self.options.life
        with self.lock:
            self.given[user] = (secret, token, expires)
        self.note("gave", source)
        # whole seconds, as all of these services have them; never later than the truth
        return user, secret, token, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(expires))


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *words):
        pass

    def answer(self, status, body=b"", kind="text/plain"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status, code):
        self.server.note("refused", code, self.command, self.path)
        self.close_connection = True
        self.answer(status, f"<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>So.</Message></Error>".encode(),
                    "application/xml")

    def read_body(self):
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def instance(self):
        if self.path == "/latest/api/token":
            if self.command != "PUT" or not self.headers.get("X-aws-ec2-metadata-token-ttl-seconds"):
                return self.answer(405 if self.command != "PUT" else 400)
            token = secrets.token_urlsafe(32)
            self.server.metadata.add(token)
            return self.answer(200, token.encode())
        if self.headers.get("X-aws-ec2-metadata-token") not in self.server.metadata:
            return self.answer(401)
        if self.path == "/latest/meta-data/iam/security-credentials/":
            return self.answer(200, ROLE.encode())
        if self.path != f"/latest/meta-data/iam/security-credentials/{ROLE}":
            return self.answer(404)
        user, secret, token, date = self.server.give("instance")
        return self.answer(200, json.dumps({
            "Code": "Success", "LastUpdated": date, "Type": "AWS-HMAC", "AccessKeyId": user, "SecretAccessKey": secret,
            "Token": token, "Expiration": date}, indent=2).encode())

    def container(self):
        with open(self.server.options.url_file + ".token") as file:
            if self.headers.get("Authorization") != file.read().strip():
                return self.answer(401, b'{"code":"AccessDenied","message":"No."}')
        user, secret, token, date = self.server.give("container")
        return self.answer(200, json.dumps({"RoleArn": "arn:aws:iam::1:role/x", "AccessKeyId": user,
                                            "SecretAccessKey": secret, "Token": token, "Expiration": date}).encode())

    def process(self):
        user, secret, token, date = self.server.give("process")
        return self.answer(200, json.dumps({"Version": 1, "AccessKeyId": user, "SecretAccessKey": secret,
                                            "SessionToken": token,
                                            "Expiration": date.replace("Z", "+00:00")}).encode())

    def profile(self):
        user, secret, token, _ = self.server.give("profile")
        return self.answer(200, (f"[default]\naws_access_key_id={user}\naws_secret_access_key = {secret}\n"
                                 f"aws_session_token = {token}\n").encode())

    def revoke(self):
        with self.server.lock:
            self.server.given = {user: (secret, token, 0) for user, (secret, token, _) in self.server.given.items()}
        return self.answer(200)

    def web_identity(self):
        form = urllib.parse.parse_qs(self.read_body().decode())
        with open(self.server.options.url_file + ".identity") as file:
            known = form.get("WebIdentityToken") == [file.read().strip()]
        known = known and form.get("RoleArn") == ["arn:aws:iam::123456789012:role/weft"]
        if not known or not form.get("RoleSessionName"):
            return self.answer(400, b'<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error>'
                               b"<Code>InvalidIdentityToken</Code><Message>No.</Message></Error></ErrorResponse>")
        user, secret, token, date = self.server.give("web-identity")
        return self.answer(200, f"""<AssumeRoleWithWebIdentityResponse
  xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
  <AssumeRoleWithWebIdentityResult><SubjectFromWebIdentityToken>x</SubjectFromWebIdentityToken>
    <Credentials><SessionToken>{token}</SessionToken><SecretAccessKey>{secret}</SecretAccessKey>
      <Expiration>{date}</Expiration><AccessKeyId>{user}</AccessKeyId></Credentials>
  </AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>""".encode(), "text/xml")

    def check(self, path, query, headers):
        """Why the request is refused, or None."""
        fields = dict(part.strip().partition("=")[::2]
                      for part in headers.get("authorization", "").partition(" ")[2].split(","))
        user, _, scope = fields.get("Credential", "").partition("/")
        secret, token, expires = self.server.given.get(user, (None, None, 0))
        if secret is None:
            return 403, "InvalidAccessKeyId"
        signed = fields.get("SignedHeaders", "").split(";")
        if not {"host", "x-amz-date", "x-amz-security-token"} <= set(signed):
            return 403, "AccessDenied"
        if headers.get("x-amz-security-token") != token:
            return 400, "InvalidToken"
        if signature(secret, self.command, path, query, headers, signed, headers["x-amz-date"],
                     scope) != fields.get("Signature"):
            return 403, "SignatureDoesNotMatch"
        if time.time() > expires:
            return 400, "ExpiredToken"
        return None

    def forward(self, path, query, headers, body):
        options = self.server.options
        upstream = urllib.parse.urlsplit(options.upstream)
        own = {name: value for name, value in headers.items() if name not in HOP_BY_HOP}
        own["host"] = upstream.netloc
        own["x-amz-date"] = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        own.setdefault("x-amz-content-sha256", hashlib.sha256(body).hexdigest())
        signed = sorted(name for name in own if name in ("host", "content-md5") or name.startswith("x-amz-"))
        scope = own["x-amz-date"][:8] + "/us-east-1/s3/aws4_request"
        own["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={options.user}/{scope}, SignedHeaders={';'.join(signed)}, Signature="
            + signature(options.secret, self.command, path, query, own, signed, own["x-amz-date"], scope))
        connection = http.client.HTTPConnection(upstream.hostname, upstream.port, timeout=60)
        try:
            connection.request(self.command, self.path, body if body or self.command in ("PUT", "POST") else None, own)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "content-length", "date", "server"):
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
        self.send_header("Content-Length", length or "0")
        self.end_headers()
        self.wfile.write(content)

    def bucket(self):
        path, _, query = self.path.partition("?")
        headers = {name.lower(): value for name, value in self.headers.items()}
        if headers.get("expect", "").lower() == "100-continue":
            self.close_connection = False
        body = self.read_body()
        refusal = self.check(path, query, headers)
        if refusal:
            return self.refuse(*refusal)
        making = [headers[name] for name in ("x-amz-server-side-encryption", "x-amz-storage-class") if name in headers]
        self.server.note("s3", self.command, self.path, *making)
        return self.forward(path, query, headers, body)

    def handle_request(self):
        if self.path.startswith("/latest/"):
            return self.instance()
        if self.path == "/container":
            return self.container()
        if self.path in ("/process", "/profile", "/revoke"):
            return getattr(self, self.path[1:])()
        if self.path == "/" and self.command == "POST":
            return self.web_identity()
        return self.bucket()

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_request


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--upstream", required=True)
    parser.add_argument("--user", required=True)
    parser.add_argument("--secret", required=True)
    parser.add_argument("--url-file", required=True)
    parser.add_argument("--life", type=float, required=True)
    options = parser.parse_args()
    front = Front(options)
    with open(options.url_file + ".new", "w") as file:
        file.write(f"http://127.0.0.1:{front.server_address[1]}\n")
    os.rename(options.url_file + ".new", options.url_file)
    front.serve_forever()


if __name__ == "__main__":
    sys.exit(main())
