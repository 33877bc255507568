"""The page: benchmarks/README.md from all results there are."""

from __future__ import annotations

from textwrap import wrap
from typing import Any

import clients
import growth
import int8
import noise
import peers
import products
import rounds
import same_result
import speed
from plain import BATCH, WIDTH
from turns import TURNS

GPU_TARGETS = [
    ("bert-base", "five", "tflops", 250),
    ("bert-base", "one", "tflops", 170),
    ("bert-base", "five", "ratio", 12),
    ("minilm", "five", "ratio", 20),
    ("bert-tiny", "five", "ratio", 20),
    ("bert-base", "five", "tflops", 395),
]
"""Model, clients, useful TFLOP/s or times the plain loop. The last is a stretch: half of the card's large products."""

Found = dict[str, dict[str, Any]]


def page(found: Found, machines: dict[str, dict[str, Any]], cores: object) -> str:
    """All parts, one after the other; what was never measured is left out."""
    parts = [
        *introduction(cores),
        f"## Speed: tweets, batch {BATCH}, one epoch",
        "",
        *speed.lines(found),
        *by_product(found, machines),
        "## A whole round of AdaFD, evaluations included",
        "",
        *text(
            f"{rounds.CLIENTS} clients and the server, the local engine in one process with one thread; ours writes a "
            "checkpoint too. The last column is two worker processes against one: `workers: auto` is one a core."
        ),
        *rounds.lines(found),
        "## The same result: AdaFD's F1 with the fast path and without",
        "",
        *text(
            "The server's weighted F1 on the test rows after the last round, five paired seeds: the same rows, first "
            "models and orders, other dropout masks. Again with `python benchmarks/same_result.py --jobs 2`."
        ),
        *same_result.lines(found.get("same-result", {})),
        "## Growth with the public set, the length and the classes",
        "",
        *growth.lines(found),
        *many_clients(found),
        *in_eight_bits(found),
        *others(found, machines),
        *gpu(found, machines),
        *gpu_rounds(found, machines),
        *conversation(found),
        *noise.lines(found),
        *exchange(found),
        *memory(found),
    ]
    return "\n".join(parts)


def text(words: str) -> list[str]:
    """A paragraph."""
    return [*wrap(words, 118, break_on_hyphens=False, break_long_words=False), ""]


def introduction(cores: object) -> list[str]:
    """What is measured, how, and with which clock."""
    return [
        "# Benchmarks",
        "",
        *text(
            f"Written by `make bench` (`python benchmarks/run.py speed rounds` for parts of it) on {cores} cores, "
            "one thread a process. `results/*.json` has every number, and on which machine it was measured."
        ),
        *text(
            f"A ratio is the median of {TURNS['bert-tiny']} ratios of neighbours in time ({TURNS['minilm']} for minilm "
            "and for growth), after one to warm up, with the lowest and the highest: the ways take turns in a process. "
            "Seconds and ratios are of this process's CPU time unless a column says clock, because other processes of "
            "a machine change it little. These were measured beside other work on both cores, in 5 turns for minilm's "
            "speed too; those of two workers, which are by the clock, on idle ones."
        ),
        *text(
            f"The plain loop (`plain.py`) is what the papers' code does: texts tokenised and padded to {WIDTH} before, "
            f"batches of {BATCH} through the Hugging Face model's own forward (with torch's attention, as it comes), "
            "fp32, torch's AdamW as it comes, a linear schedule, a fresh optimiser a phase; prediction in order. "
            "`transformers.Trainer` is as it comes too: batches padded to their longest, a fused AdamW, gradients "
            "clipped. All have the same dropout and the same steps; tokens and models are made before. Tweets are "
            "short, so that much of what is gained on them is padding; on texts that fill their length (growth, below) "
            "a step is two to three times as fast."
        ),
    ]


def by_product(found: Found, machines: dict[str, dict[str, Any]]) -> list[str]:
    """What computes the products."""
    if "products" not in found:
        return []
    return [
        "### The encoder's products",
        "",
        *text(
            f"On {machines['products']['processor']}. Torch multiplies fp32 by MKL, which uses AVX-512 on Intel's "
            "processors only; we ask oneDNN on others that have it. `precision: bf16` rounds the factors. Again: "
            "`python benchmarks/run.py products`."
        ),
        *products.lines(found["products"]),
    ]


def many_clients(found: Found) -> list[str]:
    """Growth with the number of clients, and the framework's own share of a round."""
    results = {
        what: values
        for part in ("clients-overhead", "clients-active", "clients-growth")
        for what, values in found.get(part, {}).items()
    }
    if not results:
        return []
    return [
        "## Growth with the clients: seconds by the clock, and memory",
        "",
        *text(
            "AdaFD, bert-tiny, iid tweets, one epoch, 32 tokens, a worker a core. A round is its phases (the "
            "method's work, of the server and of the busier worker), its state (reading, writing and building clients) "
            "and the rest; overhead is the rest in percent of the round. Peak memory is of all processes together, "
            "shared pages once."
        ),
        *clients.lines(results),
        "",
    ]


def in_eight_bits(found: Found) -> list[str]:
    """`int8`."""
    if "int8" not in found:
        return []
    return [
        "## Prediction in eight bits: `fedstill predict --int8`",
        "",
        *text(
            "Tweets that the model did not learn from, one thread. Torch's own way is its dynamic quantisation of the "
            "Hugging Face module, on the same batches. Again: `python benchmarks/run.py int8`."
        ),
        *int8.lines(found["int8"]),
    ]


def others(found: Found, machines: dict[str, dict[str, Any]]) -> list[str]:
    """Other frameworks."""
    results, machine = found.get("peers", {}), machines.get("peers", {})
    if not results:
        return []
    sizes = "; ".join(
        f"{model}: {rows['private']} private rows, {rows['public']} public, {rows['test']} test"
        for model, rows in ((model, results[model]["rows"]) for model in peers.WORKS if model in results)
    )
    return [
        "## Other frameworks, the same work",
        "",
        *text(
            f"Tweets, {peers.CLIENTS} clients and a server, one epoch, batches of {BATCH}, AdamW at a constant rate; "
            f"{sizes}. DS-FL where a peer has it or can be written in it as its users do; else FedAvg on both sides. "
            "Everybody reads the same tokens and begins with the same model, with one torch thread for each client "
            "that computes; the processes take turns on one machine. Batches of all but the authors' are padded to "
            "their longest text. Every client is measured on the test rows once a round in DS-FL, and the server; ours "
            "is measured twice, and checks and counts what is sent. By default ours writes a checkpoint every round "
            "besides, and the others none: it is measured with and without. Medians of rounds after the first, all "
            "processes of a peer together. BlazeFL asks for Python 3.12; pip was told to ignore that, and its threads "
            "share one interpreter lock here. The scripts: `benchmarks/peers/`; again: "
            "`python benchmarks/run.py peers` (it makes environments in a temporary folder with pip)."
        ),
        *text(
            f"Measured on {machine.get('cores', '?')} cores ({machine.get('machine', '?')}, torch "
            f"{machine.get('torch', '?')}), load before {machine.get('load_before', '?')}: by the clock, other work of "
            "the machine counts."
        ),
        *peers.lines(results),
    ]


def gpu(found: Found, machines: dict[str, dict[str, Any]]) -> list[str]:
    """The GPU's rows, measured on another machine."""
    results = found.get("gpu-h200", {})
    if not results:
        return []
    machine = machines["gpu-h200"]
    ways = ("plain", "trainer", "one", "five, streams", "five, stacked")
    return [
        f"## GPU: training on Amazon reviews, batch {BATCH}, {machine.get('gpu', 'a GPU')}, torch {machine['torch']}",
        "",
        *text(
            "Useful TFLOP/s: 6 x parameters that are not embeddings x real tokens, a second. The plain loop is fp32, "
            f"padded to {WIDTH}; the others are bf16. By the clock. Again, on a machine with a GPU:"
        ),
        "    python benchmarks/gpu.py --pack ../shared/data/amazon reviews.npz && python benchmarks/gpu.py reviews.npz",
        "",
        "| model | way | useful TFLOP/s | tokens a second | times the plain loop |",
        "|---|---|---|---|---|",
        *(_gpu_row(name, way, values) for name, values in results.items() for way in ways if way in values),
        "",
        *_gpu_targets(results),
        *_gpu_profiles(results),
    ]


def _gpu_row(name: str, way: str, values: dict[str, Any]) -> str:
    own, plain = values[way], values["plain"]
    per_token = plain["tflops"] / plain["tokens_per_s"]
    times = f"{own.get('ratio', own['tokens_per_s'] / plain['tokens_per_s']):.1f}"
    spread = f" ({own['low']:.1f} - {own['high']:.1f})" if "low" in own else " (one turn)"
    return (
        f"| {name} | {way} | {own['tokens_per_s'] * per_token:.1f} | {own['tokens_per_s']:.0f} "
        f"| {times}{'' if way == 'plain' else spread} |"
    )


def _gpu_targets(results: dict[str, Any]) -> list[str]:
    """The better of streams and a stack counts, as in a run."""
    rows = []
    for name, many, what, target in GPU_TARGETS:
        if name in results:
            best = max(values[what] for way, values in results[name].items() if way.startswith(many))
            unit = "useful TFLOP/s" if what == "tflops" else "times the plain loop"
            rows.append(f"| {name}, {many} | {unit} | {target} | {best:.0f} |")
    return ["| clients | what | target | measured |", "|---|---|---|---|", *rows, ""]


def _gpu_profiles(results: dict[str, Any]) -> list[str]:
    kinds = ("products", "attention", "pointwise", "embedding", "optimiser", "gaps", "step")
    profiles = {
        (name, way): values[f"profile, {way}"]
        for name, values in results.items()
        for way in ("five", "one")
        if f"profile, {way}" in values
    }
    return [
        "Milliseconds of a step by kind of work; gaps are what is left of the step's time.",
        "",
        f"| model, clients | {' | '.join(kinds)} | graphs captured, s | memory GiB |",
        "|---|" + "---|" * (len(kinds) + 2),
        *(
            f"| {name}, {way} | {' | '.join(f'{profile.get(kind, 0):.2f}' for kind in kinds)} "
            f"| {_captures(results[name])} | {results[name].get('memory_gib', float('nan')):.1f} |"
            for (name, way), profile in profiles.items()
        ),
        "",
    ]


def gpu_rounds(found: Found, machines: dict[str, dict[str, Any]]) -> list[str]:
    """Rounds of methods that take their steps one by one, as captured graphs and without."""
    results = found.get("gpu-rounds-h200", {})
    if not results:
        return []
    machine = machines["gpu-rounds-h200"]
    return [
        f"## GPU: rounds whose phases are taken step by step, {machine['gpu']}, torch {machine['torch']}",
        "",
        *text(
            "Five minilm clients and a server, the second round of a run: with `fast: {steps: false}` (ordinary), and "
            "with open stacks, the default. By the clock, with the machine's other work paused; one turn. An exchange "
            "is the time from one call of the clients to the next, a median. The target for FedID is 15 ms. Rounds of "
            "FedSND and FedGKD were not measured. Again: `python benchmarks/gpu_rounds.py FedID --out FILE`."
        ),
        "| method | exchange, ordinary | open stacks | round, ordinary | open stacks |",
        "|---|---|---|---|---|",
        *(
            f"| {method} | {both['ordinary']['exchange_ms']:.1f} ms | {both['open']['exchange_ms']:.1f} ms | "
            f"{both['ordinary']['round_s']:.1f} s | {both['open']['round_s']:.1f} s |"
            for method, both in results.items()
        ),
        "",
    ]


def _captures(values: dict[str, Any]) -> str:
    capture = values.get("capture")
    return "" if capture is None else f"{capture['graphs']}, {capture['seconds']:.1f}"


def conversation(found: Found) -> list[str]:
    """What FedID's exchanges cost."""
    return [
        "## Conversation: CPU time of a round in the local engine over that of plain method calls, in percent",
        "",
        "| what | percent more | lowest and highest of 5 | exchanges | CPU s a round |",
        "|---|---|---|---|---|",
        *(
            f"| {what} | {v['percent']:.1f} | {v['low']:.1f} to {v['high']:.1f} | {v['exchanges']} "
            f"| {v['round_s']:.1f} |"
            for what, v in found.get("conversation", {}).items()
        ),
        "",
    ]


def memory(found: Found) -> list[str]:
    """A federation under limits."""
    return [
        "## Memory: a federation of 100 clients on tweets, two rounds, all processes together",
        "",
        "| what | peak GiB |",
        "|---|---|",
        *(f"| {what} | {v['peak_gib']:.2f} |" for what, v in found.get("memory", {}).items()),
        "",
    ]


def exchange(found: Found) -> list[str]:
    """What a message there and one back cost."""
    engines = found.get("exchange", {})
    sizes = list(next(iter(engines.values()), {}))
    return [
        "## An exchange with three clients, nobody computes: milliseconds by the clock, median",
        "",
        *text(
            "There and back, both of that size, through the codec and the guard; `flare` is a whole federation on "
            "this machine, with TLS, three processes a site and the server's two."
        ),
        f"| engine | {' | '.join(sizes)} |",
        f"|---|{'---|' * len(sizes)}",
        *(f"| {name} | {' | '.join(f'{v:.0f}' for v in values.values())} |" for name, values in engines.items()),
        "",
    ]
