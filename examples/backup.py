"""A program without `async`: a workflow, its steps and the script that starts it are plain functions.

Shows `.wait()`, which says in sync code what `await` says in async code, and steps with keys of their own, so that
the order in which the files are listed does not matter.

    perdure worker examples/backup.py:app
    python examples/backup.py docs /tmp/docs-backup
"""

import shutil
import sys
from pathlib import Path

from perdure import App, Retry, step

app = App("sqlite:///backup.db")


@step
def list_files(directory: str) -> set[str]:
    root = Path(directory)
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


@step(retry=Retry(attempts=3, on=OSError))
def copy(source: str, target: str) -> int:
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy2(source, target)).stat().st_size


@app.workflow
def backup(source: str, target: str) -> int:
    total = 0
    for name in list_files(source).wait():
        total += copy.options(key=name)(f"{source}/{name}", f"{target}/{name}").wait()
    return total


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    source, target = (str(Path(argument).resolve()) for argument in sys.argv[1:3])
    run = backup.start(source, target).wait()
    print(f"run {run.id} has begun; waiting for a worker to do it")
    print(f"{run.result().wait():,} bytes copied")
