"""The English of the project: its linter finds what it should, and pages stay easy to read and few."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.plain_english.prose import CODE, markdown, passages, python, sentences, words
from scripts.plain_english.readability import reading_ease, syllables
from scripts.plain_english.rules import check, offences
from tests.support.runs.pages import DOCS, PAGES, ROOT

EASE = 50
WORDS_ALLOWED = 20_000  # may only fall


# -- pages -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_easy_to_read(page: Path) -> None:
    ease = reading_ease(passages(page))
    assert ease >= EASE, f"Flesch reading ease {ease:.0f}: shorter sentences, and shorter words"


def test_the_pages_have_no_more_words_than_before() -> None:
    """Without decisions, code blocks and generated text."""
    pages = [page for page in PAGES if DOCS in page.parents and page.parent.name != "adr"]
    texts = [passage.text for page in pages for passage in passages(page) if not passage.generated]
    count = sum(len(words(text)) for text in texts)
    assert count <= WORDS_ALLOWED, f"{count} words in docs/, {WORDS_ALLOWED} are allowed"


# -- what is prose ---------------------------------------------------------------------------------------------------


def test_prose_of_a_page() -> None:
    page = """# A title

One line
and `code` and [a link](to/there.md).

- an item

| head | other |
|---|---|
| a cell | 3 |

```sh
no prose
```

<!-- generated: events -->

From the code.

<!-- end -->

By hand.
"""
    found = [(passage.line, passage.kind, passage.text, passage.generated) for passage in markdown(page)]
    assert found == [
        (1, "heading", "A title", False),
        (3, "paragraph", f"One line\nand {CODE} and a link.", False),
        (6, "item", "an item", False),
        (8, "heading", "head", False),
        (8, "heading", "other", False),
        (10, "cell", "a cell", False),
        (10, "cell", "3", False),
        (18, "paragraph", "From the code.", True),
        (22, "paragraph", "By hand.", False),
    ]


def test_prose_of_a_module() -> None:
    module = '''"""What it is for.

Args:
    path: where the file is

Example:
  a command, no prose
"""

# The reason
# in two lines.
port = "no # comment"  #: of the server
url = "https://host/path"
raise ValueError(f"{port} is not a port: "
                 "give a number instead")
'''
    found = sorted((passage.line, passage.kind, passage.text) for passage in python(module))
    assert found == [
        (1, "paragraph", "What it is for."),
        (4, "item", "where the file is"),
        (10, "comment", "The reason\nin two lines."),
        (12, "comment", "of the server"),
        (14, "string", f"{CODE} is not a port: give a number instead"),
    ]


def test_sentences_end_where_a_reader_sees_it() -> None:
    text = f"One, e.g. This. Version 2.5 is it! (Is it?) {CODE} is new."
    assert [sentence for _, sentence in sentences(text)] == [
        "One, e.g. This.",
        "Version 2.5 is it!",
        "(Is it?)",
        f"{CODE} is new.",
    ]


# -- rules -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (" ".join(["word"] * 26) + ".", "long"),
        ("A run, a rank, a node; a pod: a job, and more.", "joints"),
        ("Whoever reads it.", "words"),
        ("It says what is kept, and then what\nis lost.", "words"),
        ("The agent tells the engine.", "words"),
        ("The file lies in a folder.", "words"),
        ("A server of moto's.", "words"),
        ("Two files, one of\nwhich is new.", "words"),
    ],
)
def test_offences(text: str, rule: str) -> None:
    assert [offence.rule for passage in markdown(text) for offence in check(passage)] == [rule]


def test_plain_sentences_pass() -> None:
    text = "The agent sends the file to the server. Each rank reads its part. The states are `a`, `b`, `c`, `d`, `e`."
    assert not [offence for passage in markdown(text) for offence in check(passage)]


def test_an_offence_has_the_line_of_its_word(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\nThe file is\nwhere whoever wrote it\nput it.\n")
    (offence,) = offences(page)
    assert offence.line == 4
    assert "whoever" in offence.message


# -- reading ease ----------------------------------------------------------------------------------------------------


def test_reading_ease_is_fleschs() -> None:
    assert reading_ease(markdown("The cat sat on the mat.")) == pytest.approx(206.835 - 1.015 * 6 - 84.6)
    assert reading_ease(markdown("# Considerable documentation\n\n`ignored`\n")) == 100
    assert [syllables(word) for word in ("area", "checkpoint", "rank's", "kubelets", "sharded")] == [
        3,
        2,
        1,
        3,
        2,
    ]
