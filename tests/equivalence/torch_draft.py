"""EAGLE-3's draft layer written a second time, in torch float64, row by row."""

import math

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


def draft_pass(
    w: Weights,
    token_ids: torch.Tensor,
    aux_hidden: torch.Tensor,
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    inverse_frequencies: torch.Tensor,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [seq, draft_vocab] and recurrent states [seq, hidden] of one sequence."""
    keys: list[torch.Tensor] = []
    values: list[torch.Tensor] = []
    states = []
    for position, (token, aux) in enumerate(zip(token_ids, aux_hidden, strict=True)):
        g = w["fc"] @ aux
        x = torch.cat(
            [
                norm(w["embed_tokens"][token], w["input_layernorm"], eps),
                norm(g, w["hidden_norm"], eps),
            ]
        )
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
        r = g + w["o_proj"] @ torch.cat(attended)
        y = norm(r, w["post_attention_layernorm"], eps)
        gate = w["gate_proj"] @ y
        states.append(r + w["down_proj"] @ (gate * torch.sigmoid(gate) * (w["up_proj"] @ y)))
    hidden = torch.stack(states)
    return norm(hidden, w["norm"], eps) @ w["lm_head"].T, hidden
