"""Scores are read from probabilities, strictly: nothing unreadable becomes a number."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_mlx.errors import DeviceFailed, InvalidParameter
from pie_mlx.search.node import NodeId, NodeStatus, Score, rank_key
from pie_mlx.search.scoring.base import Judge, LabelQuestion, LabelReading, Subject, TextReading
from pie_mlx.search.scoring.checker import CheckerScorer
from pie_mlx.search.scoring.compose import Cached, FirstOf, WeightedMean
from pie_mlx.search.scoring.consistency import ConsistencyScorer
from pie_mlx.search.scoring.label import LabelScorer, label_tokens
from pie_mlx.search.scoring.logprob import LogprobScorer
from pie_mlx.search.scoring.p_true import p_true_scorer
from pie_mlx.search.scoring.rating import RatingScorer, parse_rating
from pie_mlx.search.scoring.vote import VoteScorer
from pie_mlx.search.tree import Tree

FAILURE = DeviceFailed("gone", 3)


class Words:
    """A tokenizer of whole words with their blank, and single characters for unknown ones."""

    def __init__(self, *words: str) -> None:
        """Know ``words``, each with and without a blank before it."""
        self._ids = {word: 1000 + i for i, word in enumerate(words)}

    def encode(self, text: str) -> list[int]:
        """Take the longest known word at each place, else one character."""
        ids: list[int] = []
        while text:
            word = max((w for w in self._ids if text.startswith(w)), key=len, default=text[0])
            ids.append(self._ids.get(word, ord(text[0])))
            text = text[len(word) :]
        return ids


class TableJudge(Judge):
    """Answers each node from a table; remembers how often it was called and with how many."""

    def __init__(self, readings: dict[str, Any]) -> None:
        """Answer from ``readings``."""
        self._readings = readings
        self.batches: list[int] = []

    def labels(self, nodes: Sequence[NodeId], questions: Sequence[LabelQuestion]) -> list[LabelReading]:
        """Look up each node."""
        self.batches.append(len(nodes))
        return [self._readings[node] for node in nodes]

    def write(
        self, nodes: Sequence[NodeId], questions: Sequence[tuple[int, ...]], *, max_tokens: int, seeds: Sequence[int]
    ) -> list[TextReading]:
        """Look up each node."""
        self.batches.append(len(nodes))
        return [self._readings[node] for node in nodes]


class PlaceJudge(TableJudge):
    """Prefers the first option by much, whoever stands there; among texts it slightly prefers ``good``."""

    def labels(self, nodes: Sequence[NodeId], questions: Sequence[LabelQuestion]) -> list[LabelReading]:
        """Read the options out of the question's tokens."""
        readings = []
        for question in questions:
            weights = [0.6 if at == 0 else 0.1 for at in range(len(question.tokens))]
            weights = [w + (0.05 if token == 1 else 0.0) for w, token in zip(weights, question.tokens, strict=True)]
            readings.append(LabelReading(tuple(w / 2 for w in weights)))
        return readings


def subject(node: str, **fields: Any) -> Subject:
    """Make a subject."""
    values: dict[str, Any] = {"key": "", "state": None, "text": node, "tokens": (1, 2)} | fields
    return Subject(NodeId(node), **values)


def ask(_subject: Subject, _labels: Sequence[str]) -> LabelQuestion:
    """Ask nothing in particular."""
    return LabelQuestion((1,), (5, 6, 7))


WEIGHTS = {"good": 1.0, "fair": 0.5, "bad": 0.0}

# --- labels ------------------------------------------------------------------------------


def test_a_label_score_is_the_weighted_mean_over_the_labels() -> None:
    """Value = Σ weight · p with p normalised over the labels; mass is what fell on them at all."""
    judge = TableJudge({"0.0": LabelReading((0.2, 0.1, 0.1))})
    (score,) = LabelScorer(WEIGHTS, ask).score([subject("0.0")], judge)
    assert score.value == pytest.approx(0.625)
    assert score.mass == pytest.approx(0.4)
    assert score.label_probs == pytest.approx({"good": 0.5, "fair": 0.25, "bad": 0.25})


def test_no_probability_on_the_labels_is_no_value() -> None:
    """A judge that says none of the words gives None, never 0."""
    judge = TableJudge({"0.0": LabelReading((0.0, 0.0, 0.0))})
    (score,) = LabelScorer(WEIGHTS, ask).score([subject("0.0")], judge)
    assert score.value is None
    assert score.error is None


def test_a_failed_judgement_keeps_its_error_apart() -> None:
    """The engine's failure is told in the score; its siblings stand."""
    judge = TableJudge({"0.0": LabelReading(error=FAILURE), "0.1": LabelReading((0.3, 0.0, 0.0))})
    broken, whole = LabelScorer(WEIGHTS, ask).score([subject("0.0"), subject("0.1")], judge)
    assert broken.value is None
    assert broken.error == "device_failed: the device failed at step 3: gone"
    assert whole.value == 1.0


def test_siblings_are_judged_in_one_batch() -> None:
    """All subjects of a level go to the judge at once."""
    judge = TableJudge({f"0.{i}": LabelReading((0.1, 0.1, 0.1)) for i in range(5)})
    LabelScorer(WEIGHTS, ask).score([subject(f"0.{i}") for i in range(5)], judge)
    assert judge.batches == [5]


@given(order=st.permutations(range(4)), probs=st.lists(st.floats(0.01, 0.3), min_size=12, max_size=12))
def test_a_score_does_not_depend_on_the_order_of_siblings(order: list[int], probs: list[float]) -> None:
    """Each node gets the value that it would get alone, in whatever order the level is listed."""
    table = {f"0.{i}": LabelReading(tuple(probs[3 * i : 3 * i + 3])) for i in range(4)}
    scorer = Cached(LabelScorer(WEIGHTS, ask))
    together = scorer.score([subject(f"0.{i}", key=str(i % 3)) for i in order], TableJudge(table))
    again = Cached(LabelScorer(WEIGHTS, ask))
    sorted_ = again.score([subject(f"0.{i}", key=str(i % 3)) for i in range(4)], TableJudge(table))
    assert {i: score.value for i, score in zip(order, together, strict=True)} == {
        i: score.value for i, score in enumerate(sorted_)
    }


@pytest.mark.parametrize("tail", ["Verdict:", "Verdict: "])
def test_label_tokens_are_those_that_follow_in_context(tail: str) -> None:
    """A label joins the blank before it into one token; the tail then ends before the blank."""
    words = Words(" good", " bad", "good", "bad")
    found = label_tokens(words, tail, [" good", " bad"] if tail.endswith(":") else ["good", "bad"])
    assert found.tail == tuple(words.encode("Verdict:"))
    assert found.labels == (1000, 1001)


def test_a_blank_of_its_own_belongs_to_the_tail() -> None:
    """Where the tokenizer writes the blank as a token, the words after it are compared."""
    found = label_tokens(Words("good", "bad"), "V:", [" good", " bad"])
    assert found.tail == (ord("V"), ord(":"), ord(" "))
    assert found.labels == (1000, 1001)


@pytest.mark.parametrize("labels", [["1", "10"], [" sure", " surely"], [" a", " a"], ["x"], ["", "b"]])
def test_labels_that_start_alike_are_refused(labels: list[str]) -> None:
    """Two labels with one first token cannot be told apart: a typed error, not a wrong score."""
    with pytest.raises(InvalidParameter):
        label_tokens(Words(), "V:", labels)


def test_p_true_is_the_share_of_true() -> None:
    """P("True") over both words."""
    judge = TableJudge({"0.0": LabelReading((0.3, 0.1))})
    (score,) = p_true_scorer(ask).score([subject("0.0")], judge)
    assert score.value == pytest.approx(0.75)
    assert score.kind == "ptrue"


# --- the others --------------------------------------------------------------------------


def test_a_vote_gives_no_place_an_advantage() -> None:
    """A judge in love with the first option gives all the same; what is left is its taste."""
    scorer = VoteScorer(lambda subjects, _letters: LabelQuestion(tuple(int(s.text == "good") for s in subjects), (5,)))
    subjects = [subject("0.0", text="x"), subject("0.1", text="good"), subject("0.2", text="y")]
    scores = scorer.score(subjects, PlaceJudge({}))
    values = [score.value for score in scores]
    assert values[0] == pytest.approx(values[2])
    assert values[1] is not None
    assert values[1] > values[0]  # type: ignore[operator]
    assert sum(v for v in values if v is not None) == pytest.approx(1.0)


@given(order=st.permutations(range(3)))
def test_a_vote_does_not_depend_on_the_order_of_candidates(order: list[int]) -> None:
    """The rounds run in tree order, however the candidates are listed."""
    scorer = VoteScorer(lambda subjects, _letters: LabelQuestion(tuple(int(s.text == "good") for s in subjects), (5,)))
    subjects = [subject(f"0.{i}", text="good" if i == 1 else "x") for i in range(3)]
    values = [score.value for score in scorer.score([subjects[i] for i in order], PlaceJudge({}))]
    expected = [score.value for score in scorer.score(subjects, PlaceJudge({}))]
    assert [values[order.index(i)] for i in range(3)] == expected


def test_a_vote_has_as_many_candidates_as_letters() -> None:
    """27 candidates are refused; one candidate needs no vote."""
    scorer = VoteScorer(lambda *_: LabelQuestion((1,), (5,)))
    with pytest.raises(InvalidParameter):
        scorer.score([subject(f"0.{i}") for i in range(27)], PlaceJudge({}))
    assert scorer.score([subject("0.0")], PlaceJudge({})) == [Score(1.0, "vote")]


def test_logprob_is_the_geometric_mean_and_needs_tokens() -> None:
    """Exp of the mean; a thought without tokens has no value."""
    scores = LogprobScorer().score([subject("0.0", logprobs=(-1.0, -3.0)), subject("0.1")], TableJudge({}))
    assert scores[0].value == pytest.approx(2.718281828**-2)
    assert scores[1].value is None


def test_consistency_counts_readable_answers_only() -> None:
    """The share among those that have an answer; one without has no vote and no value."""
    answers = {"0.0": "a", "0.1": "a", "0.2": "b", "0.3": None}
    scorer = ConsistencyScorer(lambda s: answers[s.node])
    values = [score.value for score in scorer.score([subject(node) for node in answers], TableJudge({}))]
    assert values == [pytest.approx(2 / 3), pytest.approx(2 / 3), pytest.approx(1 / 3), None]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Rating: 7", 7.0),
        ("some prose\nScore is 10.\n\n", 10.0),
        ("8/10", 8.0),
        ("**Rating: 3**", 3.0),
        ("4", 4.0),
        ("8/20", None),
        ("11", None),
        ("-3", None),
        ("4 is my first impression, step 9", None),
        ("the best choice is 10 because of 3 reasons", None),
        ("Rating: 7\nbut I am not sure", None),
        ("Rating:", None),
        ("", None),
        ("٣", None),
    ],
)
def test_a_rating_is_read_strictly_from_the_last_line(text: str, value: float | None) -> None:
    """Anchored, on the last line that is not empty, in range: else there is none."""
    assert parse_rating(text, 1, 10) == value


def test_a_rating_that_was_cut_off_is_no_zero() -> None:
    """A judge that ran out of tokens gives no value, and a failed one says why."""
    scorer = RatingScorer(lambda s: s.tokens)
    judge = TableJudge(
        {
            "0.0": TextReading("I think that this deserves a 1", "length"),
            "0.1": TextReading("Rating: 10", "stop"),
            "0.2": TextReading(error=FAILURE),
        }
    )
    cut, whole, failed = scorer.score([subject(f"0.{i}") for i in range(3)], judge)
    assert cut.value is None
    assert cut.error is None
    assert whole.value == 1.0
    assert failed.error is not None


# --- composition -------------------------------------------------------------------------


def fixed(kind: str, **values: float | None) -> CheckerScorer:
    """Score by a table."""
    table = {name.replace("n", "0."): value for name, value in values.items()}
    return CheckerScorer(lambda s: table.get(s.node), kind=kind)


def test_the_first_scorer_with_a_value_answers() -> None:
    """The exact checker goes first; the judge sees only what it left open."""
    judge = TableJudge({"0.1": LabelReading((0.1, 0.0, 0.0))})
    scorer = FirstOf(fixed("exact", n0=0.0), LabelScorer(WEIGHTS, ask))
    first, second = scorer.score([subject("0.0"), subject("0.1")], judge)
    assert (first.value, first.kind) == (0.0, "exact")
    assert (second.value, second.kind) == (1.0, "labels")
    assert judge.batches == [1]


def test_a_mean_with_a_missing_part_is_missing() -> None:
    """A part is not the whole."""
    scorer = WeightedMean([(fixed("a", n0=1.0, n1=1.0), 3.0), (fixed("b", n0=0.0), 1.0)])
    whole, part = scorer.score([subject("0.0"), subject("0.1")], TableJudge({}))
    assert whole.value == 0.75
    assert part.value is None


def test_equal_states_are_judged_once() -> None:
    """The second node of a state takes the first one's score, marked as cached, also in a later level."""
    judge = TableJudge({f"0.{i}": LabelReading((0.2, 0.1 * i, 0.0)) for i in range(3)})
    scorer = Cached(LabelScorer(WEIGHTS, ask))
    scores = scorer.score([subject("0.0", key="k"), subject("0.1", key="k"), subject("0.2", key="")], judge)
    assert judge.batches == [2]
    assert scores[1].value == scores[0].value
    assert [score.cached for score in scores] == [False, True, False]
    later = scorer.score([subject("0.9", key="k")], judge)
    assert judge.batches == [2]
    assert later[0].cached


def test_a_missing_or_failed_score_is_asked_for_again() -> None:
    """Only values are remembered."""
    judge = TableJudge({"0.0": LabelReading(error=FAILURE)})
    scorer = Cached(LabelScorer(WEIGHTS, ask))
    for _ in range(2):
        assert scorer.score([subject("0.0", key="k")], judge)[0].error is not None
    assert judge.batches == [1, 1]


@given(values=st.lists(st.none() | st.floats(-9, 9), min_size=1, max_size=8))
def test_nodes_without_a_value_rank_last(values: list[float | None]) -> None:
    """Mixed scores sort; a missing one is behind the worst number."""
    tree = Tree()
    root = tree.add(NodeId("0"), status=NodeStatus.OPEN)
    nodes = [tree.add(NodeId(f"0.{i}")) for i in range(len(values))]
    for node, value in zip(nodes, values, strict=True):
        node.set_score(Score(value, "x"))
    ranked = [node.value for node in sorted(nodes, key=rank_key)]
    known = list(itertools.takewhile(lambda value: value is not None, ranked))
    assert known == sorted((v for v in values if v is not None), reverse=True)
    assert all(value is None for value in ranked[len(known) :])
    assert root.value is None


@pytest.mark.parametrize("value", ["7", True, float("nan"), float("inf")])
def test_a_score_is_a_number_or_nothing(value: Any) -> None:
    """Text, booleans and what is not finite cannot be ranked and are refused."""
    with pytest.raises(InvalidParameter):
        Score(value, "x")
