"""The check of an app reports each mistake with its file and line, and all mistakes at once."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from headrace.model.errors import AppError, AppMistakes
from headrace.model.graph import check
from tests.unit.model.mistakes import HEAD, MISTAKES


def load(folder: Path, text: str) -> Any:
    """Imports the text as a user's module."""
    path = folder / "shop.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("shop", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def marked(folder: Path, text: str) -> list[tuple[str, str]]:
    """Line and code of each mistake that the text marks."""
    lines = enumerate(text.splitlines(), start=1)
    found = [(number, re.search(r"# ! (\S+)", line)) for number, line in lines]
    return [(f"{folder / 'shop.py'}:{number}", f"HR-APP-{mark[1]}") for number, mark in found if mark]


def mistakes(module: Any) -> tuple[AppError, ...]:
    with pytest.raises(AppMistakes) as caught:
        check(module.app)
    return caught.value.mistakes


@pytest.mark.parametrize("what", MISTAKES)
def test_a_mistake_is_reported_with_its_line_and_a_hint(what: str, tmp_path: Path) -> None:
    body, expected = MISTAKES[what]
    text = f"{HEAD}{body}\n"
    found = mistakes(load(tmp_path, text))
    assert [(str(mistake.location), mistake.code) for mistake in found] == marked(tmp_path, text)
    assert any(expected in str(mistake) for mistake in found)
    assert all(mistake.hint for mistake in found)


def test_all_mistakes_of_an_app_are_reported_together_in_the_order_of_its_lines(tmp_path: Path) -> None:
    apart = [body for body, _ in MISTAKES.values() if "app = App" not in body and body.count("\n") == 0]
    # Examples about names are left out: their names would collide with those of other examples.
    text = HEAD + "\n".join(body for body in apart if re.search(r"# ! (KEY|TIME|LATE|PARTITIONS)", body))
    text = re.sub(r"'([tv])'", lambda match: f"'{match[1]}{match.start()}'", text)
    module = load(tmp_path, text)
    found = mistakes(module)
    assert [(str(mistake.location), mistake.code) for mistake in found] == marked(tmp_path, text)
    assert len(found) > 15
    with pytest.raises(AppMistakes) as caught:
        check(module.app)
    message = str(caught.value)
    assert all(str(mistake) in message for mistake in found)
    assert f"the app has {len(found)} mistakes; nothing was started [HR-APP-MISTAKES]" in message


def test_an_app_without_mistakes_passes(tmp_path: Path) -> None:
    check(load(tmp_path, HEAD).app)
    good = """
sales = app.topic("sales", key=["user", "minute"], time="at")
@app.flow(reads=[clicks, users], writes=sales)
def sell(clicks, users, scale=1): ...
@app.flow(reads=[sales, clicks], writes=app.table("top", key="user"))
def rank(*frames): ...
@app.flow(reads=[clicks], writes=app.topic("fast", key="user"), latency="realtime")
def fast(clicks): ...
app.view("fastest", fast.writes)
app.topic("anything", Click)
app.topic("sales.gold", Click)
app.view("sales", sales)
app.view("clicks", clicks, key=["user", "at"], store=SQLite("sub/clicks.db"))
top = app.view("users", users, store=SQLite("/var/lib/users.db"))
app.alert("backlog", "lag > 10_000 for 30s", on=sell)
app.alert("stale", "age > 1h", on=top)
app.alert("billing", "time_to_loss < 1h", on="group billing")
app.alert("dead", "dead > 0")
"""
    check(load(tmp_path, HEAD + good).app)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "@app.flow(reads=clicks, writes=users) # !\ndef flow(clicks): ...",
            "reads must be a list of topics",
        ),
        ("@app.flow(reads=['clicks'], writes=users) # !\ndef flow(clicks): ...", "reads must be a topic"),
        ("@app.flow(reads=[clicks], writes='out') # !\ndef flow(clicks): ...", "writes must be a topic"),
        ("app.flow(reads=[clicks], writes=users)(print) # !", "the decorated object must be a function"),
        (
            "app.flow(reads=[clicks], writes=users, latency='fast') # !",
            "latency must be 'batch' or 'realtime', not 'fast'",
        ),
        ("app.view('v', 'clicks') # !", "a view's topic must be a topic"),
        ("app.view('v', clicks, store='v.db') # !", "store must be a store of headrace.stores"),
        ("app.topic('t', Click, key=7) # !", "key must be a field's name, or a list of names, not 7"),
        ("app.topic('t', Click, key=[7]) # !", "key must be a field's name"),
        ("app.topic('t', str) # !", "a schema must be a dataclass"),
        ("app.alert('a', 'lag > 1', on=clicks) # !", "on must be a flow, a view, or a string"),
        (
            "@app.flow(reads=[clicks], writes=users)\ndef flow(clicks): ...\napp.view('v', flow) # !",
            "use flow.writes",
        ),
    ],
)
def test_a_declaration_refuses_an_argument_of_the_wrong_type(body: str, said: str, tmp_path: Path) -> None:
    text = f"{HEAD}{body}\n"
    with pytest.raises(AppError) as caught:
        load(tmp_path, text)
    (line,) = [number for number, line in enumerate(text.splitlines(), start=1) if "# !" in line]
    assert str(caught.value.location) == f"{tmp_path / 'shop.py'}:{line}"
    assert said in str(caught.value)


def test_the_docs_list_every_error_code() -> None:
    root = Path(__file__).parents[3]
    sources = [root / "src/headrace/app.py", *(root / "src/headrace/model").glob("*.py")]
    codes = {
        code
        for path in sources
        for code in re.findall(r'"(HR-APP-[A-Z-]+)"', path.read_text(encoding="utf-8"))
    }
    documented = set(
        re.findall(
            r"^\| `(HR-APP-[A-Z-]+)`", (root / "docs/apps.md").read_text(encoding="utf-8"), re.MULTILINE
        )
    )
    # The page does not list the generic code of a mistake, nor the code of the error that contains all mistakes.
    assert codes - {"HR-APP-INVALID", "HR-APP-MISTAKES"} == documented
