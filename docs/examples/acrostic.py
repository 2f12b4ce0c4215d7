"""Lines whose first letters spell a word: pie-mlx tot run --task acrostic.py:Acrostic SEA."""

from pie_mlx.search.tasks import Check, Rejected, Task, Verdict

Lines = tuple[str, ...]


class Acrostic(Task[Lines]):
    name, question, depth, has_check = "acrostic", "", 1, True

    @classmethod
    def from_question(cls, question: str) -> "Acrostic":
        task = cls()
        task.question, task.depth = question.upper(), len(question)
        return task

    def prompt(self) -> str:
        return f"Write a poem. The first letters of its {self.depth} lines spell {self.question}."

    def start(self) -> Lines:
        return ()

    def step(self, lines: Lines, text: str) -> Lines | Rejected:
        fits = text.upper().startswith(self.question[len(lines)])
        return (*lines, text) if fits else Rejected(Verdict.INVALID, "wrong-letter")

    def is_finished(self, lines: Lines) -> bool:
        return len(lines) == self.depth

    def answer(self, lines: Lines) -> str:
        return "\n".join(lines)

    def check(self, answer: str) -> Check:
        solved = len(set(answer.split("\n"))) == self.depth
        return Check(solved=solved, value=float(solved), reason="ok" if solved else "line-twice")
