"""Models of the size that a bench asks for, and the states that their optimizers have after a step."""

from __future__ import annotations

import torch

from airflow_elastic.runtime.checkpoint.save.stateful import Stateful
from tests.bench.support.figures import count

#: Of the GPT of `gpt`: its vocabulary and its layers, as GPT-2 has them with 350 million parameters.
GPT_WORDS, GPT_LAYERS = 50257, 24

TENSORS = count("TENSORS", 36)  # of the model; AdamW has two more for each


def layers(megabytes: int) -> torch.nn.Sequential:
    """A model that is so large with what AdamW keeps of it."""
    side = max(8, int((megabytes * 1e6 / 4 / 3 / TENSORS) ** 0.5))
    return torch.nn.Sequential(*(torch.nn.Linear(side, side, bias=False) for _ in range(TENSORS)))


def stepped(model: torch.nn.Module) -> Stateful:
    """It and an optimizer that has made a step."""
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return Stateful(model, (optimizer,), {})


class Transformer(torch.nn.Module):
    """A GPT with a tied head: 12 tensors a layer and 4 more.

    Args:
        layers: how many.
        width: of each; it has a head for each 64.
        words: in the vocabulary.
        tokens: at most, of a text.
    """

    def __init__(self, layers: int, width: int, words: int, tokens: int) -> None:
        super().__init__()
        self.words, self.places = torch.nn.Embedding(words, width), torch.nn.Embedding(tokens, width)
        self.layers = torch.nn.ModuleList(_Layer(width) for _ in range(layers))
        self.norm = torch.nn.LayerNorm(width)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """The loss, for what wraps this model."""
        return self.loss(words)

    def loss(self, words: torch.Tensor) -> torch.Tensor:
        """The mean loss of each next word: `words` is (texts, tokens + 1)."""
        given, wanted = words[:, :-1], words[:, 1:]
        state = self.words(given) + self.places(torch.arange(given.shape[1], device=words.device))
        for layer in self.layers:
            state = layer(state)
        scores = torch.nn.functional.linear(self.norm(state), self.words.weight)
        return torch.nn.functional.cross_entropy(scores.flatten(0, 1), wanted.flatten())


class _Layer(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(2))
        self.query, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.wide, self.back = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        texts, tokens, width = state.shape
        parts = self.query(self.norms[0](state)).view(texts, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        state = state + self.out(seen.transpose(1, 2).reshape(texts, tokens, width))
        return state + self.back(torch.nn.functional.gelu(self.wide(self.norms[1](state))))


def gpt(parameters: int, tokens: int) -> Transformer:
    """A GPT of about so many parameters: as wide as that takes, and at least 64."""
    wide = 12 * GPT_LAYERS
    thin = GPT_WORDS + tokens
    width = ((thin**2 + 4 * wide * parameters) ** 0.5 - thin) / (2 * wide)
    return Transformer(GPT_LAYERS, max(64, round(width / 64) * 64), GPT_WORDS, tokens)
