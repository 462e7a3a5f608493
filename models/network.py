"""Everything that is trained: projection head, compiler and router, as one module."""

from __future__ import annotations

from torch import Tensor, nn

from models.base import FrozenBase
from models.compiler import MemoryCompiler
from models.encoder import ProjectionHead
from models.errors import ConfigError
from models.presets import MemorySpec
from models.router import Router


class MemoryNetwork(nn.Module):
    """The trainable part of Doc-to-Atom, in float32 beside a frozen base.

    Raises:
        ConfigError: `kv.store` does not fit the base's width.
    """

    def __init__(self, spec: MemorySpec, base: FrozenBase) -> None:
        super().__init__()
        if spec.kv.store == "int6" and base.hidden_size % 4:
            raise ConfigError(
                f"memory.kv: store int6 needs a base whose width is a multiple of 4, got {base.hidden_size}",
                hint="Use int8 or bfloat16",
            )
        self.spec = spec
        self.head = ProjectionHead(base.hidden_size, spec.d_embed)
        self.compiler = MemoryCompiler(spec, base)
        self.router = Router(spec)

    def compile_atoms(self, pooled_ND: Tensor) -> tuple[Tensor, Tensor]:
        """Return provenance keys `[N, E]` and latents `[N, Z]` from pooled states."""
        return self.compiler(self.head(pooled_ND))

    def query_keys(self, pooled_BD: Tensor) -> Tensor:
        """Return query keys `[B, E]` from the questions' pooled states."""
        return self.router.query_key(self.head(pooled_BD))
