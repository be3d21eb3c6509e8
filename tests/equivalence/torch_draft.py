"""EAGLE-3's draft layer written a second time, in torch float64, row by row."""

import math
from collections.abc import Collection

import torch

Weights = dict[str, torch.Tensor]


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x / torch.sqrt((x**2).mean(-1, keepdim=True) + eps) * weight


def rotate(x: torch.Tensor, position: int, inverse_frequencies: torch.Tensor) -> torch.Tensor:
    """Each pair (i, i + half) as one complex number turned by position * frequency."""
    half = x.shape[-1] // 2
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.exp(
        1j * position * inverse_frequencies
    )
    return torch.cat([turned.real, turned.imag], -1)


def features(
    w: Weights, aux_hidden: torch.Tensor, *, options: Collection[str], eps: float
) -> torch.Tensor:
    """States [seq, hidden] of positions whose aux features [seq, 3 * target_hidden] are known."""
    if "norm_before_fc" in options:
        aux_hidden = norm(aux_hidden, w["input_norm"], eps)
    if "fc_norm" in options:
        chunks = aux_hidden.chunk(3, dim=-1)
        normed = [norm(chunk, w[f"fc_norm.{i}"], eps) for i, chunk in enumerate(chunks)]
        aux_hidden = torch.cat(normed, dim=-1)
    return aux_hidden @ w["fc"].T


def draft_pass(
    w: Weights,
    token_ids: torch.Tensor,
    given_states: torch.Tensor,
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    inverse_frequencies: torch.Tensor,
    options: Collection[str],
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [seq, draft_vocab] and recurrent states [seq, hidden] of one sequence."""
    keys: list[torch.Tensor] = []
    values: list[torch.Tensor] = []
    states = []
    for position, (token, g) in enumerate(zip(token_ids, given_states, strict=True)):
        h = norm(g, w["hidden_norm"], eps)
        x = torch.cat([norm(w["embed_tokens"][token], w["input_layernorm"], eps), h])
        q = rotate((w["q_proj"] @ x).view(heads, head_dim), position, inverse_frequencies)
        k = rotate((w["k_proj"] @ x).view(kv_heads, head_dim), position, inverse_frequencies)
        keys.append(k)
        values.append((w["v_proj"] @ x).view(kv_heads, head_dim))
        attended = []
        for head in range(heads):
            group = head // (heads // kv_heads)
            scores = torch.stack([key[group] @ q[head] for key in keys]) / math.sqrt(head_dim)
            mix = torch.softmax(scores, 0)
            attended.append(sum(p * v[group] for p, v in zip(mix, values, strict=True)))
        r = (h if "norm_before_residual" in options else g) + w["o_proj"] @ torch.cat(attended)
        y = norm(r, w["post_attention_layernorm"], eps)
        gate = w["gate_proj"] @ y
        states.append(r + w["down_proj"] @ (gate * torch.sigmoid(gate) * (w["up_proj"] @ y)))
    hidden = torch.stack(states)
    normed = norm(hidden, w["norm"], eps)
    return normed @ w["lm_head"].T, normed if "norm_output" in options else hidden
