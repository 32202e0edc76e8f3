"""MXFP4: groups of 32 numbers of four bits (E2M1) that share a power of two (E8M0).

Groups run along the last dimension. A byte holds two neighbours, the first in
its low half: bit 3 is the sign, bits 0 to 2 an index into LEVELS.
"""

import torch

GROUP = 32
LEVELS = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
BIAS = 127


def nearest(x: torch.Tensor) -> torch.Tensor:
    """Nearest signed level of each number; beyond the largest level, that level."""
    size = x.abs()
    step = 0.5 + 0.5 * (size >= 2) + (size >= 4)
    return ((size / step).round() * step).clamp(max=6.0).copysign(x)


def quantise(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Levels [..., groups, 32] and exponents [..., groups, 1] of least squared error."""
    groups = w.float().unflatten(-1, (-1, GROUP))
    top = groups.abs().amax(-1, keepdim=True).clamp(min=2.0 ** -100)
    best, kept, exponents = torch.full_like(top, torch.inf), torch.zeros_like(groups), torch.zeros_like(top)
    for shift in (-3, -2, -1):
        exponent = (top.log2().floor() + shift).clamp(1 - BIAS, BIAS)
        scale = exponent.exp2()
        levels = nearest(groups / scale)
        error = (levels * scale - groups).square().sum(-1, keepdim=True)
        better = error < best
        best = torch.where(better, error, best)
        kept = torch.where(better, levels, kept)
        exponents = torch.where(better, exponent, exponents)
    return kept, exponents


@torch.no_grad()
def rounded(w: torch.Tensor) -> torch.Tensor:
    """What the packed form of `w` stands for."""
    levels, exponents = quantise(w)
    return (levels * exponents.exp2()).flatten(-2)


def pretend(w: torch.Tensor) -> torch.Tensor:
    """`w` as its packed form stands for it; the gradient passes straight through."""
    return w + (rounded(w) - w).detach()


@torch.no_grad()
def pack(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Packed bytes [..., n/2] and scale bytes [..., n/32]."""
    levels, exponents = quantise(w)
    codes = (torch.bucketize(levels.abs(), LEVELS) + 8 * (levels < 0)).flatten(-2)
    packed = codes[..., 0::2] + 16 * codes[..., 1::2]
    return packed.to(torch.uint8), (exponents.squeeze(-1) + BIAS).to(torch.uint8)


def unpack(packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Numbers [..., n] of packed bytes and scale bytes."""
    codes = torch.stack([packed & 15, packed >> 4], -1).flatten(-2).long()
    values = LEVELS[codes & 7] * (1.0 - 2.0 * (codes >> 3))
    factors = (scale.float() - BIAS).exp2()
    return (values.unflatten(-1, (-1, GROUP)) * factors.unsqueeze(-1)).flatten(-2)
