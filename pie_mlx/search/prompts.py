"""The words of the judges that a task does not bring itself, short and concrete: small models follow a form."""

from __future__ import annotations

P_TRUE_QUESTION = "\nIs this correct? One word, True or False: "

VOTE_REQUEST = "Which of these is the best? Answer with its letter only."

RATING_QUESTION = "\nRating of this from 1 (useless) to 10 (perfect), a number only: "
