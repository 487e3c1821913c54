"""Check prose against `style.yaml`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from scripts.plain_english.prose import CODE, Passage, passages, sentences, words

STYLE = Path(__file__).with_name("style.yaml")
_JOINT = re.compile(rf"[,;:](?=\s)(?!(?<={CODE},)\s+{CODE})|\s[–—-]\s|\(")  # a list of code is easy to read


@dataclass(frozen=True)
class Offence:
    """What is wrong with a sentence, and what to write instead."""

    line: int
    rule: str
    message: str


@dataclass(frozen=True)
class Style:
    """`style.yaml`, read."""

    words: int
    joints: int
    phrases: tuple[tuple[re.Pattern[str], str], ...]
    any_phrase: re.Pattern[str]


@cache
def style() -> Style:
    """The style of this project."""
    data = yaml.safe_load(STYLE.read_text())
    patterns = [entry["pattern"].replace(" ", r"\s+") for entry in data["words"]]
    phrases = tuple(zip(map(_words, patterns), (entry["instead"] for entry in data["words"]), strict=True))
    sentence = data["sentence"]
    return Style(sentence["words"], sentence["joints"], phrases, _words("|".join(patterns)))


def _words(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE)


def offences(path: Path) -> list[Offence]:
    """All that is wrong in a file, in its order. Generated text is checked where it comes from."""
    found = (offence for passage in passages(path) if not passage.generated for offence in check(passage))
    return sorted(found, key=lambda offence: offence.line)


def check(passage: Passage) -> Iterator[Offence]:
    """What is wrong in a passage."""
    rules = style()
    for begin, sentence in sentences(passage.text):
        line = passage.line + passage.text.count("\n", 0, begin)
        start = " ".join(sentence.split())[:50]
        count, joints = len(words(sentence)), len(_JOINT.findall(sentence))
        if count > rules.words:
            yield Offence(
                line, "long", f"{count} words, at most {rules.words}: make two sentences of “{start}…”"
            )
        elif joints > rules.joints:
            yield Offence(
                line,
                "joints",
                f"{joints} joints, at most {rules.joints}: split or list “{start}…”",
            )
        for pattern, instead in rules.phrases if rules.any_phrase.search(sentence) else ():
            for match in pattern.finditer(sentence):
                at = line + sentence.count("\n", 0, match.start())
                phrase = " ".join(match[0].split())
                yield Offence(at, "words", f"“{phrase}”: write {instead}")
