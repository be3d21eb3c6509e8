"""Two processes of two devices: the tokens of one, whatever strangers send, and a clear end when
one is asked to stop, stops or is killed."""

import json
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest
from malformed_hellos import send_malformed
from several_processes import Group, Sizes, ask, plain_tokens, several_processes

from serve.hosts.messages import connect
from serve.pair.loading import LoadedPair

LONG = {"prompt": [5, 9, 2], "max_tokens": 250, "ignore_eos": True, "stream": True}
OPTIONS = [{"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.9}] * 2
ENDS_WITHIN_S = 30
NAMED_WITHIN_S = 15
MALFORMED = 1000


def annoy(group: Group) -> None:
    """Sends what no process of ours sends, from somebody with the key."""
    dealer = connect(replace(group.hosts, process_id=1))
    send_malformed(dealer, group.hosts.calls_at, MALFORMED)
    dealer.context.destroy(linger=10_000)


def annoy_while_meeting(group: Group) -> None:
    wait_to_hear(group, "waiting for the others")  # What is sent to nobody is dropped in time.
    annoy(group)
    wait_to_hear(group, "sent something and is no process of ours")


def wait_to_hear(group: Group, said: str) -> None:
    """Until process 0 has said it; it takes long to start beside other tests."""
    deadline = time.monotonic() + 200
    while said not in group.said(0):
        assert group.processes[0].poll() is None and time.monotonic() < deadline, group.said(0)
        time.sleep(0.1)


def came_back(group: Group) -> bool:
    """Whether a prompt whose pages went to the host has the same answer when they are loaded."""
    body = {"prompt": [*range(90)], "max_tokens": 24, "temperature": 0.0, "return_token_ids": True}
    before = ask(group, body)
    for other in range(4):
        ask(group, body | {"prompt": [other + 1] * 200})
    again = httpx.post(f"{group.url}/v1/completions", json=body, timeout=120).json()
    details = again["usage"]["prompt_tokens_details"]["cached_tokens_details"]
    return details["host"] > 0 and again["choices"][0]["token_ids"] == before


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


@dataclass
class Ending:
    """What clients had when a process was killed: when they had it, the status, the last lines."""

    seconds: float
    status: int
    lines: list[str]


def stream(group: Group) -> Ending:
    began, lines, status = time.monotonic(), [], 0
    try:
        with httpx.stream("POST", f"{group.url}/v1/completions", json=LONG, timeout=120) as answer:
            status = answer.status_code
            lines += [line for line in answer.iter_lines() if line]
    except httpx.RemoteProtocolError:
        lines.append("broken off")
    return Ending(time.monotonic() - began, status, lines)


def end_under_way(group: Group, victim: int, how: signal.Signals) -> tuple[list[Ending], str, int]:
    """Kills or stops one while more requests than fit are under way; how they ended, and the
    survivor."""
    survivor = group.processes[1 - victim]
    with ThreadPoolExecutor() as clients:
        under_way = [clients.submit(stream, group) for _ in range(4)]
        time.sleep(1)
        group.processes[victim].send_signal(how)
        began = time.monotonic()
        while "error: lost process" not in group.said(1 - victim):
            assert time.monotonic() < began + NAMED_WITHIN_S, "it was not missed"
            time.sleep(0.1)
        named = time.monotonic()
        status = survivor.wait(began + ENDS_WITHIN_S - named)
        ended = time.monotonic()
        print(
            f"{how.name} of process {victim}: named after {named - began:.1f} s, the other "
            f"ended after {ended - began:.1f} s"
        )
        group.processes[victim].kill()  # Who is stopped holds its clients up.
        return [client.result(5) for client in under_way], group.said(1 - victim), status


@pytest.fixture
def group(
    request: pytest.FixtureRequest, target_directory: Path, tmp_path: Path
) -> Iterator[Group]:
    """Of contexts that all four devices divide, unless a test says otherwise."""
    sizes = getattr(request, "param", Sizes())
    with several_processes(tmp_path, target_directory, sizes) as running:
        yield running


@pytest.fixture
def annoyed(target_directory: Path, tmp_path: Path) -> Iterator[Group]:
    """Met while somebody sent nonsense."""
    with several_processes(tmp_path, target_directory, Sizes(), annoy_while_meeting) as running:
        yield running


def test_two_processes_serve_the_tokens_of_one_and_end_when_the_second_stops(
    annoyed: Group, pair: LoadedPair
) -> None:
    """The tokens under the tie rule; none of these requests has a tie. Malformed messages change
    nothing, neither while the two meet nor while they serve."""
    group = annoyed
    with ThreadPoolExecutor() as clients:
        annoying = clients.submit(annoy, group)
        check_tokens(group, pair)
        annoying.result()
    assert came_back(group), "pages went to host memory and came back with other tokens"
    check_end_without_process_1(group, signal.SIGSTOP)


def check_end_without_process_1(group: Group, how: signal.Signals) -> None:
    """Process 0 names it, answers everybody and ends."""
    endings, said, status = end_under_way(group, 1, how)
    assert status == 1
    assert re.search(r"lost process 1 \(127\.0\.0\.1\): its connection broke", said)
    for ending in endings:
        assert ending.status == 503 or ending.lines[-1] == "data: [DONE]"
        error = ending.lines[-1] if ending.status == 503 else ending.lines[-2]
        assert "lost process 1 (127.0.0.1)" in error


@pytest.mark.long
def test_process_0_ends_when_the_second_is_killed(group: Group) -> None:
    check_end_without_process_1(group, signal.SIGKILL)


@pytest.mark.long
@pytest.mark.parametrize("group", [Sizes(context_parts=1)], indirect=True)
def test_the_second_process_ends_when_the_first_is_killed(group: Group) -> None:
    check_end_without_process_0(group, signal.SIGKILL)


@pytest.mark.long
def test_the_second_process_ends_when_the_first_stops(group: Group) -> None:
    check_end_without_process_0(group, signal.SIGSTOP)


def check_end_without_process_0(group: Group, how: signal.Signals) -> None:
    """Process 1 names it and ends; clients are broken off."""
    endings, said, status = end_under_way(group, 0, how)
    assert status == 1
    assert re.search(r"lost process 0 \(127\.0\.0\.1:\d+\): its connection broke", said)
    assert all(ending.lines[-1] == "broken off" for ending in endings)
    assert max(ending.seconds for ending in endings) < ENDS_WITHIN_S


@pytest.mark.long
@pytest.mark.parametrize("group", [Sizes(devices=1, context_parts=1, replicas=2)], indirect=True)
def test_two_replicas_serve_the_tokens_of_one_and_a_signal_ends_both_when_requests_are_done(
    group: Group, pair: LoadedPair
) -> None:
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
