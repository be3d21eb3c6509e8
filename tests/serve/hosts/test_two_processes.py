"""Two processes of two devices: the tokens of one, whatever strangers send, and a clear end when
one is asked to stop, stops or is killed."""

import json
import re
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from malformed_hellos import send_malformed
from probe import wait_for
from several_processes import Group, Sizes, ask, plain_tokens, several_processes

from serve.hosts.messages import connect
from serve.pair.loading import LoadedPair

LONG = {"prompt": [5, 9, 2], "max_tokens": 250, "ignore_eos": True, "stream": True}
OPTIONS = [{"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.9}] * 2
ENDS_WITHIN_S = 30
NAMED_WITHIN_S = 15
MALFORMED = 1000


def wait_to_hear(group: Group, process: int, said: str, most_s: float) -> None:
    """Until the process has said it."""
    wait_for(lambda: said in group.said(process), most_s, lambda: group.said(process), 0.1)


def annoy(group: Group) -> None:
    """Send malformed messages with the key of the group."""
    dealer = connect(replace(group.hosts, process_id=1))
    send_malformed(dealer, group.hosts.calls_at, MALFORMED)
    dealer.context.destroy(linger=10_000)


def annoy_while_meeting(group: Group) -> None:
    wait_to_hear(group, 0, "waiting for the others", 200)  # Earlier messages would be dropped.
    annoy(group)
    wait_to_hear(group, 0, "sent something and is no process of ours", 200)


def check_host_memory(group: Group) -> None:
    """A prompt whose pages went to host memory has the same answer when they are loaded."""
    body = {"prompt": [*range(90)], "max_tokens": 24, "temperature": 0.0, "return_token_ids": True}
    before = ask(group, body)
    for other in range(4):
        ask(group, body | {"prompt": [other + 1] * 200})
    again = httpx.post(f"{group.url}/v1/completions", json=body, timeout=120).json()
    assert again["usage"]["prompt_tokens_details"]["cached_tokens_details"]["host"] > 0
    assert again["choices"][0]["token_ids"] == before


def check_tokens(group: Group, pair: LoadedPair) -> None:
    """Requests at the same time have the tokens of one process; some drafts were accepted."""
    shared = {"max_tokens": 24, "ignore_eos": True}
    bodies = [
        {"prompt": [3 + i, 40, 7 * i + 1], "seed": i, **shared, **chosen}
        for i, chosen in enumerate(OPTIONS)
    ]
    with ThreadPoolExecutor() as clients:
        asked = [body | {"return_token_ids": True} for body in bodies]
        served = list(clients.map(lambda body: ask(group, body), asked))
    assert served == plain_tokens(pair, bodies)
    metrics = httpx.get(f"{group.url}/metrics").text
    accepted = re.search(r"^vllm:spec_decode_num_accepted_tokens_total\S* (\d+)", metrics, re.M)
    assert accepted and int(accepted[1]) > 0, "speculation was on"


def stream(group: Group) -> tuple[int, list[str]]:
    """The status and the lines of a long answer; the last is "broken off" where it was."""
    lines, status = list[str](), 0
    try:
        with httpx.stream("POST", f"{group.url}/v1/completions", json=LONG, timeout=120) as answer:
            status = answer.status_code
            lines += [line for line in answer.iter_lines() if line]
    except httpx.RemoteProtocolError:
        lines.append("broken off")
    return status, lines


def check_end_without(group: Group, victim: int, how: signal.Signals) -> None:
    """While more requests than fit are in flight a process is killed or stopped. The survivor names
    it and ends. Process 0 answers every request first; those of a lost process 0 are broken off."""
    survivor, place = 1 - victim, r"127\.0\.0\.1" + (r":\d+" if victim == 0 else "")
    with ThreadPoolExecutor() as clients:
        asked = [clients.submit(stream, group) for _ in range(4)]
        time.sleep(1)
        group.processes[victim].send_signal(how)
        began = time.monotonic()
        wait_to_hear(group, survivor, "error: lost process", NAMED_WITHIN_S)
        named = time.monotonic() - began
        status = group.processes[survivor].wait(ENDS_WITHIN_S - named)
        print(
            f"{how.name} of process {victim}: named after {named:.1f} s, the other ended after "
            f"{time.monotonic() - began:.1f} s"
        )
        group.processes[victim].kill()  # A stopped process holds its clients up.
        endings = [client.result(5) for client in asked]
    assert status == 1
    lost = rf"lost process {victim} \({place}\): its connection broke"
    assert re.search(lost, group.said(survivor))
    for code, lines in endings:
        if victim == 0:
            assert lines[-1] == "broken off"
        else:
            assert code == 503 or lines[-1] == "data: [DONE]"
            error = lines[-1] if code == 503 else lines[-2]
            assert "lost process 1 (127.0.0.1)" in error


Start = Callable[..., Group]


@pytest.fixture
def start(target_directory: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts two processes; arguments are those of `several_processes`."""
    with ExitStack() as stack:
        yield lambda *given: stack.enter_context(
            several_processes(tmp_path, target_directory, *given)
        )


def test_two_processes_serve_the_tokens_of_one_and_end_when_the_second_stops(
    start: Start, pair: LoadedPair
) -> None:
    """The tokens under the tie rule; none of these requests has a tie. Malformed messages change
    nothing, neither while the two meet nor while they serve."""
    group = start(Sizes(), annoy_while_meeting)
    with ThreadPoolExecutor() as clients:
        annoying = clients.submit(annoy, group)
        check_tokens(group, pair)
        annoying.result()
    check_host_memory(group)
    check_end_without(group, 1, signal.SIGSTOP)


@pytest.mark.long
@pytest.mark.parametrize(
    ("victim", "how", "context_parts"),
    [(1, signal.SIGKILL, 4), (0, signal.SIGKILL, 1), (0, signal.SIGSTOP, 4)],
)
def test_a_process_ends_when_the_other_does(
    start: Start, victim: int, how: signal.Signals, context_parts: int
) -> None:
    check_end_without(start(Sizes(context_parts=context_parts)), victim, how)


@pytest.mark.long
def test_two_replicas_serve_the_tokens_of_one_and_a_signal_ends_both_when_requests_are_done(
    start: Start, pair: LoadedPair
) -> None:
    group = start(Sizes(devices=1, context_parts=1, replicas=2))
    check_tokens(group, pair)
    url, body = f"{group.url}/v1/completions", LONG | {"max_tokens": 40}
    with httpx.stream("POST", url, json=body, timeout=120) as answer:
        lines = (line for line in answer.iter_lines() if line)
        found = [next(lines)]
        group.processes[1].send_signal(signal.SIGTERM)
        found += lines
    assert found[-1] == "data: [DONE]"
    last = json.loads(found[-2].removeprefix("data: "))
    assert last["choices"][0]["finish_reason"] == "length"
    assert [process.wait(ENDS_WITHIN_S) for process in group.processes] == [0, 0]
    assert "error: " not in group.said(0) + group.said(1)
