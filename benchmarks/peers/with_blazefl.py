"""DS-FL in BlazeFL, in its recommended mode: a pool of threads, a client a thread, as in its step-by-step example."""

import threading
from dataclasses import dataclass

import task
from blazefl.core import BaseServerHandler, ThreadPoolClientTrainer
from torch import Tensor


@dataclass
class Up:
    """A client's probabilities on the public rows."""

    cid: int
    probabilities: Tensor


@dataclass
class Down:
    """The sharpened mean; nothing in the first round."""

    teacher: Tensor | None


class Server(BaseServerHandler[Up, Down]):
    def __init__(self) -> None:
        self.model = task.new_model()
        self.buffer: list[Up] = []
        self.teacher: Tensor | None = None
        self.round = 0

    def sample_clients(self) -> list[int]:
        return list(range(len(task.CLIENTS)))

    def if_stop(self) -> bool:
        return self.round >= task.ROUNDS

    def load(self, payload: Up) -> bool:
        self.buffer.append(payload)
        if len(self.buffer) < len(task.CLIENTS):
            return False
        self.global_update(self.buffer)
        self.buffer = []
        self.round += 1
        return True

    def global_update(self, buffer: list[Up]) -> None:
        self.teacher = task.sharpened([up.probabilities for up in buffer])
        task.learn(self.model, task.Texts(task.PUBLIC.ids, self.teacher), task.kl)
        task.accuracy(self.model)

    def downlink_package(self) -> Down:
        return Down(self.teacher)


class Trainer(ThreadPoolClientTrainer[Up, Down]):
    def __init__(self) -> None:
        self.num_parallels = task.CORES
        self.device = "cpu"
        self.cache: list[Up] = []
        self.stop_event = threading.Event()
        self.models = [task.new_model() for _ in task.CLIENTS]

    def worker(self, cid: int, device: str, payload: Down, stop_event: threading.Event) -> Up:
        model = self.models[cid]
        if payload.teacher is not None:
            task.learn(model, task.Texts(task.PUBLIC.ids, payload.teacher), task.kl)
        task.learn(model, task.CLIENTS[cid])
        task.accuracy(model)
        return Up(cid, task.predict(model, task.PUBLIC).softmax(-1))

    def uplink_package(self) -> list[Up]:
        package, self.cache = self.cache, []
        return package


def main() -> None:
    server, trainer = Server(), Trainer()
    while not server.if_stop():
        clients = server.sample_clients()
        trainer.local_process(server.downlink_package(), clients)
        for package in trainer.uplink_package():
            server.load(package)
        task.said("round")


if __name__ == "__main__":
    main()
