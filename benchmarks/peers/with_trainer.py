"""DS-FL as a plain loop over transformers' Trainer: a Trainer a phase, as its users write it."""

import tempfile

import task
import torch
from torch import Tensor, nn
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments


class Distiller(Trainer):
    """Learns from probabilities."""

    def compute_loss(self, model: nn.Module, inputs: dict[str, Tensor], *_: object, **__: object) -> Tensor:
        teacher = inputs.pop("labels")
        return task.kl(model(**inputs).logits, teacher)


class Begun(TrainerCallback):
    def on_step_end(self, args: object, state: object, control: object, **_: object) -> None:
        if state.global_step == 1:
            task.said("batch")


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        arguments = TrainingArguments(
            output_dir=scratch, use_cpu=True, per_device_train_batch_size=task.BATCH, num_train_epochs=task.EPOCHS,
            per_device_eval_batch_size=task.BATCH, learning_rate=task.RATE, lr_scheduler_type="constant", report_to=[],
            save_strategy="no", logging_strategy="no", disable_tqdm=True, remove_unused_columns=False,
            dataloader_pin_memory=False,
        )  # fmt: skip

        def trainer(kind: type[Trainer], model: nn.Module, texts: task.Texts) -> Trainer:
            made = kind(model, arguments, train_dataset=texts, data_collator=task.collate, callbacks=[Begun()])
            made.remove_callback(PrinterCallback)
            return made

        def predict(model: nn.Module, texts: task.Texts) -> Tensor:
            return torch.from_numpy(trainer(Trainer, model, task.PUBLIC).predict(task.Texts(texts.ids)).predictions)

        server, clients = task.new_model(), [task.new_model() for _ in task.CLIENTS]
        teacher = None
        for _ in range(task.ROUNDS):
            opinions = []
            for model, rows in zip(clients, task.CLIENTS, strict=True):
                if teacher is not None:
                    trainer(Distiller, model, task.Texts(task.PUBLIC.ids, teacher)).train()
                trainer(Trainer, model, rows).train()
                predict(model, task.TEST)
                opinions.append(predict(model, task.PUBLIC).softmax(-1))
            teacher = task.sharpened(opinions)
            trainer(Distiller, server, task.Texts(task.PUBLIC.ids, teacher)).train()
            predict(server, task.TEST)
            task.said("round")


if __name__ == "__main__":
    main()
