"""Help texts, messages and docstrings are plain technical English."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path for path in (ROOT / "src").rglob("*.py") if "table" not in path.relative_to(ROOT).parts
)

#: Metaphors and riddles, each with a sentence that it must reject.
REFUSED = {
    r"\bwho prices\b": "Who prices the run; else pld.",
    r"\b(un)?pric(e[sd]?|ing)\b(?!:)": "Whole: 3 entries are chained, in order and priced right",
    r"\bodds\b": "The odds of any outcome change by at most a factor e^epsilon",
    r"\b(dearer|dearest)\b": "the dearest candidate counts",
    r"\b(buy|buys)\b": "what epsilon buys",
    r"\bbought (with|from|for)\b": "bought with epsilon 0.1 by itself",
    r"\b(un)?paid\b": "not paid for",
    r"\bpays? for\b": "one step more than it pays for",
    r"\bnobody (lives|can hide)\b": "the declared box, where nobody lives",
    r"\bstamped\b": "every model fitted with it is stamped NOT PRIVATE",
    r"\bmanners\b": "an estimator with scikit-learn's manners",
    r"\bfaint\b": "noise too faint to be seen",
    r"\bfor ever\b": "may be repeated for ever",
    r"\bcoin tosses\b": "finer answers would be coin tosses",
    r"\bblanked\b": "when a row is blanked out",
    r"\bwhole or (not at all|absent)\b": "it appears whole or not at all",
    r"\bwhat (a reader|a machine|a curator) is told\b": "What a reader is told.",
    r"\b(is|are) (said|told) to\b": "bins are told to it",
    r"\b(when a|the|of) peers? (is|are)\b": "When a peer is stopped.",
    r"\b(arena|shelf|contest)s?\b": "the shelf of models",
    r"; else (a|the|one) \w+\.": "Rows of the table; else a fifth.",
    r"\bfirst light\b": "first light, from private rows to a public model",
    r"\bnobody paid\b": "which nobody paid for",
    r" \.\.\.$": "Fitting a private flow to the rows ...",
}

#: Names and titles that are quoted.
QUOTED = ("Winning the NIST contest", "class:`")


def _literals(source: str) -> Iterator[tuple[int, str]]:
    """Every text of a module in one piece, without the code in it."""
    tree = ast.parse(source)
    joined = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    inside = {id(part) for node in joined for part in ast.walk(node) if part is not node}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (p.value if isinstance(p, ast.Constant) else "{}" for p in node.values)
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and id(node) not in inside:
            yield node.lineno, str(node.value)


def _prose(text: str) -> str:
    """The text on one line, without examples that run and without names of the code."""
    lines = (line.strip() for line in text.splitlines())
    shown = " ".join(line for line in lines if not line.startswith((">>>", "... ", "dpflows.")))
    for title in QUOTED:
        shown = shown.replace(title, "")
    return re.sub(r"`+[^`]*`+", "", shown)


def _refused(source: str) -> list[str]:
    found = []
    for line, text in _literals(source):
        # a single word is a name in a file or a program
        prose = _prose(text)
        if " " in prose.strip():
            hits = (re.search(rule, prose, re.IGNORECASE) for rule in REFUSED)
            found += [f"{line}: {hit.group()}: {prose[:80]}" for hit in hits if hit]
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_texts_are_plain_english(path):
    assert not _refused(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(("rule", "sentence"), REFUSED.items())
def test_every_rule_rejects_its_sentence(rule, sentence):
    for planted in (f'"""{sentence}"""\n', f"help = {sentence!r}\n", f"x = f'{{y}} {sentence}'\n"):
        assert _refused(planted.replace("'s", "s")), rule


def test_a_planted_sentence_is_found_in_a_real_module():
    path = ROOT / "src" / "dpflows" / "cli" / "settings.py"
    source = path.read_text(encoding="utf-8")
    assert not _refused(source)
    assert _refused(source.replace("Privacy accountant [default: pld].", "Who prices the run."))
