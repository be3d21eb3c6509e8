"""Locust users: each sends completions and chats, streamed and whole, then leaves."""

import json

import gevent
from locust import HttpUser, task
from locust.exception import StopUser

MODEL = "eagle3-demo"
USERS, ROUNDS = 4, 6


class Reader(HttpUser):
    """Asks again as soon as it has read an answer to its end; the last one ends the run."""

    reading = USERS
    rounds = 0

    @task
    def completion_and_chat(self) -> None:
        if self.rounds == ROUNDS:
            raise StopUser()
        self.rounds += 1
        self._complete()
        self._chat()

    def on_stop(self) -> None:
        Reader.reading -= 1
        runner = self.environment.runner
        if runner and Reader.reading == 0:
            gevent.spawn(runner.quit)

    def _complete(self) -> None:
        body = {"model": MODEL, "prompt": "What is 95 + 61?", "max_tokens": 16}
        with self.client.post("/v1/completions", json=body, catch_response=True) as answer:
            if answer.json()["usage"]["completion_tokens"] < 1:
                answer.failure("no token")

    def _chat(self) -> None:
        body = {"model": MODEL, "stream": True, "max_tokens": 32}
        body["messages"] = [{"role": "user", "content": "Add 12 and 30."}]
        name = "/v1/chat/completions"
        with self.client.post(name, json=body, stream=True, catch_response=True) as answer:
            events = [line for line in answer.iter_lines() if line]
            if events[-1] != b"data: [DONE]":
                answer.failure("the stream has no end")
            for event in events[:-1]:
                json.loads(event.removeprefix(b"data: "))
