"""A method of your own: what a client does with an answer, what it says, what the server makes of it."""

from dataclasses import dataclass

from fedstill import Algorithm, Answer, Client, Opinion, Replies, Server
from fedstill.learning.losses import kl


@dataclass(frozen=True)
class Confident(Algorithm):
    """Teachers weighted by how sure they are."""

    sharpness: float = 2.0  # an option of the experiment

    needs = frozenset({"public"})  # checked before anything runs

    def digest(self, me: Client, answer: Answer) -> None:
        me.distill(answer.logits, kl)

    def opine(self, me: Client) -> Opinion:
        me.train()
        return Opinion(me.predict())  # logits of the public samples

    def server(self, me: Server, ups: Replies[Opinion]) -> Answer:
        sure = ups.column("logits").softmax(-1).amax(-1).mean(-1)  # [K]: one number a client
        me.distill(ups.blend("logits", (self.sharpness * sure).softmax(0)), kl)
        return Answer(me.predict())
