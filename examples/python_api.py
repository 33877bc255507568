"""An experiment from Python: run it, read its record, use its models."""

import fedstill

if __name__ == "__main__":  # worker processes import this file again
    reviews = {"path": "reviews.csv", "text": ["title", "body"], "label": "stars", "domain": "shop"}  # or a DataFrame
    models = ["bow", "textcnn", "bert-tiny"]  # of books, garden and toys
    record = fedstill.run(fedstill.Experiment(name="from-python", corpus=reviews, clients=models, rounds=2))
    print(record.f1("server"), record.f1("books"), record.summary["bytes"])
    print(record.gain())  # what each shop had alone, and has now; .gain().to_pandas()

    later = fedstill.Record("runs/from-python/seed-0")  # a run of any time: .metrics, .ledger, .notes
    kite = [("about the kite", "it was lovely and perfect")]
    print(later.model("books").predict(kite).labels)  # of every kind of model: .module, .tokenizer, .labels
    classify = later.model("server").pipeline()  # transformers' own, for its models
    print(classify({"text": kite[0][0], "text_pair": kite[0][1]}))
