"""A method that calls its clients twice a round, with messages of its own."""

import math
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from torch import Tensor

from fedstill import Algorithm, Answers, Client, Done, Federation, Message, Scores, array
from fedstill.learning.losses import kl


@dataclass(frozen=True)
class Question(Message):
    """The public samples that the server is least sure of."""

    rows: Tensor = array("questions")  # a name of our own: as many as there are


@dataclass(frozen=True)
class Lesson(Message):
    """What the clients together think of those samples."""

    rows: Tensor = array("questions")
    logits: Tensor = array("questions", "labels")  # "labels" is known everywhere; another width is refused on arrival


@dataclass(frozen=True)
class Curious(Algorithm):
    """The server asks about the public samples that it is least sure of; everybody learns what all think of them."""

    share: Annotated[float, Field(gt=0, le=1)] = 0.5  # of the public samples; other values are refused at the start

    needs = frozenset({"public"})
    messages = (Question, Scores, Lesson, Done)  # nothing else can travel

    def round(self, fed: Federation, answer: Answers) -> None:
        me = fed.server
        sure = me.predict().softmax(-1).amax(-1)  # [N]
        rows = sure.argsort(stable=True)[: math.ceil(self.share * len(sure))]
        # Each call runs the method of that name on every active client. Who fails is missing from what comes back.
        ups = fed.call("reply", Question(rows.int()))
        logits = ups.mean("logits")
        me.distill(logits, kl, rows=rows.numpy())
        fed.call("listen", Lesson(rows.int(), logits), clients=list(ups))

    def reply(self, me: Client, question: Question) -> Scores:
        """Train on the own rows, then say what was asked; the annotation is what the server accepts as a reply."""
        me.train()
        me.evaluate("trained")
        return Scores(me.predict(me.data.public.pick(question.rows.numpy())))

    def listen(self, me: Client, lesson: Lesson) -> Done:
        """Learn from all the others."""
        me.distill(lesson.logits, kl, rows=lesson.rows.numpy())
        me.evaluate("distilled")
        return Done()
