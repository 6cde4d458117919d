"""American spelling and plain words, in code, comments, messages and pages."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("src", "tests", "benchmarks", "examples", "docs", ".github")
ENDINGS = {".py", ".md", ".toml", ".yml", ".yaml", ".css", ".cff"}
FILES = sorted(
    path
    for path in [*ROOT.glob("*"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))]
    if path.is_file() and (path.suffix in ENDINGS or path.name == "Makefile") and path != Path(__file__)
)
#: Verbs and nouns in -ise and -isation, by what precedes the s.
STEMS = (
    "analy|categori|characteri|discreti|emphasi|equali|factori|finali|generali|initiali|lineari|locali|maximi|minimi|"
    "normali|optimi|organi|paralleli|parametri|penali|prioriti|randomi|recogni|regulari|seriali|speciali|stabili|"
    "standardi|summari|symmetri|synchroni|utili|vectori|visuali"
)
#: The British form -> the American one.
BRITISH = {
    rf"(?:{STEMS})s(?:e|ed|er|ers|es|ing|ation|ations)(?![a-z])": "-ize, -ization (analyze)",
    r"(?:behavi|col|fav|flav|hon|lab|neighb|rum|vap)our": "-or",
    r"\bcentre|(?:centi|kilo|milli)?metres?(?![a-z])|fibre|calibre": "-er",
    r"(?<![a-z])programmes?(?![a-z])": "program",
    r"(?:cancel|label|model|travel|signal|channel|level)l(?:ed|ing|er)(?![a-z])": "one l",
    r"\b(?:catalogue|dialogue|analogue|artefact|grey|judgement|learnt|licence|defence|whilst|spelt)": "American",
}
#: A phrase -> what to write.
PHRASES = {
    r"\bso many\b(?! that)": "the number, or the name of the constant",
    r"\bdoors?\b": "interface, function or module",
    r"\bunless told otherwise\b": "by default",
    r"\bin vain\b": "without effect",
    r"\bin the place of\b": "instead of",
    r"\bsays nothing\b": "what is missing",
    r"\b(?:nobody|somebody) (?:knows|asks|listens|has)\b": "who or what",
}
#: Habits that docstrings, comments, messages and pages may have this many times in a thousand words.
HABITS = {
    r"\b[Ww]hat\b(?![^.]*\?)": 1.0,  # "what the loop knows": name the thing
    r"\b(?:that|those) of\b": 0.2,  # repeat the noun
    r"\b[Tt]ells? whether\b": 0.0,  # "Return whether"
    r"(?<![Tt]here )\bis no (?!longer|more|less|better|larger)[a-z]+": 0.2,  # "is not a"
    r"\bat hand\b": 0.0,
    r"\banew\b": 0.0,
}
#: Titles and names of others: they keep their spelling.
QUOTED = ("Regularisation of neural networks by enforcing",)


def faults(text, forms):
    """Return the matches of forbidden forms in a text, with what to write instead."""
    found = []
    any_form = re.compile("|".join(f"(?:{form})" for form in forms), re.IGNORECASE)
    for number, line in enumerate(text.splitlines(), 1):
        if not any_form.search(line):
            continue
        for form, instead in forms.items():
            found += [f"{number}: {match[0]!r} ({instead})" for match in re.finditer(form, line, re.IGNORECASE)]
    return found


@pytest.fixture(scope="module")
def texts():
    """Return the texts of all files by name, without the titles and names of others."""
    quoted = re.compile("|".join(QUOTED))
    return {path.relative_to(ROOT).as_posix(): quoted.sub("", path.read_text(encoding="utf-8")) for path in FILES}


def test_american_spelling(texts):
    words = {path: set(re.findall(r"[a-z]+", text.lower())) for path, text in texts.items()}
    wrong = {word for word in set().union(*words.values()) if faults(word, BRITISH)}
    assert {path: sorted(found & wrong) for path, found in words.items() if found & wrong} == {}


def test_plain_words(texts):
    assert {path: found for path, text in texts.items() if (found := faults(text, PHRASES))} == {}


def python_prose(text):
    """Yield the docstrings, comments and raised messages of a source, without the code of examples."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string.lstrip("#: ")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            lines = (ast.get_docstring(node) or "").splitlines()
            yield from (line for line in lines if not line.strip().startswith((">>>", "...")))
        elif isinstance(node, ast.Raise):
            yield from (n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str))


def page_prose(text):
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL).splitlines()


def habits(lines):
    """Return for each habit how often it occurs in a thousand words, and the lines with it."""
    lines = list(lines)
    thousands = sum(len(line.split()) for line in lines) / 1000
    found = {habit: [line.strip() for line in lines if re.search(habit, line)] for habit in HABITS}
    return {habit: (len(hits) / thousands, hits) for habit, hits in found.items()}


@pytest.mark.parametrize("where", ["src", "pages"])
def test_habits(where):
    if where == "src":
        sources = sorted((ROOT / "src").rglob("*.py"))
        lines = [line for path in sources for line in python_prose(path.read_text(encoding="utf-8"))]
    else:
        pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
        chosen = (path for path in pages if path.name != "CHANGELOG.md")
        lines = [line for path in chosen for line in page_prose(path.read_text(encoding="utf-8"))]
    for habit, (rate, hits) in habits(lines).items():
        assert rate <= HABITS[habit], (habit, rate, hits)


def test_habits_are_counted():
    source = '''
def f(x):
    """Tell whether what x says is that of y.

    >>> what = 1
    """
    # what is left
    raise ValueError("x is no number")
'''
    counts = [len(hits) for _, hits in habits(python_prose(source)).values()]
    assert counts == [2, 1, 1, 1, 0, 0]


BAD = """The regulariser is minimised, and its behaviour near the centre is analysed.
def solve_linear_programme(neighbours, parametrisation): ...
# after so many steps the torch door says nothing
steps unless told otherwise, labelled in kilometres"""


def test_the_search_would_notice():
    words = {word for fault in faults(BAD, BRITISH) for word in re.findall(r"'(.*)'", fault)}
    assert words == {
        *("regulariser", "minimised", "behaviour", "centre", "analysed"),
        *("programme", "neighbour", "parametrisation", "labelled", "kilometres"),
    }
    assert len(faults(BAD, PHRASES)) == 4


@pytest.mark.parametrize(
    "text",
    [
        "otherwise it promises a precise, piecewise exercise; supervised and pairwise",
        "the analysis of an optimistic optimum; centered, color, neighbor, labels, modeled",
        "so many that it fits; indoors",
    ],
)
def test_good_words_pass(text):
    assert faults(text, BRITISH | PHRASES) == []
