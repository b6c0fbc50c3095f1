"""The systems that are compared, and the environment that each of them runs in."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("PERDURE_COMPARE_CACHE") or HERE / ".cache").resolve()
"""Where the environments are. Git ignores it."""

REDIS, POSTGRES, SQLITE = "redis", "postgres", "sqlite"
STORES = (REDIS, POSTGRES, SQLITE)


@dataclass(frozen=True)
class System:
    """One column of a table."""

    name: str
    store: str
    script: str
    environment: str = ""
    """Of those below; Perdure, and floors that need no more, run in the one that runs the comparison."""
    variant: str = ""
    """What its script does otherwise than for the system of its environment's name."""

    @property
    def key(self) -> str:
        return f"{self.name}/{self.store}"


@dataclass(frozen=True)
class Environment:
    """What is installed for a peer."""

    packages: tuple[str, ...]
    python: tuple[int, int] = (3, 11)
    """The oldest that it runs on."""
    node: bool = False


ENVIRONMENTS = {
    "absurd": Environment(("absurd-sdk", "absurdctl", "uvloop")),
    "ardiq": Environment(("ardiq", "uvloop"), python=(3, 12)),
    "arq": Environment(("arq", "hiredis", "uvloop")),
    "awa": Environment(("awa-pg", "uvloop")),
    "blitzq": Environment(("blitzq", "hiredis", "uvloop"), python=(3, 12)),
    "bullmq": Environment(("bullmq", "ioredis"), node=True),
    "cairnq": Environment(("cairnq[postgres]", "uvloop")),
    "celery": Environment(("celery[redis]", "hiredis")),
    "chancy": Environment(("chancy", "uvloop")),
    "dbos": Environment(("dbos", "uvloop")),
    "dramatiq": Environment(("dramatiq[redis]", "hiredis")),
    "dura": Environment(("dura",), python=(3, 13)),
    "duroxide": Environment(("duroxide", "uvloop")),
    "floor": Environment(("hiredis", "uvloop")),
    "huey": Environment(("huey", "redis", "hiredis")),
    "oban": Environment(("oban", "uvloop"), python=(3, 12)),
    "pgqueuer": Environment(("pgqueuer[asyncpg]", "uvloop")),
    "pgtask": Environment(("pgtask", "uvloop")),
    "plot": Environment(("matplotlib",)),
    "procrastinate": Environment(("procrastinate", "uvloop")),
    "rq": Environment(("rq", "hiredis")),
    "saq": Environment(("saq[redis,hiredis,postgres]", "uvloop")),
    "streaq": Environment(("streaq", "uvloop")),
    "taskiq": Environment(("taskiq", "taskiq-redis", "hiredis", "uvloop")),
}


def _peer(name: str, store: str, environment: str, ending: str = "py") -> System:
    return System(name, store, f"{environment}_peer.{ending}", environment)


SYSTEMS = (
    System("Perdure", REDIS, "perdure_peer.py"),
    System("floor", REDIS, "floor_redis.py", "floor"),
    _peer("BullMQ", REDIS, "bullmq", "mjs"),
    _peer("blitzq", REDIS, "blitzq"),
    _peer("ardiq", REDIS, "ardiq"),
    _peer("Celery", REDIS, "celery"),
    _peer("Dramatiq", REDIS, "dramatiq"),
    _peer("arq", REDIS, "arq"),
    _peer("SAQ", REDIS, "saq"),
    _peer("taskiq", REDIS, "taskiq"),
    _peer("streaQ", REDIS, "streaq"),
    _peer("RQ", REDIS, "rq"),
    _peer("Huey", REDIS, "huey"),
    System("Perdure", POSTGRES, "perdure_peer.py"),
    System("floor", POSTGRES, "floor_postgres.py"),
    _peer("DBOS", POSTGRES, "dbos"),
    _peer("Absurd", POSTGRES, "absurd"),
    _peer("pgtask", POSTGRES, "pgtask"),
    _peer("Procrastinate", POSTGRES, "procrastinate"),
    _peer("PgQueuer", POSTGRES, "pgqueuer"),
    System("PgQueuer uncapped", POSTGRES, "pgqueuer_peer.py", "pgqueuer", "uncapped"),
    _peer("Oban", POSTGRES, "oban"),
    _peer("Chancy", POSTGRES, "chancy"),
    _peer("awa", POSTGRES, "awa"),
    _peer("cairnq", POSTGRES, "cairnq"),
    _peer("duroxide", POSTGRES, "duroxide"),
    _peer("SAQ", POSTGRES, "saq"),
    System("Perdure", SQLITE, "perdure_peer.py"),
    System("Perdure NORMAL", SQLITE, "perdure_peer.py", variant="normal"),
    System("floor", SQLITE, "floor_sqlite.py"),
    _peer("DBOS", SQLITE, "dbos"),
    _peer("dura", SQLITE, "dura"),
    _peer("cairnq", SQLITE, "cairnq"),
    _peer("duroxide", SQLITE, "duroxide"),
    _peer("Huey", SQLITE, "huey"),
)


def command(system: System) -> list[str]:
    """What runs its script. `RuntimeError` says why it can't be run."""
    script = HERE / "peers" / system.script
    if not script.exists():
        raise RuntimeError("no script yet")
    if not system.environment:
        return [sys.executable, str(script)]
    folder = CACHE / "envs" / system.environment
    failure = folder / "failed"
    if failure.exists():
        raise RuntimeError(f"could not be installed: {failure.read_text(encoding='utf-8').strip()}")
    if ENVIRONMENTS[system.environment].node:
        if not (folder / "node_modules").exists():
            raise RuntimeError("not installed: run `install`")
        node = shutil.which("node")
        if node is None:
            raise RuntimeError("could not be installed: there is no Node.js")
        return [node, str(script)]
    python = folder / "bin" / "python"
    if not python.exists():
        raise RuntimeError("not installed: run `install`")
    return [str(python), str(script)]


def environment(system: System) -> dict[str, str]:
    """The variables of its processes: for Perdure the package in this repository, for Node where its modules are."""
    if not system.environment:
        paths = [str(HERE.parents[1] / "src"), os.environ.get("PYTHONPATH", "")]
        return {"PYTHONPATH": os.pathsep.join(paths), "COMPARE_VARIANT": system.variant}
    if ENVIRONMENTS[system.environment].node:
        return {"COMPARE_MODULES": str(CACHE / "envs" / system.environment)}
    return {"COMPARE_VARIANT": system.variant}


def install(names: list[str]) -> dict[str, str]:
    """Makes the environments; returns why those failed that did. Ones that are there are left alone."""
    failed: dict[str, str] = {}
    for name in names:
        folder = CACHE / "envs" / name
        if (folder / "done").exists():
            continue
        print(f"installing {name}", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            _install(ENVIRONMENTS[name], folder)
        except (OSError, RuntimeError) as error:
            failed[name] = str(error)
            (folder / "failed").write_text(failed[name], encoding="utf-8")
        else:
            (folder / "done").touch()
    return failed


def _install(wanted: Environment, folder: Path) -> None:
    if wanted.node:
        (folder / "package.json").write_text(json.dumps({"private": True}), encoding="utf-8")
        _call(["npm", "install", "--no-audit", "--no-fund", *wanted.packages], folder)
        return
    _call([_python(wanted.python), "-m", "venv", "."], folder)
    _call(["bin/python", "-m", "pip", "install", "-q", "--disable-pip-version-check", *wanted.packages], folder)


def _call(words: list[str], folder: Path) -> None:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "ERROR" in line] or done.stderr.splitlines() or ["?"]
        raise RuntimeError(f"{words[0]}: {lines[-1]}")


def _python(oldest: tuple[int, int]) -> str:
    """The interpreter that runs this, or where it is too old the oldest newer one that can be found."""
    if sys.version_info[:2] >= oldest:
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    for minor in range(oldest[1], oldest[1] + 4):
        found = [shutil.which(f"python3.{minor}"), *sorted(map(str, pyenv.glob(f"versions/3.{minor}.*/bin/python")))]
        for each in found:
            # A shim may be there for a version that is not in use.
            if each and subprocess.run([each, "-c", ""], capture_output=True, check=False).returncode == 0:
                return each
    raise RuntimeError(f"needs Python {oldest[0]}.{oldest[1]}, which is not there")
