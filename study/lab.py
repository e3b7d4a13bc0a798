"""Two simulated engines in one nginx, the router in another."""

from __future__ import annotations

import ctypes
import signal
import socket
import subprocess
import time
from pathlib import Path

PROFILE = "l20-27b"

TEMP_PATHS = "".join(f"    {name}_temp_path {name};\n" for name in (
    "client_body", "proxy", "fastcgi", "uwsgi", "scgi"))

FRAME = """\
load_module {module};
worker_processes 1;
daemon off;
pid nginx.pid;
error_log error.log notice;
events {{ worker_connections 4096; }}
http {{
{temp}    access_log off;
    client_body_buffer_size 1m;
    client_max_body_size 64m;
    keepalive_requests 1000000;
{servers}}}
"""

ENGINE = """\
    server {{
        listen 127.0.0.1:{port};
        location / {{
            engine_sim profile={profile} name={name} speed={speed};
        }}
    }}
"""

ROUTER = """\
    aibrix_zone study 16m;
    upstream engines {{
        zone engines 64k;
        aibrix;
        aibrix_block_size 128;
        aibrix_imbalance 16;
        aibrix_stddev_factor 2;
        server 127.0.0.1:{a} max_fails=0;
        server 127.0.0.1:{b} max_fails=0;
        keepalive 64;
    }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://engines;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_read_timeout 600s;
            proxy_next_upstream off;
        }}
        location = /metrics {{ aibrix_metrics; }}
    }}
"""


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def die_with_parent() -> None:
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


class Process:
    """A child with a folder of its own; Ctrl-C does not reach it."""

    def __init__(self, folder: Path, command: list[str]) -> None:
        self.folder = folder
        self._name = command[0]
        self._output = (folder / "output").open("wb")
        self._child = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL,
            stdout=self._output, stderr=subprocess.STDOUT,
            start_new_session=True, preexec_fn=die_with_parent)

    def wait_port(self, port: int, limit: float = 10) -> None:
        end = time.monotonic() + limit
        while True:
            with socket.socket() as s:
                if s.connect_ex(("127.0.0.1", port)) == 0:
                    return
            if self._child.poll() is not None or time.monotonic() > end:
                self.stop()
                raise RuntimeError(
                    f"{self._name} does not come up:\n"
                    + (self.folder / "output").read_text()[-2000:])
            time.sleep(0.02)

    def stop(self) -> None:
        self._child.terminate()
        try:
            self._child.wait(10)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._output.close()


class Lab:
    """Starts both on free ports; stop() ends them."""

    def __init__(self, build: Path, work: Path, speed: float) -> None:
        a, b, router = free_ports(3)
        self.engine_urls = [f"http://127.0.0.1:{port}" for port in (a, b)]
        self.router_url = f"http://127.0.0.1:{router}"
        engines = "".join(
            ENGINE.format(port=port, name=name, speed=f"{speed:g}",
                          profile=PROFILE)
            for name, port in (("A", a), ("B", b)))
        self.configuration = {
            "engines": FRAME.format(
                module=build / "ngx_http_engine_sim_module.so",
                temp=TEMP_PATHS, servers=engines),
            "router": FRAME.format(
                module=build / "ngx_http_aibrix_module.so", temp=TEMP_PATHS,
                servers=ROUTER.format(a=a, b=b, port=router)),
        }
        self._processes: list[Process] = []
        for name, ports in (("engines", (a, b)), ("router", (router,))):
            self._start(work / name, self.configuration[name], ports)

    def _start(self, folder: Path, conf: str, ports: tuple[int, ...]) -> None:
        folder.mkdir(parents=True)
        (folder / "nginx.conf").write_text(conf)
        process = Process(folder, [
            "nginx", "-p", f"{folder}/", "-e", "error.log",
            "-c", f"{folder}/nginx.conf"])
        self._processes.append(process)
        try:
            for port in ports:
                process.wait_port(port)
        except RuntimeError:
            self.stop()
            raise

    def stop(self) -> None:
        while self._processes:
            self._processes.pop().stop()
