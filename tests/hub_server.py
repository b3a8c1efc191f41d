"""A Hub on loopback: the routes that `huggingface_hub` calls to create, upload and download; and its users."""

import base64
import hashlib
import json
import os
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

from processes import Process


LFS = (".safetensors", ".spm", ".png", ".bin", ".pt")


class Hub(ThreadingHTTPServer):
    """
    Repositories in memory, each a list of commits (path -> bytes). `fail` maps a word of a path to what becomes of its
    requests: a status, or `"hang"`. It keeps what it is sent, whatever a `.gitignore` says, and knows which files it
    has already.
    """

    daemon_threads = True

    def __init__(self, user: str = "user", token: str = "hf_secret"):
        super().__init__(("127.0.0.1", 0), _Routes)
        self.user, self.token = user, token
        self.repos: dict[str, dict] = {}
        self.objects: dict[str, bytes] = {}  # LFS
        self.fail: dict[str, int | str] = {}
        self.lock = threading.Lock()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    def files(self, repo: str) -> dict[str, bytes]:
        """The files of the newest commit of `main`."""
        return self.repos[repo]["commits"][-1][1]


def oid_of(path: str, files: dict[str, bytes]) -> str | None:
    """Git's name for what is there already, or of large files the SHA-256."""
    if path not in files:
        return None
    data = files[path]
    if path.endswith(LFS) and data:
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class _Routes(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *_):
        pass

    def answer(self, status: int, body=b"", **headers):
        if not isinstance(body, bytes):
            body, headers = json.dumps(body).encode(), {"Content-Type": "application/json", **headers}
        self.send_response(status)
        headers.setdefault("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status: int, code: str, message: str):
        self.answer(status, {"error": message}, X_Error_Code=code, X_Error_Message=message)

    def handle_any(self):
        path = unquote(urlsplit(self.path).path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        for word, what in self.server.fail.items():
            if word in path:
                if what == "hang":
                    time.sleep(60)
                    self.close_connection = True
                return self.answer(int(what) if what != "hang" else 500, {"error": "told to fail"})
        with self.server.lock:
            self.route(path.strip("/").split("/"), body)

    do_GET = do_HEAD = do_POST = do_PUT = handle_any

    @property
    def signed_in(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {self.server.token}"

    def route(self, parts: list[str], body: bytes):
        hub = self.server
        if parts[0] == "lfs":
            if self.command == "PUT":
                hub.objects[parts[1]] = body
            return self.answer(200, {})
        if parts[:2] == ["api", "validate-yaml"]:
            return self.answer(200, {"errors": [], "warnings": []})
        if self.headers.get("Authorization") and not self.signed_in:
            return self.answer(401, {"error": "Invalid credentials in Authorization header"})
        if parts[:2] == ["api", "whoami-v2"]:
            return self.answer(200, {"name": hub.user, "type": "user", "orgs": []} if self.signed_in else {})
        if parts == ["api", "repos", "create"]:
            return self.create(json.loads(body))
        if parts[0] == "api" and parts[1] == "models":
            repo, rest = "/".join(parts[2:4]), parts[4:]
        else:
            repo, rest = "/".join(parts[:2]).removesuffix(".git"), parts[2:]
        if repo not in hub.repos or hub.repos[repo]["private"] and not self.signed_in:
            return self.refuse(401 if not self.signed_in else 404, "RepoNotFound", "Repository not found")
        if self.command in ("POST", "PUT") and not self.signed_in:
            return self.answer(401, {"error": "sign in to write"})
        if self.command in ("POST", "PUT") and repo.split("/")[0] != hub.user:
            return self.answer(403, {"error": f"you do not own {repo}"})
        commits = hub.repos[repo]["commits"]
        kind = rest[0] if rest else "revision"
        if kind == "info":  # <repo>.git/info/lfs/objects/batch
            return self.batch(json.loads(body)["objects"])
        revision = rest[1] if len(rest) > 1 else "main"
        found = [c for c in commits if revision in ("main", c[0])]
        if not found:
            return self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        self.route_files(repo, kind, rest, *found[-1], body)

    def route_files(self, repo: str, kind: str, rest: list[str], sha: str, files: dict, body: bytes):
        """Answer a request for the files of a commit."""
        if kind == "preupload":
            asked = json.loads(body)
            modes = []
            for path in (file["path"] for file in asked["files"]):
                mode = {"path": path, "uploadMode": "lfs" if path.endswith(LFS) else "regular", "shouldIgnore": False}
                modes.append({**mode, "oid": oid_of(path, files)})
            return self.answer(200, {"files": modes})
        if kind == "commit":
            return self.commit(repo, [json.loads(line) for line in body.splitlines()])
        if kind == "revision":
            siblings = [{"rfilename": name} for name in sorted(files)]
            private = self.server.repos[repo]["private"]
            return self.answer(200, {"id": repo, "sha": sha, "private": private, "siblings": siblings, "tags": []})
        if kind == "tree":
            listed = [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for name, data in sorted(files.items())
            ]
            return self.answer(200, listed)
        if kind == "resolve":
            name = "/".join(rest[2:])
            if name not in files:
                return self.refuse(404, "EntryNotFound", f"{name} is not in {repo}")
            etag = f'"{hashlib.sha256(files[name]).hexdigest()}"'
            return self.answer(200, files[name], ETag=etag, X_Repo_Commit=sha, Accept_Ranges="none")
        return self.answer(404, {"error": f"no route {'/'.join(rest)} in {repo}"})

    def create(self, wanted: dict):
        if not self.signed_in:
            return self.answer(401, {"error": "sign in to create"})
        owner = wanted.get("organization") or self.server.user
        repo = f"{owner}/{wanted['name']}"
        if owner != self.server.user:
            return self.answer(403, {"error": f"you have no rights to create a model under {owner}"})
        if repo in self.server.repos:
            return self.answer(409, {"error": "You have this model repo", "url": f"{self.server.url}/{repo}"})
        private = wanted.get("private") or wanted.get("visibility") == "private"  # the latter in newer clients
        self.server.repos[repo] = {"private": bool(private), "commits": [("0" * 40, {})]}
        return self.answer(200, {"url": f"{self.server.url}/{repo}", "name": repo, "id": repo})

    def batch(self, objects: list[dict]):
        answers = [{"oid": item["oid"], "size": item["size"]} for item in objects]
        for answer in answers:
            if answer["oid"] not in self.server.objects:
                upload = {"href": f"{self.server.url}/lfs/{answer['oid']}", "header": {}}
                answer["actions"] = {"upload": upload}
        return self.answer(200, {"transfer": "basic", "objects": answers})

    def commit(self, repo: str, lines: list[dict]):
        files = dict(self.server.files(repo))
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.server.objects[value["oid"]]
            elif line["key"] == "deletedFile":
                files.pop(value["path"], None)
        commits = self.server.repos[repo]["commits"]
        sha = hashlib.sha1(f"{repo}{len(commits)}".encode()).hexdigest()
        commits.append((sha, files))
        url = f"{self.server.url}/{repo}/commit/{sha}"
        return self.answer(200, {"success": True, "commitOid": sha, "commitUrl": url, "hookOutput": ""})


# Runs what it is told, so that several tests share the seconds that an import takes. huggingface_hub reads its
# environment once, so each environment is a process.
WORKER = """
import io, json, sys
answers, sys.stdout = sys.stdout, sys.stderr
known = {}
for line in sys.stdin:
    code, known["given"] = json.loads(line)
    known["result"] = None
    try:
        exec(code, known)
        answer = {"result": known["result"]}
    except BaseException as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(answer, default=str), file=answers, flush=True)
"""


class Worker:
    """A process that runs code; an error in it is raised here as `RuntimeError`."""

    def __init__(self, **environment: str):
        kept = {name: value for name, value in os.environ.items() if name not in ("HF_TOKEN", "HF_HOME")}
        common = {"HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0", "OMP_NUM_THREADS": "1", "NO_PROXY": "127.0.0.1"}
        self.process = Process(WORKER, **{**kept, **common, "CUDA_VISIBLE_DEVICES": "", **environment})
        self.log = self.process.log

    def __call__(self, code: str, *given):
        self.process.stdin.write(json.dumps([code, given], default=str) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, self.log.read_text()[-3000:]
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["result"]

    def end(self):
        self.process.end()  # it has nothing left to write
