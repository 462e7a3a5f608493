"""Trained systems beside Doc-to-Atom, over the same batches: Doc-to-LoRA, the tuned reader and the blind control.

Each is an `nn.Module` whose parameters are what is trained; the frozen base is no part of them. `forward(batch,
phase)` returns `{loss: (sum, count)}` for the losses that the phase has on, and for those of `own_weights`, which no
other system has. `answer(batch, top_k=K)` returns the logits at the answers, which is all that `sensitivity` needs to
tell whether a system uses what it was given.
"""
