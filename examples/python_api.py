"""An experiment from Python: run it, read its record, use its models."""

from transformers import AutoModelForSequenceClassification, AutoTokenizer

import fedstill

if __name__ == "__main__":  # worker processes import this file again
    reviews = {"path": "reviews.csv", "text": ["title", "body"], "label": "stars", "domain": "shop"}
    models = ["bow", "textcnn", "bert-tiny"]  # of books, garden and toys
    record = fedstill.run(fedstill.Experiment(name="from-python", corpus=reviews, clients=models, rounds=2))
    print(record.f1("server"), record.f1("books"), record.summary["bytes"])

    folder = record.model_folder("server")  # runs/from-python/seed-0/models/server
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    batch = tokenizer("about the kite", "it was lovely and perfect", return_tensors="pt")
    print(model.config.id2label[int(model(**batch).logits.argmax())])

    later = fedstill.Record(record.folder)  # a run of any time: .metrics, .ledger, .notes
    books = later.model("books")  # of every kind, the small ones too: .module, .tokenizer, .labels
    print(type(books.module).__name__, books.labels, len(later.metrics))
