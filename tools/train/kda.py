"""Kimi delta attention's recurrence: a delta rule whose state decays per channel.

For each token, with S of [keys, values] and all of a row's own values:

    S = exp(decay) * S;  S = S + k (beta (v - S'k))';  out = S'q

`recurrent` says it in this form, `chunked` solves one triangular system a chunk.
"""

import torch

CHUNK = 32


def recurrent(q, k, v, beta, decay, state):
    """One token. q, k, v, decay: [B, H, D]; beta: [B, H, 1]; state: [B, H, D, D]. Returns out and the new state."""
    state = state * decay.exp().unsqueeze(-1)
    fresh = beta * (v - torch.einsum("bhk,bhkv->bhv", k, state))
    state = state + k.unsqueeze(-1) * fresh.unsqueeze(-2)
    return torch.einsum("bhk,bhkv->bhv", q, state), state


@torch.autocast("cpu", enabled=False)
def chunked(q, k, v, beta, decay):
    """All tokens from an empty state. q, k, v, decay: [B, H, T, D]; beta: [B, H, T, 1]; T is a multiple of CHUNK.

    Decays of two tokens i >= j of a chunk are exp(total_i - total_j), a product
    of two factors around the middle of the chunk. A decay above -5 keeps both
    below exp(80), which float32 can hold.
    """
    shape, rows = v.shape, v.shape[:2]
    q, k, v, beta, decay = (x.reshape(*rows, -1, CHUNK, x.shape[-1]) for x in (q, k, v, beta, decay))
    total = decay.cumsum(-2)
    centred = total - total[..., CHUNK // 2 - 1:CHUNK // 2, :]
    rise = centred.exp()
    later, earlier = k * rise, (k * (-centred).exp()).transpose(-1, -2)
    grown = total.exp()
    solved = torch.linalg.solve_triangular(
        (later * beta @ earlier).tril(-1), torch.cat([v, k * grown], -1) * beta, upper=False, unitriangular=True)
    fresh, seen = solved.split([v.shape[-1], k.shape[-1]], -1)
    rest = (k * (total[..., -1:, :] - total).exp()).transpose(-1, -2)
    last = grown[..., -1, :].unsqueeze(-1)
    state, states, updates = v.new_zeros(*rows, k.shape[-1], v.shape[-1]), [], []
    for f, s, r, l in zip(*(x.unbind(2) for x in (fresh, seen, rest, last))):
        states.append(state)
        updates.append(f - s @ state)
        state = state * l + r @ updates[-1]
    out = (q * grown) @ torch.stack(states, 2) + (q * rise @ earlier).tril() @ torch.stack(updates, 2)
    return out.reshape(shape)
