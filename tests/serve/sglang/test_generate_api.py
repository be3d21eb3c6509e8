"""POST /generate as SGLang's clients use it."""

from typing import Any

import pytest
from fake_engine import FakeEngine, expected_answer
from fake_server import Served

from eagle3_jax.engine import Request

PATH = "/generate"


def ask(server: Served, sampling: object = None, **body: object) -> Any:
    return server.ask(PATH, sampling_params=sampling, **body)


@pytest.mark.parametrize("prompt", [{"text": "abc"}, {"input_ids": [97, 98, 99]}])
def test_a_prompt_gives_one_object(fake: Served, prompt: dict[str, Any]) -> None:
    answer = ask(fake, {"max_new_tokens": 9, "sampling_seed": 5}, rid="mine", **prompt)
    assert answer["text"] == expected_answer("abc", 5, 9)
    assert bytes(answer["output_ids"]).decode() == answer["text"]
    assert answer["meta_info"] == {
        "id": "mine",
        "finish_reason": {"type": "length", "length": 9},
        "prompt_tokens": 3,
        "completion_tokens": 9,
        "cached_tokens": 0,
        "cached_tokens_details": {"device": 0, "host": 0, "storage": 0},
        "seed": 5,
        "spec_accept_length": 9 / 5,
        "spec_accept_rate": 5 / 15,
        "spec_verify_ct": 5,
        "spec_num_correct_drafts": 5,
        "spec_num_proposed_drafts": 15,
    }


@pytest.mark.parametrize("batch", [{"text": ["ab", "c"]}, {"input_ids": [[97, 98], [99]]}])
def test_a_batch_gives_a_list_in_its_order(fake: Served, batch: dict[str, Any]) -> None:
    sampling = [{"max_new_tokens": 4, "sampling_seed": 1}, {}]
    first, second = ask(fake, sampling, rid=["x", "y"], **batch)
    assert first["text"] == expected_answer("ab", 1, 4)
    assert (first["meta_info"]["id"], second["meta_info"]["id"]) == ("x", "y")
    assert second["meta_info"]["completion_tokens"] == 128, "the default"
    assert [len(each["text"]) for each in ask(fake, {"max_new_tokens": 3}, **batch)] == [3, 3]


def test_n_choices_and_batches_of_one_are_lists(fake: Served) -> None:
    for prompt in ("ab", ["ab"]):
        answers = ask(fake, {"max_new_tokens": 4, "n": 2, "sampling_seed": 7}, text=prompt)
        assert [a["text"] for a in answers] == [expected_answer("ab", 7 + i, 4) for i in range(2)]
    assert len(ask(fake, {"max_new_tokens": 1}, text=["ab"])) == 1


def test_a_stream_holds_all_there_is_so_far(fake: Served) -> None:
    body = {"text": "abc", "sampling_params": {"max_new_tokens": 9, "sampling_seed": 5}}
    found, whole = fake.events(PATH, **body), expected_answer("abc", 5, 9)
    assert len(found) > 1 and found[0]["text"]
    for event in found:
        assert whole.startswith(event["text"]) and "index" not in event
        assert event["meta_info"]["completion_tokens"] == len(event["text"])
        assert len(event["output_ids"]) == len(event["text"])
    reasons = [event["meta_info"]["finish_reason"] for event in found]
    assert reasons == [None] * (len(found) - 1) + [{"type": "length", "length": 9}]
    assert found[-1]["text"] == whole


def test_a_streamed_batch_says_which_prompt_each_event_is_of(fake: Served) -> None:
    body = {"text": ["ab", "c"], "sampling_params": {"max_new_tokens": 5, "sampling_seed": 5}}
    last = {event["index"]: event["text"] for event in fake.events(PATH, **body)}
    assert last == {0: expected_answer("ab", 5, 5), 1: expected_answer("c", 5, 5)}


def test_a_stop_string_is_what_matched(fake: Served) -> None:
    stop = expected_answer("abc", 5, 9)[4]
    sampling = {"max_new_tokens": 9, "sampling_seed": 5, "stop": stop}
    reason = ask(fake, sampling, text="abc")["meta_info"]["finish_reason"]
    assert reason == {"type": "stop", "matched": stop}


def test_options_of_sglang_reach_the_engine(fake: Served, seen: list[Request]) -> None:
    """Those that are SamplingParams under another name; test_option_table has the others."""
    sampling = {"min_new_tokens": 2, "max_new_tokens": 4, "no_stop_trim": True}
    sampling |= {"logit_bias": {"5": 1.0}, "spaces_between_special_tokens": True}
    ask(fake, sampling, text="abc", lora_path=None, return_hidden_states=False, nonsense=1)
    found = seen[0].sampling
    assert (found.min_tokens, found.max_tokens) == (2, 4)
    assert found.include_stop_str_in_output and found.logit_bias == ((5, 1.0),)


@pytest.mark.parametrize(
    "body, naming",
    [
        ({}, "one of text and input_ids"),
        ({"text": "a", "input_ids": [1]}, "one of text and input_ids"),
        ({"text": []}, "there is no prompt"),
        ({"text": ""}, "no tokens"),
        ({"input_ids": []}, "there is no prompt"),
        ({"input_ids": [5, 128]}, "token ids"),
        ({"text": "a" * 256}, "context length"),
        ({"text": ["a", "b"], "rid": ["x"]}, "rid must have 2 entries"),
        ({"text": ["a", "b"], "sampling_params": [{}, {}, {}]}, "sampling_params must have 2"),
        ({"text": "a", "sampling_params": {"temperature": -1}}, "temperature"),
        ({"text": "a", "sampling_params": {"max_new_tokens": 0}}, "max_tokens"),
        ({"text": "a", "sampling_params": {"stop_regex": "x"}}, "stop_regex"),
        ({"text": "a", "sampling_params": {"json_schema": "{}", "regex": "a"}}, "only one of"),
        ({"text": "a", "sampling_params": {"regex": "a"}}, "grammar"),
        ({"text": "a", "image_data": ["a.png"]}, "image_data"),
        ({"text": "a", "lora_path": "x"}, "lora_path"),
        ({"text": "a", "top_logprobs_num": 99}, "top_logprobs_num"),
    ],
)
def test_what_can_not_be_done_is_400_that_names_it(
    fake: Served, body: dict[str, Any], naming: str
) -> None:
    assert naming in fake.refusal(PATH, body)["message"]


def test_synthetic_acceptance_is_marked(serve) -> None:
    server = serve(FakeEngine(synthetic_acceptance_length=2.5))
    assert ask(server, text="a")["synthetic_acceptance_length"] == 2.5
    assert server.events(PATH, text="a")[0]["synthetic_acceptance_length"] == 2.5


@pytest.mark.xdist_group("served pair")
@pytest.mark.parametrize("start", [0, 3])
def test_log_probabilities_are_those_of_completions(server: Served, start: int) -> None:
    prompt, sampling = list(range(40, 60)), {"temperature": 0.8, "max_new_tokens": 6}
    body = {"input_ids": prompt, "return_logprob": True, "top_logprobs_num": 2}
    body |= {"logprob_start_len": start, "return_text_in_logprobs": True}
    answer = ask(server, sampling | {"sampling_seed": 5}, **body)
    meta, ids = answer["meta_info"], answer["output_ids"]
    plain = {"prompt": prompt, "temperature": 0.8, "max_tokens": 6, "seed": 5}
    plain |= {"echo": True, "logprobs": 2, "return_token_ids": True}
    choice = server.ask("/v1/completions", **plain)["choices"][0]
    logprobs = choice["logprobs"]
    assert ids == choice["token_ids"]
    rows = meta["input_token_logprobs"] + meta["output_token_logprobs"]
    values = logprobs["token_logprobs"][start:]
    assert [row[0] for row in rows] == [None, *values[1:]]
    assert [row[1] for row in rows] == prompt[start:] + ids
    assert [row[2] for row in rows] == logprobs["tokens"][start:]
    tops = meta["input_top_logprobs"] + meta["output_top_logprobs"]
    assert tops[0] is None and all(len(top) == 2 for top in tops[1:])
    for top, texts in zip(tops[1:], logprobs["top_logprobs"][start + 1 :], strict=True):
        assert top[0][0] >= top[1][0]
        assert all(texts[text] >= value for value, _, text in top)
    assert "input_token_logprobs" not in ask(server, sampling, input_ids=prompt)["meta_info"]


@pytest.mark.xdist_group("served pair")
def test_of_the_prompt_nothing_is_told_unless_its_start_is_given(server: Served) -> None:
    body = {"input_ids": [40, 41, 42], "return_logprob": True, "logprob_start_len": -1}
    meta = ask(server, {"max_new_tokens": 3}, **body)["meta_info"]
    assert meta["input_token_logprobs"] == [] and len(meta["output_token_logprobs"]) == 3
    assert "output_top_logprobs" not in meta
    assert meta["output_token_logprobs"][0][2] is None


@pytest.mark.xdist_group("served pair")
def test_a_regex_is_held_to(server: Served) -> None:
    pytest.importorskip("llguidance")
    answer = ask(server, {"regex": "(yes|no)", "max_new_tokens": 20}, text="hello")
    assert answer["text"] in ("yes", "no")
    assert answer["meta_info"]["finish_reason"]["type"] == "stop"
