"""FedAvg in Apple's pfl-research: its simulated backend in one process, its own averaging and local training."""

import functools

import task
import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchDataDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn


class Classifier(nn.Module):
    """The model with the two methods that pfl asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.model = task.new_model()
        self.has_begun = False

    def loss(self, labels: Tensor, **batch: Tensor) -> Tensor:
        self.train()
        found = F.cross_entropy(self.model(**batch).logits, labels)
        if not self.has_begun:
            task.said("batch")
            self.has_begun = True
        return found

    @torch.no_grad()
    def metrics(self, labels: Tensor, **batch: Tensor) -> dict[str, Weighted]:
        self.eval()
        right = (self.model(**batch).logits.argmax(-1) == labels).sum().item()
        return {"accuracy": Weighted(right, len(labels))}


class Round(TrainingProcessCallback):
    def after_central_iteration(self, aggregate_metrics: object, model: object, *, central_iteration: int) -> tuple:
        task.said("round")
        return False, super().after_central_iteration(aggregate_metrics, model, central_iteration=central_iteration)[1]


def main() -> None:
    users = list(range(len(task.CLIENTS)))
    training = FederatedDataset(
        lambda user: PyTorchDataDataset(task.CLIENTS[user], shuffle=True, collate_fn=task.collate),
        get_user_sampler("minimize_reuse", users),
    )
    test = PyTorchDataDataset(task.TEST, collate_fn=task.collate)
    module = Classifier()
    model = PyTorchModel(
        module,
        local_optimizer_create=functools.partial(torch.optim.AdamW, weight_decay=0.0, fused=True),
        central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
    )
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=task.ROUNDS,
            evaluation_frequency=task.ROUNDS + 1,
            train_cohort_size=len(users),
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=training, val_data=training),
        model,
        NNTrainHyperParams(local_batch_size=task.BATCH, local_num_epochs=task.EPOCHS, local_learning_rate=task.RATE),
        NNEvalHyperParams(local_batch_size=task.BATCH),
        callbacks=[CentralEvaluationCallback(test, NNEvalHyperParams(local_batch_size=task.BATCH)), Round()],
    )


if __name__ == "__main__":
    main()
