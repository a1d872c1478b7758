"""The examples: four modules written without this library, each partitioned by name, meta-trained and adapted."""

import importlib.util
import math
from types import ModuleType
from typing import Any

import pytest
import torch

import warpgrad as wg
from tests.support import ROOT

EXAMPLES = ROOT / "examples"

# name: (the user's class, the task generator, φ by name, whether θ0 is meta-learned, meta-steps at the tiny size)
CASES = {
    "mlp": ("MLP", "sine_task", {"middle.weight", "middle.bias"}, True, 3),
    "resnet": ("ResNet", "image_task", {"layer1.0.conv2.weight", "layer2.0.conv2.weight"}, True, 1),
    "gru": (
        "Forecaster",
        "oscillator_task",
        {"gru.weight_ih_l1", "gru.weight_hh_l1", "gru.bias_ih_l1", "gru.bias_hh_l1"},
        True,
        2,
    ),
    "transformer": (
        "Translator",
        "translation_task",
        {
            f"encoder.layers.{layer}.{name}"
            for layer in (0, 1)
            for name in (
                *("self_attn.in_proj_weight", "self_attn.in_proj_bias"),
                *("self_attn.out_proj.weight", "self_attn.out_proj.bias"),
                *(f"{part}.{kind}" for part in ("linear1", "linear2", "norm1", "norm2") for kind in ("weight", "bias")),
            )
        },
        False,
        2,
    ),
}


def load(name: str) -> Any:
    """A fresh copy of the example, imported by its path."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=CASES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def example(name: str) -> Any:
    module = load(name)
    module.HELD_OUT = 2
    return module


def test_main_learns_the_named_parameters_and_no_others(
    name: str, example: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, _, warp, learns_theta0, meta_steps = CASES[name]
    seen: list[tuple[wg.Learner, dict[str, torch.Tensor]]] = []
    meta_train = wg.meta_train

    def spy(method: wg.Learner | wg.Method, *args: Any, **kwargs: Any) -> Any:
        learner = method.learner if isinstance(method, wg.Method) else method
        seen.append((learner, {key: value.detach().clone() for key, value in learner.module.named_parameters()}))
        return meta_train(method, *args, **kwargs)

    monkeypatch.setattr(wg, "meta_train", spy)
    result = example.main(meta_steps=meta_steps)

    assert all(math.isfinite(value) for value in result.values())
    assert result["after"] != result["before"]
    assert "after meta-training" in capsys.readouterr().out
    [(learner, initial)] = seen
    assert set(learner.phi) == warp
    for key, value in learner.module.named_parameters():
        changed = not torch.equal(value, initial[key])
        assert changed == (key in warp or learns_theta0), key


def test_adaptation_reduces_the_loss_and_returns_the_users_class(name: str, example: Any) -> None:
    class_name, task_name, warp, _, _ = CASES[name]
    torch.manual_seed(1)
    model = getattr(example, class_name)()
    learner = wg.Learner(model, task=lambda key, _: key not in warp, batch_norm="batch")
    task = getattr(example, task_name)(7)
    fitted, curve = wg.adapt(learner, task, rule=example.RULE, steps=example.STEPS, curve=True)

    # Every batch is all of the task's data, so the losses of two steps are comparable.
    assert curve.losses[-1] < curve.losses[0]
    assert type(fitted) is type(model)
    parameters = dict(fitted.named_parameters())
    assert all(torch.equal(parameters[key], value) for key, value in learner.phi.items())
    assert not any(torch.equal(parameters[key], value) for key, value in learner.theta0.items())
    [(x, y)] = task.test_batches()
    with torch.no_grad():
        assert fitted(x).shape[0] == y.shape[0]


def test_a_task_is_a_function_of_its_seed(name: str, example: Any) -> None:
    make = getattr(example, CASES[name][1])
    first, again, other = make(3), make(3), make(4)
    for role in ("adapt_batch", "meta_batch"):
        batch, same, different = (getattr(task, role)(0) for task in (first, again, other))
        assert all(torch.equal(a, b) for a, b in zip(batch, same, strict=True))
        assert not torch.equal(batch[0], different[0])
    assert not torch.equal(first.adapt_batch(0)[0], first.meta_batch(0)[0])


def test_the_page_names_every_example(name: str) -> None:
    assert f"python examples/{name}.py" in (EXAMPLES / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_meta_training_at_the_default_size_improves_new_tasks(name: str) -> None:
    module = load(name)
    assert module.HELD_OUT >= 20
    result = module.main()
    assert result["after"] < result["before"]
    # Also better than adapting every layer of a new model with the same rule and as many steps.
    assert result["after"] < result["plain"]


def test_a_pretrained_warp_learns_a_folder_of_pictures(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    module = load("pretrained")
    module.draw_pictures(tmp_path / "drawn")
    found = module.main(tmp_path / "drawn", steps=20)
    assert found["pretrained"] > found["from random weights"] + 0.2
    assert "drawn: accuracy on pictures held out, after 20 steps" in capsys.readouterr().out
    assert "python examples/pretrained.py" in (EXAMPLES / "README.md").read_text(encoding="utf-8")


def test_a_folder_without_classes_is_refused_in_one_sentence(tmp_path: Any) -> None:
    with pytest.raises(SystemExit, match="needs 2 to 20 folders, one for each class, with two pictures or more"):
        load("pretrained").folder_task(tmp_path, 20)
