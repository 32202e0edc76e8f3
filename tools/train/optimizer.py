"""Muon for the matrices of the layers, AdamW for everything else."""

import torch


def orthogonalise(stack: torch.Tensor, rounds: int = 5) -> torch.Tensor:
    """Newton-Schulz iteration towards the nearest orthogonal matrices; [N, rows, columns]."""
    tall = stack.shape[1] > stack.shape[2]
    x = (stack.transpose(1, 2) if tall else stack).bfloat16()
    x = x / (x.float().norm(dim=(1, 2), keepdim=True) + 1e-7).bfloat16()
    for _ in range(rounds):
        gram = x @ x.transpose(1, 2)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
    return (x.transpose(1, 2) if tall else x).float()


class Muon(torch.optim.Optimizer):
    """Momentum, then orthogonalised updates; a stacked projection is cut into its parts."""

    def __init__(self, matrices: list[tuple[torch.Tensor, int]], lr: float, momentum: float = 0.95, decay: float = 0.1):
        self.parts = {id(p): parts for p, parts in matrices}
        super().__init__([p for p, _ in matrices], dict(lr=lr, momentum=momentum, decay=decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            shapes: dict[tuple, list] = {}
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["m"] = torch.zeros_like(p)
                state["m"].lerp_(p.grad, 1 - group["momentum"])
                update = p.grad.lerp(state["m"], group["momentum"])
                for target, piece in zip(p.data.chunk(self.parts[id(p)]), update.chunk(self.parts[id(p)])):
                    shapes.setdefault(tuple(piece.shape), []).append((target, piece))
            for (rows, columns), pairs in shapes.items():
                scale = max(1.0, rows / columns) ** 0.5
                for (target, _), update in zip(pairs, orthogonalise(torch.stack([u for _, u in pairs]))):
                    target.mul_(1 - group["lr"] * group["decay"]).add_(update, alpha=-group["lr"] * scale)


def make_optimizers(model) -> list[torch.optim.Optimizer]:
    """Muon and AdamW over all parameters, with their peak learning rates."""
    muon, decayed, plain = [], [], []
    for name, p in model.named_parameters():
        if p.ndim == 2 and not any(s in name for s in ("embed", "in_proj_a", "in_proj_b")):
            muon.append((p, 3 if "in_proj_qkv" in name else 1))
        else:
            (decayed if p.ndim == 2 else plain).append(p)
    adam = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}],
                             lr=3e-3, betas=(0.9, 0.95), fused=True)
    return [Muon(muon, lr=0.02), adam]
