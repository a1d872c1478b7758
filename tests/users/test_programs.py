"""The programs of a new user: models that people have, each through all of the library.

Every model is meta-trained by Algorithms 1 and 2 and by backpropagation through adaptation; its gradients are compared
with differences in double precision; it is saved, loaded and exported.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import warpgrad as wg
from tests.support import ROOT
from warpgrad.keys import generator


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(x + self.bn2(self.conv2(out)))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.layer1, self.layer2 = nn.Conv2d(1, 4, 3, padding=1), Block(4), Block(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer2(F.max_pool2d(self.layer1(self.stem(x)), 2)).mean((2, 3)))


class Forecaster(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(2, 4, num_layers=2, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(x)[0][:, -1])


class TiedTransformer(nn.Module):
    """A language model whose output shares the embedding's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(8, 9, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.encoder(self.embed(tokens))).mean(1)[:, :3]


class DictInOut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(3, 4), nn.Linear(2, 4), nn.Linear(4, 3)

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        hidden = torch.tanh(self.left(batch["image"]) + self.right(batch["text"]))
        return {"logits": self.head(hidden), "hidden": hidden}


class LoRALinear(nn.Module):
    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) * 0.3)
        self.up = nn.Parameter(torch.randn(base.out_features, rank) * 0.3)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.down.T @ self.up.T


class FrozenBackbone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = LoRALinear(nn.Linear(3, 6)), LoRALinear(nn.Linear(6, 6))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))


class Regularised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.GELU(), nn.Dropout(0.2), nn.Linear(8, 8))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.gelu(self.body(x)))


def logits_of(output: Any) -> Tensor:
    return output["logits"] if isinstance(output, dict) else getattr(output, "logits", output)


class Classification(wg.Task):
    """Six examples to adapt to, six for the meta-loss, six to test on, for a model with any signature."""

    def __init__(self, seed: int, draw: Callable[[torch.Generator], Any]) -> None:
        self.name = f"user {seed}"
        noise = generator(seed, "programs")
        self._batches = {
            role: (draw(noise), torch.randint(3, (6,), generator=noise)) for role in ("adapt", "meta", "test")
        }

    def adapt_batch(self, k: int) -> Any:
        return self._batches["adapt"]

    def meta_batch(self, k: int) -> Any:
        return self._batches["meta"]

    def test_batches(self) -> list[Any]:
        return [self._batches["test"]]

    def loss(self, forward: wg.Forward, batch: Any) -> Tensor:
        inputs, labels = batch
        return F.cross_entropy(logits_of(called(forward, inputs)), labels)


def called(model: Callable[..., Any], inputs: Any) -> Any:
    keywords = isinstance(inputs, dict) and "input_ids" in inputs
    return model(**inputs) if keywords else model(inputs)


@dataclass
class Program:
    model: Callable[[], nn.Module]
    draw: Callable[[torch.Generator], Any]
    options: dict[str, Any] = field(default_factory=dict)


def numbers(*shape: int) -> Callable[[torch.Generator], Tensor]:
    return lambda draw: torch.randn(6, *shape, generator=draw)


def tokens(draw: torch.Generator) -> dict[str, Tensor]:
    ids = torch.randint(1, 20, (6, 5), generator=draw)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def bert() -> nn.Module:
    transformers = pytest.importorskip("transformers", reason="pip install transformers")
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, num_labels=3,
        max_position_embeddings=8,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def gpt2() -> nn.Module:
    transformers = pytest.importorskip("transformers", reason="pip install transformers")
    config = transformers.GPT2Config(
        vocab_size=20, n_embd=8, n_layer=2, n_head=2, n_positions=8, num_labels=3, pad_token_id=0,
        bos_token_id=0, eos_token_id=0, use_cache=False,
    )  # fmt: skip
    return transformers.GPT2ForSequenceClassification(config)


def lora() -> nn.Module:
    peft = pytest.importorskip("peft", reason="pip install peft")
    config = peft.LoraConfig(r=2, target_modules=["query", "value"], modules_to_save=["classifier"])
    model = peft.get_peft_model(bert(), config)
    with torch.no_grad():  # as after some training: LoRA's B begins at 0, where its A has no gradient
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    return model


PROGRAMS = {
    "resnet": Program(ResNet, numbers(1, 6, 6), {"warp": "layer*.conv2"}),
    "gru": Program(Forecaster, numbers(5, 2), {"warp": "gru.*_l1"}),
    "tied transformer": Program(
        TiedTransformer, lambda draw: torch.randint(9, (6, 5), generator=draw), {"warp": "encoder.layers.1"}
    ),
    "dict": Program(
        DictInOut,
        lambda draw: {"image": torch.randn(6, 3, generator=draw), "text": torch.randn(6, 2, generator=draw)},
        {"warp": ["left", "right"]},
    ),
    "lora": Program(FrozenBackbone, numbers(3), {"warp": ["first", "second.down"]}),
    "dropout": Program(Regularised, numbers(3), {"warp": "body.0"}),
    "bert": Program(bert, tokens, {"warp": "bert.encoder.layer.0", "constant": "bert.embeddings"}),
    "gpt2": Program(gpt2, tokens, {"warp": "transformer.h.0", "constant": ["transformer.wte", "transformer.wpe"]}),
    "peft": Program(lora, tokens, {"warp": "*lora_A*"}),
}

ALGORITHMS = {
    "online": {"algorithm": wg.Online(steps=2, tasks=2), "objective": wg.Exact(), "initialiser": wg.Leap()},
    "offline": {"algorithm": wg.Offline(steps=2, tasks=2), "objective": wg.Exact(), "initialiser": wg.FOMAML()},
    "unrolled": {"algorithm": wg.Unrolled(steps=2, tasks=2)},
}


@pytest.fixture(params=PROGRAMS)
def program(request: pytest.FixtureRequest) -> Program:
    return PROGRAMS[request.param]


@pytest.fixture(autouse=True)
def quiet():
    """What transformers and peft say when they are imported is theirs."""
    with warnings.catch_warnings():
        for category in (DeprecationWarning, FutureWarning, PendingDeprecationWarning):
            warnings.simplefilter("ignore", category)
        # torch.export says so of every nn.GRU.
        warnings.filterwarnings("ignore", "The tensor attributes self.gru._flat_weights", UserWarning)
        yield


def learner_of(program: Program) -> wg.Learner:
    torch.manual_seed(0)
    return wg.Learner(program.model(), **program.options)


def trained(program: Program, name: str) -> wg.Learner:
    learner = learner_of(program)
    records = wg.meta_train(
        learner, wg.FunctionFamily(partial(Classification, draw=program.draw)), rule=wg.SGD(0.1),
        optimiser=partial(torch.optim.Adam, lr=1e-2), meta_steps=2, **ALGORITHMS[name],
    )  # fmt: skip
    assert len(records) == 2
    return learner


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_meta_training_moves_what_is_learned_and_nothing_else(program, algorithm):
    learner, before = trained(program, algorithm), learner_of(program)
    assert all(not torch.equal(value, before.phi[name]) for name, value in learner.phi.items() if value.ndim > 1)
    assert any(not torch.equal(value, before.theta0[name]) for name, value in learner.theta0.items())
    assert all(torch.equal(value, before.constants[name]) for name, value in learner.constants.items())


def test_meta_gradients_are_those_of_differences(program):
    learner, task = learner_of(program), Classification(3, program.draw)
    for objective in (wg.Exact(), wg.Approximate(), None):
        report = wg.check(learner, task, wg.SGD(wg.Learned(0.1)) if objective is None else wg.SGD(0.1), objective)
        assert all(one.error < 1e-4 for one in report.comparisons), str(report)
        assert all(abs(one.gradient) > 1e-12 for one in report.comparisons), str(report)


def test_what_was_learned_is_saved_loaded_adapted_and_exported(program, tmp_path):
    learner = trained(program, "online")
    torch.save(learner.state_dict(), tmp_path / "learner.pt")
    other = learner_of(program)
    other.load_state_dict(torch.load(tmp_path / "learner.pt", weights_only=True))
    task = Classification(5, program.draw)
    fitted, twin = (wg.adapt(one, task, rule=wg.SGD(0.1), steps=2) for one in (learner, other))
    assert type(fitted) is type(learner.module)
    inputs, _ = task.adapt_batch(0)
    with torch.no_grad():
        expected = logits_of(called(fitted, inputs))
        assert torch.equal(expected, logits_of(called(twin, inputs)))
        by_name = isinstance(inputs, dict) and "input_ids" in inputs
        exported = torch.export.export(fitted, () if by_name else (inputs,), inputs if by_name else None)
        torch.testing.assert_close(logits_of(called(exported.module(), inputs)), expected, rtol=1e-4, atol=1e-5)


NEEDS = {"bert": "transformers", "gpt2": "transformers", "peft": "peft"}
FRESH = """
import sys, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, sys.argv[1])
import torch
import warpgrad as wg
from tests.users.test_programs import PROGRAMS, Classification, called, learner_of, logits_of

torch.set_num_threads(1)  # as in the process that made the files
for name in sys.argv[3:]:
    program = PROGRAMS[name]
    method = wg.load(f"{sys.argv[2]}/{name}.safetensors", learner_of(program))
    task = Classification(5, program.draw)
    fitted = wg.adapt(method.learner, task, rule=method.rule, steps=2)
    with torch.no_grad():
        found = logits_of(called(fitted, task.adapt_batch(0)[0]))
    expected = torch.load(f"{sys.argv[2]}/{name}.pt", weights_only=True)
    print(name, torch.equal(found, expected), type(method.initialiser).__name__, sep=";")
"""


def test_every_program_is_loaded_in_a_fresh_process(tmp_path):
    """One process for all of them, which builds each model by its own code and has nothing else than the file."""
    names = [name for name in PROGRAMS if name not in NEEDS or importlib.util.find_spec(NEEDS[name])]
    for name in names:
        program = PROGRAMS[name]
        method = wg.Method(learner_of(program), wg.SGD(wg.Learned(0.1)), wg.Exact(), wg.Leap())
        wg.meta_train(
            method, wg.FunctionFamily(partial(Classification, draw=program.draw)),
            algorithm=wg.Online(steps=2, tasks=2), optimiser=partial(torch.optim.Adam, lr=1e-2), meta_steps=1,
        )  # fmt: skip
        wg.save(tmp_path / f"{name}.safetensors", method)
        task = Classification(5, program.draw)
        fitted = wg.adapt(method.learner, task, rule=method.rule, steps=2)
        with torch.no_grad():
            torch.save(logits_of(called(fitted, task.adapt_batch(0)[0])), tmp_path / f"{name}.pt")
    command = [sys.executable, "-c", FRESH, str(ROOT), str(tmp_path), *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [f"{name};True;Leap" for name in names], done.stderr[-2000:]


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_gradient_checkpointing_of_hugging_face_models(name):
    program, found = PROGRAMS[name], []
    for on in (False, True):
        learner = learner_of(program)
        if on:
            learner.module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        task = Classification(1, program.draw)
        for child in learner.module.modules():
            if isinstance(child, nn.Dropout):
                child.p = 0.0
        found.append(wg.adapt(learner, task, rule=wg.SGD(0.1), steps=2).state_dict())
        wg.check(learner, task, wg.SGD(0.1), wg.Exact())
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)
    learner.module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    with pytest.raises(wg.WarpgradError, match="use_reentrant=False"):
        wg.adapt(learner, Classification(1, program.draw), rule=wg.SGD(0.1), steps=1)
