"""lm_eval's accuracy on the embedded pair's held-out arithmetic, without drafts and with 3 and 6.

PYTHONPATH=tests python -m clients.accuracy [PROGRAMS [URL]]
"""

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from clients.client import Client
from clients.lm_eval_client import CLIENTS, MODES, accuracy, command, read_samples
from clients.runs import demo_server, run_client

PROMPTS = 40
DRAFTS = (0, 3, 6)
FLAGS = ("--speculative-config", json.dumps({"num_speculative_tokens": max(DRAFTS)}))


def main(programs: Path, url: str | None) -> int:
    """Prints the accuracies; returns 1 when they, or the answers, differ."""
    answers = []
    with TemporaryDirectory() as name, demo_server(Path(name), *FLAGS, url=url) as server:
        for drafts in DRAFTS:
            results = Path(name) / f"{drafts}"
            run = run_client(_client(drafts), server, programs, results)
            assert run.good, (results / "log").read_text()
            samples = read_samples(results)
            answers.append({sample["doc_id"]: sample["resps"] for sample in samples})
            same = sum(answers[0][i] == answer for i, answer in answers[-1].items())
            line = f"k = {drafts}: accuracy {accuracy(results):.3f}"
            print(f"{line}, {same} of {len(samples)} answers as without drafts", flush=True)
    return 0 if all(found == answers[0] for found in answers) else 1


def _client(drafts: int) -> Client:
    """Says in every request how many drafts a round may have; the server's are the most of them."""
    asked = json.dumps({"speculative": {"num_tokens": drafts}})
    ask = partial(command, *MODES["generation"], prompts=PROMPTS)
    return replace(CLIENTS[0], command=lambda s, results: [*ask(s, results), "--gen_kwargs", asked])


if __name__ == "__main__":
    given = sys.argv[1:]
    home = Path(given[0]) if given else Path(sys.executable).parent
    sys.exit(main(home, given[1] if len(given) > 1 else None))
