"""A seeded workload with real structure: chats of several turns over shared system prompts and documents, interleaved.

Every conversation has one of a few system prompts, and some a document too, which several conversations share (popular
ones more often). A turn adds a question to all that was said before; the engine's answers become part of the next turn's
prompt. Turns of different conversations arrive interleaved at random. Imports the standard library only.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Shape:
    """Sizes of a workload, in tokens unless said otherwise."""

    systems: tuple[int, ...]  # lengths of the system prompts
    documents: tuple[int, ...]  # lengths of the documents
    conversations: int
    turns: tuple[int, int]  # fewest and most of a conversation
    question: tuple[int, int]
    answer: int
    with_document: float = 0.6  # share of conversations


LARGE = Shape(
    systems=(1800, 3000, 4200),
    documents=(2500, 4000, 6000, 9000, 12000),
    conversations=24,
    turns=(2, 4),
    question=(30, 400),
    answer=32,
)
TINY = Shape(
    systems=(70, 130), documents=(90, 200), conversations=5, turns=(1, 3), question=(3, 30), answer=4
)


@dataclass
class Conversation:
    """One chat: what was said so far, and what is still to be asked."""

    said: list[int]
    questions: list[list[int]] = field(default_factory=list)

    def ask(self) -> list[int]:
        """The next turn's prompt."""
        self.said = self.said + self.questions.pop(0)
        return self.said


class Workload:
    """``turns`` lists conversation numbers in order of arrival; the same seed gives the same workload."""

    def __init__(self, shape: Shape, vocabulary: int, seed: int) -> None:
        draw = random.Random(seed)

        def text(length: int) -> list[int]:
            return [draw.randrange(3, vocabulary) for _ in range(length)]

        systems, documents = [text(n) for n in shape.systems], [text(n) for n in shape.documents]
        weights = [1 / (i + 1) for i in range(len(documents))]  # the first is the most popular
        self.conversations = []
        for _ in range(shape.conversations):
            said = list(draw.choice(systems))
            if draw.random() < shape.with_document:
                said += draw.choices(documents, weights)[0]
            questions = [text(draw.randint(*shape.question)) for _ in range(draw.randint(*shape.turns))]
            self.conversations.append(Conversation(said, questions))
        self.answer = shape.answer
        self.turns = _interleave([len(c.questions) for c in self.conversations], draw)

    def __len__(self) -> int:
        return len(self.turns)


def _interleave(counts: list[int], draw: random.Random) -> list[int]:
    """Each i as often as counts[i], conversations starting one after the other, a few of them going on at any time."""
    left, order, alive, fresh = list(counts), [], [], list(range(len(counts)))
    while alive or fresh:
        if fresh and (len(alive) < 6 or draw.random() < 0.2):
            alive.append(fresh.pop(0))
        i = draw.choice(alive)
        order.append(i)
        left[i] -= 1
        if not left[i]:
            alive.remove(i)
    return order
