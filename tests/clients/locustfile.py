"""What each locust user does: completions and chats, streamed and whole."""

import json

from locust import HttpUser, task

MODEL = "eagle3-demo"


class Reader(HttpUser):
    """Asks again as soon as it has read an answer to its end."""

    @task
    def completion(self) -> None:
        body = {"model": MODEL, "prompt": "What is 95 + 61?", "max_tokens": 16}
        with self.client.post("/v1/completions", json=body, catch_response=True) as answer:
            if answer.json()["usage"]["completion_tokens"] < 1:
                answer.failure("no token")

    @task
    def streamed_chat(self) -> None:
        body = {"model": MODEL, "stream": True, "max_tokens": 32}
        body["messages"] = [{"role": "user", "content": "Add 12 and 30."}]
        name = "/v1/chat/completions"
        with self.client.post(name, json=body, stream=True, catch_response=True) as answer:
            events = [line for line in answer.iter_lines() if line]
            if events[-1] != b"data: [DONE]":
                answer.failure("the stream has no end")
            for event in events[:-1]:
                json.loads(event.removeprefix(b"data: "))
