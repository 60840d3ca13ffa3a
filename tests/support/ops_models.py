"""Small transformers with random weights: Llama-like and BERT-like."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Multi-head attention from plain linear layers."""

    def __init__(self, width, heads, *, bias, causal):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.query, self.key, self.value, self.out = (
            nn.Linear(width, width, bias=bias) for _ in range(4)
        )

    def forward(self, x):
        def split(y):
            return y.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        y = F.scaled_dot_product_attention(
            split(self.query(x)), split(self.key(x)), split(self.value(x)), is_causal=self.causal
        )
        return self.out(y.transpose(1, 2).flatten(2))


class LlamaLikeLayer(nn.Module):
    """Causal attention and a gated MLP, without biases, each after an RMS norm."""

    def __init__(self, width, heads):
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.attention = Attention(width, heads, bias=False, causal=True)
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x):
        x = x + self.attention(self.norms[0](x))
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class BertLikeLayer(nn.Module):
    """Attention and an MLP with gelu, with biases, each before a layer norm."""

    def __init__(self, width, heads):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attention = Attention(width, heads, bias=True, causal=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        x = self.norms[0](x + self.attention(x))
        return self.norms[1](x + self.down(F.gelu(self.up(x))))


class LanguageModel(nn.Module):
    """Tokens -> the loss of predicting them."""

    def __init__(self, layer, *, vocabulary=256, width=64, heads=4, layers=2):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.Sequential(*(layer(width, heads) for _ in range(layers)))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        logits = self.head(self.layers(self.embedding(tokens)))
        return F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())


MODELS = {"llama": LlamaLikeLayer, "bert": BertLikeLayer}


def loss_and_gradients(model, *inputs):
    """The loss, and the gradient of each parameter."""
    model.zero_grad(set_to_none=True)
    loss = model(*inputs)
    loss.backward()
    return loss.item(), {name: p.grad.clone() for name, p in model.named_parameters()}


def relative_difference(one, other):
    """How much two tensors differ, in the Frobenius norm."""
    return float((one.double() - other.double()).norm() / other.double().norm())


def difference_of_all(found, expected):
    """The difference of two sets of gradients, together (some are zero but for rounding)."""
    return relative_difference(
        torch.cat([found[name].flatten() for name in expected]),
        torch.cat([expected[name].flatten() for name in expected]),
    )
