"""POST /v1/responses as OpenAI's own client sees it."""

from fake_engine import expected_answer
from fake_server import Served


def test_answer_is_the_engines(fake: Served) -> None:
    answer = fake.openai.responses.create(
        model="fake", input="hello", max_output_tokens=7, extra_body={"seed": 3}
    )
    assert answer.output_text == expected_answer("hello", 3, 7)
    assert answer.status == "incomplete"
