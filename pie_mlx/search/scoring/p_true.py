"""P(True): ask whether the answer is right and read the probability of the word for yes (Kadavath et al. 2022)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pie_mlx.search.scoring.base import LabelQuestion, Subject
from pie_mlx.search.scoring.label import LabelScorer

P_TRUE_LABELS = {"True": 1.0, "False": 0.0}


def p_true_scorer(question: Callable[[Subject, Sequence[str]], LabelQuestion]) -> LabelScorer:
    """Return a scorer whose value is P("True") over P("True") + P("False")."""
    return LabelScorer(P_TRUE_LABELS, question, kind="ptrue")
