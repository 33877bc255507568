"""FedAvg in Flower, on loopback: its server and a process for each client. Its simulation has no backend but Ray."""

import multiprocessing

import flwr
import task
import torch
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerConfig, start_server
from flwr.server.strategy import FedAvg
from numpy import ndarray
from torch import nn

ADDRESS = f"127.0.0.1:{task.SETTINGS['port']}"


def numbers_of(model: nn.Module) -> list[ndarray]:
    return [value.numpy() for value in model.state_dict().values()]


def take(model: nn.Module, numbers: list[ndarray]) -> None:
    model.load_state_dict(dict(zip(model.state_dict(), map(torch.as_tensor, numbers), strict=True)))


class Client(flwr.client.NumPyClient):
    def __init__(self, cid: int) -> None:
        self.model, self.texts = task.new_model(), task.CLIENTS[cid]

    def fit(self, parameters: list[ndarray], config: dict) -> tuple[list[ndarray], int, dict]:
        take(self.model, parameters)
        task.learn(self.model, self.texts)
        return numbers_of(self.model), len(self.texts), {}


def client(cid: int) -> None:
    flwr.client.start_client(server_address=ADDRESS, client=Client(cid).to_client())


def main() -> None:
    model = task.new_model()

    def evaluate(server_round: int, parameters: list[ndarray], config: dict) -> tuple[float, dict]:
        take(model, parameters)
        if server_round:
            task.accuracy(model)
            task.said("round")
        return 0.0, {}

    many = len(task.CLIENTS)
    processes = [multiprocessing.get_context("spawn").Process(target=client, args=(cid,)) for cid in range(many)]
    for process in processes:
        process.start()
    start_server(
        server_address=ADDRESS,
        config=ServerConfig(num_rounds=task.ROUNDS),
        strategy=FedAvg(
            fraction_evaluate=0.0, min_fit_clients=many, min_available_clients=many, evaluate_fn=evaluate,
            initial_parameters=ndarrays_to_parameters(numbers_of(model)),
        ),
    )  # fmt: skip
    for process in processes:
        process.join()


if __name__ == "__main__":
    main()
