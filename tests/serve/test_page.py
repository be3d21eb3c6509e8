"""The page at /, without a browser: what is served, and that it loads nothing from elsewhere."""

import json
import re
import shutil
import subprocess
from collections import Counter
from importlib.resources import files
from typing import Any

import markdown_it
import pytest
from fake_engine import FakeEngine
from fake_server import Served

from eagle3_jax.engine import Acceptance, Round
from serve.page import MEDIA_TYPES, page_files

FILES = {name: data.decode() for name, data in page_files().items()}
SCRIPTS = sorted(name for name in FILES if name.endswith(".js"))
NAMESPACE = 'xmlns="http://www.w3.org/2000/svg"'


def node(source: str, *flags: str) -> str:
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    argv = ["node", "--input-type=module", *flags, "-"]
    done = subprocess.run(argv, input=source, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", ["/", *(f"/page/{name}" for name in FILES)])
def test_every_file_comes_under_the_policy(fake: Served, path: str) -> None:
    answer = fake.http.get(path)
    name = path.removeprefix("/page/") if path != "/" else "index.html"
    assert (answer.status_code, answer.text) == (200, FILES[name])
    assert answer.headers["content-type"] == MEDIA_TYPES[name.rpartition(".")[2]]
    policy = dict(
        part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; ")
    )
    assert policy["default-src"] == "'none'"
    assert {policy[f"{kind}-src"] for kind in ("script", "style", "connect")} == {"'self'"}
    assert policy["img-src"] == "'self' data:"
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("name", ["__init__.py", "..%2fapp.py", "../app.py", "%2fetc%2fpasswd", ""])
def test_nothing_else_is_served(fake: Served, name: str) -> None:
    assert fake.http.get(f"/page/{name}").status_code == 404


def test_all_that_files_name_is_there_and_nothing_is_elsewhere() -> None:
    for name, text in FILES.items():
        assert not re.search(r"""["'(=]\s*(https?:)?//""", text.replace(NAMESPACE, "")), name
    page = FILES["index.html"]
    named = set(re.findall(r'(?:src|href)="page/([^"]+)"', page))
    named |= {n for script in SCRIPTS for n in re.findall(r'from "\./([^"]+)"', FILES[script])}
    assert named | {"index.html"} == set(FILES)
    on_disk = {file.name for file in files("serve.page").iterdir()} - {"__init__.py", "__pycache__"}
    assert on_disk == set(FILES)


def test_what_a_model_says_can_only_become_text() -> None:
    """No markup is made of strings, and none of the page's own needs a looser policy."""
    for script in SCRIPTS:
        for sink in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert sink not in FILES[script], f"{script} uses {sink}"
        assert "Storage" not in FILES[script] or script == "settings.js"
        assert "cookie" not in FILES[script]
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", FILES["index.html"])


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_parse(script: str) -> None:
    node(FILES[script], "--check")


MARKDOWN = r"""# Title with `code`

One *emphasised* and **strong _both_** line with 2 * 3 * 4, snake_case_name and ~~gone~~.
A second line, [a link](https://example.org/a_b?c=1) and <b>no markup</b> \*.

- first
- second with **strong**
  1. deeper
  2. more
- third

3) three
4) four

> said by `somebody`
> on two lines

```python
def f(x):
    return "**x**"  # not strong

```
| left | *right* |
|------|:-------:|
| 1    | a \| b |

---
###### Small
`` a ` b `` and *not closed
~~~~ text
~~~
~~~~"""

AS_HTML = r"""
const entities = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"};
const escaped = (s) => s.replace(/[&<>"]/g, (found) => entities[found]);
const tag = (name, inside, more = "") => `<${name}${more}>${inside}</${name}>`;
const names = {link: "a", del: "s"};
const part = ({kind, from, to, parts, address}) => kind === "text" ? escaped(text.slice(from, to))
  : tag(names[kind] ?? kind, parts.map(part).join(""), address ? ` href="${address}"` : "");
const line = ([from, to]) => inline(text, from, to).map(part).join("");
const all = (lines) => lines.map(line).join("\n");
const nested = (items) => {
  const {depth, number} = items[0], name = number ? "ol" : "ul", found = [];
  while (items.length && items[0].depth >= depth) {
    const below = items[0].depth > depth + 1;
    found.push(below ? found.pop().replace(/<.li>$/, nested(items) + "</li>")
      : tag("li", all(items.shift().lines)));
  }
  return tag(name, found.join(""), number > 1 ? ` start="${number}"` : "");
};
const row = (cells, name) => tag("tr", cells.map((cell) => tag(name, line(cell))).join(""));
const source = (lines) => escaped(lines.map(([a, b]) => text.slice(a, b) + "\n").join(""));
const html = ({kind, level, lines, language, items, rows}) => ({
  heading: () => tag(`h${level}`, all(lines)),
  paragraph: () => tag("p", all(lines)),
  rule: () => "<hr>",
  quote: () => tag("blockquote", tag("p", all(lines))),
  list: () => nested([...items]),
  code: () => tag("pre", tag("code", source(lines), language && ` class="language-${language}"`)),
  table: () => tag("table", tag("thead", row(rows[0], "th"))
    + tag("tbody", rows.slice(1).map((cells) => row(cells, "td")).join(""))),
})[kind]();
"""
READER = FILES["markdown.js"] + FILES["inline.js"] + f"const text = {json.dumps(MARKDOWN)};"
READER = READER.replace("export ", "")


def test_markdown_is_read_as_markdown_it_reads_it() -> None:
    ours = node(READER + AS_HTML + "console.log(blocks(text).map(html).join(''))").strip()
    parser = markdown_it.MarkdownIt("commonmark").enable(["table", "strikethrough"])
    theirs = parser.disable(["html_block", "html_inline"]).render(MARKDOWN).strip()
    theirs = re.sub(r' style="[^"]*"', "", theirs.replace(">\n<", "><")).replace("<hr />", "<hr>")
    assert theirs == ours


def test_while_markdown_grows_only_its_last_two_blocks_change() -> None:
    script = """
    const whole = blocks(text), told = (found) => JSON.stringify(found);
    for (let end = 0; end <= text.length; end += 1) {
      const settled = blocks(text.slice(0, end)).slice(0, -2);
      if (told(settled) !== told(whole.slice(0, settled.length))) console.log(end);
    }"""
    assert node(READER + script) == ""


def test_an_answers_figures_follow_from_its_origins() -> None:
    """Beside the engine's own of the same rounds, the last of which the answer's end cut."""
    accepted = [3, 0, 2, 1, 3]
    runs = [[*range(1, count + 1), 0] for count in accepted]
    origins = [0, *(origin for run in runs for origin in run)][:-1]
    kept = [count + 1 for count in accepted]
    kept[-1] -= 1
    rounds = Counter(Round(3, 3, 3, a, k) for a, k in zip(accepted, kept, strict=True))
    counts = Acceptance(rounds, 3)
    source = FILES["tokens.js"] + f"console.log(JSON.stringify(figures({origins})))"
    measured: dict[str, Any] = json.loads(node(source))
    assert measured["length"] == pytest.approx(counts.accept_length_eos_corrected)
    assert measured["shares"] == pytest.approx(counts.acceptance_per_pos)
    empty = json.loads(node(FILES["tokens.js"] + "console.log(JSON.stringify(figures([0])))"))
    assert empty == {"shares": []}


def measure(call: str) -> Any:
    """Call a function of the page's reader of metrics."""
    script = re.sub(r"^import .*$", "", FILES["metrics.js"], flags=re.MULTILINE)
    return json.loads(node(f"{script}console.log(JSON.stringify({call} ?? null))"))


def test_the_servers_figures_are_read_from_its_metrics(fake: Served) -> None:
    before = fake.http.get("/metrics").text
    for _ in range(3):
        fake.ask("/v1/completions", prompt="abc", max_tokens=8)
    times = [
        f"{{time: 1, values: parse({json.dumps(text)})}}"
        for text in (before, fake.http.get("/metrics").text)
    ]
    measured = measure(f"compare({', '.join(times)})")
    # Three answers, each of four rounds that accept one draft of three.
    assert (measured["drafts"], measured["tokens"], measured["length"]) == (12, 24, 2)
    assert measured["shares"] == [1, 0, 0]


def test_tiers_are_shown_where_the_server_has_some(serve: Any) -> None:
    for below, told in ((3, {"used": "host 25.0%", "hits": "device 2, host 3"}), (0, None)):
        text = serve(FakeEngine(cached_tokens=5, cached_below=below)).http.get("/metrics").text
        assert measure(f"tierTexts(parse({json.dumps(text)}))") == told
