import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from safetensors.numpy import load, save

from fedstill.common.errors import FedstillError
from fedstill.data.corpus import Corpus
from fedstill.data.partition import Partition, PartitionSpec, label_counts, split

BARE = {"public": 0.0, "validation": 0.0, "test": 0.0}


def make_corpus(labels, domains=None, groups=None, held_out=None, domain_names=None):
    labels = np.asarray(labels, np.int64)
    if domains is not None:
        domains = np.asarray(domains, np.int64)
        domain_names = domain_names or tuple(f"domain-{number}" for number in range(domains.max() + 1))
    return Corpus(
        name="sample",
        texts=[f"text {row}" for row in range(len(labels))],
        labels=labels,
        label_names=tuple(f"label-{number}" for number in range(max(labels, default=0) + 1)),
        domains=domains,
        domain_names=domain_names or (),
        groups=None if groups is None else np.asarray(groups, np.int64),
        held_out=None if held_out is None else np.asarray(held_out, np.bool_),
    )


def corpus_of_counts(counts, **more):
    """Rows in order: counts[domain][label] of each."""
    cells = [
        (domain, label) for domain, row in enumerate(counts) for label, size in enumerate(row) for _ in range(size)
    ]
    domains, labels = zip(*cells, strict=True)
    return make_corpus(labels, domains, **more)


def same(one: Partition, other: Partition) -> bool:
    first, second = one.to_arrays(), other.to_arrays()
    return first.keys() == second.keys() and all(np.array_equal(first[key], second[key]) for key in first)


def role_of_row(partition: Partition, rows: int) -> list[str]:
    roles = [""] * rows
    for key, array in partition.to_arrays().items():
        if not key.startswith("counts/"):
            for row in array:
                roles[row] = key.partition("/")[0]
    return roles


def total(parts) -> int:
    return sum(map(len, parts.values()))


@st.composite
def corpora(draw, grouped=True):
    """Every domain has enough rows of its own, outside groups, for any fractions drawn below."""
    domains = draw(st.integers(1, 3))
    sizes = [draw(st.integers(20, 45)) for _ in range(domains)]
    cells = [(domain, draw(st.integers(0, 3))) for domain, size in enumerate(sizes) for _ in range(size)]
    groups = list(range(len(cells)))
    if grouped:
        for group in range(draw(st.integers(0, 6))):
            for row in draw(st.lists(st.integers(0, len(cells) - 1), max_size=3)):
                groups[row] = 1000 + group
    held_out = None
    if draw(st.booleans()):
        chosen = draw(st.sets(st.integers(0, len(cells) - 1), max_size=8))
        held_out = [row in chosen for row in range(len(cells))]
    domain_of_row, labels = zip(*cells, strict=True)
    return make_corpus(labels, domain_of_row, groups, held_out)


@st.composite
def specs(draw):
    kind = draw(st.sampled_from(["domain", "dirichlet", "iid", "task_dirichlet"]))
    options = {
        "kind": kind,
        "public": draw(st.sampled_from([0.0, 0.2, 0.35])),
        "validation": draw(st.sampled_from([0.0, 0.1, 0.25])),
        "test": draw(st.sampled_from([0.0, 0.1, 0.2])),
        "rows_per_domain": draw(st.sampled_from([None, 15, 30])),
    }
    if options["public"]:
        options["labelled_public"] = draw(st.sampled_from([0.0, 0.3]))
    if kind == "domain":
        options |= {
            "global_test": draw(st.booleans()),
            "label_alpha": draw(st.sampled_from([None, 5.0])),
        }
    else:
        options["clients"] = draw(st.integers(1, 4))
    if kind == "task_dirichlet" and draw(st.booleans()):
        options |= {"clients": None, "alpha": 0.0}
    elif kind.endswith("dirichlet"):
        options |= {"alpha": draw(st.sampled_from([2.0, 100.0])), "reading": draw(st.sampled_from(["class", "hsu"]))}
    return PartitionSpec(**options)


@settings(max_examples=150, deadline=None)
@given(corpora(), specs(), st.integers(0, 2**40))
def test_every_partition_keeps_its_promises(corpus, spec, seed):
    try:
        partition = split(corpus, spec, seed)
    except FedstillError as error:  # drawn shares of a label that has one row may leave nothing of a small domain
        assume(spec.label_alpha is None or "each left a client without rows to train on" not in str(error))
        raise
    partition.check(len(corpus))
    assert same(partition, split(corpus, spec, seed))
    assert same(partition, Partition.from_arrays(partition.to_arrays()))
    assert partition.train.keys() == partition.validation.keys() == partition.test.keys()
    assert all(len(rows) for rows in partition.train.values())
    assert all(np.all(np.diff(rows) > 0) for rows in partition.to_arrays().values())
    assert sum(partition.counts.values()) == len(partition.unused)
    assert total(partition.global_test) == 0 or spec.global_test
    groups_cross_no_split(corpus, partition)
    if spec.is_by_domain:
        every_row_stays_in_its_domain(corpus, partition)
    else:
        groups_stay_with_one_client(corpus, partition)
    if spec.rows_per_domain is not None and corpus.held_out is None:
        used = np.setdiff1d(np.arange(len(corpus)), partition.unused)
        assert np.bincount(corpus.domains[used]).max() <= spec.rows_per_domain


def groups_cross_no_split(corpus, partition):
    roles = role_of_row(partition, len(corpus))
    held_out = np.zeros(len(corpus), np.bool_) if corpus.held_out is None else corpus.held_out
    for group in np.unique(corpus.groups):
        rows = np.flatnonzero(corpus.groups == group)
        expected = {"test"} if held_out[rows].any() else {roles[rows[0]]}
        assert {roles[row] for row in rows if held_out[row] or not held_out[rows].any()} == expected
        if held_out[rows].any():
            assert {roles[row] for row in rows if not held_out[row]} <= {"unused"}
    if held_out.any():
        assert {row for row, role in enumerate(roles) if role == "test"} == set(np.flatnonzero(held_out))


def every_row_stays_in_its_domain(corpus, partition):
    for parts in (partition.train, partition.validation, partition.test, partition.global_test):
        for client, rows in parts.items():
            assert {corpus.domain_names[domain] for domain in corpus.domains[rows]} <= {client}


def groups_stay_with_one_client(corpus, partition):
    holders: dict[int, set[str]] = {}
    for parts in (partition.train, partition.validation, partition.test):
        for client, rows in parts.items():
            for group in corpus.groups[rows]:
                holders.setdefault(int(group), set()).add(client)
    assert all(len(clients) == 1 for clients in holders.values())


fractions = st.floats(0, 0.45)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=6), fractions, fractions, fractions, st.integers(0, 99))
def test_fractions_are_exact_in_total_and_within_one_in_every_label(sizes, public, validation, test, seed):
    corpus = make_corpus(np.repeat(np.arange(len(sizes) + 1), [*sizes, 25]))
    spec = PartitionSpec(kind="iid", clients=1, public=public, validation=validation, test=test)
    partition = split(corpus, spec, seed)
    everything = label_counts(corpus, np.arange(len(corpus)))
    in_public = label_counts(corpus, partition.public)
    rest = everything - in_public
    assert in_public.sum() == round(public * everything.sum())
    assert np.all(np.abs(in_public - public * everything) < 1 + 1e-9)
    for fraction, part in ((validation, partition.validation), (test, partition.test)):
        counts = label_counts(corpus, part["client-1"])
        assert counts.sum() == round(fraction * rest.sum())
        assert np.all(np.abs(counts - fraction * rest) < 1 + 1e-9)


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "domain"},
        {"kind": "iid", "clients": 3},
        {"kind": "dirichlet", "clients": 3},
        {"kind": "dirichlet", "clients": 3, "reading": "hsu"},
    ],
)
def test_another_seed_gives_another_partition(options):
    corpus = corpus_of_counts([[50, 50], [50, 50]])
    spec = PartitionSpec(**options)
    assert same(split(corpus, spec, 7), split(corpus, spec, 7))
    assert not same(split(corpus, spec, 7), split(corpus, spec, 8))


def test_domain_fractions_on_a_hand_made_corpus():
    # toys: 100 rows -> 20 public (5 labelled), 80 left -> 8 validation, 8 test, 64 train; books is half of that.
    corpus = corpus_of_counts([[60, 40], [10, 40]], domain_names=("toys", "books"))
    partition = split(corpus, PartitionSpec(labelled_public=0.25), 0)
    assert partition.clients == ("books", "toys")
    assert list(partition.train) == ["books", "toys"]
    in_toys = corpus.domains[partition.public] == 0
    assert (in_toys.sum(), (~in_toys).sum()) == (15, 8)  # of 20 and 10, a quarter labelled: 5 and round(2.5) = 2
    assert np.bincount(corpus.domains[partition.labelled]).tolist() == [5, 2]
    together = np.concatenate([partition.public, partition.labelled])
    assert label_counts(corpus, together[corpus.domains[together] == 0]).tolist() == [12, 8]
    assert label_counts(corpus, together[corpus.domains[together] == 1]).tolist() == [2, 8]
    assert {name: len(rows) for name, rows in partition.train.items()} == {"books": 32, "toys": 64}
    assert {name: len(rows) for name, rows in partition.validation.items()} == {"books": 4, "toys": 8}
    assert {name: len(rows) for name, rows in partition.test.items()} == {"books": 4, "toys": 8}
    assert len(partition.unused) == 0
    assert partition.global_test == {}


def test_a_group_in_two_domains_has_one_role_in_both():
    domains = np.repeat([0, 1], 40)
    groups = np.tile(np.arange(40), 2)
    corpus = make_corpus(np.zeros(80), domains, groups)
    partition = split(corpus, PartitionSpec(), 3)
    for parts in (partition.train, partition.validation, partition.test):
        assert np.array_equal(parts["domain-0"] + 40, parts["domain-1"])
    assert len(partition.train["domain-0"]) == 40 - 8 - 3 - 3


@pytest.mark.parametrize("seed", range(5))
def test_the_global_test_is_as_large_as_each_clients_test(seed):
    corpus = corpus_of_counts([[700, 200, 100], [90, 60, 33], [11, 30, 13]])
    partition = split(corpus, PartitionSpec(global_test=True), seed)
    partition.check(len(corpus))
    sizes = {name: len(rows) for name, rows in partition.global_test.items()}
    assert sizes == {name: len(rows) for name, rows in partition.test.items()}
    # 1000 rows: g = 0.08 * (1000 - g) has the root 74.07.
    assert sizes["domain-0"] == 74


def test_global_test_labels_are_spread_as_dirichlet_draws():
    # The second moment of a share under Dir(0.8) over 4 labels is 0.8 * 1.8 / (3.2 * 4.2) = 0.1071.
    corpus = corpus_of_counts([[500] * 4] * 100)
    partition = split(corpus, PartitionSpec(global_test=True), 0)
    shares = [label_counts(corpus, rows) / len(rows) for rows in partition.global_test.values()]
    assert np.mean(np.square(shares)) == pytest.approx(0.1071, abs=0.012)


def test_rows_per_domain_caps_each_domain_by_label():
    corpus = corpus_of_counts([[300, 100], [10, 30]])
    partition = split(corpus, PartitionSpec(rows_per_domain=100, **BARE), 0)
    assert label_counts(corpus, partition.train["domain-0"]).tolist() == [75, 25]
    assert label_counts(corpus, partition.train["domain-1"]).tolist() == [10, 30]
    assert partition.counts == {"left over by rows_per_domain": 300}


def test_rows_per_domain_caps_a_corpus_without_domains_as_a_whole():
    corpus = make_corpus(np.repeat([0, 1, 2], [100, 60, 40]))
    partition = split(corpus, PartitionSpec(kind="iid", clients=1, rows_per_domain=20, **BARE), 0)
    assert label_counts(corpus, partition.train["client-1"]).tolist() == [10, 6, 4]


def test_label_alpha_keeps_the_largest_subset_with_the_drawn_shares():
    corpus = corpus_of_counts([[400, 400, 400]] * 30)
    partition = split(corpus, PartitionSpec(label_alpha=1.0, **BARE), 0)
    kept = np.array([label_counts(corpus, rows) for rows in partition.train.values()])
    # Largest: with equal sizes, the label with the largest share gives all its rows.
    assert np.all(kept.max(axis=1) == 400)
    # Under Dir(1) over three labels, E[sum of squared shares] = 3 * 2 / (3 * 4) = 0.5.
    assert np.mean(np.square(kept / kept.sum(axis=1, keepdims=True)).sum(axis=1)) == pytest.approx(0.5, abs=0.08)
    assert partition.counts == {"left over by label_alpha": len(corpus) - kept.sum()}


def test_label_alpha_still_fills_rows_per_domain():
    corpus = corpus_of_counts([[400, 400]])
    partition = split(corpus, PartitionSpec(label_alpha=1.0, rows_per_domain=50, **BARE), 0)
    assert len(partition.train["domain-0"]) == 50


@pytest.mark.parametrize("kind", ["domain", "iid", "dirichlet", "task_dirichlet"])
def test_held_out_rows_are_the_test_and_their_groups_do_not_leak(kind):
    # Rows 0-9 are held out; 10 and 11 say the same as row 0.
    groups = np.arange(110)
    groups[[10, 11]] = 0
    corpus = make_corpus(np.arange(110) % 2, np.arange(110) // 2 % 2, groups, np.arange(110) < 10)
    spec = PartitionSpec(kind=kind, clients=None if kind == "domain" else 2, test=0.5, alpha=1.0)
    partition = split(corpus, spec, 1)
    assert np.array_equal(np.sort(np.concatenate(list(partition.test.values()))), np.arange(10))
    assert partition.unused.tolist() == [10, 11]
    assert partition.counts == {"shares a group with a held-out row": 2}
    assert len(partition.public) == pytest.approx(98 * 0.2, abs=1)


def test_a_global_test_beside_held_out_rows_is_as_large_as_they_are():
    corpus = corpus_of_counts([[60, 60], [40, 40]], held_out=np.arange(200) % 10 == 0)
    partition = split(corpus, PartitionSpec(global_test=True), 0)
    assert [len(rows) for rows in partition.global_test.values()] == [12, 8]
    assert [len(rows) for rows in partition.test.values()] == [12, 8]


@pytest.mark.parametrize("reading", ["class", "hsu"])
def test_large_alpha_approaches_even_shares(reading):
    corpus = make_corpus(np.repeat([0, 1, 2, 3], 2500))
    spec = PartitionSpec(kind="dirichlet", clients=5, alpha=1e6, reading=reading, public=0.0)
    partition = split(corpus, spec, 0)
    for parts, expected in ((partition.train, 400), (partition.validation, 50), (partition.test, 50)):
        counts = np.array([label_counts(corpus, rows) for rows in parts.values()])
        # hsu draws its rows, so its counts scatter as a multinomial does.
        assert np.abs(counts - expected).max() <= (3 if reading == "class" else 5 * np.sqrt(expected))


@pytest.mark.parametrize("reading", ["class", "hsu"])
def test_skew_grows_as_alpha_falls(reading):
    corpus = make_corpus(np.repeat(np.arange(10), 500))

    def largest_share(alpha):
        spec = PartitionSpec(kind="dirichlet", clients=10, alpha=alpha, reading=reading, **BARE)
        counts = np.array([label_counts(corpus, rows) for rows in split(corpus, spec, 0).train.values()])
        return np.mean(counts.max(axis=1) / counts.sum(axis=1))

    shares = [largest_share(alpha) for alpha in (100.0, 1.0, 0.2)]
    assert shares == sorted(shares)
    assert shares[0] < 0.2
    assert shares[2] > 0.4


def test_class_reading_follows_the_dirichlet_moments():
    # A client's share of a class under Dir(1) over 4 clients has second moment 2 / (4 * 5) = 0.1.
    corpus = make_corpus(np.repeat(np.arange(400), 50))
    spec = PartitionSpec(kind="dirichlet", clients=4, alpha=1.0, **BARE)
    shares = np.array([label_counts(corpus, rows) for rows in split(corpus, spec, 0).train.values()]) / 50
    assert np.mean(np.square(shares)) == pytest.approx(0.1, abs=0.008)


def test_class_reading_gives_train_and_test_the_same_proportions():
    corpus = make_corpus(np.repeat([0, 1], 5000))
    spec = PartitionSpec(kind="dirichlet", clients=4, alpha=1.0, public=0.0, validation=0.0, test=0.5)
    partition = split(corpus, spec, 0)
    for client in partition.clients:
        difference = label_counts(corpus, partition.train[client]) - label_counts(corpus, partition.test[client])
        assert np.abs(difference).max() <= 1


def test_small_classes_are_not_always_cut_in_favour_of_the_same_clients():
    corpus = make_corpus(np.repeat(np.arange(200), 2))
    spec = PartitionSpec(kind="dirichlet", clients=4, alpha=1e6, **BARE)
    sizes = [len(rows) for rows in split(corpus, spec, 0).train.values()]
    assert min(sizes) > 75


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=40, max_size=90), st.integers(1, 7), st.sampled_from([0.01, 1.0, 50.0]))
def test_hsu_sizes_are_equal_within_one(labels, clients, alpha):
    spec = PartitionSpec(kind="dirichlet", clients=clients, alpha=alpha, reading="hsu")
    partition = split(make_corpus(labels), spec, 0)
    for parts in (partition.train, partition.validation, partition.test):
        sizes = [len(rows) for rows in parts.values()]
        assert max(sizes) - min(sizes) <= 1


def labels_for_most_rows(parts, labels):
    """How many of its labels cover 80% of a client's training rows, the mean over clients."""
    counts = [np.sort(np.bincount(labels[rows], minlength=10))[::-1] for rows in parts.train.values()]
    return np.mean([1 + np.argmax(np.cumsum(own) >= 0.8 * own.sum()) for own in counts])


def test_hsu_draws_clients_as_the_paper_does_row_by_row():
    """Hsu 2019: q ~ Dir(alpha p); every row's class is drawn by q, without the classes that are used up."""
    labels = np.arange(5000) % 10
    spec = PartitionSpec(kind="dirichlet", clients=20, alpha=0.5, reading="hsu", **BARE)
    ours = [labels_for_most_rows(split(make_corpus(labels), spec, seed), labels) for seed in range(6)]
    by_class = [
        labels_for_most_rows(split(make_corpus(labels), spec.model_copy(update={"reading": "class"}), seed), labels)
        for seed in range(6)
    ]
    random, theirs = np.random.default_rng(0), []
    for _ in range(6):
        left, covers = np.full(10, 500), []
        for _ in range(20):
            own, q = np.zeros(10, int), random.dirichlet(np.full(10, 0.05))
            for _ in range(250):
                open_ = np.where(left > 0, q, 0)
                chosen = random.choice(10, p=open_ / open_.sum() if open_.sum() > 0 else (left > 0) / (left > 0).sum())
                own[chosen] += 1
                left[chosen] -= 1
            covers.append(1 + np.argmax(np.cumsum(np.sort(own)[::-1]) >= 0.8 * own.sum()))
        theirs.append(np.mean(covers))
    assert np.mean(ours) == pytest.approx(np.mean(theirs), abs=0.25)
    assert np.mean(ours) < 2 < 3.5 < np.mean(by_class)


def test_hsu_with_a_tiny_alpha_gives_the_first_client_one_class():
    corpus = make_corpus(np.repeat([0, 1, 2, 3], 100))
    spec = PartitionSpec(kind="dirichlet", clients=20, alpha=1e-3, reading="hsu", **BARE)
    assert label_counts(corpus, split(corpus, spec, 0).train["client-01"]).max() == 20


def test_iid_deals_evenly_and_pads_client_names():
    partition = split(make_corpus(np.arange(105) % 3), PartitionSpec(kind="iid", clients=10, **BARE), 0)
    assert partition.clients == ("client-01", *(f"client-{number:02}" for number in range(2, 11)))
    assert sorted(map(len, partition.train.values())) == [10] * 5 + [11] * 5


def test_a_partition_survives_safetensors():
    corpus = corpus_of_counts([[30, 9], [12, 20]], domain_names=("sci/fi", "toys"), held_out=np.arange(71) == 3)
    partition = split(corpus, PartitionSpec(global_test=True, rows_per_domain=25, labelled_public=0.1), 0)
    loaded = Partition.from_arrays(load(save(partition.to_arrays())))
    assert same(partition, loaded)
    assert loaded.clients == ("sci/fi", "toys")
    assert loaded.counts == partition.counts


def row_numbers(*rows):
    return np.array(rows, np.int64)


@pytest.mark.parametrize(
    ("train", "public", "complaint"),
    [
        (row_numbers(0, 1), row_numbers(1, 2), "1 of 3 rows more than once, the first of them row 1"),
        (row_numbers(0), row_numbers(2), "1 of 3 rows nowhere, the first of them row 1"),
        (row_numbers(0, 1), row_numbers(2, 3), "names row 3, but the corpus has 3 rows"),
    ],
)
def test_check_says_which_row_is_wrong(train, public, complaint):
    none = row_numbers()
    partition = Partition({"a": train}, {"a": none}, {"a": none}, public, none, {}, none)
    with pytest.raises(FedstillError, match=complaint):
        partition.check(3)


def test_an_incomplete_saved_partition_is_refused():
    with pytest.raises(FedstillError, match="no labelled, test, unused, validation"):
        Partition.from_arrays({"train/a": row_numbers(0), "public": row_numbers(1)})


def test_more_clients_than_rows_is_refused():
    with pytest.raises(FedstillError, match=r"9 clients cannot share the 5 rows .* fewer clients"):
        split(make_corpus([0, 1, 0, 1, 0]), PartitionSpec(kind="iid", clients=9), 0)


def test_groups_count_once_against_the_number_of_clients():
    with pytest.raises(FedstillError, match=r"3 clients cannot share the 6 rows .*2 groups"):
        split(make_corpus([0] * 6, groups=[0, 0, 0, 1, 1, 1]), PartitionSpec(kind="iid", clients=3), 0)


def test_hopeless_skew_says_rows_clients_and_alpha():
    spec = PartitionSpec(kind="dirichlet", clients=8, alpha=0.01)
    with pytest.raises(FedstillError, match=r"20 rows, 8 clients, alpha 0\.01.*larger alpha.*hsu"):
        split(make_corpus([0] * 20), spec, 0)


def test_a_domain_that_gives_everything_away_is_named():
    corpus = corpus_of_counts([[50, 50], [1, 0]], domain_names=("toys", "books"))
    with pytest.raises(FedstillError, match=r"101 rows, 2 clients.*the last: books.*lower public"):
        split(corpus, PartitionSpec(public=0.9), 0)


def test_an_empty_domain_is_refused_by_name():
    corpus = corpus_of_counts([[5, 5]], domain_names=("toys", "books"))
    with pytest.raises(FedstillError, match="no rows to train on for books"):
        split(corpus, PartitionSpec(), 0)


def test_a_domain_of_held_out_rows_only_is_refused_by_name():
    corpus = corpus_of_counts([[5, 5], [3, 3]], domain_names=("toys", "books"), held_out=np.arange(16) >= 10)
    with pytest.raises(FedstillError, match="no rows to train on for books"):
        split(corpus, PartitionSpec(), 0)


def test_domain_kind_without_domains_says_what_to_do():
    with pytest.raises(FedstillError, match="`domain:` column, or use partition kind iid or dirichlet"):
        split(make_corpus([0, 1]), PartitionSpec(), 0)


def test_a_corpus_without_rows_is_refused():
    with pytest.raises(FedstillError, match="no rows"):
        split(make_corpus([]), PartitionSpec(kind="iid", clients=1), 0)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"clients": 3}, "clients belongs to kind dirichlet or iid or task_dirichlet, not to domain"),
        ({"alpha": 0.5}, "alpha belongs to kind dirichlet or task_dirichlet, not to domain"),
        ({"kind": "iid", "clients": 2, "reading": "hsu"}, "reading belongs to kind dirichlet"),
        ({"kind": "iid", "clients": 2, "global_test": True}, "global_test belongs to kind domain"),
        ({"kind": "dirichlet", "clients": 2, "label_alpha": 1.0}, "label_alpha belongs to kind domain"),
        ({"kind": "dirichlet"}, "needs `clients:`"),
        ({"kind": "iid", "clients": 0}, "greater than or equal to 1"),
        ({"test": 0.5, "validation": 0.5}, r"validation \+ test must stay below 1"),
        ({"public": 1.0}, "less than 1"),
        ({"public": 0.0, "labelled_public": 0.1}, "set public above 0"),
        ({"kind": "dirichlet", "clients": 2, "alpha": 0.0}, "greater than 0"),
        ({"rows_per_domain": 0}, "greater than or equal to 1"),
        ({"kind": "task_dirichlet"}, "kind task_dirichlet needs `clients:`"),
        ({"kind": "task_dirichlet", "clients": 2, "alpha": -1.0}, "greater than or equal to 0"),
        ({"kind": "task_dirichlet", "alpha": 0, "global_test": True}, "global_test belongs to kind domain"),
        ({"kind": "iid", "clients": 2, "alpha": 0}, "alpha belongs to kind"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options, complaint):
    with pytest.raises(ValidationError, match=complaint):
        PartitionSpec(**options)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"kind": "iid", "clients": 2},
        {"kind": "dirichlet", "clients": 3, "alpha": 5.0},
        {"kind": "task_dirichlet", "alpha": 0.0},
    ],
)
def test_a_resolved_specification_reads_back(options):
    spec = PartitionSpec(**options)
    assert PartitionSpec(**spec.model_dump()) == spec


def test_fewer_public_rows_leave_everybody_elses_as_they_were():
    labels = np.arange(400) % 2
    corpus = Corpus("made", [f"text {n}" for n in range(400)], labels, ("a", "b"))
    options = {"kind": "dirichlet", "clients": 4, "public": 0.5, "labelled_public": 0.1, "validation": 0.1}
    whole = split(corpus, PartitionSpec(**options), seed=3)
    fifth = split(corpus, PartitionSpec(**options, public_share=0.2, labelled_share=0.5), seed=3)
    tenth = split(corpus, PartitionSpec(**options, public_share=0.1), seed=3)
    for name in whole.clients:
        for part in ("train", "validation", "test"):
            np.testing.assert_array_equal(getattr(whole, part)[name], getattr(fifth, part)[name])
    assert (len(whole.public), len(fifth.public), len(tenth.public)) == (180, 36, 18)
    assert (len(whole.labelled), len(fifth.labelled)) == (20, 10)
    assert set(tenth.public) < set(fifth.public) < set(whole.public)
    np.testing.assert_array_equal(np.bincount(labels[fifth.public]), [18, 18])
    assert fifth.counts == {"left over by public_share or labelled_share": 144 + 10}
    fifth.check(400)


# Tasks


def test_a_client_a_task_divides_as_a_client_a_domain_does():
    corpus = corpus_of_counts([[30, 20], [25, 25], [40, 10]], domain_names=("cb", "rte", "wic"))
    alone = split(corpus, PartitionSpec(kind="task_dirichlet", alpha=0), 3)
    assert alone.clients == ("cb", "rte", "wic")
    assert same(alone, split(corpus, PartitionSpec(kind="domain"), 3))
    assert same(alone, split(corpus, PartitionSpec(kind="task_dirichlet", alpha=0, clients=3), 3))


def task_counts(corpus, partition):
    """Training rows by client and task."""
    many = len(corpus.domain_names)
    return np.array([np.bincount(corpus.domains[rows], minlength=many) for rows in partition.train.values()])


def test_tasks_are_cut_by_dirichlet_draws():
    # A client's share of a task under Dir(1) over 4 clients has second moment 2 / (4 * 5) = 0.1.
    corpus = corpus_of_counts([[25, 25]] * 400)
    spec = PartitionSpec(kind="task_dirichlet", clients=4, alpha=1.0, **BARE)
    assert np.mean(np.square(task_counts(corpus, split(corpus, spec, 0)) / 50)) == pytest.approx(0.1, abs=0.008)


def test_mixtures_of_tasks_have_equal_sizes_and_grow_pure_as_alpha_falls():
    corpus = corpus_of_counts([[100, 100]] * 8)

    def counts(alpha):
        spec = PartitionSpec(kind="task_dirichlet", clients=20, alpha=alpha, reading="hsu", **BARE)
        return task_counts(corpus, split(corpus, spec, 0))

    for alpha in (100.0, 0.5, 0.05):
        assert set(counts(alpha).sum(axis=1)) == {80}
    purity = [np.mean(counts(alpha).max(axis=1) / 80) for alpha in (100.0, 0.5, 0.05)]
    assert purity == sorted(purity)
    assert purity[2] > 0.6


def test_every_task_gives_its_fraction_of_the_public_rows():
    corpus = corpus_of_counts([[100, 0], [0, 50], [30, 10]])
    partition = split(corpus, PartitionSpec(kind="task_dirichlet", clients=3, alpha=1.0, public=0.2), 0)
    assert np.bincount(corpus.domains[partition.public]).tolist() == [20, 10, 8]


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 60)), min_size=60, max_size=120),
    st.integers(1, 5),
    st.sampled_from([0.5, 5.0]),
    st.sampled_from(["class", "hsu"]),
    st.integers(0, 99),
)
def test_dealt_tasks_are_disjoint_complete_and_never_leave_a_client_empty(rows, clients, alpha, reading, seed):
    domains, labels, groups = zip(*rows, strict=True)
    corpus = make_corpus(labels, domains, groups)
    spec = PartitionSpec(kind="task_dirichlet", clients=clients, alpha=alpha, reading=reading)
    partition = split(corpus, spec, seed)
    partition.check(len(corpus))
    assert same(partition, split(corpus, spec, seed))
    assert len(partition.clients) == clients
    assert all(len(mine) for mine in partition.train.values())
    groups_cross_no_split(corpus, partition)
    groups_stay_with_one_client(corpus, partition)


@pytest.mark.parametrize(
    ("corpus", "options", "complaint"),
    [
        (make_corpus([0, 1]), {"clients": 2}, "sample has no domains, so there is no task to divide"),
        (make_corpus([0, 1]), {"alpha": 0}, "sample has no domains, so there is no task to divide"),
        (
            corpus_of_counts([[9, 9], [9, 9]]),
            {"alpha": 0, "clients": 3},
            "alpha 0 is one client per task; sample has 2 tasks, not 3: leave `clients:` out",
        ),
        (
            corpus_of_counts([[9, 9], [1, 0]]),
            {"alpha": 0, "public": 0.9},
            r"100 task_dirichlet partitions .*2 clients, alpha 0\).*the last: domain-1.*leave the task out",
        ),
        (
            corpus_of_counts([[20]]),
            {"clients": 8, "alpha": 0.01},
            r"20 rows, 8 clients, alpha 0\.01.*larger alpha.*hsu",
        ),
    ],
)
def test_tasks_that_cannot_be_dealt_are_refused(corpus, options, complaint):
    with pytest.raises(FedstillError, match=complaint):
        split(corpus, PartitionSpec(kind="task_dirichlet", **options), 0)


def test_measured_on_validation_sets_the_test_rows_aside_and_halves_the_validation_rows():
    corpus = corpus_of_counts([[40, 40], [30, 50]])
    before = split(corpus, PartitionSpec(test=0.2, validation=0.2), 3)
    after = before.measured_on_validation()
    after.check(len(corpus))
    for name in before.clients:
        assert sorted([*after.validation[name], *after.test[name]]) == before.validation[name].tolist()
        assert abs(len(after.validation[name]) - len(after.test[name])) <= 1
        assert set(before.test[name]) <= set(after.unused)
        np.testing.assert_array_equal(before.train[name], after.train[name])
    assert after.counts["test rows, set aside"] == sum(map(len, before.test.values()))


def test_measured_on_validation_needs_two_rows_of_each_client():
    with pytest.raises(FedstillError, match="two validation rows for each client, and domain-0 has fewer"):
        split(corpus_of_counts([[40, 40], [30, 50]]), PartitionSpec(validation=0.0), 3).measured_on_validation()
