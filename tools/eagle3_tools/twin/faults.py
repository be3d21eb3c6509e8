"""Let an emulated device fail while eagle3-serve answers, and check what clients and operators see.

python -m eagle3_tools.twin -n 1 -- python -m eagle3_tools.twin.faults. Each fault must end the
request with 503 and a reason, and the server with a status other than 0, within the watchdog's
time. Allocations that fail may end one request alone, with an error of its own. A server whose
pools do not fit ends at its start, with one error.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from eagle3_tools.bench.load.server_process import serving
from eagle3_tools.walk.parts import CHAT, GREEDY, QUESTION
from eagle3_tools.walk.place import SMALL, Place

WATCHDOG_S = 30.0
ROOM_S = 30.0
"""Time beyond the watchdog's: its poll, the answer, and the end of the process."""
START = "start"
"""A pool that is larger than the device's memory."""
FAULTS = START, "hang", "refuse", "fail", "memory"
FLAGS = ("--demo", "--max-num-seqs", "1", *SMALL, "--watchdog-timeout", f"{WATCHDOG_S:g}")
TOO_MANY_PAGES = ("--num-gpu-blocks-override", "2000000")


def main() -> int:
    """Print a line of JSON for each fault; return 1 if one of them was not seen."""
    holds = True
    with tempfile.TemporaryDirectory() as folder:
        for fault in sys.argv[1:] or FAULTS:
            line = _refused(Path(folder)) if fault == START else _seen(fault, Path(folder))
            print(json.dumps(line), flush=True)
            holds &= line["holds"]
    return 0 if holds else 1


def _refused(folder: Path) -> dict[str, Any]:
    """Return how a server ends whose pools do not fit: before it is ready, with one error."""
    log = folder / "start.log"
    try:
        with serving((*FLAGS, *TOO_MANY_PAGES), log):
            said = "it is ready"
    except OSError as error:
        said = str(error)
    last = log.read_text(errors="replace").strip().splitlines()[-1:]
    holds = "status 2" in said and "is too small" in "".join(last)
    return {"fault": START, "holds": holds, "answer": said, "log": last}


def _seen(fault: str, folder: Path) -> dict[str, Any]:
    """Return the status and the reason that the client gets, and the server's exit status."""
    begin, log = folder / fault, folder / f"{fault}.log"
    os.environ.update(TWIN_FAULT=fault, TWIN_FAULT_FILE=str(begin))
    with serving(FLAGS, log) as (process, url):
        place = Place(folder, WATCHDOG_S + ROOM_S, url)
        begin.touch()
        body = {"messages": [{"role": "user", "content": QUESTION}], **GREEDY}
        try:
            said = f"answered: {place.post(CHAT, body)['choices'][0]['message']['content']}"
        except OSError as error:
            said = str(error)
        seconds = time.monotonic() - place.started
        try:
            status: int | None = process.wait(ROOM_S)
        except subprocess.TimeoutExpired:
            status = None
    holds = "503" in said and bool(status)
    return {"fault": fault, "holds": holds, "seconds": round(seconds, 1), "answer": said} | {
        "status": status,
        "log": log.read_text(errors="replace").strip().splitlines()[-3:],
    }


if __name__ == "__main__":
    sys.exit(main())
