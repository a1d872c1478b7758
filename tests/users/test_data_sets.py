"""Own data: map-style data sets as torchvision and Hugging Face have them, groups, workers; and many tasks at once."""

from __future__ import annotations

import random
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import warpgrad as wg
from warpgrad.keys import generator
from warpgrad.tasks.base import check_repeats


class Pictures(Dataset):
    """As torchvision's: pairs, `targets`, and a transform that draws from everywhere."""

    def __init__(self, classes: int = 6, each: int = 8, noisy: bool = False) -> None:
        self.targets = [label for label in range(classes) for _ in range(each)]
        self.data = torch.randn(len(self.targets), 5, generator=generator(3))
        self.noisy = noisy

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.data[index]
        if self.noisy:
            image = image + torch.rand(5) + random.random()
        return image, self.targets[index]


class Table(Dataset):
    """As Hugging Face's: mappings, `column_names`, columns by name."""

    def __init__(self) -> None:
        draw = generator(4)
        self.columns = {
            "x": torch.randn(40, 5, generator=draw).tolist(),
            "label": torch.randint(3, (40,), generator=draw).tolist(),
            "user": [f"user {i % 5}" for i in range(38)] + ["rare"] * 2,
        }
        self.column_names = list(self.columns)

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index):
        if isinstance(index, str):
            return self.columns[index]
        row = {name: values[index] for name, values in self.columns.items()}
        return {**row, "x": torch.tensor(row["x"])}


class Named(nn.Module):
    def __init__(self, outputs: int = 3) -> None:
        super().__init__()
        self.lower, self.head = nn.Linear(5, 8), nn.Linear(8, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.lower(x)))


def places_of(data: Pictures, images: Tensor) -> list[int]:
    """Which examples of the data set these images are."""
    return [int((data.data == image).all(dim=1).nonzero()) for image in images]


def equal(one, other) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_batches_repeat_cover_an_epoch_and_differ_by_seed_step_and_role():
    data = Pictures(noisy=True)
    task = wg.DatasetTask(data, F.cross_entropy, batch_size=12, seed=1)
    check_repeats(task)
    again = wg.DatasetTask(data, F.cross_entropy, batch_size=12, seed=1)
    for k in (5, 0, 3):
        assert equal(task.adapt_batch(k), again.adapt_batch(k))
    others = [task.adapt_batch(1), task.meta_batch(0), task.with_seed(2).adapt_batch(0)]
    assert not any(torch.equal(task.adapt_batch(0)[0], other[0]) for other in others)
    epoch = [index for k in range(4) for index, _ in task.places("adapt", k)]
    assert sorted(epoch) == list(range(48))
    assert epoch != [index for k in range(4, 8) for index, _ in task.places("adapt", k)]


def test_drawing_a_batch_leaves_the_callers_generators_alone():
    task = wg.DatasetTask(Pictures(noisy=True), F.cross_entropy, batch_size=4)
    torch.manual_seed(7), random.seed(7)
    before = torch.get_rng_state().clone(), random.getstate()
    task.adapt_batch(0)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


def test_workers_load_the_same_batches_in_any_order():
    data = Pictures(noisy=True)
    alone = wg.DatasetTask(data, F.cross_entropy, batch_size=6, seed=1)
    shared = wg.DatasetTask(data, F.cross_entropy, batch_size=6, seed=1, workers=1)
    for k in (0, 1, 1, 2, 0):
        assert equal(alone.adapt_batch(k), shared.adapt_batch(k)), k


def test_a_hugging_face_table_calls_the_model_by_column():
    task = wg.DatasetTask(
        [{key: value for key, value in Table()[i].items() if key != "user"} for i in range(40)],
        F.cross_entropy, batch_size=8, test=[{"x": torch.zeros(5), "label": 1}], metrics={"accuracy": wg.accuracy},
    )  # fmt: skip
    learner = wg.Learner(Named(), warp="lower")
    _, curve = wg.adapt(learner, task, rule=wg.SGD(0.1), steps=2, curve=True)
    assert set(curve.scores[-1]) == {"loss", "accuracy"}


@pytest.mark.parametrize("make", [Pictures, Table, lambda: TensorDataset(torch.randn(30, 5), torch.arange(30) % 3)])
def test_few_shot_tasks_hold_each_class_equally_under_new_numbers(make):
    data = make()
    hidden = {
        "collate": lambda rows: torch.utils.data.default_collate([{"x": r["x"], "label": r["label"]} for r in rows])
    }
    options = hidden if isinstance(data, Table) else {}
    family = wg.FewShotFamily(
        data, F.cross_entropy, ways=3, shots=2, query=4, metrics={"accuracy": wg.accuracy}, **options
    )
    task = family.sample(5)
    support, query = task.adapt_batch(0), task.meta_batch(0)
    labels = [batch["label"] if isinstance(batch, dict) else batch[1] for batch in (support, query)]
    assert [torch.bincount(one).tolist() for one in labels] == [[2] * 3, [4] * 3]
    assert task.places("adapt", 0) != []
    check_repeats(task)
    drawn = [str(family.sample(seed).adapt_batch(0)) for seed in (5, 5, 6)]
    assert drawn[0] == drawn[1] != drawn[2]
    learner = wg.Learner(Named(), warp="lower")
    records = wg.meta_train(
        learner, family, algorithm=wg.Online(steps=1, tasks=2), rule=wg.SGD(0.1), objective=wg.Exact(),
        optimiser=partial(torch.optim.Adam, lr=1e-2), meta_steps=2,
    )  # fmt: skip
    assert len(records) == 2


def test_few_shot_examples_of_support_and_query_do_not_meet():
    data = Pictures()
    task = wg.FewShotFamily(data, F.cross_entropy, ways=2, shots=3, query=5, in_memory=False).sample(0)
    support, query = (places_of(data, batch[0]) for batch in (task.adapt_batch(0), task.meta_batch(0)))
    assert (len(set(support)), len(set(query))) == (6, 10)
    assert not set(support) & set(query)
    for batch, places in ((task.adapt_batch(0), support), (task.meta_batch(0), query)):
        classes = {(int(number), data.targets[place]) for number, place in zip(batch[1], places, strict=True)}
        assert len(classes) == len({number for number, _ in classes}) == len({own for _, own in classes}) == 2


def test_one_task_per_user_with_shares_of_its_own():
    tasks = wg.tasks_by_group(Table(), "user", F.cross_entropy, batch_size=4, metrics={"accuracy": wg.accuracy})
    assert [task.name for task in tasks] == [f"user {i}" for i in range(5)]  # 'rare' has too few
    drawn = tasks[0].adapt_batch(0), tasks[0].meta_batch(0), *tasks[0].test_batches()
    assert [len(batch["label"]) for batch in drawn] == [4, 2, 2]
    rows = sorted(row for batch in drawn for row in batch["x"].tolist())
    assert rows == sorted(torch.tensor(Table().columns["x"])[0:38:5].tolist())
    assert "user" not in tasks[0].adapt_batch(0)
    scores = wg.score(wg.Learner(Named(), warp="lower"), tasks, rule=wg.SGD(0.1), steps=1)
    assert set(scores) == {"loss", "accuracy"}


class Stream(IterableDataset):
    def __iter__(self):
        return iter(())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: wg.DatasetTask(Stream(), F.mse_loss), "IterableDataset, whose examples cannot be accessed by index"),
        (lambda: wg.DatasetTask(DataLoader(Pictures()), F.mse_loss), "is a DataLoader: pass its dataset"),
        (lambda: wg.DatasetTask(3, F.mse_loss), r"must have len\(\.\.\.\) and dataset\[index\]"),
        (lambda: wg.DatasetTask([], F.mse_loss, name="user 3"), "task 'user 3' is empty"),
        (lambda: wg.DatasetTask(Pictures(), F.mse_loss, batch_size=49), "batches of 49 from 48 examples"),
        (
            lambda: wg.FewShotFamily(Pictures(), F.mse_loss, ways=7, shots=1, query=1),
            "7-way tasks .* has only 6 \\(of 6\\)",
        ),
        (lambda: wg.FewShotFamily(Pictures(), F.mse_loss, ways=2, shots=1, query=1, labels=[1]), "1 labels for 48"),
        (lambda: wg.tasks_by_group(Table(), "site", F.mse_loss), "no column 'site', only x, label, user"),
        (lambda: wg.tasks_by_group(Table(), "user", F.mse_loss, meta=0.5, test=0.5), "leave nothing to adapt to"),
    ],
)
def test_data_that_cannot_be_used_is_named(call, words):
    with pytest.raises(wg.WarpgradError, match=words):
        call()


def regression(seed: int) -> wg.SupervisedTask:
    draw = generator(seed, "many")
    x = torch.randn(8, 5, generator=draw)
    return wg.SupervisedTask(x, x[:, :3] * seed, F.mse_loss, batch_size=4, seed=seed)


class Normed(Named):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(torch.tanh(self.lower(x))))


@pytest.mark.parametrize("batch_norm", ["running", "corrected", "batch"])
@pytest.mark.parametrize("stacked", [True, False])
def test_many_tasks_adapt_as_each_alone_and_are_served_in_one_call(stacked, batch_norm):
    torch.manual_seed(0)
    learner = wg.Learner(Normed(), warp="lower", batch_norm=batch_norm)
    tasks = [regression(seed) for seed in range(5)]
    if not stacked:
        for task in tasks:
            task.stack_key = None
    adapted = wg.adapt_many(learner, tasks, rule=wg.SGD(0.1), steps=3, chunk=2)
    assert adapted.stacked is stacked
    x = torch.randn(5, 7, 5)
    together = adapted(x)
    assert together.shape == (5, 7, 3)
    for index, task in enumerate(tasks):
        alone = wg.adapt(learner, task, rule=wg.SGD(0.1), steps=3)
        with torch.no_grad():
            torch.testing.assert_close(together[index], alone(x[index]), rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(adapted.module(index)(x[index]), alone(x[index]), rtol=1e-4, atol=1e-5)
    with pytest.raises(wg.WarpgradError, match="one entry for each of 5 tasks in dimension 0, not length 4"):
        adapted(x[:4])
    with pytest.raises(wg.WarpgradError, match="a list of at least one task"):
        wg.adapt_many(learner, [], rule=wg.SGD(0.1), steps=1)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(5, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(x.unsqueeze(1))[0][:, -1])


def test_models_that_cannot_be_mapped_are_served_one_by_one():
    learner = wg.Learner(Recurrent(), warp="gru")
    adapted = wg.adapt_many(learner, [regression(0), regression(1)], rule=wg.SGD(0.1), steps=2)
    x = torch.randn(2, 4, 5)
    found = adapted(x)
    with torch.no_grad():
        torch.testing.assert_close(found[1], adapted.module(1)(x[1]), rtol=1e-4, atol=1e-5)
