"""What a person hands over by mistake: one sentence that names the argument and what was meant."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import warpgrad as wg

ADAM = partial(torch.optim.Adam, lr=1e-3)


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def task(**options) -> wg.SupervisedTask:
    x, y = torch.ones(4, 3), torch.ones(4, 2)
    return wg.SupervisedTask(x, y, F.mse_loss, **{"test": (x, y), **options})


def family() -> wg.TaskFamily:
    return wg.TaskList([task()])


def train(*positional, **changes):
    options = {
        "algorithm": wg.Online(steps=1, tasks=1),
        "rule": wg.SGD(0.1),
        "objective": wg.Exact(),
        "optimiser": ADAM,
        "meta_steps": 1,
    }
    learner = wg.Learner(model(), warp="2")
    return wg.meta_train(*(positional or (learner, family())), **{**options, **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"algorithm": wg.Online}, r"algorithm=Online is a class: pass an instance"),
        ({"algorithm": "online"}, r"algorithm must be an Algorithm, e.g. Online\(.*\), not 'online'"),
        ({"rule": torch.optim.SGD}, "rule must be a Rule.*not the class SGD; the rule adapts θ"),
        ({"rule": 0.1}, r"rule must be a Rule, e.g. SGD\(0.1\), not 0.1"),
        ({"objective": wg.Exact}, "objective=Exact is a class"),
        ({"initialiser": wg.Leap}, "initialiser=Leap is a class"),
        ({"initialiser": "leap"}, "initialiser must be an Initialiser"),
        ({"optimiser": torch.optim.Adam([torch.zeros(1)])}, "optimiser is already an Adam: pass a function"),
        ({"optimiser": {"phi": torch.optim.Adam([torch.zeros(1)])}}, r"optimiser\['phi'\] is already an Adam"),
        ({"optimiser": 1e-3}, "optimiser must be a function"),
        ({"optimiser": lambda p: wg.SGD(0.1)}, "what optimiser= makes must be an Optimizer"),
        ({"clip": 0}, "clip=0.0: it must be greater than 0"),
        ({"clip": {"phi": -1.0}}, r"clip\['phi'\]=-1.0: it must be greater than 0"),
        ({"clip": "1"}, "clip must be a number, not '1'"),
        ({"schedule": torch.optim.lr_scheduler.StepLR}, None),
        ({"schedule": 3}, "schedule must be a function"),
        ({"meta_steps": "10"}, "meta_steps must be an integer, not '10'"),
        ({"meta_steps": 1.5}, "meta_steps must be an integer, not 1.5"),
        ({"meta_steps": True}, "meta_steps must be an integer, not True"),
        ({"seed": None}, "seed must be an integer, not None"),
        ({"weight": "1"}, "weight must be a number, not '1'"),
        ({"weight": float("nan")}, "weight=nan: it must be finite"),
        ({"validate": {"loss": 1.0}}, "validate must be a function"),
        ({"callbacks": print}, r"callbacks must be a list of callbacks"),
        ({"callbacks": [1]}, r"callbacks\[0\] must be a function"),
        ({"run": 3}, "run must be a path"),
        ({"config": [1]}, "config must be a mapping"),
        ({"config": {"width": torch.ones(2)}}, r"config\['width'\] is a Tensor, which cannot be written"),
        ({"progress": "yes"}, "progress must be True or False, not 'yes'"),
        ({"early_stopping": wg.EarlyStopping}, "early_stopping=EarlyStopping is a class"),
        ({"optimiser": wg.SGD}, r"optimiser= failed \(.*\): pass a function such as partial\(torch.optim.Adam"),
        ({"schedule": nn.Linear}, r"schedule= failed \(.*\): pass a function such as"),
        ({"validate": lambda learner: None}, "what validate= returns must be a mapping, .* not None"),
        ({"validate": lambda learner: {"loss": "low"}}, "what validate= returns must be numbers .*'loss' is 'low'"),
        ({"test": lambda learner: [1.0]}, "what test= returns must be a mapping, .* not a list"),
        ({"meta_steps": torch.ones(3)}, "meta_steps must be an integer, not a Tensor"),
        ({"weight": torch.ones(3)}, "weight must be a number, not a Tensor"),
    ],
)  # fmt: skip
def test_meta_train_names_the_argument(changes, words):
    if words is None:
        changes = {"schedule": partial(changes["schedule"], step_size=1)}
        assert len(train(**changes)) == 1
        return
    with pytest.raises(wg.WarpgradError, match=words):
        train(**changes)


@pytest.mark.parametrize(
    ("positional", "words"),
    [
        (lambda: (model(), family()), r"method must be a Learner.*make a learner of it"),
        (lambda: (wg.Learner, family()), "method=Learner is a class"),
        (lambda: (wg.Learner(model(), warp="2"), [task()]), r"make a family of it: TaskList\(tasks\)"),
        (lambda: (wg.Learner(model(), warp="2"), task()), r"a family of one task is TaskList\(\[task\]\)"),
        (lambda: (wg.Learner(model(), warp="2"), lambda seed: task()), r"FunctionFamily\(function\)"),
        (lambda: (wg.Learner(model(), warp="2"), wg.FunctionFamily(lambda seed: None)), "returned None as task 0"),
    ],
)
def test_meta_train_names_learner_and_tasks(positional, words):
    with pytest.raises(wg.WarpgradError, match=words):
        train(*positional())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: wg.Learner(nn.Linear), "module=Linear is a class: pass an instance"),
        (lambda: wg.Learner(torch.sin), "a plain function has no parameters"),
        (lambda: wg.Learner(model(), warp=3), "warp= takes a pattern"),
        (lambda: wg.Learner(model(), warp=[model()[0]]), "warp= lists a Linear: patterns must be strings"),
        (
            lambda: wg.Learner(model(), warp=lambda name, module: False),
            "predicate warp= is true for none of .* 4 param",
        ),
        (lambda: wg.Learner(model(), task=lambda name, module: False), "predicate task= is true for none"),
        (lambda: wg.Learner(model(), warp="2", start="zero"), "start must be a mapping"),
        (lambda: wg.Learner(model(), warp="2", allow_unused=1), "allow_unused must be True or False, not 1"),
        (lambda: wg.Learner(model().requires_grad_(False), warp="2"), "all parameters that warp= names are constant"),
    ],
)
def test_learner_names_the_argument(call, words):
    with pytest.raises(wg.WarpgradError, match=words):
        call()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"learner": model()}, "make a learner of it"),
        ({"task": [task()]}, "for several, adapt to each"),
        ({"task": family()}, r"family.sample\(seed\)"),
        ({"rule": torch.optim.SGD}, "warpgrad.SGD and warpgrad.Adam step like torch's"),
        ({"steps": "3"}, "steps must be an integer, not '3'"),
        ({"steps": 0}, "steps=0: it must be at least 1"),
        ({"key": 0.5}, "key must be an integer"),
        ({"curve": 1}, "curve must be True or False"),
    ],
)
def test_adapt_names_the_argument(changes, words):
    parts = {"learner": wg.Learner(model(), warp="2"), "task": task(), "rule": wg.SGD(0.1), "steps": 1, **changes}
    with pytest.raises(wg.WarpgradError, match=words):
        wg.adapt(parts.pop("learner"), parts.pop("task"), **parts)


def test_what_nothing_learns_is_refused():
    with pytest.raises(
        wg.WarpgradError, match=r"has 2 warp parameters \(2.weight, 2.bias, …\), but nothing learns them"
    ):
        train(objective=None, initialiser=wg.Leap())
    with pytest.raises(wg.WarpgradError, match="nothing is learned"):
        train(wg.Learner(model(), warp=()), family(), objective=None)
    train(objective=None, algorithm=wg.Unrolled(steps=1, tasks=1))


def test_a_schedule_that_waits_for_a_plateau_watches_the_meta_loss():
    made = []

    def schedule(optimiser):
        made.append(
            torch.optim.lr_scheduler.ReduceLROnPlateau(
                optimiser, factor=0.5, patience=0, threshold=1e9, threshold_mode="abs"
            )
        )
        return made[-1]

    train(schedule=schedule, meta_steps=4)
    # No loss is ever so much better: the first meta-step sets the mark, each of the others halves the rate.
    assert made[0].optimizer.param_groups[0]["lr"] == pytest.approx(1e-3 * 0.5**3)


class Broken(wg.SupervisedTask):
    def __init__(self, where: str, error: Exception) -> None:
        super().__init__(torch.ones(4, 3), torch.ones(4, 2), F.mse_loss, test=(torch.ones(4, 3), torch.ones(4, 2)))
        self.name, self._where, self._error = "user 7", where, error

    def adapt_batch(self, k: int) -> tuple[Tensor, Tensor]:
        if self._where == "adapt_batch" and k == 2:
            raise self._error
        return super().adapt_batch(k)

    def loss(self, forward, batch):
        if self._where == "loss":
            raise self._error
        return super().loss(forward, batch)

    def metrics(self, forward, batch):
        if self._where == "metrics":
            raise self._error
        return super().metrics(forward, batch)


@pytest.mark.parametrize(
    "error", [KeyError("label"), AttributeError("no such thing"), ValueError("bad"), OSError("gone")]
)
@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("adapt_batch", r"task 'user 7' failed in adapt_batch\(2\): {}"),
        ("loss", r"task 'user 7' failed in loss at step 0 on a batch of shapes \(\(4, 3\), \(4, 2\)\): {}"),
        ("metrics", r"task 'user 7' failed in metrics on test batch 0 .*: {}"),
    ],
)
def test_an_error_in_the_users_code_names_task_and_step(where, words, error):
    with pytest.raises(wg.WarpgradError, match=words.format(type(error).__name__)) as caught:
        wg.adapt(wg.Learner(model(), warp="2"), Broken(where, error), rule=wg.SGD(0.1), steps=3, curve=True)
    assert caught.value.__cause__ is error


class Uneven(wg.SupervisedTask):
    """Test batches of 3 and 1 examples, and a metric that only some tasks have."""

    def __init__(self, value: float, extra: float | None = None) -> None:
        super().__init__(torch.ones(4, 3), torch.ones(4, 2), F.mse_loss)
        self._values, self._extra = (value, value + 4), extra

    def test_batches(self):
        return [
            (torch.full((3, 1), self._values[0]), torch.ones(3)),
            (torch.full((1, 1), self._values[1]), torch.ones(1)),
        ]

    def metrics(self, forward, batch):
        scores = {"mean": float(batch[0].mean())}
        return scores if self._extra is None else {**scores, "extra": self._extra}


def test_score_is_a_mean_over_examples_then_over_the_tasks_that_have_the_metric():
    learner, rule = wg.Learner(model(), warp="2"), wg.SGD(0.1)
    tasks = [Uneven(0.0), Uneven(8.0, extra=5.0)]
    assert wg.score(learner, tasks, rule=rule, steps=1) == {"mean": 5.0, "extra": 5.0}
    per_task = wg.score(learner, tasks, rule=rule, steps=1, per_task=True)
    assert per_task == [{"mean": 1.0}, {"mean": 9.0, "extra": 5.0}]


def test_score_refuses_a_task_without_test_data_and_what_is_no_list():
    learner, rule = wg.Learner(model(), warp="2"), wg.SGD(0.1)
    with pytest.raises(wg.WarpgradError, match=r"task 'user 9' \(number 1\) has no test batches"):
        wg.score(learner, [task(), task(test=None, name="user 9")], rule=rule, steps=1)
    with pytest.raises(wg.WarpgradError, match=r"takes a list of tasks, not a TaskList"):
        wg.score(learner, family(), rule=rule, steps=1)
    with pytest.raises(wg.WarpgradError, match=r"tasks\[0\] must be a Task"):
        wg.score(learner, [None], rule=rule, steps=1)


class Thing:
    """What nobody meant."""


WRONG = {
    "nothing": None, "a word": "x", "a half": 1.5, "less than nothing": -3, "no number": float("nan"), "a list": [],
    "a list of things": [Thing()], "a thing": Thing(), "a class": nn.Linear, "a module": nn.Linear(1, 1),
    "a mapping": {"a": 1}, "a tensor": torch.ones(3), "yes": True, "bytes": b"ab", "a complex number": 1j,
    "a torch optimiser": torch.optim.Adam([torch.zeros(1)]),
}  # fmt: skip
SIGNATURES = {
    "meta_gradient": (lambda **given: wg.meta_gradient(**given), ("method", "tasks", "key", "algorithm"), lambda: {
        "method": wg.Method(wg.Learner(model(), warp="2"), wg.SGD(0.1), wg.Exact()), "tasks": [task()], "key": 0,
        "algorithm": wg.Online(steps=1, tasks=1),
    }),
    "evaluate": (wg.evaluate, ("learner", "task", "theta", "buffers"), lambda: {
        "learner": (learner := wg.Learner(model(), warp="2")), "task": task(), "theta": learner.theta0,
        "buffers": learner.buffers(),
    }),
    "score": (wg.score, ("learner", "tasks", "rule", "steps", "key", "per_task"), lambda: {
        "learner": wg.Learner(model(), warp="2"), "tasks": [task()], "rule": wg.SGD(0.1), "steps": 1,
    }),
    "adapt_many": (wg.adapt_many, ("learner", "tasks", "rule", "steps", "key", "chunk"), lambda: {
        "learner": wg.Learner(model(), warp="2"), "tasks": [task()], "rule": wg.SGD(0.1), "steps": 1,
    }),
    "check": (wg.check, ("learner", "task", "rule", "objective", "steps", "key"), lambda: {
        "learner": wg.Learner(model(), warp="2"), "task": task(), "rule": wg.SGD(0.1), "objective": wg.Exact(),
    }),
    "save": (wg.save, ("path", "method"), lambda: {"path": "/nowhere/x", "method": None}),
    "load": (wg.load, ("path", "learner", "rule", "objective", "initialiser"), lambda: {
        "path": "/nowhere/x", "learner": wg.Learner(model(), warp="2"),
    }),
    "load_run": (wg.load_run, ("path", "learner"), lambda: {
        "path": "/nowhere/x", "learner": wg.Learner(model(), warp="2"),
    }),
    "Method": (wg.Method, ("learner", "rule", "objective", "initialiser", "weight"), lambda: {
        "learner": wg.Learner(model(), warp="2"), "rule": wg.SGD(0.1), "objective": wg.Exact(),
    }),
    "MetaOptimiser": (wg.MetaOptimiser, ("method", "optimiser", "clip", "schedule"), lambda: {
        "method": wg.Method(wg.Learner(model(), warp="2"), wg.SGD(0.1), wg.Exact()), "optimiser": ADAM,
    }),
    "Online": (wg.Online, ("steps", "tasks", "include_last", "reduction", "backend", "chunk"), lambda: {
        "steps": 1, "tasks": 1,
    }),
    "Offline": (wg.Offline, ("steps", "tasks", "samples", "share", "interleave", "include_last", "budget"), lambda: {
        "steps": 1, "tasks": 1,
    }),
    "Continual": (wg.Continual, ("tasks", "batches", "reduction"), lambda: {"tasks": 1, "batches": 1}),
    "Unrolled": (wg.Unrolled, ("steps", "tasks", "reduction"), lambda: {"steps": 1, "tasks": 1}),
    "SGD": (wg.SGD, ("lr", "momentum", "nesterov", "weight_decay"), lambda: {"lr": 0.1}),
    "Adam": (wg.Adam, ("lr", "betas", "eps", "weight_decay"), lambda: {"lr": 0.1}),
    "Clip": (wg.Clip, ("rule", "norm"), lambda: {"rule": wg.SGD(0.1), "norm": 1.0}),
    "GaussianPrior": (wg.GaussianPrior, ("objective", "std"), lambda: {"objective": wg.Reptile()}),
    "Leap": (wg.Leap, ("loss", "norm", "stabilise"), dict),
    "EarlyStopping": (wg.EarlyStopping, ("metric", "patience", "mode"), lambda: {"metric": "loss", "patience": 1}),
    "SupervisedTask": (
        wg.SupervisedTask, ("inputs", "targets", "loss", "batch_size", "meta", "test", "metrics", "seed"),
        lambda: {"inputs": torch.ones(4, 3), "targets": torch.ones(4, 2), "loss": F.mse_loss},
    ),
    "TaskList": (wg.TaskList, ("tasks",), dict),
    "FunctionFamily": (wg.FunctionFamily, ("make",), dict),
    "Learner": (wg.Learner, ("module", "warp", "task", "constant", "start", "batch_norm", "allow_unused"), lambda: {
        "module": model(), "warp": "2",
    }),
}  # fmt: skip
MAY_BE = {
    "nothing": {
        "check.objective", "load.rule", "load.objective", "load.initialiser", "Method.objective", "MetaOptimiser.clip",
        "MetaOptimiser.schedule", "Offline.samples", "Offline.budget", "SupervisedTask.batch_size",
        "SupervisedTask.meta", "SupervisedTask.test", "SupervisedTask.metrics", "Learner.task", "Learner.constant",
        "Learner.start",
    },
    "a half": {"Method.weight", "MetaOptimiser.clip", "SGD.lr", "SGD.weight_decay", "Adam.lr", "Adam.eps",
               "Adam.weight_decay", "Clip.norm", "GaussianPrior.std"},
    "yes": {"score.per_task", "Online.include_last", "Offline.include_last", "Offline.interleave", "Leap.loss",
            "Leap.norm", "Leap.stabilise", "Learner.allow_unused"},
    "a word": {"EarlyStopping.metric"},
    "a list": {"Learner.warp", "Learner.constant"},
    "a class": {"SupervisedTask.loss", "FunctionFamily.make"},
    "a module": {"SupervisedTask.loss", "FunctionFamily.make"},
}  # fmt: skip
"""What is right after all, or is found out when it is called."""


@pytest.mark.parametrize(
    ("name", "argument"), [(name, argument) for name, (_, arguments, _) in SIGNATURES.items() for argument in arguments]
)
def test_whatever_is_handed_over_there_is_one_sentence(name, argument):
    call, _, usual = SIGNATURES[name]
    for kind, wrong in WRONG.items():
        if f"{name}.{argument}" in MAY_BE.get(kind, ()):
            continue
        said = None
        try:
            call(**{**usual(), argument: wrong})
        except wg.WarpgradError as error:
            said = str(error)
        assert said is not None, f"{kind} was taken for {argument} of {name}"
        assert len(said.splitlines()) == 1, kind


def test_a_learner_that_nothing_learns_has_no_meta_gradient_either():
    method = wg.Method(wg.Learner(model(), warp="2"), wg.SGD(0.1), initialiser=wg.Leap())
    with pytest.raises(wg.WarpgradError, match="but nothing learns them"):
        wg.meta_gradient(method, [task()], 0, algorithm=wg.Online(steps=1, tasks=1))


def test_a_validation_that_is_no_number_is_no_best():
    watch = wg.EarlyStopping("loss", patience=2).watch()
    nan = float("nan")
    assert [watch.observe({"loss": loss}) for loss in (nan, 1.0, nan, nan)] == [False, True, False, False]
    assert watch.stop
