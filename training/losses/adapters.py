"""Losses of what is written into the base: irrelevance, protection, sparsity.

B runs over questions, R rank, I and O a site's input and output features, H key-value heads, S prefix slots, F a
head's features, N atoms, G sites, P directions of a basis. An adapter's factors carry gate and alpha / r, so the
norms here are those of the update that is really added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import torch
from torch import Tensor, nn

from models.base import FrozenBase, Site
from models.errors import ConfigError
from models.injection import ComposedAdapter, LayerPrefix
from models.stacked import BySite
from training.losses.precision import count, full

# The module whose input is what attention read, and so what a prefix's values are written into.
ATTENTION_OUTPUT = "o_proj"
BLOCKED = torch.finfo(torch.float32).min  # the bias of a slot that holds nothing


def irrelevant_loss(adapter: ComposedAdapter, slot_weight_B: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`sum_{l,m} ||A||_F^2 + ||B||_F^2` of adapters composed for off-topic questions.

    Args:
        slot_weight_B: Sum of the routing weights on micro-KV slots, its counterpart; added as it is.

    Returns:
        The sum over questions, and their number.

    Source: paper, "Irrelevant Query Suppression"; the counterpart is ours.
    """
    total_B = sum(
        stack_GBXY.square().sum((0, 2, 3)) for factor in _by_site(adapter) for stack_GBXY in factor.stacks.values()
    )
    if slot_weight_B is not None:
        total_B = total_B + slot_weight_B
    return total_B.sum(), count(len(total_B), total_B)


def protect_loss(adapter: ComposedAdapter, *, basis: Mapping[Site, Tensor] | None = None) -> tuple[Tensor, Tensor]:
    """`sum_{l,m} ||dW||_F^2` (form l2), or `sum_{l,m} ||dW (I - P)||_F^2` (form null_space), with dW = B A.

    P = I - U U^T projects onto the inputs that the memory may act on, so `dW (I - P) = B (A U) U^T`, whose norm is
    that of `B (A U)`. `||B A||_F^2 = sum((B^T B) * (A A^T))` needs products of R x R, never O x I.

    Args:
        basis: U `[I, P]` of every site, its columns orthonormal (`input_bases`); None gives the form l2.

    Returns:
        The sum over questions, and their number.

    Source: paper, "Knowledge Protection"; the null-space form is given there in words.
    """
    a, b = _by_site(adapter)
    if basis is not None:
        a = a.map(lambda sites, a_GBRI: a_GBRI @ torch.stack([basis[s] for s in sites])[:, None].to(a_GBRI))
    a = a.map(lambda _, a_GBRI: a_GBRI @ a_GBRI.mT)
    b = b.map(lambda _, b_GBOR: b_GBOR.mT @ b_GBOR)
    total_B = (torch.stack([a[s] for s in adapter.lora]) * torch.stack([b[s] for s in adapter.lora])).sum((0, 2, 3))
    return total_B.sum(), count(len(total_B), total_B)


def _by_site(adapter: ComposedAdapter) -> tuple[BySite, BySite]:
    """Return all A and all B above half precision, sites of equal shape stacked."""
    a, b = (BySite.of({site: pair[side] for site, pair in adapter.lora.items()}) for side in (0, 1))
    return a.map(lambda _, stack: full(stack)), b.map(lambda _, stack: full(stack))


def protect_prefix_loss(
    adapter: ComposedAdapter, *, basis: Mapping[Site, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """`sum_{l,h} mean_s e^{b_s} ||v_s||^2`, the counterpart of `protect_loss` for micro-KV.

    It bounds the squared norm of what attention would read from a prefix to whose slots it looked evenly: b is the
    slots' bias (log w, so e^b = w) and v their values. In the null-space form only the part of v counts that reaches
    the output projection inside its protected inputs, `||U_j^T v||^2`, the mean over the query heads j that share v.

    Args:
        basis: As for `protect_loss`; the output projection's of each memory layer is used.

    Returns:
        The sum over questions, and their number.

    Source: ours; not in the paper.
    """
    outputs = {site.layer: u for site, u in (basis or {}).items() if site.module == ATTENTION_OUTPUT}
    per_layer = []
    for layer, prefix in adapter.prefix.items():
        square_BHS = _value_squares(prefix, None if basis is None else outputs[layer])
        bias_BS = full(prefix.bias_BS)
        num_held_B = (bias_BS > BLOCKED / 2).sum(-1).clamp(min=1)
        per_layer.append((square_BHS.sum(1) * bias_BS.exp()).sum(-1) / num_held_B)
    total_B = torch.stack(per_layer).sum(0)
    return total_B.sum(), count(len(total_B), total_B)


def _value_squares(prefix: LayerPrefix, basis_IP: Tensor | None) -> Tensor:
    """Return `||v||^2`, or `||U_j^T v||^2` averaged over the query heads j of a key-value head, `[B, H, S]`."""
    value_BHSF = full(prefix.value_BHSF)
    if basis_IP is None:
        return value_BHSF.square().sum(-1)
    heads, features = value_BHSF.shape[1], value_BHSF.shape[3]
    # Query heads that share a key-value head stand side by side in the output projection's input.
    u_HJFP = basis_IP.to(value_BHSF.dtype).unflatten(0, (heads, -1, features))
    metric_HFF = torch.einsum("hjfp,hjep->hfe", u_HJFP, u_HJFP) / u_HJFP.shape[1]
    return torch.einsum("bhsf,hfe,bhse->bhs", value_BHSF, metric_HFF, value_BHSF)


def sparse_loss(mask_logits_NG: Tensor, *, density: float, mean_gate_G: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`sum_{l,m} (E[g_lm] - rho)^2`, with E the mean of `g = sigmoid(m)` over the batch's valid atoms.

    A squared mean is no sum over atoms. Around the batch's mean e it is one with the same value and gradient,
    `sum_lm (e - rho)^2 + 2 (e - rho) (g_i - e)` for atom i, so parts of a batch add up once they share e.

    Args:
        mask_logits_NG: Of the batch's valid atoms, `[N, n_L, n_M]` or flat over sites; an atom that stands in
            several lists may come several times.
        density: rho, in [0, 1].
        mean_gate_G: e over the whole global batch, shaped like a row; None takes that of these atoms, which is
            right where they are the whole batch.

    Returns:
        The sum over atoms, and their number.

    Source: paper, "Sparse Regularization".
    """
    gate_NG = full(mask_logits_NG).flatten(1).sigmoid()
    mean_G = gate_NG.mean(0) if mean_gate_G is None else full(mean_gate_G).flatten()
    gap_G = (mean_G - density).detach()
    per_atom_NG = gap_G.square() + 2 * gap_G * (gate_NG - mean_G.detach())
    return per_atom_NG.sum(), count(len(gate_NG), gate_NG)


def principal_basis(x_TI: Tensor, *, size: int) -> Tensor:
    """Return U `[I, P]`, the `size` directions in which activations are largest, orthonormal and in float32.

    They are not centred: an update acts on the activations themselves, mean included.

    Raises:
        ConfigError: Fewer tokens or features than `size`.
    """
    limit = min(x_TI.shape)
    if size > limit:
        raise ConfigError(f"protection: basis size must be at most {limit}, got {size}", hint="Take more tokens")
    return torch.linalg.svd(x_TI.float(), full_matrices=False).Vh[:size].T.contiguous()


@torch.no_grad()
def input_bases(
    base: FrozenBase, sites: Sequence[Site], x_BLD: Tensor, mask_BL: Tensor, *, size: int
) -> dict[Site, Tensor]:
    """Run the memory layers without memory and return the principal basis of what enters every site.

    Args:
        x_BLD: States that enter the first memory layer, of texts whose handling is to be kept.
        mask_BL: True at real tokens.
        size: Directions to protect at each site.

    Raises:
        ConfigError: Fewer tokens than `size`.
    """
    bases: dict[Site, Tensor] = {}

    def keep(site: Site):
        def hook(_module: nn.Module, args: tuple[Tensor]) -> None:
            bases[site] = principal_basis(args[0][mask_BL], size=size)

        return hook

    with ExitStack() as undo:
        for site in sites:
            undo.callback(base.module(site).register_forward_pre_hook(keep(site)).remove)
        base.run_layers(x_BLD, start=min(site.layer for site in sites), stop=base.num_layers)
    return bases
